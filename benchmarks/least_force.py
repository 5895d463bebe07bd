"""The least pushes to move each object, as a picture and as JSON lines.

``python benchmarks/least_force.py --figure docs/least_force.webp`` draws the objects with their
floor contacts, the best push points for one to four robots, and the centre of rotation under one
robot. ``--suites`` prints each robot's least push in the team suites, ``--strain`` that
of two robots for the box of team2 in harder worlds.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harl_mapush.config import load_suite
from mapush.extensions.pivoting.push_mechanics import (
    LeastPush,
    Support,
    corner_support,
    least_force_of,
)
from mqe.tasks.push.settings import parse_force
from mqe.world.objects import OBJECTS, ObjectCfg
from mqe.world.scene import GRAVITY, sliding_force, with_sliding_force

TEAMS = (1, 2, 3, 4)
CELLS = 24  # of a part along x and along y, for uniform pressure
PRESS = 59.0  # [N] of a robot at 1 m/s on feet of friction 0.55
ROBOT_MASS = 13.1  # [kg]


class World(NamedTuple):
    """A harder world for two robots and the box of team2."""

    factor: float = 1.0  # on the object's mass
    obj: ObjectCfg = with_sliding_force(OBJECTS["cuboid"], 85.0)
    num_robots: int = 2  # robots that push
    press: float = PRESS  # [N] mean of these robots
    slope: float = 0.0  # [degrees], pushed uphill


WORLDS = {
    "as it is": World(),
    "mass x1.5": World(factor=1.5),
    "10 kg at one corner": World(obj=OBJECTS["loaded"]),
    "feet of friction 0.4": World(press=42.0),
    "feet of friction 0.8": World(press=68.0),
    "one robot half as strong": World(press=0.75 * PRESS),
    "one robot stays on the far side": World(num_robots=1),
    "idle mate, box of 45 N": World(obj=with_sliding_force(OBJECTS["cuboid"], 45.0), num_robots=1),
    "three robots, feet of 0.4, 145 N": World(
        obj=with_sliding_force(OBJECTS["cuboid"], 145.0), num_robots=3, press=42.0
    ),
    "slope of 5 degrees": World(slope=5.0),
    "slope of 5 degrees, mass x0.67": World(slope=5.0, factor=0.67),
    "slope of 10 degrees": World(slope=10.0),
}


def main() -> int:
    """Print a line for each object, and draw them if asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--suites", action="store_true")
    parser.add_argument("--strain", action="store_true")
    arguments = parser.parse_args()
    if arguments.suites:
        for row in suites():
            sys.stdout.write(f"{json.dumps(row)}\n")
        return 0
    if arguments.strain:
        for name, world in WORLDS.items():
            sys.stdout.write(f"{json.dumps({'world': name, **strain(world)})}\n")
        return 0
    objects = (OBJECTS["cuboid"], OBJECTS["tblock"], OBJECTS["cylinder"], OBJECTS["beam"])
    for obj in objects:
        sys.stdout.write(f"{json.dumps(line(obj))}\n")
    if arguments.figure is not None:
        draw(objects, arguments.figure)
    return 0


def line(obj: ObjectCfg) -> dict[str, Any]:
    """Return the least team forces, relative to the straight sliding force."""
    uniform = uniform_support(obj)
    return {
        "object": obj.name,
        "corners": [round(least_force_of(obj, n).force, 3) for n in TEAMS],
        "uniform": [round(least_force_of(obj, n, uniform).force, 3) for n in TEAMS],
    }


def uniform_support(obj: ObjectCfg) -> Support:
    """Return each part's weight, spread evenly over its base."""
    points = []
    shares = []
    for geom in obj.geoms:
        half_x, half_y = geom.half_extents
        cells = (np.arange(CELLS) + 0.5) / CELLS * 2.0 - 1.0
        grid = np.stack(np.meshgrid(half_x * cells, half_y * cells), axis=-1).reshape(-1, 2)
        if geom.type == "cylinder":
            grid = grid[np.linalg.norm(grid, axis=1) <= half_x]
        points.append(grid + geom.pos[:2])
        shares.append(np.full(len(grid), geom.mass / obj.mass / len(grid)))
    return Support(np.concatenate(points), np.concatenate(shares))


