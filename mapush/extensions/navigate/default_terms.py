"""A navigation task's terminations, and its terms before its settings choose others."""

from functools import partial

# Imported so that all terms of the task exist.
from mapush.extensions.navigate import observations as observations
from mapush.extensions.navigate import rewards as rewards
from mapush.extensions.navigate.metrics import MEASURES, METRICS
from mapush.extensions.navigate.settings import NAVIGATE_TERMS, OBSERVED
from mqe.tasks.push.terminations import TERMINATIONS as PUSH_TERMINATIONS
from mqe.tasks.term_settings import DefaultTerms, build_terms
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
    }
)
_DEFAULT = DefaultTerms(OBSERVED, OBSERVED, tuple(TERMINATIONS), tuple(MEASURES), tuple(METRICS))
# Builds the terms chosen by the settings.
navigate_terms = partial(build_terms, NAVIGATE_TERMS, _DEFAULT)
