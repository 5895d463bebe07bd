"""The trot that gaits are learned on top of: what a gait policy sees, what it does, and what it remembers."""

from __future__ import annotations

import torch
from torch import Tensor

from mqe.geometry import HALF_PI, TWO_PI, in_frame, on_circle
from mqe.robots import NUM_JOINTS, Robots
from mqe.robots.robot import NUM_LEGS
from mqe.robots.tensors import by_leg
from mqe.scene import STEP_DT
from mqe.state import SceneState
from mqe.vec_env import Mirror

GAIT_OBS_SIZE = 3 + 3 + 3 + NUM_JOINTS * 4 + 2
GAIT_FREQUENCY = 2.5  # [Hz] one trot cycle in 20 control steps
STANDING_COMMAND = 0.05  # [m/s, rad/s] below this on every axis the clock stops and the robot stands
ACTION_SCALE = (0.35, 0.6, 0.8)  # [rad] hip, thigh, calf at action 1
SWING_HEIGHT = 0.08  # [m] clearance of a foot in the middle of its swing
# [rad] added to the targets of a swinging leg at the top of its swing, so that a policy begins with a trot and learns
# where to go with it. Legs of two equal links fold straight up by an angle and twice it; motors this soft lift the feet
# by 10 to 60 mm with it.
LIFT = (0.0, 0.45, -0.9)

FOOT_OFFSET = (0.0, 0.5, 0.5, 0.0)  # of the trot's cycle, of FL, FR, RL, RR

ANGVEL_SCALE, COMMAND_SCALE, JOINT_VEL_SCALE = 0.25, 2.0, 0.05  # observations to about unit size


class GaitMemory:
    """What a gait carries from one control step to the next: its clock and its last two actions."""

    SIZE = 1 + 2 * NUM_JOINTS  # numbers a robot

    def __init__(self, values: Tensor) -> None:
        """Live in ``values`` (N, A, 25); zeros are a gait that has not begun."""
        self.values = values
        self.phase = values[..., 0]  # (N, A) of the trot's cycle, in [0, 1)
        self.actions = values[..., 1:]  # (N, A, 24) the last and the one before it: some may be on their way still
        self.action, self.older_action = self.actions.split(NUM_JOINTS, dim=-1)

    def begin(self, mask: Tensor) -> None:
        """Forget the old episodes of ``mask`` (N,)."""
        self.values.masked_fill_(mask.view(-1, 1, 1), 0.0)


