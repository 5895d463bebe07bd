"""Metrics of a recorded walk, as pure functions."""

from typing import NamedTuple

import torch
from torch import Tensor

from mapush.extensions.gait.features import above_floor, horizontal_velocity
from mapush.extensions.gait.leg_motion import WalkingRobots
from mqe.world.robots.tensors import by_leg
from mqe.world.state import SceneState

SLIP_SPEED = 0.1  # [m/s] a foot in contact slips if it is faster than this
# [s] A shorter time off the floor is a bounce, not a swing; a trot's swing takes about 0.2 s.
MIN_SWING_TIME = 0.06


class FootMotion(NamedTuple):
    """Heights and horizontal speeds of the feet's lowest points."""

    # (N, A, 4) [m] above the floor; a negative value is the depth of a foot in contact.
    clearance: Tensor
    # (N, A, 4) [m/s] horizontal; the lowest point of a rolling foot is at rest.
    speed: Tensor


def foot_motion(state: SceneState, robots: WalkingRobots) -> FootMotion:
    """Compute clearance and horizontal speed of every foot's lowest point by forward kinematics."""
    feet_b, rates_b = robots.feet_and_rates(state.joint_pos, state.joint_vel)
    up_b = state.up_b.unsqueeze(-2)
    joints = by_leg(state.joint_pos)
    rates = by_leg(state.joint_vel)
    hip = joints[..., 0]
    bend_rate = rates[..., 1] + rates[..., 2]
    # The calf turns about the trunk's x axis, and about the hip's y axis.
    turning_b = torch.stack(
        (rates[..., 0], bend_rate * torch.cos(hip), bend_rate * torch.sin(hip)), dim=-1
    )
    to_lowest_b = (-robots.foot_radius * up_b).expand_as(feet_b)
    lowest_b = feet_b + to_lowest_b
    turning = torch.linalg.cross(turning_b, to_lowest_b)
    speed = horizontal_velocity(state, lowest_b, rates_b + turning).norm(dim=-1)
    return FootMotion(above_floor(state, lowest_b), speed)


def swing_clearance(clearance: Tensor, dt: float) -> Tensor:
    """Return the mean peak height in a foot's swings (...) [m], from heights (T, ...).

    The heights are ``dt`` [s] apart. A swing begins and ends with a contact and takes at least
    ``MIN_SWING_TIME``. A foot without a swing has 0.
    """
    shortest = MIN_SWING_TIME / dt - 0.5  # steps
    peak = torch.zeros_like(clearance[0])  # of the current swing
    steps = torch.zeros_like(peak)  # since the last contact
    total = torch.zeros_like(peak)  # of the peaks of all swings
    count = torch.zeros_like(peak)  # of swings
    has_touched = torch.zeros_like(peak, dtype=torch.bool)
    for height in clearance:
        is_contact = height <= 0.0
        is_landing = is_contact & has_touched & (steps > shortest)
        total += torch.where(is_landing, peak, 0.0)
        count += is_landing
        has_touched |= is_contact
        steps = torch.where(is_contact, 0.0, steps + 1.0)
        peak = torch.where(is_contact, 0.0, torch.maximum(peak, height))
    return total / count.clamp(min=1.0)


def slip_share(clearance: Tensor, speed: Tensor) -> float:
    """Return the fraction of contact time with a foot faster than ``SLIP_SPEED`` [m/s]."""
    is_contact = clearance <= 0.0
    return float((is_contact & (speed > SLIP_SPEED)).sum() / is_contact.sum().clamp(min=1))
