"""Teams in worlds unlike their training get a warning: on the command line, in a film and in
Python.
"""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest

from harl_mapush import config, test, train, viewing
from harl_mapush.evaluation.calculator import first_episodes
from harl_mapush.evaluation.episodes import Request
from harl_mapush.evaluation.measuring import measure
from harl_mapush.evaluation.push_watcher import PushWatcher
from harl_mapush.runs import checkpoint, evaluation_worlds
from harl_mapush.runs.policy import load_team
from mqe import pretrained
from mqe.config import ConfigError, merge
from mqe.controllers.gait import gait_digest
from mqe.manifest import MANIFEST, damage, read_manifest, renew_manifest
from mqe.pretrained import PRETRAINED, pretrained_folder, pretrained_names
from mqe.registry import EnvCfg, SimCfg, make_env
from mqe.tasks.push import PushCfg
from mqe.world.scene import GRAVITY
from tests.support.tiny_runs import TINY

SIM = {"name": "mujoco", "device": "cpu", "num_threads": 1}
SHIPPED = pretrained_names()
SHORT = ("--num_envs", "2", "--device", "cpu", "--set", "task.episode_length_s=0.1")


@pytest.fixture(scope="module")
def team(tmp_path_factory) -> Path:
    """The shipped cuboid team, relabelled as trained with the current gait."""
    folder = tmp_path_factory.mktemp("teams") / "cuboid"
    shutil.copytree(pretrained_folder("cuboid"), folder)
    renew_manifest(folder, {"gait_sha256": gait_digest(["pretrained:go1_velocity"])})
    return folder


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("Note:")]


@pytest.mark.parametrize(
    ("team", "words", "rows"),
    [
        ("cuboid", "--set task.object=tblock", ["task.object cuboid tblock"]),
        ("cuboid", "--set task.decision_period=1", ["task.decision_period 5 1"]),
        ("cuboid", "--set task.keep_apart=0.3", ["task.keep_apart 0.0 0.3"]),
        ("any", "--object beam", []),  # one of the kinds that were drawn
        ("any", "--object tower", ["task.object drawn tower"]),
        ("any", "--set task.keep_apart=0", ["task.keep_apart 0.3 0.0"]),
        ("cylinder", "--object tower", ["task.object cylinder tower"]),
    ],
)
def test_an_evaluation_reports_what_is_new_to_a_team(
    team: str, words: str, rows: list[str], capsys
) -> None:
    assert test.main([f"pretrained:{team}", *SHORT, "--team_only", *words.split()]) == 0
    out = capsys.readouterr().out
    assert lines(out) == []
    shown = [" ".join(line.split()) for line in out.splitlines()]
    keys = tuple(f"{key} " for key in evaluation_worlds.FAMILIAR if key != "task.inertia")
    assert [line for line in shown if line.startswith(keys)] == rows


