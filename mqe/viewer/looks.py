"""The scene's appearance in films and viewers: other shapes, colours and lights on the same bodies.

Additions have no mass and no contacts. Training uses another model, so this file changes neither
its physics nor its speed.
"""

from __future__ import annotations

import math
from typing import Any

import mujoco

from mqe.viewer.light import LIGHT_DIR, SHADOW_HALF_SIZE
from mqe.viewer.look_files import Look, read_looks
from mqe.viewer.meshes import NO_MESHES, Meshes, Part
from mqe.world.objects import GeomCfg
from mqe.world.robots.build import team_color
from mqe.world.robots.robot import RobotCfg
from mqe.world.scene import ARENA_HALF_SIZE, Scene

HIDDEN = 3  # group of hidden geoms
EXTENT = 3.0  # [m] size of the scene, for MuJoCo's drawing distance
_RING_WIDTH = 0.05  # [m]
_MARK = 0.004  # [m] height of floor marks
_LINE_HALF_WIDTH = 0.011  # [m] of the lines on the floor
_TRIM = 0.012  # [m] half the width of an object's edges
_SLICES = 36  # sides of a drawn cylinder
# [m] from the camera; three times MuJoCo's, so that surfaces a few millimetres apart do not flicker
_NEAREST = 0.1

_STATE = int(mujoco.mjtState.mjSTATE_INTEGRATION)

# rgb, how much it shines, and how much it glows
COLORS: dict[str, tuple[tuple[float, float, float], float, float]] = {
    "light": ((0.80, 0.81, 0.83), 0.3, 0.0),
    "metal": ((0.42, 0.44, 0.47), 0.5, 0.0),
    "dark": ((0.13, 0.14, 0.16), 0.3, 0.0),
    "rubber": ((0.06, 0.06, 0.06), 0.0, 0.0),
    "glass": ((0.03, 0.04, 0.06), 0.9, 0.0),
    "lamp": ((0.95, 0.98, 1.00), 0.0, 0.8),
    "object": ((0.84, 0.66, 0.42), 0.1, 0.0),
    "trim": ((0.45, 0.31, 0.17), 0.1, 0.0),
    "floor": ((0.80, 0.82, 0.845), 0.0, 0.0),
    "line": ((0.72, 0.745, 0.78), 0.0, 0.0),
    "goal": ((0.85, 0.12, 0.12), 0.0, 0.3),
    "goal fill": ((0.86, 0.60, 0.61), 0.0, 0.0),
}
# Lies on a surface.
_NOTHING: dict[str, Any] = {
    "mass": 0.0,
    "contype": 0,
    "conaffinity": 0,
    "castshadow": False,
}
_WALL = (0.45, 0.48, 0.52, 0.30)
_ALONG = {
    "x": (math.sqrt(0.5), 0.0, math.sqrt(0.5), 0.0),
    "y": (math.sqrt(0.5), math.sqrt(0.5), 0.0, 0.0),
    "z": (1.0, 0.0, 0.0, 0.0),
}
_TYPES = {
    "box": mujoco.mjtGeom.mjGEOM_BOX,
    "sphere": mujoco.mjtGeom.mjGEOM_SPHERE,
    "capsule": mujoco.mjtGeom.mjGEOM_CAPSULE,
    "cylinder": mujoco.mjtGeom.mjGEOM_CYLINDER,
    "hull": mujoco.mjtGeom.mjGEOM_MESH,
}


def shown_model(scene: Scene, meshes: Meshes = NO_MESHES) -> mujoco.MjModel:
    """Return a model for films and viewers with the bodies and joints of ``scene``.

    Robots without ``meshes`` have simple shapes.
    """
    if scene.spec is None:
        return scene.model
    return shown_spec(scene, scene.spec, meshes).compile()


def shown_spec(scene: Scene, plain: mujoco.MjSpec, meshes: Meshes = NO_MESHES) -> mujoco.MjSpec:
    """Return the description of ``shown_model``, made from the scene's own one."""
    spec = plain.copy()
    _set_light(spec)
    _add_materials(spec, scene.num_robots)
    _draw_ground(spec)
    for i, robot in enumerate(scene.robots):
        if robot.name in meshes:
            _draw_meshes(spec, robot, i, meshes[robot.name])
        else:
            _dress_robot(spec, robot, i)
    if scene.object is not None:
        for part, geom in zip(scene.object.geoms, scene.object_geoms, strict=True):
            spec.geom(scene.model.geom(geom).name).material = "object"
            if part.type == "box":
                _trim_box(spec.body("object"), part)
        _mark_goal(spec)
    return spec


