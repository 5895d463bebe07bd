"""HARL's formulas by hand, and their differences from mapush's."""

import numpy as np
import pytest
import torch

from harl_mapush import config
from harl_mapush.learning.normalization import normalize_advantages
from harl_mapush.learning.on_policy.formulas import Formulas, compute_gae
from harl_mapush.learning.on_policy.minibatches import CriticBatch, Shuffle
from harl_mapush.learning.settings import NetworkCfg, OnPolicyCfg
from mapush.extensions.harl.on_policy_formulas import (
    HarlFormulas,
    compute_harl_gae,
    join_rows,
)
from mqe.config import to_dict
from mqe.vec_env import Symmetries
from tests.harl_mapush.algorithms.test_algorithms import make
from tests.harl_mapush.learning.test_returns import GAMMA, LAM, column
from tests.mqe.tasks.test_mirror import MIRROR, team_of
from tests.support import off_policy_toys
from tests.support.rounding import FEW_STEPS
from tests.support.toy import ToyEnv


def test_harl_gae_drops_a_truncated_step():
    # t = 1: delta 3 + 0.5 * 6 - 4 = 2, return 6; t = 0 ends: delta 1 - 2 = -1, return 1
    rewards = column(1.0, 3.0)
    values = column(2.0, 4.0, 6.0)
    masks = column(1.0, 0.0, 1.0)
    ended = compute_harl_gae(rewards, values, masks, None, GAMMA, LAM)
    assert ended.flatten().tolist() == pytest.approx([1.0, 6.0])
    truncated = compute_harl_gae(rewards, values, masks, masks, GAMMA, LAM)
    # The target is the old value itself.
    assert truncated.flatten().tolist() == pytest.approx([2.0, 6.0])


def test_ours_equals_harl_where_nothing_is_truncated():
    torch.manual_seed(0)
    steps = 7
    envs = 5
    rewards = torch.randn(steps, envs, 1)
    values = torch.randn(steps + 1, envs, 1)
    masks = (torch.rand(steps + 1, envs, 1) > 0.2).float()
    harl = compute_harl_gae(rewards, values, masks, torch.ones_like(masks), 0.99, 0.95)
    ours = compute_gae(
        rewards,
        values[:-1],
        values[1:] * masks[1:],
        masks[1:],
        torch.zeros_like(masks[1:]),
        0.99,
        0.95,
    )
    assert torch.allclose(ours + values[:-1], harl, atol=FEW_STEPS)


def test_agents_advantages_are_normalised_together_by_harl_alone_where_each_has_its_own_value():
    assert [HarlFormulas().joins_advantages(num_values) for num_values in (1, 3)] == [False, True]
    assert [Formulas().joins_advantages(num_values) for num_values in (1, 3)] == [False, False]


def test_advantages_are_those_of_numpy():
    advantages = torch.randn(37, 11, generator=torch.Generator().manual_seed(0)) * 3.0 + 0.7
    weights = (torch.arange(37 * 11).view(37, 11) % 5 > 0).float()
    rows = advantages.unsqueeze(-1).numpy()
    seen = np.where(weights.unsqueeze(-1).numpy() == 0.0, np.float32(np.nan), rows)
    expected = (rows - np.nanmean(seen)) / (np.nanstd(seen) + 1e-5)
    normalized = normalize_advantages(advantages, weights)
    # Numbers of up to 4 with a rounding of 6e-8, after a few operations.
    assert torch.allclose(normalized, torch.from_numpy(expected).squeeze(-1), rtol=0.0, atol=2e-6)


def test_rows_are_joined_by_time_of_one_batch_after_another():
    """Two agents, L = 2, B = 2. Row numbers go by time first, then by sequence."""

    def batch(first):
        rows = torch.arange(first, first + 4.0).view(2, 2, 1)
        hidden = torch.full((1, 2, 1, 1), first)
        return CriticBatch(rows, rows, rows, rows[..., 0], hidden, rows[..., 0])

    mixed = join_rows([batch(0.0), batch(4.0)])
    assert mixed.weights.tolist() == [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]]
    assert mixed.state.shape == (2, 4, 1)
    assert mixed.hidden is not None
    assert mixed.hidden.flatten().tolist() == [0.0, 0.0, 4.0, 4.0]


def test_minibatches_share_every_batch_and_cover_it():
    rows = [torch.arange(6.0).view(1, 6, 1), torch.arange(10.0, 16.0).view(1, 6, 1)]
    batches = [CriticBatch(x, x, x, x, None, None) for x in rows]
    shuffle = Shuffle(torch.Generator().manual_seed(0), torch.Generator())
    seen = [b.state.flatten().tolist() for b in HarlFormulas().minibatches(batches, 2, 3, shuffle)]
    assert [len(part) for part in seen] == [4] * 6
    assert all(sum(value >= 10 for value in part) == 2 for part in seen)
    assert sorted(sum(seen[:3], [])) == sorted(sum(seen[3:], [])) == [*range(6), *range(10, 16)]
    assert seen[:3] != seen[3:]


@pytest.mark.parametrize(
    ("choice", "ep", "fp"),
    [
        ("mean", [[2.0]], [[2.0, 2.0]]),
        ("sum", [[4.0]], [[4.0, 4.0]]),
        ("own", [[1.0]], [[1.0, 3.0]]),
    ],
)
def test_under_harl_the_team_is_rewarded_as_upstream_reads_what_the_environment_gives(
    choice, ep, fp
):
    rewards = torch.tensor([[1.0, 3.0]])
    for state_type, expected in (("EP", ep), ("FP", fp)):
        runner = make("happo", ToyEnv(4, state_type=state_type), compat="harl", team_reward=choice)
        assert runner.algorithm.team_rewards(rewards).tolist() == expected


def test_networks_have_no_bound_on_mean_actions():
    assert OnPolicyCfg(compat="harl").built_network(NetworkCfg(mean_bound=0.5)).mean_bound is None


def test_settings_that_upstreams_networks_lack_are_reported_and_not_recorded() -> None:
    cfg, notices = config.resolve(
        {"network": {"mean_bound": 1.0, "gain": 0.5}}, {"algorithm": {"compat": "harl"}}
    )
    assert notices == ["network.mean_bound left out: networks of happo are without them here"]
    assert (cfg.network.mean_bound, cfg.network.gain, cfg.network.use_layer_norm) == (
        None,
        0.5,
        True,
    )
    assert config.resolve(to_dict(cfg), {}) == (cfg, [])


def test_updates_beside_the_collecting_are_refused():
    settings = off_policy_toys.SMALL | {"beside_collecting": True}
    with pytest.raises(ValueError, match="set algorithm.beside_collecting=false"):
        off_policy_toys.make("hasac", ToyEnv(8), NetworkCfg((8,)), compat="harl", **settings)


def test_images_of_transitions_are_refused():
    spec = ToyEnv(4).spec._replace(symmetries=Symmetries(MIRROR))
    said = "upstream has no images of transitions under compat=harl"
    with pytest.raises(ValueError, match=rf"symmetries must not be \[mirror\]: {said}.*"):
        team_of("hatd3", spec, compat="harl")
