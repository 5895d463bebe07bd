"""Unusual bad input: one line and exit code 2, or an exception with the input's name, never a
traceback.
"""

from __future__ import annotations

import math
import re
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from harl_mapush import config, test, train
from harl_mapush.clients import MAPushEnv
from harl_mapush.runs import checkpoint, evaluation_worlds
from mapush.doctor import command
from mqe.config import ConfigError, load_yaml, parse_yaml
from mqe.manifest import renew_manifest
from mqe.pretrained import pretrained_folder
from mqe.registry import EnvCfg, SimCfg
from mqe.registry import make_env as make_any_env
from mqe.tasks.push import PushCfg
from mqe.tensor_files import read_tensors
from mqe.viewer import video
from tests.support.error_lines import error_line
from tests.support.pushing import make_env

WORLD = EnvCfg(num_envs=1), SimCfg(name="mujoco", device="cpu", num_threads=1)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("--set algorithm.name=[a]", "algorithm.name: must be a string, not ['a']"),
        ("--set task.name=[a]", "task.name: must be a string"),
        ("--set task.name={}", "task.name: must be a string, not {}"),
        (
            "--set algorithm.clip_param=1e39",
            "algorithm.clip_param: must be 0 or 1.2e-38 to 3.4e+38 in size, not 1e+39",
        ),
        ("--set task.success_radius=1e-40", "task.success_radius: must be 0 or 1.2e-38"),
        (
            "--set task.goal_distance=[50,60]",
            "[50.0, 60.0] must be two distances in ascending order, up to 12.0 m, where the wall "
            "is",
        ),
        (
            "--set algorithm.num_epochs=1e9",
            "algorithm.num_epochs: must be at least 1 and at most 1000",
        ),
        ("--num_envs=abc", "env.num_envs: must be a whole number, not 'abc'"),
        ("--set env.num_envs=-1", "env.num_envs: must be at least 1"),
        ("--set runner.seed=!!bool 1", "not valid YAML"),
        ("--set runner.seed=!!timestamp abc", "not valid YAML"),
        ('--set task.gait="\\ud800"', "--set task.gait, line 1: not valid YAML"),
        ('--set task.gait="a\\0b"', "task.gait: must be text without null bytes"),
        ("--out //", "is the root of the file system"),
        ("--out /..", "logger.out_dir (--out): /.. is the root of the file system"),
        ("--out /", "logger.out_dir (--out): / is the root of the file system"),
        (
            "--set task.gait=pretrained:../pretrained/go1_velocity",
            "unknown pretrained policy '../pretrained",
        ),
    ],
)
def test_a_command_line(argv: str, said: str, capsys) -> None:
    words = [f"{word}" for word in argv.split(" --")]
    words = [words[0], *(f"--{word}" for word in words[1:])]
    assert train.main([part for word in words for part in word.split(" ", 1)]) == 2
    assert said in error_line(capsys)


def test_names_that_are_lists_are_refused_everywhere(capsys) -> None:
    for main, argv in ((command.main, []), (test.main, ["--checkpoint", "pretrained:cuboid"])):
        for key in ("algorithm.name", "task.name"):
            assert main([*argv, *(("--set", f"{key}=[a]"))]) == 2
            assert key in error_line(capsys)
    with pytest.raises(ConfigError, match="task: must be a string"):
        MAPushEnv({"task": ["a"]})


def test_a_value_of_a_megabyte_is_not_repeated(capsys) -> None:
    assert train.main(["--set", f"task.object={'x' * 1_000_000}"]) == 2
    line = error_line(capsys)
    assert len(line) < 2000
    assert line.startswith("mapush train: task.object: unknown value 'xxx")
    assert "(allowed: cuboid, tblock, cylinder" in line


def test_a_value_of_another_algorithm_is_no_mistake_where_that_is_overridden() -> None:
    base = {"algorithm": {"name": "hasac", "target_std": 0.2}}
    cfg, notices = config.resolve(base, {"algorithm": {"name": "happo"}})
    assert cfg.algorithm.name == "happo"
    assert "algorithm.target_std left out" in notices[0]