def _set_light(spec: mujoco.MjSpec) -> None:
    """Add a light with shadows, a weak one from the other side, and ambient light."""
    visual = spec.visual
    visual.headlight.ambient = (0.42,) * 3
    visual.headlight.diffuse = (0.14,) * 3
    visual.headlight.specular = (0.0,) * 3
    visual.quality.shadowsize = 2048
    visual.quality.offsamples = 0
    visual.quality.numslices = _SLICES
    visual.quality.numstacks = 6
    visual.quality.numquads = 1
    visual.map.znear = _NEAREST / EXTENT
    visual.map.shadowclip = SHADOW_HALF_SIZE / EXTENT
    visual.map.fogstart = 5.0
    visual.map.fogend = 14.0
    visual.map.haze = 0.5
    visual.rgba.haze = (0.93, 0.95, 0.97, 1.0)
    spec.stat.extent = EXTENT
    key = spec.lights[0]
    key.dir = LIGHT_DIR
    key.diffuse = (0.55, 0.54, 0.51)
    key.specular = (0.25,) * 3
    spec.worldbody.add_light(
        type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL,
        dir=(-0.6, -0.5, -0.6),
        castshadow=False,
        diffuse=(0.16, 0.17, 0.20),
        specular=(0.0, 0.0, 0.0),
    )
    sky = spec.texture("sky")
    sky.rgb1 = (0.97, 0.98, 0.99)
    sky.rgb2 = (0.80, 0.86, 0.92)


def _draw_ground(spec: mujoco.MjSpec) -> None:
    """Draw the floor in one colour with lines 1 m apart.

    A texture would take a third of a picture's time. Crossing lines differ in height, or both would
    be lit.
    """
    floor = spec.geom("floor")
    # its shadow would fall on itself in stripes
    floor.material = "floor"
    floor.castshadow = False
    for wall in spec.worldbody.geoms:
        if wall.type == mujoco.mjtGeom.mjGEOM_BOX:  # a camera may stand behind it
            wall.rgba = _WALL
            wall.castshadow = False
    reach = round(ARENA_HALF_SIZE)
    for at in range(-reach, reach + 1):
        for place, size, height in (
            ((at, 0.0), (_LINE_HALF_WIDTH, ARENA_HALF_SIZE), _MARK / 2),
            ((0.0, at), (ARENA_HALF_SIZE, _LINE_HALF_WIDTH), _MARK / 4),
        ):
            spec.worldbody.add_geom(
                type=mujoco.mjtGeom.mjGEOM_PLANE,
                size=(*size, 1.0),
                pos=(*place, height),
                material="line",
                **_NOTHING,
            )


def _add_materials(spec: mujoco.MjSpec, num_robots: int) -> None:
    team = {f"team{i}": (team_color(i)[:3], 0.35, 0.0) for i in range(num_robots)}
    for name, (rgb, shine, glow) in (COLORS | team).items():
        spec.add_material(name=name, rgba=(*rgb, 1.0), specular=shine, shininess=0.6, emission=glow)


def _dress_robot(spec: mujoco.MjSpec, robot: RobotCfg, index: int) -> None:
    """Hide a robot's collision shapes and draw its visual shapes, if it has any."""
    if robot.looks is None:
        return
    for link, looks in read_looks(robot.looks).items():
        body = spec.body(f"robot{index}/{link}")
        for geom in body.geoms:
            geom.group = HIDDEN
        for k, look in enumerate(looks):
            _draw(spec, body, look, index, f"robot{index}/{link}/look{k}")


def with_meshes(scene: Scene, plain: mujoco.MjSpec, meshes: Meshes) -> mujoco.MjSpec:
    """Return the scene's description with the robots' own meshes and no other changes."""
    spec = plain.copy()
    for i, robot in enumerate(scene.robots):
        if robot.name in meshes:
            spec.add_material(name=f"team{i}", rgba=team_color(i))
            _draw_meshes(spec, robot, i, meshes[robot.name])
    return spec