def test_a_film_reports_it_as_well(team, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(viewing, "record", lambda *_, **__: pytest.exit("filmed"))
    words = ["--record", str(tmp_path / "film.mp4"), *SHORT, "--set", "task.object=cylinder"]
    with pytest.raises(pytest.exit.Exception):
        test.main(["--checkpoint", str(team), *words])
    (line,) = lines(capsys.readouterr().out)
    assert "task.object=cylinder (learned with cuboid)" in line


def test_python_is_warned_and_measures_as_the_command_line_does(
    team, tmp_path, caplog, capsys
) -> None:
    folder = checkpoint.resolve(team)
    cfg = evaluation_worlds.settings(
        folder, {"env": {"num_envs": 2}, "sim": SIM, "task": {"episode_length_s": 0.4}}
    )
    assert (cfg.task.decision_period, cfg.task.spawn, cfg.runner.seed) == (5, "separated", 0)
    env = make_env(cfg.env, cfg.sim, cfg.task, cfg.runner.seed)
    # Two worlds alone: other last bits than in a block.
    watcher = PushWatcher(env)
    episodes = first_episodes(env, load_team(folder, env), watchers=(watcher,))
    env.close()
    assert caplog.text == ""
    out = tmp_path / "figures.json"
    words = [
        "--num_envs",
        "2",
        "--device",
        "cpu",
        "--set",
        "task.episode_length_s=0.4",
        "--team_only",
        "--json",
        str(out),
    ]
    assert test.main(["--checkpoint", str(team), *words]) == 0
    request = Request(cfg, (0,), 2, folder, is_watched=True)
    measured = measure(request)
    assert out.read_text() == json.dumps(measured, indent=2) + "\n"
    assert measured["success_rate"] == float(episodes["success"].mean())
    distance = float(watcher.episodes()["end_distance"].mean())
    assert measured["end_distance_m"] == pytest.approx(distance, abs=1e-4)

    env = make_env(EnvCfg(num_envs=2), SimCfg(**SIM), PushCfg(), seed=1)
    with caplog.at_level(logging.WARNING):
        load_team(folder, env)
    assert "did not learn in this world: task.decision_period=1 (learned with 5)." in caplog.text
    three = make_env(EnvCfg(num_envs=2, num_agents=3), SimCfg(**SIM), cfg.task, seed=1)
    with pytest.raises(
        ConfigError, match="trained with env.num_agents=2, and this environment has 3"
    ):
        load_team(folder, three)
    for environment in (env, three):
        environment.close()


def test_another_gait_of_the_same_name_is_noticed(gait, tmp_path, capsys) -> None:
    ours = tmp_path / "gait"
    run = tmp_path / "run"
    shutil.copytree(gait, ours)
    walk = (
        "--set",
        f"task.gait={ours}",
        "--set",
        "task.episode_length_s=0.1",
        "--set",
        "task.decision_period=1",
    )
    assert (
        train.main([*TINY, *walk, "--num_env_steps", "16", "--device", "cpu", "--out", str(run)])
        == 0
    )
    assert train.main(["--resume", str(run), "--num_env_steps", "32"]) == 0
    assert lines(capsys.readouterr().out) == []
    shutil.rmtree(ours)
    shutil.copytree(pretrained_folder("go1_velocity"), ours)
    short = ["--set", "task.episode_length_s=0.1"]
    words = ["--checkpoint", str(run), "--num_envs", "1", "--device", "cpu", *short]
    assert test.main(words) == 0
    row = f"task.gait                         another one of that name {ours}"
    assert row in capsys.readouterr().out.splitlines()
    assert train.main(["--resume", str(run), "--num_env_steps", "48"]) == 0
    assert "Note: the file or policy of task.gait has changed" in capsys.readouterr().out


# What ships


@pytest.mark.parametrize("name", SHIPPED)
def test_what_ships_is_whole_and_has_a_manifest(name: str) -> None:
    folder = checkpoint.resolve(PRETRAINED + name)
    assert set(read_manifest(folder)["files"]) == {path.name for path in folder.iterdir()} - {
        MANIFEST
    }
    assert damage(folder) is None


def test_what_ships_is_refused_where_it_is_damaged(tmp_path, monkeypatch) -> None:
    root = tmp_path / "assets" / "pretrained"
    shutil.copytree(pretrained_folder("cuboid"), root / "cuboid")
    digest = read_manifest(root / "cuboid")["gait_sha256"]
    monkeypatch.setattr(pretrained.resources, "files", lambda _: tmp_path)
    path = root / "cuboid" / "actor_agent0.pt"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"x")
    with pytest.raises(ConfigError, match=r"actor_agent0\.pt: damaged"):
        checkpoint.resolve("pretrained:cuboid")
    renew_manifest(root / "cuboid")
    assert checkpoint.resolve("pretrained:cuboid") == root / "cuboid"
    assert read_manifest(root / "cuboid")["gait_sha256"] == digest
    (root / "cuboid" / MANIFEST).unlink()
    with pytest.raises(
        ConfigError, match=r"lacks manifest\.json; install mapush anew, or.*python -m mqe\.manifest"
    ):
        checkpoint.resolve("pretrained:cuboid")


def test_what_differs_from_training_is_a_table() -> None:
    folder = checkpoint.resolve("pretrained:cuboid")
    cfg = evaluation_worlds.settings(folder, {})
    head, *rows, blank = evaluation_worlds.differences(folder, cfg).splitlines()
    assert head.split("  ")[0] == "setting"
    assert "task.close_share                  0.25                   0.0" in rows
    assert "env.randomize.kick_speed          [0.0, 0.6]             0.0" in rows
    assert all(len(row) < 80 for row in rows)
    assert blank == ""
    learned = checkpoint.read_config(folder)
    trained = evaluation_worlds.settings(folder, {name: learned[name] for name in ("env", "task")})
    assert evaluation_worlds.differences(folder, trained) == ""


