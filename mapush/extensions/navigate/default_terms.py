"""A navigation task's terms before its settings choose others."""

from __future__ import annotations

# Imported so that all terms of the task exist.
from mapush.extensions.navigate import observations as observations
from mapush.extensions.navigate import rewards as rewards
from mapush.extensions.navigate.features import SceneFeatures
from mapush.extensions.navigate.metrics import DEFAULT_MEASURES, DEFAULT_METRICS
from mapush.extensions.navigate.settings import NAVIGATE_TERMS, OBSERVED, NavigateCfg
from mapush.extensions.navigate.terminations import DEFAULT_TERMINATIONS
from mqe.tasks.term_settings import DefaultTerms, build_terms
from mqe.tasks.terms import TaskTerms, Worlds

_DEFAULT = DefaultTerms(OBSERVED, OBSERVED, DEFAULT_TERMINATIONS, DEFAULT_MEASURES, DEFAULT_METRICS)


def navigate_terms(cfg: NavigateCfg, worlds: Worlds, empty_scene: SceneFeatures) -> TaskTerms:
    """Build the terms chosen by the settings, with sizes from one world's features."""
    return build_terms(NAVIGATE_TERMS, _DEFAULT, cfg, worlds, empty_scene)
