"""A world's robots as tensors: constants on one device, knees, contact with the floor."""

from collections.abc import Sequence
from typing import Any

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
        # A robot on wheels has its knees at its trunk's origin.
        hips = [
            [(*leg.hip_pos, 0.0) for leg in cfg.legs] or [(0.0,) * 3] * NUM_LEGS for cfg in cfgs
        ]
        sides = [[leg.side for leg in cfg.legs] or [0.0] * NUM_LEGS for cfg in cfgs]
        self._hips = self._tensor(hips)  # (4, 3) [m]
        self._sides = self._tensor(sides)  # (4,) [m]
        lengths = [cfg.link_lengths for cfg in cfgs]
        # (2,) thigh and calf, over the calf's length
        self.link_shares = self._tensor([(thigh / calf, 1.0) for thigh, calf in lengths])
        self._down = self._tensor([-thigh for thigh, _ in lengths], 1)  # [m] along a thigh
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
        # Radii [m] of the knee and the trunk's shapes, (1 + G,), and with the margin of a touch
        rounds = [[cfg.knee_radius, *row] for cfg, row in zip(cfgs, radii, strict=True)]
        self._rounds = self._tensor(rounds)
        self._margins = self._tensor([[radius + TOUCH for radius in row] for row in rounds])

    def __len__(self) -> int:
        """Return the number of robots A."""
        return len(self.cfgs)

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


def by_leg(joints: Tensor) -> Tensor:
    """Return joints (..., J) as (..., 4, 3): legs by hip, thigh and calf."""
    return joints.unflatten(-1, (NUM_LEGS, len(LEG_JOINTS)))
