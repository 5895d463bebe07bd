import math

import pytest
import torch
from torch import nn

from harl_mapush.learning.normalization import (
    ReturnNorm,
    ValueNorm,
    normalize_advantages,
    rescale_output,
)
from tests.support.rounding import FEW_STEPS


def test_advantages_use_the_population_deviation_and_epsilon_1e_5():
    normalize = normalize_advantages
    # entries 1 and 3: mean 2, population std 1; the inactive 8 is shifted and scaled alike
    normalized = normalize(torch.tensor([1.0, 3.0, 8.0]), torch.tensor([1.0, 1.0, 0.0]))
    assert normalized.tolist() == pytest.approx(
        [-1.0 / 1.00001, 1.0 / 1.00001, 6.0 / 1.00001], rel=1e-7
    )
    small = normalize(torch.tensor([-1e-5, 1e-5]), torch.ones(2))
    assert small.tolist() == pytest.approx([-0.5, 0.5], rel=1e-5)  # std equals epsilon
    # No agent is active.
    assert torch.isfinite(normalize(torch.randn(4), torch.zeros(4))).all()


def test_a_rollout_without_a_valid_step_leaves_the_value_normaliser_finite():
    norm = ValueNorm()
    norm.update(torch.tensor([3.0, 5.0]))
    norm.update(torch.randn(4, 1), torch.zeros(4, 1))
    norm.update(torch.tensor([[2.0], [6.0]]), torch.tensor([[0.0], [0.5]]))
    mean, std = norm.mean_std()
    # means 4, 0 and, of half a step, 6 / 2; each weighs 1e-5, the newest most
    assert mean.tolist() == pytest.approx([7.0 / 3.0], rel=1e-3)
    assert torch.isfinite(std).all()


def test_value_norm_by_hand():
    norm = ValueNorm(beta=0.75)
    mean, std = norm.mean_std()
    # Fresh: variance at its floor of 0.01.
    assert (float(mean), float(std)) == pytest.approx((0.0, 0.1))
    norm.update(torch.tensor([2.0, 4.0]))  # mean 3, mean square 10
    norm.update(torch.tensor([6.0, 6.0]))  # mean 6, mean square 36
    debias = 1.0 - 0.75**2
    mean = (0.75 * 0.25 * 3 + 0.25 * 6) / debias
    mean_sq = (0.75 * 0.25 * 10 + 0.25 * 36) / debias
    expected = (mean, math.sqrt(mean_sq - mean**2))
    assert tuple(float(x) for x in norm.mean_std()) == pytest.approx(expected, rel=FEW_STEPS)
    assert norm.denormalize(norm.normalize(torch.tensor([5.0]))).item() == pytest.approx(
        5.0, rel=FEW_STEPS
    )


def test_value_norm_leaves_out_weight_zero():
    weighted = ValueNorm()
    plain = ValueNorm()
    weighted.update(torch.tensor([1.0, 3.0, 1e9]), torch.tensor([1.0, 1.0, 0.0]))
    plain.update(torch.tensor([1.0, 3.0]))
    assert torch.equal(weighted.running_mean_sq, plain.running_mean_sq)


def test_value_norm_saves_three_tensors_under_harls_names_on_any_device():
    assert set(ValueNorm().to("meta").state_dict()) == {
        "running_mean",
        "running_mean_sq",
        "debiasing_term",
    }


def test_harls_value_norm_hardly_tracks_and_ours_does():
    slow = ValueNorm()
    quick = ValueNorm(beta=0.95)
    for norm in (slow, quick):
        for level in (0.0, 100.0):
            for _ in range(200):
                norm.update(torch.tensor([level]))
    assert float(slow.mean_std()[0]) == pytest.approx(50.0, abs=0.1)
    assert float(quick.mean_std()[0]) == pytest.approx(100.0, abs=0.1)


def test_rescaled_output_keeps_denormalised_values():
    torch.manual_seed(0)
    layer = nn.Linear(4, 1)
    norm = ValueNorm(beta=0.5)
    x = torch.randn(6, 4)
    norm.update(torch.tensor([1.0, 5.0]))
    values = norm.denormalize(layer(x))
    before = norm.mean_std()
    norm.update(torch.tensor([-20.0, 40.0]))
    rescale_output(layer, before, norm.mean_std())
    assert torch.allclose(norm.denormalize(layer(x)), values, atol=1e-4)


def test_return_statistics_are_those_of_all_valid_rows():
    torch.manual_seed(0)
    norm = ReturnNorm(2.0)
    rows = torch.randn(50, 1) * 4.0 + 2.0
    junk = torch.full((5, 1), 1e6)
    norm.update(torch.cat([rows[:20], junk]), torch.cat([torch.ones(20), torch.zeros(5)]))
    norm.update(rows[20:].view(3, 10, 1), torch.ones(3, 10))
    assert torch.allclose(norm.mean, rows.mean(0), atol=1e-5)
    assert torch.allclose(norm.var, rows.var(0, correction=0), atol=1e-4)


def test_one_return_is_its_own_mean_and_scaled_by_its_size():
    norm = ReturnNorm(2.0)
    norm.update(torch.tensor([[7.5]]), torch.tensor([1.0]))
    assert (norm.mean.tolist(), norm.var.tolist()) == ([7.5], [0.0])
    assert norm.scale().item() == pytest.approx(2.0 / 7.5)
    assert norm.scale().item() * 7.5 == pytest.approx(2.0)  # the bound
