"""Mechanics of slow pushes: the least force for moving an object on the floor.

Floor friction resists a motion with a power ``friction * weight * mean speed``, averaged over the
supporting points. A push moves the object as soon as its power exceeds this in some planar motion:
a translation, or a turn about some centre. So the least force is a minimum over all motions (the
upper-bound theorem in plasticity), and the object begins with the motion at the minimum.

Forces are relative to the force for straight sliding, ``friction * weight``. A push at a side's end
turns the object about a centre beyond its other end, and takes less.

References: Mason, "Mechanics and Planning of Manipulator Pushing Operations", 1986; Peshkin and
Sanderson, "The Motion of a Pushed, Sliding Object", 1985; Goyal, Ruina and Papadopoulos, "Planar
Sliding with Dry Friction", 1991.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mqe.world.objects import GeomCfg, ObjectCfg

Array = NDArray[Any]

SPACING = 0.36  # [m] between the middles of two robots that press abreast
MARGIN = 0.05  # [m] from the end of a side to the nearest push
_STEP = 0.02  # [m] between points of an outline
_TURNS = 31  # motions of the coarse search from one turning sense to the other
_HEADINGS = 60  # headings of the coarse search
_ROUNDS = 7  # refinements, each on a grid of a third of the size


class Support(NamedTuple):
    """Supporting points below an object, object frame."""

    points: Array  # (K, 2) [m]
    shares: Array  # (K,) of the weight, 1 in all


class Pushes(NamedTuple):
    """Positions and directions of pushes, object frame."""

    points: Array  # (P, 2) [m]
    directions: Array  # (P, 2) unit vectors


class LeastPush(NamedTuple):
    """The least total push and its motion."""

    force: float  # over the force that slides the object straight
    velocity: Array  # (2,) of the object's origin; the motion's scale is arbitrary
    turn_rate: float
    pushes: Pushes  # where the robots push


def corner_support(obj: ObjectCfg) -> Support:
    """Return MuJoCo's contacts: each box's corners, or the corners of the square inscribed in a
    cylinder's base.

    All contacts are equally stiff, so the loads are the smallest ones in balance with the weight.
    Parts above others bear nothing.
    """
    corners = []
    for geom in _on_floor(obj):
        share = 1.0 if geom.type == "box" else math.sqrt(0.5)
        corners.append(geom.pos[:2] + share * (geom.corners() - geom.pos[:2]))
    points = np.concatenate(corners)
    _, center, _ = obj.inertia()
    balance = np.vstack((np.ones(len(points)), (points - center[:2]).T))
    shares = np.linalg.pinv(balance) @ np.array([1.0, 0.0, 0.0])
    return Support(points, shares)


def sides(obj: ObjectCfg, margin: float = MARGIN) -> Pushes:
    """Return pushes perpendicular to the outline, ``_STEP`` apart, from ``margin`` [m] beside
    each corner on.
    """
    points = []
    directions = []
    for geom in obj.geoms:
        middle = np.array(geom.pos[:2])
        if geom.type == "cylinder":
            angle = np.arange(0.0, 2.0 * math.pi, _STEP / geom.size[0])
            outward = np.stack((np.cos(angle), np.sin(angle)), axis=1)
            points.append(middle + geom.size[0] * outward)
            directions.append(-outward)
            continue
        half_size = np.array(geom.half_extents)
        for axis in (0, 1):
            length = half_size[1 - axis] - margin
            along = np.linspace(-length, length, 1 + max(1, round(2.0 * length / _STEP)))
            for sign in (-1.0, 1.0):
                side = np.empty((len(along), 2))
                side[:, axis] = sign * half_size[axis]
                side[:, 1 - axis] = along
                points.append(middle + side)
                directions.append(np.tile(-sign * np.eye(2)[axis], (len(along), 1)))
    pushes = Pushes(np.concatenate(points), np.concatenate(directions))
    is_free = ~_is_inside(obj, pushes.points - 0.5 * _STEP * pushes.directions)
    return Pushes(pushes.points[is_free], pushes.directions[is_free])


def least_force(obj: ObjectCfg, pushes: Pushes) -> LeastPush:
    """Return the least total push for moving the object, by equally strong robots that all
    stand where ``pushes`` are.
    """

    def chosen(powers: Array) -> Array:
        return np.tile(np.arange(powers.shape[1]), (len(powers), 1))

    return _least(obj, pushes, None, chosen)


def least_force_of(obj: ObjectCfg, num_robots: int, support: Support | None = None) -> LeastPush:
    """Return the least total push by ``num_robots`` robots at their best positions, ``SPACING``
    apart.

    ``support`` defaults to MuJoCo's contacts.
    """
    pushes = sides(obj)
    gap = np.linalg.norm(pushes.points[:, None] - pushes.points[None], axis=2)
    is_near = gap < SPACING - 1e-9

    def chosen(powers: Array) -> Array:
        """Repeatedly take the strongest push of the remaining ones."""
        left = powers.copy()
        numbers = np.empty((len(powers), num_robots), dtype=np.int64)
        for k in range(num_robots):
            numbers[:, k] = left.argmax(axis=1)
            left[is_near[numbers[:, k]]] = -np.inf
        return numbers

    return _least(obj, pushes, support, chosen)


def _least(
    obj: ObjectCfg, pushes: Pushes, support: Support | None, chosen: Callable[[Array], Array]
) -> LeastPush:
    """Minimize the force over all motions, on grids shrinking round the best motion."""
    support = support or corner_support(obj)
    _, com, _ = obj.inertia()
    center = com[:2]
    scale = obj.reach

    def forces(heading: Array, turn: Array) -> tuple[Array, Array]:
        """Return the force (M,) and the indices of the chosen pushes (M, R) in each motion."""
        velocity, rate = _motion(heading, turn, scale)
        slipping = _velocities(support.points - center, velocity, rate)
        moved = _velocities(pushes.points - center, velocity, rate)
        powers = (moved * pushes.directions).sum(axis=2)
        numbers = chosen(powers)
        power = np.take_along_axis(powers, numbers, axis=1).clip(min=0.0).mean(axis=1)
        with np.errstate(divide="ignore"):
            return np.linalg.norm(slipping, axis=2) @ support.shares / power, numbers

    heading_step = 2.0 * math.pi / _HEADINGS
    turn_step = math.pi / (_TURNS - 1)
    headings = heading_step * np.arange(_HEADINGS)
    turns = -0.5 * math.pi + turn_step * np.arange(_TURNS)
    for _ in range(_ROUNDS):
        heading, turn = (grid.ravel() for grid in np.meshgrid(headings, turns))
        least_forces, numbers = forces(heading, turn)
        best = int(least_forces.argmin())
        headings = heading[best] + heading_step * np.linspace(-1.0, 1.0, 13)
        turns = (turn[best] + turn_step * np.linspace(-1.0, 1.0, 13)).clip(
            -0.5 * math.pi, 0.5 * math.pi
        )
        heading_step /= 6.0
        turn_step /= 6.0
    velocity, rate = _motion(heading[best : best + 1], turn[best : best + 1], scale)
    of_origin = _velocities(-center[None], velocity, rate)[0, 0]
    best_pushes = Pushes(pushes.points[numbers[best]], pushes.directions[numbers[best]])
    return LeastPush(float(least_forces[best]), of_origin, float(rate[0]), best_pushes)


def _motion(heading: Array, turn: Array, scale: float) -> tuple[Array, Array]:
    """Return velocities (M, 2) of the centre of mass and turn rates (M,)."""
    velocity = np.stack((np.cos(heading), np.sin(heading)), axis=1) * np.cos(turn)[:, None]
    return velocity, np.sin(turn) / scale


def _velocities(arms: Array, velocity: Array, rate: Array) -> Array:
    """Return the velocities (M, K, 2) of points at ``arms`` (K, 2) from the centre of mass."""
    across = np.stack((-arms[:, 1], arms[:, 0]), axis=1)
    return velocity[:, None] + rate[:, None, None] * across


def _on_floor(obj: ObjectCfg) -> list[GeomCfg]:
    """Return the parts that reach down to the object's lowest point."""
    bottoms = [geom.pos[2] - 0.5 * geom.size[-1] for geom in obj.geoms]
    lowest = min(bottoms) + 1e-6
    return [geom for geom, bottom in zip(obj.geoms, bottoms, strict=True) if bottom <= lowest]


def _is_inside(obj: ObjectCfg, points: Array) -> NDArray[np.bool_]:
    """Return a mask (P,) for points (P, 2) inside a part of the object."""
    inside = np.zeros(len(points), dtype=bool)
    for geom in obj.geoms:
        offset = np.abs(points - geom.pos[:2])
        if geom.type == "box":
            inside |= (offset < geom.half_extents).all(axis=1)
        else:
            inside |= np.linalg.norm(offset, axis=1) < geom.size[0]
    return inside
