import pytest
import torch

from harl_mapush.learning.on_policy.formulas import Formulas, compute_gae, compute_returns
from harl_mapush.learning.on_policy.rollout_storage import Storage, StorageShape
from harl_mapush.learning.on_policy.value_update import _explained_variance
from harl_mapush.learning.settings import OnPolicyCfg
from mapush.extensions.harl.on_policy_formulas import (
    HarlFormulas,
    compute_harl_gae,
    compute_harl_returns,
)

GAMMA = 0.5
LAM = 0.8


def column(*values: float) -> torch.Tensor:
    """(T, 1, 1)."""
    return torch.tensor(values).view(-1, 1, 1)


def test_gae_by_hand():
    # deltas: 1 + 0.5 * 4 - 2 = 1;  3 + 0.5 * 6 - 4 = 2;  advantages: 2, then 1 + 0.4 * 2
    advantages = compute_gae(
        column(1.0, 3.0),
        column(2.0, 4.0),
        column(4.0, 6.0),
        column(1.0, 1.0),
        column(0.0, 0.0),
        GAMMA,
        LAM,
    )
    assert advantages.flatten().tolist() == pytest.approx([1.8, 2.0])


def test_gae_does_not_flow_across_an_episode_end():
    # a time-out at t = 0: its own delta bootstraps from the value given, the next episode adds
    # nothing
    advantages = compute_gae(
        column(1.0, 3.0),
        column(2.0, 4.0),
        column(10.0, 6.0),
        column(0.0, 1.0),
        column(0.0, 0.0),
        GAMMA,
        LAM,
    )
    assert advantages.flatten().tolist() == pytest.approx([1.0 + 5.0 - 2.0, 2.0])


def test_a_broken_step_teaches_nothing_and_passes_nothing_on():
    advantages = compute_gae(
        column(1.0, 99.0, 3.0),
        column(2.0, 4.0, 4.0),
        column(4.0, 0.0, 6.0),
        column(1.0, 0.0, 1.0),
        column(0.0, 1.0, 0.0),
        GAMMA,
        LAM,
    )
    assert advantages.flatten().tolist() == pytest.approx([1.0, 0.0, 2.0])


def test_returns_without_gae_by_hand():
    # t = 2: 4 + 0.5 * 8; t = 1 ends: 2 + 0.5 * 0; t = 0: 1 + 0.5 * 2
    returns = compute_returns(
        column(1.0, 2.0, 4.0),
        column(0, 0, 0),
        column(7.0, 0.0, 8.0),
        column(1, 0, 1),
        column(0, 0, 0),
        GAMMA,
    )
    assert returns.flatten().tolist() == pytest.approx([2.0, 2.0, 8.0])


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


def test_harl_returns_without_gae():
    rewards = column(1.0, 3.0)
    values = column(2.0, 4.0, 6.0)
    masks = column(1.0, 1.0, 0.0)
    bad = column(1.0, 1.0, 0.0)
    plain = compute_harl_returns(
        rewards, values, torch.tensor([[6.0]]), column(1.0, 1.0, 1.0), None, GAMMA
    )
    assert plain.flatten().tolist() == pytest.approx([4.0, 6.0])
    truncated = compute_harl_returns(rewards, values, torch.tensor([[6.0]]), masks, bad, GAMMA)
    assert truncated.flatten().tolist() == pytest.approx([3.0, 4.0])


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
    assert torch.allclose(ours + values[:-1], harl, atol=1e-6)


def a_rollout(num_values: int) -> Storage:
    """Two decisions of one world with two agents."""
    return Storage(StorageShape(2, 1, 2, 3, 1, (3,), num_values), "cpu")


def test_harl_without_gae_bootstraps_from_the_value_after_the_last_decision():
    storage = a_rollout(num_values=1)
    storage.rewards[:] = column(1.0, 3.0)
    storage.values[:] = column(100.0, 200.0, 4.0)
    cfg = OnPolicyCfg(use_gae=False, use_proper_time_limits=False, gamma=GAMMA)
    returns = HarlFormulas().returns(storage, storage.values, lambda x: x, cfg)
    assert returns.flatten().tolist() == pytest.approx([1.0 + 0.5 * 5.0, 3.0 + 0.5 * 4.0])


@pytest.mark.parametrize(
    ("num_values", "expected"), [(1, [[1.0], [0.0]]), (2, [[1.0, 0.0], [0.0, 0.0]])]
)
def test_a_shared_value_counts_while_an_agent_is_dead_and_an_own_one_does_not(num_values, expected):
    storage = a_rollout(num_values)
    storage.active[1, 0] = 0.0  # the second agent is dead at first
    storage.valid[1] = 0.0  # and the second step broke
    assert Formulas().value_weights(storage)[:, 0].tolist() == expected


def test_explained_variance_by_hand():
    # Mean 3.5, variance 29 / 4; errors 0, 0, 0, 4 have variance 3.
    returns = torch.tensor([1.0, 2.0, 3.0, 8.0])
    assert _explained_variance(torch.tensor([1.0, 2.0, 3.0, 4.0]), returns).item() == pytest.approx(
        1.0 - 12.0 / 29.0
    )
    assert _explained_variance(returns - 5.0, returns).item() == pytest.approx(1.0)
    assert _explained_variance(-returns, returns).item() == pytest.approx(-3.0)


def test_agents_advantages_are_normalised_together_by_harl_alone_where_each_has_its_own_value():
    assert [HarlFormulas().joins_advantages(num_values) for num_values in (1, 3)] == [False, True]
    assert [Formulas().joins_advantages(num_values) for num_values in (1, 3)] == [False, False]
