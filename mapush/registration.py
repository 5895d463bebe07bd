"""Functions for user modules: each adds an entry to a registry.

Every function raises ConfigError if the name is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from harl_mapush.algorithms.algorithm import Algorithm
from harl_mapush.algorithms.entries import ALGORITHMS, AlgorithmEntry
from harl_mapush.callback import Callback
from harl_mapush.callbacks.run_context import CALLBACKS, RunContext
from harl_mapush.clients.entries import CLIENTS, Client
from harl_mapush.config import DEFAULT_TASK, suites
from harl_mapush.learning.settings import AlgorithmCfg
from harl_mapush.runs.formats import FORMATS, Format
from mapush.commands import COMMANDS, Command
from mqe.config import ConfigError
from mqe.registry import SIMULATORS, TASKS, SimulatorEntry
from mqe.tasks.entry import TaskEntry
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
from mqe.tasks.walking import WalkingTask, walking_entry
from mqe.world.objects import OBJECTS, ObjectCfg
from mqe.world.robots import ROBOTS, RobotCfg


def register_object(name: str, cfg: ObjectCfg) -> None:
    """Register an object under ``name``, for ``task.object``.

    Raise ConfigError unless ``cfg`` is an ``ObjectCfg``.
    """
    _check_type("object", name, cfg, ObjectCfg)
    OBJECTS.register(name, replace(cfg, name=name))


def register_suite(file: str | Path, task: str | None = None) -> None:
    """Register a YAML file as a suite for ``--suite``, under the file's name without the suffix.

    The suite becomes the default suite of ``task``. Raises ConfigError if the file holds no suite.
    """
    suites.register_suite(file, task)


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
    term = _observation_term(name, function, mirror_signs, help, unit, more)
    _terms_of(task).observations.register(name, term)


def register_state(
    name: str,
    function: Callable[[Any], Tensor],
    mirror_signs: Signs = None,
    help: str = "",
    unit: str = "1",
    task: str | None = None,
    **more: Any,
) -> None:
    """Register a term for the critic's state in a task, (N, ...).

    ``function`` takes the task's ``SceneFeatures``. ``task.more_state=[<name>]`` adds the term. See
    ``register_observation`` for the other arguments.
    """
    term = _observation_term(name, function, mirror_signs, help, unit, more)
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


def register_task(name: str, task: TaskEntry | type[WalkingTask]) -> None:
    """Register a task under ``name``, for ``task.name``."""
    entry = walking_entry(task) if isinstance(task, type) else task
    if "name" not in [field.name for field in fields(entry.cfg)]:
        raise ConfigError(
            f"task {name!r}: the settings class needs a field name with the default {name!r}"
        )
    TASKS.register(name, entry)


def register_algorithm(
    name: str, cfg: type[AlgorithmCfg], algorithm: Callable[..., Algorithm], **more: Any
) -> None:
    """Register an algorithm under ``name``, for ``algorithm.name``.

    ``cfg`` is its settings class. ``cfg().name`` must equal ``name``, otherwise ConfigError is
    raised. ``algorithm`` builds the learner from the arguments of
    ``harl_mapush.algorithms.entries.make_algorithm``. ``more`` are further fields of
    ``harl_mapush.algorithms.entries.AlgorithmEntry``.
    """
    if cfg().name != name:
        raise ConfigError(
            f"algorithm {name!r}: the settings class needs a field name with the default "
            f"{name!r}, not {cfg().name!r}"
        )
    ALGORITHMS.register(name, AlgorithmEntry(cfg, algorithm, **more))


def register_simulator(name: str, entry: SimulatorEntry) -> None:
    """Register a simulator under ``name``, for ``sim.name``."""
    SIMULATORS.register(name, entry)


def register_callback(name: str, callback: Callable[[RunContext], Callback]) -> None:
    """Register a callback for every run with the user's module.

    ``callback``, a class or a function, takes a ``RunContext``.
    """
    CALLBACKS.register(name, callback)


def register_format(name: str, checkpoint_format: Format) -> None:
    """Register a checkpoint format for ``mapush test``, ``play`` and ``film``."""
    FORMATS.register(name, checkpoint_format)


def register_client(name: str, client: Client) -> None:
    """Register an environment interface under ``name``, for ``mapush.make(task, client=<name>)``.

    ``client`` takes ``Worlds`` (``harl_mapush.clients.entries``), and options as keyword arguments.
    """
    CLIENTS.register(name, client)


def register_command(name: str, target: str | Callable[[Sequence[str]], int], help: str) -> None:
    """Register a subcommand, ``mapush <name>``.

    ``target`` takes the rest of the command line and returns an exit code. A string
    ``MODULE:FUNCTION`` is imported at the command's call.
    """
    COMMANDS.register(name, Command(target, help))


def register_robot(name: str, cfg: RobotCfg) -> None:
    """Register a robot under ``name``, for ``env.robots``.

    Raise ConfigError unless ``cfg`` is a ``RobotCfg``.
    """
    _check_type("robot", name, cfg, RobotCfg)
    ROBOTS.register(name, replace(cfg, name=name))


def _check_type(kind: str, name: str, cfg: object, expected: type) -> None:
    """Raise ConfigError unless ``cfg`` is an ``expected``."""
    if not isinstance(cfg, expected):
        raise ConfigError(
            f"{kind} {name!r}: must be a mapush.{expected.__name__}, not {cfg!r:.100}"
        )


def _terms_of(task: str | None) -> TermRegistry:
    """Return a task's terms. Raises ConfigError for an unknown task or one without terms."""
    terms = TASKS.find(task or DEFAULT_TASK, "task").terms
    if terms is None:
        raise ConfigError(f"task {task!r}: the entry has no terms; give TaskEntry terms")
    return terms


def _observation_term(
    name: str,
    function: Callable[[Any], Tensor],
    mirror_signs: Signs,
    help: str,
    unit: str,
    more: dict[str, Any],
) -> ObservationTerm:
    help = help or _meaning(name, function)
    return ObservationTerm(help, function, unit, mirror_signs=mirror_signs, **more)


def _meaning(name: str, function: Callable[..., Any]) -> str:
    """Return the first paragraph of a function's docstring, else the term's name in words."""
    paragraph = (function.__doc__ or "").strip().partition("\n\n")[0]
    return " ".join(paragraph.split()) or name.replace("_", " ")
