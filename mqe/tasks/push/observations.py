"""Observations of the push task: the robots' observations, and the critic's state.

A robot observes the scene in its own heading frame: goal and object (x, y), the object's heading,
then position and heading of every other robot, in the order i - 1, i - 2, ... round the team. The
critic's frame has its origin at the object and x towards the goal. Metres, radians and seconds.

Observations as sets have the same size for every team, and do not identify the robot:

    present, goal (x, y), object (x, y), seven others, 16 points of the outline
    critic: distance to the goal, 16 points of the outline, eight robots
"""

from collections.abc import Sequence
from functools import partial

from mqe.controllers.trot import planar_velocity
from mqe.tasks.push import entities
from mqe.tasks.push.settings import PUSH_TERMS, PushCfg
from mqe.tasks.terms import PRESENT, ObservationTerm
from mqe.world.geometry import axes_along, in_frame
from mqe.world.objects import NUM_OUTLINE_POINTS, OBJECTS

# Signs that a mirror gives to x, y; to the sine and cosine of a heading; and to vx, vy, yaw rate.
_PLACE = (1.0, -1.0)
_HEADING = (-1.0, 1.0)
_VELOCITY = (1.0, -1.0, -1.0)


def _object_heading_signs(cfg: PushCfg) -> tuple[float, ...] | None:
    """Return the signs of the object heading's sine and cosine, None for an object without mirror
    image.

    The image of an object symmetric about its own x axis has the opposite heading. For symmetry
    about its y axis it is turned by half a turn as well.
    """
    axis = OBJECTS[cfg.object].mirror_signs
    return None if axis is None else (-axis[0], axis[0])


def _object_signs(cfg: PushCfg) -> tuple[float, ...] | None:
    heading = _object_heading_signs(cfg)
    return None if heading is None else (*_PLACE, *heading)


def _mirrored_points(cfg: PushCfg) -> Sequence[int] | None:
    """Return each outline point's partner in the mirror.

    An asymmetric object has points of its mirror image.
    """
    axis = OBJECTS[cfg.object].mirror_signs
    if axis is None or cfg.shapes is not None:
        return None
    last = NUM_OUTLINE_POINTS - 1
    if axis[0] < 0.0:
        last = NUM_OUTLINE_POINTS // 2 - 1
    return [(last - k) % NUM_OUTLINE_POINTS for k in range(NUM_OUTLINE_POINTS)]


def _quarters(cfg: PushCfg) -> int:
    """Return the number of quarter turns between headings at which the object looks alike: 1, 2
    or 4.

    Worlds with their own objects have a whole turn.
    """
    if cfg.shapes is not None:
        return 4
    return {0: 1, 4: 1, 2: 2, 1: 4}[cfg.pushed_object().num_equal_headings]


def _same(cfg: PushCfg, size: int) -> tuple[Sequence[int], Sequence[float]]:
    """Return the image of components independent of the object's heading."""
    return range(size), (1.0,) * size


# A term independent of the object's heading
_fixed_term = partial(ObservationTerm, turn=_same)


def _turned_heading(cfg: PushCfg, size: int) -> tuple[list[int], list[float]]:
    """Return the image of components ending with sine and cosine of the object's heading."""
    index = list(range(size))
    signs = [1.0] * size
    for _ in range(_quarters(cfg)):  # the sine becomes the cosine, the cosine minus the sine
        index[-2:] = index[:-3:-1]
        signs[-2:] = signs[-1], -signs[-2]
    return index, signs


def _turned_outline(cfg: PushCfg, size: int) -> tuple[list[int], Sequence[float]]:
    """Return the outline points' image. Every quarter turn moves them a quarter on."""
    moved = _quarters(cfg) * size // 4
    return [(k + moved) % size for k in range(size)], (1.0,) * size


