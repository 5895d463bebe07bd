"""More families of maps: ``mapush test planner --import more_maps --set task.map=gate``."""

from __future__ import annotations

import math
import random

from mapush.extensions.navigate.maps.arena_map import HEIGHT, ROBOT_ROOM, ArenaMap, Placed, Room
from mapush.extensions.navigate.maps.families import (
    FAMILIES,
    POST,
    THICKNESS,
    door_width,
    first_found,
    keeps_apart,
    wall_with_door,
)
from mqe.world.obstacles import ObstacleCfg


def gate(rng: random.Random, room: Room) -> ArenaMap:
    """Return 12 x 10 m, or more for large objects, with one wall and a door in it."""
    half = max(6.0, 2.0 * room.spawn + 0.2)
    walls = wall_with_door(0.0, rng.choice((-2.0, -1.0, 0.0, 1.0, 2.0)), door_width(room), 10.0)
    y = 5.0 - room.spawn
    start = (room.spawn - half, rng.uniform(-y, y))
    goal = (half - room.reach - ROBOT_ROOM, rng.uniform(-y, y))
    return ArenaMap((2.0 * half, 10.0), start, goal, tuple(walls))


def corridor(rng: random.Random, room: Room) -> ArenaMap:
    """Return 16 x 10 m, or more for large objects, with a corridor of 6 m on the only way."""
    half = max(8.0, 2.0 * room.spawn + 3.2)
    width = door_width(room)
    y = rng.choice((-1.5, 0.0, 1.5))
    walls = wall_with_door(-3.0, y, width, 10.0)
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
    """Return 16 x 12 m with sixteen posts, or with four, with room for a large object
    between them.
    """
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
            position = (rng.uniform(-7.5, 7.5), rng.uniform(-5.5, 5.5))
            post = Placed(POST, *position)
            is_free = keeps_apart(start, [post], room.spawn)
            is_free = is_free and keeps_apart(goal, [post], room.reach + 0.3)
            if is_free and all(math.dist(position, other[1:3]) >= least for other in posts):
                posts.append(post)
        return None

    return first_found(draw, "forest")


def across(rng: random.Random, room: Room) -> ArenaMap:
    """Return 9 x 9 m, or more for large objects, with a wall of 1.4 to 2.2 m across the way."""
    x = max(2.2, room.spawn)
    half = max(4.5, x + room.spawn)
    shape = ObstacleCfg("box", (0.3, rng.choice((1.4, 1.6, 1.8, 2.0, 2.2)), HEIGHT))
    wall = Placed(shape, 0.2, rng.uniform(-0.5, 0.5))
    goal = (max(2.4, room.reach + ROBOT_ROOM), rng.uniform(-0.5, 0.5))
    return ArenaMap((2.0 * half, 2.0 * half), (-x, 0.0), goal, (wall,))


for _family in (gate, corridor, beside, forest, across):
    FAMILIES.register(_family.__name__, _family)
