"""A control step of the navigation task and its mirror image."""

from __future__ import annotations

import functools

import torch
from torch import tensor

from mapush.extensions.navigate.features import Plan
from mqe.tasks.entry import TaskSetup
from mqe.world.state import SceneState
from tests.mapush.extensions.navigate.navigating import navigate_setup
from tests.support.term_scenes import N, Scene, mirrored, random_state


@functools.cache  # planned once; every test writes what they remember
def navigate_setups() -> tuple[TaskSetup, TaskSetup]:
    return navigate_setup(N), navigate_setup(N)


def navigate_scenes() -> tuple[Scene, Scene]:
    setups = navigate_setups()
    num_obstacles = setups[0].scene.num_obstacles
    states = []
    for _ in range(2):
        state = SceneState.zeros(N, 2, True, num_obstacles=num_obstacles)
        planar = random_state(2, True)
        state.rows[: len(planar.rows)] = planar.rows
        state.obstacle_pos.normal_()
        turned = torch.randn_like(state.obstacle_quat) * tensor([1.0, 0.0, 0.0, 1.0])
        state.obstacle_quat[:] = torch.nn.functional.normalize(turned, dim=-1)
        state.obstacle_contacts.bernoulli_()
        states.append(state)
    memory = torch.rand(N, Plan.SIZE)
    image = memory * tensor([1.0, -1.0, 1.0, -1.0, 1.0, 1.0, 1.0, 1.0])
    first = Scene(setups[0].task, states[0], states[1], memory)
    return first, Scene(setups[1].task, mirrored(states[0]), mirrored(states[1]), image)


SCENES = {"go1push_upper": navigate_scenes}
