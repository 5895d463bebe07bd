"""Objects for pushing: shape, mass, friction and outline.

Sizes, masses and friction ranges come from the reference's URDF files and task configurations. Its
floor lies at z = 0.02 m, ours at 0. Heights are the reference's minus that slab.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mqe.config import ConfigError
from mqe.extensions import Registry
from mqe.world import geometry

FLOOR_SLAB = 0.02  # [m] what the reference's heights contain and ours do not
FLOOR_FRICTION = 0.1  # the reference's ground mesh
ROBOT_FRICTION = 1.0  # the reference's importer default
ROBOT_FLOOR_FRICTION = 0.5 * (ROBOT_FRICTION + FLOOR_FRICTION)  # 0.55
INERTIAS = ("physical", "reference")
REST_SPEED = 0.02  # [m/s] an object slower than this rests
NUM_OUTLINE_POINTS = 16
NUM_LENGTHS = {"box": 3, "cylinder": 2}  # in the size of a part, by its type
_LENGTHS = (1e-4, 100.0)  # [m]
_MASSES = (1e-6, 1e7)  # [kg] of an object
_MOST_FRICTION = 10.0
_LONGEST_NAME = 100
_FLAT = 1e-6  # [rad] a corner that turns by less may be one of rounding

_Number = TypeVar("_Number", float, Tensor)


@dataclass(frozen=True)
class GeomCfg:
    """One convex part of an object."""

    type: str  # "box" or "cylinder" (axis z)
    size: tuple[float, ...]  # [m] box: full x, y, z; cylinder: radius, height
    mass: float  # [kg]
    pos: tuple[float, float, float] = (0.0, 0.0, 0.0)  # [m] centre in the object frame
    reference_inertia: tuple[float, float, float] | None = (
        None  # [kg m^2] the diagonal its URDF states, if it has one
    )

    def inertia(self, kind: str) -> NDArray[np.float64]:
        """Return the inertia (3,) [kg m^2] about the part's centre, along its axes: ``physical``
        or ``reference``.
        """
        if kind == "reference":
            assert self.reference_inertia is not None  # ObjectCfg.inertia says so to the user
            return np.array(self.reference_inertia)
        if self.type == "box":
            xx, yy, zz = np.square(self.size)
            return self.mass / 12.0 * np.array([yy + zz, xx + zz, xx + yy])
        radius, height = self.size
        across = self.mass / 12.0 * (3.0 * radius**2 + height**2)
        return np.array([across, across, 0.5 * self.mass * radius**2])


@dataclass(frozen=True)
class ObjectCfg:
    """An object for pushing, with its properties for the task.

    The object frame has its origin, the "object position", at the first part's centre. The centre
    of mass may lie elsewhere.
    """

    name: str
    geoms: tuple[GeomCfg, ...]
    # [m] the reward's polygon, counter-clockwise, object frame.
    outline: tuple[tuple[float, float], ...]
    # Range of the material's own coefficient; see the pair functions below.
    friction: tuple[float, float]
    spawn_height: float  # [m] object origin at spawn above the floor
    spawn_tilt: float  # [rad] largest roll and pitch at spawn
    # [m] inner and outer radius around the object where robots start.
    spawn_ring: tuple[float, float] = (
        1.2,
        1.3,
    )
    collision_distance: float = 0.25  # [m] trunk origins closer than this are a collision
    num_agents: int = 2  # the reference's team
    # Other worlds give the object's body another inertia, which MuJoCo may then not simplify.
    is_variable: bool = False

    def __post_init__(self) -> None:
        _check_name(self.name)
        _check_parts(self)
        _check_ranges(self)
        object.__setattr__(self, "outline", _counter_clockwise(self))
        lowest = min(geom.pos[2] - 0.5 * geom.size[-1] for geom in self.geoms)
        if self.spawn_height + lowest < 0.0:
            raise ConfigError(
                f"object {self.name}: spawned at a height of {self.spawn_height} m the object "
                f"reaches into the floor; raise spawn_height to {-lowest:g} m"
            )

    @property
    def mass(self) -> float:
        """Return the total mass [kg]."""
        return sum(geom.mass for geom in self.geoms)

    @property
    def reach(self) -> float:
        """Return the distance [m] from the origin to the furthest corner."""
        return max(math.hypot(x, y) for x, y in self.outline)

    def with_mass(self, mass: float) -> ObjectCfg:
        """Return the object with total mass ``mass`` [kg], distributed as before."""
        factor = mass / self.mass
        geoms = tuple(replace(geom, mass=factor * geom.mass) for geom in self.geoms)
        return replace(self, geoms=geoms)

    def with_width(self, factor: float) -> ObjectCfg:
        """Return the object with lengths along y multiplied by ``factor``, at equal mass.

        A cylinder's radius is multiplied instead. Robots spawn further out by the gain in reach.
        """

        def widened(geom: GeomCfg) -> GeomCfg:
            x, y, z = geom.pos
            if geom.type == "box":
                size = (geom.size[0], factor * geom.size[1], geom.size[2])
                return replace(geom, size=size, pos=(x, factor * y, z))
            size = (factor * geom.size[0], geom.size[1])
            return replace(geom, size=size, pos=(factor * x, factor * y, z))

        along_x = factor if any(geom.type == "cylinder" for geom in self.geoms) else 1.0
        outline = tuple((along_x * x, factor * y) for x, y in self.outline)
        reach = max(math.hypot(x, y) for x, y in outline)
        further = reach - self.reach
        nearest, furthest = self.spawn_ring
        return replace(
            self,
            geoms=tuple(widened(geom) for geom in self.geoms),
            outline=outline,
            spawn_ring=(nearest + further, furthest + further),
        )

    @property
    def num_equal_headings(self) -> int:
        """Number of headings with equal appearance, 0 for all headings."""

        def turned(quarters: int) -> set[Any]:
            geoms = set()
            for geom in self.geoms:
                x, y, z = geom.pos
                size = geom.size
                for _ in range(quarters):
                    x, y = -y, x
                    if geom.type == "box":
                        size = (size[1], size[0], size[2])
                geoms.add((geom.type, size, geom.mass, (x, y, z)))
            return geoms

        if all(geom.type == "cylinder" and geom.pos[:2] == (0.0, 0.0) for geom in self.geoms):
            return 0
        if turned(1) == turned(0):
            return 4
        return 2 if turned(2) == turned(0) else 1

    @property
    def mirror_signs(self) -> tuple[float, float] | None:
        """Signs of x and y, object frame, in a reflection onto itself. None for an asymmetric
        object.
        """

        def looks(x: float, y: float) -> tuple[set[Any], set[Any]]:
            geoms = {
                (g.type, g.size, g.mass, (x * g.pos[0], y * g.pos[1], g.pos[2])) for g in self.geoms
            }
            return geoms, {(x * corner[0], y * corner[1]) for corner in self.outline}

        return next(
            (signs for signs in ((1.0, -1.0), (-1.0, 1.0)) if looks(*signs) == looks(1.0, 1.0)),
            None,
        )

    def inertia(
        self, kind: str = "physical"
    ) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
        """Return mass [kg], centre of mass (3,) [m] and inertia (3, 3) [kg m^2] in the object
        frame.

        ``physical``: every part has uniform density. ``reference``: parts have their URDF files'
        placeholders. Raise ConfigError for a part without one. Parts add up by the parallel axis
        theorem.
        """
        if kind == "reference" and any(geom.reference_inertia is None for geom in self.geoms):
            raise ConfigError(
                f"task.inertia=reference: object {self.name!r} has a part without "
                "reference_inertia; say "
                "task.inertia=physical, or state it in mqe/world/objects.py"
            )
        centers = np.array([geom.pos for geom in self.geoms])
        masses = np.array([geom.mass for geom in self.geoms])
        com = masses @ centers / masses.sum()
        total = np.zeros((3, 3))
        for geom, arm in zip(self.geoms, centers - com, strict=True):
            total += np.diag(geom.inertia(kind)) + geom.mass * (
                arm @ arm * np.eye(3) - np.outer(arm, arm)
            )
        return float(masses.sum()), com, total


def _check_name(name: str) -> None:
    """Raise ConfigError for a name without a printed form."""
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= _LONGEST_NAME:
        raise ConfigError(
            f"object {name!r:.100}: the name must be 1 to {_LONGEST_NAME} printable characters"
        )


def _check_parts(cfg: ObjectCfg) -> None:
    """Raise ConfigError for parts without a valid shape, size, position or mass."""
    if not cfg.geoms:
        raise ConfigError(f"object {cfg.name}: geoms is empty; add a GeomCfg")
    for geom in cfg.geoms:
        num_lengths = NUM_LENGTHS.get(geom.type)
        if num_lengths is None or not _are_within(geom.size, num_lengths, *_LENGTHS):
            raise ConfigError(
                f"object {cfg.name}: geoms: a {geom.type} has size={geom.size}; allowed are box "
                f"(3 lengths) and cylinder (radius, height), each from {_LENGTHS[0]:g} to "
                f"{_LENGTHS[1]:g} m"
            )
        if not _are_within(geom.pos, 3, -_LENGTHS[1], _LENGTHS[1]):
            raise ConfigError(
                f"object {cfg.name}: geoms: a part has pos={geom.pos}; three numbers up to "
                f"{_LENGTHS[1]:g} m are allowed"
            )
        if not _are_within([geom.mass], 1, 0.0, _MASSES[1]):
            raise ConfigError(
                f"object {cfg.name}: geoms: a part has mass={geom.mass}; a number from 0 to "
                f"{_MASSES[1]:g} kg is allowed"
            )
    if not _are_within([cfg.mass], 1, *_MASSES):
        raise ConfigError(
            f"object {cfg.name}: its parts have {cfg.mass:g} kg together; an object has "
            f"{_MASSES[0]:g} to {_MASSES[1]:g} kg"
        )


def _check_ranges(cfg: ObjectCfg) -> None:
    """Raise ConfigError for a value out of range, or a reversed range."""
    for name, unit, (smallest, largest) in (
        ("friction", "", (0.0, _MOST_FRICTION)),
        ("spawn_ring", " m", _LENGTHS),
    ):
        ends = getattr(cfg, name)
        if not _are_within(ends, 2, smallest, largest) or ends[0] > ends[1]:
            raise ConfigError(
                f"object {cfg.name}: {name}={ends}; two numbers from {smallest:g} to "
                f"{largest:g}{unit} are allowed, the smaller one first"
            )
    for name, unit, (smallest, largest) in (
        ("spawn_height", "m", (0.0, _LENGTHS[1])),
        ("spawn_tilt", "rad", (0.0, 0.5 * math.pi)),
        ("collision_distance", "m", (0.0, _LENGTHS[1])),
    ):
        if not _are_within([getattr(cfg, name)], 1, smallest, largest):
            raise ConfigError(
                f"object {cfg.name}: {name}={getattr(cfg, name)}; a number from {smallest:g} to "
                f"{largest:g} {unit} is allowed"
            )


def _counter_clockwise(cfg: ObjectCfg) -> tuple[tuple[float, float], ...]:
    """Return an object's outline counter-clockwise. Raise ConfigError unless it is convex."""
    outline = tuple(cfg.outline)
    if not all(_are_within(corner, 2, -_LENGTHS[1], _LENGTHS[1]) for corner in outline):
        raise ConfigError(
            f"object {cfg.name}: a corner of its outline is no pair of numbers up to "
            f"{_LENGTHS[1]:g} m"
        )
    corners = np.array(outline, dtype=np.float64).reshape(-1, 2)
    edges = np.roll(corners, -1, axis=0) - corners
    following = np.roll(edges, -1, axis=0)
    cross = edges[:, 0] * following[:, 1] - edges[:, 1] * following[:, 0]
    turns = np.arctan2(cross, (edges * following).sum(axis=1))
    is_one_way = (turns > -_FLAT).all() or (turns < _FLAT).all()
    has_length = (np.linalg.norm(edges, axis=1) >= _LENGTHS[0]).all()
    is_round_once = math.isclose(abs(turns.sum()), 2.0 * math.pi, rel_tol=1e-6)
    if len(corners) < 3 or not (is_one_way and has_length and is_round_once):
        raise ConfigError(
            f"object {cfg.name}: its outline {outline} is no convex polygon; list at least three "
            "different corners in their order around it"
        )
    return outline if turns.sum() > 0.0 else outline[::-1]


