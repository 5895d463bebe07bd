"""A velocity task's terms before its settings choose others."""

from __future__ import annotations

from typing import Any

# Imported so that all terms of the task exist.
from mapush.extensions.gait import rewards as rewards
from mapush.extensions.gait.metrics import MEASURES, METRICS
from mapush.extensions.gait.observations import OBSERVATIONS, STATE
from mapush.extensions.gait.settings import VELOCITY_TERMS, VelocityCfg
from mapush.extensions.gait.terminations import TERMINATIONS
from mqe.tasks.term_settings import DefaultTerms, build_terms
from mqe.tasks.terms import TaskTerms, Worlds

_LOADED_STATE = ("load",)  # terms of the state that only training with loads asks for

_DEFAULT_TERMS = DefaultTerms(
    tuple(OBSERVATIONS),
    tuple(name for name in STATE if name not in _LOADED_STATE),
    tuple(TERMINATIONS),
    tuple(MEASURES),
    tuple(METRICS),
)


def velocity_terms(cfg: VelocityCfg, worlds: Worlds, empty_scene: Any) -> TaskTerms:
    """Build the terms chosen by the settings, with sizes from one world's features."""
    return build_terms(VELOCITY_TERMS, _DEFAULT_TERMS, cfg, worlds, empty_scene)