def test_a_team_that_learned_on_kerbs_is_measured_on_the_suites_ground(monkeypatch) -> None:
    folder = pretrained_folder("cuboid")
    learned = merge(checkpoint.read_config(folder), {"env": {"ground": "kerbs"}})
    monkeypatch.setattr(checkpoint, "read_config", lambda folder: learned)
    cfg = evaluation_worlds.settings(folder, {})
    assert cfg.env.ground == "flat"
    rows = evaluation_worlds.differences(folder, cfg).splitlines()
    assert "env.ground kerbs flat" in [" ".join(row.split()) for row in rows]
    assert evaluation_worlds.settings(folder, {"env": {"ground": "kerbs"}}).env.ground == "kerbs"


def test_a_team_of_many_shapes_pushes_the_object_that_is_named() -> None:
    folder = pretrained_folder("any")
    assert evaluation_worlds.settings(folder, {}).task.shapes == "drawn"
    cfg = evaluation_worlds.settings(folder, {"task": {"object": "tblock"}})
    assert (cfg.task.object, cfg.task.shapes) == ("tblock", None)
    both = {"task": {"object": "tblock", "shapes": "held_out"}}
    assert evaluation_worlds.settings(folder, both).task.shapes == "held_out"


@pytest.mark.parametrize(
    ("team", "suite", "words"),
    [
        ("tblock", "team2", "suite team2: 2 robots, tblock of 25.8 kg, sliding at 95 N"),
        (
            "cylinder",
            "heavy",
            "suite heavy: 3 robots, cylinder of 36.3 to 56.5 kg, sliding at 80 to 125 N",
        ),
        (
            "any",
            "shapes",
            "suite shapes: 3 robots, 20 shapes of 2.37 to 19.7 kg, sliding at 5 to 65 N",
        ),
        (
            "any",
            None,
            "worlds: 4 robots, drawn shapes of 3.71 to 163 kg, sliding at 20 to 240 N",
        ),
        ("tblock", None, "worlds: 2 robots, tblock of 3 kg, sliding at 11 N"),
    ],
)
def test_what_the_worlds_hold_in_words(team: str, suite: str | None, words: str) -> None:
    over = {} if suite is None else config.load_suite(suite).worlds
    cfg = evaluation_worlds.settings(checkpoint.resolve(f"pretrained:{team}"), over)
    assert evaluation_worlds.in_words(cfg, suite) == f"{words}\n"


def test_drawn_shapes_in_words_unless_a_range_of_forces_is_set() -> None:
    task = {"name": "go1push_mid", "shapes": "drawn", "observation": "sets"}
    cfg, _ = config.resolve({"task": task}, {})
    words = "worlds: 2 robots, drawn shapes of 2 to 20 kg, sliding at 3 to 108 N\n"
    assert evaluation_worlds.in_words(cfg, None) == words


def test_settings_that_do_nothing_are_not_among_the_differences() -> None:
    folder = checkpoint.resolve("pretrained:any")
    cfg = evaluation_worlds.settings(folder, config.load_suite("team2").worlds)
    shown = evaluation_worlds.differences(folder, cfg)
    assert "env.randomize.absent_robots" in shown
    for name in ("kick_interval", "lost_share", "lost_time", "robot_force"):
        assert name not in shown
    cfg = evaluation_worlds.settings(folder, config.load_suite("lost").worlds)
    assert "env.randomize.lost_share" in evaluation_worlds.differences(folder, cfg)


def test_what_the_worlds_hold_in_numbers() -> None:
    over = merge(
        config.load_suite("heavy").worlds,
        {
            "env": {"randomize": {"object_friction": 2.0, "ground_friction": [0.5, 1.5]}},
            "task": {"object": "beam"},
        },
    )
    cfg = evaluation_worlds.settings(checkpoint.resolve("pretrained:any"), over)
    contents = evaluation_worlds.contents(cfg)
    mass = 143.0 / (0.325 * GRAVITY)
    assert contents == {
        "num_robots": 3,
        "object": "beam",
        "object_mass_kg": pytest.approx([0.77 * mass, 1.2 * mass]),
        "sliding_force_n": pytest.approx([110.11, 514.8], rel=1e-4),
    }
