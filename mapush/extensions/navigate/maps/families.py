"""Families of maps: seeded generators by name.

All maps are known before a run starts. Every episode takes the next one.
"""

import math
import random
from collections.abc import Callable, Sequence

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
THICKNESS = 0.2  # [m] of walls
_TRIES = 2000  # draws of a map before the generator gives up

Family = Callable[[random.Random, Room], ArenaMap]
FAMILIES: Registry[Family] = Registry("family of maps")


def draw_maps(name: str, seed: int, num_maps: int, room: Room) -> list[ArenaMap]:
    """Return a family's maps, equal for equal seeds on every machine."""
    rng = random.Random(f"{name} {seed}")  # noqa: S311 - no secret
    return [FAMILIES[name](rng, room) for _ in range(num_maps)]


def keeps_apart(position: tuple[float, float], others: Sequence[Placed], gap: float) -> bool:
    return all(distance_to(other, position) >= gap for other in others)


def first_found(draw: Callable[[], ArenaMap | None], name: str) -> ArenaMap:
    """Return the first map from ``draw``."""
    for _ in range(_TRIES):
        drawn_map = draw()
        if drawn_map is not None:
            return drawn_map
    raise ConfigError(
        f"task.map={name}: no such map has room for this object; take a smaller object, or another "
        "family"
    )


def reference(rng: random.Random, room: Room) -> ArenaMap:
    """Return the reference's scene: 14 x 15 m and two cubes, clear of initial position and goal."""
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
        is_free = keeps_apart(start, cubes, room.spawn) and keeps_apart(
            goal, cubes, room.reach + 0.1
        )
        if not is_free or math.dist(cubes[0][1:3], cubes[1][1:3]) < 1.5:
            return None
        return ArenaMap((14.0, 15.0), start, goal, tuple(cubes), math.pi / 4, "behind")

    return first_found(draw, "reference")


def scattered(rng: random.Random, room: Room) -> ArenaMap:
    """Return an arena of 20 x 14 m with ten cubes, and room for the object between any two."""
    least_distance = 2.0 * room.reach + ROBOT_ROOM + 1.2  # [m] between two cubes' middles

    def draw() -> ArenaMap | None:
        y = 7.0 - room.spawn
        start = (room.spawn - 10.0, rng.uniform(-y, y))
        goal = (10.0 - room.reach - ROBOT_ROOM, rng.uniform(-y, y))
        cubes: list[Placed] = []
        for _ in range(400):
            if len(cubes) == 10:
                return ArenaMap((20.0, 14.0), start, goal, tuple(cubes))
            position = (rng.uniform(-9.0, 9.0), rng.uniform(-6.5, 6.5))
            cube = Placed(CUBE, *position, rng.uniform(-math.pi, math.pi))
            is_free = (
                distance_to(cube, start) >= room.spawn
                and distance_to(cube, goal) >= room.reach + ROBOT_ROOM
            )
            distances = [math.dist(position, (other.x, other.y)) for other in cubes]
            if is_free and min(distances, default=math.inf) >= least_distance:
                cubes.append(cube)
        return None

    return first_found(draw, "scattered")


def wall_with_door(x: float, y: float, width: float, height: float) -> list[Placed]:
    """Return a wall across an arena of ``height`` [m], at ``x`` [m], with a door of ``width`` [m]
    at ``y`` [m].
    """
    walls = []
    for side in (1.0, -1.0):
        length = height / 2 - width / 2 - side * y
        if length > 0.05:
            shape = ObstacleCfg("box", (THICKNESS, round(length, 3), HEIGHT))
            walls.append(Placed(shape, x, side * (height / 2 - length / 2)))
    return walls


def door_width(room: Room) -> float:
    return max(2.4, 2.0 * room.reach + ROBOT_ROOM)


def doors(rng: random.Random, room: Room) -> ArenaMap:
    """Return an arena of 20 x 14 m with two walls and a door in each."""
    width = door_width(room)
    y = 7.0 - room.spawn
    places = (-4.0, -2.0, 0.0, 2.0, 4.0)
    walls = wall_with_door(-2.5, rng.choice(places), width, 14.0)
    walls += wall_with_door(4.0, rng.choice(places), width, 14.0)
    start = (room.spawn - 10.0, rng.uniform(-y, y))
    goal = (10.0 - room.reach - ROBOT_ROOM, rng.uniform(-y, y))
    return ArenaMap((20.0, 14.0), start, goal, tuple(walls))


def u_turn(rng: random.Random, room: Room) -> ArenaMap:
    """Return an arena of 20 x 14 m with a long wall, open at one end, between start and goal."""
    length = rng.choice((12.0, 13.0, 14.0))
    wall = Placed(ObstacleCfg("box", (length, THICKNESS, HEIGHT)), length / 2 - 10.0, 0.0)
    side = rng.choice((-1.0, 1.0))
    start = (rng.uniform(room.spawn - 10.0, -5.0), -side * rng.uniform(room.spawn + 0.2, 4.0))
    goal = (rng.uniform(room.reach - 9.0, -5.0), side * rng.uniform(room.reach + 1.0, 5.0))
    return ArenaMap((20.0, 14.0), start, goal, (wall,))


for _family in (reference, scattered, doors, u_turn):
    FAMILIES.register(_family.__name__, _family)
