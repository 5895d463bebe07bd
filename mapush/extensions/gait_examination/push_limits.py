"""One robot's push limits: its force on a wall, and a heavy box's speed, both ways."""

from __future__ import annotations

import math

import torch

from mapush.extensions.gait_examination.gait_worlds import GaitWorlds, PhysicsStep, Walker
from mqe.world.objects import CUBOID
from mqe.world.scene import STEP_DT

NUM_ROBOTS = 8  # for each object and direction
SPEED = 0.5  # [m/s] commanded
START_DISTANCE = 1.0  # [m] between the centres of robot and object
SETTLE_TIME = 0.5  # [s] standing after the drop
DURATION = 7.0  # [s]
MEASURED = 3.0  # [s] at the end
WALL_MASS = 2_000.0  # [kg] of a box that friction holds against any robot
BOX_MASS = 12.0  # [kg]; sliding takes 38 N
IN_CONTACT = 1e-3  # [N]


def measure_push_limits(
    walker: Walker,
    num_robots: int = NUM_ROBOTS,
    duration: float = DURATION,
) -> dict[str, int | float]:
    """Walk into a wall and into a 12 kg box, forward and backward, and measure force and speed."""
    metrics: dict[str, int | float] = {}
    falls = 0
    for way, direction in (("ahead", 1.0), ("back", -1.0)):
        for name, mass in (("wall", WALL_MASS), ("box", BOX_MASS)):
            run = _Pushing(
                GaitWorlds(
                    walker,
                    num_robots,
                    obj=CUBOID.with_mass(mass),
                    start=(-START_DISTANCE, 0.0 if direction > 0.0 else math.pi),
                ),
                direction,
            )
            run.walk(duration)
            falls += int(run.worlds.fallen.sum())
            if name == "wall":
                metrics[f"push_{way}_n"] = run.force
                metrics[f"push_{way}_contact_share"] = run.contact_share
            else:
                metrics[f"push_{way}_12kg_speed"] = run.object_speed
    metrics["push_falls"] = falls
    return metrics


class _Pushing:
    """Robots on a walk along x, into the object at the origin."""

    def __init__(self, worlds: GaitWorlds, direction: float) -> None:
        self.worlds = worlds
        self._direction = direction
        self._force = torch.zeros(worlds.num_envs, device=worlds.device)  # [N] summed
        self._contact = torch.zeros_like(self._force)  # physics steps
        self._num_steps = 0
        self.object_speed = 0.0  # [m/s] along x

    @property
    def force(self) -> float:
        """Mean force [N] on the object along x."""
        return float(self._force.mean()) / self._num_steps

    @property
    def contact_share(self) -> float:
        """Fraction of physics steps with contact between robot and object."""
        return float(self._contact.mean()) / self._num_steps

    def walk(self, duration: float) -> None:
        """Walk for ``duration`` [s], and measure at the end."""
        num_steps = round(duration / STEP_DT)
        begin = num_steps - round(MEASURED / STEP_DT)
        start = self.worlds.state.object_pos[:, 0]
        for step in range(num_steps):
            if step == begin:
                start = self.worlds.state.object_pos[:, 0]
            see = self._see if step >= begin else None
            speed = SPEED if step * STEP_DT > SETTLE_TIME else 0.0
            self.worlds.advance(self.worlds.along_x(speed, self._direction), see)
        moved = self.worlds.state.object_pos[:, 0] - start
        self.object_speed = float(moved.mean()) / MEASURED
        self.worlds.close()

    def _see(self, step: PhysicsStep) -> None:
        force = step.state.contact_force[:, 0]
        self._force += force[:, 0]
        self._contact += force.norm(dim=1) > IN_CONTACT
        self._num_steps += 1
