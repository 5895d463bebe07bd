"""Metrics for navigation episodes, and their measures at control steps."""

from mapush.extensions.navigate.settings import NAVIGATE_TERMS
from mqe.tasks.push.metrics import METRICS as PUSH_METRICS
from mqe.tasks.terms import MeasureTerm, MetricTerm

MEASURES = NAVIGATE_TERMS.measures
MEASURES.update(
    {
        "object_contact": MeasureTerm(
            "1 while the object touches an obstacle", lambda step: step.is_touching_obstacle[:, 0]
        ),
        "robot_contact": MeasureTerm(
            "1 while a robot touches an obstacle", lambda step: step.is_touching_obstacle[:, 1]
        ),
        "path": MeasureTerm("length of the object's path", lambda step: step.path, "m"),
        "shortest": MeasureTerm(
            "length of the shortest path from the start to the goal",
            lambda step: step.plan.shortest[:, 0],
            "m",
        ),
    }
)


METRICS = NAVIGATE_TERMS.metrics
METRICS.update(
    {
        "success": MetricTerm("1 for an end at the goal", lambda episodes: episodes.is_success),
        "collision": PUSH_METRICS["collision"],
        "fall": PUSH_METRICS["fall"],
        "collapse": MetricTerm(
            "1 for an end by a collapse", lambda episodes: episodes.terminated["collapse"]
        ),
        "episode_time_s": MetricTerm("length of the episode", lambda episodes: episodes.time, "s"),
        "spl": MetricTerm(
            "success times the length of the shortest path over the length of the object's path",
            lambda episodes: episodes.spl,
        ),
        "object_contact_share": MetricTerm(
            "fraction of control steps at which the object touches an obstacle",
            lambda episodes: episodes.mean("object_contact"),
        ),
        "robot_contact_share": MetricTerm(
            "fraction of control steps at which a robot touches an obstacle",
            lambda episodes: episodes.mean("robot_contact"),
        ),
    }
)
