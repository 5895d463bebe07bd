"""Lessons: one team learns from other teams, by ``mapush train`` like every team."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from harl_mapush import config, lessons, train
from harl_mapush.algorithms.distil import Distil, DistilCfg
from harl_mapush.config import RunnerCfg
from harl_mapush.kept_settings import kept_settings
from harl_mapush.learning.settings import NetworkCfg
from harl_mapush.machine import Machine
from harl_mapush.runner import Runner
from harl_mapush.runs import checkpoint
from mapush import cli
from mqe.config import ConfigError, dump_yaml, load_yaml, merge
from mqe.controllers.frozen_policy import read_policy
from mqe.vec_env import ALL_WORLDS, TEACHER_ACTIONS
from tests.support.toy import ToyEnv

ONE = {"teacher": "pretrained:any", "env": {"num_agents": 1}}
BEAMS = {
    "teacher": "pretrained:beam",
    "task": {"object": "beam", "object_mass": "70 N"},
}
RUN: dict[str, Any] = {
    "env": {"num_agents": 2, "num_envs": 2, "model": "physical"},
    "sim": {"name": "mujoco", "device": "cpu"},
    "task": {
        "observation": "sets",
        "decision_period": 5,
        "keep_apart": 0.3,
        "action_scale": [0.65, 0.65, 0.65],
        "spawn": "separated",
    },
    "network": {"hidden_sizes": [8], "sets": "deep_set", "set_width": 4},
    "algorithm": {
        "name": "distil",
        "lessons": [ONE, BEAMS],
        "batch_size": 8,
        "update_ratio": 0.5,
        "buffer_size": 64,
    },
    "runner": {"num_steps": 4, "num_env_steps": 120, "checkpoint_interval": 40},
}


def with_lessons(*entries: Any, **env: Any) -> config.RunCfg:
    over = {"algorithm": {"lessons": list(entries)}, "env": env}
    return config.resolve(RUN, over)[0]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run of three iterations."""
    folder = tmp_path_factory.mktemp("lessons")
    (folder / "run.yaml").write_text(dump_yaml(RUN), encoding="utf-8")
    assert train.main(["--config", str(folder / "run.yaml"), "--out", str(folder / "run")]) == 0
    return folder / "run"


def tensors(state: Any, name: str = "") -> dict[str, Any]:
    """Return a nested state's leaves by name."""
    if isinstance(state, (dict, list, tuple)):
        pairs = state.items() if isinstance(state, dict) else enumerate(state)
        leaves: dict[str, Any] = {}
        for key, value in pairs:
            leaves |= tensors(value, f"{name}/{key}")
        return leaves
    return {name: state}


def test_a_run_resumes_to_the_bit(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "resumed")
    shutil.rmtree(tmp_path / "resumed" / "checkpoints" / "120")
    assert train.main(["--resume", str(tmp_path / "resumed")]) == 0
    states = []
    for folder in (run, tmp_path / "resumed"):
        state = checkpoint.read_training_state(folder / "checkpoints" / "120")
        states.append(tensors(state))
    assert states[0].keys() == states[1].keys()
    assert "/storage/obs" in states[0]
    for name, value in states[0].items():
        before = torch.as_tensor(value)
        after = torch.as_tensor(states[1][name])
        torch.testing.assert_close(after, before, rtol=0, atol=0, equal_nan=True, msg=name)


def test_a_team_is_a_policy_and_has_learned(run: Path) -> None:
    first, last = (
        read_policy(str(run / "checkpoints" / name)).tensors[0] for name in ("40", "120")
    )
    before = first["mu_layer.weight"]
    after = last["mu_layer.weight"]
    assert not torch.equal(before, after)
    assert torch.equal(first["log_std_layer.weight"], last["log_std_layer.weight"])
    settings = load_yaml(run / "config.yaml")["algorithm"]
    assert [lesson["teacher"] for lesson in settings["lessons"]] == [
        "pretrained:any",
        "pretrained:beam",
    ]


def test_another_algorithm_trains_the_team_on(run: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "hasac.yaml").write_text(
        dump_yaml(
            merge(
                {key: value for key, value in RUN.items() if key != "algorithm"},
                {"algorithm": {"name": "hasac", "share_param": True, "buffer_size": 64}}
                | {"runner": {"num_env_steps": 40}},
            )
        ),
        encoding="utf-8",
    )
    argv = ["--config", str(tmp_path / "hasac.yaml"), "--init_from", str(run)]
    argv += ["--set", "algorithm.warmup=8", "--set", "algorithm.batch_size=8"]
    assert train.main([*argv, "--out", str(tmp_path / "on")]) == 0
    assert f"Starts with the actors of {run / 'checkpoints' / '120'}, and with a new critic" in (
        capsys.readouterr().out
    )


def test_worlds_report_their_teachers_actions() -> None:
    cfg = with_lessons(ONE, {"teacher": "pretrained:any"})
    env = lessons.make_lessons(cfg, ALL_WORLDS)
    obs, _ = env.reset()
    for _ in range(2):
        taught = read_policy("pretrained:any").network(torch.device("cpu"))(obs)
        step = env.step(torch.zeros(2, 2, 3))
        actions = step.info[TEACHER_ACTIONS]
        torch.testing.assert_close(actions[1], taught[1], rtol=0, atol=1e-5)
        torch.testing.assert_close(actions[0, :1], taught[0, :1], rtol=0, atol=1e-5)
        assert bool((actions[0, 1] == 0.0).all())  # no second robot there
        obs = step.obs
    assert {"success_rate_of_lesson0", "success_rate_of_lesson1"} <= set(env.statistics())
    env.close()


