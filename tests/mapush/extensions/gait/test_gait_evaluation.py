"""The gait examination in a few worlds, with known results for each policy."""

import itertools
import math
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mapush.extensions.gait.examination import (
    CORNERS,
    EXEMPT,
    LEAST,
    MOST,
    evaluate_gait,
    missed_targets,
    push_wall,
    track,
    walk_corners,
    wander,
)
from mapush.extensions.gait.gait_worlds import GaitWorlds, Walker
from mqe.controllers import trot
from mqe.controllers.gait import load_gait
from mqe.controllers.trot import GAIT_OBS_SIZE
from mqe.registry import SimCfg
from mqe.tasks.drop import JOINT_SCATTER, SPAWN_HEIGHT
from mqe.world.objects import OBJECTS
from mqe.world.robots import ROBOTS
from mqe.world.state import SceneState
from tests.support.rounding import FEW_STEPS
from tests.support.scenes import DEFAULT_JOINT_POS

SIM = SimCfg(name="mujoco", device="cpu")


def stand(obs: Tensor) -> Tensor:
    assert obs.shape[1:] == (1, GAIT_OBS_SIZE)
    return obs.new_zeros(len(obs), 1, 12)


@pytest.fixture(autouse=True)
def few_robots_for_a_short_time(monkeypatch) -> None:
    for name, value in (
        ("GRID", (-0.5, 0.5)),
        ("ROBOTS_A_CELL", 1),
        ("ROBOTS_AT_LOW_SPEED", 2),
        ("ROBOTS_A_CORNER", 2),
        ("CORNER_TIME", 1.4),
        ("NUM_ROBOTS", 4),
        ("RANDOM_TIME", 2.5),
        ("NUM_PUSHING", 1),
        ("PUSHING_TIME", 4.0),
        ("NUM_STANDING", 2),
        ("GRID_TIME", 2.4),
        ("GRID_MEASURED", 1.6),
    ):
        monkeypatch.setattr(f"mapush.extensions.gait.examination.{name}", value)


def fold(obs: Tensor) -> Tensor:
    """Draw in all four legs until the trunk is on the floor."""
    return torch.tensor([0.0, 1.0, -1.0] * 4).expand(len(obs), 1, 12)


def test_robots_are_dropped_as_the_push_task_drops_them():
    worlds = GaitWorlds(Walker(stand, SIM, 0), 200)
    state = worlds.state
    assert state.robot_pos[:, 0, 2].unique().tolist() == pytest.approx([SPAWN_HEIGHT])
    scatter = state.joint_pos[:, 0] / torch.tensor(DEFAULT_JOINT_POS)
    assert JOINT_SCATTER[0] <= float(scatter.min()) < 0.72
    assert 1.28 < float(scatter.max()) <= JOINT_SCATTER[1] + FEW_STEPS
    assert float(state.robot_yaw.max()) - float(state.robot_yaw.min()) > 6.0
    assert 0.09 < float(state.robot_linvel.abs().max()) <= 0.1
    worlds.close()


def test_late_targets_reach_the_motors_late(monkeypatch):
    """The motors' own lag is one physics step. Latencies of 4 and 8 more are added."""
    numbers = itertools.count()

    def count(obs: Tensor) -> Tensor:
        return torch.full((len(obs), 1, 12), 0.1 * next(numbers))

    worlds = GaitWorlds(Walker(count, SIM, 0), 3, latency=torch.tensor([0, 4, 8]))
    motor_targets = []

    def step(num_steps, rows) -> None:
        motor_targets.extend(rows[:num_steps, :, 0])

    monkeypatch.setattr(worlds.sim, "step", step)
    for _ in range(4):
        worlds.advance(torch.zeros(3, 3))
    worlds.close()
    hip = torch.stack(motor_targets) - DEFAULT_JOINT_POS[0]
    follows = (hip / (0.1 * 0.35)).round().t().tolist()
    assert follows[0] == [0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3]
    assert follows[1] == [0] * 4 + follows[0][:-4]
    assert follows[2] == [0] * 8 + follows[0][:-8]