def _are_within(values: Sequence[Any], count: int, smallest: float, largest: float) -> bool:
    """Return whether ``values`` are ``count`` numbers from ``smallest`` to ``largest``."""
    return len(values) == count and all(
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and smallest <= value <= largest
        for value in values
    )


class Footprint:
    """An object's outline seen from above, as tensors on one device."""

    def __init__(self, cfg: ObjectCfg, device: torch.device | str = "cpu") -> None:
        self.cfg = cfg
        self.polygon = geometry.Polygon(torch.tensor(cfg.outline, device=device))
        self.parts: list[Callable[[Tensor], Tensor]] = []
        boxes = [geom for geom in cfg.geoms if geom.type == "box"]
        discs = [geom for geom in cfg.geoms if geom.type == "cylinder"]
        if boxes:
            centers = torch.tensor([geom.pos[:2] for geom in boxes], device=device)
            half_sizes = torch.tensor([geom.size[:2] for geom in boxes], device=device) / 2
            self.parts.append(
                lambda points: geometry.distance_to_boxes(points, centers, half_sizes)
            )
        if discs:
            disc_centers = torch.tensor([geom.pos[:2] for geom in discs], device=device)
            radii = torch.tensor([geom.size[0] for geom in discs], device=device)
            self.parts.append(
                lambda points: geometry.distance_to_discs(points, disc_centers, radii)
            )
        self.equal_headings = torch.tensor([float(cfg.num_equal_headings)], device=device)

    def distance(self, points: Tensor) -> Tensor:
        """Return the distance (...) [m] from points (..., 2), object frame, to the true outline, 0
        inside.
        """
        return reduce(torch.minimum, [part(points) for part in self.parts])

    def push_direction(self, points: Tensor) -> Tensor:
        """Return the inward unit normals (..., 2), object frame, of the reward polygon's nearest
        edges.

        ``points`` (..., 2) [m] are in the object frame.
        """
        return self.polygon.inward_normal(points)

    @cached_property
    def outline_points(self) -> Tensor:
        """(16, 2) [m] points on the true outline, object frame.

        The points are the outline's furthest points on rays from the origin. Bearings are even
        round a square and stretched by a long object. In an object with two symmetric sides, point
        15 - k mirrors point k in the x axis, and point 7 - k (modulo 16) in the y axis.
        """
        reach = np.array([[abs(x) for x in corner] for corner in self._corners()]).max(axis=0)
        angle = (np.arange(NUM_OUTLINE_POINTS) + 0.5) * (2.0 * math.pi / NUM_OUTLINE_POINTS)
        rays = reach * np.stack((np.cos(angle), np.sin(angle)), axis=1)
        rays /= np.linalg.norm(rays, axis=1, keepdims=True)
        furthest = np.max([_ray_exits(geom, rays) for geom in self.cfg.geoms], axis=0)
        points = rays * furthest[:, None]
        return torch.tensor(points, dtype=torch.float32, device=self.polygon.vertices.device)

    def points_of(self, num_worlds: int) -> Tensor:
        """Return the outline's points, (1, 16, 2) for all W worlds or (W, 16, 2)."""
        return self.outline_points.unsqueeze(0)

    def equal_headings_of(self, num_worlds: int) -> Tensor:
        """Return the number of headings with equal appearance, 0 for all, (1,) for all W worlds or
        (W,).
        """
        return self.equal_headings

    def _corners(self) -> list[tuple[float, float]]:
        """Return opposite corners of every part's bounding rectangle [m], object frame."""
        corners = []
        for geom in self.cfg.geoms:
            half_x = geom.size[0]
            half_y = geom.size[0]
            if geom.type == "box":
                half_x = 0.5 * geom.size[0]
                half_y = 0.5 * geom.size[1]
            x, y, _ = geom.pos
            corners += [(x - half_x, y - half_y), (x + half_x, y + half_y)]
        return corners


