"""The scene's appearance in films and viewers: other shapes and colours on the same bodies.

Additions have no mass and no contacts. Training uses another model, so this file changes neither
its physics nor its speed.
"""

from importlib.resources import files
from typing import Any

import mujoco

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
    "floor": (0.80, 0.82, 0.845),
    "line": (0.72, 0.745, 0.78),
    "goal": (0.85, 0.12, 0.12),
    "goal fill": (0.86, 0.60, 0.61),
}
_WALL = (0.45, 0.48, 0.52, 0.30)


def shown_model(scene: Scene) -> mujoco.MjModel:
    """Return a model for films and viewers with the bodies and joints of ``scene``."""
    spec = scene.spec.copy()
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
    return spec.compile()


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
    """Hide a robot's collision shapes and draw the geoms of its file in mqe/assets/looks, if any.

    Bodies of the file have the links' names. Geoms of the class "team" have the robot's own colour.
    """
    if robot.looks is None:
        return
    path = files("mqe") / "assets" / "looks" / f"{robot.looks}.xml"
    looks = mujoco.MjSpec.from_file(str(path))
    for mesh in looks.meshes:
        if spec.mesh(mesh.name) is None:
            spec.add_mesh(name=mesh.name, uservert=mesh.uservert, inertia=mesh.inertia)
    for body in looks.bodies[1:]:
        link = spec.body(f"robot{index}/{body.name}")
        for geom in link.geoms:
            geom.group = HIDDEN
        for look in body.geoms:
            is_of_team = look.classname.name == "team"
            link.add_geom(
                type=look.type,
                size=look.size,
                pos=look.pos,
                quat=look.quat,
                meshname=look.meshname,
                rgba=team_color(index) if is_of_team else look.rgba,
                mass=0.0,
                contype=0,
                conaffinity=0,
            )


def _mark_goal(spec: mujoco.MjSpec) -> None:
    """Draw a ring around the goal's disc and a mark at its centre, as discs above one another."""
    disc = spec.site("goal")
    disc.group = HIDDEN  # geoms can be drawn without a shadow
    radius = float(disc.size[0])
    cylinder = mujoco.mjtGeom.mjGEOM_CYLINDER
    for reach, height, color in (
        (radius + _RING_WIDTH / 2, _MARK, "goal"),
        (radius - _RING_WIDTH / 2, 1.5 * _MARK, "goal fill"),
        (_RING_WIDTH, 2.0 * _MARK, "goal"),
    ):
        size = (reach, height / 2, 0.0)
        _add(spec.body("goal"), cylinder, size, color, pos=(0.0, 0.0, height / 2))


def _add(
    body: mujoco.MjsBody, kind: mujoco.mjtGeom, size: Any, color: str, **place: Any
) -> mujoco.MjsGeom:
    """Add a geom without mass, contacts and shadow."""
    return body.add_geom(
        type=kind,
        size=size,
        rgba=(*COLORS[color], 1.0),
        mass=0.0,
        contype=0,
        conaffinity=0,
        castshadow=False,
        **place,
    )
