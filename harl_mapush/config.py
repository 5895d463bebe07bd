"""The whole configuration of a run, and the command line that changes it.

Later wins: defaults, config or preset, flags, ``--set``. The classes of the sections ``task`` and
``algorithm`` follow from ``task.name`` and ``algorithm.name``.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import reduce
from importlib.resources import files
from pathlib import Path
from typing import Any, NoReturn

from harl_mapush import foreign
from harl_mapush.algorithms.entries import ALGORITHMS
from harl_mapush.callbacks.logger import LoggerCfg
from harl_mapush.interruption import SIGNALLED, Signalled, as_exceptions
from harl_mapush.learning.settings import NetworkCfg
from harl_mapush.runner import RunnerCfg
from mqe.config import (
    ConfigError,
    assignment,
    build,
    check_values,
    load_yaml,
    merge,
    parse_yaml,
    unknown,
    with_present_names,
)
from mqe.extensions import load_extensions
from mqe.registry import TASKS, EnvCfg, SimCfg
from mqe.sim.simulator import SimulatorError
from mqe.world.objects import OBJECTS

DEFAULT_PRESET = "laptop"
DEFAULT_TASK = "go1push_mid"
DEFAULT_ALGORITHM = "happo"
IMPORTED: list[str] = []  # modules that --import brought into this process


@dataclass(frozen=True)
class RunCfg:
    """Everything that defines a run, section by section."""

    env: EnvCfg
    sim: SimCfg
    task: Any
    network: NetworkCfg
    algorithm: Any
    runner: RunnerCfg
    logger: LoggerCfg


SECTIONS = tuple(field.name for field in fields(RunCfg))
SECTION_CLASSES: dict[str, type] = {
    "env": EnvCfg,
    "sim": SimCfg,
    "network": NetworkCfg,
    "runner": RunnerCfg,
    "logger": LoggerCfg,
}
# The class is the name's.
_NAMED_SECTIONS: dict[str, Mapping[str, Any]] = {
    "task": TASKS,
    "algorithm": ALGORITHMS,
}

FLAGS = {
    "--algo": "algorithm.name",
    "--task": "task.name",
    "--object": "task.object",
    "--num_agents": "env.num_agents",
    "--num_envs": "env.num_envs",
    "--num_env_steps": "runner.num_env_steps",
    "--device": "sim.device",
    "--sim": "sim.name",
    "--seed": "runner.seed",
    "--max_wall_time": "runner.max_wall_time",
    "--init_from": "runner.init_from",
    "--exp_name": "logger.exp_name",
    "--out": "logger.out_dir",
}
_NUMBERS = ("--num_agents", "--num_envs", "--num_env_steps", "--seed")
_ALIASES = {"--num_envs": ("--n_rollout_threads",)}
_HELP = {
    "--algo": f"learning algorithm: {', '.join(ALGORITHMS)}",
    "--task": f"what the robots do: {', '.join(TASKS)}",
    "--object": f"what they push: {', '.join(OBJECTS)}",
    "--num_agents": "robots in a world",
    "--num_envs": "parallel worlds",
    "--num_env_steps": "control steps of the whole run, summed over worlds; rounded up to whole "
    "iterations",
    "--device": "auto, cpu, cuda or cuda:K",
    "--sim": "auto, mujoco, warp, isaacgym or mujoco_worker",
    "--seed": "of every random number in the run",
    "--max_wall_time": "save and end in time for this limit, 3h50m for instance",
    "--init_from": "start with the networks of a checkpoint, a run or pretrained:NAME, and with "
    "fresh optimisers",
    "--exp_name": "names the run's folder",
    "--out": "the run folder itself",
}


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are ConfigErrors of one line, and whose flags have no
    abbreviations.
    """

    def __init__(self, **kwargs: Any) -> None:
        """Take what ``argparse.ArgumentParser`` takes."""
        super().__init__(allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage."""
        raise ConfigError(f"{message}; --help lists what is understood")

    def parse(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """Parse; an unknown flag is an error that suggests the nearest."""
        arguments, rest = self.parse_known_args(argv)
        if rest:
            shown = [action for action in self._actions if action.help != argparse.SUPPRESS]
            flags = [
                flag for action in shown for flag in action.option_strings if flag.startswith("--")
            ]
            raise ConfigError(_with_hint(rest[0], unknown("argument", rest[0], flags)))
        import_modules(getattr(arguments, "imports", ()))
        return arguments


def add_import(parser: argparse.ArgumentParser) -> None:
    """Add ``--import``, whose modules are imported as soon as the command line is parsed."""
    parser.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="MODULE",
        help="a module of yours that registers objects, rewards, tasks or robots (see import "
        "mapush); may be repeated",
    )


def import_modules(names: Sequence[str], flag: str = "--import") -> None:
    """Load installed extensions, and import a user's modules, also from the current folder.

    Raises ConfigError for a module that is not there; ``flag`` is the one that named it.
    """
    load_extensions()
    here = os.getcwd()
    for name in names:
        if here not in sys.path:
            sys.path.insert(0, here)
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # something that the module itself needs
            raise ConfigError(
                f"{flag} {name}: there is no such module in {here} or on PYTHONPATH"
            ) from None
        except SyntaxError as error:
            raise ConfigError(
                f"{flag} {name}: {error.filename}, line {error.lineno}: {error.msg}"
            ) from None
        if name not in IMPORTED:
            IMPORTED.append(name)


def add_flags(parser: argparse.ArgumentParser, flags: Sequence[str]) -> None:
    """Add flags of ``FLAGS``, and ``--set``, to a parser."""
    for flag in flags:
        names = (flag, *_ALIASES.get(flag, ()))
        metavar = "N" if flag in _NUMBERS else flag.strip("-").rpartition("_")[2].upper()
        parser.add_argument(
            *names, dest=flag.strip("-"), metavar=metavar, help=f"{_HELP[flag]} ({FLAGS[flag]})"
        )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="any setting, read as YAML, more than once if need be; sections: "
        f"{', '.join(SECTIONS)}",
    )


def flag_values(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what the flags, and after them every ``--set``, say as nested values."""
    layers: list[dict[str, Any]] = []
    for flag, key in FLAGS.items():
        given = getattr(arguments, flag.strip("-"), None)
        if given is not None:
            section, _, name = key.partition(".")
            layers.append({section: {name: parse_yaml(given, flag) if flag in _NUMBERS else given}})
    layers += [assignment(text) for text in arguments.set]
    for text in arguments.set:
        _check_foreign(text.partition("=")[0].strip())
    if getattr(arguments, "imports", ()):
        layers.append({"env": {"imports": list(arguments.imports)}})
    for layer in layers:  # also what a later one replaces
        check_layer(layer)
    return reduce(merge, layers, {})


def check_writable(flag: str, name: str | None) -> None:
    """Make sure that a file can be written before the work that it is to hold; leave none
    behind.
    """
    if name is None:
        return
    path = Path(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not path.exists()
        path.open("ab").close()
        if is_new:
            path.unlink()
    except OSError as error:
        raise ConfigError(
            f"--{flag} {name!r} cannot be written ({error.strerror}); name another file"
        ) from None


def presets() -> list[str]:
    """List the names that ``--preset`` understands."""
    return sorted(path.name.removesuffix(".yaml") for path in _preset_folder().glob("*.yaml"))


def load_file(path: str | Path) -> dict[str, Any]:
    """Read a run file; raise ConfigError for a value that cannot be, in it or in the files that it
    is based on.
    """
    return load_yaml(path, check_layer)


def load_preset(name: str) -> dict[str, Any]:
    """Read ``configs/NAME.yaml``."""
    if name not in presets():
        raise ConfigError(f"--preset: {unknown('preset', name, presets())}")
    return load_yaml(_preset_folder() / f"{name}.yaml")


def resolve(base: Mapping[str, Any], over: Mapping[str, Any]) -> tuple[RunCfg, list[str]]:
    """Lay ``over`` on ``base``, check everything and fill in the defaults; return also what there
    is to say about it.

    Where ``over`` names another task or algorithm than ``base`` does, the keys of ``base`` that
    only the old one understands are left out, and a line says so.
    """
    notices: list[str] = []
    base = with_present_names(base)
    over = with_present_names(over)
    for layer in (base, over):  # before names that only those modules know
        _check_imports(layer.get("env"))
    check_layer(base)  # also what ``over`` replaces
    check_layer(over)
    sections = merge(
        {name: {} for name in SECTIONS}, {name: dict(base[name] or {}) for name in base}
    )
    for section, default in (("task", DEFAULT_TASK), ("algorithm", DEFAULT_ALGORITHM)):
        registry = _NAMED_SECTIONS[section]
        old = sections[section].get("name", default)
        new = (over.get(section) or {}).get("name", old)
        for name in (old, new):
            _check_name(section, name)
        if new != old:
            sections[section], left_out = _common_keys(
                sections[section], registry[old].cfg, registry[new].cfg
            )
            if left_out:
                named = ", ".join(f"{section}.{key}" for key in left_out)
                notices.append(f"{named} left out: set for {old}, unknown to {new}")
            if section == "task" and sections["env"].pop("num_agents", None) is not None:
                notices.append(
                    f"env.num_agents left out: the team of {new} is its own unless it is named"
                )
        sections[section]["name"] = new
    values = merge(sections, {name: over[name] or {} for name in over})
    classes = SECTION_CLASSES | {
        "task": TASKS[values["task"]["name"]].cfg,
        "algorithm": ALGORITHMS[values["algorithm"]["name"]].cfg,
    }
    cfg = RunCfg(**{name: build(classes[name], values[name], name) for name in SECTIONS})
    network = cfg.algorithm.built_network(cfg.network)
    if network != cfg.network:
        given = cfg.network
        usual = NetworkCfg()
        keys = [
            field.name
            for field in fields(given)
            if getattr(given, field.name) != getattr(usual, field.name)
        ]
        ignored = [f"network.{key}" for key in keys if getattr(network, key) != getattr(given, key)]
        if ignored:
            notices.append(
                f"{', '.join(ignored)} left out: under algorithm.compat=harl networks are as "
                "upstream's"
            )
        cfg = replace(cfg, network=network)
    return cfg, notices


def write_error(program: str, line: str) -> None:
    """Write on stderr why a program ends."""
    sys.stderr.write(f"{program}: {line}\n")


def exit_code(
    main: Callable[[], int], program: str, write: Callable[[str, str], None] = write_error
) -> int:
    """Run ``main``; turn the user's mistakes, and what the system refuses, into one line on stderr
    and exit code 2.

    ``write`` writes that line, given the program's name. Signals give 128 and their number, as the
    shell counts them: Ctrl-C 130, SIGTERM 143, and output that nobody reads any more (``| head``)
    141.
    """
    try:
        with as_exceptions():
            return main()
    except ConfigError as error:
        write(program, " ".join(str(error).split()))
        return 2
    except SimulatorError as error:
        write(program, " ".join(str(error).split()))
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is left to flush
        return SIGNALLED + signal.SIGPIPE
    except KeyboardInterrupt:
        sys.stderr.write(f"{program}: interrupted\n")
        return SIGNALLED + signal.SIGINT
    except Signalled as ending:
        sys.stderr.write(f"{program}: ended by {ending.signal.name}\n")
        return SIGNALLED + ending.signal
    except OSError as error:
        if error.strerror is None:  # not the system's word
            raise
        where = f"{error.filename}: " if error.filename is not None else ""
        # A name may be of any length.
        line = ConfigError(f"{where}{error.strerror}; mend that, or name another place")
        write(program, " ".join(str(line).split()))
        return 2


def _check_imports(env: Any) -> None:
    """Raise ConfigError where settings need a module that nobody imported: files never make
    anything be imported.
    """
    names = env.get("imports") if isinstance(env, Mapping) else None
    if not isinstance(names, (list, tuple)):
        return
    missing = [name for name in names if name not in IMPORTED]
    if missing:
        raise ConfigError(
            "env.imports: these settings need "
            f"{' '.join(f'--import {name}' for name in missing)}, which runs the code "
            "of that module; name it on the command line"
        )


def check_layer(values: Mapping[str, Any]) -> None:
    """Raise ConfigError for a value that cannot be, also where another layer of settings will
    replace it.

    In the sections ``task`` and ``algorithm``, whose keys depend on a name that another layer may
    have, a value must be one that any member with such a key takes.
    """
    for section, content in with_present_names(values).items():
        if section not in SECTIONS:
            raise ConfigError(unknown("section", section, SECTIONS))
        if content is not None and not isinstance(content, Mapping):
            raise ConfigError(
                f"{section}: must be a section of keys, not {content!r}; try {section}.key=value"
            )
        if section in SECTION_CLASSES:
            check_values(SECTION_CLASSES[section], content, section)
        else:
            _check_named_section(section, content or {})


def _check_named_section(section: str, content: Mapping[str, Any]) -> None:
    registry = _NAMED_SECTIONS[section]
    for key, value in content.items():
        if key == "name":
            _check_name(section, value)
            continue
        complaints = []
        for cls in {entry.cfg: None for entry in registry.values()}:
            if key in {field.name for field in fields(cls)}:
                try:
                    check_values(cls, {key: value}, section)
                    complaints.clear()
                    break
                except ConfigError as error:
                    complaints.append(error)
        if complaints:
            raise complaints[0]


def _check_name(section: str, name: Any) -> None:
    registry = _NAMED_SECTIONS[section]
    if not isinstance(name, str) or name not in registry:
        raise ConfigError(f"{section}.name: {unknown(section, name, registry)}")


def all_classes() -> dict[str, type]:
    """Return the classes of all sections, those of the default task and algorithm among them."""
    return SECTION_CLASSES | {
        "task": TASKS[DEFAULT_TASK].cfg,
        "algorithm": ALGORITHMS[DEFAULT_ALGORITHM].cfg,
    }


def _with_hint(name: str, complaint: str) -> str:
    """Return the complaint about an unknown name, or what to say instead where another library
    calls something so.
    """
    words = foreign.hint(name, all_classes())
    return complaint if words is None else f"there is no {name.partition('=')[0]} here; {words}"


def _check_foreign(key: str) -> None:
    """Raise ConfigError for a key that exists under another name."""
    section, _, name = key.partition(".")
    known = foreign.dotted(
        {"task": TASKS[DEFAULT_TASK].cfg} if section == "task" else all_classes()
    )
    if section in SECTIONS and key not in known and name in foreign.NAMES:
        raise ConfigError(_with_hint(key, ""))


def _common_keys(
    section: Mapping[str, Any], old: type, new: type
) -> tuple[dict[str, Any], list[str]]:
    """Return the settings that mean the same to both classes, and the keys of the others.

    A setting of another type does not, nor one whose value the new class does not allow.
    """
    known = {field.name: field.type for field in fields(new)}
    meant = {field.name: field.type for field in fields(old)}
    kept = {}
    for key, value in section.items():
        if key in known and known[key] == meant.get(key, known[key]):
            with suppress(ConfigError):
                check_values(new, {key: value}, "")
                kept[key] = value
    return kept, [key for key in section if key not in kept]


def _preset_folder() -> Path:
    """Return the folder of presets: ``configs/`` of a checkout, or the package that a wheel
    installs it as.
    """
    checkout = Path(__file__).parents[1] / "configs"
    if (checkout / "smoke.yaml").is_file():
        return checkout
    return Path(str(files("harl_mapush.configs")))
