"""Objects for single worlds: up to three boxes or a disc, drawn from the seed or held out.

All worlds share one model with ``NUM_BOXES`` boxes and a cylinder. Model fields give each world
its sizes, positions, masses and friction. Missing parts are shrunk inside the first box.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files

import mujoco
import numpy as np
import torch

from mqe.config import ConfigError
from mqe.extensions import Registry
from mqe.world.fields import WorldFields, object_friction_fields
from mqe.world.objects import OBJECTS, GeomCfg, ObjectCfg
from mqe.world.scene import Scene, with_sliding_force
from mqe.world.streams import Streams

NUM_BOXES = 3
DRAWN = "drawn"
DISC = "disc"
HELD_OUT = "held_out"
HEIGHT = 0.5  # [m] of every box
# Ranges of drawn shapes
DRAWN_FRICTION = (0.2, 1.0)
DRAWN_MASS = (2.0, 20.0)  # [kg]
# [m] lengths of arms, and thickness of each.
ARM = (0.5, 1.2)
THICKNESS = (0.25, 0.5)
_SHRUNK = 0.01  # [m] half a side of a box that a shape lacks
_INSCRIBED = 0.97  # half the diagonal of the box in a disc, over the disc's radius
MASSES = (0.1, 1000.0)  # [kg] of objects in settings
_NUM_DRAWN = 7  # family, four lengths, mass, friction

Box = Sequence[float]  # [m] centre x, y and lengths along x, y


def _u_shape(a: float, b: float, s: float, t: float) -> list[Box]:
    t = min(t, 0.3 * a)
    side = 0.5 * (a - t)
    arm = 0.5 * b
    y = 0.5 * (s + arm)
    return [(0.0, 0.0, a, s), (-side, y, t, arm), (side, y, t, arm)]


def _plus(a: float, b: float, s: float, t: float) -> list[Box]:
    arm = 0.5 * max(b - s, 0.2)
    y = 0.5 * (s + arm)
    return [(0.0, 0.0, a, s), (0.0, -y, t, arm), (0.0, y, t, arm)]


def _disc(a: float, b: float, s: float, t: float) -> list[Box]:
    """Return the box in a disc, on which it stands."""
    side = _INSCRIBED * (1.2 + 2.0 * a) / math.sqrt(2.0)
    return [(0.0, 0.0, side, side)]


# Boxes of two arms and two thicknesses; the first one's centre is the origin.
FAMILIES: Registry[Callable[[float, float, float, float], list[Box]]] = Registry(
    "family of shapes",
    {
        "bar": lambda a, b, s, t: [(0.0, 0.0, a, b)],
        "L": lambda a, b, s, t: [(0.0, 0.0, a, s), (0.5 * (t - a), 0.5 * (s + b), t, b)],
        "T": lambda a, b, s, t: [(0.0, 0.0, a, s), (0.0, 0.5 * (s + b), t, b)],
        "U": _u_shape,
        "plus": _plus,
        "slat": lambda a, b, s, t: [(0.0, 0.0, s, 2.0 * a)],
        DISC: _disc,
    },
)


def make_shape(name: str, boxes: Sequence[Box], mass: float, friction: float) -> ObjectCfg:
    """Return an object of equally dense ``boxes``. A ``disc`` is a cylinder round its box.

    ``mass`` is in kg. ``friction`` is the material's own coefficient.
    """
    is_disc = name == DISC
    areas = [box[2] * box[3] for box in boxes]
    masses = [0.0 if is_disc else mass * area / sum(areas) for area in areas]
    geoms = [
        GeomCfg("box", (x_length, y_length, HEIGHT), part_mass, (x, y, 0.0))
        for (x, y, x_length, y_length), part_mass in zip(boxes, masses, strict=True)
    ]
    if is_disc:
        radius = math.hypot(*geoms[0].half_extents) / _INSCRIBED
        geoms.append(GeomCfg("cylinder", (radius, HEIGHT), mass))
    return ObjectCfg(
        name=name,
        geoms=tuple(geoms),
        outline=_rectangle_round([corner for geom in geoms for corner in geom.corners().tolist()]),
        friction=(friction, friction),
        spawn_height=0.5 * HEIGHT + 0.03,
        spawn_tilt=0.01,
    )


def draw_shapes(
    streams: Streams,
    purpose: int,
    force: tuple[float, float] | None = None,
    kinds: Sequence[str] = (),
) -> list[ObjectCfg]:
    """Return an object for each world in ``streams``, from the seed and the world's number.

    Masses lie in ``DRAWN_MASS``, or follow from sliding forces in the range ``force`` [N].
    ``kinds`` are families and box objects, all families by default. A repeated kind is drawn more
    often.
    """
    drawn = streams.uniform(purpose, streams.once, (_NUM_DRAWN,)).cpu().double()
    kinds = kinds or list(FAMILIES)
    shapes = []
    for row in drawn.tolist():
        kind = kinds[int(row[0] * len(kinds))]
        arms = [_between(ARM, number) for number in row[1:3]]
        thicknesses = [_between(THICKNESS, number) for number in row[3:5]]
        boxes = _boxes_of_kind(kind, *arms, *thicknesses)
        friction = _between(DRAWN_FRICTION, row[6])
        shape = make_shape(kind, boxes, _between(DRAWN_MASS, row[5]), friction)
        if force is not None:
            shape = with_sliding_force(shape, _between(force, row[5]))
        shapes.append(shape)
    return shapes


def check_kinds(kinds: Sequence[str]) -> None:
    """Raise ConfigError for an unknown kind of shapes."""
    of_boxes = [name for name, obj in OBJECTS.items() if _is_shape(obj)]
    for kind in kinds:
        if kind not in FAMILIES and kind not in of_boxes:
            raise ConfigError(
                f"task.shape_kinds: {kind!r} is unknown; name a family ({', '.join(FAMILIES)}) or "
                f"an object of boxes {HEIGHT} m high ({', '.join(of_boxes)})"
            )


@cache
def held_out_shapes() -> list[ObjectCfg]:
    """Return 20 shapes for tests, never used for training."""
    path = files("mqe") / "assets" / "shapes" / "held_out.json"
    return [make_shape(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))]


def common_object(shapes: Sequence[ObjectCfg]) -> ObjectCfg:
    """Return the object for the model of all worlds: the one with the narrowest first box.

    The inside of that box is inside every object (``broken_worlds``). Its outline surrounds all
    shapes.
    """
    corners = [corner for shape in shapes for corner in shape.outline]
    narrowest = min(shapes, key=lambda shape: min(shape.geoms[0].size))
    return replace(
        narrowest, geoms=_padded(narrowest), outline=_rectangle_round(corners), is_variable=True
    )


def shape_fields(scene: Scene, shapes: Sequence[ObjectCfg]) -> WorldFields:
    """Return the model fields (N, ...) for each world's shape."""
    model = scene.model
    body = model.body("object").id
    friction = torch.tensor([shape.friction[0] for shape in shapes], dtype=torch.float64)
    made = object_friction_fields(scene, friction)
    names = ("geom_size", "geom_pos", "geom_rbound", "geom_aabb")
    names += ("body_mass", "body_ipos", "body_iquat", "body_inertia")
    fields = {name: made[name].numpy() for name in names}  # views
    for world, shape in enumerate(shapes):
        for geom, part in zip(scene.object_geoms, _padded(shape), strict=True):
            size = _size(part)
            fields["geom_size"][world, geom] = size
            fields["geom_pos"][world, geom] = part.pos
            fields["geom_rbound"][world, geom] = np.linalg.norm(size)
            fields["geom_aabb"][world, geom, 3:] = (*part.half_extents, 0.5 * part.size[-1])
        mass, center, inertia = shape.inertia()
        moments, axes = np.linalg.eigh(inertia)
        axes[:, 2] *= np.sign(np.linalg.det(axes))
        quat = np.zeros(4)
        mujoco.mju_mat2Quat(quat, axes.flatten())
        fields["body_mass"][world, body] = mass
        fields["body_ipos"][world, body] = center
        fields["body_iquat"][world, body] = quat
        fields["body_inertia"][world, body] = moments
    return made


