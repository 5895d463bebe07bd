"""A world's robots as tensors: constants on one device, and leg kinematics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mqe.world.robots.robot import LEG_JOINTS, NUM_LEGS, RobotCfg

TOUCH = 0.004  # [m] a knee or trunk as near to the floor as this rests on it


class Robots:
    """A team's constants, (A, ...) each, or without the A if all robots are of one kind.

    Joints are (..., A, J), or (..., J) for any number of poses of one kind.
    """

    def __init__(
        self,
        cfgs: Sequence[RobotCfg],
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Store the constants of ``cfgs``, one per robot."""
        self.cfgs = tuple(cfgs)
        self.device = torch.device(device)
        self._dtype = dtype
        self.is_mixed = len({cfg.name for cfg in cfgs}) > 1
        self.joint_pos = self._tensor([cfg.joint_pos for cfg in cfgs])  # (J,) [rad] nominal stance
        self.stiffness = self._tensor([cfg.stiffness for cfg in cfgs], 1)  # [N m/rad]
        self.damping = self._tensor([cfg.damping for cfg in cfgs], 1)  # [N m s/rad]
        self.low_height = self._tensor([cfg.low_height for cfg in cfgs])  # [m]
        self.walking_height = self._tensor([cfg.walking_height for cfg in cfgs], 1)  # [m]
        self.foot_radius = self._tensor([cfg.foot_radius for cfg in cfgs], 1)  # [m]
        # (4, 3) [m].
        self._hips = self._tensor([[(*leg.hip_pos, 0.0) for leg in cfg.legs] for cfg in cfgs])
        self._sides = self._tensor([[leg.side for leg in cfg.legs] for cfg in cfgs])  # (4,) [m]
        self._down = self._tensor([-cfg.link_length for cfg in cfgs], 1)  # [m] along a leg's links
        self._down_both = self._tensor([-cfg.link_length for cfg in cfgs], 2)
        # What the trunk is made of, (3, G) or (G,): half sizes of boxes, centres, radii of spheres.
        num_shapes = max(len(cfg.trunk_shapes) for cfg in cfgs)
        # The first ones again where others have more.
        shapes = [(cfg.trunk_shapes * num_shapes)[:num_shapes] for cfg in cfgs]
        sizes = [
            [shape.size if shape.type == "box" else (0.0,) * 3 for shape in row] for row in shapes
        ]
        radii = [[0.0 if shape.type == "box" else shape.size[0] for shape in row] for row in shapes]
        self._half_sizes = self._tensor(sizes).transpose(-1, -2).contiguous()
        self._centers = (
            self._tensor([[shape.pos for shape in row] for row in shapes])
            .transpose(-1, -2)
            .contiguous()
        )
        # Knee and trunk shapes, (1 + G,): what is round about them [m], and that much and what
        # counts as touching.
        rounds = [[cfg.knee_radius, *row] for cfg, row in zip(cfgs, radii, strict=True)]
        self._rounds = self._tensor(rounds)
        self._margins = self._tensor([[radius + TOUCH for radius in row] for row in rounds])

    def __len__(self) -> int:
        """Return the number of robots A."""
        return len(self.cfgs)

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
        sink_rate, forward_rate = (legs.trig * rate).sum(dim=-1).mul(self._down_both).unbind(dim=-1)
        lateral_rate = torch.addcmul(sink_rate * legs.sin_hip, legs.vertical, hip_rate, value=-1.0)
        vertical_rate = torch.addcmul(legs.lateral * hip_rate, sink_rate, legs.cos_hip, value=-1.0)
        return legs.feet, torch.stack((forward_rate, lateral_rate, vertical_rate), dim=-1)

    def knees(self, joint_pos: Tensor) -> Tensor:
        """Return knee joint centres (..., 4, 3) [m] in the trunk frame from joints (..., J)."""
        joints = by_leg(joint_pos)
        hip = joints[..., 0]
        thigh = joints[..., 1]
        up = torch.cos(thigh).mul(self._down)
        lateral, vertical = self._turn_hip(torch.sin(hip), torch.cos(hip), up)
        return (
            torch.stack((torch.sin(thigh).mul(self._down), lateral, vertical), dim=-1) + self._hips
        )

    def rests_on_floor(self, up_b: Tensor, height: Tensor, joint_pos: Tensor) -> Tensor:
        """Return whether a knee, thigh or trunk touches the floor, (...) bool.

        ``up_b`` (..., 3) is the upward vertical in the trunk frame, ``height`` (...) [m] the trunk
        origin's.
        """
        return self._lowest(up_b, joint_pos, self._margins) + height < 0.0

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

    def _lowest(self, up_b: Tensor, joint_pos: Tensor, margins: Tensor) -> Tensor:
        """Return the lowest height (...) [m] among knees and trunk, each less its margin (1 + G,)
        [m].

        G are the trunk's shapes.
        """
        knees = (self.knees(joint_pos) * up_b.unsqueeze(-2)).sum(dim=-1).amin(dim=-1, keepdim=True)
        # A robot's own matrix each, or one for all.
        row = up_b.unsqueeze(-2) if self.is_mixed else up_b
        trunk = torch.matmul(row, self._centers) - torch.matmul(row.abs(), self._half_sizes)
        points = torch.cat((knees, trunk.view(*knees.shape[:-1], -1)), dim=-1)
        return (points - margins).amin(dim=-1)

    def _bend(self, joint_pos: Tensor) -> _Legs:
        """Return the legs at joints (..., J) [rad]."""
        joints = by_leg(joint_pos)
        hip = joints[..., 0]
        angle = joints[..., 1:].cumsum(dim=-1)
        trig = torch.stack((torch.sin(angle), torch.cos(angle)), dim=-2)
        # From the thigh's joint in the leg's own plane, which the hip then turns about x.
        forward, up = trig.sum(dim=-1).mul(self._down_both).unbind(dim=-1)
        sin = torch.sin(hip)
        cos = torch.cos(hip)
        lateral, vertical = self._turn_hip(sin, cos, up)
        feet = torch.stack((forward, lateral, vertical), dim=-1) + self._hips
        return _Legs(trig, sin, cos, lateral, vertical, feet)

    def _turn_hip(self, sin: Tensor, cos: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
        """Return the leftward and upward coordinates (..., 4) of points at height ``up`` in a leg's
        plane after the hip's rotation.
        """
        return torch.addcmul(self._sides * cos, up, sin, value=-1.0), torch.addcmul(
            self._sides * sin, up, cos
        )

    def _tensor(self, values: list[Any], num_trailing: int = 0) -> Tensor:
        """Return one row per robot, or a single row for one kind, with trailing dimensions of size
        one.
        """
        rows = torch.tensor(values, dtype=self._dtype, device=self.device)
        return rows.view(*rows.shape, *[1] * num_trailing) if self.is_mixed else rows[0]


class _Legs(NamedTuple):
    """Four legs in one pose, each (..., 4) and relative to its hip unless said otherwise."""

    trig: Tensor  # (..., 4, 2, 2) sines, then cosines, of thigh and calf against the trunk
    sin_hip: Tensor
    cos_hip: Tensor
    lateral: Tensor  # [m] the foot to the left
    vertical: Tensor  # [m] the foot upwards
    feet: Tensor  # (..., 4, 3) [m] trunk frame


def by_leg(joints: Tensor) -> Tensor:
    """Return joints (..., J) as (..., 4, 3): legs by hip, thigh and calf."""
    return joints.unflatten(-1, (NUM_LEGS, len(LEG_JOINTS)))
