"""Terminations in the navigation task: conditions (N,) bool for an episode's early end."""

from mapush.extensions.navigate.settings import NAVIGATE_TERMS
from mqe.tasks.push.terminations import TERMINATIONS as PUSH_TERMINATIONS
from mqe.tasks.terms import TerminationTerm

TERMINATIONS = NAVIGATE_TERMS.terminations
TERMINATIONS.update(
    {
        "success": TerminationTerm(
            "the object's origin within task.success_radius of the goal",
            lambda step: step.is_success,
            is_failure=False,
        ),
        **{name: PUSH_TERMINATIONS[name] for name in ("roll", "pitch", "height", "collision")},
        "collapse": TerminationTerm(
            "a robot that lies or kneels for a while", lambda step: step.is_collapsed
        ),
    },
)
