"""Maps of the navigation task: an arena with obstacles, where the object starts and where it goes.

Maps come from a family (a seeded generator) or from a file (``map_files.py``). All maps of a run
are known before it starts; every episode takes the next one.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mqe.config import ConfigError
from mqe.extensions import Registry
from mqe.world.obstacles import PARKED_BELOW, PARKED_HEIGHT, ObstacleCfg
from mqe.world.scene import ARENA_HALF_SIZE

HEIGHT = 0.6  # [m] of obstacles
CUBE = ObstacleCfg("box", (1.0, 1.0, HEIGHT))
POST = ObstacleCfg("post", (0.15, HEIGHT))
THICKNESS = 0.2  # [m] of walls
ROBOT_ROOM = 0.6  # [m] beyond the object that a robot needs where it pushes
MOST_OBSTACLES = 64  # in one map
_TRIES = 2000  # draws of a map before the generator gives up
_ARENA_MIN = 3.0  # [m]
_ROUNDING = 1e-6  # [m]


class Placed(NamedTuple):
    """An obstacle and its pose."""

    cfg: ObstacleCfg
    x: float  # [m]
    y: float  # [m]
    yaw: float = 0.0  # [rad]


@dataclass(frozen=True)
class ArenaMap:
    """One map; lengths in metres, the arena's middle is the origin."""

    arena: tuple[float, float]
    start: tuple[float, float]
    goal: tuple[float, float]
    obstacles: tuple[Placed, ...] = ()
    start_yaw: float | None = None  # [rad] of the object; None: drawn
    spawn: str = "ring"  # robots around the object, or "behind" it in a row


class Room(NamedTuple):
    """What an object and its team need on a map."""

    reach: float  # [m] from the object's origin to its furthest corner
    spawn: float  # [m] from the object's start that its robots take up


Family = Callable[[random.Random, Room], ArenaMap]
FAMILIES: Registry[Family] = Registry("family of maps")


def draw_maps(name: str, seed: int, num_maps: int, room: Room) -> list[ArenaMap]:
    """Return the maps of a family, the same for a seed on every machine."""
    rng = random.Random(f"{name} {seed}")  # noqa: S311 - no secret
    return [FAMILIES[name](rng, room) for _ in range(num_maps)]


def check_map(arena_map: ArenaMap, room: Room, where: str) -> None:
    """Raise ConfigError for a map on which the object does not fit."""
    half_x, half_y = (length / 2 for length in arena_map.arena)
    if max(half_x, half_y) > ARENA_HALF_SIZE or min(half_x, half_y) < _ARENA_MIN / 2:
        raise ConfigError(
            f"{where}: the arena is {arena_map.arena[0]:g} x {arena_map.arena[1]:g} m; each side "
            f"must be from {_ARENA_MIN:g} to {2 * ARENA_HALF_SIZE:g} m"
        )
    if len(arena_map.obstacles) > MOST_OBSTACLES:
        raise ConfigError(
            f"{where}: {len(arena_map.obstacles)} obstacles; {MOST_OBSTACLES} at most: join boxes "
            "that touch"
        )
    is_behind = arena_map.spawn == "behind"
    spawn = room.reach + 0.1 if is_behind else room.spawn
    for name, place, needed in (
        ("start", arena_map.start, spawn),
        ("goal", arena_map.goal, room.reach),
    ):
        to_wall = min(half_x - abs(place[0]), half_y - abs(place[1]))
        if to_wall < needed - _ROUNDING:
            raise ConfigError(
                f"{where}: the {name} {_point(place)} is {max(to_wall, 0.0):.2f} m from the wall "
                f"of the arena, and the object needs {needed:.2f} m; move it inwards, or make the "
                "arena larger"
            )
        for placed in arena_map.obstacles:
            gap = distance_to(placed, place)
            if gap < needed - _ROUNDING:
                raise ConfigError(
                    f"{where}: the {name} {_point(place)} overlaps with the {placed.cfg.shape} at "
                    f"{_point((placed.x, placed.y))}: {gap:.2f} m between them, and the object "
                    f"needs {needed:.2f} m; move one of them"
                )


