"""The motion of a robot's feet in its trunk frame."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mqe.world.robots import Robots
from mqe.world.robots.tensors import by_leg


class WalkingRobots(Robots):
    """Robots of one kind, with the kinematics of their feet."""

    @property
    def size(self) -> float:
        """Length of the legs relative to the Go1's."""
        return self.cfgs[0].size

    @property
    def foot_radius(self) -> float:
        """Radius of the feet [m]."""
        return self.cfgs[0].foot_radius

    def feet(self, joint_pos: Tensor) -> Tensor:
        """Return foot centres (..., 4, 3) [m] in the trunk frame from joints (..., J)."""
        return self._bend(joint_pos).feet

    def feet_and_rates(self, joint_pos: Tensor, joint_vel: Tensor) -> tuple[Tensor, Tensor]:
        """Return foot centres [m] and velocities [m/s] in the trunk frame, (..., 4, 3) each, from
        joints (..., J).
        """
        legs = self._bend(joint_pos)
        rates = by_leg(joint_vel)
        hip_rate = rates[..., 0]
        rate = rates[..., 1:].cumsum(dim=-1).unsqueeze(-2)
        sink_rate, forward_rate = (
            (legs.trig * rate).sum(dim=-1).mul(-self.cfgs[0].link_lengths[1]).unbind(dim=-1)
        )
        lateral_rate = torch.addcmul(sink_rate * legs.sin_hip, legs.vertical, hip_rate, value=-1.0)
        vertical_rate = torch.addcmul(legs.lateral * hip_rate, sink_rate, legs.cos_hip, value=-1.0)
        return legs.feet, torch.stack((forward_rate, lateral_rate, vertical_rate), dim=-1)

    def lowest(self, up_b: Tensor, joint_pos: Tensor) -> Tensor:
        """Return the height (...) [m] of a robot's lowest point relative to its trunk's origin, a
        negative number.
        """
        feet = (self.feet(joint_pos) * up_b.unsqueeze(-2)).sum(dim=-1) - self.foot_radius
        return torch.minimum(feet.amin(dim=-1), self._lowest(up_b, joint_pos, self._rounds))

    def trunk_reach(self, direction_b: Tensor) -> Tensor:
        """Return a trunk's extent (...) [m] from its origin along unit vectors (..., 3) in its
        frame.
        """
        boxes = torch.matmul(direction_b, self._centers) + torch.matmul(
            direction_b.abs(), self._half_sizes
        )
        return (boxes + self._rounds[..., 1:]).amax(dim=-1)

    def _bend(self, joint_pos: Tensor) -> _Legs:
        """Return the legs at joints (..., J) [rad]."""
        joints = by_leg(joint_pos)
        hip = joints[..., 0]
        angle = joints[..., 1:].cumsum(dim=-1)
        trig = torch.stack((torch.sin(angle), torch.cos(angle)), dim=-2) * self.link_shares
        # From the thigh's joint in the leg's own plane, which the hip then turns about x.
        forward, up = trig.sum(dim=-1).mul(-self.cfgs[0].link_lengths[1]).unbind(dim=-1)
        sin = torch.sin(hip)
        cos = torch.cos(hip)
        lateral, vertical = self._turn_hip(sin, cos, up)
        feet = torch.stack((forward, lateral, vertical), dim=-1) + self._hips
        return _Legs(trig, sin, cos, lateral, vertical, feet)


class _Legs(NamedTuple):
    """Four legs in one pose, each (..., 4) and relative to its hip unless said otherwise."""

    # (..., 4, 2, 2) sines, then cosines, of thigh and calf against the trunk, times their lengths
    # over the calf's
    trig: Tensor
    sin_hip: Tensor
    cos_hip: Tensor
    lateral: Tensor  # [m] the foot to the left
    vertical: Tensor  # [m] the foot upwards
    feet: Tensor  # (..., 4, 3) [m] trunk frame
