"""A push task with standing robots, and its environment on the CPU simulator."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, tensor

from mqe.controllers.blocks import ActiveWorlds
from mqe.env.environment import MultiAgentEnv
from mqe.resumable import Resumable
from mqe.sim.mujoco_batch import MujocoBatchSimulator
from mqe.sim.simulator import Simulator
from mqe.tasks.push import PUSH, PushCfg, PushTask
from mqe.tasks.push.rewards import REWARDS
from mqe.tasks.task import Task
from mqe.tasks.term_settings import chosen_weights
from mqe.world.geometry import quat_from_yaw
from mqe.world.objects import OBJECTS
from mqe.world.randomization import Randomization, RandomizationCfg
from mqe.world.scene import Scene, build_scene
from mqe.world.state import SceneState
from mqe.world.streams import Streams
from tests.support.scenes import DEFAULT_JOINT_POS, make_scene_state, team

CPU = torch.device("cpu")
STANCE = tensor(DEFAULT_JOINT_POS)


class Stander(Resumable):
    """A controller for the nominal pose, with a record of its commands."""

    def begin(self, mask: Tensor) -> None:
        self.begun = mask.clone()

    def command(self, velocity: Tensor) -> None:
        self.velocity = velocity

    def targets(self, state: SceneState) -> Tensor:
        return STANCE.expand(*state.robot_pos.shape[:2], 12)

    def use_blocks(self, worlds: ActiveWorlds) -> None:
        pass

    def state_parts(self) -> dict[str, Tensor]:
        return {}


def make_task(num_envs: int = 1, num_agents: int = 2, **cfg) -> PushTask:
    return PushTask(
        PushCfg(**cfg), num_envs, team(num_agents), Streams(0, num_envs, CPU), Stander()
    )


def make_env(num_envs: int, num_agents: int = 2, **cfg) -> MultiAgentEnv:
    task = make_task(num_envs, num_agents, **cfg)
    scene = build_scene(num_agents, OBJECTS[task.cfg.object])
    return plain_env(MujocoBatchSimulator(scene.model, num_envs, 1), scene, task)


def plain_env(sim: Simulator, scene: Scene, task: Task) -> MultiAgentEnv:
    """Return the environment of a push task without randomization."""
    randomization = Randomization(
        RandomizationCfg(),
        scene,
        (sim.num_envs, task.spec.num_agents, task.spec.action_size),
        task.max_episode_length,
        Streams(0, sim.num_envs, sim.device),
    )
    return MultiAgentEnv(sim, scene, task, randomization, PUSH.report)


def make_state(pos: list, yaw: list, box: list, box_yaw: float, goal: list) -> SceneState:
    """Return a scene of robots at ``pos`` (A, 2) with headings ``yaw``, a box and a goal."""
    a = len(pos)
    return make_scene_state(
        torch.cat((tensor([pos]), torch.full((1, a, 1), 0.3)), dim=-1),
        robot_quat=quat_from_yaw(tensor([yaw])),
        robot_linvel=tensor([[[0.1, 0.2, 0.3]] * a]),
        robot_angvel_b=tensor([[[0.0, 0.0, 0.4]] * a]),
        object_pos=tensor([[*box, 0.25]]),
        object_quat=quat_from_yaw(tensor([box_yaw])),
        goal_pos=tensor([[*goal, 0.0]]),
    )


def weights_of(
    preset: str, object_name: str, overrides: Mapping[str, float | None]
) -> dict[str, float]:
    """Return non-zero weights by term: the ``overrides``, else the object's preset."""
    cfg = PushCfg(rewards=preset, object=object_name, weights=dict(overrides))
    return chosen_weights(REWARDS, cfg)