def center_of(push: LeastPush) -> np.ndarray | None:
    """Return the centre of rotation (2,) [m], object frame. None for a translation."""
    if abs(push.turn_rate) < 1e-6 * float(np.linalg.norm(push.velocity)):
        return None
    return np.array([-push.velocity[1], push.velocity[0]]) / push.turn_rate


def suites() -> Iterator[dict[str, Any]]:
    """Yield each robot's least push [N] with the whole team and with one robot fewer."""
    for name in ("team2", "team3", "team4", "team6", "team8"):
        worlds = load_suite(name).worlds
        size = worlds["env"]["num_agents"]
        for key, mass in worlds["task"]["object_mass"].items():
            obj = with_sliding_force(OBJECTS[key], parse_force(mass))
            force = sliding_force(obj)
            least = {n: least_force_of(obj, n).force * force / n for n in (size, size - 1)}
            yield {
                "suite": name,
                "object": key,
                "slides_at": round(force),
                "straight": round(force / size, 1),
                "team": round(least[size], 1),
                "one_fewer": round(least[size - 1], 1),
            }


def strain(world: World) -> dict[str, float]:
    """Return the least push of each robot, uphill on a slope, and the push that it can exert [N].

    On a slope robots carry their own weight and the object's. ``straight`` is the push for sliding
    the object.
    """
    sine = math.sin(math.radians(world.slope))
    cosine = math.cos(math.radians(world.slope))
    obj = world.obj.with_mass(world.factor * world.obj.mass)
    weight = obj.mass * GRAVITY * sine
    force = sliding_force(obj) * cosine
    least = least_force_of(obj, world.num_robots).force
    own = ROBOT_MASS * GRAVITY * sine
    return {
        "straight": round((force + weight) / world.num_robots + own, 1),
        "least": round((least * force + weight) / world.num_robots + own, 1),
        "can": round(world.press, 1),
    }


def draw(objects: tuple[ObjectCfg, ...], path: Path) -> None:
    """Draw one panel an object."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot
    from matplotlib.patches import Circle, Rectangle

    figure, panels = pyplot.subplots(1, len(objects), figsize=(13, 4.2))
    for obj, panel in zip(objects, panels, strict=True):
        for geom in obj.geoms:
            x, y, _ = geom.pos
            if geom.type == "box":
                corner = (x - 0.5 * geom.size[0], y - 0.5 * geom.size[1])
                panel.add_patch(Rectangle(corner, *geom.size[:2], fc="0.88", ec="0.4"))
            else:
                panel.add_patch(Circle((x, y), geom.size[0], fc="0.88", ec="0.4"))
        contacts = corner_support(obj)
        panel.scatter(*contacts.points.T, s=400 * contacts.shares, c="0.5", label="bears the load")
        push = least_force_of(obj, 1)
        (point,), (direction,) = push.pushes
        panel.annotate(
            "",
            xy=point,
            xytext=point - 0.6 * direction,
            arrowprops={"arrowstyle": "-|>", "lw": 2.5, "color": "tab:red"},
        )
        center = center_of(push)
        if center is not None:
            panel.plot(*center, "x", c="tab:blue", ms=9, mew=2.5, label="turns about")
        forces = [least_force_of(obj, n).force for n in TEAMS]
        panel.set_title(f"{obj.name}\n" + ", ".join(f"{force:.2f}" for force in forces))
        panel.set_aspect("equal")
        panel.autoscale_view()
        panel.margins(0.15)
        panel.set_xticks([])
        panel.set_yticks([])
    panels[0].legend(fontsize=8, loc="lower left")
    figure.suptitle(
        "Least push of 1, 2, 3, 4 robots over the force that slides the object straight; red: the "
        "place of one robot",
        fontsize=10,
    )
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    sys.exit(main())
