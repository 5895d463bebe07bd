"""harl_mapush.learning.off_policy.td and ReturnNorm by hand, and against torch's own
distributions.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from harl_mapush.learning.normalization import ReturnNorm
from harl_mapush.learning.off_policy import td
from harl_mapush.learning.off_policy.formulas import OffPolicyFormulas
from tests.support.rounding import FEW_STEPS


def test_log_probabilities_of_squashed_actions_are_torchs():
    torch.manual_seed(0)
    mean = torch.randn(50, 3)
    log_std = torch.randn(50, 3) - 1.0
    noise = torch.randn(50, 3)
    actions, log_probs = td.squashed_sample(mean.double(), log_std.double(), noise.double())
    squashed = TransformedDistribution(
        Normal(mean.double(), log_std.double().exp()), TanhTransform()
    )
    # Beyond, torch's inverse loses the digits that are asked for.
    inside = (actions.abs() < 0.999).all(-1)
    assert int(inside.sum()) > 20
    assert torch.allclose(
        log_probs[inside],
        squashed.log_prob(actions.clamp(-0.9999, 0.9999)).sum(-1)[inside],
        rtol=0.0,
        atol=3 * 2 * math.exp(-20),  # torch's softplus leaves out the rest from 20 on
    )


def test_far_out_actions_have_finite_log_probabilities():
    actions, log_probs = td.squashed_sample(
        torch.tensor([[50.0]]), torch.tensor([[0.0]]), torch.zeros(1, 1)
    )
    assert actions.item() == 1.0
    assert log_probs.item() == pytest.approx(
        -0.5 * math.log(2 * math.pi) - 2 * (math.log(2.0) - 50.0), rel=FEW_STEPS
    )


def test_standard_deviations_are_bounded():
    raw = torch.tensor([-50.0, 0.0, 50.0])
    std = OffPolicyFormulas().log_std(raw).exp()
    torch.testing.assert_close(std, torch.tensor([0.02, math.sqrt(0.02), 1.0]))


def test_entropy_of_a_normal_distribution():
    assert td.gaussian_entropy(0.15) == pytest.approx(float(Normal(0.0, 0.15).entropy()))


def test_td_target_by_hand():
    target = td.td_target(
        torch.tensor([[1.0], [2.0]]), torch.tensor([0.5, 0.0]), torch.tensor([[4.0], [8.0]])
    )
    assert target.tolist() == [[3.0], [2.0]]


def test_huber_has_its_half_and_its_corner_and_squares_have_neither():
    errors = torch.tensor([1.0, -3.0])
    assert td.huber(errors, 2.0).tolist() == [0.5, 4.0]
    assert td.huber(errors, None).tolist() == [1.0, 9.0]


def test_temperatures_rise_where_entropy_is_missing():
    log_probs = torch.tensor([2.0, 4.0])  # an entropy of -3
    # Of -log(alpha) (log_prob + target): step up.
    assert td.temperature_gradient(log_probs, -1.0).item() == -2.0
    assert td.temperature_gradient(log_probs, -5.0).item() == 2.0
    assert td.temperature_gradient(log_probs, -1.0, torch.tensor([1.0, 0.0])).item() == -1.0


def test_weighted_mean_leaves_out_and_is_zero_without_any():
    values = torch.tensor([1.0, 5.0])
    assert td.weighted_mean(values, None).item() == 3.0
    assert td.weighted_mean(values, torch.tensor([0.0, 1.0])).item() == 5.0
    assert td.weighted_mean(values, torch.zeros(2)).item() == 0.0


def test_targets_move_by_their_share():
    target = torch.tensor([0.0, 2.0])
    td.move_towards(target, torch.tensor([1.0, 0.0]), 0.25)
    assert target.tolist() == [0.25, 1.5]


def test_returns_are_scaled_by_their_spread_or_by_their_peak():
    norm = ReturnNorm(5.0)
    norm.update(torch.tensor([[1.0], [3.0], [99.0]]), torch.tensor([1.0, 1.0, 0.0]))
    assert norm.scale().item() == pytest.approx(1.0)  # spread 1, peak 3 / 5
    norm.update(torch.tensor([[40.0]]), torch.tensor([1.0]))
    assert norm.peak.item() == 40.0
    spread = torch.tensor([1.0, 3.0, 40.0]).std(correction=0).item()
    assert norm.scale().item() == pytest.approx(1.0 / max(spread, 8.0), rel=1e-5)
