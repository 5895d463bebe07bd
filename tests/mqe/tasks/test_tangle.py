"""Contacts between robots: forces on both simulators, durations, and entangled starts."""

from __future__ import annotations

import importlib.util
import math

import pytest
import torch
from torch import Tensor, tensor

from mqe.config import ConfigError
from mqe.registry import SimCfg, make_simulator
from mqe.tasks.push.features import Pairs, TangleTimers
from mqe.tasks.push.layouts import (
    CLOSE_DISTANCE,
    CLOSE_MARGIN,
    OBJECT_CLEARANCE,
    SLANT,
    TANGLED_DISTANCE,
    PushLayouts,
)
from mqe.world.layout import Layout
from mqe.world.objects import OBJECTS, Footprint
from mqe.world.scene import DECIMATION, build_scene, read_state
from mqe.world.state import ROBOT_QPOS, SceneState
from mqe.world.streams import Streams
from tests.support.pushing import make_env
from tests.support.scenes import DEFAULT_JOINT_POS, team

CPU = torch.device("cpu")
HAS_WARP = importlib.util.find_spec("mujoco_warp") is not None
NOSE = 0.29  # [m] a head's front from the trunk's origin


def pressed(simulator: str, gaps: list[float]) -> SceneState:
    """Run two control steps with robots 0 and 2 nose to nose along x, initially ``gaps`` [m] apart.
    Robot 1 is away.
    """
    scene = build_scene(3, OBJECTS["cuboid"])
    sim = make_simulator(
        SimCfg(name=simulator, device="cpu", num_threads=1), scene.model, len(gaps)
    )
    qpos = torch.as_tensor(scene.model.qpos0).repeat(len(gaps), 1)
    for robot, (side, y) in enumerate(((-1.0, 3.0), (0.0, -3.0), (1.0, 3.0))):
        start = ROBOT_QPOS * robot
        qpos[:, start] = side * (NOSE + 0.5 * tensor(gaps))
        qpos[:, start + 1] = y
        qpos[:, start + 2] = 0.3
        qpos[:, start + 3 : start + 7] = tensor(
            [0.0, 0.0, 0.0, 1.0] if side > 0.0 else [1.0, 0.0, 0.0, 0.0]
        )
        qpos[:, start + 7 : start + ROBOT_QPOS] = tensor(DEFAULT_JOINT_POS)
    everywhere = torch.ones(len(gaps), dtype=torch.bool)
    sim.write(
        everywhere,
        qpos.to(sim.data.qpos),
        torch.zeros_like(sim.data.qvel),
        torch.zeros_like(sim.data.mocap_pos),
    )
    sim.data.ctrl[:] = tensor(DEFAULT_JOINT_POS * 3)
    for robot, force in ((0, 60.0), (2, -60.0)):
        sim.data.xfrc_applied[:, scene.trunk_bodies[robot], 0] = force
    sim.step(DECIMATION)
    sim.step(DECIMATION)
    state = read_state(sim, scene)
    sim.close()
    return state


@pytest.mark.parametrize(
    "simulator",
    [
        "mujoco",
        pytest.param(
            "warp", marks=pytest.mark.skipif(not HAS_WARP, reason="MuJoCo Warp is not installed")
        ),
    ],
)
def test_the_pair_that_presses_on_one_another_is_felt_and_no_other(simulator: str) -> None:
    state = pressed(simulator, [-0.001, 0.5])
    assert state.robot_contact_force.shape == (2, 3, 3)
    pushed = state.robot_contact_force[0]
    (x, y, z) = state.robot_contact_force[0, 1].tolist()
    assert not pushed[[0, 2]].any()
    assert x > 20.0  # robot 0 pushes robot 2 forward
    assert max(abs(y), abs(z)) < 0.2 * x
    assert not state.robot_contact_force[1].any()
    assert not state.contact_force.any()


