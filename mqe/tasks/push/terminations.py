"""Terminations in the push task: conditions (N,) bool for an episode's early end."""

from torch import Tensor

from mqe.tasks.push.posture import Posture
from mqe.tasks.push.settings import PUSH_TERMS
from mqe.tasks.terms import TerminationTerm


def collision(pair_distance: Tensor, limit: float) -> Tensor:
    """Return a mask: two trunks are closer than ``limit`` [m] in space. Pair distances are
    (N, P).
    """
    return (pair_distance < limit).any(dim=1)


TERMINATIONS = PUSH_TERMS.terminations
TERMINATIONS.update(
    {
        "success": TerminationTerm(
            "the object's origin within task.success_radius of the goal",
            lambda step: step.is_success if step.constants.cfg.success_ends else step.never,
            is_failure=False,
        ),
        "roll": TerminationTerm(
            "a trunk rolled beyond the team's roll_limit",
            lambda step: step.is_lost[Posture.names.index("roll")],
        ),
        "pitch": TerminationTerm(
            "a trunk pitched beyond the team's pitch_limit",
            lambda step: step.is_lost[Posture.names.index("pitch")],
        ),
        "height": TerminationTerm(
            "a trunk or the object 0.35 m above or below its height at spawn",
            lambda step: step.is_lost[Posture.names.index("height")],
        ),
        "collision": TerminationTerm(
            "two trunks closer than the object's collision distance",
            lambda step: collision(step.pair_distance, step.constants.object.collision_distance),
        ),
        "collapse": TerminationTerm(
            "a robot that lies or kneels for a while",
            lambda step: step.is_collapsed if step.constants.cfg.collapse_ends else step.never,
        ),
    }
)
# Terminations of every push task; ``task.more_terminations`` adds others.
DEFAULT_TERMINATIONS = tuple(TERMINATIONS)
