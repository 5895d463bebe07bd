"""Objects for pushing: shape, mass, friction and outline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, replace
from importlib.resources import files
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mqe.config import ConfigError, build, check_ranges, check_values, load_yaml, option
from mqe.extensions import Registry
from mqe.world.geometry import crosses_box, dot, in_frame, length

FLOOR_FRICTION = 0.1  # the reference's ground mesh
ROBOT_FRICTION = 1.0  # the reference's importer default
ROBOT_FLOOR_FRICTION = 0.5 * (ROBOT_FRICTION + FLOOR_FRICTION)  # 0.55
INERTIAS = ("physical", "reference")
REST_SPEED = 0.02  # [m/s] an object slower than this rests
NUM_OUTLINE_POINTS = 16
NUM_LENGTHS = {"box": 3, "cylinder": 2}  # in the size of a part, by its type
GRAZE = 0.005  # [m] depth in an object below which a line of sight only grazes it
_LONGEST = 100.0  # [m]
_LIGHTEST = 1e-6  # [kg] of an object

_Number = TypeVar("_Number", float, Tensor)


@dataclass(frozen=True)
class GeomCfg:
    """One convex part of an object."""

    type: str = option(MISSING, "box, or cylinder with the axis z", choices=NUM_LENGTHS)
    size: tuple[float, ...] = option(
        MISSING, "box: full x, y, z; cylinder: radius, height [m]", min=1e-4, max=_LONGEST
    )
    mass: float = option(MISSING, "mass [kg]", min=0.0, max=1e7)
    pos: tuple[float, float, float] = option(
        (0.0, 0.0, 0.0), "centre in the object frame [m]", min=-_LONGEST, max=_LONGEST
    )
    reference_inertia: tuple[float, float, float] | None = option(
        None, "diagonal that the reference's URDF states [kg m^2]"
    )

    def __post_init__(self) -> None:
        check_values(GeomCfg, vars(self), "object part")
        if len(self.size) != NUM_LENGTHS[self.type]:
            raise ConfigError(
                f"object part: size={self.size}: a {self.type} has {NUM_LENGTHS[self.type]} "
                "lengths; give a box x, y, z, and a cylinder radius, height"
            )

    @property
    def half_extents(self) -> tuple[float, float]:
        """Half-extents along x and y [m]."""
        if self.type == "box":
            return 0.5 * self.size[0], 0.5 * self.size[1]
        return self.size[0], self.size[0]

    def corners(self) -> NDArray[np.float64]:
        """Return the corners (4, 2) [m] of the rectangle round it, object frame."""
        signs = np.array([(-1.0, -1.0), (-1.0, 1.0), (1.0, -1.0), (1.0, 1.0)])
        return self.pos[:2] + signs * self.half_extents

    def inertia(self, kind: str) -> NDArray[np.float64]:
        """Return the inertia (3,) [kg m^2] about the part's centre, along the object's axes:
        ``physical`` or ``reference``.
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
    outline: tuple[tuple[float, float], ...] = option(
        MISSING, "corners of the reward's polygon, in their order around it, object frame [m]"
    )
    friction: tuple[float, float] = option(
        MISSING, "range of the material's own coefficient", min=0.0, max=10.0
    )
    spawn_height: float = option(
        MISSING, "origin at spawn above the floor [m]", min=0.0, max=_LONGEST
    )
    spawn_tilt: float = option(
        MISSING, "largest roll and pitch at spawn [rad]", min=0.0, max=0.5 * math.pi
    )
    spawn_ring: tuple[float, float] = option(
        (1.2, 1.3),
        "inner and outer radius around the object where robots start [m]",
        above=0.0,
        max=_LONGEST,
    )
    collision_distance: float = option(
        0.25, "trunk origins closer than this are a collision [m]", min=0.0, max=_LONGEST
    )
    num_agents: int = option(2, "usual number of robots", min=1)
    # Other worlds give the object's body another inertia, which MuJoCo may then not simplify.
    is_variable: bool = False

    def __post_init__(self) -> None:
        where = f"object {ascii(self.name)[1:-1]}"
        check_values(ObjectCfg, vars(self), where)
        check_ranges(self, where)
        if not self.geoms or self.mass < _LIGHTEST:
            raise ConfigError(
                f"{where}: its parts have {self.mass:g} kg together; give it parts of "
                f"{_LIGHTEST:g} kg or more in all"
            )
        object.__setattr__(self, "outline", _counter_clockwise(self.outline, where))
        lowest = min(geom.pos[2] - 0.5 * geom.size[-1] for geom in self.geoms)
        if self.spawn_height + lowest < 0.0:
            raise ConfigError(
                f"{where}: spawned at a height of {self.spawn_height} m the object "
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
        wider = replace(self, geoms=tuple(map(widened, self.geoms)), outline=outline)
        further = wider.reach - self.reach
        nearest, furthest = self.spawn_ring
        return replace(wider, spawn_ring=(nearest + further, furthest + further))

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
                "task.inertia=physical, or state it in the object"
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


def _counter_clockwise(
    outline: tuple[tuple[float, float], ...], where: str
) -> tuple[tuple[float, float], ...]:
    """Return a polygon's corners counter-clockwise. Raise ConfigError for one without an area."""
    x, y = np.array(outline).reshape(-1, 2).T
    area = 0.5 * float(x @ np.roll(y, -1) - y @ np.roll(x, -1))
    if abs(area) < 1e-8:
        raise ConfigError(
            f"{where}: its outline has no area; list the corners in their order around it"
        )
    return outline if area > 0.0 else outline[::-1]


class Footprint:
    """The outline of one object in all worlds, or of each world's own, seen from above.

    Tensors on one device. N worlds, or 1 for one object in all of them. P points, G parts, V
    corners.
    """

    def __init__(
        self, cfg: ObjectCfg, device: torch.device | str = "cpu", shapes: Sequence[ObjectCfg] = ()
    ) -> None:
        """Describe ``cfg``, or the worlds' own ``shapes``. Shapes have equally many corners."""
        self.cfg = cfg
        self._device = device
        shapes = shapes or (cfg,)
        num_parts = max(len(shape.geoms) for shape in shapes)
        # The first part again where others have more.
        parts = [(*s.geoms, *s.geoms[:1] * (num_parts - len(s.geoms))) for s in shapes]
        boxes = [[geom.size[:2] if geom.type == "box" else (0.0, 0.0) for geom in s] for s in parts]
        radii = [[geom.size[0] if geom.type == "cylinder" else 0.0 for geom in s] for s in parts]
        self._centers = self._tensor([[geom.pos[:2] for geom in geoms] for geoms in parts])
        self._half_sizes = self._tensor(boxes) / 2
        self._radii = self._tensor(radii)
        self._corners = self._tensor([shape.outline for shape in shapes])
        edge = torch.roll(self._corners, -1, dims=-2) - self._corners
        self._lengths = length(edge)
        along = edge / self._lengths.unsqueeze(-1)
        self._inward = torch.stack((-along[..., 1], along[..., 0]), dim=-1)
        self._frames = torch.stack((along, self._inward), dim=-2)  # along each edge, then inward
        points = np.array([_outline_points(shape) for shape in shapes])
        self.points = torch.tensor(points, dtype=torch.float32, device=device)  # (N, 16, 2)
        equal_headings = [float(shape.num_equal_headings) for shape in shapes]
        self.equal_headings = torch.tensor(equal_headings, device=device)  # (N,)

    def distance(self, points: Tensor) -> Tensor:
        """Return the distance (..., P) [m] from points (..., P, 2), object frame, to the true
        outline, 0 inside.
        """
        gap = length(self._ways(points)) - self._radii
        return gap.clamp(min=0.0).amin(dim=-1)

    def towards(self, points: Tensor) -> Tensor:
        """Return the unit vectors (..., P, 2), object frame, from points (..., P, 2) to the nearest
        points of the true outline, 0 inside a box.
        """
        way = self._ways(points)
        nearest = (length(way) - self._radii).argmin(dim=-1)
        way = way.take_along_dim(nearest[..., None, None], dim=-2).squeeze(-2)
        return way / length(way).clamp(min=1e-6).unsqueeze(-1)

    def is_crossed(self, starts: Tensor, ends: Tensor) -> Tensor:
        """Return a mask (..., P) of the straight lines from ``starts`` to ``ends`` (..., P, 2),
        object frame, through the object.

        A line that touches the outline or ends on its near side crosses nothing.
        """
        start = starts.unsqueeze(-2) - self._centers
        way = (ends - starts).unsqueeze(-2)
        is_through_box = crosses_box(start, way, self._half_sizes - GRAZE)
        square = way.square().sum(dim=-1).clamp(min=1e-12)
        nearest = (-dot(start, way) / square).clamp(0.0, 1.0).unsqueeze(-1)
        is_through_disc = length(start + nearest * way) < self._radii - GRAZE
        return (is_through_box | is_through_disc).any(dim=-1)

    def _ways(self, points: Tensor) -> Tensor:
        """Return the ways (..., P, G, 2) [m] from ``points`` (..., P, 2) to the boxes and to the
        middles of cylinders, object frame.
        """
        offset = points.unsqueeze(-2) - self._centers
        return offset.clamp(-self._half_sizes, self._half_sizes) - offset

    def push_direction(self, points: Tensor) -> Tensor:
        """Return the inward unit normals (..., P, 2), object frame, of the reward polygon's nearest
        edges.

        ``points`` (..., P, 2) [m] are in the object frame. An edge's distance is that to its
        nearest point. Behind a corner two edges tie exactly, because both take the distance to the
        shared corner from one number. Then the first edge wins.
        """
        offset = points.unsqueeze(-2) - self._corners  # (..., P, V, 2)
        foot, height = in_frame(offset, self._frames).unbind(dim=-1)
        corner = offset.square().sum(dim=-1)
        corner = torch.minimum(corner, torch.roll(corner, -1, dims=-1))
        is_beside = (foot >= 0.0) & (foot <= self._lengths)
        nearest = torch.where(is_beside, height.square(), corner).argmin(dim=-1)
        inward = self._inward.expand(*offset.shape)
        return inward.take_along_dim(nearest[..., None, None], dim=-2).squeeze(-2)

    def points_of(self, num_worlds: int) -> Tensor:
        """Return the outline's points, (1, 16, 2) for all W worlds or (W, 16, 2)."""
        return repeated(self.points, num_worlds)

    def equal_headings_of(self, num_worlds: int) -> Tensor:
        """Return the number of headings with equal appearance, 0 for all, (1,) for all W worlds or
        (W,).
        """
        return repeated(self.equal_headings, num_worlds)

    def _tensor(self, rows: Sequence[Any]) -> Tensor:
        """Return the row of a single object, or every world's row as (N, 1, ...)."""
        values = torch.tensor(rows, device=self._device)
        return values[0] if len(rows) == 1 else values.unsqueeze(1)


def repeated(values: Tensor, num_worlds: int) -> Tensor:
    """Return the values (N, ...) of all worlds, repeated from the first on until they are W.

    A single value stays single.
    """
    if len(values) == 1:
        return values
    return torch.cat([values] * -(-num_worlds // len(values)))[:num_worlds]


def _outline_points(obj: ObjectCfg) -> NDArray[np.float64]:
    """Return points (16, 2) [m] on the true outline, object frame.

    The points are the outline's furthest points on rays from the origin. Bearings are even round a
    square and stretched by a long object. In an object with two symmetric sides, point 15 - k
    mirrors point k in the x axis, and point 7 - k (modulo 16) in the y axis.
    """
    reach = np.abs([geom.corners() for geom in obj.geoms]).max(axis=(0, 1))
    angle = (np.arange(NUM_OUTLINE_POINTS) + 0.5) * (2.0 * math.pi / NUM_OUTLINE_POINTS)
    rays = reach * np.stack((np.cos(angle), np.sin(angle)), axis=1)
    rays /= np.linalg.norm(rays, axis=1, keepdims=True)
    return rays * np.max([_ray_exits(geom, rays) for geom in obj.geoms], axis=0)[:, None]


def _ray_exits(geom: GeomCfg, rays: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the distance (R,) [m] from the origin to each ray's (R, 2) exit from a part, seen from
    above.

    A ray beside the part has 0.
    """
    center = np.array(geom.pos[:2])
    if geom.type == "box":
        half_size = np.array(geom.half_extents)
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


_SHIPPED = load_yaml(str(files("mqe") / "assets" / "objects.yaml"))
OBJECTS: Registry[ObjectCfg] = Registry("object")
for _name, _values in _SHIPPED.items():
    OBJECTS.register(_name, build(ObjectCfg, {"name": _name, **_values}, f"object {_name}"))
