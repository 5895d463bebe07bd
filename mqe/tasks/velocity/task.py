"""Low level, task ``go1_velocity``: one robot learns a trot that follows velocity commands and
stands on zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mqe.config import ConfigError, check_values, option
from mqe.controllers.blocks import ActiveWorlds
from mqe.controllers.trot import (
    GAIT_OBS_SIZE,
    SWING_HEIGHT,
    GaitMemory,
    Trot,
    gait_noise_scale,
    is_moving,
    mirrored_gait,
    planar_velocity,
)
from mqe.tasks.task import Disturbance, Outcome
from mqe.tasks.velocity.random_events import RandomEvents
from mqe.tasks.velocity.starts import start_poses
from mqe.vec_env import MirrorImage, Planar
from mqe.world.collapse import CollapseTimers, rests_on_floor
from mqe.world.geometry import in_frame, length, quat_from_rpy, rotate_inverse
from mqe.world.layout import Layout
from mqe.world.robots import NUM_JOINTS, Robots
from mqe.world.scene import STEP_DT
from mqe.world.state import SceneState
from mqe.world.streams import Streams

MEAN_VELOCITY_TIME = 0.4  # [s] one trot cycle: what "the mean velocity" averages over
FALL_HEIGHT = 0.15  # [m] trunk below this has fallen
FALL_TILT_COS = 0.5  # cosine of the trunk's tilt below this has fallen
# Errors of speed [m/s] and turning [rad/s] that cost 63 % of their terms. Squared in the term of
# the moment, which may vary within a cycle; not in that of the mean, nor in a foot's height [m], so
# that small errors are worth mending.
TOLERANCE = 0.39
MEAN_TOLERANCE = 0.1
FEET_TOLERANCE = 0.025
# [m] a foot that is deeper in the floor than this costs: it landed hard, or carries too much.
SINK_DEPTH = 0.003
GET_UP_TIME = (
    2.0  # [s] at the start of an episode in which lying or kneeling does not count: some start so
)


@dataclass(frozen=True)
class VelocityWeights:
    """Weights of the reward terms, per control step."""

    track_velocity: float = option(
        1.5, "1 at the commanded velocity, falling with the squared error"
    )
    track_mean_velocity: float = option(
        4.0, "likewise, of the mean over a trot's cycle, falling with the error"
    )
    track_yaw_rate: float = option(
        0.5, "1 at the commanded yaw rate, falling with the squared error"
    )
    track_mean_yaw_rate: float = option(
        2.0, "likewise, of the mean over a trot's cycle, falling with the error"
    )
    feet: float = option(4.0, "1 where feet are as high as the trot's swing wants them")
    alive: float = option(0.5, "1 at every control step")
    height: float = option(-300.0, "squared distance of the trunk from its walking height [m2]")
    tilt: float = option(-20.0, "squared sines of roll and pitch")
    bounce: float = option(-1.0, "squared vertical speed [m2/s2]")
    sway: float = option(-0.03, "squared roll and pitch rates [rad2/s2]")
    slip: float = option(-0.35, "squared horizontal speeds of feet on the floor [m2/s2]")
    hips: float = option(-0.3, "squared distances of the hips from the stance [rad2]")
    placement: float = option(
        -100.0, "squared distances of front and rear feet ahead of or behind their place [m2]"
    )
    sink: float = option(-100.0, "how deep feet are in the floor beyond what a stance takes [m]")
    stance: float = option(
        -0.5, "squared distances of all joints from the stance while standing [rad2]"
    )
    rest: float = option(-1.0, "1 while a knee, thigh or trunk is on the floor")
    jerk: float = option(-0.005, "squared second differences of actions")
    action_rate: float = option(-0.015, "squared differences of actions")
    torque: float = option(-2e-4, "squared torques [N2 m2]")
    fall: float = option(-10.0, "1 at a fall or a collapse")


@dataclass(frozen=True)
class VelocityCfg:
    """Commands, disturbances and rewards of the gait's training."""

    name: str = option("go1_velocity", "which task", choices=("go1_velocity",))
    episode_length_s: float = option(20.0, "time limit [s]", min=STEP_DT, max=160.0)
    max_command: tuple[float, float, float] = option(
        (0.65, 0.65, 0.65), "largest |vx|, |vy| [m/s], |yaw rate|", min=0.0
    )
    standing_share: float = option(0.12, "share of commands that are zero", min=0.0, max=1.0)
    restless_share: float = option(
        0.15, "share of worlds whose command changes about five times a second", min=0.0, max=1.0
    )
    max_kick: float = option(1.2, "largest sudden change of the trunk's velocity [m/s]", min=0.0)
    max_force: float = option(
        25.0, "largest horizontal force that leans on the trunk for a while [N]", min=0.0
    )
    floor_friction: tuple[float, float] = option((0.48, 0.65), "range over worlds", above=0.0)
    weights: VelocityWeights = option(VelocityWeights, "of the reward terms")

    def __post_init__(self) -> None:
        check_values(VelocityCfg, vars(self), "task")
        low, high = self.floor_friction
        if low > high:
            raise ConfigError(
                f"task.floor_friction: [{low}, {high}] must be in ascending order; say [{high}, "
                f"{low}]"
            )


