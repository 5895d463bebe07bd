"""A policy of any registered task leaves as ONNX and decides there as in the environment."""

from __future__ import annotations

import json
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from harl_mapush import config, train
from harl_mapush.runs import checkpoint
from harl_mapush.runs.policy import TeamPolicy, make_team
from mapush import cli
from mapush.export import onnx_files
from mapush.export.onnx_files import TOLERANCE
from mqe.controllers.frozen_policy import describe_policy
from mqe.controllers.trot import GaitMemory
from mqe.env.environment import MultiAgentEnv
from mqe.registry import TASKS, make_env
from mqe.world.state import SceneState
from tests.mqe.tasks.test_tasks import MEET, TINY
from tests.support.paths import ROOT
from tests.support.registries import restored_registries

COMMAND = (0.4, 0.1, -0.2)


QUICK = ("go1push_mid", "meet")


@pytest.fixture(
    params=[
        pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow)
        for name in (*TASKS, "meet", "race")
    ]
)
def task(request) -> Iterator[str]:
    """Every registered task, one of the tests and one of the examples."""
    with restored_registries():
        TASKS.register("meet", MEET)
        runpy.run_path(str(ROOT / "examples" / "own_task.py"))
        yield request.param


def test_a_policy_of_any_task_is_exported_and_acts_as_in_the_environment(
    task: str, tmp_path
) -> None:
    run = tmp_path / "run"
    sizes = ("--num_env_steps", "16", "--set", "network.gain=1.0", "--out", str(run))
    assert train.main(["--task", task, *sizes, *TINY]) == 0
    out = tmp_path / "onnx"
    assert cli.main(["export", str(run), str(out)]) == 0

    folder = checkpoint.resolve(str(run))
    cfg, _ = config.resolve(checkpoint.read_config(folder), {"env": {"num_envs": 3}})
    env = make_env(cfg.env, cfg.sim, cfg.task, 0)
    models = json.loads((out / "contract.json").read_text())["models"]
    entry = TASKS[task]
    if entry.is_gait:
        assert set(models) == {"gait.onnx"}
    else:
        actors = {f"actor_agent{agent}.onnx" for agent in range(env.num_agents)}
        assert actors <= set(models)
        assert ("gait_agent0.onnx" in models) == (entry.gaits is not None)
        described = models["actor_agent0.onnx"]["inputs"]["obs"]["terms"]
        described_in_policy = describe_policy(str(folder)).observations
        assert described == json.loads(json.dumps(described_in_policy))
    follow(env, cfg, folder, out)
    env.close()


def follow(env: MultiAgentEnv, cfg: config.RunCfg, folder: Path, out: Path) -> None:
    """Compare commands of the actors, and joint targets of team or gait, over some decisions."""
    policy = make_team(folder, env)
    assert isinstance(policy, TeamPolicy)
    entry = TASKS[cfg.task.name]
    targets = Targets(env, out)
    if env.task.features.steer is not None:
        env.task.features.steer(COMMAND)
    obs, _ = env.reset()
    for _ in range(3):
        actions = policy(obs)
        if not entry.is_gait:
            scale = torch.tensor(entry.actions(cfg.task).get("scale", 1.0))
            commands = actions.clamp(-1.0, 1.0) * scale
            for agent in range(env.num_agents):
                run = onnx_files.session(out / f"actor_agent{agent}.onnx")
                (command,) = run({"obs": obs[:, agent].contiguous()})
                assert_close(command, commands[:, agent])
        if entry.gaits is not None:
            targets.command = commands
        obs = env.step(actions).obs
    assert targets.num_steps == (3 * env.decision_period if targets.has_network else 0)


class Targets:
    """Joint targets of the exported gaits beside those of the task, at every control step."""

    def __init__(self, env: MultiAgentEnv, out: Path) -> None:
        self.num_steps = 0
        names = ["gait.onnx", *(f"gait_agent{agent}.onnx" for agent in range(env.num_agents))]
        self._gaits = [onnx_files.session(out / name) for name in names if (out / name).exists()]
        self.has_network = bool(self._gaits)
        if not self.has_network:
            return
        self._memory = [torch.zeros(env.num_envs, GaitMemory.SIZE) for _ in self._gaits]
        self.command = torch.tensor(COMMAND).expand(env.num_envs, env.num_agents, 3)
        self._targets = env.task.targets
        env.task.targets = self.targets

    def targets(self, state: SceneState) -> Tensor:
        body = {
            "command": self.command,
            "up_b": state.up_b,
            "angvel_b": state.robot_angvel_b,
            "joint_pos": state.joint_pos,
            "joint_vel": state.joint_vel,
        }
        expected = self._targets(state)
        for agent, gait in enumerate(self._gaits):
            inputs = {name: values[:, agent].contiguous() for name, values in body.items()}
            exported, self._memory[agent] = gait(inputs | {"memory": self._memory[agent]})
            assert_close(exported, expected[:, agent])
        self.num_steps += 1
        return expected


def assert_close(exported: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(exported, expected, rtol=0.0, atol=10.0 * TOLERANCE)
