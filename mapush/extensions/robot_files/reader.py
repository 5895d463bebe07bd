"""A robot's data from its maker's file.

Wheels are hinges of the base about its y axis. Legs are found by their joints: four chains with
three hinges each, the first about the trunk's x axis, the others about y. At zero angles thigh and
calf point straight down. Each joint's frame slides along the joint's axis until thigh and foot lie
in one plane across the hip, as in ``RobotCfg``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import mujoco
import numpy as np
from numpy.typing import NDArray

from mapush.extensions.robot_files.maker_file import MakerFile, read_maker_file
from mapush.extensions.robot_files.stance import nominal_angles, stand
from mqe.world.robots import ROBOT_READERS
from mqe.world.robots.robot import LEGS, NUM_JOINTS, Inertial, Leg, RobotCfg, Shape, combine

Array = NDArray[np.float64]

SUFFIXES = (".xml", ".urdf")

_BASE = 1  # the only body of the world
_AXES = (0, 1, 1)  # of hip, thigh, calf: x, y, y
_PARALLEL = 0.999  # least cosine between a joint's axis and the trunk's
_LEVEL = 0.005  # [m] largest height of a thigh's joint over its hip, and between hips
_LONGEST = 3.0  # [m] of a leg; longer ones are in millimetres
_LARGEST_SHAPE = 3.0  # half of a shape's largest extent, over the legs' length
_EQUAL = 0.001  # [m] largest difference of lengths without a note
MAX_TRUNK_SHAPES = 3  # more become one box
_SLIMNESS = 0.7  # radius of a link without a shape, over the foot's
# Go2: 25 N m/rad and 0.8 N m s/rad for 15.2 kg on links of 0.213 m
_STIFFNESS = 25.0 / (15.2 * 0.213)  # over mass and length
_SLENDERNESS = 0.213 / 0.0955  # a wider leg needs motors as a longer one
_DAMPING = 0.8 / (25.0 * math.sqrt(0.213))  # over stiffness and the length's root


_WHEEL_TIME = 0.01  # [s] in which a wheel with its share of the robot's mass reaches its speed
_WHEEL_SPRING = 10.0  # [s] damping over stiffness of a wheel


class RobotFile(NamedTuple):
    """A robot from its maker's file."""

    cfg: RobotCfg
    notes: tuple[str, ...]  # on mass and shapes, changes, parts left out, and assumptions


class _Chain(NamedTuple):
    """A leg in the file. Its joint angles are ``signs`` times the file's, plus ``offsets``."""

    bodies: Sequence[int]  # hip, thigh, calf
    joints: Sequence[int]
    signs: tuple[float, ...]
    offsets: tuple[float, ...]  # [rad]
    hip: Array  # (3,) [m] hip joint from the file's base, at the thigh joint's x
    side: float  # [m] from there to the foot, to the left
    lengths: tuple[float, float]  # [m] thigh, calf
    foot: int  # geom


