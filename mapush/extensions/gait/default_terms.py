"""A velocity task's terms before its settings choose others."""

from functools import partial

# Imported so that all terms of the task exist.
from mapush.extensions.gait import rewards as rewards
from mapush.extensions.gait.metrics import MEASURES, METRICS
from mapush.extensions.gait.observations import OBSERVATIONS, STATE
from mapush.extensions.gait.settings import VELOCITY_TERMS
from mapush.extensions.gait.terminations import TERMINATIONS
from mqe.tasks.term_settings import DefaultTerms, build_terms

_DEFAULT = DefaultTerms(
    tuple(OBSERVATIONS),
    # Only training with loads asks for the load.
    tuple(name for name in STATE if name != "load"),
    tuple(TERMINATIONS),
    tuple(MEASURES),
    tuple(METRICS),
)
# Builds the terms chosen by the settings.
velocity_terms = partial(build_terms, VELOCITY_TERMS, _DEFAULT)
