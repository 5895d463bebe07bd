"""Episode metrics for the velocity task, and their measures."""

from mapush.extensions.gait.settings import VELOCITY_TERMS
from mqe.tasks.terms import MeasureTerm, MetricTerm

MEASURES = VELOCITY_TERMS.measures
MEASURES.update(
    {
        "velocity_error": MeasureTerm(
            "larger of the errors of vx and vy, in the mean over a trot's cycle",
            lambda step: step.missed[:, :2].amax(dim=1),
            "m/s",
        ),
        "yaw_rate_error": MeasureTerm(
            "error of the yaw rate in the mean over a trot's cycle",
            lambda step: step.missed[:, 2],
            "rad/s",
        ),
    }
)

METRICS = VELOCITY_TERMS.metrics
METRICS.update(
    {
        "fall": MetricTerm("1 for an end by a fall or a collapse", lambda e: e.terminated["fall"]),
        "velocity_error": MetricTerm(
            "mean error of the velocity", lambda e: e.mean("velocity_error"), "m/s"
        ),
        "yaw_rate_error": MetricTerm(
            "mean error of the yaw rate", lambda e: e.mean("yaw_rate_error"), "rad/s"
        ),
        "episode_time_s": MetricTerm("length of the episode", lambda e: e.time, "s"),
    }
)
