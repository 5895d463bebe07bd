"""One robot's push limits: its force on a wall, and a heavy box's speed."""

from __future__ import annotations

import torch

from mapush.extensions.gait.gait_worlds import GaitWorlds, Walker
from mqe.world.objects import OBJECTS
from mqe.world.scene import STEP_DT
from mqe.world.state import SceneState

NUM_ROBOTS = 8  # for each object
SPEED = 0.5  # [m/s] commanded
START = -1.0  # [m] of the robot's centre along x; the object's is 0
SETTLE_TIME = 0.5  # [s] standing after the drop
DURATION = 7.0  # [s]
MEASURED = 3.0  # [s] at the end
WALL_MASS = 2_000.0  # [kg] of a box that friction holds against any robot
BOX_MASS = 12.0  # [kg]; sliding takes 38 N


@torch.no_grad()
def measure_push_limits(
    walker: Walker,
    num_robots: int = NUM_ROBOTS,
    duration: float = DURATION,
) -> dict[str, int | float]:
    """Walk into a wall and into a 12 kg box, and measure force and speed."""
    num_steps = round(duration / STEP_DT)
    begin = num_steps - round(MEASURED / STEP_DT)
    metrics: dict[str, int | float] = {}
    falls = 0
    for name, mass in (("wall", WALL_MASS), ("box", BOX_MASS)):
        worlds = GaitWorlds(walker, num_robots, obj=OBJECTS["cuboid"].with_mass(mass), start=START)
        forces = []

        def watch(state: SceneState, forces: list[float] = forces) -> None:
            forces.append(float(state.contact_force[:, 0, 0].mean()))

        place = worlds.state.object_pos[:, 0]
        for step in range(num_steps):
            if step == begin:
                place = worlds.state.object_pos[:, 0]
            speed = SPEED if step * STEP_DT > SETTLE_TIME else 0.0
            worlds.advance(worlds.along_x(speed), watch if step >= begin else None)
        moved = worlds.state.object_pos[:, 0] - place
        worlds.close()
        falls += int(worlds.fallen.sum())
        if name == "wall":
            metrics["push_ahead_n"] = sum(forces) / len(forces)
        else:
            metrics["push_ahead_12kg_speed"] = float(moved.mean()) / MEASURED
    metrics["push_falls"] = falls
    return metrics