class Trot:
    """What a gait policy sees and does on a team of robots: observations, and actions on top of a trot."""

    def __init__(self, robots: Robots) -> None:
        """Trot with ``robots`` about their nominal stance."""
        device, self._joint_pos = robots.device, robots.joint_pos
        ahead, behind = [0.0] * 9, [0.0] * (3 * NUM_JOINTS + 2)
        offset = [ahead + [-angle for angle in cfg.joint_pos] + behind for cfg in robots.cfgs]
        scale = [-1.0] * 3 + [ANGVEL_SCALE] * 3 + [COMMAND_SCALE] * 3  # gravity points down
        scale += [1.0] * NUM_JOINTS + [JOINT_VEL_SCALE] * NUM_JOINTS + [1.0] * (2 * NUM_JOINTS + 2)
        self._obs_offset = torch.tensor(offset if robots.is_mixed else offset[0], device=device)  # (59,) or (A, 59)
        self._obs_scale = torch.tensor(scale, device=device)  # (59,)
        self._action_scale = torch.tensor(ACTION_SCALE * NUM_LEGS, device=device)  # (J,) [rad]
        self._quarter = torch.tensor(HALF_PI, device=device)  # [rad] of a turn
        self._lift = torch.tensor(LIFT, device=device)  # (3,) [rad]
        self._foot_offset = torch.tensor(FOOT_OFFSET, device=device)  # (4,)

    def act(self, memory: GaitMemory, action: Tensor, moving: Tensor) -> Tensor:
        """Take the policy's action (N, A, J), clipped to [-1, 1]; advance the clock of robots that are ``moving``.

        Returns joint targets (N, A, J) [rad]; ``moving`` (N, A) is bool.
        """
        memory.older_action.copy_(memory.action)
        torch.clamp(action, -1.0, 1.0, out=memory.action)
        memory.phase.add_(GAIT_FREQUENCY * STEP_DT).remainder_(1.0).mul_(moving)
        trot = torch.addcmul(self._joint_pos, self._action_scale, memory.action)
        return torch.addcmul(by_leg(trot), self.swing(memory.phase, moving).unsqueeze(-1), self._lift).flatten(-2)

    def observe(self, state: SceneState, command: Tensor, moving: Tensor, memory: GaitMemory) -> Tensor:
        """Return the policy's observation (N, A, 59): gravity, turn rates, command, joints, last two actions, clock.

        The clock is the sine and cosine of its angle, 0 and 0 while the robot stands.
        """
        # (sin a, cos a) is the point at angle pi / 2 - a on the circle.
        clock = on_circle(moving.float(), torch.sub(self._quarter, memory.phase, alpha=TWO_PI))
        parts = (state.up_b, state.robot_angvel_b, command, state.joint_pos, state.joint_vel, memory.actions, clock)
        return torch.addcmul(self._obs_offset, torch.cat(parts, dim=-1), self._obs_scale)

    def swing(self, phase: Tensor, moving: Tensor) -> Tensor:
        """Return how far each foot is through its swing, (N, A, 4): 0 on the floor, 1 at the top; FL swings with RR."""
        cycle = torch.remainder(phase.unsqueeze(-1) + self._foot_offset, 1.0)
        return torch.sin(TWO_PI * (cycle - 0.5).clamp(min=0.0)) * moving.unsqueeze(-1)  # the cycle's second half


def planar_velocity(state: SceneState) -> Tensor:
    """Give what a command asks for as it is, (N, A, 3): vx, vy [m/s] in the heading frame, yaw rate [rad/s]."""
    planar = in_frame(state.robot_linvel[..., :2], state.robot_frame)
    return torch.cat((planar, state.yaw_rate.unsqueeze(-1)), dim=-1)


def is_moving(command: Tensor) -> Tensor:
    """(...,) bool: the command (..., 3) asks for a gait rather than for standing."""
    return command.abs().amax(dim=-1) > STANDING_COMMAND


def gait_noise_scale(device: torch.device) -> Tensor:
    """Return what ``observation_noise`` means to each number that a gait sees, (59,).

    At 0.05: 0.05 of gravity's direction, 0.2 rad/s of turning, 0.015 rad and 1.5 rad/s of every joint.
    """
    joints = [0.3] * NUM_JOINTS + [1.5] * NUM_JOINTS
    return torch.tensor([1.0] * 6 + [0.0] * 3 + joints + [0.0] * (2 * NUM_JOINTS + 2), device=device)


def mirrored_gait(device: torch.device) -> tuple[Mirror, Mirror]:
    """Return how a gait's observation and action look in a mirror that swaps left and right.

    The trot's clock is half a cycle on, because left and right legs swap their turns.
    """
    swapped = [leg * 3 + joint for leg in (1, 0, 3, 2) for joint in range(3)]
    sign = [-1.0, 1.0, 1.0] * 4
    axial = [-1.0, 1.0, -1.0]  # turning: about x and z the other way round
    index, signs = list(range(9)), [1.0, -1.0, 1.0, *axial, 1.0, -1.0, -1.0]
    for _ in range(4):  # joint angles, joint velocities, two actions
        index += [len(index) + k for k in swapped]
        signs += sign
    index += [len(index), len(index) + 1]
    signs += [-1.0, -1.0]
    return Mirror.of(index, signs, device), Mirror.of(swapped, sign, device)
