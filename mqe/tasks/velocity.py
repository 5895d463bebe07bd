"""Low level, task ``go1_velocity``: one robot learns a trot that follows velocity commands and stands on zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mqe.config import option
from mqe.geometry import quat_from_yaw, rotate, rotate_inverse
from mqe.locomotion import GAIT_OBS_SIZE, GaitMemory, gravity_b, heading_velocity, is_moving
from mqe.robots.go1 import (
    DAMPING,
    DEFAULT_JOINT_POS,
    FOOT_RADIUS,
    NUM_JOINTS,
    STANDING_HEIGHT,
    STIFFNESS,
    foot_kinematics,
)
from mqe.scene import STEP_DT
from mqe.state import SceneState
from mqe.streams import Streams
from mqe.task import Disturbance, Layout, Outcome

SWING_HEIGHT = 0.07  # [m] clearance of a foot in the middle of its swing
TRUNK_HEIGHT = 0.28  # [m] wanted while walking and standing
MEAN_VELOCITY_TIME = 0.4  # [s] one trot cycle: what "the mean velocity" averages over
FALL_HEIGHT = 0.15  # [m] trunk below this has fallen
FALL_TILT_COS = 0.5  # cosine of the trunk's tilt below this has fallen
PRIVILEGED_SIZE = 3 + 3 + 1 + 4 + 3  # velocity, mean velocity and yaw rate, height, feet heights, pushing force

# Streams: one number a purpose.
_YAW, _JOINTS, _RESAMPLE, _COMMAND, _KIND, _KICK, _FORCE = range(100, 107)
_KEYS_AN_EPISODE = 1 << 13  # more control steps than any episode has


@dataclass(frozen=True)
class VelocityWeights:
    """Weights of the reward terms, per control step."""

    track_velocity: float = 1.5
    track_mean_velocity: float = 3.0
    track_yaw_rate: float = 0.5
    track_mean_yaw_rate: float = 1.5
    feet: float = 2.5
    alive: float = 0.5
    height: float = -20.0
    tilt: float = -4.0
    bounce: float = -1.0
    sway: float = -0.03
    slip: float = -0.1
    hips: float = -0.3
    stance: float = -0.5
    action_rate: float = -0.01
    torque: float = -2e-4
    fall: float = -5.0


@dataclass(frozen=True)
class VelocityCfg:
    """Commands, disturbances and rewards of the gait's training."""

    name: str = option("go1_velocity", choices=("go1_velocity",))
    episode_length_s: float = option(20.0, "time limit [s]", above=0.0, max=160.0)
    max_command: tuple[float, float, float] = option(
        (0.65, 0.65, 0.65), "largest |vx|, |vy| [m/s], |yaw rate|", min=0.0
    )
    standing_share: float = option(0.12, "share of commands that are zero", min=0.0, max=1.0)
    restless_share: float = option(
        0.15, "share of worlds whose command changes about five times a second", min=0.0, max=1.0
    )
    max_kick: float = option(0.7, "largest sudden change of the trunk's velocity [m/s]", min=0.0)
    max_force: float = option(25.0, "largest horizontal force that leans on the trunk for a while [N]", min=0.0)
    floor_friction: tuple[float, float] = option((0.48, 0.65), "range over worlds", above=0.0)
    weights: VelocityWeights = option(VelocityWeights)


