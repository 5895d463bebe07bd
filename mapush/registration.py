"""Functions for user modules: each adds a part to a registry.

Every function raises ConfigError if the name is taken.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace

from harl_mapush.algorithms.algorithm import Algorithm
from harl_mapush.algorithms.entries import ALGORITHMS, AlgorithmEntry
from harl_mapush.callback import Callback
from harl_mapush.callbacks.run_context import CALLBACKS, RunContext
from harl_mapush.clients.entries import CLIENTS, Client
from harl_mapush.learning.settings import AlgorithmCfg
from harl_mapush.runs.formats import FORMATS, Format
from mapush.commands import COMMANDS, Command
from mqe.config import ConfigError
from mqe.registry import SIMULATORS, TASKS, SimulatorEntry
from mqe.tasks.entry import TaskEntry
from mqe.tasks.walking import WalkingTask, walking_entry
from mqe.world.objects import OBJECTS, ObjectCfg
from mqe.world.robots import ROBOTS, RobotCfg


def register_object(name: str, cfg: ObjectCfg) -> None:
    """Register an object under ``name``, for ``task.object``.

    Raise ConfigError unless ``cfg`` is an ``ObjectCfg``.
    """
    _check_type("object", name, cfg, ObjectCfg)
    OBJECTS.register(name, replace(cfg, name=name))


def register_task(name: str, task: TaskEntry | type[WalkingTask]) -> None:
    """Register a task under ``name``, for ``task.name``."""
    entry = walking_entry(task) if isinstance(task, type) else task
    if "name" not in [field.name for field in fields(entry.cfg)]:
        raise ConfigError(
            f"task {name!r}: the settings class needs a field name with the default {name!r}"
        )
    TASKS.register(name, entry)


def register_algorithm(
    name: str, cfg: type[AlgorithmCfg], algorithm: Callable[..., Algorithm]
) -> None:
    """Register an algorithm under ``name``, for ``algorithm.name``.

    ``cfg`` is its settings class. ``cfg().name`` must equal ``name``, otherwise ConfigError is
    raised. ``algorithm`` builds the learner from the arguments of
    ``harl_mapush.algorithms.entries.make_algorithm``.
    """
    if cfg().name != name:
        raise ConfigError(
            f"algorithm {name!r}: the settings class needs a field name with the default "
            f"{name!r}, not {cfg().name!r}"
        )
    ALGORITHMS.register(name, AlgorithmEntry(cfg, algorithm))


def register_simulator(name: str, entry: SimulatorEntry) -> None:
    """Register a simulator under ``name``, for ``sim.name``."""
    SIMULATORS.register(name, entry)


def register_callback(name: str, callback: Callable[[RunContext], Callback]) -> None:
    """Register a callback for every run with the user's module.

    ``callback``, a class or a function, takes a ``RunContext``.
    """
    CALLBACKS.register(name, callback)


def register_format(name: str, checkpoint_format: Format) -> None:
    """Register a checkpoint format for ``mapush test``, ``play`` and ``export``."""
    FORMATS.register(name, checkpoint_format)


def register_client(name: str, client: Client) -> None:
    """Register an environment interface under ``name``, for ``mapush.make(task, client=<name>)``.

    ``client`` takes ``Worlds`` (``harl_mapush.clients.worlds``), and options as keyword arguments.
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
