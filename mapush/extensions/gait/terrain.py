"""Terrain in a gait's examination: kerbs with several heights, slopes with several angles."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mapush.extensions.gait.gait_worlds import BLOCK_SIZE, GaitWorlds, Walker
from mqe.world.geometry import quat_from_rpy
from mqe.world.scene import STEP_DT

NUM_ROBOTS = 8  # for each kerb and slope
KERBS = (0.02, 0.04, 0.06, 0.08, 0.10)  # [m]
SLOPES = (5.0, 10.0, 15.0, 20.0)  # [degrees]
SPEED = 0.5  # [m/s] commanded, ahead
START_DISTANCE = 1.0  # [m] from the trunk's centre to the edge
SETTLE_TIME = 0.5  # [s] standing after the drop
DURATION = 8.0  # [s]
PASSED = 1.0  # [m] behind the edge, where all feet are on the block
PASSING_SHARE = 0.9  # of the robots at a kerb or slope, for it to count as passable


@torch.no_grad()
def measure_terrain(
    walker: Walker,
    num_robots: int = NUM_ROBOTS,
    duration: float = DURATION,
) -> dict[str, float]:
    """Walk up kerbs and slopes, and return the highest and the steepest within reach."""
    num_places = len(KERBS) + len(SLOPES)
    pos, quat = blocks(KERBS, SLOPES)
    worlds = GaitWorlds(
        walker,
        num_places * num_robots,
        start=-START_DISTANCE,
        block=(
            pos.repeat_interleave(num_robots, dim=0),
            quat.repeat_interleave(num_robots, dim=0),
        ),
    )
    for step in range(round(duration / STEP_DT)):
        speed = SPEED if step * STEP_DT > SETTLE_TIME else 0.0
        worlds.advance(worlds.along_x(speed))
    worlds.close()

    has_passed = (worlds.state.robot_pos[:, 0, 0] > PASSED) & ~worlds.fallen
    share = has_passed.unflatten(0, (num_places, num_robots)).float().mean(dim=1).tolist()
    return {
        "kerb_max_m": largest_passed(KERBS, share[: len(KERBS)]),
        "slope_max_deg": largest_passed(SLOPES, share[len(KERBS) :]),
    }


def blocks(kerbs: Sequence[float], slopes: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Return positions (M, 3) [m] and orientations (M, 4) of M boxes with their near edge at x = 0.

    A box is level and as high as each kerb [m], then tilted by each slope [degrees] from the floor
    on.
    """
    length, _, height = BLOCK_SIZE
    rise = torch.tensor([*kerbs, *[0.0] * len(slopes)])
    angle = torch.deg2rad(torch.tensor([*[0.0] * len(kerbs), *slopes]))
    # From the near upper edge to the middle, in the block's frame, turned about y.
    along = 0.5 * length
    down = 0.5 * height
    x = along * angle.cos() + down * angle.sin()
    z = rise + along * angle.sin() - down * angle.cos()
    zero = torch.zeros_like(angle)
    quat = quat_from_rpy(torch.stack((zero, -angle, zero), dim=1))
    return torch.stack((x, zero, z), dim=1), quat


def largest_passed(sizes: Sequence[float], share: Sequence[float]) -> float:
    """Return the largest passed size before the first failed one, 0 if the first size fails.

    ``sizes`` ascend. ``share`` is the fraction of robots past each size. A size fails below
    ``PASSING_SHARE``.
    """
    largest = 0.0
    for size, passed in zip(sizes, share, strict=True):
        if passed < PASSING_SHARE:
            break
        largest = size
    return largest
