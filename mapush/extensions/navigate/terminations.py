"""Terminations in the navigation task: conditions (N,) bool for an episode's early end."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from mapush.extensions.navigate.features import StepFeatures
from mapush.extensions.navigate.settings import NAVIGATE_TERMS
from mqe.tasks.push.posture import Posture
from mqe.tasks.push.terminations import collision
from mqe.tasks.terms import TerminationTerm


def _lost(limit: str) -> Callable[[StepFeatures], Tensor]:
    return lambda step: step.is_lost[Posture.names.index(limit)]


TERMINATIONS = NAVIGATE_TERMS.terminations
TERMINATIONS.update(
    {
        "success": TerminationTerm(
            "the object's origin within task.success_radius of the goal",
            lambda step: step.is_success,
            is_failure=False,
        ),
        "roll": TerminationTerm("a trunk rolled beyond the team's roll_limit", _lost("roll")),
        "pitch": TerminationTerm("a trunk pitched beyond the team's pitch_limit", _lost("pitch")),
        "height": TerminationTerm(
            "a trunk or the object 0.35 m above or below its height at spawn", _lost("height")
        ),
        "collision": TerminationTerm(
            "two trunks closer than the object's collision distance",
            lambda step: collision(step.pair_distance, step.constants.object.collision_distance),
        ),
        "collapse": TerminationTerm(
            "a robot that lies or kneels for a while", lambda step: step.is_collapsed
        ),
    },
)
# Terminations of every navigation task; ``task.more_terminations`` adds others.
DEFAULT_TERMINATIONS = tuple(TERMINATIONS)
