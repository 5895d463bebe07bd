"""Visual shapes of robots, from files."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from mqe.config import load_yaml
from mqe.world.robots.robot import LEG_JOINTS, LEGS, Vector


class Look(NamedTuple):
    """A visual-only shape. Such shapes replace a link's collision primitives in films and
    viewers.
    """

    type: str  # "box", "sphere", "capsule", "cylinder" or "hull"
    # [m] as a Shape's; cylinder: radius, half length; hull: none, it has points.
    size: tuple[float, ...] = ()
    pos: Vector = (0.0, 0.0, 0.0)  # [m] in the link's frame
    axis: str = "z"  # along which a capsule or cylinder lies: "x", "y" or "z"
    color: str = "dark"  # "team", the robot's own, or a name of mqe.viewer.looks.COLORS
    points: tuple[Vector, ...] = ()  # [m] a hull's corners, in the link's frame


def read_looks(file: str) -> dict[str, list[Look]]:
    """Return a robot's visual shapes by link, from ``file`` in ``mqe/assets/looks``.

    The file has the trunk's shapes and a left leg's.
    """
    links = load_yaml(str(files("mqe") / "assets" / "looks" / f"{file}.yaml"))
    shapes = {link: [_read_look(**entry) for entry in entries] for link, entries in links.items()}
    looks = {"trunk": shapes["trunk"]}
    for leg in LEGS:
        left = 1 if leg.endswith("L") else -1
        for joint in LEG_JOINTS:
            looks[f"{leg}_{joint}"] = [_mirrored(look, left) for look in shapes[joint]]
    return looks


def _read_look(
    type: str,
    size: Sequence[float] = (),
    pos: Vector = (0.0, 0.0, 0.0),
    beam: Sequence[Sequence[float]] = (),
    post: Sequence[Sequence[float]] = (),
    y: float = 0.0,
    **parts: Any,
) -> Look:
    """Return one visual shape. A hull has sections of a beam along x, or of a post along z at ``y``
    [m].
    """
    points = [point for section in beam for point in _beam_corners(*section)]
    points += [point for section in post for point in _post_corners(y, *section)]
    return Look(type, tuple(size), (pos[0], pos[1], pos[2]), points=tuple(points), **parts)


def _mirrored(look: Look, left: int) -> Look:
    """Return a left leg's visual shape on the side ``left`` (+1 or -1)."""
    x, y, z = look.pos
    points = tuple((x, y * left, z) for x, y, z in look.points)
    return look._replace(pos=(x, y * left, z), points=points)


def _beam_corners(x: float, half: float, low: float, high: float, bevel: float) -> list[Vector]:
    """Return a section's corners [m] from its half-width, bottom, top and bevel."""
    corners = []
    for side in (1.0, -1.0):
        for y, z in (
            (half, low + bevel),
            (half, high - bevel),
            (half - bevel, low),
            (half - bevel, high),
        ):
            corners.append((x, side * y, z))
    return corners


def _post_corners(
    y: float, z: float, x: float, half_length: float, half_width: float
) -> list[Vector]:
    """Return a section's corners [m] from its centre and half-extents."""
    corners = []
    for along, across in ((1.0, 0.5), (0.7, 1.0), (-0.7, 1.0), (-1.0, 0.5)):
        for side in (1.0, -1.0):
            corners.append((x + along * half_length, y + side * across * half_width, z))
    return corners
