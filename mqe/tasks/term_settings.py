"""Settings for the choice and weights of a task's terms, and the resulting lists."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from mqe.config import ConfigError, option, unknown
from mqe.extensions import Registry
from mqe.tasks.terms import (
    ColumnTerms,
    EpisodeFeatures,
    MetricTerm,
    ObservationTerms,
    RewardTerm,
    RewardTerms,
    StateTerms,
    TaskTerms,
    TerminationTerms,
    TermRegistry,
    Worlds,
)
from mqe.world.scene import STEP_DT


@dataclass(frozen=True)
class TermCfg:
    """Settings under ``task`` for the choice and weights of terms."""

    weights: dict[str, float | None] = option(
        dict,
        "weights of single reward terms that replace the default ones, by term",
        min=-1e6,
        max=1e6,
    )
    replaced_observations: dict[str, str] = option(
        dict, "terms that agents observe in place of default ones, by the default one's name"
    )
    more_observations: tuple[str, ...] = option((), "further terms that agents observe, by name")
    more_state: tuple[str, ...] = option((), "further terms of the critic's state, by name")
    more_terminations: tuple[str, ...] = option(
        (), "further conditions that end an episode, by name"
    )
    more_metrics: tuple[str, ...] = option((), "further metrics of an episode, by name")

    def preset_weights(self) -> Mapping[str, float]:
        """Return default reward weights other than the terms' own."""
        return {}

    def check_terms(self, terms: TermRegistry) -> None:
        """Raise ConfigError for a term missing in ``terms``."""
        chosen: dict[str, tuple[Iterable[str], Registry[Any]]] = {
            "weights": (self.weights, terms.rewards),
            "replaced_observations": (self.replaced_observations.values(), terms.observations),
            "more_observations": (self.more_observations, terms.observations),
            "more_state": (self.more_state, terms.state),
            "more_terminations": (self.more_terminations, terms.terminations),
            "more_metrics": (self.more_metrics, terms.metrics),
        }
        for key, (names, registered) in chosen.items():
            for name in names:
                registered.find(name, f"task.{key}")


class DefaultTerms(NamedTuple):
    """A task's terms, by name, before the settings choose others."""

    observations: Collection[str]
    state: Collection[str]
    terminations: Collection[str]
    measures: Collection[str]
    metrics: Collection[str]


def chosen_weights(terms: Mapping[str, RewardTerm], cfg: TermCfg) -> dict[str, float]:
    """Return non-zero weights by term: the settings' own, else from their preset, else the term's
    own.
    """
    weights = dict(cfg.preset_weights())
    for name, term in terms.items():
        if term.weight and name not in weights:
            weights[name] = term.weight
    for name, weight in cfg.weights.items():
        if weight is not None:
            weights[name] = weight
    return {name: weight for name, weight in weights.items() if weight != 0.0}


def check_decision_period(decision_period: int, episode_length_s: float) -> None:
    """Raise ConfigError unless an episode is a whole number of decisions."""
    steps = round(episode_length_s / STEP_DT)
    if steps < 1 or decision_period < 1 or steps % decision_period:
        raise ConfigError(
            f"task.decision_period: {decision_period} does not divide the {steps} control steps of "
            f"task.episode_length_s {episode_length_s}; take a divisor of {max(steps, 1)}"
        )


def build_terms(
    terms: TermRegistry,
    default: DefaultTerms,
    cfg: TermCfg,
    worlds: Worlds,
    empty_scene: Any,
    order: Tensor | None = None,
) -> TaskTerms:
    """Build a task's terms for ``worlds``, as chosen in ``cfg``.

    ``empty_scene`` holds one world's features, for sizes. ``order`` (A, A) int64 lists the robots
    in each agent's state (FP). Raises ConfigError for an impossible choice.
    """
    weights = chosen_weights(terms.rewards, cfg)
    if not weights:
        raise ConfigError(
            "task.weights: every reward term has the weight 0; give one term another weight"
        )
    observed = observed_names(default.observations, cfg)
    in_state = _with_more(default.state, cfg.more_state)
    ends = _with_more(default.terminations, cfg.more_terminations)
    measured = _with_more(default.metrics, cfg.more_metrics)

    metrics = {name: terms.metrics[name] for name in measured}
    # Ends by further terminations are counted as those by default ones are.
    for name in cfg.more_terminations:
        metrics.setdefault(name, _ended_by(name))
    measures = {name: terms.measures[name] for name in default.measures}
    for metric in metrics.values():
        measures |= metric.measures
    observations = {name: terms.observations[name] for name in observed}
    state = {name: terms.state[name] for name in in_state}
    return TaskTerms(
        ObservationTerms(observations, worlds, empty_scene),
        StateTerms(state, worlds, empty_scene, order),
        RewardTerms(terms.rewards, weights, worlds),
        TerminationTerms({name: terms.terminations[name] for name in ends}, worlds),
        ColumnTerms(measures, worlds),
        ColumnTerms(metrics, worlds),
    )


def observed_names(default: Collection[str], cfg: TermCfg) -> list[str]:
    """Return the names of the agents' observation terms: ``default``, changed by ``cfg``.

    Raises ConfigError if ``cfg`` replaces a term that is not in ``default``.
    """
    replaced = cfg.replaced_observations
    for name in replaced:
        if name not in default:
            keys = [f"task.replaced_observations.{term}" for term in default]
            raise ConfigError(unknown("key", f"task.replaced_observations.{name}", keys))
    observed = [replaced.get(name, name) for name in default]
    return _with_more(observed, cfg.more_observations)


def _with_more(default: Collection[str], more: Collection[str]) -> list[str]:
    """Return all names, each once."""
    return list(dict.fromkeys((*default, *more)))


def _ended_by(termination: str) -> MetricTerm:
    """Return a metric for ends by a termination."""

    def ended(episodes: EpisodeFeatures) -> Tensor:
        return episodes.terminated[termination]

    return MetricTerm(f"1 for an end by {termination}", ended)