def _draw_meshes(spec: mujoco.MjSpec, robot: RobotCfg, index: int, parts: tuple[Part, ...]) -> None:
    """Hide a robot's collision shapes and draw its meshes, the trunk's largest mesh in the robot's
    colour.
    """
    for link in {part.link for part in parts}:
        for geom in spec.body(f"robot{index}/{link}").geoms:
            geom.group = HIDDEN
    trunk = [k for k, part in enumerate(parts) if part.link == "trunk"]
    coloured = max(trunk, key=lambda k: parts[k].area)
    for k, part in enumerate(parts):
        name = f"{robot.name}/{part.link}/mesh{k}"
        if spec.mesh(name) is None:  # robots of a kind share it
            spec.add_mesh(
                name=name,
                uservert=part.vertices.reshape(-1),
                userface=part.faces.reshape(-1),
                inertia=mujoco.mjtMeshInertia.mjMESH_INERTIA_SHELL,
            )
        geom = spec.body(f"robot{index}/{part.link}").add_geom(
            type=mujoco.mjtGeom.mjGEOM_MESH,
            meshname=name,
            mass=0.0,
            contype=0,
            conaffinity=0,
        )
        if k == coloured:
            geom.material = f"team{index}"
        else:
            geom.rgba = part.rgba


def _draw(spec: mujoco.MjSpec, body: mujoco.MjsBody, look: Look, index: int, name: str) -> None:
    if look.type == "hull":
        corners = [value for point in look.points for value in point]
        spec.add_mesh(
            name=name, uservert=corners, inertia=mujoco.mjtMeshInertia.mjMESH_INERTIA_SHELL
        )
    material = f"team{index}" if look.color == "team" else look.color
    geom = body.add_geom(
        type=_TYPES[look.type],
        pos=look.pos,
        quat=_ALONG[look.axis],
        material=material,
        mass=0.0,
        contype=0,
        conaffinity=0,
    )
    if look.type == "hull":
        geom.meshname = name
    else:
        geom.size = (*look.size, 0.0, 0.0)[:3]


def _trim_box(body: mujoco.MjsBody, part: GeomCfg) -> None:
    """Draw a box object's edges."""
    half = [length / 2 for length in part.size]
    protrusion = 0.002  # [m] of an edge
    for i in range(3):
        j = (i + 1) % 3
        k = (i + 2) % 3
        for sign_j in (1, -1):
            for sign_k in (1, -1):
                size = [_TRIM] * 3
                offset = [0.0] * 3
                size[i] = half[i] + protrusion
                offset[j] = sign_j * (half[j] - _TRIM + protrusion)
                offset[k] = sign_k * (half[k] - _TRIM + protrusion)
                pos = tuple(a + b for a, b in zip(part.pos, offset, strict=True))
                body.add_geom(type=_TYPES["box"], size=size, pos=pos, material="trim", **_NOTHING)


def _mark_goal(spec: mujoco.MjSpec) -> None:
    """Draw a ring around the goal's disc and a mark at its centre, as discs above one another."""
    disc = spec.site("goal")
    disc.group = HIDDEN  # geoms can be drawn without a shadow
    radius = float(disc.size[0])
    for reach, height, material in (
        (radius + _RING_WIDTH / 2, _MARK, "goal"),
        (radius - _RING_WIDTH / 2, 1.5 * _MARK, "goal fill"),
        (_RING_WIDTH, 2.0 * _MARK, "goal"),
    ):
        spec.body("goal").add_geom(
            type=mujoco.mjtGeom.mjGEOM_CYLINDER,
            size=(reach, height / 2, 0.0),
            pos=(0.0, 0.0, height / 2),
            material=material,
            **_NOTHING,
        )


def copy_state(model: mujoco.MjModel, data: mujoco.MjData, shown: mujoco.MjData) -> None:
    """Copy a world's state into the data of its ``shown_model``, with contacts and all derived
    quantities.
    """
    mujoco.mj_copyState(model, data, shown, _STATE)
    mujoco.mj_forward(model, shown)