@pytest.mark.parametrize(
    "text",
    [
        "a: !!bool maybe",
        "a: !!timestamp abc",
        "env: !!map [1]",
        "? [1]\n: 2",
        "a: !!int x",
        "a: !!float x",
    ],
)
def test_yaml_that_builds_nothing(text: str) -> None:
    with pytest.raises(ConfigError, match="not valid YAML") as caught:
        parse_yaml(text, "file")
    assert "\n" not in str(caught.value)


def test_a_base_that_names_no_file(tmp_path) -> None:
    (tmp_path / "run.yaml").write_text('base: "a\\0b"\n')
    with pytest.raises(ConfigError, match=r"cannot be read as a YAML file \(no file name\)"):
        load_yaml(tmp_path / "run.yaml")


def test_twenty_thousand_keys_take_no_time() -> None:
    text = "\n".join(f"key_{i}: 1" for i in range(20_000))
    start = time.process_time()
    with pytest.raises(ConfigError, match="unknown section"):
        config.resolve(parse_yaml(text), {})
    assert time.process_time() - start < 10.0
    with pytest.raises(ConfigError, match="'b' is given twice"):
        parse_yaml("a: 1\nb: 1\nb: 2")


# Tensors


STRANGE = {
    "a name that is a tensor's": {(1, 2): torch.zeros(2)},
    "sparse": {"a": torch.eye(2).to_sparse()},
    "meta": {"a": torch.zeros(2, device="meta")},
    "8 bits": {"a": torch.zeros(2).to(torch.float8_e4m3fn)},
    "complex": {"a": torch.zeros(2, dtype=torch.complex64)},
    "10^12 times the same": {"a": torch.zeros(1).expand(10**12)},
}


@pytest.mark.parametrize("how", STRANGE)
def test_tensors_that_are_not_plain(how: str, tmp_path) -> None:
    torch.save(STRANGE[how], tmp_path / "training_state.pt")
    with pytest.raises(ConfigError, match="damaged"):
        read_tensors(tmp_path / "training_state.pt")
    with pytest.raises(ConfigError, match="damaged"):
        checkpoint.read_training_state(tmp_path)


def test_a_checkpoint_of_a_billion_robots(tmp_path) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"env": {"num_agents": 1_000_000_000}}))
    start = time.process_time()
    with pytest.raises(ConfigError, match=r"is damaged; env\.num_agents must be 1 to 14"):
        checkpoint.resolve(str(tmp_path))
    assert time.process_time() - start < 1.0


# From Python


@pytest.mark.parametrize("seed", [-1, 1.5, "abc", 2**70, True, None])
def test_seeds(seed: object) -> None:
    with pytest.raises(
        ConfigError, match="seed: must be a whole number from 0 to 9223372036854775807"
    ):
        make_any_env(*WORLD, PushCfg(), seed)  # type: ignore[arg-type]


def test_a_decision_of_no_steps() -> None:
    with pytest.raises(ConfigError, match=r"must be at least 1 and at most 1000, not 0"):
        PushCfg(decision_period=0)


