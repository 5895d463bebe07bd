"""An export form of your own: a gait for Unitree's C++ controllers, as a network with one output,
with its observation and motors in ``params/deploy.yaml`` (unitree_rl_lab at e72a072,
deploy/include).

mapush export pretrained:go2_velocity go2 --for unitree --import unitree_gait

Their runner feeds nothing back. The clock is their term ``gait_phase``. The last two actions come
from their history of network outputs, after subtracting the feet's lift.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from harl_mapush.process import say
from mapush.export import models, onnx_files
from mapush.export.exported_networks import ExportedGait
from mapush.export.exporter import EXPORTERS, Exporter, ExportRequest
from mqe.config import ConfigError, dump_yaml
from mqe.controllers.frozen_policy import describe_policy
from mqe.controllers.gait import load_gait
from mqe.controllers.trot import ACTION_SCALE, GAIT_FREQUENCY, JOINTS, is_moving
from mqe.registry import TASKS
from mqe.world.geometry import TWO_PI, rotate_2d
from mqe.world.robots import NUM_JOINTS, ROBOTS, RobotCfg
from mqe.world.robots.robot import LEG_JOINTS, LEGS
from mqe.world.scene import STEP_DT

ROBOT = "go2"  # there is none for the Go1
NETWORK = Path("exported") / "policy.onnx"
SETTINGS = Path("params") / "deploy.yaml"
_JOINT_NAMES = [f"{name}_joint" for name in JOINTS]  # as Unitree calls them
_SDK_LEGS = ("FR", "FL", "RR", "RL")  # order of the motors in Unitree's messages
# Terms of the observation in their order: numbers, and control steps of history, oldest first.
TERMS = {
    "base_ang_vel": (3, 1),
    "projected_gravity": (3, 1),
    "velocity_commands": (3, 3),
    "joint_pos_rel": (NUM_JOINTS, 1),
    "joint_vel_rel": (NUM_JOINTS, 1),
    "last_action": (NUM_JOINTS, 2),
    "gait_phase": (2, 1),
}
OBS_SIZE = sum(numbers * history for numbers, history in TERMS.values())
# [rad] lead of Unitree's clock over the gait's: it advances before each reading, and once more at
# an episode's start.
_AHEAD = 2.0 * TWO_PI * GAIT_FREQUENCY * STEP_DT


class UnitreeGait(nn.Module):
    """A gait as a function of Unitree's observation alone, (B, 65) to actions (B, J).

    Their controller multiplies the actions by a scale and adds the nominal joint angles.
    """

    scale: Tensor  # (J,) [rad]
    sides: Tensor  # (4,) 1 for feet that begin a cycle, -1 for feet half a cycle later

    def __init__(self, gait: ExportedGait) -> None:
        super().__init__()
        self.gait = gait
        self.register_buffer("scale", torch.tensor(ACTION_SCALE * len(LEGS)))
        self.register_buffer("sides", torch.cos(TWO_PI * gait.foot_offset))

    def forward(self, obs: Tensor) -> Tensor:
        """Return the actions. Zero outputs at an episode's start count as no action."""
        sizes = [numbers * history for numbers, history in TERMS.values()]
        angvel_b, down_b, commands, joint_pos, joint_vel, outputs, phase = obs.split(sizes, dim=-1)
        before_last, last, command = commands.split(3, dim=-1)
        older_output, last_output = outputs.split(NUM_JOINTS, dim=-1)
        moving = self._is_moving(command)

        # The lift of a control step has the clock after it.
        last_lift = self._lift(phase, _AHEAD, self._is_moving(last))
        older_lift = self._lift(phase, 1.5 * _AHEAD, self._is_moving(before_last))
        clock = _turned(phase, _AHEAD) * moving
        values = (
            -down_b,
            angvel_b,
            command,
            joint_pos,
            joint_vel,
            self._action(last_output, last_lift),
            self._action(older_output, older_lift),
            clock,
        )
        action = self.gait.policy(torch.cat(values, dim=-1) * self.gait.obs_scale)
        return action.clamp(-1.0, 1.0) + self._lift(phase, 0.5 * _AHEAD, moving)

    def _is_moving(self, command: Tensor) -> Tensor:
        return is_moving(command).to(command.dtype).unsqueeze(-1)

    def _lift(self, phase: Tensor, angle: float, moving: Tensor) -> Tensor:
        """Return the feet's lift (B, J) in an action's units, ``angle`` [rad] before ``phase``."""
        sine = _turned(phase, angle)[..., :1]
        # A foot swings in the second half of its cycle.
        swing = (-sine * self.sides).clamp(min=0.0) * moving
        return (swing.unsqueeze(-1) * self.gait.lift).flatten(-2) / self.scale

    def _action(self, output: Tensor, lift: Tensor) -> Tensor:
        has_acted = (output.abs().amax(dim=-1, keepdim=True) > 0.0).to(output.dtype)
        return (output - lift) * has_acted


