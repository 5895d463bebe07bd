"""The trot below learned gaits: observation, action and memory of a gait policy."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mqe.world.geometry import HALF_PI, TWO_PI, in_frame, on_circle
from mqe.world.robots import NUM_JOINTS, RobotCfg, Robots
from mqe.world.robots.robot import LEG_JOINTS, LEGS, NUM_LEGS
from mqe.world.robots.tensors import by_leg
from mqe.world.scene import STEP_DT
from mqe.world.state import SceneState

GAIT_FREQUENCY = 2.5  # [Hz] of a Go1: one trot cycle in 20 control steps
# [m/s, rad/s] Below this on every axis the clock stops, and the robot stands.
STANDING_COMMAND = 0.05
ACTION_SCALE = (0.35, 0.6, 0.8)  # [rad] hip, thigh, calf at action 1
SWING_HEIGHT = 0.08  # [m] clearance of a foot in the middle of its swing
# [rad] added to a swinging leg's targets at the top of its swing. Untrained policies already trot.
# A leg with two equal links folds straight up by an angle at the hip and twice that at the knee.
# With these soft motors the feet rise by 10 to 60 mm.
LIFT = (0.0, 0.45, -0.9)

FOOT_OFFSET = (0.0, 0.5, 0.5, 0.0)  # of the trot's cycle, of FL, FR, RL, RR


class GaitTerm(NamedTuple):
    """One term in a gait policy's observation."""

    name: str
    size: int
    scale: float = 1.0  # to about unit size
    # Exponents of ``RobotCfg.time_scale``, for every number or for each: a similar robot of another
    # size observes the same in a similar motion.
    times: tuple[int, ...] = (0,)


GAIT_TERMS = (
    GaitTerm("gravity", 3, scale=-1.0),  # observed as the direction against gravity
    GaitTerm("turn_rates", 3, scale=0.25, times=(1,)),
    GaitTerm("command", 3, scale=2.0, times=(-1, -1, 1)),
    GaitTerm("joint_pos", NUM_JOINTS),  # [rad] from the default pose
    GaitTerm("joint_vel", NUM_JOINTS, scale=0.05, times=(1,)),
    GaitTerm("last_action", NUM_JOINTS),
    GaitTerm("older_action", NUM_JOINTS),
    GaitTerm("clock", 2),
)
GAIT_OBS_SIZE = sum(term.size for term in GAIT_TERMS)
JOINTS = tuple(f"{leg}_{joint}" for leg in LEGS for joint in LEG_JOINTS)
_AXES = {"command": ("forward", "left", "turning_left"), "clock": ("sin", "cos")}


def _number_names(term: GaitTerm) -> list[str]:
    numbers = JOINTS if term.size == NUM_JOINTS else _AXES.get(term.name, ("x", "y", "z"))
    return [f"{term.name}_{number}" for number in numbers]


GAIT_NAMES = tuple(name for term in GAIT_TERMS for name in _number_names(term))


class GaitMemory:
    """A gait's memory between control steps: its clock and its last two actions."""

    SIZE = 1 + 2 * NUM_JOINTS  # numbers a robot

    def __init__(self, values: Tensor) -> None:
        """Store the memory in ``values`` (N, A, 25), all zeros at an episode's start."""
        self.values = values
        self.phase = values[..., 0]  # (N, A) of the trot's cycle, in [0, 1)
        # (N, A, 24) the last and the one before it: some may be on their way still.
        self.actions = values[..., 1:]
        self.action, self.older_action = self.actions.split(NUM_JOINTS, dim=-1)

    def begin(self, mask: Tensor) -> None:
        """Reset the memory in the worlds of ``mask`` (N,)."""
        self.values.masked_fill_(mask.view(-1, 1, 1), 0.0)


