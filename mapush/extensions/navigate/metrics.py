"""Metrics of navigation episodes, and the measures of control steps that they are computed from."""

from __future__ import annotations

from torch import Tensor

from mapush.extensions.navigate.features import NavigateEpisodes
from mapush.extensions.navigate.settings import NAVIGATE_TERMS
from mqe.tasks.terms import MeasureTerm, MetricTerm

MEASURES = NAVIGATE_TERMS.measures
MEASURES.update(
    {
        "object_contact": MeasureTerm(
            "1 while the object touches an obstacle", lambda m: m.is_touching_obstacle[:, 0]
        ),
        "robot_contact": MeasureTerm(
            "1 while a robot touches an obstacle", lambda m: m.is_touching_obstacle[:, 1]
        ),
        "path": MeasureTerm("way of the object", lambda m: m.path, "m"),
        "progress": MeasureTerm("decrease of the cost-to-go", lambda m: m.progress),
        "shortest": MeasureTerm(
            "length of the shortest way from the start to the goal",
            lambda m: m.plan.shortest[:, 0],
            "m",
        ),
    },
)


DEFAULT_MEASURES = tuple(MEASURES)  # those of every navigation task


def _fall(e: NavigateEpisodes) -> Tensor:
    return e.terminated["roll"] | e.terminated["pitch"] | e.terminated["height"]


METRICS = NAVIGATE_TERMS.metrics
METRICS.update(
    {
        "success": MetricTerm("1 for an end at the goal", lambda e: e.is_success),
        "collision": MetricTerm(
            "1 for an end by a collision of robots", lambda e: e.terminated["collision"]
        ),
        "fall": MetricTerm("1 for an end by a roll, a pitch or a height", _fall),
        "collapse": MetricTerm("1 for an end by a collapse", lambda e: e.terminated["collapse"]),
        "episode_time_s": MetricTerm("length of the episode", lambda e: e.time, "s"),
        "path_length": MetricTerm("way of the object", lambda e: e.sum("path"), "m"),
        "shortest_length": MetricTerm(
            "length of the shortest way around the obstacles", lambda e: e.mean("shortest"), "m"
        ),
        "spl": MetricTerm(
            "success weighed by the length of the shortest way over that of the way taken",
            lambda e: e.spl,
        ),
        "legs": MetricTerm(
            "number of legs begun, in each of which the cost-to-go falls by task.look_ahead",
            lambda e: e.legs,
        ),
        "object_contact_share": MetricTerm(
            "share of control steps at which the object touches an obstacle",
            lambda e: e.mean("object_contact"),
        ),
        "robot_contact_share": MetricTerm(
            "share of control steps at which a robot touches an obstacle",
            lambda e: e.mean("robot_contact"),
        ),
    },
)
DEFAULT_METRICS = tuple(METRICS)  # those of every navigation task
