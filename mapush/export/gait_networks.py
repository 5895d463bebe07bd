"""A gait's exported network: contract, example inputs, and a comparison with the environment's
controller.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mapush.export import description, onnx_files
from mapush.export.exported_networks import ExportedGait
from mqe.controllers.gait import GaitController
from mqe.world.robots import DEFAULT_ROBOT, NUM_JOINTS, ROBOTS, RobotCfg, Robots
from mqe.world.scene import STEP_DT
from mqe.world.state import ROBOT_QVEL, SceneState

NUM_CHECKED = 16  # number of compared robots, and of control steps for each


def as_file(gait: ExportedGait) -> onnx_files.Exported:
    """Return a gait with example inputs, ready to be written as a file."""
    return onnx_files.Exported(gait, example(NUM_CHECKED), ("joint_targets", "memory_out"))


def contract(scale: Sequence[float], decision_period: int) -> dict[str, Any]:
    """Describe a gait's inputs and outputs. ``scale`` is the largest command."""
    lead = ["batch"]
    held = description.command(lead, scale, 1.0 / (STEP_DT * decision_period))
    outputs = {
        "joint_targets": description.joint_targets(lead),
        "memory_out": description.gait_memory(lead),
    }
    return {
        "inputs": {"command": held, **description.gait_inputs(lead)},
        "outputs": outputs,
        "rate_hz": 1.0 / STEP_DT,
    }


def example(num_robots: int) -> dict[str, Tensor]:
    """Draw robots' states, a quarter with a command to stand."""
    generator = torch.Generator().manual_seed(0)

    def around(size: int, spread: float) -> Tensor:
        return spread * (2.0 * torch.rand(num_robots, size, generator=generator) - 1.0)

    nominal = torch.tensor(ROBOTS[DEFAULT_ROBOT].joint_pos)
    command = around(3, 0.5) * (torch.arange(num_robots) % 4 > 0).unsqueeze(1)
    up_b = nn.functional.normalize(around(3, 0.3) + torch.tensor([0.0, 0.0, 1.0]), dim=-1)
    memory = torch.cat((around(1, 0.5) + 0.5, around(24, 1.0)), dim=-1)
    return {
        "command": command,
        "up_b": up_b,
        "angvel_b": around(3, 1.0),
        "joint_pos": nominal + around(NUM_JOINTS, 0.3),
        "joint_vel": around(NUM_JOINTS, 5.0),
        "memory": memory,
    }


def largest_difference(gait: ExportedGait, robot: RobotCfg, path: Path) -> float:
    """Return the largest difference in joint targets from the environment's controller, step by
    step.
    """
    run = onnx_files.session(path)
    worst = 0.0
    controller = GaitController(gait.policy, 1, Robots([robot] * NUM_CHECKED))
    memory = torch.zeros(NUM_CHECKED, description.GaitMemory.SIZE)
    no_forces = torch.zeros(3 * math.comb(NUM_CHECKED, 2) + 3)
    for _ in range(NUM_CHECKED):
        tilted = torch.tensor([1.0, 0.0, 0.0, 0.0]) + 0.2 * torch.randn(NUM_CHECKED, 4)
        joints = 0.5 * torch.randn(NUM_CHECKED, NUM_JOINTS)
        speed = torch.randn(NUM_CHECKED, ROBOT_QVEL)
        qpos = torch.cat(
            (torch.zeros(NUM_CHECKED, 3), nn.functional.normalize(tilted, dim=1), joints), dim=1
        )
        state = SceneState(
            torch.cat((qpos.flatten(), speed.flatten(), no_forces)).unsqueeze(1),
            NUM_CHECKED,
            False,
        )
        command = (torch.rand(1, NUM_CHECKED, 3) - 0.5) * (torch.arange(NUM_CHECKED) % 4 > 0).view(
            1, -1, 1
        )
        values = (command, state.up_b, state.robot_angvel_b, state.joint_pos, state.joint_vel)
        names = ("command", "up_b", "angvel_b", "joint_pos", "joint_vel")
        inputs = {name: value[0].contiguous() for name, value in zip(names, values, strict=True)}
        targets, memory = run(inputs | {"memory": memory})
        controller.command(command)
        worst = max(worst, float((targets - controller.targets(state)[0]).abs().max()))
    return worst