# An angle in [0, 2 pi) has no mirror image that is a change of sign, and no other one.
OBSERVATIONS = PUSH_TERMS.observations
OBSERVATIONS.update(
    {
        "goal": _fixed_term(
            "place of the goal in the robot's heading frame",
            lambda scene: scene.places_b[:, :, 0],
            "m",
            numbers=("goal_x", "goal_y"),
            mirror_signs=_PLACE,
        ),
        "object": ObservationTerm(
            "place and heading (sine, cosine) of the object in the robot's heading frame",
            lambda scene: scene.bodies_b[:, :, 0],
            "m, 1",
            numbers=("object_x", "object_y", "object_sin_yaw", "object_cos_yaw"),
            mirror_signs=_object_signs,
            turn=_turned_heading,
        ),
        "teammates": _fixed_term(
            "place and heading (sine, cosine) of the other robots in the robot's heading frame",
            lambda scene: scene.bodies_b[:, :, 1:],
            "m, 1",
            numbers=("x", "y", "sin_yaw", "cos_yaw"),
            mirror_signs=(*_PLACE, *_HEADING),
            over="teammates",
        ),
        "object_and_yaw": ObservationTerm(
            "place and heading in [0, 2 pi) of the object in the robot's heading frame",
            lambda scene: scene.bodies_yaw_b[:, :, 0],
            "m, rad",
            numbers=("object_x", "object_y", "object_yaw"),
        ),
        "teammates_and_yaw": ObservationTerm(
            "place and heading in [0, 2 pi) of the other robots in the robot's heading frame",
            lambda scene: scene.bodies_yaw_b[:, :, 1:],
            "m, rad",
            numbers=("x", "y", "yaw"),
            over="teammates",
        ),
        "heading_error": _fixed_term(
            "sine and cosine of the turn to the goal's heading, times the object's equal headings",
            lambda scene: scene.heading_error_axes_b,
            numbers=("heading_error_sin", "heading_error_cos"),
            mirror_signs=_HEADING,
        ),
        "own_velocity": _fixed_term(
            "velocity and yaw rate of the robot in its heading frame",
            lambda scene: planar_velocity(scene.state),
            "m/s, rad/s",
            mirror_signs=_VELOCITY,
            noise=0.25,
        ),
        "object_velocity": _fixed_term(
            "velocity of the object in the robot's heading frame",
            lambda scene: scene.object_velocity_b,
            "m/s",
            numbers=("object_vx", "object_vy"),
            mirror_signs=_PLACE,
            noise=0.25,
        ),
        "load": _fixed_term(
            "push that slides the object",
            lambda scene: scene.load.unsqueeze(1).expand(-1, scene.constants.num_agents, 1),
            "100 N",
            numbers=("load",),
            mirror_signs=(1.0,),
            noise=5.0,
        ),
        PRESENT: _fixed_term(
            "1 for a robot that takes part, 0 for one that is dead, absent or late",
            lambda scene: scene.roster.takes_part.unsqueeze(-1),
            numbers=(PRESENT,),
            mirror_signs=(1.0,),
            noise=0.0,
        ),
        "object_place": _fixed_term(
            "place of the object's origin in the robot's heading frame",
            lambda scene: scene.places_b[:, :, 1],
            "m",
            numbers=("object_x", "object_y"),
            mirror_signs=_PLACE,
        ),
        "others": _fixed_term(
            "set of the other robots: presence, place and heading (sine, cosine) in the robot's "
            "heading frame",
            entities.others_b,
            "1, m, 1",
            numbers=(PRESENT, "x", "y", "sin_yaw", "cos_yaw"),
            mirror_signs=(1.0, *_PLACE, *_HEADING),
            noise=(0.0, 1.0, 1.0, 1.0, 1.0),
            over="teammates",
            is_set=True,
        ),
        "outline": ObservationTerm(
            "set of points of the object's outline in the robot's heading frame",
            lambda scene: scene.outline_b,
            "1, m",
            numbers=(PRESENT, "x", "y"),
            mirror_signs=(1.0, *_PLACE),
            mirror_entities=_mirrored_points,
            noise=(0.0, 1.0, 1.0),
            over="outline",
            is_set=True,
            turn=_turned_outline,
        ),
    }
)