def test_a_student_comes_near_its_teacher() -> None:
    torch.manual_seed(0)
    env = ToyEnv(64)
    cfg = DistilCfg(learning_rate=3e-3, batch_size=64, update_ratio=0.05)
    student = Distil(cfg, NetworkCfg((16,)), env.spec)
    runner = Runner(env, student, RunnerCfg(num_steps=5, num_env_steps=10**9))
    runner.start()
    errors = []
    for _ in range(12):
        runner.collect()
        errors.append(float(runner.update()["teacher/squared_error"]))
    assert errors[-1] < 0.1 * errors[0]
    obs, _ = env.reset()
    actions = student.act(obs, deterministic=True).actions
    taught = env.step(actions).info[TEACHER_ACTIONS]
    assert float((actions - taught).square().mean()) < 0.1 * errors[0]


def test_the_learning_rate_falls_to_zero_over_the_second_half() -> None:
    env = ToyEnv(4)
    student = Distil(DistilCfg(learning_rate=1.0), NetworkCfg((4,)), env.spec)
    rates = []
    for progress in (0.0, 0.5, 0.75, 1.0):
        student.update(student.make_experience(4, 4), progress)
        rates.append(float(student.optimizer.learning_rate))
    assert rates == pytest.approx([1.0, 1.0, 0.5, 0.0])


def test_each_world_counts_alike_and_absent_agents_do_not() -> None:
    spec = ToyEnv(2).spec._replace(presence=2)
    student = Distil(DistilCfg(), NetworkCfg((4,)), spec)
    for actor in student.actors:
        torch.nn.init.zeros_(actor.mu_layer.weight)
        torch.nn.init.zeros_(actor.mu_layer.bias)
    obs = torch.ones(2, 2, 3)
    obs[0, 1, 2] = 0.0  # the second agent of the first world is away
    targets = torch.tensor([[[1.0, 1.0], [9.0, 9.0]], [[2.0, 2.0], [0.0, 0.0]]])
    first = 1.0
    second = (4.0 + 0.0) / 2
    error = student._learn(obs, targets)["teacher/squared_error"]
    assert float(error) == pytest.approx((first + second) / 2)


@pytest.mark.parametrize(
    ("entries", "env", "message"),
    [
        ([], {}, "a student needs a lesson"),
        ([{"teacher": "pretrained:ani"}], {}, r"lessons\[0\]: .*did you mean any"),
        ([BEAMS], {"num_agents": None}, "env.num_agents: say how many robots"),
        ([BEAMS] * 3, {}, "env.num_envs=2: 3 algorithm.lessons need a world each"),
        ([ONE], {}, "env.num_agents=2: the largest team of algorithm.lessons has 1 robots; say 1"),
        ([BEAMS, BEAMS | {"task": {"objct": "beam"}}], {}, r"lessons\[1\]: .*task.objct"),
        ([BEAMS, BEAMS | {"task": {"name": "go1_velocity"}}], {}, r"lessons\[1\]: task.name="),
        ([BEAMS | {"env": {"num_envs": 100}}], {}, r"lessons\[0\]: env.num_envs: lessons divide"),
    ],
)
def test_lessons_that_cannot_be_are_refused(entries, env, message) -> None:
    with pytest.raises(ConfigError, match=message):
        lessons.settings(with_lessons(*entries, **env))


@pytest.mark.parametrize("lesson", [{"env": {}}, {"teacher": "a", "network": {}}, {"teacher": 3}])
def test_a_lesson_has_a_teacher_and_worlds_alone(lesson) -> None:
    with pytest.raises(ConfigError, match=r"lessons\[0\]: must have a teacher"):
        with_lessons(lesson)


@pytest.mark.parametrize(
    ("lesson", "message"),
    [
        ({"teacher": "pretrained:cuboid"}, "pretrained/cuboid"),
        (BEAMS | {"task": {"observation": "sincos"}}, r"lessons\[1\]: obs size, state size"),
    ],
)
def test_teachers_that_cannot_act_there_are_refused(lesson, message) -> None:
    cfg = with_lessons({"teacher": "pretrained:any"}, lesson)
    with pytest.raises(ConfigError, match=message):
        lessons.make_lessons(cfg, ALL_WORLDS)


def test_names_of_teachers_are_absolute_in_the_run_folder(run: Path, monkeypatch) -> None:
    monkeypatch.chdir(run.parent)
    cfg = with_lessons({"teacher": "run"}, BEAMS)
    machine = Machine("mujoco", torch.device("cpu"), torch.device("cpu"))
    kept = kept_settings(cfg, machine, 1, 2)
    assert kept.algorithm.lessons[0]["teacher"] == str(run)
    assert kept.algorithm.lessons[1] == dataclasses.asdict(cfg.algorithm)["lessons"][1]


def test_the_former_command_names_the_present_one(capsys) -> None:
    assert cli.main(["distil", "pretrained:any", "taught"]) == 2
    assert "distil is now: mapush train --algo distil" in capsys.readouterr().err