class Trot:
    """The interface between a gait policy and a team: observations, and joint targets around a
    trot.
    """

    def __init__(self, robots: Robots) -> None:
        """Trot with ``robots`` about their nominal stance."""
        device = robots.device
        self._joint_pos = robots.joint_pos
        offset = [  # (A, 59)
            [number for term in GAIT_TERMS for number in _offset(term, cfg.joint_pos)]
            for cfg in robots.cfgs
        ]
        scale = [gait_obs_scale(cfg) for cfg in robots.cfgs]
        # (59,) or (A, 59).
        self._obs_offset = torch.tensor(offset if robots.is_mixed else offset[0], device=device)
        self._obs_scale = torch.tensor(scale if robots.is_mixed else scale[0], device=device)
        advance = [clock_advance(cfg) for cfg in robots.cfgs]
        self._clock_advance = torch.tensor(advance, device=device)  # (A,)
        self._action_scale = torch.tensor(ACTION_SCALE * NUM_LEGS, device=device)  # (J,) [rad]
        self._quarter = torch.tensor(HALF_PI, device=device)  # [rad] of a turn
        self._lift = torch.tensor(LIFT, device=device)  # (3,) [rad]
        self._foot_offset = torch.tensor(FOOT_OFFSET, device=device)  # (4,)

    def act(self, memory: GaitMemory, action: Tensor, moving: Tensor) -> Tensor:
        """Apply the policy's action (N, A, J), clipped to [-1, 1], and advance the clock of
        ``moving`` robots.

        ``moving`` is (N, A) bool. Returns joint targets (N, A, J) [rad].
        """
        memory.older_action.copy_(memory.action)
        torch.clamp(action, -1.0, 1.0, out=memory.action)
        memory.phase.add_(self._clock_advance).remainder_(1.0).mul_(moving)
        trot = torch.addcmul(self._joint_pos, self._action_scale, memory.action)
        return torch.addcmul(
            by_leg(trot), self.swing(memory.phase, moving).unsqueeze(-1), self._lift
        ).flatten(-2)

    def observe(
        self, state: SceneState, command: Tensor, moving: Tensor, memory: GaitMemory
    ) -> Tensor:
        """Return the observation (N, A, 59): gravity, turn rates, command, joints, last two
        actions, clock.

        The clock is the sine and cosine of its angle, 0 and 0 while the robot stands.
        """
        # (sin a, cos a) is the point at angle pi / 2 - a on the circle.
        clock = on_circle(moving.float(), torch.sub(self._quarter, memory.phase, alpha=TWO_PI))
        parts = {
            "gravity": state.against_gravity_b,
            "turn_rates": state.robot_angvel_b,
            "command": command,
            "joint_pos": state.joint_pos,
            "joint_vel": state.joint_vel,
            "last_action": memory.action,
            "older_action": memory.older_action,
            "clock": clock,
        }
        joined = torch.cat([parts[term.name] for term in GAIT_TERMS], dim=-1)
        return torch.addcmul(self._obs_offset, joined, self._obs_scale)

    def swing(self, phase: Tensor, moving: Tensor) -> Tensor:
        """Return each foot's height in its swing (N, A, 4), relative to the top: 0 on the floor, 1
        at the top.

        FL swings with RR.
        """
        cycle = torch.remainder(phase.unsqueeze(-1) + self._foot_offset, 1.0)
        # The cycle's second half.
        return torch.sin(TWO_PI * (cycle - 0.5).clamp(min=0.0)) * moving.unsqueeze(-1)


def planar_velocity(state: SceneState) -> Tensor:
    """Return the robots' velocities (N, A, 3) in a command's units: vx, vy [m/s] in the heading
    frame, yaw rate [rad/s].
    """
    planar = in_frame(state.robot_linvel[..., :2], state.robot_frame)
    return torch.cat((planar, state.yaw_rate.unsqueeze(-1)), dim=-1)


def is_moving(command: Tensor) -> Tensor:
    """Return whether each command (..., 3) requires walking rather than standing, (...,) bool."""
    return command.abs().amax(dim=-1) > STANDING_COMMAND


def gait_obs_scale(robot: RobotCfg) -> list[float]:
    """Return the scale (59,) for a robot's gait observation."""
    scale = []
    for term in GAIT_TERMS:
        times = term.times * (term.size // len(term.times))
        scale += [term.scale * robot.time_scale**exponent for exponent in times]
    return scale


def clock_advance(robot: RobotCfg) -> float:
    """Return the fraction of a trot cycle in one control step."""
    return GAIT_FREQUENCY * STEP_DT / robot.time_scale


def _offset(term: GaitTerm, joint_pos: Sequence[float]) -> Sequence[float]:
    """Return a term's offset: joint angles are relative to the default pose [rad]."""
    if term.name == "joint_pos":
        return [-angle for angle in joint_pos]
    return [0.0] * term.size
