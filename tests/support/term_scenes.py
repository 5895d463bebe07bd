"""Control steps of every task and their mirror images, for the term conformance test."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, tensor

from mqe.tasks.task import TermTask
from mqe.vec_env import Image
from mqe.world.state import SceneState
from tests.support.paths import ROOT

CPU = torch.device("cpu")
N = 20
PLACE = tensor([1.0, -1.0, 1.0])  # signs of a vector, a quaternion and a rotation in the mirror
QUAT = tensor([1.0, -1.0, 1.0, -1.0])
TURN = tensor([-1.0, 1.0, -1.0])


class Scene(NamedTuple):
    """A task with N worlds, one control step, and the observations' other inputs."""

    task: TermTask
    state: SceneState
    prev: SceneState
    memory: Tensor

    def observed(self) -> Any:
        return self.task.scene_features(self.state, self.memory)

    def step(self) -> Any:
        self.task.memory.copy_(self.memory)
        features = self.task.step_features(self.state, self.prev)
        features.terminated = self.task.terms.terminations(features)
        return features


def random_state(num_robots: int, has_object: bool, scale: float = 1.0) -> SceneState:
    state = SceneState.zeros(N, num_robots, has_object)
    state.rows.normal_().mul_(scale)
    quat = torch.randn_like(state.body_quat) * tensor([1.0, 0.2, 0.2, 1.0])
    state.body_quat[:] = torch.nn.functional.normalize(quat, dim=-1)
    return state


def mirrored_joints() -> Image:
    """Return the image of a robot's joints, left and right legs swapped."""
    order = [3 * leg + joint for leg in (1, 0, 3, 2) for joint in range(3)]
    return Image.of(order, (-1.0, 1.0, 1.0) * 4, CPU)


def mirrored(state: SceneState) -> SceneState:
    """Return the image in the plane y = 0. The object is symmetric about its x axis."""
    image = state.like(state.rows.clone())
    swap = mirrored_joints()
    image.body_pos[:] = state.body_pos * PLACE
    image.body_quat[:] = state.body_quat * QUAT
    image.body_linvel[:] = state.body_linvel * PLACE
    image.robot_angvel_b[:] = state.robot_angvel_b * TURN
    image.joint_pos[:] = swap(state.joint_pos)
    image.joint_vel[:] = swap(state.joint_vel)
    image.forces[:] = (state.forces.unflatten(1, (-1, 3)) * PLACE).flatten(1)
    image.goal_pos[:] = state.goal_pos * PLACE
    image.obstacle_pos[:] = state.obstacle_pos * PLACE
    image.obstacle_quat[:] = state.obstacle_quat * QUAT
    return image


def extension_scenes() -> dict[str, Callable[[], tuple[Scene, Scene]]]:
    """Return the members ``SCENES`` of the files ``term_scenes.py`` beside extensions' tests."""
    scenes = {}
    for path in sorted((ROOT / "tests" / "mapush" / "extensions").glob("*/term_scenes.py")):
        module = importlib.import_module(f"tests.mapush.extensions.{path.parent.name}.term_scenes")
        scenes |= module.SCENES
    return scenes
