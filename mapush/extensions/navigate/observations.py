"""Observations for the navigation task's agent and critic."""

from dataclasses import replace

from mapush.extensions.navigate.settings import NAVIGATE_TERMS, NUM_OBSERVED_OBSTACLES
from mqe.tasks.terms import ObservationTerm

_PLACE = (1.0, -1.0)
_HEADING = (-1.0, 1.0)
_OBSTACLE = (*_PLACE, *_HEADING, 1.0, 1.0, 1.0)


# Functions of the features of W worlds, (W, ...).
STATE = NAVIGATE_TERMS.state
STATE.update(
    {
        "planned_distance": ObservationTerm(
            "distance from the object to the planned sub-goal",
            lambda scene: scene.planned_distance.unsqueeze(1),
            "m",
            mirror_signs=(1.0,),
        ),
        "cost_to_go": ObservationTerm(
            "cost-to-go of the object's place",
            lambda scene: scene.plan.cost_to_go,
            mirror_signs=(1.0,),
        ),
        "goal": ObservationTerm(
            "place of the goal in the plan's frame",
            lambda scene: scene.goal_in_plan,
            "m",
            mirror_signs=_PLACE,
        ),
        "object": ObservationTerm(
            "heading (sine, cosine) and velocity of the object in the plan's frame",
            lambda scene: scene.object_in_plan,
            "1, m/s",
            mirror_signs=(*_HEADING, *_PLACE),
        ),
        "robots": ObservationTerm(
            "places and headings (sine, cosine) of the robots in the plan's frame",
            lambda scene: scene.robots_in_plan,
            "m, 1",
            numbers=("x", "y", "sin_yaw", "cos_yaw"),
            mirror_signs=(*_PLACE, *_HEADING),
            over="robots",
        ),
        "obstacles": ObservationTerm(
            "nearest obstacles in the plan's frame: place, heading (sine, cosine), "
            "half-extents, and 1",
            lambda scene: scene.obstacles_in_plan.flatten(1),
            "m, 1",
            mirror_signs=_OBSTACLE * NUM_OBSERVED_OBSTACLES,
        ),
        "recent_progress": ObservationTerm(
            "decrease of the cost-to-go since its averages over the last 2 s and 8 s",
            lambda scene: scene.plan.past_cost - scene.plan.cost_to_go,
            mirror_signs=(1.0, 1.0),
        ),
        "subgoal": ObservationTerm(
            "place of the sub-goal in force in the plan's frame",
            lambda scene: scene.subgoal_in_plan,
            "m",
            mirror_signs=_PLACE,
        ),
        "robot_room": ObservationTerm(
            "distance of each robot's centre from the nearest obstacle or wall, and its slope "
            "along the plan's axes",
            lambda scene: scene.room_in_plan,
            "m, 1",
            numbers=("room", "room_slope_x", "room_slope_y"),
            mirror_signs=(1.0, *_PLACE),
            over="robots",
        ),
    }
)


def _of_one_agent(term: ObservationTerm) -> ObservationTerm:
    """Return a state term as an observation term for the only agent."""
    return replace(term, function=lambda scene: term.function(scene).unsqueeze(1))


OBSERVATIONS = NAVIGATE_TERMS.observations
OBSERVATIONS.update({name: _of_one_agent(term) for name, term in STATE.items()})