def _turned(phase: Tensor, angle: float) -> Tensor:
    """Return sine and cosine (B, 2) after a turn back by ``angle`` [rad]."""
    return rotate_2d(phase, torch.tensor(angle))


def sdk_order() -> list[int]:
    """Return each joint's motor index in Unitree's messages."""
    return [
        _SDK_LEGS.index(leg) * len(LEG_JOINTS) + joint
        for leg in LEGS
        for joint in range(len(LEG_JOINTS))
    ]


def settings(robot: RobotCfg, max_command: Sequence[float]) -> dict[str, Any]:
    """Return the contents of ``deploy.yaml``, with stiffness and damping in motor order."""
    ahead, left, turning = ([-largest, largest] for largest in max_command)
    observations = {
        name: {
            "params": {"period": 1.0 / GAIT_FREQUENCY} if name == "gait_phase" else {},
            "clip": None,
            "scale": [1.0] * numbers,
            "history_length": history,
        }
        for name, (numbers, history) in TERMS.items()
    }
    return {
        "joint_ids_map": sdk_order(),
        "step_dt": STEP_DT,
        "stiffness": [robot.stiffness] * NUM_JOINTS,
        "damping": [robot.damping] * NUM_JOINTS,
        "default_joint_pos": list(robot.joint_pos),
        "commands": {
            "base_velocity": {
                "ranges": {"lin_vel_x": ahead, "lin_vel_y": left, "ang_vel_z": turning}
            }
        },
        "actions": {
            "JointPositionAction": {
                "clip": None,
                "joint_names": _JOINT_NAMES,
                "scale": list(ACTION_SCALE) * len(LEGS),
                "offset": list(robot.joint_pos),
                "joint_ids": None,
            }
        },
        "observations": observations,
    }


def write(request: ExportRequest) -> dict[str, float]:
    """Write the network and its settings. Return the largest difference from torch.

    Raises ConfigError if the difference is too large, without ONNX, and for a policy other than a
    gait.
    """
    if not TASKS[request.cfg.task.name].is_gait:
        raise ConfigError(
            f"--for unitree: {request.name} is a team, and Unitree's controllers run gaits only; "
            "name a gait, for example pretrained:go2_velocity, or leave --for out"
        )
    onnx_files.check_packages()
    description = describe_policy(str(request.folder))
    robot = ROBOTS[description.robot]
    if robot.name != ROBOT:
        say(
            f"Note: Unitree has such a controller for the {ROBOT}, and this gait is a "
            f"{robot.name}'s."
        )
    gait = load_gait(str(request.folder), torch.device("cpu"), robot)
    network = UnitreeGait(ExportedGait(gait, robot))
    obs = torch.randn(models.NUM_CHECKED, OBS_SIZE)
    path = request.out / NETWORK
    path.parent.mkdir()
    # Their runner's input has the file's shape: one row.
    example = {"obs": obs[:1]}
    onnx_files.write(onnx_files.Exported(network, example, ("actions",)), path, is_batch=False)
    text = dump_yaml(settings(robot, description.actions["max_command"]))
    settings_file = request.out / SETTINGS
    settings_file.parent.mkdir()
    settings_file.write_text(text, encoding="utf-8")

    run = onnx_files.session(path)
    with torch.no_grad():
        expected = network(obs)
    actions = torch.cat([run({"obs": row})[0] for row in obs.split(1)])
    worst = {NETWORK.as_posix(): float((expected - actions).abs().max())}
    onnx_files.check(worst)
    return worst


EXPORTERS.register("unitree", Exporter("a gait for Unitree's C++ controllers", write))
