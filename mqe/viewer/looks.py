"""The scene's appearance in films and viewers: other shapes and colours on the same bodies.

Additions have no mass and no contacts. Training uses another model, so this file changes neither
its physics nor its speed.
"""

from __future__ import annotations

import math
from typing import Any

import mujoco

from mqe.viewer.look_files import Look, read_looks
from mqe.world.robots.build import team_color
from mqe.world.robots.robot import RobotCfg
from mqe.world.scene import ARENA_HALF_SIZE, Scene

HIDDEN = 3  # group of hidden geoms
_RING_WIDTH = 0.05  # [m]
_MARK = 0.004  # [m] height of floor marks
_LINE_HALF_WIDTH = 0.011  # [m] of the lines on the floor
_LIGHT_DIR = (0.42, 0.30, -0.86)
# Times the scene's extent. Near the shadows' edge surfaces have dots, so it is beyond the walls.
_SHADOW_REACH = 5.5
# Times the extent; three times MuJoCo's, so that surfaces a few millimetres apart do not flicker
_NEAREST = 0.03

COLORS = {  # rgb
    "light": (0.80, 0.81, 0.83),
    "metal": (0.42, 0.44, 0.47),
    "dark": (0.13, 0.14, 0.16),
    "rubber": (0.06, 0.06, 0.06),
    "glass": (0.03, 0.04, 0.06),
    "lamp": (0.95, 0.98, 1.00),
    "floor": (0.80, 0.82, 0.845),
    "line": (0.72, 0.745, 0.78),
    "goal": (0.85, 0.12, 0.12),
    "goal fill": (0.86, 0.60, 0.61),
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


def shown_model(scene: Scene) -> mujoco.MjModel:
    """Return a model for films and viewers with the bodies and joints of ``scene``."""
    return scene.model if scene.spec is None else shown_spec(scene.spec, scene).compile()


def shown_spec(plain: mujoco.MjSpec, scene: Scene) -> mujoco.MjSpec:
    """Return the description of ``shown_model``, made from the scene's own one."""
    spec = plain.copy()
    spec.visual.headlight.ambient = (0.45,) * 3
    spec.visual.headlight.diffuse = (0.2,) * 3
    spec.visual.headlight.specular = (0.0,) * 3
    spec.visual.quality.offsamples = 0  # twice as fast without a GPU
    spec.visual.map.znear = _NEAREST
    spec.visual.map.shadowclip = _SHADOW_REACH
    spec.lights[0].dir = _LIGHT_DIR
    _draw_ground(spec)
    for i, robot in enumerate(scene.robots):
        _dress_robot(spec, robot, i)
    if scene.object is not None:
        _mark_goal(spec)
    return spec


def _draw_ground(spec: mujoco.MjSpec) -> None:
    """Draw the floor in one colour with lines 1 m apart.

    A texture would take half of a picture's time. Crossing lines differ in height, or they would
    flicker.
    """
    floor = spec.geom("floor")
    floor.material = ""
    floor.rgba = (*COLORS["floor"], 1.0)
    floor.castshadow = False  # its shadow would fall on itself in stripes
    for wall in spec.worldbody.geoms:
        if wall.type == mujoco.mjtGeom.mjGEOM_BOX:  # a camera may stand behind it
            wall.rgba = _WALL
            wall.castshadow = False
    reach = round(ARENA_HALF_SIZE)
    plane = mujoco.mjtGeom.mjGEOM_PLANE
    along_y = (_LINE_HALF_WIDTH, ARENA_HALF_SIZE, 1.0)
    along_x = (ARENA_HALF_SIZE, _LINE_HALF_WIDTH, 1.0)
    for at in range(-reach, reach + 1):
        _add(spec.worldbody, plane, along_y, "line", pos=(at, 0.0, _MARK / 2))
        _add(spec.worldbody, plane, along_x, "line", pos=(0.0, at, _MARK / 4))


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


def _draw(spec: mujoco.MjSpec, body: mujoco.MjsBody, look: Look, index: int, name: str) -> None:
    size = (*look.size, 0.0, 0.0)[:3]
    geom = _add(body, _TYPES[look.type], size, look.color, pos=look.pos, quat=_ALONG[look.axis])
    geom.castshadow = True
    if look.color == "team":
        geom.rgba = team_color(index)
    if look.type == "hull":
        corners = [value for point in look.points for value in point]
        spec.add_mesh(
            name=name, uservert=corners, inertia=mujoco.mjtMeshInertia.mjMESH_INERTIA_SHELL
        )
        geom.meshname = name


def _mark_goal(spec: mujoco.MjSpec) -> None:
    """Draw a ring around the goal's disc and a mark at its centre, as discs above one another."""
    disc = spec.site("goal")
    disc.group = HIDDEN  # geoms can be drawn without a shadow
    radius = float(disc.size[0])
    for reach, height, color in (
        (radius + _RING_WIDTH / 2, _MARK, "goal"),
        (radius - _RING_WIDTH / 2, 1.5 * _MARK, "goal fill"),
        (_RING_WIDTH, 2.0 * _MARK, "goal"),
    ):
        size = (reach, height / 2, 0.0)
        _add(spec.body("goal"), _TYPES["cylinder"], size, color, pos=(0.0, 0.0, height / 2))


def _add(
    body: mujoco.MjsBody, kind: mujoco.mjtGeom, size: Any, color: str, **place: Any
) -> mujoco.MjsGeom:
    """Add a geom without mass, contacts and shadow."""
    return body.add_geom(
        type=kind,
        size=size,
        rgba=(*COLORS.get(color, (0.0,) * 3), 1.0),
        mass=0.0,
        contype=0,
        conaffinity=0,
        castshadow=False,
        **place,
    )
