"""Families of maps: seeded generators, by name.

All maps of a run are known before it starts; every episode takes the next one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from mapush.extensions.navigate.maps.arena_map import (
    HEIGHT,
    ROBOT_ROOM,
    ArenaMap,
    Placed,
    Room,
    distance_to,
)
from mqe.config import ConfigError
from mqe.extensions import Registry
from mqe.world.obstacles import ObstacleCfg

CUBE = ObstacleCfg("box", (1.0, 1.0, HEIGHT))
POST = ObstacleCfg("post", (0.15, HEIGHT))
MOVER = replace(CUBE, moves=True)
THICKNESS = 0.2  # [m] of walls
_TRIES = 2000  # draws of a map before the generator gives up

Family = Callable[[random.Random, Room], ArenaMap]
FAMILIES: Registry[Family] = Registry("family of maps")


def draw_maps(name: str, seed: int, num_maps: int, room: Room) -> list[ArenaMap]:
    """Return the maps of a family, the same for a seed on every machine."""
    rng = random.Random(f"{name} {seed}")  # noqa: S311 - no secret
    return [FAMILIES[name](rng, room) for _ in range(num_maps)]


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


def beside(rng: random.Random, room: Room) -> ArenaMap:
    """Return 12 x 10 m, or more for large objects, with a wall beside the object for 6 m."""
    half = max(6.0, room.spawn + room.reach + 3.2)
    side = rng.choice((-1.0, 1.0))
    start = (-half + room.spawn, 0.0)
    shape = ObstacleCfg("box", (6.0, THICKNESS, HEIGHT))
    gap = room.reach + rng.uniform(0.12, 0.4)
    wall = Placed(shape, start[0] + 2.0, side * (gap + THICKNESS / 2))
    goal = (half - room.reach - ROBOT_ROOM, rng.uniform(-3.0, 3.0))
    return ArenaMap((2.0 * half, 10.0), start, goal, (wall,), 0.0, "behind")


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


def moving(rng: random.Random, room: Room) -> ArenaMap:
    """Return 20 x 14 m with three cubes that move across the way, or two for large objects."""
    num_movers = 3 if room.reach < 1.0 else 2
    y = 7.0 - room.spawn
    start = (room.spawn - 10.0, rng.uniform(-y, y))
    goal = (10.0 - room.reach - ROBOT_ROOM, rng.uniform(-4.0, 4.0))
    placed = []
    first = start[0] + room.spawn + 0.8
    last = goal[0] - room.reach - 0.8
    for k in range(num_movers):
        x = first + (k + 0.5) / num_movers * (last - first)
        ends = [rng.uniform(-5.5, -1.0), rng.uniform(1.0, 5.5)]
        rng.shuffle(ends)
        placed.append(Placed(MOVER, x, ends[0], 0.0, (x, ends[1]), rng.uniform(0.15, 0.4)))
    return ArenaMap((20.0, 14.0), start, goal, tuple(placed))


def moving_goal(rng: random.Random, room: Room) -> ArenaMap:
    """Return 20 x 14 m with a wall of two doors, and a goal behind it that moves past both."""
    width = _door_width(room)
    low = -7.0
    walls = []
    for y in (-3.5, 3.5, 7.0 + width / 2):
        high = y - width / 2
        shape = ObstacleCfg("box", (THICKNESS, round(high - low, 3), HEIGHT))
        walls.append(Placed(shape, 0.0, (low + high) / 2))
        low = y + width / 2
    start = (room.spawn - 10.0, rng.uniform(-3.0, 3.0))
    ends = [-4.5, 4.5]
    rng.shuffle(ends)
    x = rng.uniform(5.0, 8.0)
    return ArenaMap(
        (20.0, 14.0),
        start,
        (x, ends[0]),
        tuple(walls),
        goal_to=(x, ends[1]),
        goal_speed=rng.uniform(0.1, 0.3),
    )


for _family in (
    open_arena,
    reference,
    scattered,
    doors,
    u_turn,
    gate,
    corridor,
    beside,
    forest,
    moving,
    moving_goal,
):
    FAMILIES.register(_family.__name__, _family)
