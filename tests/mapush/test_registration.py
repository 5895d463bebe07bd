"""Registrations from a user's module: objects, rewards, tasks and robots, and each example
alone.
"""

from __future__ import annotations

import dataclasses
import importlib
import io
import json
import os
import re
import runpy
import shutil
import sys
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
import torch

import mapush
from harl_mapush import config, test, train
from harl_mapush.algorithms.happo import Happo, HappoCfg
from harl_mapush.config import user_modules
from harl_mapush.runs import run_folder
from mapush import cli
from mapush.commands import COMMANDS
from mapush.doctor import command
from mqe import extensions
from mqe.config import ConfigError, to_dict
from mqe.registry import TASKS, make_env
from mqe.tasks.push import PushCfg
from mqe.world.objects import OBJECTS
from tests.support.paths import ROOT
from tests.support.registries import restored_registries
from tests.support.tiny_runs import TINY

ELSEWHERE = ("--num_env_steps", "16", "--device", "cpu", *TINY)


@dataclass(frozen=True)
class BoundedCfg(HappoCfg):
    """Settings with the name of an option that left after 0.3."""

    name: str = mapush.option("bounded", "name of the learning algorithm")
    value_bound: float = mapush.option(1.0, "bound of the values")


def test_an_algorithms_own_option_may_have_the_name_of_one_that_left() -> None:
    with restored_registries():
        mapush.register_algorithm("bounded", BoundedCfg, Happo)
        options = {"algorithm": {"value_bound": 5.0}}  # no effect in files of 0.3
        ours, _ = config.resolve({"algorithm": {"name": "bounded"}}, options)
        assert ours.algorithm.value_bound == 5.0
        again, _ = config.resolve(to_dict(ours), {})
        assert again.algorithm.value_bound == 5.0
        other, notices = config.resolve(options, {"algorithm": {"name": "bounded"}})
        assert (other.algorithm.value_bound, notices) == (1.0, [])
    with pytest.raises(ConfigError, match="unknown key 'algorithm.value_bound'"):
        config.resolve({}, {"algorithm": {"value_bound": 4.0}})


def terms_of(task: str) -> tuple[dict, ...]:
    """Return a task's term registries."""
    terms = TASKS[task].terms
    assert terms is not None
    return tuple(vars(terms).values())


@pytest.fixture
def elsewhere(tmp_path, monkeypatch) -> Path:
    """A folder with the examples alone. Their registrations are undone afterwards."""
    for path in (ROOT / "examples").glob("*.py"):
        shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    # Without an installation, PYTHONPATH names the checkout.
    removed = {"", str(ROOT)} - {*os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in removed])
    monkeypatch.setattr(user_modules, "IMPORTED", [])
    with restored_registries():
        yield tmp_path
    for name in [path.stem for path in tmp_path.glob("*.py")]:
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("module", "words", "found"),
    [
        ("own_object", ("--object", "crate"), ("task", "object", "crate")),
        (
            "own_reward",
            ("--set", "task.weights.looking=0.01"),
            ("task", "weights", {"looking": 0.01}),
        ),
        ("own_task", ("--task", "race", "--num_agents", "3"), ("task", "name", "race")),
        ("own_algorithm", ("--algo", "haspo"), ("algorithm", "name", "haspo")),
    ],
)
def test_an_example_is_trained_and_evaluated_from_anywhere(
    elsewhere, module, words, found, monkeypatch, capsys
) -> None:
    run = elsewhere / "run"
    assert train.main(["--import", module, *words, *ELSEWHERE, "--out", str(run)]) == 0
    written = config.load_preset(run / "config.yaml")
    assert written["env"]["imports"] == [module]
    section, key, value = found
    assert written[section][key] == value
    measure = [
        "--checkpoint",
        str(run),
        "--num_envs",
        "2",
        "--device",
        "cpu",
        "--set",
        "task.episode_length_s=0.2",
    ]
    assert test.main(["--import", module, *measure, "--json", "figures.json"]) == 0
    assert json.loads(Path("figures.json").read_text())["num_episodes"] == 2

    # A checkpoint makes nothing be imported: without the flag it is refused, and the flag is named.
    monkeypatch.setattr(user_modules, "IMPORTED", [])
    monkeypatch.setattr(
        importlib, "import_module", lambda name: pytest.fail(f"{name} was imported")
    )
    capsys.readouterr()
    assert test.main(measure) == 2
    assert f"--import {module}" in capsys.readouterr().err


def test_an_actor_loop_runs_by_itself(elsewhere, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["own_loop.py", "2", "3"])
    runpy.run_path(str(elsewhere / "own_loop.py"), run_name="__main__")
    assert "mean reward of 3 decisions" in capsys.readouterr().out


