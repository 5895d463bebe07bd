"""A navigation task's terms before its settings choose others."""

from functools import partial

# Imported so that all terms of the task exist.
from mapush.extensions.navigate import observations as observations
from mapush.extensions.navigate import rewards as rewards
from mapush.extensions.navigate.metrics import MEASURES, METRICS
from mapush.extensions.navigate.settings import NAVIGATE_TERMS, OBSERVED
from mapush.extensions.navigate.terminations import TERMINATIONS
from mqe.tasks.term_settings import DefaultTerms, build_terms

_DEFAULT = DefaultTerms(OBSERVED, OBSERVED, tuple(TERMINATIONS), tuple(MEASURES), tuple(METRICS))
# Builds the terms chosen by the settings.
navigate_terms = partial(build_terms, NAVIGATE_TERMS, _DEFAULT)