@pytest.mark.parametrize(
    ("cfg", "wrong", "said"),
    [
        (
            PushCfg,
            {"decision_period": "a"},
            "task.decision_period: must be a whole number, not 'a'",
        ),
        (PushCfg, {"episode_length_s": math.nan}, "task.episode_length_s: must be a finite number"),
        (PushCfg, {"goal_distance": 3}, "task.goal_distance: must be a list of numbers, not 3"),
    ],
)
def test_settings_made_by_hand(cfg: type, wrong: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        cfg(**wrong)


def test_pretrained_names_are_no_paths() -> None:
    assert pretrained_folder("cuboid").name == "cuboid"
    for name in ("../pretrained/cuboid", "cuboid/", "./cuboid", str(Path("/").absolute())):
        with pytest.raises(ConfigError, match="unknown pretrained policy"):
            pretrained_folder(name)


def test_actions_and_environments_that_cannot_step() -> None:
    env = make_env(num_envs=1)
    env.reset()
    with pytest.raises(TypeError, match=r"actions must be a torch\.Tensor, not ndarray"):
        env.step(np.zeros((1, 2, 3)))  # type: ignore[arg-type]
    for actions in (
        torch.zeros(1, 2, 3, dtype=torch.bool),
        torch.zeros(1, 2, 3, dtype=torch.complex64),
    ):
        with pytest.raises(TypeError, match="actions must be real numbers, not torch"):
            env.step(actions)
    state = env.state_dict()
    env.close()
    calls = {
        "step": lambda: env.step(torch.zeros(1, 2, 3)),
        "reset": env.reset,
        "state_dict": env.state_dict,
        "load_state_dict": lambda: env.load_state_dict(state),
        "record": lambda: video.record(env, lambda obs: obs, "x.mp4"),  # type: ignore[arg-type]
    }
    for call in calls.values():
        with pytest.raises(RuntimeError, match="the environment is closed"):
            call()
    with pytest.raises(RuntimeError, match=r"reset\(\) comes first"):
        make_env(num_envs=1).step(torch.zeros(1, 2, 3))


def test_a_client_of_harl_that_is_closed() -> None:
    client = MAPushEnv({"n_threads": 1, "device": "cpu"})
    client.close()
    for call in (client.reset, client.render, lambda: client.step(np.zeros((1, 2, 3)))):
        with pytest.raises(RuntimeError, match="the environment is closed"):
            call()
    client.seed(3)  # builds the worlds anew
    client.reset()
    client.close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"seconds": 0.0},
        {"episodes": 0},
        {"fps": 0},
        {"size": (0, 36)},
    ],
)
def test_a_film_of_nothing(wrong: dict, tmp_path) -> None:
    env = make_env(num_envs=1)
    with pytest.raises(
        ConfigError,
        match="a film needs episodes, seconds, fps, speed and size above 0",
    ):
        video.record(env, lambda obs: obs, tmp_path / "film.mp4", **wrong)  # type: ignore[arg-type]
    env.close()


def test_a_world_that_breaks_leaves_no_file_behind(tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    env = make_env(num_envs=1)
    env.reset()
    env.step(torch.full((1, 2, 3), torch.nan))
    env.sim.data.qvel.fill_(1e12)
    env.step(torch.zeros(1, 2, 3))
    env.close()
    assert list(tmp_path.iterdir()) == []
    assert "WARNING" not in capfd.readouterr().err


def test_a_plain_function_can_be_filmed(tmp_path) -> None:
    env = make_env(num_envs=1)
    try:
        still = video.record(
            env, lambda obs: torch.zeros(1, 2, 3), tmp_path / "film.mp4", seconds=0.1, size=(64, 36)
        )  # type: ignore[arg-type]
    finally:
        env.close()
    assert still.num_frames == 3


def test_the_size_of_an_objects_usual_team_is_said() -> None:
    for name, num_robots in (("cuboid", 2), ("cylinder", 3)):
        cfg = config.resolve({"task": {"object": name}}, {})[0]
        assert f"worlds: {num_robots} robots, {name} of" in evaluation_worlds.in_words(cfg, None)


def test_folders_and_files_of_others_are_named_as_what_they_are(tmp_path, capsys) -> None:
    shipped = pretrained_folder("cuboid")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    shutil.copy(shipped / "actor_agent0.pt", theirs)
    assert test.main([str(theirs)]) == 2
    assert "it lacks config.yaml" in error_line(capsys)

    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 213456\n"
    (tmp_path / "module.pt").write_text(pointer)
    said = "a pointer of git-lfs, and not the file; git lfs pull fetches it"
    with pytest.raises(ConfigError, match=said):
        read_tensors(tmp_path / "module.pt")


@pytest.mark.parametrize(
    ("version", "said"), [("9.0", "written by mapush 9.0 and"), (None, "of an unknown version")]
)
def test_a_checkpoint_of_a_later_version_is_named(version, said, tmp_path, capsys) -> None:
    later = tmp_path / "later"
    shutil.copytree(pretrained_folder("cuboid"), later)
    settings = (later / "config.yaml").read_text()
    (later / "config.yaml").write_text(settings.replace("task:", "task:\n  of_tomorrow: 1", 1))
    renew_manifest(later, {"packages": {} if version is None else {"mapush": version}})
    assert test.main([str(later)]) == 2
    line = error_line(capsys)
    assert said in line
    assert "unknown key 'task.of_tomorrow'" in line