class VelocityTask:
    """One agent, 12 joint actions, 50 Hz decisions."""

    num_agents = 1
    obs_sizes: tuple[int, ...] = (GAIT_OBS_SIZE,)
    action_sizes: tuple[int, ...] = (NUM_JOINTS,)
    state_size = GAIT_OBS_SIZE + PRIVILEGED_SIZE
    state_type = "EP"
    decision_period = 1

    def __init__(self, cfg: VelocityCfg, num_envs: int, device: torch.device, streams: Streams) -> None:
        """Train a gait in ``num_envs`` worlds."""
        self.cfg = cfg
        self.max_episode_length = round(cfg.episode_length_s / STEP_DT)
        self._streams = streams
        self._weights = cfg.weights.__dict__
        self._memory = GaitMemory(num_envs, 1, device)
        self._command = torch.zeros(num_envs, 1, 3, device=device)
        self._mean_velocity = torch.zeros(num_envs, 1, 3, device=device)  # vx, vy, yaw rate
        self._force = torch.zeros(num_envs, 1, 3, device=device)
        self._last_action = torch.zeros(num_envs, 1, NUM_JOINTS, device=device)
        self._episode = torch.zeros(num_envs, dtype=torch.int64, device=device)
        restless = streams.uniform(_RESAMPLE, torch.zeros_like(self._episode)) < cfg.restless_share
        self._resample_rate = torch.where(restless, 0.1, 0.005)
        self._max_command = torch.tensor(cfg.max_command, device=device)
        self._default = torch.tensor(DEFAULT_JOINT_POS, device=device)
        self._foot_offset = torch.tensor([0.0, 0.5, 0.5, 0.0], device=device)  # trot: FL with RR, FR with RL
        self._targets = torch.zeros(num_envs, 1, NUM_JOINTS, device=device)

    def layout(self, episode: Tensor) -> Layout:
        """Stand somewhere in the nominal pose, give or take, facing anywhere."""
        n = len(episode)
        yaw = self._streams.between(-torch.pi, torch.pi, _YAW, episode, (1,))
        joints = self._default * self._streams.between(0.8, 1.2, _JOINTS, episode, (1, NUM_JOINTS))
        zeros = yaw.new_zeros(n, 3)
        height = torch.full_like(yaw, STANDING_HEIGHT + 0.03)
        return Layout(
            robot_pos=torch.stack((torch.zeros_like(yaw), torch.zeros_like(yaw), height), dim=-1),
            robot_quat=quat_from_yaw(yaw), robot_vel=yaw.new_zeros(n, 1, 6), joint_pos=joints,
            object_pos=zeros, object_quat=quat_from_yaw(yaw[:, 0]), goal_pos=zeros,
        )  # fmt: skip

    def begin(self, mask: Tensor, state: SceneState) -> None:
        """Forget the old episodes of ``mask``."""
        self._episode += mask
        self._memory.begin(mask)
        self._mean_velocity.masked_fill_(mask.view(-1, 1, 1), 0.0)
        self._last_action.masked_fill_(mask.view(-1, 1, 1), 0.0)
        key = self._episode * _KEYS_AN_EPISODE
        self._draw_command(mask, key)

    def command(self, actions: Tensor) -> None:
        """Take joint actions (N, 1, 12)."""
        self._last_action.copy_(self._memory.action)
        self._targets = self._memory.act(actions, self._command)

    def targets(self, state: SceneState) -> Tensor:
        """Give the joint targets of the last action."""
        return self._targets

    def disturb(self, step: Tensor) -> Disturbance | None:
        """Kick the trunk about every two seconds, and lean on it for about one second in four."""
        key = self._episode * _KEYS_AN_EPISODE + step
        self._draw_command((self._streams.uniform(_RESAMPLE, key) < self._resample_rate) & (step > 0), key)
        kick = self._streams.uniform(_KICK, key, (3,))
        kicked = (kick[:, 0] < 0.01).view(-1, 1, 1)
        push = self._streams.uniform(_FORCE, key, (3,))
        changed = (push[:, 0] < 0.015).view(-1, 1, 1)
        strength = (push[:, 1] * 4.0 - 3.0).clamp(min=0.0) * self.cfg.max_force  # most of the time nothing
        self._force.copy_(torch.where(changed, _horizontal(push[:, 2], strength), self._force))
        velocity = torch.where(kicked, _horizontal(kick[:, 2], kick[:, 1] * self.cfg.max_kick), 0.0)
        return Disturbance(velocity, self._force)

    def evaluate(self, state: SceneState, prev: SceneState) -> Outcome:
        """Judge how well the command is followed, and how gracefully."""
        velocity, yaw_rate = heading_velocity(state), rotate(state.robot_quat, state.robot_angvel_b)[..., 2:]
        planar = torch.cat((velocity[..., :2], yaw_rate), dim=-1)
        self._mean_velocity += (planar - self._mean_velocity) * (STEP_DT / MEAN_VELOCITY_TIME)
        now, mean = (self._command - planar).square(), (self._command - self._mean_velocity).square()
        moving = is_moving(self._command)

        height, feet_height, feet_velocity = self._feet(state)
        cycle = (self._memory.phase.unsqueeze(-1) + self._foot_offset) % 1.0
        swing = torch.sin(2.0 * torch.pi * (cycle - 0.5)).clamp(min=0.0) * (cycle > 0.5) * moving.unsqueeze(-1)
        feet_error = (feet_height - FOOT_RADIUS - SWING_HEIGHT * swing).square()
        slip = (feet_velocity[..., :2].square().sum(dim=-1) * (swing <= 0.0)).sum(dim=-1)

        gravity, fallen = gravity_b(state.robot_quat), has_fallen(state)
        offset = state.joint_pos - self._default
        torque = STIFFNESS * (self._targets - state.joint_pos) - DAMPING * state.joint_vel
        terms = {
            "track_velocity": torch.exp(-now[..., :2].sum(dim=-1) / 0.15),
            "track_mean_velocity": torch.exp(-mean[..., :2].sum(dim=-1) / 0.004),
            "track_yaw_rate": torch.exp(-now[..., 2] / 0.15),
            "track_mean_yaw_rate": torch.exp(-mean[..., 2] / 0.005),
            "feet": torch.exp(-feet_error / 0.002).mean(dim=-1),
            "alive": torch.ones_like(height),
            "height": (height - TRUNK_HEIGHT).square(),
            "tilt": gravity[..., :2].square().sum(dim=-1),
            "bounce": velocity[..., 2].square(),
            "sway": state.robot_angvel_b[..., :2].square().sum(dim=-1),
            "slip": slip,
            "hips": offset[..., 0::3].square().sum(dim=-1),
            "stance": offset.square().sum(dim=-1) * ~moving,
            "action_rate": (self._memory.action - self._last_action).square().sum(dim=-1),
            "torque": torque.square().sum(dim=-1),
            "fall": fallen.float(),
        }
        rewards = {name: self._weights[name] * value for name, value in terms.items()}
        error = mean.sqrt()
        metrics = {"velocity_error": error[..., :2].amax(dim=-1)[:, 0], "yaw_rate_error": error[:, 0, 2]}
        return Outcome(rewards, {"fall": fallen[:, 0]}, metrics)

    def observe(self, state: SceneState) -> tuple[Tensor, Tensor]:
        """Give what the policy sees (N, 1, 47) and what the critic sees (N, 61)."""
        obs = self._memory.observe(self._command, state)
        height, feet_height, _ = self._feet(state)
        force_b = rotate_inverse(state.robot_quat, self._force) / max(self.cfg.max_force, 1.0)
        privileged = torch.cat(
            (heading_velocity(state), self._mean_velocity, height.unsqueeze(-1), feet_height, force_b), dim=-1
        )
        return obs, torch.cat((obs, privileged), dim=-1)[:, 0]

    def episode_metrics(self, sums: dict[str, Tensor], steps: Tensor, outcome: dict[str, Tensor]) -> dict[str, Tensor]:
        """Give falls, mean tracking errors and the episode's length [s]."""
        count = steps.clamp(min=1)
        return {
            "fall": outcome["fall"].float(),
            "velocity_error": sums["velocity_error"] / count,
            "yaw_rate_error": sums["yaw_rate_error"] / count,
            "episode_time_s": steps * STEP_DT,
        }

    def state_dict(self) -> dict[str, Any]:
        """Commands, forces, filters and the gait's memory."""
        names = ("_command", "_mean_velocity", "_force", "_last_action", "_episode")
        return {name: getattr(self, name).clone() for name in names} | {"memory": self._memory.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state_dict``."""
        for name in ("_command", "_mean_velocity", "_force", "_last_action", "_episode"):
            getattr(self, name).copy_(state[name])
        self._memory.load_state_dict(state["memory"])

    def _feet(self, state: SceneState) -> tuple[Tensor, Tensor, Tensor]:
        """Trunk height (N, 1), feet heights (N, 1, 4) [m] and world velocities (N, 1, 4, 3) [m/s]."""
        feet_b, rates_b = foot_kinematics(state.joint_pos, state.joint_vel)
        rates_b = rates_b + torch.linalg.cross(state.robot_angvel_b.unsqueeze(2).expand_as(feet_b), feet_b)
        quat = state.robot_quat.unsqueeze(2)
        velocity = rotate(quat, rates_b) + state.robot_linvel.unsqueeze(2)
        height = state.robot_pos[..., 2]
        return height, rotate(quat, feet_b)[..., 2] + height.unsqueeze(-1), velocity

    def _draw_command(self, mask: Tensor, key: Tensor) -> None:
        """Give the worlds of ``mask`` a new command; some stand, some move along one axis only."""
        command = (2.0 * self._streams.uniform(_COMMAND, key, (1, 3)) - 1.0) * self._max_command
        kind = self._streams.uniform(_KIND, key, (4,))
        single = (kind[:, :1] < 0.25) & (kind[:, 1:].argsort(dim=1) > 0)
        standing = 1.0 - kind[:, :1] < self.cfg.standing_share
        command = command.masked_fill((single | standing).unsqueeze(1), 0.0)
        self._command.copy_(torch.where(mask.view(-1, 1, 1), command, self._command))


def has_fallen(state: SceneState) -> Tensor:
    """(N, A) bool: the trunk is near the floor or tilted beyond 60 degrees."""
    return (state.robot_pos[..., 2] < FALL_HEIGHT) | (-gravity_b(state.robot_quat)[..., 2] < FALL_TILT_COS)


def _horizontal(turn: Tensor, length: Tensor) -> Tensor:
    """Give horizontal vectors (N, 1, 3) of a length (N,) in the direction ``turn`` (N,) in [0, 1)."""
    angle = 2.0 * torch.pi * turn
    flat = torch.stack((torch.cos(angle), torch.sin(angle), torch.zeros_like(angle)), dim=-1)
    return (flat * length.unsqueeze(-1)).unsqueeze(1)