STATE = PUSH_TERMS.state
STATE.update(
    {
        "goal_distance": _fixed_term(
            "distance from the object to the goal",
            lambda scene: scene.state.goal_distance.unsqueeze(1),
            "m",
            numbers=("goal_distance",),
            mirror_signs=(1.0,),
        ),
        "object_heading": ObservationTerm(
            "sine and cosine of the object's heading, counted from the way to the goal",
            lambda scene: scene.object_heading,
            numbers=("object_sin", "object_cos"),
            mirror_signs=_object_heading_signs,
            turn=_turned_heading,
        ),
        "heading_error": _fixed_term(
            "sine and cosine of the turn to the goal's heading, times the object's equal headings",
            lambda scene: scene.heading_error_axes,
            numbers=("heading_error_sin", "heading_error_cos"),
            mirror_signs=_HEADING,
        ),
        "load": _fixed_term(
            "push that slides the object",
            lambda scene: scene.load,
            "100 N",
            numbers=("load",),
            mirror_signs=(1.0,),
        ),
        "object_velocity": _fixed_term(
            "velocity of the object in the critic's frame",
            lambda scene: in_frame(
                scene.state.object_linvel[:, :2], axes_along(scene.state.goal_direction)
            ),
            "m/s",
            numbers=("object_vx", "object_vy"),
            mirror_signs=_PLACE,
        ),
        "robots": _fixed_term(
            "place, heading (sine, cosine), velocity and yaw rate of the robots in the critic's "
            "frame",
            lambda scene: scene.robots_towards_goal,
            "m, 1, m/s, rad/s",
            numbers=("x", "y", "sin", "cos", "vx", "vy", "yaw_rate"),
            mirror_signs=(*_PLACE, *_HEADING, *_VELOCITY),
            over="robots",
        ),
        "object_place": ObservationTerm(
            "place of the object in the arena",
            lambda scene: scene.state.object_pos[:, :2],
            "m",
            numbers=("object_x", "object_y"),
        ),
        "object_yaw": ObservationTerm(
            "heading of the object in the arena, in [0, 2 pi)",
            lambda scene: scene.yaw[:, scene.constants.num_agents],
            "rad",
            numbers=("object_yaw",),
        ),
        "goal_place": ObservationTerm(
            "place of the goal in the arena",
            lambda scene: scene.state.goal_pos[:, :2],
            "m",
            numbers=("goal_x", "goal_y"),
        ),
        "robots_in_arena": ObservationTerm(
            "place, heading in [0, 2 pi), velocity and yaw rate of the robots in the arena",
            lambda scene: scene.robots_in_arena,
            "m, rad, m/s, rad/s",
            numbers=("x", "y", "yaw", "vx", "vy", "yaw_rate"),
            over="robots",
        ),
        "team": _fixed_term(
            "set of the robots: presence, place, heading (sine, cosine), velocity and yaw rate in "
            "the critic's frame",
            entities.team,
            "1, m, 1, m/s, rad/s",
            numbers=(PRESENT, "x", "y", "sin", "cos", "vx", "vy", "yaw_rate"),
            mirror_signs=(1.0, *_PLACE, *_HEADING, *_VELOCITY),
            over="robots",
            is_set=True,
        ),
        "outline": ObservationTerm(
            "set of points of the object's outline in the critic's frame",
            entities.outline_towards_goal,
            "1, m",
            numbers=(PRESENT, "x", "y"),
            mirror_signs=(1.0, *_PLACE),
            mirror_entities=_mirrored_points,
            over="outline",
            is_set=True,
            turn=_turned_outline,
        ),
    }
)