def distance_to(placed: Placed, point: tuple[float, float]) -> float:
    """Return the distance [m] from a point to an obstacle; 0 inside."""
    dx = point[0] - placed.x
    dy = point[1] - placed.y
    if placed.cfg.shape == "post":
        return max(0.0, math.hypot(dx, dy) - placed.cfg.size[0])
    cos = math.cos(placed.yaw)
    sin = math.sin(placed.yaw)
    half_x, half_y = placed.cfg.half_size
    beyond_x = max(0.0, abs(cos * dx + sin * dy) - half_x)
    beyond_y = max(0.0, abs(cos * dy - sin * dx) - half_y)
    return math.hypot(beyond_x, beyond_y)


def slots_of(maps: Iterable[ArenaMap]) -> tuple[ObstacleCfg, ...]:
    """Return the slots of obstacles in which every one of ``maps`` has room."""
    most: Counter[ObstacleCfg] = Counter()
    for each in maps:
        most |= Counter(placed.cfg for placed in each.obstacles)
    return tuple(most.elements())


class MapTable:
    """All maps of a run as tensors on one device; K slots of obstacles."""

    def __init__(
        self, maps: Sequence[ArenaMap], slots: Sequence[ObstacleCfg], device: torch.device | str
    ) -> None:
        """Put each map's obstacles into slots of their shapes; the others are parked."""
        pos = torch.zeros(len(maps), len(slots), 3)
        pos[..., 2] = PARKED_HEIGHT
        yaw = torch.zeros(len(maps), len(slots))
        for row, each in enumerate(maps):
            free = list(range(len(slots)))
            for placed in each.obstacles:
                slot = next(k for k in free if slots[k] == placed.cfg)
                free.remove(slot)
                pos[row, slot] = torch.tensor([placed.x, placed.y, placed.cfg.height / 2])
                yaw[row, slot] = placed.yaw
        nan = math.nan
        yaws = [nan if each.start_yaw is None else each.start_yaw for each in maps]
        self.start = torch.tensor([each.start for each in maps], device=device)  # (L, 2)
        self.goal = torch.tensor([each.goal for each in maps], device=device)  # (L, 2)
        self.start_yaw = torch.tensor(yaws, device=device)  # (L,); NaN: drawn
        is_behind = [each.spawn == "behind" for each in maps]
        self.is_behind = torch.tensor(is_behind, device=device)  # (L,)
        self.obstacle_pos = pos.to(device)  # (L, K, 3)
        self.obstacle_yaw = yaw.to(device)  # (L, K)


class ObstacleShapes:
    """The shapes of K slots, and distances to them."""

    def __init__(self, slots: Sequence[ObstacleCfg], device: torch.device | str) -> None:
        """Take the slots of a scene."""
        half_sizes = [slot.half_size for slot in slots]
        self.half_size = torch.tensor(half_sizes, device=device).view(-1, 2)  # (K, 2) [m]
        self._is_post = [slot.shape == "post" for slot in slots]

    def clearance(self, points: Tensor, pos: Tensor, yaw: Tensor) -> Tensor:
        """Return the distance (M, P) [m] from points (P, 2) or (M, P, 2) to the nearest of the
        obstacles at ``pos`` (M, K, 3) and ``yaw`` (M, K); negative inside, 100 without any.
        """
        nearest = points.new_full((len(pos), points.shape[-2]), 100.0)
        for k, is_post in enumerate(self._is_post):
            offset = points - pos[:, k, None, :2]
            if is_post:
                distance = offset.norm(dim=-1) - self.half_size[k, 0]
            else:
                cos = yaw[:, k, None].cos()
                sin = yaw[:, k, None].sin()
                x, y = offset.unbind(dim=-1)
                local = torch.stack((cos * x + sin * y, cos * y - sin * x), dim=-1)
                beyond = local.abs() - self.half_size[k]
                outside = beyond.clamp(min=0.0).norm(dim=-1)
                distance = outside + beyond.amax(dim=-1).clamp(max=0.0)
            is_parked = pos[:, k, 2:] < PARKED_BELOW
            nearest = torch.minimum(nearest, distance.masked_fill(is_parked, 100.0))
        return nearest


