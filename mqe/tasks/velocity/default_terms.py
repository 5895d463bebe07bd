"""A velocity task's terms before its settings choose others."""

from __future__ import annotations

from typing import Any

from mqe.tasks.term_settings import DefaultTerms, build_terms
from mqe.tasks.terms import TaskTerms, Worlds

# Imported so that all terms of the task exist.
from mqe.tasks.velocity import rewards as rewards
from mqe.tasks.velocity.metrics import MEASURES, METRICS
from mqe.tasks.velocity.observations import OBSERVATIONS, STATE
from mqe.tasks.velocity.settings import VELOCITY_TERMS, VelocityCfg
from mqe.tasks.velocity.terminations import TERMINATIONS

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
