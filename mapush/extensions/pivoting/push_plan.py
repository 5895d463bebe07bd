"""A plan by dynamic programming for pushing an object too heavy to slide straight.

The object is walked, as people walk a wardrobe: robots press abreast at one end of a side, the
object turns about a centre beyond the other end, and the robots change ends. A plan gives the next
stand for every direction of the goal in the object frame, and for every present stand. The motion
at each stand follows from ``mapush.extensions.pivoting.push_mechanics``.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from mapush.extensions.pivoting.push_mechanics import Pushes, least_force, sides
from mqe.world.geometry import rotate_2d
from mqe.world.objects import ObjectCfg

Array = NDArray[np.float64]

SPACING = 0.5  # [m] between two robots abreast
LEAN = 0.1  # [rad] outwards from a side's normal, of robots that press at its end
END = 0.05  # [m] from a corner to the middle of the nearest robot
BINS = 72  # directions of the goal
_TIME_STEP = 0.25  # [s]
_HORIZON = 15.0  # [s] progress after this time counts less
_PUSH_SPEED = 0.5  # [m/s] of robots that push a light object
_SLOW = 0.95  # share of the speed that the force of a straight slide takes
_WALK_SPEED = 0.7  # [m/s]
_CHANGE_TIME = 1.5  # [s] to leave a stand and to press at another
_SWEEPS = 150
_SHORTEST = 0.3  # [m] of a side that robots push


class Plan(NamedTuple):
    """Stands round an object and the choice between them, object frame."""

    middles: Array  # (K, 2) [m] of the robots' places
    normals: Array  # (K, 2) into the object
    directions: Array  # (K, 2) in which robots press
    spacing: Array  # (K,) [m] between robots
    choice: NDArray[np.int64]  # (BINS, K) the next stand


def make_plan(obj: ObjectCfg, num_robots: int) -> Plan:
    """Plan for ``num_robots`` abreast. The object needs straight sides."""
    middles, normals, spacing, sides_of = _stands(obj, num_robots)
    lean = torch.from_numpy(LEAN * sides_of)
    directions = rotate_2d(torch.from_numpy(normals), lean).numpy()
    velocities = np.empty((len(middles), 2))
    rates = np.empty(len(middles))
    number = np.arange(num_robots) - 0.5 * (num_robots - 1)
    for k, (middle, normal) in enumerate(zip(middles, normals, strict=True)):
        across = np.array([-normal[1], normal[0]])
        places = middle + spacing[k] * number[:, None] * across
        push = least_force(obj, Pushes(places, np.tile(directions[k], (num_robots, 1))))
        # The robots' places move at the speed that the load leaves them.
        moved = (push.velocity + push.turn_rate * np.array([-middle[1], middle[0]])) @ directions[k]
        speed = _PUSH_SPEED * max(0.1, 1.0 - _SLOW * push.force)
        velocities[k] = push.velocity * speed / moved
        rates[k] = push.turn_rate * speed / moved
    choice = _choose(obj, middles, normals, velocities, rates)
    return Plan(middles, normals, directions, spacing, choice)


def _stands(obj: ObjectCfg, num_robots: int) -> tuple[Array, Array, Array, Array]:
    """Return centres (K, 2) [m], normals (K, 2), spacings (K,) [m] and ends (K,) of K stands.

    Every side has a stand at both ends and in its middle. Ends: 1 left, -1 right, 0 middle.
    """
    pushes = sides(obj, margin=END)
    middles = []
    normals = []
    spacings = []
    ends = []
    for normal in np.unique(pushes.directions.round(6), axis=0):
        across = np.array([-normal[1], normal[0]])
        is_same = np.abs(pushes.directions - normal).max(axis=1) < 1e-5
        depths = (pushes.points @ normal).round(4)
        for depth in np.unique(depths[is_same]):
            along = np.sort((pushes.points @ across)[is_same & (depths == depth)])
            for part in np.split(along, np.flatnonzero(np.diff(along) > 0.1) + 1):
                low = part[0]
                high = part[-1]
                length = high - low
                if length + 2.0 * END < _SHORTEST:
                    continue
                spacing = SPACING
                if num_robots > 1:
                    spacing = min(SPACING, max(0.3, length / (num_robots - 1)))
                width = spacing * (num_robots - 1)
                room = max(0.0, length - width)
                center = 0.5 * (low + high)
                for end in (-1.0, 0.0, 1.0) if room > 0.1 else (0.0,):
                    middles.append(depth * normal + (center + 0.5 * end * room) * across)
                    normals.append(normal)
                    spacings.append(spacing)
                    ends.append(end)
    return np.array(middles), np.array(normals), np.array(spacings), np.array(ends)


def _choose(
    obj: ObjectCfg, middles: Array, normals: Array, velocities: Array, rates: Array
) -> NDArray[np.int64]:
    """Return the stand (BINS, K) with the shortest time to the goal."""
    angles = 2.0 * math.pi / BINS * np.arange(BINS)
    towards = np.stack((np.cos(angles), np.sin(angles)), axis=1)
    # In the object frame the goal turns against the object.
    gained = _TIME_STEP * towards @ velocities.T  # (BINS, K) [m]
    bins = np.arange(BINS)[:, None] - rates * _TIME_STEP / (2.0 * math.pi / BINS)
    low = np.floor(bins).astype(int)
    share = bins - low
    discount = math.exp(-_TIME_STEP / _HORIZON)
    change = np.exp(-_change_times(obj, middles, normals) / _HORIZON)  # (K, K)
    worth = np.zeros((BINS, len(middles)))  # of being at a stand
    stands = np.arange(len(middles))
    for _ in range(_SWEEPS):
        later = (1.0 - share) * worth[low % BINS, stands] + share * worth[(low + 1) % BINS, stands]
        pushed = gained + discount * later  # (BINS, K)
        options = change[None] * pushed[:, None, :]  # from k to j
        worth = options.max(axis=2)
    return options.argmax(axis=2)


def _change_times(obj: ObjectCfg, middles: Array, normals: Array) -> Array:
    """Return the walking time (K, K) [s] between stands round the object."""
    from_origin = middles - 0.5 * normals
    bearing = np.arctan2(from_origin[:, 1], from_origin[:, 0])
    turn = np.abs((bearing[:, None] - bearing + math.pi) % (2.0 * math.pi) - math.pi)
    radius = obj.reach + 0.4
    straight = np.linalg.norm(from_origin[:, None] - from_origin, axis=2)
    is_same_side = (np.abs(normals[:, None] - normals).max(axis=2) < 1e-5) & (straight < 2.5)
    way = np.where(is_same_side, straight, np.maximum(straight, radius * turn))
    time = _CHANGE_TIME + way / _WALK_SPEED
    np.fill_diagonal(time, 0.0)
    return time
