"""A control step of the velocity task and its mirror image."""

from __future__ import annotations

import torch
from torch import tensor

from mapush.extensions.gait.features import VelocityMemory
from mapush.extensions.gait.gait_mirror import mirrored_action
from mapush.extensions.gait.settings import VelocityCfg
from mapush.extensions.gait.task import VelocityTask
from mqe.world.streams import Streams
from tests.support.scenes import team
from tests.support.term_scenes import CPU, PLACE, N, Scene, mirrored, random_state


def velocity_scenes() -> tuple[Scene, Scene]:
    state = random_state(1, False, 0.3)
    prev = random_state(1, False, 0.3)
    tasks = [VelocityTask(VelocityCfg(), N, team(1), Streams(0, N, "cpu")) for _ in range(2)]
    memory = torch.rand(N, VelocityMemory.SIZE)
    image = memory.clone()
    velocity_memory = VelocityMemory.of(memory)
    there = VelocityMemory.of(image)
    swap = mirrored_action(CPU)
    there.gait.phase[:] = torch.remainder(velocity_memory.gait.phase + 0.5, 1.0)
    there.gait.action[:] = swap(velocity_memory.gait.action)
    there.gait.older_action[:] = swap(velocity_memory.gait.older_action)
    there.mean_velocity[:] = velocity_memory.mean_velocity * tensor([1.0, -1.0, -1.0])
    there.command[:] = velocity_memory.command * tensor([1.0, -1.0, -1.0])
    there.force[:] = velocity_memory.force * PLACE
    first = Scene(tasks[0], state, prev, memory)
    return first, Scene(tasks[1], mirrored(state), mirrored(prev), image)


SCENES = {"go1_velocity": velocity_scenes}