def test_forces_lie_where_they_are_looked_for() -> None:
    scene = build_scene(3, OBJECTS["cuboid"])
    names = [f"robot{i}/push" for i in range(3)] + [
        "robot0/robot1",
        "robot0/robot2",
        "robot1/robot2",
    ]
    assert [scene.model.sensor(k).name for k in range(scene.model.nsensor)] == names
    rows = torch.arange(scene.model.nq + scene.model.nv + 18 + 3, dtype=torch.float32).view(-1, 1)
    state = SceneState(rows, 3, has_object=True)
    first = scene.model.nq + scene.model.nv
    assert state.contact_force.flatten().tolist() == list(range(first, first + 9))
    assert state.robot_contact_force.flatten().tolist() == list(range(first + 9, first + 18))
    assert state.goal_pos[0, 0].item() == first + 18
    assert build_scene(1, OBJECTS["cuboid"]).model.nsensor == 1
    assert build_scene(1, None).model.nsensor == 0
    two = build_scene(2, None).model
    assert (
        SceneState(
            torch.zeros(two.nq + two.nv + two.nsensordata + 3, 1), 2, False
        ).robot_contact_force.shape[1]
        == 1
    )


def test_letting_go_for_a_moment_is_no_interruption() -> None:
    timers = TangleTimers(torch.zeros(1, 1, 2))
    longest = []
    for gap in (4, 5):
        timers.values.zero_()
        run = 0
        for k in range(100):
            timers.update(tensor([[k % 10 >= gap]]))
            run = max(run, round(timers.values[0, 0, 0].item() / 0.02))
        longest.append(run)
    # From step 4 to the end; contacts of 5 steps and the 4 that follow them.
    assert longest == [
        96,
        9,
    ]
    assert timers.tangled.tolist() == [[False]]


# Starts with two robots close together.


def draw(
    name: str, num_agents: int, count: int, close: float, tangled: float, episode: int = 0
) -> Layout:
    layouts = PushLayouts(
        Footprint(OBJECTS[name]), team(num_agents), "separated", (1.5, 3.0), close, tangled
    )
    return layouts.draw(Streams(0, count, CPU), torch.full((count,), episode, dtype=torch.int64))


def distances(layout: Layout) -> Tensor:
    return Pairs(layout.robot_pos.shape[1]).distance(layout.robot_pos)


def yaw_of(layout: Layout) -> Tensor:
    return 2.0 * torch.atan2(layout.robot_quat[..., 3], layout.robot_quat[..., 0])


@pytest.mark.parametrize(("name", "num_agents"), [("cuboid", 2), ("tblock", 4), ("cylinder", 3)])
@pytest.mark.parametrize("kind", ["close", "tangled"])
def test_close_robots_are_close_and_not_lost(name: str, num_agents: int, kind: str) -> None:
    furthest = CLOSE_DISTANCE if kind == "close" else TANGLED_DISTANCE
    layout = draw(name, num_agents, 20_000, float(kind == "close"), float(kind == "tangled"))
    closest = distances(layout).amin(dim=1)
    nearest = OBJECTS[name].collision_distance + CLOSE_MARGIN
    assert nearest - 0.005 < closest.min() < nearest + 0.015
    assert closest.median() < 0.5 * (nearest + furthest) + 0.04
    # A corner of the object may push one of them outwards.
    assert (closest < furthest + 1e-4).float().mean() > 0.7
    assert closest.max() < furthest + 0.1
    planar = layout.robot_pos[..., :2]
    yaw = -2.0 * torch.atan2(layout.object_quat[:, 3:], layout.object_quat[:, :1])
    local = torch.stack(
        (
            planar[..., 0] * yaw.cos() - planar[..., 1] * yaw.sin(),
            planar[..., 0] * yaw.sin() + planar[..., 1] * yaw.cos(),
        ),
        dim=-1,
    )
    assert Footprint(OBJECTS[name]).distance(local).min() > OBJECT_CLEARANCE - 1e-3
    pair = distances(layout).argmin(dim=1)
    shares = torch.bincount(pair, minlength=distances(layout).shape[1]) / 20_000
    torch.testing.assert_close(
        shares, torch.full_like(shares, 1.0 / len(shares)), atol=0.03, rtol=0
    )