def read_robot_file(path: Path) -> RobotFile:
    """Read an MJCF or URDF, with notes for the user.

    Raises ConfigError for an unreadable file, and for a robot without wheels, or four legs of three
    joints.
    """
    file = read_maker_file(path)
    model = file.model
    # A chain's bodies follow one another.
    parents = model.body_parentid
    starts = np.flatnonzero(parents == _BASE)
    paths = np.split(np.arange(model.nbody), starts)[1:]
    lengths = [len(path) for path in paths]
    is_simple = model.nbody - 2 == model.njnt - 1 and not any(
        model.jnt_type[1:] - mujoco.mjtJoint.mjJNT_HINGE
    )
    is_simple &= all(parents[body] in (_BASE, body - 1) for body in range(2, model.nbody))
    if is_simple and set(lengths) == {1}:
        return _wheeled(file)
    if not is_simple or lengths != [3, 3, 3, 3]:
        names = [f"{model.body(path[0]).name}: {len(path)}" for path in paths]
        raise file.refuse(
            "a robot needs wheels, or four legs with three hinges each, and no other joint; its "
            f"chains of joints are {', '.join(names) or 'none'}. Make the joints of arms, and of "
            "wheels on legs, fixed"
        )
    chains = _chains(file, paths)
    height = np.mean([chain.hip[2] for chain in chains])
    pose = _Pose(file, chains, np.array((0.0, 0.0, height)), sum(chains[0].lengths))
    lengths = np.mean([chain.lengths for chain in chains], axis=0)
    length = float(lengths.mean())
    if lengths.sum() > _LONGEST:
        raise file.refuse(
            f"its legs are {lengths.sum():.4g} m long; give lengths in metres, not in millimetres"
        )
    lever = max(length, _SLENDERNESS * abs(chains[0].side))
    stiffness = _STIFFNESS * float(file.model.body_mass.sum()) * lever
    foot_radius = float(file.model.geom_size[chains[0].foot, 0])
    notes = [*file.notes, *_notes(file, chains)]
    # Hip, thigh and calf, the least of the four legs
    limits = [[_torque_limit(file, joint) for joint in chain.joints] for chain in chains]
    legs = [pose.leg(name, chain, notes) for name, chain in zip(LEGS, chains, strict=True)]
    return _standing(
        file,
        pose,
        notes,
        trunk=pose.inertial(_BASE, pose.origin),
        legs=tuple(legs),
        link_lengths=_vector(lengths),
        foot_radius=_rounded(foot_radius),
        knee_radius=_rounded(_SLIMNESS * foot_radius),
        stiffness=_rounded(stiffness),
        damping=_rounded(_DAMPING * stiffness * math.sqrt(length)),
        torque_limit=_vector(np.min(limits, axis=0)),
    )


def _wheeled(file: MakerFile) -> RobotFile:
    """Read a robot whose bodies on its base are wheels."""
    model = file.model
    bodies = range(_BASE + 1, model.nbody)
    data = _at_origin(model)
    origin = data.xanchor[1:].mean(axis=0)
    wheels = data.xanchor[1:] - origin
    radii = [model.geom_aabb[geom, 3:].max() for body in bodies for geom in _shapes(model, body)]
    is_across = abs(data.xaxis[1:, 1]).min() > _PARALLEL and abs(wheels[:, 1]).min() > _LEVEL
    is_even = is_across and np.ptp(radii or [0.0, 1.0]) < _LEVEL
    if not is_even or not len(LEGS) <= len(bodies) <= min(NUM_JOINTS, len(radii)):
        raise file.refuse(
            f"it needs {len(LEGS)} to {NUM_JOINTS} driven wheels left and right of its middle, "
            "of one radius, with axes along y; fix the joints of others, and leave out their "
            "shapes"
        )
    radius = radii[0]
    damping = float(model.body_mass.sum()) * radius**2 / (len(bodies) * _WHEEL_TIME)
    pose = _Pose(file, (), origin, float(np.abs(wheels).max() + radius))
    trunk = combine(*(pose.inertial(body, origin) for body in range(_BASE, model.nbody)))
    notes = list(file.notes)
    reach = float(wheels[:, 0].max() + radius)
    front = max(shape.pos[0] + shape.size[0] for shape in pose.trunk_shapes())
    if reach > front:
        notes.append(
            f"its wheels reach {reach:.3g} m ahead and its base {front:.3g} m, so it climbs what "
            "it pushes; lengthen a box in trunk_shapes, or add a bumper"
        )
    return _standing(
        file,
        pose,
        notes,
        trunk=Inertial(_rounded(trunk.mass), _vector(trunk.com), _vector(trunk.inertia)),
        wheels=tuple(_vector(wheel) for wheel in wheels),
        foot_radius=_rounded(radius),
        stiffness=_rounded(damping / _WHEEL_SPRING),
        damping=_rounded(damping),
        torque_limit=(min(_torque_limit(file, joint) for joint in range(1, model.njnt)),),
    )


def _standing(file: MakerFile, pose: _Pose, notes: list[str], **numbers: Any) -> RobotFile:
    """Return a robot with ``numbers``, and with its heights in its nominal stance."""
    cfg = RobotCfg(
        name=file.path.stem,
        trunk_shapes=pose.trunk_shapes(),
        standing_height=1.0,  # measured below, as the two others
        walking_height=1.0,
        low_height=1.0,
        gait="",
        **numbers,
    )
    model = file.model
    num_shapes = np.count_nonzero(model.geom_contype | model.geom_conaffinity)
    num_boxes = len(cfg.trunk_shapes) + sum(len(link) for leg in cfg.legs for link in leg.shapes)
    first = f"{cfg.mass:.2f} kg; {num_boxes} boxes for {num_shapes} shapes, feet and wheels counted"
    return RobotFile(stand(cfg, notes), (first, *notes))


