"""The rewards of a gait for a Go1 and a dynamically similar robot of another size."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mapush.extensions.gait.features import StepFeatures, VelocityConstants, VelocityMemory
from mapush.extensions.gait.rewards import excess_depth
from mapush.extensions.gait.settings import VelocityCfg
from mapush.extensions.gait.task import VelocityTask
from mapush.extensions.gait.terminations import has_fallen
from mqe.controllers.trot import GaitMemory, Trot, clock_advance, is_moving
from mqe.world.robots import ROBOTS, RobotCfg, Robots
from mqe.world.scene import STEP_DT
from mqe.world.state import SceneState
from mqe.world.streams import Streams
from tests.support.term_scenes import N, random_state

GO1 = ROBOTS["go1"]


def resized(size: float) -> RobotCfg:
    """Return a robot of the Go1's density, ``size`` times as long."""
    legs = [
        leg._replace(
            hip_pos=(size * leg.hip_pos[0], size * leg.hip_pos[1]),
            side=size * leg.side,
            inertials=tuple(part._replace(mass=size**3 * part.mass) for part in leg.inertials),
        )
        for leg in GO1.legs
    ]
    lengths = ("foot_radius", "knee_radius", "standing_height", "walking_height", "low_height")
    return replace(
        GO1,
        name="resized",
        trunk=GO1.trunk._replace(mass=size**3 * GO1.trunk.mass),
        legs=tuple(legs),
        link_lengths=(size * GO1.link_lengths[0], size * GO1.link_lengths[1]),
        stiffness=size**4 * GO1.stiffness,
        damping=size**4.5 * GO1.damping,
        **{name: size * getattr(GO1, name) for name in lengths},
    )


def enlarged(state: SceneState, size: float) -> SceneState:
    """Return the state of a robot ``size`` times as long. Times grow with the root of its size."""
    image = state.like(state.rows.clone())
    image.robot_pos[:] = size * state.robot_pos
    image.robot_linvel[:] = size**0.5 * state.robot_linvel
    image.robot_angvel_b[:] = size**-0.5 * state.robot_angvel_b
    image.joint_vel[:] = size**-0.5 * state.joint_vel
    return image


def step_of(robot: RobotCfg, state: SceneState) -> StepFeatures:
    """Return the features of one control step with equal actions, and loads relative to mass."""
    torch.manual_seed(0)
    cfg = VelocityCfg(max_load=20.0)
    task = VelocityTask(cfg, N, Robots([robot]), Streams(0, N, "cpu"))
    memory = torch.rand(N, task.memory.shape[1])
    VelocityMemory.of(memory).load.mul_(robot.mass / GO1.mass)
    # Equal clocks at the end of the step
    VelocityMemory.of(memory).gait.phase.sub_(clock_advance(robot))
    task.memory.copy_(memory)
    task.command(torch.rand(N, 1, 12) - 0.5)
    return task.step_features(state, state)


@pytest.mark.parametrize("size", [0.25, 4.0])
def test_the_mean_velocity_is_that_of_one_trot_cycle(size):
    """A robot four times as long trots half as fast: 0.8 s in place of 0.4 s a cycle."""
    constants = VelocityConstants(VelocityCfg(), Robots([resized(size)]))
    assert constants.step_of_mean == pytest.approx(STEP_DT / (0.4 * size**0.5))


@pytest.mark.parametrize("size", [0.6, 1.8])
def test_similar_motions_get_equal_rewards(size):
    torch.manual_seed(1)
    state = random_state(1, False, 0.3)
    step = step_of(GO1, state)
    similar = step_of(resized(size), enlarged(state, size))
    for name, sums in step.square_sums.items():
        torch.testing.assert_close(similar.square_sums[name], sums, msg=name, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(similar.feet_error, step.feet_error)
    torch.testing.assert_close(excess_depth(similar.clearance), excess_depth(step.clearance))
    assert torch.equal(
        has_fallen(similar.state, similar.robots), has_fallen(step.state, step.robots)
    )


@pytest.mark.parametrize("size", [0.6, 1.8])
def test_similar_motions_get_equal_observations(size):
    torch.manual_seed(1)
    state = random_state(1, False, 0.3)
    command = torch.rand(N, 1, 3)
    similar = command * torch.tensor([size**0.5, size**0.5, size**-0.5])
    memory = GaitMemory(torch.rand(N, 1, GaitMemory.SIZE))
    moving = is_moving(command)
    of_go1 = Trot(Robots([GO1])).observe(state, command, moving, memory)
    of_similar = Trot(Robots([resized(size)])).observe(
        enlarged(state, size), similar, moving, memory
    )
    torch.testing.assert_close(of_similar, of_go1)


@pytest.mark.parametrize("size", [0.25, 4.0])
def test_a_cycle_lasts_as_long_as_a_swing_of_the_legs(size):
    # Half a time for a quarter of a length: 20 control steps a cycle of the Go1
    assert 1.0 / clock_advance(resized(size)) == pytest.approx(20.0 * size**0.5)


def test_robots_of_one_team_have_clocks_of_their_own():
    memory = GaitMemory(torch.zeros(N, 2, GaitMemory.SIZE))
    robots = Robots([GO1, resized(4.0)])
    Trot(robots).act(memory, torch.zeros(N, 2, 12), torch.ones(N, 2, dtype=torch.bool))
    torch.testing.assert_close(memory.phase, torch.tensor([0.05, 0.025]).expand(N, 2))


def test_a_go1_has_scales_of_one():
    assert GO1.time_scale == ROBOTS["go2"].time_scale == 1.0
    scales = step_of(GO1, random_state(1, False, 0.3)).constants.scales
    assert torch.equal(scales, torch.ones_like(scales))