def _point(place: tuple[float, float]) -> str:
    return f"({place[0]:.2f}, {place[1]:.2f})"


# Families


def _apart(place: tuple[float, float], others: Sequence[Placed], gap: float) -> bool:
    return all(distance_to(other, place) >= gap for other in others)


def _tried(draw: Callable[[], ArenaMap | None], name: str) -> ArenaMap:
    """Return the first map that ``draw`` finds."""
    for _ in range(_TRIES):
        found = draw()
        if found is not None:
            return found
    raise ConfigError(
        f"task.map={name}: no such map has room for this object; take a smaller object, or another "
        "family"
    )


def open_arena(rng: random.Random, room: Room) -> ArenaMap:
    """Return 20 x 14 m without obstacles."""
    y = 7.0 - room.spawn
    return ArenaMap(
        (20.0, 14.0), (room.spawn - 10.0, rng.uniform(-y, y)), (8.0, rng.uniform(-y, y))
    )


def reference(rng: random.Random, room: Room) -> ArenaMap:
    """Return the reference's scene: 14 x 15 m and two cubes, which may not overlap with the
    object's start or goal here.
    """
    # Further from the wall for objects larger than the reference's box.
    start = (max(1.6, room.reach + 0.75) - 7.0, 0.0)
    side = rng.choice((-1.0, 1.0))

    def draw() -> ArenaMap | None:
        goal = (9.5 + abs(rng.gauss(0.0, 1.0)) - 7.0, rng.gauss(0.0, 1.0) + 3.0 * side)
        if max(abs(goal[0]) + 0.5, abs(goal[1])) + room.reach > 7.5:
            return None
        cubes = []
        for _ in range(2):
            x = rng.uniform(3.0, 14.0) - 7.0
            y = rng.uniform(-7.5, 7.5)
            cubes.append(Placed(CUBE, x, y, rng.uniform(-math.pi, math.pi)))
        is_free = _apart(start, cubes, room.spawn) and _apart(goal, cubes, room.reach + 0.1)
        if not is_free or math.dist(cubes[0][1:3], cubes[1][1:3]) < 1.5:
            return None
        return ArenaMap((14.0, 15.0), start, goal, tuple(cubes), math.pi / 4, "behind")

    return _tried(draw, "reference")


def scattered(rng: random.Random, room: Room) -> ArenaMap:
    """Return 20 x 14 m with ten cubes, between any two of which the object has room."""
    least = 2.0 * room.reach + ROBOT_ROOM  # between two cubes

    def draw() -> ArenaMap | None:
        y = 7.0 - room.spawn
        start = (room.spawn - 10.0, rng.uniform(-y, y))
        goal = (10.0 - room.reach - ROBOT_ROOM, rng.uniform(-y, y))
        cubes: list[Placed] = []
        for _ in range(400):
            if len(cubes) == 10:
                return ArenaMap((20.0, 14.0), start, goal, tuple(cubes))
            place = (rng.uniform(-9.0, 9.0), rng.uniform(-6.5, 6.5))
            cube = Placed(CUBE, *place, rng.uniform(-math.pi, math.pi))
            is_free = _apart(start, [cube], room.spawn)
            is_free = is_free and _apart(goal, [cube], room.reach + ROBOT_ROOM)
            apart = all(math.dist(place, other[1:3]) >= least + 1.2 for other in cubes)
            if is_free and apart:
                cubes.append(cube)
        return None

    return _tried(draw, "scattered")


def _door(x: float, y: float, width: float, height: float) -> list[Placed]:
    """Return a wall across an arena of ``height`` at ``x`` with a door of ``width`` at ``y``."""
    walls = []
    for side in (1.0, -1.0):
        length = height / 2 - width / 2 - side * y
        if length > 0.05:
            shape = ObstacleCfg("box", (THICKNESS, round(length, 3), HEIGHT))
            walls.append(Placed(shape, x, side * (height / 2 - length / 2)))
    return walls


def _door_width(room: Room) -> float:
    return max(2.4, 2.0 * room.reach + ROBOT_ROOM)


