"""A velocity task's terms before its settings choose others."""

from __future__ import annotations

from mqe.tasks.term_settings import DefaultTerms

# Imported so that all terms of the task exist.
from mqe.tasks.velocity import rewards as rewards
from mqe.tasks.velocity.metrics import MEASURES, METRICS
from mqe.tasks.velocity.observations import OBSERVATIONS, STATE
from mqe.tasks.velocity.terminations import TERMINATIONS

_LOADED_STATE = ("load",)  # terms of the state that only training with loads asks for

DEFAULT_TERMS = DefaultTerms(
    tuple(OBSERVATIONS),
    tuple(name for name in STATE if name not in _LOADED_STATE),
    tuple(TERMINATIONS),
    tuple(MEASURES),
    tuple(METRICS),
)