def _chains(file: MakerFile, paths: Sequence[Any]) -> list[_Chain]:
    """Return the legs in the order of ``LEGS``."""
    data = _at_origin(file.model)
    by_name = {}
    for path in paths:
        chain = _chain(file, data, path)
        name = ("F" if chain.hip[0] > 0.0 else "R") + ("L" if chain.hip[1] > 0.0 else "R")
        by_name[name] = chain
    if set(by_name) != set(LEGS):
        raise file.refuse(
            "its hips must stand at the four corners of its base, with x to the front and y to "
            f"the left; they are at {', '.join(sorted(by_name))} alone"
        )
    heights = [chain.hip[2] for chain in by_name.values()]
    if max(heights) - min(heights) > _LEVEL:
        raise file.refuse(f"its hips must be level; they are at {np.round(heights, 4)} m")
    return [by_name[name] for name in LEGS]


def _at_origin(model: mujoco.MjModel) -> mujoco.MjData:
    """Return the robot at the world's origin, upright, with all angles zero."""
    data = mujoco.MjData(model)
    data.qpos[:] = 0.0
    data.qpos[3] = 1.0
    mujoco.mj_kinematics(model, data)
    mujoco.mj_comPos(model, data)
    return data


def _chain(file: MakerFile, data: mujoco.MjData, bodies: Sequence[int]) -> _Chain:
    """Return the leg of hip, thigh and calf ``bodies``. All the file's angles are zero."""
    model = file.model
    joints = [int(model.body_jntadr[body]) for body in bodies]
    signs = []
    for joint, axis in zip(joints, _AXES, strict=True):
        along = float(data.xaxis[joint, axis])
        if abs(along) < _PARALLEL:
            raise file.refuse(
                f"joint {model.joint(joint).name} turns about {_vector(data.xaxis[joint])}; a "
                "leg's joints turn about x, y and y of the base, and x points ahead"
            )
        signs.append(math.copysign(1.0, along))
    hip, thigh, calf = data.xanchor[joints].copy()
    foot = _foot(file, data, bodies[2], calf)
    end = data.geom_xpos[foot]
    if abs(thigh[2] - hip[2]) > _LEVEL:
        raise file.refuse(
            f"joint {model.joint(joints[1]).name} lies {thigh[2] - hip[2]:.3f} m above its hip's "
            "axis where all angles are zero; a thigh's joint lies beside it"
        )
    upper, upper_angle = _polar(calf - thigh)
    lower, lower_angle = _polar(end - calf)
    return _Chain(
        bodies,
        joints,
        tuple(signs),
        (0.0, upper_angle, lower_angle - upper_angle),
        np.array((thigh[0], hip[1], hip[2])),
        float(end[1] - hip[1]),
        (upper, lower),
        foot,
    )


def _polar(link: Array) -> tuple[float, float]:
    """Return a link's length [m] and its angle [rad] about y from straight down."""
    return math.hypot(link[0], link[2]), math.atan2(-link[0], -link[2])


def _foot(file: MakerFile, data: mujoco.MjData, calf: int, knee: Array) -> int:
    """Return the geom of a leg's foot, the sphere farthest from its knee."""
    model = file.model
    sphere = mujoco.mjtGeom.mjGEOM_SPHERE
    spheres = [geom for geom in _shapes(model, calf) if model.geom_type[geom] == sphere]
    if not spheres:
        raise file.refuse(
            f"the link {model.body(calf).name} has no sphere that collides, for a foot; add one at "
            "its end"
        )
    return max(spheres, key=lambda geom: float(np.linalg.norm(data.geom_xpos[geom] - knee)))


def _shapes(model: mujoco.MjModel, body: int) -> list[int]:
    """Return the colliding geoms of a body."""
    collides = (model.geom_contype | model.geom_conaffinity) > 0
    return np.flatnonzero(collides & (model.geom_bodyid == body)).tolist()