def doors(rng: random.Random, room: Room) -> ArenaMap:
    """Return 20 x 14 m with two walls that have a door of 2.4 m each."""
    width = _door_width(room)
    y = 7.0 - room.spawn
    places = (-4.0, -2.0, 0.0, 2.0, 4.0)
    walls = _door(-2.5, rng.choice(places), width, 14.0)
    walls += _door(4.0, rng.choice(places), width, 14.0)
    start = (room.spawn - 10.0, rng.uniform(-y, y))
    goal = (10.0 - room.reach - ROBOT_ROOM, rng.uniform(-y, y))
    return ArenaMap((20.0, 14.0), start, goal, tuple(walls))


def u_turn(rng: random.Random, room: Room) -> ArenaMap:
    """Return 20 x 14 m with a long wall between start and goal that is open at one end."""
    length = rng.choice((12.0, 13.0, 14.0))
    wall = Placed(ObstacleCfg("box", (length, THICKNESS, HEIGHT)), length / 2 - 10.0, 0.0)
    side = rng.choice((-1.0, 1.0))
    start = (rng.uniform(room.spawn - 10.0, -5.0), -side * rng.uniform(room.spawn + 0.2, 4.0))
    goal = (rng.uniform(room.reach - 9.0, -5.0), side * rng.uniform(room.reach + 1.0, 5.0))
    return ArenaMap((20.0, 14.0), start, goal, (wall,))


def gate(rng: random.Random, room: Room) -> ArenaMap:
    """Return 12 x 10 m, or more for large objects, with one wall and a door in it."""
    half = max(6.0, 2.0 * room.spawn + 0.2)
    walls = _door(0.0, rng.choice((-2.0, -1.0, 0.0, 1.0, 2.0)), _door_width(room), 10.0)
    y = 5.0 - room.spawn
    start = (room.spawn - half, rng.uniform(-y, y))
    goal = (half - room.reach - ROBOT_ROOM, rng.uniform(-y, y))
    return ArenaMap((2.0 * half, 10.0), start, goal, tuple(walls))


def corridor(rng: random.Random, room: Room) -> ArenaMap:
    """Return 16 x 10 m, or more for large objects, with a corridor of 6 m on the only way."""
    half = max(8.0, 2.0 * room.spawn + 3.2)
    width = _door_width(room)
    y = rng.choice((-1.5, 0.0, 1.5))
    walls = _door(-3.0, y, width, 10.0)
    for side in (-1.0, 1.0):
        shape = ObstacleCfg("box", (6.0, THICKNESS, HEIGHT))
        walls.append(Placed(shape, 0.0, y + side * (width + THICKNESS) / 2))
    reach = 5.0 - room.spawn
    start = (room.spawn - half, rng.uniform(-reach, reach))
    goal = (half - room.reach - ROBOT_ROOM, rng.uniform(-2.5, 2.5))
    return ArenaMap((2.0 * half, 10.0), start, goal, tuple(walls))


def forest(rng: random.Random, room: Room) -> ArenaMap:
    """Return 16 x 12 m with sixteen posts, or with four between which a large object has room."""
    least = 2.0 * room.reach + ROBOT_ROOM + 0.3
    num_posts = 16 if room.reach < 1.0 else 4

    def draw() -> ArenaMap | None:
        y = 6.0 - room.spawn
        start = (room.spawn - 8.0, rng.uniform(-y, y))
        goal = (8.0 - room.reach - ROBOT_ROOM, rng.uniform(-4.0, 4.0))
        posts: list[Placed] = []
        for _ in range(600):
            if len(posts) == num_posts:
                return ArenaMap((16.0, 12.0), start, goal, tuple(posts))
            place = (rng.uniform(-7.5, 7.5), rng.uniform(-5.5, 5.5))
            post = Placed(POST, *place)
            is_free = _apart(start, [post], room.spawn)
            is_free = is_free and _apart(goal, [post], room.reach + 0.3)
            if is_free and all(math.dist(place, other[1:3]) >= least for other in posts):
                posts.append(post)
        return None

    return _tried(draw, "forest")


for _family in (open_arena, reference, scattered, doors, u_turn, gate, corridor, forest):
    FAMILIES.register(_family.__name__, _family)
