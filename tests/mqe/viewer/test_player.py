"""The player of live viewers obeys its controls."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from harl_mapush import test, train, viewing
from harl_mapush.config import user_modules
from harl_mapush.runs import run_folder
from mapush import cli
from mqe.registry import TASKS, EnvCfg, SimCfg, make_env
from mqe.tasks.push import PushCfg
from mqe.viewer.lines import trail
from mqe.viewer.player import Player
from mqe.world.robots import NUM_JOINTS
from tests.support.registries import restored_registries
from tests.support.tiny_runs import TINY

CPU = SimCfg(name="mujoco", device="cpu")


@pytest.fixture
def env():
    env = make_env(
        EnvCfg(num_envs=1), CPU, PushCfg(spawn="separated", episode_length_s=0.1), seed=1
    )
    yield env
    env.close()


def stand(obs: torch.Tensor) -> torch.Tensor:
    return obs.new_zeros(*obs.shape[:2], 3 if obs.shape[1] > 1 else NUM_JOINTS)


def make_player(env, scale=(0.5, 0.5, 0.5), **settings) -> Player:
    player = Player(env, {"nobody": lambda: stand}, scale, **settings)
    player.controls.speed = 1e6
    return player


def test_it_ends_after_so_many_episodes_and_shows_every_control_step(env) -> None:
    player = make_player(env, num_episodes=2)
    times = []

    def show(data) -> bool:
        times.append(player.time_s)
        return True

    assert player.run(show) == ["time is up", "time is up"]
    assert sorted({round(time, 6) for time in times}) == [0.02, 0.04, 0.06, 0.08, 0.1]
    assert player.episode == 2
    assert len(player.trail) == 1
    assert player.commands == [[0.0] * 3] * 2


def test_paused_it_advances_by_single_steps(env) -> None:
    player = make_player(env)
    looks = []
    player.controls.is_paused = True

    def show(data) -> bool:
        looks.append(player.time_s)
        if len(looks) == 3:
            player.controls.num_steps = 2
        return len(looks) < 8

    assert player.run(show) == []
    assert looks == pytest.approx([0.02, 0.02, 0.02, 0.04, 0.06, 0.06, 0.06, 0.06])


def test_the_next_episode_begins_at_once_and_the_left_one_does_not_count(env) -> None:
    player = make_player(env, num_episodes=1)

    def show(data) -> bool:
        player.controls.is_next = player.episode == 1
        return True

    assert player.run(show) == ["time is up"]
    assert player.episode == 2


def test_speed_is_wall_clock(env) -> None:
    player = make_player(env, num_episodes=1)
    player.controls.speed = 0.5
    start = time.monotonic()
    player.run(lambda _: True)
    assert time.monotonic() - start >= 0.1 / 0.5


def test_a_policy_is_swapped_while_it_plays(env) -> None:
    full = torch.ones(1, 2, 3)
    player = Player(
        env, {"a": lambda: lambda _: full, "b": lambda: lambda _: -full}, (0.5, 0.5, 0.5), 1
    )
    player.controls.speed = 1e6
    seen = []

    def show(data) -> bool:
        seen.append(player.commands[0][0])
        player.controls.policy = "b" if len(seen) >= 2 else "a"
        return True

    player.run(show)
    assert seen[:4] == [0.5, 0.5, -0.5, -0.5]


@pytest.fixture(scope="module")
def run(gait, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("play") / "run"
    sizes = (
        "--num_env_steps",
        "1",
        "--set",
        f"task.gait={gait}",
        "--set",
        "task.episode_length_s=0.2",
    )
    assert train.main([*TINY, *sizes, "--set", "task.decision_period=1", "--out", str(out)]) == 0
    checkpoint = next((out / "checkpoints").iterdir())
    shutil.copytree(checkpoint, checkpoint.with_name("1M"))
    return out


def test_all_checkpoints_of_a_run_can_be_chosen(run) -> None:
    folder = run_folder.last_checkpoint(run)
    assert folder is not None
    cfg = test._settings(folder, test.make_parser().parse(["--mode", "viewer"]))
    env = make_env(cfg.env, cfg.sim, cfg.task, 0)
    assert list(viewing._policies(cfg, folder, env)) == [
        "1M",
        "16",
        "zero",
        "random",
        *TASKS["go1push_mid"].policies,
    ]
    env.close()


@pytest.mark.parametrize(
    "argv, words",
    [
        (("--num_episodes", "0"), "must be at least 1"),
        (("--web", "70000"), "must be a port from 1 to 65535"),
        (("--web", "--record", "x.mp4"), "--web and --record exclude each other"),
        (("--json", "x"), "unknown argument '--json'"),
    ],
)
def test_bad_input_is_one_line(run, capsys, argv, words) -> None:
    assert cli.main(["play", str(run), *argv]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("mapush play: ")
    assert words in error


@pytest.mark.parametrize(
    "argv, policy",
    [
        (("--object", "tblock"), "scripted_team"),
        (("zero", "--object", "tblock"), "zero"),
        (("--task", "walking"), "random"),
        (("--suite", "team3"), "scripted_team"),
        (("--import", "examples.own_object", "--object", "crate"), "scripted_team"),
    ],
)
def test_a_world_is_played_without_a_checkpoint(walking, monkeypatch, argv, policy) -> None:
    shown = []

    def show(player, port, host) -> list[str]:
        shown.append((player.controls.policy, list(player.policies)))
        return []

    monkeypatch.setattr(viewing, "VIEWERS", {"test": show})
    monkeypatch.setattr(user_modules, "IMPORTED", [])
    with restored_registries():
        assert cli.main(["play", *argv, "--web"]) == 0
    sys.modules.pop("examples.own_object", None)
    [(first, policies)] = shown
    assert first == policy
    assert {"zero", "random"} <= {*policies}


@pytest.mark.parametrize(
    "argv",
    [
        ("trained", "--object", "tblock"),
        ("scripted_team", "--task", "walking"),
    ],
)
def test_a_world_without_a_checkpoint_needs_a_policy_that_it_has(walking, capsys, argv) -> None:
    assert cli.main(["play", *argv, "--web"]) == 2
    output = capsys.readouterr()
    assert output.err.count("\n") == 1
    assert "Open http" not in output.out


def test_the_first_world_is_shown_and_its_episodes_count() -> None:
    env = make_env(
        EnvCfg(num_envs=3), CPU, PushCfg(spawn="separated", episode_length_s=0.1), seed=1
    )
    player = make_player(env, num_episodes=2)

    def show(data) -> bool:
        start = env.sim.data.qpos[0, :3].tolist()
        assert data.qpos[:3].tolist() == pytest.approx(start, abs=1e-5)
        return True

    assert player.run(show) == ["time is up"] * 2
    env.close()


def test_commands_and_the_objects_path_are_drawn(env) -> None:
    forward = torch.tensor([1.0, 0.0, 0.0])
    player = Player(env, {"a": lambda: lambda obs: forward.expand(1, 2, 3)}, (0.5, 0.5, 0.5), 1)
    player.controls.speed = 1e6
    arrows = []

    def show(data) -> bool:
        arrows.append(player.lines(data))
        return True

    player.run(show)
    assert len(arrows[-1]) == 2  # for each robot; the object has not moved
    length = arrows[-1][0].end - arrows[-1][0].start
    assert float(length @ length) ** 0.5 == pytest.approx(0.5 * 1.2)


def test_a_trail_joins_the_points_over_the_floor_and_does_not_grow_for_ever() -> None:
    points = [np.array([0.1 * i, 0.0, 0.25]) for i in range(5)]
    lines = trail(points)
    assert len(lines) == 4
    assert lines[0].start.tolist() == [0.0, 0.0, 0.03]
    assert lines[3].end.tolist() == pytest.approx([0.4, 0.0, 0.03])
    assert trail([points[0]] * 9) == []  # it stood still
    assert len(trail(points * 1000)) < 250


def test_without_a_viewer_a_film_is_the_way_out(monkeypatch, capsys) -> None:
    monkeypatch.setattr(viewing, "VIEWERS", {})
    assert cli.main(["play", "--object", "cuboid", "--web"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "no viewer is installed; --record FILE.mp4 makes a film" in error