@pytest.mark.slow
def test_a_team_follows_a_path_of_poses(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("0.5 0 0\n9 9 90\n"))
    monkeypatch.setattr(sys, "argv", ["pose_path.py", "pretrained:pose", "4"])
    runpy.run_path(str(ROOT / "examples" / "pose_path.py"), run_name="__main__")
    first, last = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"[1-3]\.\d s: at 0.5 0 0", first)
    assert last == "4.0 s: ended before 9 9 90"


def test_a_callback_of_ones_own_follows_a_run_to_its_end(elsewhere, capsys) -> None:
    example = Path("own_callback.py")
    closes = "self.file.close()"
    closes_and_prints = f"{closes}; print('The table is closed.')"
    example.write_text(example.read_text().replace(closes, closes_and_prints))
    words = ["--import", "own_callback", *ELSEWHERE]
    assert train.main([*words, "--out", "run"]) == 0
    assert capsys.readouterr().out.count("The table is closed.") == 1
    rows = [line.split(",") for line in Path("run/success.csv").read_text().splitlines()]
    every = [int(env_steps) for env_steps, _ in rows]
    assert every == sorted(set(every))
    assert every[-1] == int(run_folder.last_checkpoint(Path("run")).name)


def test_a_checkpoint_of_ones_own_format_is_measured(elsewhere, capsys) -> None:
    Path("team").mkdir()
    np.savez("team/linear.npz", matrix=np.zeros((10, 3)))
    words = ["--import", "own_format", "--checkpoint", "team", "--num_episodes", "2"]
    brief = ["--set", "task.episode_length_s=0.2", "--seeds", "1"]
    given = [*words, *brief, "--device", "cpu", "--json", "figures.json"]
    assert test.main(given) == 0, capsys.readouterr().err
    assert json.loads(Path("figures.json").read_text())["num_episodes"] == 2
    capsys.readouterr()
    assert cli.main(["export", "team", "onnx", "--import", "own_format"]) == 2
    assert "team: what its format loads has no actors" in capsys.readouterr().err
    assert not Path("onnx").exists()


def test_a_client_of_ones_own_gets_the_worlds(elsewhere) -> None:
    mapush.register_client("sizes", lambda worlds, scale=1: scale * worlds.cfg.env.num_envs)
    assert mapush.make("go1push_mid", client="sizes", num_envs=3, scale=2) == 6


def test_a_command_of_an_installed_package_is_a_subcommand(elsewhere, monkeypatch, capsys) -> None:
    Path("greeting.py").write_text(
        "import mapush\n"
        "def greet(argv):\n"
        "    print('hello', *argv)\n"
        "    return 3\n"
        "mapush.register_command('greet', 'greeting:greet', 'say hello')\n"
    )
    monkeypatch.syspath_prepend(elsewhere)
    entry = EntryPoint("greeting", "greeting", extensions.GROUP)
    monkeypatch.setattr(extensions, "entry_points", lambda group: [entry])
    extensions.load_extensions.cache_clear()
    try:
        assert cli.main(["greet", "all"]) == 3
        assert capsys.readouterr().out == "hello all\n"
        assert cli.main(["--help"]) == 0
        assert "  greet       say hello\n" in capsys.readouterr().out
        assert cli.main(["gret"]) == 2
        assert "unknown command 'gret'; did you mean greet?" in capsys.readouterr().err
    finally:
        extensions.load_extensions.cache_clear()


def test_every_subcommand_explains_itself(capsys) -> None:
    for name in list(COMMANDS):
        with pytest.raises(SystemExit) as ended:
            cli.main([name, "--help"])
        assert ended.value.code == 0
        assert "usage:" in capsys.readouterr().out, name


def test_agents_see_a_term_of_ones_own(elsewhere) -> None:
    more = ["--set", "task.more_observations=[own_velocity, height]"]
    assert train.main(["--import", "own_observation", *more, *ELSEWHERE, "--out", "run"]) == 0
    cfg, _ = config.resolve(config.load_preset("run/config.yaml"), {})
    env = make_env(cfg.env, cfg.sim, cfg.task, 0)
    obs, _ = env.reset()
    plain = make_env(cfg.env, cfg.sim, PushCfg(), 0)
    assert obs.shape[-1] == plain.spec.obs_sizes[0] + 3 + 1
    torch.testing.assert_close(obs[..., -1], env.state.robot_pos[..., 2])
    env.close()
    plain.close()