@pytest.mark.parametrize("sim", ["mujoco", pytest.param("warp", marks=pytest.mark.slow)])
def test_watched_steps_are_the_same_steps(sim: str):
    if sim == "warp":
        pytest.importorskip("mujoco_warp")
    ends = []
    for watch in (None, lambda step: None):
        worlds = GaitWorlds(Walker(stand, SimCfg(name=sim, device="cpu"), 3), 2)
        for _ in range(5):
            worlds.advance(torch.tensor([0.3, 0.0, 0.0]).expand(2, 3), watch)
        ends.append(worlds.state.rows)
        worlds.close()
    assert torch.equal(*ends)


def test_who_does_not_get_up_after_the_drop_has_collapsed_and_who_does_has_not():
    for down, expected in ((0.9, False), (1.2, True)):  # [s] a trunk held low from the start
        worlds = GaitWorlds(Walker(stand, SIM, 0), 1)
        for step in range(100):
            if step * 0.02 < down:
                worlds.sim.data.qpos[0, 2] = 0.2
                worlds.sim.data.qvel[0, :6] = 0.0
            elif step * 0.02 < down + 0.02:
                worlds.sim.data.qpos[0, 2] = 0.35
            worlds.advance(torch.zeros(1, 3))
        assert bool(worlds.collapsed) is expected
        worlds.close()


def test_a_world_that_breaks_is_a_fall_and_a_collapse(caplog):
    worlds = GaitWorlds(Walker(stand, SIM, 0), 2)
    worlds.advance(torch.zeros(2, 3))
    worlds.sim.data.qvel[1, 3] = math.nan
    for _ in range(60):
        worlds.advance(torch.zeros(2, 3))
    worlds.close()
    assert worlds.fallen.tolist() == worlds.collapsed.tolist() == [False, True]
    assert worlds.state.rows.isfinite().all()
    assert "1 of 2 worlds broke" in caplog.text


@pytest.mark.slow
def test_a_robot_that_only_stands(monkeypatch):
    # Else even a policy that does nothing trots on the spot.
    monkeypatch.setattr(trot, "STANDING_COMMAND", 10.0)
    figures = track(Walker(stand, SIM, 0))
    assert figures["falls_on_grid"] == figures["falls_20ms"] == 0
    for key in ("velocity_error_x", "velocity_error_y", "yaw_rate_error", "velocity_error_40ms"):
        assert figures[key] == pytest.approx(0.5, abs=0.02)
    assert figures["velocity_error_low"] == pytest.approx(0.1, abs=0.02)
    assert figures["foot_clearance_min_m"] == figures["stance_slip_share"] == 0.0


def test_a_trot_in_place_lifts_its_feet(monkeypatch):
    monkeypatch.setattr("mapush.extensions.gait.examination.LATENCIES", {})
    monkeypatch.setattr("mapush.extensions.gait.examination.GRID_TIME", 1.6)
    monkeypatch.setattr("mapush.extensions.gait.examination.GRID_MEASURED", 0.8)  # two strides
    # Which leaves the trot as it is.
    figures = track(Walker(stand, SIM, 0))
    assert 0.0 < figures["foot_clearance_min_m"] < 0.1


def test_standing_robots_neither_drift_nor_fall():
    figures = wander(Walker(stand, SIM, 0))
    assert figures["standing_drift_m"] < 0.01
    assert figures["standing_falls"] == figures["falls"] == 0


def test_corner_commands_come_with_their_mirror_images():
    assert len(CORNERS) == 32
    assert {(x, -y, -turn) for x, y, turn in CORNERS} == set(CORNERS)
    assert (0.5, -0.3, -0.5) in CORNERS


@pytest.mark.slow
def test_collapses_are_counted_by_command():
    standing = walk_corners(Walker(stand, SIM, 0))
    assert standing == {
        "collapse_rate": 0.0,
        "collapse_rate_worst_command": 0.0,
    }

    def fold_on_one_command(obs: Tensor) -> Tensor:
        is_commanded = (obs[..., 6:9] / 2.0 - torch.tensor([0.5, -0.3, -0.5])).abs().amax(
            dim=-1
        ) < 1e-5
        return torch.where(is_commanded.unsqueeze(-1), fold(obs), stand(obs))

    figures = walk_corners(Walker(fold_on_one_command, SIM, 0))
    assert figures["collapse_rate"] == pytest.approx(1 / 32)
    assert figures["collapse_rate_worst_command"] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(("speed", "friction", "force"), [(1.0, 0.8, 71.0), (1.0, 0.55, 65.4)])