def _size(part: GeomCfg) -> tuple[float, float, float]:
    """Return MuJoCo's size of a part: half the lengths of a box, or a cylinder's radius, half its
    height, and 0.
    """
    half_height = 0.5 * part.size[-1]
    if part.type == "cylinder":
        return part.size[0], half_height, 0.0
    return *part.half_extents, half_height


def _boxes_of_kind(kind: str, a: float, b: float, s: float, t: float) -> list[Box]:
    """Return an object's boxes, or a family's with these arms and thicknesses."""
    if kind in FAMILIES:
        return FAMILIES[kind](a, b, s, t)
    return [(*part.pos[:2], *part.size[:2]) for part in OBJECTS[kind].geoms]


def _is_shape(obj: ObjectCfg) -> bool:
    """Return whether an object could be one of a world's shapes."""
    return len(obj.geoms) <= NUM_BOXES and all(
        geom.type == "box" and geom.size[2] == HEIGHT for geom in obj.geoms
    )


def _between(bounds: tuple[float, float], number: float) -> float:
    return bounds[0] + (bounds[1] - bounds[0]) * number


def _padded(shape: ObjectCfg) -> tuple[GeomCfg, ...]:
    """Return a shape's ``NUM_BOXES`` boxes and its cylinder. Tiny ones lie in its middle where it
    has none.
    """
    tiny = GeomCfg("box", (2.0 * _SHRUNK, 2.0 * _SHRUNK, 2.0 * _SHRUNK), 0.0)
    boxes = [geom for geom in shape.geoms if geom.type == "box"]
    rounds = [geom for geom in shape.geoms if geom.type == "cylinder"]
    rounds = rounds or [GeomCfg("cylinder", (_SHRUNK, 2.0 * _SHRUNK), 0.0)]
    return (*boxes, *[tiny] * (NUM_BOXES - len(boxes)), *rounds)


def _rectangle_round(corners: Sequence[Sequence[float]]) -> tuple[tuple[float, float], ...]:
    """Return the corners of the rectangle round points, counter-clockwise."""
    x_low, y_low = (min(values) for values in zip(*corners, strict=True))
    x_high, y_high = (max(values) for values in zip(*corners, strict=True))
    return ((x_low, y_low), (x_high, y_low), (x_high, y_high), (x_low, y_high))
