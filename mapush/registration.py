"""Functions with which a user's module adds entries to the registries."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from mapush.commands import COMMANDS, Command

if TYPE_CHECKING:  # the functions import these themselves: the command line starts without torch
    from torch import Tensor

    from harl_mapush.algorithms.algorithm import Algorithm
    from harl_mapush.callbacks.callback import Callback
    from harl_mapush.clients.entries import Client
    from harl_mapush.experiment import Experiment
    from harl_mapush.learning.settings import AlgorithmCfg
    from harl_mapush.runs.formats import Format
    from mqe.tasks.entry import TaskEntry
    from mqe.tasks.push.features import StepFeatures
    from mqe.world.objects import ObjectCfg
    from mqe.world.robots import RobotCfg
    from mqe.world.state import SceneState


def register_object(name: str, cfg: ObjectCfg) -> None:
    """Register an object as ``task.object=NAME``; raise ConfigError if the name is taken."""
    from mqe.world.objects import OBJECTS

    OBJECTS.register(name, replace(cfg, name=name))


def register_reward(
    name: str, function: Callable[[StepFeatures], Tensor], weight: float = 0.0, help: str = ""
) -> None:
    """Register a reward term of the push task, (N,) or (N, A) unweighted at every control step.

    ``weight`` is the default of ``task.weights.NAME``. Raises ConfigError if the name is taken.
    """
    from mqe.tasks.push.rewards import REWARDS
    from mqe.tasks.terms import RewardTerm

    help = help or (function.__doc__ or "").strip()
    _add("reward", REWARDS, name, RewardTerm(help, function, weight=weight))


def register_observation(
    name: str,
    function: Callable[[SceneState], Tensor],
    mirror_signs: tuple[float, ...] | None = None,
) -> None:
    """Register an observation term of the push task, (N, A, ...) from a scene state.

    ``task.more_observations`` adds it to the observation. ``mirror_signs`` has for each of its
    numbers the factor, 1 or -1, of a swap of left and right. Without them,
    ``algorithm.use_mirrored_transitions`` and ``mirror_loss_coef`` cannot be used with it. Raises
    ConfigError if the name is taken.
    """
    from mqe.tasks.push.observations import OBSERVATIONS
    from mqe.tasks.terms import ObservationTerm

    _add(
        "observation",
        OBSERVATIONS,
        name,
        ObservationTerm("", lambda m: function(m.state), mirror_signs=mirror_signs),
    )


def register_task(name: str, entry: TaskEntry) -> None:
    """Register a task as ``task.name=NAME``; raise ConfigError if the name is taken."""
    from mqe.config import ConfigError
    from mqe.registry import TASKS

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


def register_callback(name: str, callback: Callable[[Experiment], Callback]) -> None:
    """Register a callback for every run that imports the user's module.

    ``callback`` is a class, or a function, that takes the ``Experiment``. Raises ConfigError if the
    name is taken.
    """
    from harl_mapush.callbacks.callback import CALLBACKS

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
    COMMANDS.register(name, Command(target, help))


def register_robot(name: str, cfg: RobotCfg) -> None:
    """Register a robot as ``env.robots=NAME``; raise ConfigError if the name is taken."""
    from mqe.world.robots import ROBOTS

    ROBOTS.register(name, replace(cfg, name=name))


def _add(kind: str, registry: dict[str, Any], name: str, member: Any) -> None:
    """Add an entry to a registry; the same entry may be added twice."""
    from mqe.config import ConfigError

    if not re.fullmatch(r"[A-Za-z]\w*", name):
        raise ConfigError(
            f"{kind} {name!r}: a name has letters, digits and _, and begins with a letter"
        )
    if name in registry and registry[name] != member:
        raise ConfigError(f"{kind} {name!r}: there is one of this name; choose another")
    registry[name] = member
