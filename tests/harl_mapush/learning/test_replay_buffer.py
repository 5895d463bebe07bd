"""The replay buffer returns stored transitions, n steps at a time, never across an ending or a
broken step.
"""

from __future__ import annotations

from typing import Any

import torch

from harl_mapush.learning.off_policy.replay_buffer import (
    Batch,
    RingReplay,
    Transition,
    replay_shape,
)
from tests.support.transitions import GAMMA, transition


def make(num_rows: int, num_envs: int = 2, n_step: int = 1) -> RingReplay:
    sizes = {"num_agents": 2, "obs_size": 3, "action_size": 2, "num_views": 1, "state_size": 4}
    shape = replay_shape(num_rows * num_envs, num_envs, **sizes)
    return RingReplay(shape, n_step, GAMMA, torch.Generator().manual_seed(0), "cpu")


def filled(num_rows: int, *steps: Transition, n_step: int = 1) -> RingReplay:
    replay = make(num_rows, n_step=n_step)
    for step in steps:
        replay.add(step)
    return replay


def drawn(replay: RingReplay, count: int = 400) -> Batch:
    return replay.sample(count)


def test_a_row_comes_out_as_it_went_in():
    replay = filled(3, transition(0), transition(1), transition(2))
    batch = replay.look_up(torch.tensor([3]))  # decision 1 of world 1
    assert batch.obs.tolist() == [[[101.0] * 3] * 2]
    assert batch.state.tolist() == [[[101.25] * 4]]
    assert torch.allclose(batch.actions, torch.full((1, 2, 2), 0.101))
    assert batch.active.tolist() == [[1.0, 0.0]]
    assert batch.next_obs.tolist() == [[[101.5] * 3] * 2]
    assert batch.next_state.tolist() == [[[101.75] * 4]]
    assert (batch.returns.item(), batch.discount.item()) == (101.0, GAMMA)


def test_rewards_of_n_steps_are_discounted_and_their_last_state_is_the_next():
    replay = filled(5, *(transition(k) for k in range(5)), n_step=3)
    batch = replay.look_up(torch.tensor([2]))  # decision 1 of world 0
    assert batch.returns.item() == 100.0 + 0.5 * 200.0 + 0.25 * 300.0
    assert batch.discount.item() == 0.125
    assert batch.next_obs[0, 0, 0].item() == 300.5


def test_the_newest_decision_ends_the_sum_also_where_the_ring_has_come_round():
    for count in (3, 6, 7):
        replay = filled(4, *(transition(k) for k in range(count)), n_step=3)
        row = (count - 2) % 4
        batch = replay.look_up(torch.tensor([2 * row]))
        assert batch.discount.item() == 0.25
        assert batch.next_obs[0, 0, 0].item() == 100.0 * (count - 1) + 0.5


def test_a_time_out_bootstraps_from_the_true_last_state_and_a_termination_does_not():
    for flag, discount in (("done", 0.25), ("terminated", 0.0)):
        ended: Any = {flag: [True, False]}
        steps = [
            transition(0),
            transition(1, **ended),
            transition(2),
            transition(3),
        ]
        batch = filled(4, *steps, n_step=3).look_up(torch.tensor([0, 1]))
        assert batch.returns[:, 0].tolist() == [50.0, 1.0 + 0.5 * 101.0 + 0.25 * 201.0]
        assert batch.discount.tolist() == [discount, 0.125]
        assert batch.next_obs[:, 0, 0].tolist() == [100.5, 201.5]


def test_a_broken_step_ends_the_sum_before_it():
    steps = [transition(0), transition(1), transition(2, valid=[False, True]), transition(3)]
    batch = filled(4, *steps, n_step=4).look_up(torch.tensor([0]))
    assert batch.returns.item() == 50.0
    assert batch.discount.item() == 0.25
    assert batch.next_obs[0, 0, 0].item() == 100.5


def test_a_draw_before_any_valid_transition_is_of_some_row():
    replay = filled(4, transition(0, valid=[False, False]))
    assert drawn(replay, 3).obs.shape == (3, 2, 3)


def test_where_sums_end_apart_that_of_an_agent_ends_with_it_and_nothing_follows():
    sizes = {"num_agents": 2, "obs_size": 3, "action_size": 2, "num_views": 2, "state_size": 4}
    shape = replay_shape(8, 2, **sizes, ends_apart=True)
    replay = RingReplay(shape, 3, GAMMA, torch.Generator(), "cpu")
    assert shape.nbytes == shape._replace(ends_apart=False).nbytes + 2 * shape.num_transitions
    steps = [transition(k)._replace(rewards=torch.full((2, 2), 1.0 + k)) for k in range(4)]
    steps = [step._replace(state=step.state.expand(-1, 2, -1)) for step in steps]
    steps = [step._replace(next_state=step.next_state.expand(-1, 2, -1)) for step in steps]
    dies = torch.tensor([[False, True], [False, False]])  # agent 1 of world 0
    steps[1] = steps[1]._replace(terminated=dies)
    steps[2] = steps[2]._replace(terminated=dies, done=torch.tensor([True, False]))  # time is up
    for step in steps:
        replay.add(step)
    restored = RingReplay(shape, 3, GAMMA, torch.Generator(), "cpu")
    restored.load_state_dict(replay.state_dict())
    for ring in (replay, restored):
        batch = ring.look_up(torch.tensor([0, 4, 1]))  # world 0 at 0 and 2, world 1 at 0
        all_three = 1.0 + 0.5 * 2.0 + 0.25 * 3.0
        assert batch.returns.tolist() == [[all_three, 2.0], [3.0, 3.0], [all_three, all_three]]
        assert batch.discount.tolist() == [[0.125, 0.0], [0.5, 0.5], [0.125, 0.125]]
        assert batch.next_obs[0, :, 0].tolist() == [200.5, 100.5]
        assert batch.next_state[0, :, 0].tolist() == [200.75, 100.75]
    state = replay.state_dict()
    del state["ends"]  # of a run saved before
    restored.load_state_dict(state)
    assert restored.look_up(torch.tensor([0])).discount.tolist() == [[0.125, 0.125]]


def test_broken_steps_are_never_drawn_and_all_others_equally_often():
    steps = [
        transition(0),
        transition(1, valid=[False, True]),
        transition(2, valid=[False, False]),
        transition(3),
    ]
    seen = drawn(filled(5, *steps), 5000).obs[:, 0, 0]
    values, counts = seen.unique(return_counts=True)
    assert values.tolist() == [0.0, 1.0, 101.0, 300.0, 301.0]
    assert int(counts.min()) > 900
    assert int(counts.max()) < 1100


def test_the_oldest_gives_way():
    assert drawn(filled(3, *(transition(k) for k in range(7)))).obs.unique().tolist() == [
        *(400.0, 401.0, 500.0, 501.0, 600.0, 601.0)
    ]


def test_a_restored_replay_gives_the_same_draws():
    for count in (2, 5):
        replay = filled(3, *(transition(k, valid=[k != 1, True]) for k in range(count)), n_step=2)
        other = make(3, n_step=2)
        other.load_state_dict(replay.state_dict())
        assert len(other) == len(replay) == 2 * min(count, 3)
        for x in (replay, other):
            x.add(transition(9))
        assert all(torch.equal(a, b) for a, b in zip(drawn(replay), drawn(other), strict=True))


def test_its_size_is_planned_to_the_byte():
    replay = make(7)
    tensors = [x for x in vars(replay).values() if isinstance(x, torch.Tensor)]
    assert replay.shape.nbytes == sum(x.nbytes for x in tensors) - replay.newest.nbytes