class _Pose:
    """The file's robot with all its legs straight down, in its base's axes."""

    def __init__(
        self, file: MakerFile, chains: Sequence[_Chain], origin: Array, leg_length: float
    ) -> None:
        """Bend the joints. ``origin`` is the trunk's frame, from the base's."""
        self._file = file
        self._model = file.model
        self._data = _at_origin(file.model)
        for chain in chains:
            places = file.model.jnt_qposadr[list(chain.joints)]
            self._data.qpos[places] = -np.array(chain.offsets) * chain.signs
        mujoco.mj_kinematics(file.model, self._data)
        self._feet = {chain.foot for chain in chains}
        self._leg_length = leg_length
        self.origin = origin

    def inertial(self, body: int, origin: Array) -> Inertial:
        """Return a body's inertial in a frame at ``origin`` [m]."""
        turn = self._data.ximat[body].reshape(3, 3)
        com = _vector(self._data.xipos[body] - origin)
        mass = _rounded(self._model.body_mass[body])
        inertial = Inertial.of(mass, com, turn, self._model.body_inertia[body])
        return inertial._replace(inertia=_vector(inertial.inertia))

    def trunk_shapes(self) -> tuple[Shape, ...]:
        """Return the trunk's collision shapes. Raise ConfigError if the file has none."""
        geoms = self._geoms(_BASE)
        if not geoms:
            raise self._file.refuse(
                "its base has no shape that collides; add a box, or bring the mesh files"
            )
        if len(geoms) > MAX_TRUNK_SHAPES:
            return (self._box(geoms, self.origin),)
        return tuple(self._box([geom], self.origin) for geom in geoms)

    def leg(self, name: str, chain: _Chain, notes: list[str]) -> Leg:
        """Return a leg's data, and add notes on its shapes."""
        hip = np.array((chain.hip[0], chain.hip[1], self.origin[2]))
        thigh = hip + (0.0, chain.side, 0.0)
        calf = thigh - (0.0, 0.0, chain.lengths[0])
        frames = (hip, thigh, calf)
        ranges = []
        for joint, sign, offset in zip(chain.joints, chain.signs, chain.offsets, strict=True):
            ends = (-math.pi, math.pi)
            if self._model.jnt_limited[joint]:
                ends = self._model.jnt_range[joint] * sign + offset
            ranges.append((_rounded(min(ends)), _rounded(max(ends))))
        angles = nominal_angles(name, chain.lengths)
        for joint, angle, (low, high) in zip(chain.joints, angles, ranges, strict=True):
            if not low <= angle <= high:
                raise self._file.refuse(
                    f"joint {self._model.joint(joint).name} cannot reach {angle:.2f} rad, its "
                    f"angle in the stance with all knees to the rear (range {low} to {high})"
                )
        links = list(zip(chain.bodies, frames, (None, *chain.lengths), strict=True))
        shapes = [self._link_shapes(*link, chain, notes) for link in links]
        inertials = [self.inertial(body, frame) for body, frame, _ in links]
        return Leg(
            hip_pos=_vector(hip[:2]),
            side=_rounded(chain.side),
            joint_range=tuple(ranges),
            joint_pos=angles,
            inertials=(inertials[0], inertials[1], inertials[2]),
            shapes=(shapes[0], shapes[1], shapes[2]),
        )

    def _link_shapes(
        self, body: int, origin: Array, length: float | None, chain: _Chain, notes: list[str]
    ) -> tuple[Shape, ...]:
        """Return one box round a link's shapes. A thigh or calf without one gets a capsule.

        A calf's box keeps within its foot's width, so that the robot stands on its feet.
        """
        foot_radius = float(self._model.geom_size[chain.foot, 0])
        geoms = self._geoms(body)
        if geoms:
            box = self._box(geoms, origin)
            if body != chain.bodies[2]:
                return (box,)
            # Before and behind the line from knee to foot, and down to the foot's centre
            half, middle = np.array(box.size), np.array(box.pos)
            low = np.maximum(middle - half, (-foot_radius, -np.inf, -chain.lengths[1]))
            high = np.minimum(middle + half, (foot_radius, np.inf, np.inf))
            half = np.maximum(0.5 * (high - low), _EQUAL)
            return (Shape("box", _vector(half), _vector(0.5 * (high + low))),)
        if length is None:
            return ()
        radius = _SLIMNESS * foot_radius
        notes.append(f"{self._model.body(body).name} has no shape: a capsule of {radius:.3f} m")
        half = max(0.5 * length - radius, _EQUAL)
        return (Shape("capsule", (_rounded(radius), _rounded(half)), (0.0, 0.0, -0.5 * length)),)

    def _geoms(self, body: int) -> list[int]:
        """Return the colliding geoms of a body, without its foot."""
        return [geom for geom in _shapes(self._model, body) if geom not in self._feet]

    def _box(self, geoms: Sequence[int], origin: Array) -> Shape:
        """Return the box round geoms, along the base's axes, in a frame at ``origin``."""
        lows = []
        highs = []
        for geom in geoms:
            turn = self._data.geom_xmat[geom].reshape(3, 3)
            center, half = self._model.geom_aabb[geom].reshape(2, 3)
            middle = self._data.geom_xpos[geom] + turn @ center - origin
            reach = np.abs(turn) @ half
            lows.append(middle - reach)
            highs.append(middle + reach)
        low = np.min(lows, axis=0)
        high = np.max(highs, axis=0)
        extent = 0.5 * float(np.max(high - low))
        if extent > _LARGEST_SHAPE * self._leg_length:
            name = self._model.body(self._model.geom_bodyid[geoms[0]]).name
            raise self._file.refuse(
                f"a shape of {name} is {2.0 * extent:.4g} m long; give a mesh in millimetres "
                'scale="0.001 0.001 0.001"'
            )
        return Shape("box", _vector(0.5 * (high - low)), _vector(0.5 * (high + low)))


