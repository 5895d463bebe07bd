"""Functions for user modules: each adds a term to a task.

Every function raises ConfigError if the name is taken.
"""

from collections.abc import Callable
from typing import Any, Literal

from torch import Tensor

from harl_mapush.config import DEFAULT_TASK
from mqe.config import ConfigError
from mqe.registry import TASKS
from mqe.tasks.terms import (
    MeasureTerm,
    Memory,
    MetricTerm,
    ObservationTerm,
    OfEpisode,
    RewardTerm,
    Signs,
    TerminationTerm,
    TermRegistry,
)


def register_reward(
    name: str,
    function: Callable[[Any], Tensor] | type[Memory],
    weight: float = 0.0,
    help: str = "",
    unit: str = "1",
    task: str | None = None,
) -> None:
    """Register a task's reward term, (N,) or (N, A), unweighted at every control step.

    ``function`` takes the task's ``StepFeatures``. A subclass of ``mqe.tasks.terms.Memory`` may
    remember. ``weight`` is the default for ``task.weights.<name>``.
    """
    term = RewardTerm(help or _meaning(name, function), function, unit, weight=weight)
    _terms_of(task).rewards.register(name, term)


def register_observation(
    name: str,
    function: Callable[[Any], Tensor],
    mirror_signs: Signs = None,
    help: str = "",
    unit: str = "1",
    task: str | None = None,
    **more: Any,
) -> None:
    """Register an observation term for a task's agents, (N, A, ...).

    ``function`` takes the task's ``SceneFeatures``. ``task.more_observations=[<name>]`` adds the
    term, ``task.replaced_observations.DEFAULT=<name>`` substitutes the term for a default one.
    ``mirror_signs`` holds the sign, 1 or -1, of each component in a mirror between left and right.
    ``algorithm.symmetries=[mirror]`` and ``mirror_loss_coef`` need the signs. ``more`` are further
    fields of ``mqe.tasks.terms.ObservationTerm``.
    """
    term = _observation_term(name, function, mirror_signs, help, unit, **more)
    _terms_of(task).observations.register(name, term)


def register_state(
    name: str,
    function: Callable[[Any], Tensor],
    mirror_signs: Signs = None,
    task: str | None = None,
    **more: Any,
) -> None:
    """Register a term for the critic's state in a task, (N, ...).

    ``function`` takes the task's ``SceneFeatures``. ``task.more_state=[<name>]`` adds the term.
    ``more`` are further arguments of ``register_observation``.
    """
    term = _observation_term(name, function, mirror_signs, **more)
    _terms_of(task).state.register(name, term)


def register_termination(
    name: str,
    function: Callable[[Any], Tensor] | type[Memory],
    is_failure: bool = True,
    help: str = "",
    task: str | None = None,
) -> None:
    """Register a termination for a task's episodes, a mask (N,) from ``StepFeatures``.

    ``task.more_terminations=[<name>]`` adds the termination, and a metric ``<name>``: the fraction
    of episodes with this end.
    """
    term = TerminationTerm(help or _meaning(name, function), function, is_failure=is_failure)
    _terms_of(task).terminations.register(name, term)


def register_metric(
    name: str,
    function: Callable[[Any], Tensor] | type[Memory],
    how: Literal["mean", "sum", "happened"] = "mean",
    help: str = "",
    unit: str = "1",
    per_robot: bool = False,
    task: str | None = None,
) -> None:
    """Register a metric of a task's episodes from values or masks at control steps.

    ``function`` returns them from the task's ``StepFeatures``, (N,), or (N, A) with ``per_robot``.
    ``how``: their mean or sum over the episode, or 1 after any value above 0 (``happened``).
    ``task.more_metrics=[<name>]`` adds the metric.
    """
    help = help or _meaning(name, function)
    measure = MeasureTerm(help, function, unit, per_robot)
    metric = MetricTerm(help, OfEpisode(name, how), unit, per_robot, {name: measure})
    _terms_of(task).metrics.register(name, metric)


def _terms_of(task: str | None) -> TermRegistry:
    """Return a task's terms. Raises ConfigError for an unknown task or one without terms."""
    terms = TASKS.find(task or DEFAULT_TASK, "task").terms
    if terms is None:
        raise ConfigError(f"task {task!r}: the entry has no terms; give TaskEntry terms")
    return terms


def _observation_term(
    name: str,
    function: Callable[[Any], Tensor],
    mirror_signs: Signs = None,
    help: str = "",
    unit: str = "1",
    **more: Any,
) -> ObservationTerm:
    help = help or _meaning(name, function)
    return ObservationTerm(help, function, unit, mirror_signs=mirror_signs, **more)


def _meaning(name: str, function: Callable[..., Any]) -> str:
    """Return the first paragraph of a function's docstring, else the term's name in words."""
    paragraph = (function.__doc__ or "").strip().partition("\n\n")[0]
    return " ".join(paragraph.split()) or name.replace("_", " ")
