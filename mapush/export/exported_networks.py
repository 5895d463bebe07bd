"""Networks of an exported team, including normalization, clipping and scaling.

Shapes: B batch rows, O observation size, J joints, M memory size.
"""

import torch
from torch import Tensor, nn

from mqe.controllers.gait import GaitNetwork
from mqe.controllers.network import Actor
from mqe.controllers.trot import (
    ACTION_SCALE,
    FOOT_OFFSET,
    LIFT,
    clock_advance,
    gait_obs_scale,
    is_moving,
)
from mqe.tasks.push.keep_apart import CommandLimit
from mqe.world.geometry import TWO_PI
from mqe.world.robots import NUM_JOINTS, RobotCfg


class ExportedActor(nn.Module):
    """One robot's actor, from obs (B, O) to a velocity command (B, 3).

    A recurrent actor also has its memory (B, M) as input and output.
    """

    scale: Tensor  # (3,)

    def __init__(self, actor: Actor, scale: tuple[float, ...], limit: CommandLimit | None) -> None:
        """Wrap ``actor``. Actions in [-1, 1] are multiplied by ``scale``, then limited by
        ``limit``.
        """
        super().__init__()
        self.actor = actor
        self.limit = limit
        self.is_recurrent = actor.memory_size > 0
        self.register_buffer("scale", torch.tensor(scale))

    def forward(self, obs: Tensor, hidden: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return the command, followed by a recurrent actor's new memory."""
        if hidden is None:
            return (self._command(obs, self.actor(obs)),)
        decided = self.actor(torch.cat((obs, hidden), dim=-1))
        action, after = decided.split([self.actor.out_size, self.actor.memory_size], dim=-1)
        return self._command(obs, action), after

    def _command(self, obs: Tensor, action: Tensor) -> Tensor:
        command = action.clamp(-1.0, 1.0) * self.scale
        return command if self.limit is None else self.limit(obs, command)


class ExportedGait(nn.Module):
    """A robot's gait as a pure function, with clock and memory as inputs and outputs."""

    nominal: Tensor  # (J,) [rad]
    action_scale: Tensor  # (J,) [rad]
    lift: Tensor  # (3,) [rad]
    foot_offset: Tensor  # (4,) of the trot's cycle
    obs_scale: Tensor  # (59,)

    def __init__(self, policy: GaitNetwork, robot: RobotCfg) -> None:
        super().__init__()
        self.policy = policy
        self.clock_advance = clock_advance(robot)
        self.register_buffer("nominal", torch.tensor(robot.joint_pos))
        self.register_buffer("foot_offset", torch.tensor(FOOT_OFFSET))
        self.register_buffer("action_scale", torch.tensor(ACTION_SCALE * 4))
        self.register_buffer("lift", torch.tensor(LIFT))
        self.register_buffer("obs_scale", torch.tensor(gait_obs_scale(robot)))

    def forward(
        self,
        command: Tensor,
        up_b: Tensor,
        angvel_b: Tensor,
        joint_pos: Tensor,
        joint_vel: Tensor,
        memory: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return joint targets (B, J) [rad], and memory (B, 25): clock and last two actions."""
        phase = memory[..., :1]
        actions = memory[..., 1:]
        moving = is_moving(command).to(command.dtype).unsqueeze(-1)

        # The policy's action.
        clock = torch.cat((torch.sin(TWO_PI * phase), torch.cos(TWO_PI * phase)), dim=-1) * moving
        obs = torch.cat(
            (up_b, angvel_b, command, joint_pos - self.nominal, joint_vel, actions, clock), dim=-1
        )
        action = self.policy(obs * self.obs_scale).clamp(-1.0, 1.0)

        # The feet's lift in their swing phase, the same formula as in Trot.swing.
        phase = torch.remainder(phase + self.clock_advance, 1.0) * moving
        cycle = torch.remainder(phase + self.foot_offset, 1.0)
        swing = torch.sin(TWO_PI * (cycle - 0.5).clamp(min=0.0)) * moving
        lifted = (swing.unsqueeze(-1) * self.lift).flatten(-2)

        targets = self.nominal + self.action_scale * action + lifted
        return targets, torch.cat((phase, action, actions[..., :NUM_JOINTS]), dim=-1)