class VelocityTask:
    """One agent, a joint action for each of J joints, 50 Hz decisions."""

    num_agents = 1
    obs_sizes: tuple[int, ...] = (GAIT_OBS_SIZE,)
    action_sizes: tuple[int, ...] = (NUM_JOINTS,)
    state_type = "EP"
    decision_period = 1

    metric_names: tuple[str, ...] = ("velocity_error", "yaw_rate_error")
    episode_metric_names: tuple[str, ...] = ("fall", *metric_names, "episode_time_s")

    def __init__(self, cfg: VelocityCfg, num_envs: int, robots: Robots, streams: Streams) -> None:
        """Train a gait for the one robot of each of ``num_envs`` worlds."""
        device = robots.device
        self.cfg = cfg
        self._robots = robots
        self._trot = Trot(robots)
        self.max_episode_length = round(cfg.episode_length_s / STEP_DT)
        weights = asdict(cfg.weights)
        self.reward_names = tuple(weights)
        self.memory = torch.zeros(num_envs, _Memory.SIZE, device=device)
        self._memory = _Memory.of(self.memory)
        self._episode = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self._random_events = RandomEvents(cfg, streams, self._episode)
        self._first_command = torch.zeros(num_envs, 1, 3, device=device)
        self._targets = torch.zeros(num_envs, 1, NUM_JOINTS, device=device)
        self._action_change = torch.zeros_like(self._targets)
        self._action_jerk = torch.zeros_like(self._targets)
        self._collapse = CollapseTimers(
            torch.zeros(num_envs, 1, CollapseTimers.SIZE, device=device), robots
        )
        self._steered: Tensor | None = None
        self.mirror: MirrorImage | None = mirrored_gait(device)
        self.planar: Planar | None = None  # legs leave the plane
        self.noise_scale = gait_noise_scale(device)

        self._weights = torch.tensor(list(weights.values()), device=device).view(-1, 1, 1)
        self._nominal_feet = robots.feet(robots.joint_pos)[:, 0]  # (4,) [m] forward
        self._ones = torch.ones(num_envs, 1, device=device)
        self._zeros = torch.zeros_like(self._targets)
        self._poses = torch.cat(start_poses(robots), dim=1)
        self._pose_sizes = (3, 3, 6, NUM_JOINTS)
        self.state_size = self.observe(SceneState.zeros(1, 1, False, device), self.memory[:1])[
            1
        ].shape[-1]

    def layout(self, episode: Tensor) -> Layout:
        """Return starts that stand, drop or lie, with any heading."""
        pose, self._first_command = self._random_events.start(episode)
        drawn = self._poses[(pose * len(self._poses)).to(torch.int64)]
        turned, pos, velocity, joints = drawn.split(self._pose_sizes, dim=1)
        quat = quat_from_rpy(turned)
        nowhere = self._zeros[:, 0, :3]
        return Layout(
            robot_pos=pos.unsqueeze(1),
            robot_quat=quat.unsqueeze(1),
            robot_vel=velocity.unsqueeze(1),
            joint_pos=joints.unsqueeze(1),
            object_pos=nowhere,
            object_quat=quat,
            goal_pos=nowhere,
        )

    def begin(self, mask: Tensor) -> None:
        """Forget the old episodes of ``mask``."""
        self._episode += mask
        self._memory.passing.masked_fill_(mask.unsqueeze(1), 0.0)
        self._collapse.begin(mask, grace=GET_UP_TIME)
        _replace(self._memory.command, mask, self._first_command)
        self._apply_steering()

    def command(self, actions: Tensor) -> None:
        """Take joint actions (N, 1, J)."""
        gait = self._memory.gait
        self._action_change = actions - gait.action
        self._action_jerk = self._action_change - (gait.action - gait.older_action)
        self._targets = self._trot.act(gait, actions, is_moving(self._memory.command))

    def targets(self, state: SceneState) -> Tensor:
        """Return the joint targets of the last action."""
        return self._targets

    def disturb(self, step: Tensor) -> Disturbance | None:
        """Kick the trunk about every two seconds, and lean on it for about one second in four."""
        event = self._random_events.step(self._episode, step)
        _replace(self._memory.command, event.is_new_command & (step > 0), event.command)
        _replace(self._memory.force, event.is_new_force, event.force)
        self._apply_steering()
        kick = torch.where(event.is_kicked.view(-1, 1, 1), event.kick, self._zeros[..., :3])
        return Disturbance(kick, self._memory.force)

    def evaluate(self, state: SceneState, prev: SceneState) -> Outcome:
        """Compute rewards and endings: how well the command is followed, and in what posture."""
        memory = self._memory
        velocity = planar_velocity(state)
        memory.mean_velocity.lerp_(velocity, STEP_DT / MEAN_VELOCITY_TIME)
        # (N, 1, 2, 3).
        error = memory.command.unsqueeze(2) - torch.stack((velocity, memory.mean_velocity), dim=2)
        # (N, 1, now or mean, speed or turn).
        both = torch.stack((length(error[..., :2]), error[..., 2].abs()), dim=-1)
        tracking = torch.exp(
            -torch.stack(
                ((both[:, :, 0] / TOLERANCE).square(), both[:, :, 1] / MEAN_TOLERANCE), dim=2
            )
        )

        moving = is_moving(memory.command)
        feet_b, rates_b = self._robots.feet_and_rates(state.joint_pos, state.joint_vel)
        wanted = self._trot.swing(memory.gait.phase, moving)
        clearance = _above_floor(state, feet_b) - self._robots.foot_radius
        feet_error = (clearance - SWING_HEIGHT * wanted).abs()
        slip = _horizontal_velocity(state, feet_b, rates_b) * (wanted <= 0.0).unsqueeze(-1)

        self._collapse.update(state)
        fallen = (state.up_b[..., 2] < FALL_TILT_COS) | self._collapse.collapsed
        offset = state.joint_pos - self._robots.joint_pos
        torque = (
            self._robots.stiffness * (self._targets - state.joint_pos)
            - self._robots.damping * state.joint_vel
        )
        terms = self._square_sums(
            height=state.robot_pos[..., 2:] - self._robots.walking_height,
            tilt=state.up_b[..., :2],
            bounce=state.robot_linvel[..., 2:],
            sway=state.robot_angvel_b[..., :2],
            slip=slip.flatten(-2),
            hips=offset[..., 0::3],
            placement=pair_offset(feet_b[..., 0] - self._nominal_feet),
            stance=offset * ~moving.unsqueeze(-1),
            action_rate=self._action_change,
            jerk=self._action_jerk,
            torque=torque,
        )
        terms |= {
            "track_velocity": tracking[..., 0, 0],
            "track_mean_velocity": tracking[..., 1, 0],
            "track_yaw_rate": tracking[..., 0, 1],
            "track_mean_yaw_rate": tracking[..., 1, 1],
            "feet": torch.exp(-feet_error / FEET_TOLERANCE).mean(dim=-1),
            "alive": self._ones,
            "sink": excess_depth(clearance),
            "rest": rests_on_floor(state, self._robots).float(),
            "fall": fallen.float(),
        }
        rewards = self._weights * torch.stack([terms[name] for name in self.reward_names])
        missed = error[:, 0, 1].abs()
        metrics = torch.stack((missed[:, :2].amax(dim=1), missed[:, 2]), dim=1)
        return Outcome(rewards, fallen.t(), metrics)

    def observe(self, state: SceneState, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the policy sees (N, 1, 59) and what the critic sees (N, 73)."""
        known = _Memory.of(memory)
        obs = self._trot.observe(state, known.command, is_moving(known.command), known.gait)
        planar = in_frame(state.robot_linvel[..., :2], state.robot_frame)
        feet_height = _above_floor(state, self._robots.feet(state.joint_pos))
        force_b = rotate_inverse(state.robot_rotation, known.force) / max(self.cfg.max_force, 1.0)
        privileged = {
            "velocity": planar,
            "rise": state.robot_linvel[..., 2:],
            "mean_velocity": known.mean_velocity,
            "height": state.robot_pos[..., 2:],
            "feet_height": feet_height,
            "force": force_b,
        }
        return obs, torch.cat((obs, *privileged.values()), dim=-1)[:, 0]

    def episode_metrics(self, sums: Tensor, steps: Tensor, endings: Tensor) -> Tensor:
        """Return falls, mean tracking errors and the episode's length [s]."""
        return torch.cat(
            (
                endings.t().float(),
                sums / steps.clamp(min=1).unsqueeze(1),
                (steps * STEP_DT).unsqueeze(1),
            ),
            dim=1,
        )

    def use_blocks(self, worlds: ActiveWorlds) -> None:
        """Do nothing: the network is the learner's."""

    def state_dict(self) -> dict[str, Any]:
        """The episode's number, and what the task carries from step to step."""
        return {
            "episode": self._episode.clone(),
            "memory": self.memory.clone(),
            "collapse": self._collapse.values.clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a ``state_dict``."""
        self._episode.copy_(state["episode"])
        self.memory.copy_(state["memory"])
        self._collapse.values.copy_(state["collapse"])

    def steer(self, command: Sequence[float] | None) -> None:
        """Follow ``command``, vx, vy [m/s] and yaw rate [rad/s], instead of those drawn; None ends
        that.
        """
        if command is None:
            self._steered = None
        else:
            self._steered = torch.tensor(command, device=self.memory.device)

    def _apply_steering(self) -> None:
        if self._steered is not None:
            self._memory.command.copy_(self._steered.expand_as(self._memory.command))

    def _square_sums(self, **vectors: Tensor) -> dict[str, Tensor]:
        """Return the sum of squares (N, 1) of each of some vectors (N, 1, at most J), of all at
        once.
        """
        padded = []
        for vector in vectors.values():
            padded += [vector, self._zeros[..., vector.shape[-1] :]]
        sums = torch.cat(padded, dim=-1).unflatten(-1, (len(vectors), -1)).square().sum(dim=-1)
        return dict(zip(vectors, sums.unbind(dim=-1), strict=True))


class _Memory(NamedTuple):
    """The task's memory from one control step to the next, as views of one tensor."""

    SIZE = GaitMemory.SIZE + 9

    passing: Tensor  # (W, 28) what ends with an episode: the gait and the mean velocity
    gait: GaitMemory
    mean_velocity: Tensor  # (W, 1, 3) vx, vy [m/s], yaw rate [rad/s]
    command: Tensor  # (W, 1, 3)
    force: Tensor  # (W, 1, 3) [N] on the trunk

    @classmethod
    def of(cls, values: Tensor) -> _Memory:
        """Name the parts of ``values`` (W, 34)."""
        gait, mean_velocity, command, force = values.unsqueeze(1).split(
            (GaitMemory.SIZE, 3, 3, 3), dim=-1
        )
        return cls(
            values[:, : GaitMemory.SIZE + 3], GaitMemory(gait), mean_velocity, command, force
        )


def has_fallen(state: SceneState) -> Tensor:
    """(N, A) bool: the trunk is near the floor or tilted beyond 60 degrees."""
    return (state.robot_pos[..., 2] < FALL_HEIGHT) | (state.up_b[..., 2] < FALL_TILT_COS)


def pair_offset(feet: Tensor) -> Tensor:
    """Return the means (..., 2) of the front and of the rear feet, of four feet's offsets (..., 4).

    In a trot the feet of a pair swing against one another, so that their mean stays where the pair
    stands.
    """
    return feet.unflatten(-1, (2, 2)).mean(dim=-1)


def excess_depth(clearance: Tensor) -> Tensor:
    """Return by how much feet with these clearances (..., 4) [m] are too deep in the floor,
    summed, (...,) [m].
    """
    return (-SINK_DEPTH - clearance).clamp(min=0.0).sum(dim=-1)


def _above_floor(state: SceneState, points_b: Tensor) -> Tensor:
    """Return the heights (N, A, 4) [m] of four points (N, A, 4, 3) of each trunk frame."""
    return (state.up_b.unsqueeze(2) * points_b).sum(dim=-1) + state.robot_pos[..., 2:]


def _horizontal_velocity(state: SceneState, points_b: Tensor, rates_b: Tensor) -> Tensor:
    """Return the velocities (N, A, 4, 2) [m/s] of four points that move at ``rates_b`` in each
    trunk frame.
    """
    turning_b = torch.linalg.cross(state.robot_angvel_b.unsqueeze(2).expand_as(points_b), points_b)
    across = state.robot_rotation[..., :2, :].unsqueeze(2)
    moving = (across * (rates_b + turning_b).unsqueeze(-2)).sum(dim=-1)
    return moving + state.robot_linvel[..., :2].unsqueeze(2)


def _replace(old: Tensor, mask: Tensor, new: Tensor) -> None:
    """Overwrite ``old`` (N, 1, 3) with ``new`` where ``mask`` (N,)."""
    torch.where(mask.view(-1, 1, 1), new, old, out=old)