def _notes(file: MakerFile, chains: Sequence[_Chain]) -> list[str]:
    """Return notes on the file's numbers without a place in ``RobotCfg``."""
    model = file.model
    joints = [joint for chain in chains for joint in chain.joints]
    motions = model.jnt_dofadr[joints]
    losses = {
        "armature": model.dof_armature[motions],
        "damping": model.dof_damping[motions],
        "dry friction": model.dof_frictionloss[motions],
        "springs": model.jnt_stiffness[joints],
    }
    notes = []
    parts = [f"{name} {np.max(values):g}" for name, values in losses.items() if np.any(values)]
    if parts:
        notes.append(f"joints have {', '.join(parts)} at most, left out: motors are ideal")
    friction = model.geom_friction[[chain.foot for chain in chains], 0].max()
    if friction != 1.0:  # MuJoCo's default
        notes.append(f"feet have a friction of {friction:g}, left out: set env.foot_friction")
    if not np.all(model.jnt_limited[joints]):
        notes.append("joints without limits turn by pi to either side")
    spread = float(np.ptp([chain.lengths for chain in chains], axis=0).max())
    if spread > _EQUAL:
        notes.append(f"legs differ by {spread:.3f} m in length: each has their mean")
    return notes


def _torque_limit(file: MakerFile, joint: int) -> float:
    model = file.model
    ends = [model.jnt_actfrcrange[joint]]
    for actuator in range(model.nu):
        if model.actuator_trnid[actuator, 0] == joint:
            gear = model.actuator_gear[actuator, 0]
            ends.append(model.actuator_forcerange[actuator] * gear)
            if not np.any(model.actuator_biasprm[actuator]):  # a motor: its control is a force
                gain = model.actuator_gainprm[actuator, 0]
                ends.append(model.actuator_ctrlrange[actuator] * gain * gear)
    limits = [min(-low, high) for low, high in np.sort(ends) if low < 0.0 < high]
    if not limits:
        raise file.refuse(
            f"joint {model.joint(joint).name} has no torque limit; give it an effort (URDF), an "
            "actuatorfrcrange, or an actuator with a forcerange (MJCF)"
        )
    return float(min(limits))


def _rounded(value: float) -> float:
    """Return a number with seven significant digits, as files have them."""
    return float(f"{value:.7g}")


def _vector(values: Iterable[float]) -> Any:
    return tuple(_rounded(value) for value in values)


for _suffix in SUFFIXES:
    ROBOT_READERS[_suffix] = lambda path: read_robot_file(path).cfg
