"""A push task whose robots only stand, and its environment on the CPU simulator."""

from __future__ import annotations

import torch
from torch import Tensor, tensor

from mqe.controllers.blocks import ActiveWorlds
from mqe.env.environment import MultiAgentEnv
from mqe.sim.mujoco_batch import MujocoBatchSimulator
from mqe.tasks.push import PUSH, PushCfg, PushTask
from mqe.world.objects import OBJECTS
from mqe.world.scene import build_scene
from mqe.world.state import SceneState
from mqe.world.streams import Streams
from tests.support.scenes import DEFAULT_JOINT_POS, team

CPU = torch.device("cpu")
STANCE = tensor(DEFAULT_JOINT_POS)


class Stander:
    """A controller that stands in the nominal pose and remembers what it was told."""

    def begin(self, mask: Tensor) -> None:
        self.begun = mask.clone()

    def command(self, velocity: Tensor) -> None:
        self.velocity = velocity

    def targets(self, state: SceneState) -> Tensor:
        return STANCE.expand(*state.robot_pos.shape[:2], 12)

    def use_blocks(self, worlds: ActiveWorlds) -> None:
        pass

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        assert state == {}


def make_task(num_envs: int = 1, num_agents: int = 2, **cfg) -> PushTask:
    return PushTask(
        PushCfg(**cfg), num_envs, team(num_agents), Streams(0, num_envs, CPU), Stander()
    )


def make_env(num_envs: int, num_agents: int = 2, **cfg) -> MultiAgentEnv:
    task = make_task(num_envs, num_agents, **cfg)
    scene = build_scene(num_agents, OBJECTS[task.cfg.object])
    return MultiAgentEnv(
        MujocoBatchSimulator(scene.model, num_envs, 1), scene, task, report=PUSH.report
    )