class Footprints(Footprint):
    """Outlines of box objects, one per world, as tensors on one device."""

    def __init__(
        self, cfg: ObjectCfg, shapes: Sequence[ObjectCfg], device: torch.device | str = "cpu"
    ) -> None:
        """Describe the objects ``shapes`` of N worlds, with further properties from ``cfg``."""
        super().__init__(cfg, device)
        most_parts = max(len(shape.geoms) for shape in shapes)
        padded = [(*s.geoms, *s.geoms[:1] * (most_parts - len(s.geoms))) for s in shapes]
        centers = [[geom.pos[:2] for geom in geoms] for geoms in padded]
        sizes = [[geom.size[:2] for geom in geoms] for geoms in padded]
        corners = torch.tensor([(s.outline[0], s.outline[2]) for s in shapes], device=device)
        self._centers = torch.tensor(centers, device=device).unsqueeze(1)  # (N, 1, B, 2)
        self._half_sizes = torch.tensor(sizes, device=device).unsqueeze(1) / 2
        self._middle = corners.mean(dim=1, keepdim=True)  # (N, 1, 2)
        self._half_reach = 0.5 * (corners[:, 1:] - corners[:, :1])
        points = [Footprint(shape).outline_points for shape in shapes]
        self.points = torch.stack(points).to(corners.device)  # (N, 16, 2)
        equal_headings = [float(shape.num_equal_headings) for shape in shapes]
        self.equal_headings = torch.tensor(equal_headings, device=device)  # (N,)

    def distance(self, points: Tensor) -> Tensor:
        """Return the distance (N, A) [m] from points (N, A, 2), object frame, to the outline, 0
        inside.
        """
        return geometry.distance_to_boxes(points, self._centers, self._half_sizes)

    def push_direction(self, points: Tensor) -> Tensor:
        """Return the inward unit normals (N, A, 2), object frame, of the bounding rectangles'
        nearest sides.

        ``points`` (N, A, 2) [m] are in the object frame.
        """
        offset = points - self._middle
        outside = offset.abs() - self._half_reach
        is_x = outside[..., :1] >= outside[..., 1:]
        is_side = torch.cat((is_x, ~is_x), dim=-1)
        return torch.where(is_side, -torch.sign(offset), 0.0)

    def points_of(self, num_worlds: int) -> Tensor:
        """Return the outline's points (W, 16, 2), repeated if W exceeds the number of worlds."""
        return _repeated(self.points, num_worlds)

    def equal_headings_of(self, num_worlds: int) -> Tensor:
        """Return the number of headings with equal appearance in each world, (W,)."""
        return _repeated(self.equal_headings, num_worlds)