def test_two_robots_stand_side_by_side_one_a_little_further_out() -> None:
    layout = draw("cylinder", 2, 20_000, 1.0, 0.0)  # round, so that nobody is pushed out of place
    bearing = torch.atan2(layout.robot_pos[..., 1], layout.robot_pos[..., 0])
    turn = torch.remainder(bearing[:, 1] - bearing[:, 0] + math.pi, 2 * math.pi) - math.pi
    assert (turn > 0.0).float().mean().item() == pytest.approx(0.5, abs=0.02)  # to either side
    between = (bearing[:, 0] + 0.5 * turn).unsqueeze(1)
    across = layout.robot_pos[:, 1, :2] - layout.robot_pos[:, 0, :2]
    outwards = across[:, 0] * between[:, 0].cos() + across[:, 1] * between[:, 0].sin()
    distance = distances(layout)
    slant = torch.asin(outwards / distance[:, 0])
    assert SLANT[0] - 0.05 < slant.min() < slant.max() < SLANT[1] + 0.05
    # Half of a trunk's length that points at the other and half the hips' width take up half of the
    # distance at most.
    tilt = torch.sin(yaw_of(layout) - between).abs()
    room = 0.5 * distance - (0.25 * tilt + 0.14)
    assert -0.003 < room.min() < 0.006  # roll and pitch add a little
    assert tilt.max() > 0.4
    looks_out = torch.cos(yaw_of(layout) - between) > 0.0
    assert looks_out.float().mean(dim=0).tolist() == pytest.approx([0.5, 0.5], abs=0.02)


def test_a_robot_comes_close_on_the_side_without_other_robots() -> None:
    layout = draw("cylinder", 3, 20_000, 1.0, 0.0)
    # The third one stays away from both.
    assert distances(layout).sort(dim=1).values[:, 1].min() > 0.75


def test_shares_are_what_they_say_and_all_other_starts_stay_as_they_were() -> None:
    mixed = draw("cylinder", 3, 20_000, 0.2, 0.1, episode=3)
    plain = draw("cylinder", 3, 20_000, 0.0, 0.0, episode=3)
    is_close = (distances(mixed) < 0.7).any(dim=1)
    assert is_close.float().mean().item() == pytest.approx(0.3, abs=0.01)
    default = tensor(DEFAULT_JOINT_POS)
    is_wild = ((mixed.joint_pos - default).abs() > 0.3 * default.abs() + 1e-5).any(dim=-1)  # (N, A)
    assert is_wild.any(dim=1).float().mean().item() == pytest.approx(0.1, abs=0.01)
    assert is_wild.sum(dim=1).unique().tolist() == [0, 2]
    assert bool((is_close | ~is_wild.any(dim=1)).all())
    for ours, theirs in zip(mixed, plain, strict=True):
        assert ours is theirs or torch.equal(ours[~is_close], theirs[~is_close])
    joints = mixed.joint_pos[is_wild].view(-1, 4, 3)
    torch.testing.assert_close(
        joints.amin(dim=(0, 1)), tensor([-0.45, 0.2, -2.2]), atol=0.02, rtol=0
    )
    torch.testing.assert_close(
        joints.amax(dim=(0, 1)), tensor([0.45, 1.6, -1.0]), atol=0.02, rtol=0
    )


def test_a_close_start_depends_on_its_episode_and_world_only() -> None:
    few, many = (draw("cylinder", 3, count, 0.5, 0.5, episode=2) for count in (3, 50))
    for ours, theirs in zip(few, many, strict=True):
        assert ours is theirs or torch.equal(ours, theirs[:3])


@pytest.mark.parametrize(("name", "num_agents"), [("cuboid", 2), ("cylinder", 3)])
@pytest.mark.parametrize("kind", ["close_share", "tangled_share"])
def test_nothing_explodes_and_no_robot_is_lost(name: str, num_agents: int, kind: str) -> None:
    """A single robot lands at up to 1.6 m/s. Slightly overlapping limbs sometimes part faster."""
    env = make_env(128, num_agents, object=name, **{kind: 1.0})
    env.reset()
    is_touching, has_ended = torch.zeros(2, 128, dtype=torch.bool)
    for k in range(10):
        step = env.step(torch.zeros(128, num_agents, 3))
        assert step.valid.all()
        has_ended |= step.done
        assert k > 0 or not has_ended.any()
        speed = env.state.robot_linvel.norm(dim=-1).amax(dim=1)
        assert speed.quantile(0.98) < 1.8
        assert speed.max() < 4.0
        assert env.state.joint_vel.abs().max() < 100.0
        is_touching |= (env.state.robot_contact_force != 0.0).flatten(1).any(dim=1)
    assert has_ended.float().mean() < 0.03
    assert is_touching.float().mean() > (0.1 if kind == "close_share" else 0.35)


def test_a_single_robot_has_no_partner_to_be_close_to() -> None:
    with pytest.raises(ConfigError, match="say 0 for a team of one"):
        draw("cuboid", 1, 1, 0.1, 0.0)
    assert math.isfinite(draw("cuboid", 1, 1, 0.0, 0.0).robot_pos.sum().item())
