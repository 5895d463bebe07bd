"""A push task's terms before its settings choose others."""

# Imported so that all terms of the task exist.
from mqe.tasks.push import observations as observations
from mqe.tasks.push import rewards as rewards
from mqe.tasks.push.features import PushConstants, SceneFeatures
from mqe.tasks.push.metrics import DEFAULT_MEASURES, DEFAULT_METRICS
from mqe.tasks.push.settings import OBSERVED_BY_CRITIC, PUSH_TERMS, PushCfg
from mqe.tasks.push.terminations import DEFAULT_TERMINATIONS
from mqe.tasks.term_settings import DefaultTerms, build_terms
from mqe.tasks.terms import TaskTerms, Worlds
from mqe.world.state import SceneState


def push_terms(cfg: PushCfg, constants: PushConstants, worlds: Worlds) -> TaskTerms:
    """Build the terms chosen by the settings."""
    empty = SceneState.zeros(1, worlds.num_agents, True, worlds.device)
    scene = SceneFeatures(empty, constants)
    order = constants.order if cfg.state_type == "FP" else None
    return build_terms(PUSH_TERMS, _default_terms(cfg), cfg, worlds, scene, order)


def _default_terms(cfg: PushCfg) -> DefaultTerms:
    """Return the default terms for the form of the observations and the end at success."""
    observed_by_critic = OBSERVED_BY_CRITIC[cfg.observation]
    if cfg.is_heading_observed:
        # The numbers of the robots come last.
        observed_by_critic = (*observed_by_critic[:-1], "heading_error", observed_by_critic[-1])
    measures = DEFAULT_MEASURES
    if not cfg.success_ends:
        measures += ("is_reached",)
    return DefaultTerms(
        cfg.default_observations,
        observed_by_critic,
        DEFAULT_TERMINATIONS,
        measures,
        DEFAULT_METRICS,
    )
