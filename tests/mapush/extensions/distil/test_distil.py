"""One team learns from another, by ``mapush train`` like every team."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harl_mapush import config, train
from harl_mapush.config import RunnerCfg
from harl_mapush.learning.settings import NetworkCfg
from harl_mapush.runner import Runner
from harl_mapush.runs import checkpoint, named_files
from mapush import cli
from mapush.extensions.distil import teaching
from mapush.extensions.distil.demonstrations import TEACHER_ACTIONS
from mapush.extensions.distil.distil import Distil, DistilCfg
from mqe.config import ConfigError, dump_yaml, load_yaml, merge
from mqe.controllers.frozen_policy import read_policy
from mqe.registry import make_env
from mqe.vec_env import ALL_WORLDS
from tests.support.toy import ToyEnv

RUN: dict[str, Any] = {
    "env": {
        "num_agents": 2,
        "num_envs": 2,
        "model": "physical",
        "randomize": {"absent_robots": [0, 1]},
    },
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
        "teacher": "pretrained:beam",
        "batch_size": 8,
        "update_ratio": 0.5,
        "buffer_size": 64,
    },
    "runner": {"num_steps": 4, "num_env_steps": 120, "checkpoint_interval": 40},
}


def with_teacher(teacher: str, **task: Any) -> config.RunCfg:
    return config.resolve(RUN, {"algorithm": {"teacher": teacher}, "task": task})[0]


def taught_worlds(cfg: config.RunCfg) -> teaching.TaughtWorlds:
    return teaching.with_teacher(make_env(cfg.env, cfg.sim, cfg.task, 0, ALL_WORLDS), cfg)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run of three iterations."""
    folder = tmp_path_factory.mktemp("taught")
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
    assert settings["teacher"] == "pretrained:beam"


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
    env = taught_worlds(with_teacher("pretrained:any"))
    obs, _ = env.reset()
    for _ in range(2):
        taught = read_policy("pretrained:any").network(torch.device("cpu"))(obs)
        step = env.step(torch.zeros(2, 2, 3))
        torch.testing.assert_close(step.info[TEACHER_ACTIONS], taught, rtol=0, atol=1e-5)
        obs = step.obs
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
    ("teacher", "task", "message"),
    [
        ("pretrained:ani", {}, "algorithm.teacher: .*did you mean any"),
        ("pretrained:cuboid", {}, "algorithm.teacher: .*pretrained/cuboid"),
    ],
)
def test_teachers_that_cannot_act_there_are_refused(teacher, task, message) -> None:
    with pytest.raises(ConfigError, match=message):
        taught_worlds(with_teacher(teacher, **task))


def test_a_teacher_with_a_memory_is_refused(monkeypatch) -> None:
    teacher = SimpleNamespace(is_recurrent=True)
    monkeypatch.setattr(teaching, "load_team", lambda *_: teacher)
    with pytest.raises(ConfigError, match="pretrained:any has a memory, which no run saves"):
        taught_worlds(with_teacher("pretrained:any"))


def test_the_name_of_a_teacher_is_absolute_in_the_run_folder(run: Path, monkeypatch) -> None:
    monkeypatch.chdir(run.parent)
    for teacher, kept in (("run", str(run)), ("pretrained:any", "pretrained:any")):
        cfg = named_files.absolute(with_teacher(teacher))
        assert cfg.algorithm.teacher == kept


def test_the_former_command_names_the_present_one(capsys) -> None:
    assert cli.main(["distil", "pretrained:any", "taught"]) == 2
    assert "distil is now: mapush train --algo distil" in capsys.readouterr().err
