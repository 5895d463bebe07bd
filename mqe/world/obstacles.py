"""Obstacles for robots and objects."""

from dataclasses import dataclass

SHAPES = {"box": 3, "post": 2}  # and how many numbers a size has
OBSTACLE_FRICTION = 0.3  # of painted walls, with robots and with objects
PARKED_HEIGHT = -5.0  # [m] of the middle of an obstacle that is not in use: below the floor
# [m] An obstacle whose middle is lower than this is parked.
PARKED_BELOW = -1.0


@dataclass(frozen=True)
class ObstacleCfg:
    """Shape of an obstacle standing on the floor: a box (a wall, a cube) or a round post."""

    shape: str
    size: tuple[float, ...]  # [m] box: full x, y, height; post: radius, height

    def __post_init__(self) -> None:
        assert len(self.size) == SHAPES[self.shape]

    @property
    def height(self) -> float:
        """Return the height [m]."""
        return self.size[-1]

    @property
    def half_size(self) -> tuple[float, float]:
        """Return the half-extents along x and y [m]."""
        if self.shape == "post":
            return self.size[0], self.size[0]
        return self.size[0] / 2, self.size[1] / 2