def test_terms_of_ones_own_are_trained_and_evaluated(elsewhere) -> None:
    words = [
        "task.weights.jolt=-0.001",
        "task.more_state=[goal_speed]",
        "task.replaced_observations.goal=near_goal",
        "task.more_terminations=[astray]",
        "task.more_metrics=[object_speed]",
        "task.goal_distance=[2.0, 7.0]",
    ]
    given = [word for setting in words for word in ("--set", setting)]
    given = ["--import", "own_terms", *given]
    assert train.main([*given, *ELSEWHERE, "--out", "run"]) == 0

    cfg, _ = config.resolve(config.load_preset("run/config.yaml"), {})
    env = make_env(cfg.env, cfg.sim, cfg.task, 0)
    obs, state = env.reset()
    step = env.step(torch.zeros(env.num_envs, env.num_agents, 3))
    usual = dataclasses.replace(cfg.task, replaced_observations={}, more_state=())
    plain = make_env(cfg.env, cfg.sim, usual, 0)
    plain_obs, plain_state = plain.reset()
    assert obs.shape == plain_obs.shape
    torch.testing.assert_close(obs[..., 2:], plain_obs[..., 2:])
    assert float(obs[..., :2].norm(dim=-1).max()) < 1.0 + 1e-5
    assert state.shape[-1] == plain_state.shape[-1] + 1
    pushes = env.task._term_memories["rewards.jolt"]._tensors["last_push"]
    torch.testing.assert_close(step.info["reward/jolt"], -0.001 * pushes.abs())
    far = plain.state.goal_distance > 5.0
    assert bool(far.any())
    assert step.terminated[:, 0].tolist() == far.tolist()
    env.close()
    plain.close()

    measure = ["--checkpoint", "run", "--num_envs", "4", "--device", "cpu", "--json", "own.json"]
    brief = ["--set", "task.episode_length_s=0.2", "--set", "task.goal_distance=[6.0, 7.0]"]
    assert test.main(["--import", "own_terms", *measure, *brief]) == 0
    figures = json.loads(Path("own.json").read_text())
    assert figures["astray"] == 1.0
    assert figures["timeout_rate"] == 0.0
    assert figures["object_speed"] >= 0.0


def test_the_doctor_takes_modules_as_well(elsewhere) -> None:
    assert command.make_parser().parse(["--import", "own_object"]).imports == ["own_object"]
    assert "crate" in OBJECTS


def test_choices_are_looked_up_when_a_value_is_checked(elsewhere) -> None:
    with pytest.raises(ConfigError, match="unknown value 'crate'"):
        config.resolve({}, {"task": {"object": "crate"}})
    config.import_modules(["own_object"])
    cfg, _ = config.resolve({}, {"task": {"object": "crate"}})
    assert cfg.task.object == "crate"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, r"--import mine: there is no such module"),
        ("def broken(:\n", r"--import mine: .*mine\.py, line 1"),
        (
            "import mapush\nfrom mqe.world.objects import "
            "OBJECTS\nmapush.register_object('cuboid', OBJECTS['cylinder'])\n",
            "choose another",
        ),
        ("import mapush\nmapush.register_reward('reach', len)\n", "choose another"),
        (
            "import mapush\nfrom mqe.world.objects import "
            "OBJECTS\nmapush.register_object('../x', OBJECTS['cylinder'])\n",
            "must begin with a letter",
        ),
    ],
)
def test_modules_that_cannot_be_are_refused_in_a_line(elsewhere, content, complaint) -> None:
    if content is not None:
        Path("mine.py").write_text(content)
    with pytest.raises(ConfigError, match=complaint):
        config.import_modules(["mine"])


def test_the_same_member_twice_is_no_mistake(elsewhere) -> None:
    config.import_modules(["own_object"])
    mapush.register_object("crate", OBJECTS["crate"])
    with pytest.raises(ConfigError, match="task 'x': the settings class needs a field name"):
        mapush.register_task(
            "x", TASKS["go1push_mid"]._replace(cfg=type(OBJECTS["crate"].geoms[0]))
        )


def test_what_is_no_object_or_robot_is_refused_in_a_line() -> None:
    with pytest.raises(ConfigError, match="object 'lump': must be a mapush.ObjectCfg, not 3"):
        mapush.register_object("lump", 3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="robot 'mule': must be a mapush.RobotCfg, not {}"):
        mapush.register_robot("mule", {})  # type: ignore[arg-type]


def test_a_weight_of_an_unknown_term_names_those_there_are() -> None:
    with pytest.raises(
        ConfigError,
        match=r"task\.weights: unknown reward 'progres'; did you mean progress\?",
    ):
        PushCfg(weights={"progres": 1.0})


def test_every_name_of_the_one_import_can_be_had() -> None:
    assert all(getattr(mapush, name) is not None for name in mapush.__all__)
    with pytest.raises(AttributeError, match="module 'mapush' has no attribute 'maek'"):
        _ = mapush.maek  # type: ignore[attr-defined]
