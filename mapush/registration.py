"""Functions with which a user's module adds entries to the registries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:  # the functions import these themselves: the command line starts without torch
    from torch import Tensor

    from harl_mapush.algorithms.algorithm import Algorithm
    from harl_mapush.callback import Callback
    from harl_mapush.callbacks.run_context import RunContext
    from harl_mapush.clients.entries import Client
    from harl_mapush.learning.settings import AlgorithmCfg
    from harl_mapush.runs.formats import Format
    from mqe.registry import SimulatorEntry
    from mqe.tasks.entry import TaskEntry
    from mqe.tasks.terms import Memory, ObservationTerm, Signs, TermRegistry
    from mqe.tasks.walking import WalkingTask
    from mqe.world.objects import ObjectCfg
    from mqe.world.robots import RobotCfg


def register_object(name: str, cfg: ObjectCfg) -> None:
    """Register an object as ``task.object=NAME``.

    Raise ConfigError if the name is taken, or if ``cfg`` is no ``ObjectCfg``.
    """
    from mqe.world.objects import OBJECTS, ObjectCfg

    _check_type("object", name, cfg, ObjectCfg)
    OBJECTS.register(name, replace(cfg, name=name))


def register_suite(file: str | Path, task: str | None = None) -> None:
    """Register the suite in a YAML file, as ``--suite`` with the file's name without .yaml.

    ``task`` is measured in the suite where nobody names another one. Raise ConfigError for a file
    that is no suite.
    """
    from harl_mapush.config.suites import register_suite as register

    register(file, task)


def register_reward(
    name: str,
    function: Callable[[Any], Tensor] | type[Memory],
    weight: float = 0.0,
    help: str = "",
    unit: str = "1",
    task: str | None = None,
) -> None:
    """Register a reward term of a task, (N,) or (N, A), unweighted at every control step.

    ``function`` takes the task's ``StepFeatures``; a class of such functions that inherits from
    ``mqe.tasks.terms.Memory`` may remember. ``weight`` is the term's weight unless
    ``task.weights.NAME`` is set. Raise ConfigError if the name is taken.
    """
    from mqe.tasks.terms import RewardTerm

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
    """Register a term that agents of a task may observe, (N, A, ...).

    ``function`` takes the task's ``SceneFeatures``. ``task.more_observations=[NAME]`` adds the term
    to an observation, ``task.replaced_observations.DEFAULT=NAME`` puts it in the place of a default
    term. ``mirror_signs`` has 1 or -1 for each of its numbers, the sign that it gets in a mirror
    that swaps left and right; ``algorithm.symmetries=[mirror]`` and ``mirror_loss_coef`` need
    them. ``more`` are further fields of ``mqe.tasks.terms.ObservationTerm``. Raise ConfigError if
    the name is taken.
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
    """Register a term that the critic of a task may observe, (N, ...).

    ``function`` takes the task's ``SceneFeatures``. ``task.more_state=[NAME]`` adds the term to the
    critic's state. The other arguments are those of ``register_observation``.
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
    """Register a condition (N,) bool of a task's ``StepFeatures`` that ends an episode.

    ``task.more_terminations=[NAME]`` asks for it; its share of the ends is then a metric of the
    same name. Raise ConfigError if the name is taken.
    """
    from mqe.tasks.terms import TerminationTerm

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
    """Register a metric of a task's episodes, made of numbers or masks of control steps.

    ``function`` returns them, (N,) or (N, A) ``per_robot``, of the task's ``StepFeatures``.
    ``how`` says whether the metric is their mean or their sum over the episode, or 1 if one was
    ever above 0. ``task.more_metrics=[NAME]`` asks for it. Raise ConfigError if the name is taken.
    """
    from mqe.tasks.terms import MeasureTerm, MetricTerm, OfEpisode

    help = help or _meaning(name, function)
    measure = MeasureTerm(help, function, unit, per_robot)
    metric = MetricTerm(help, OfEpisode(name, how), unit, per_robot, {name: measure})
    _terms_of(task).metrics.register(name, metric)


def register_task(name: str, task: TaskEntry | type[WalkingTask]) -> None:
    """Register a task as ``task.name=NAME``; raise ConfigError if the name is taken."""
    from mqe.config import ConfigError
    from mqe.registry import TASKS
    from mqe.tasks.walking import walking_entry

    entry = walking_entry(task) if isinstance(task, type) else task
    if "name" not in [field.name for field in fields(entry.cfg)]:
        raise ConfigError(f"task {name!r}: its settings need a field name, by default {name!r}")
    TASKS.register(name, entry)


def register_algorithm(
    name: str, cfg: type[AlgorithmCfg], algorithm: Callable[..., Algorithm]
) -> None:
    """Register an algorithm as ``algorithm.name=NAME`` with settings of the class ``cfg``.

    ``algorithm`` takes the arguments of ``harl_mapush.algorithms.entries.make_algorithm``. Raises
    ConfigError if the name is taken, or is not the default of the settings' field ``name``.
    """
    from harl_mapush.algorithms.entries import ALGORITHMS, AlgorithmEntry
    from mqe.config import ConfigError

    if cfg().name != name:
        raise ConfigError(
            f"algorithm {name!r}: its settings need a field name, by default {name!r}, "
            f"not {cfg().name!r}"
        )
    ALGORITHMS.register(name, AlgorithmEntry(cfg, algorithm))


def register_simulator(name: str, entry: SimulatorEntry) -> None:
    """Register a simulator as ``sim.name=NAME``; raise ConfigError if the name is taken."""
    from mqe.registry import SIMULATORS

    SIMULATORS.register(name, entry)


def register_callback(name: str, callback: Callable[[RunContext], Callback]) -> None:
    """Register a callback for every run that imports the user's module.

    ``callback`` is a class or a function of a ``RunContext``. Raises ConfigError if the name is
    taken.
    """
    from harl_mapush.callbacks.run_context import CALLBACKS

    CALLBACKS.register(name, callback)


def register_format(name: str, checkpoint_format: Format) -> None:
    """Register a checkpoint format, so that its policies can be measured, shown and filmed.

    Raises ConfigError if the name is taken.
    """
    from harl_mapush.runs.formats import FORMATS

    FORMATS.register(name, checkpoint_format)


def register_client(name: str, client: Client) -> None:
    """Register an environment interface as ``mapush.make(task, client=NAME)``.

    ``client`` takes ``Worlds`` (``harl_mapush.clients.entries``), and its own options as
    keyword arguments. Raises ConfigError if the name is taken.
    """
    from harl_mapush.clients.entries import CLIENTS

    CLIENTS.register(name, client)


def register_command(name: str, target: str | Callable[[Sequence[str]], int], help: str) -> None:
    """Register a subcommand, ``mapush NAME``.

    ``target`` takes the rest of the command line and returns an exit code; as ``MODULE:FUNCTION``
    it is imported when the command is called. Raises ConfigError if the name is taken.
    """
    from mapush.commands import COMMANDS, Command

    COMMANDS.register(name, Command(target, help))


def register_robot(name: str, cfg: RobotCfg) -> None:
    """Register a robot as ``env.robots=NAME``.

    Raise ConfigError if the name is taken, or if ``cfg`` is no ``RobotCfg``.
    """
    from mqe.world.robots import ROBOTS, RobotCfg

    _check_type("robot", name, cfg, RobotCfg)
    ROBOTS.register(name, replace(cfg, name=name))


def _check_type(kind: str, name: str, cfg: object, wanted: type) -> None:
    """Raise ConfigError if ``cfg`` is no ``wanted``."""
    from mqe.config import ConfigError

    if not isinstance(cfg, wanted):
        raise ConfigError(f"{kind} {name!r}: must be a mapush.{wanted.__name__}, not {cfg!r:.100}")


def _terms_of(task: str | None) -> TermRegistry:
    """Return the terms of a task, by default of the default task.

    Raise ConfigError if there is no task of this name, or if it has no terms.
    """
    from harl_mapush.config import DEFAULT_TASK
    from mqe.config import ConfigError
    from mqe.registry import TASKS

    terms = TASKS.find(task or DEFAULT_TASK, "task").terms
    if terms is None:
        raise ConfigError(f"task {task!r}: its entry has no terms; give TaskEntry some")
    return terms


def _observation_term(
    name: str,
    function: Callable[[Any], Tensor],
    mirror_signs: Signs,
    help: str,
    unit: str,
    more: dict[str, Any],
) -> ObservationTerm:
    from mqe.tasks.terms import ObservationTerm

    help = help or _meaning(name, function)
    return ObservationTerm(help, function, unit, mirror_signs=mirror_signs, **more)


def _meaning(name: str, function: Callable[..., Any]) -> str:
    """Return the first paragraph of the docstring of a term's function; else its name in words."""
    paragraph = (function.__doc__ or "").strip().partition("\n\n")[0]
    return " ".join(paragraph.split()) or name.replace("_", " ")
