"""Collapsed robots: hand-placed poses, and timer resets."""

import pytest
import torch

from mqe.world.collapse import LOW_TIME, REST_TIME, CollapseTimers, rests_on_floor
from mqe.world.scene import STEP_DT
from mqe.world.state import SceneState
from tests.support.scenes import DEFAULT_JOINT_POS, GO1, team

# Knees 0.049 m below the trunk's origin.
KNEELING = torch.tensor([0.1, 1.3, -2.6, -0.1, 1.3, -2.6] * 2)


def state_of(height: float, joints: torch.Tensor, pitch: float = 0.0) -> SceneState:
    """One robot without an object, heading along x."""
    half = torch.tensor(pitch / 2)
    qpos = torch.cat(
        (torch.tensor([0.0, 0.0, height, torch.cos(half), 0.0, torch.sin(half), 0.0]), joints)
    )
    return SceneState(
        torch.cat((qpos, torch.zeros(18 + 3))).unsqueeze(1), num_robots=1, has_object=False
    )


@pytest.mark.parametrize(
    "height, joints, pitch, expected",
    [
        (GO1.standing_height, torch.tensor(DEFAULT_JOINT_POS), 0.0, False),
        (0.22, torch.tensor(DEFAULT_JOINT_POS), 0.0, False),
        (0.072, KNEELING, 0.0, True),  # knees at 0.023 m, the trunk's bottom at 0.015 m
        (0.076, KNEELING, 0.0, False),
        (
            0.060,
            torch.tensor([0.0, 0.0, -0.92] * 4) + torch.tensor([0.0, 1.5, 0.0] * 4),
            0.0,
            True,
        ),  # trunk and knees
        (
            0.19,
            torch.tensor(DEFAULT_JOINT_POS),
            0.8,
            True,
        ),  # nose down: 0.29 sin 0.8 + 0.05 cos 0.8 = 0.243 below
        (0.26, torch.tensor(DEFAULT_JOINT_POS), 0.8, False),
    ],
)
def test_a_robot_rests_on_the_floor_where_knee_or_trunk_reach_it(height, joints, pitch, expected):
    assert bool(rests_on_floor(state_of(height, joints, pitch), team(1))) is expected


@pytest.mark.parametrize(
    "height, joints, limit",
    [(0.20, torch.tensor(DEFAULT_JOINT_POS), LOW_TIME), (0.07, KNEELING, REST_TIME)],
)
def test_a_collapse_is_uninterrupted(height, joints, limit):
    timers = CollapseTimers(torch.zeros(1, 1, CollapseTimers.SIZE), team(1))
    low = state_of(height, joints)
    up = state_of(GO1.standing_height, torch.tensor(DEFAULT_JOINT_POS))
    steps = round(limit / STEP_DT)
    for _ in range(steps - 1):
        timers.update(low)
        assert not timers.collapsed.any()
    timers.update(up)
    for _ in range(steps - 1):
        timers.update(low)
    assert not timers.collapsed.any()
    timers.update(low)
    assert timers.collapsed.all()
    timers.values.zero_()
    assert not timers.collapsed.any()


def test_a_trunk_at_the_low_height_is_not_below_it():
    timers = CollapseTimers(torch.zeros(1, 1, CollapseTimers.SIZE), team(1))
    timers.update(state_of(GO1.low_height, torch.tensor(DEFAULT_JOINT_POS)))
    assert float(timers.values[0, 0, 0]) == 0.0
    timers.update(state_of(GO1.low_height - 1e-6, torch.tensor(DEFAULT_JOINT_POS)))
    assert float(timers.values[0, 0, 0]) > 0.0


def test_grace_at_the_start_is_not_lost_by_standing_up_for_a_moment():
    timers = CollapseTimers(torch.zeros(1, 1, CollapseTimers.SIZE), team(1))
    timers.values.fill_(-0.2)
    low = state_of(0.07, KNEELING)
    up = state_of(GO1.standing_height, torch.tensor(DEFAULT_JOINT_POS))
    for state in (low, up, low):
        timers.update(state)
    steps = 3
    while not timers.collapsed.any():
        timers.update(low)
        steps += 1
    assert steps * STEP_DT == pytest.approx(0.2 + REST_TIME)