def test_the_strong_gait_presses_as_its_page_says(
    monkeypatch, speed: float, friction: float, force: float
) -> None:
    monkeypatch.setattr("mapush.extensions.gait.examination.PUSHING_TIME", 7.0)
    monkeypatch.setattr("mapush.extensions.gait.examination.NUM_PUSHING", 8)
    gait = load_gait("pretrained:go1_strong", torch.device("cpu"), ROBOTS["go1"])
    walker = Walker(gait, SIM, 0, model="physical", foot_friction=friction)
    assert push_wall(walker, speed)["push_ahead_n"] == pytest.approx(force, abs=1.5)


@pytest.mark.slow
def test_a_robot_leans_on_a_soft_contact_and_does_not_hammer() -> None:
    gait = load_gait("pretrained:go1_velocity", torch.device("cpu"), ROBOTS["go1"])
    walker = Walker(gait, SIM, 0, model="physical")
    metrics = push_wall(walker)
    assert 25.0 < metrics["push_ahead_n"] < 40.0
    # 13.1 kg with 9.81 m/s2
    assert metrics["push_ahead_share"] == pytest.approx(metrics["push_ahead_n"] / 128.5, rel=1e-3)
    assert metrics["push_falls"] == 0

    worlds = GaitWorlds(walker, 1, obj=OBJECTS["cuboid"].with_mass(2000.0), start=-1.0)
    is_touching = []

    def touch(state: SceneState) -> None:
        is_touching.append(bool(state.contact_force.any()))

    for _ in range(200):
        worlds.advance(worlds.along_x(0.5), touch)
    worlds.close()
    last = is_touching[-400:]
    assert sum(last) > 0.98 * len(last)


def test_parts_are_named_while_they_run(monkeypatch):
    parts = (
        "track",
        "wander",
        "push_wall",
        "walk_corners",
    )
    for part in parts:
        monkeypatch.setattr(
            f"mapush.extensions.gait.examination.{part}",
            lambda *_, name=part, **__: {name: 1.0},
        )
    said: list[str] = []
    figures = evaluate_gait(Walker(stand, SIM, 0), "velocity", said.append)
    assert len(said) == len(figures) == len(parts) + 1
    assert figures["targets_missed"] == 0


def test_a_metric_at_its_target_meets_it() -> None:
    targets = MOST | LEAST
    for kind, exempt in EXEMPT.items():
        assert missed_targets(targets, kind) == []
        low = {name: value - 1e-6 for name, value in targets.items()}
        assert missed_targets(low, kind) == [name for name in LEAST if name not in exempt]
        high = {name: value + 1e-6 for name, value in targets.items()}
        assert missed_targets(high, kind) == [name for name in MOST if name not in exempt]
    assert missed_targets({"falls": math.nan}, "push") == ["falls"]


def test_velocity_gaits_are_judged_by_precision_and_push_gaits_by_force() -> None:
    assert missed_targets({"velocity_error_x": 0.1, "push_ahead_share": 0.3}, "velocity") == [
        "velocity_error_x"
    ]
    assert missed_targets({"velocity_error_low": 0.1, "push_ahead_share": 0.3}, "push") == [
        "push_ahead_share"
    ]


def test_the_page_states_the_targets() -> None:
    page = Path("docs/background/gait.md").read_text(encoding="utf-8")
    stated = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 5 and "`" in cells[1] and cells[3]:
            names = re.findall(r"`(\w+)`", cells[1])
            values = [float(value) for value in re.findall(r"[\d.]+", cells[3])]
            stated |= dict(zip(names, values * (len(names) // len(values)), strict=True))
    assert stated == MOST | LEAST
