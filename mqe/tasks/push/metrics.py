"""Metrics for push episodes, and their measures per control step."""

import torch
from torch import Tensor

from mqe.tasks.push.features import PushEpisodes, StepFeatures
from mqe.tasks.push.settings import PUSH_TERMS
from mqe.tasks.terms import MeasureTerm, Memory, MetricTerm, Worlds
from mqe.world.geometry import length
from mqe.world.scene import STEP_DT


class Reached(Memory):
    """A mask (N,): the object was at the goal in this episode, now or earlier."""

    def __init__(self, worlds: Worlds) -> None:
        """Begin with no success."""
        super().__init__(worlds)
        self._is_reached = self.remember("is_reached", dtype=torch.bool)

    def __call__(self, step: StepFeatures) -> Tensor:
        """Add one control step and return the mask."""
        self._is_reached |= step.is_success
        return self._is_reached


def _fall(e: PushEpisodes) -> Tensor:
    return e.terminated["roll"] | e.terminated["pitch"] | e.terminated["height"]


def _contact_share(e: PushEpisodes) -> Tensor:
    impulse = e.sum("contact_impulse")
    return impulse / impulse.sum(dim=1, keepdim=True)  # 0 / 0 is NaN, as it should


MEASURES = PUSH_TERMS.measures
MEASURES.update(
    {
        "collaboration": MeasureTerm(
            "1 while all robots are within 0.5 m of the object's outline",
            lambda step: step.is_together[:, 0],
        ),
        "collaboration_reference": MeasureTerm(
            "1 while all robots are within 1 m of the object's origin",
            lambda step: step.is_together[:, 1],
        ),
        "collapse": MeasureTerm("1 while a robot has collapsed", lambda step: step.is_collapsed),
        "tangle": MeasureTerm("1 while two robots are tangled", lambda step: step.is_tangled),
        "contact_impulse": MeasureTerm(
            "impulse of the robot on the object",
            lambda step: length(step.state.contact_force) * STEP_DT,
            "N s",
            per_robot=True,
        ),
        "is_reached": MeasureTerm("1 from the first success on", Reached),
    }
)

# Those of every push task.
DEFAULT_MEASURES = tuple(name for name in MEASURES if name != "is_reached")

METRICS = PUSH_TERMS.metrics
METRICS.update(
    {
        "success": MetricTerm(
            "1 for a success; if success does not end episodes, at any time", lambda e: e.is_success
        ),
        "collision": MetricTerm("1 for an end by a collision", lambda e: e.terminated["collision"]),
        "fall": MetricTerm("1 for an end by a roll, a pitch or a height", _fall),
        "collapse": MetricTerm(
            "1 for a collapse at any time of the episode", lambda e: e.happened("collapse")
        ),
        "tangle": MetricTerm(
            "1 for a tangle at any time of the episode", lambda e: e.happened("tangle")
        ),
        "episode_time_s": MetricTerm(
            "length of the episode; if success does not end it, until the first success",
            lambda e: e.time,
            "s",
        ),
        "collaboration_degree": MetricTerm(
            "fraction of control steps with all robots within 0.5 m of the object's outline; "
            "successes only",
            lambda e: e.measures.column("collaboration", e.means_of_successes),
        ),
        "collaboration_degree_reference": MetricTerm(
            "fraction of control steps with all robots within 1 m of the object's origin; "
            "successes only",
            lambda e: e.measures.column("collaboration_reference", e.means_of_successes),
        ),
        "contact_share": MetricTerm(
            "robot's fraction of the contact impulse on the object; the impulse sums the "
            "force's magnitude, whatever the direction; episodes with contact only",
            _contact_share,
            per_robot=True,
        ),
    }
)
DEFAULT_METRICS = tuple(METRICS)  # those of every push task
