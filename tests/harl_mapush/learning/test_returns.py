import pytest
import torch

from harl_mapush.learning.on_policy.formulas import Formulas, compute_gae
from harl_mapush.learning.on_policy.rollout_storage import Storage, StorageShape
from harl_mapush.learning.on_policy.value_update import _explained_variance

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


def a_rollout(num_values: int) -> Storage:
    """Two decisions of one world with two agents."""
    return Storage(StorageShape(2, 1, 2, 3, 1, (3,), num_values), "cpu")


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