def _repeated(values: Tensor, num_worlds: int) -> Tensor:
    """Return the values (N, ...) of all worlds, repeated from the first on until they are W."""
    repeats = -(-num_worlds // len(values))
    return torch.cat([values] * repeats)[:num_worlds]


def _ray_exits(geom: GeomCfg, rays: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the distance (R,) [m] from the origin to each ray's (R, 2) exit from a part, seen from
    above.

    A ray beside the part has 0.
    """
    center = np.array(geom.pos[:2])
    if geom.type == "box":
        half_size = 0.5 * np.array(geom.size[:2])
        sides = np.stack((center - half_size, center + half_size))[:, None] / rays
        enters = sides.min(axis=0).max(axis=1)
        leaves = sides.max(axis=0).min(axis=1)
        return np.where(leaves >= np.maximum(enters, 0.0), leaves, 0.0)
    along = rays @ center
    square = along**2 - center @ center + geom.size[0] ** 2
    leaves = along + np.sqrt(np.maximum(square, 0.0))
    return np.where((square >= 0.0) & (leaves > 0.0), leaves, 0.0)


def object_floor_friction(friction: _Number) -> _Number:
    """Return the Coulomb coefficient between floor and object: the materials' mean, as in PhysX."""
    return 0.5 * (friction + FLOOR_FRICTION)


def robot_object_friction(friction: _Number) -> _Number:
    """Return the Coulomb coefficient between robot and object: the materials' mean."""
    return 0.5 * (friction + ROBOT_FRICTION)


CUBOID = ObjectCfg(
    name="cuboid",
    geoms=(GeomCfg("box", (1.2, 1.2, 0.5), 4.0, reference_inertia=(0.25, 0.25, 0.25)),),
    outline=((-0.6, -0.6), (0.6, -0.6), (0.6, 0.6), (-0.6, 0.6)),
    friction=(0.5, 0.6),
    spawn_height=0.30 - FLOOR_SLAB,
    spawn_tilt=0.01,
)

# The origin is the bar's centre, the centre of mass 0.167 m towards the stem. The reward's polygon
# is a trapezoid, which covers free space on both sides of the stem.
TBLOCK = ObjectCfg(
    name="tblock",
    geoms=(
        GeomCfg("box", (1.0, 0.5, 0.5), 2.0, reference_inertia=(0.01, 0.01, 0.01)),
        GeomCfg(
            "box", (0.5, 0.5, 0.5), 1.0, pos=(0.0, 0.5, 0.0), reference_inertia=(0.01, 0.01, 0.01)
        ),
    ),
    outline=((-0.5, -0.25), (0.5, -0.25), (0.25, 0.75), (-0.25, 0.75)),
    friction=(0.6, 0.7),
    spawn_height=0.30 - FLOOR_SLAB,
    spawn_tilt=0.01,
    collision_distance=0.27,
)

# The reward's polygon is a hexagon: its push direction jumps by 60 degrees where a circle's turns
# smoothly.
CYLINDER = ObjectCfg(
    name="cylinder",
    geoms=(GeomCfg("cylinder", (1.5, 0.5), 10.0, reference_inertia=(0.0833, 0.0833, 0.0417)),),
    outline=((-0.75, -1.3), (0.75, -1.3), (1.5, 0.0), (0.75, 1.3), (-0.75, 1.3), (-1.5, 0.0)),
    friction=(0.3, 0.4),
    spawn_height=0.35 - FLOOR_SLAB,
    spawn_tilt=0.0,
    spawn_ring=(2.0, 2.5),
    num_agents=3,
)

# Ours: long enough for four robots side by side, and hard to turn from one end.
BEAM = ObjectCfg(
    name="beam",
    geoms=(GeomCfg("box", (0.4, 2.4, 0.5), 4.0),),
    outline=((-0.2, -1.2), (0.2, -1.2), (0.2, 1.2), (-0.2, 1.2)),
    friction=(0.5, 0.6),
    spawn_height=0.30 - FLOOR_SLAB,
    spawn_tilt=0.01,
    spawn_ring=(1.75, 2.0),
)

# Ours: a push above its centre of mass, or a knock, makes it fall. Friction low enough to slide.
TOWER = ObjectCfg(
    name="tower",
    geoms=(GeomCfg("box", (0.5, 0.5, 1.5), 6.0),),
    outline=((-0.25, -0.25), (0.25, -0.25), (0.25, 0.25), (-0.25, 0.25)),
    friction=(0.3, 0.4),
    spawn_height=0.76,
    spawn_tilt=0.0,
    spawn_ring=(1.2, 1.3),
)

# Ours: room for eight robots, which heavy ones take.
TANK = ObjectCfg(
    name="tank",
    geoms=(GeomCfg("cylinder", (2.75, 0.5), 40.0),),
    outline=tuple(
        # Rounded, so that corners are exact mirror images of one another.
        (round(2.75 * math.cos(k * math.pi / 6.0), 6), round(2.75 * math.sin(k * math.pi / 6.0), 6))
        for k in range(12)
    ),
    friction=(0.3, 0.4),
    spawn_height=0.35 - FLOOR_SLAB,
    spawn_tilt=0.0,
    spawn_ring=(3.3, 3.8),
    num_agents=8,
)
GIRDER = ObjectCfg(
    name="girder",
    geoms=(GeomCfg("box", (0.4, 5.2, 0.5), 20.0),),
    outline=((-0.2, -2.6), (0.2, -2.6), (0.2, 2.6), (-0.2, 2.6)),
    friction=(0.5, 0.6),
    spawn_height=0.30 - FLOOR_SLAB,
    spawn_tilt=0.0,
    spawn_ring=(3.2, 3.5),
    num_agents=8,
)
# Two floats and a bar between them, seen from above an H.
PONTOON = ObjectCfg(
    name="pontoon",
    geoms=(
        GeomCfg("box", (1.4, 0.6, 0.5), 4.0),
        GeomCfg("box", (0.5, 3.6, 0.5), 8.0, pos=(-0.95, 0.0, 0.0)),
        GeomCfg("box", (0.5, 3.6, 0.5), 8.0, pos=(0.95, 0.0, 0.0)),
    ),
    outline=((-1.2, -1.8), (1.2, -1.8), (1.2, 1.8), (-1.2, 1.8)),
    friction=(0.5, 0.6),
    spawn_height=0.30 - FLOOR_SLAB,
    spawn_tilt=0.0,
    spawn_ring=(2.8, 3.1),
    num_agents=8,
)

# Ours: the box of 105 N, 10 kg of it on one corner.
LOADED = ObjectCfg(
    name="loaded",
    geoms=(
        GeomCfg("box", (1.2, 1.2, 0.5), 23.0),
        GeomCfg("box", (0.2, 0.2, 0.2), 10.0, pos=(0.5, 0.5, 0.35)),
    ),
    outline=((-0.6, -0.6), (0.6, -0.6), (0.6, 0.6), (-0.6, 0.6)),
    friction=(0.5, 0.6),
    spawn_height=0.30 - FLOOR_SLAB,
    spawn_tilt=0.0,
)

# What users call these objects, for hints.
OTHER_NAMES = {
    "box": "cuboid",
    "cube": "cuboid",
    "block": "cuboid",
    "square": "cuboid",
    "t": "tblock",
    "tee": "tblock",
    "tshape": "tblock",
    "tbox": "tblock",
    "cyl": "cylinder",
    "disc": "cylinder",
    "disk": "cylinder",
    "drum": "cylinder",
    "round": "cylinder",
    "bar": "beam",
    "plank": "beam",
    "pole": "beam",
    "column": "tower",
    "pillar": "tower",
}

OBJECTS: Registry[ObjectCfg] = Registry("object", other_names=OTHER_NAMES)
for _cfg in (CUBOID, TBLOCK, CYLINDER, BEAM, TOWER, TANK, GIRDER, PONTOON, LOADED):
    OBJECTS.register(_cfg.name, _cfg)
