"""The command line of every program: parser, flags and exit codes."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import Field
from functools import reduce, wraps
from pathlib import Path
from typing import Any, NoReturn

from harl_mapush.algorithms.entries import ALGORITHMS
from harl_mapush.config import other_names
from harl_mapush.config.layers import check_layer
from harl_mapush.config.sections import SECTIONS, all_classes
from harl_mapush.config.suites import load_suite
from harl_mapush.config.user_modules import import_modules
from harl_mapush.interruption import SIGNALLED, Signalled, as_exceptions
from harl_mapush.process import library_lines, say, write_error
from mqe.config import (
    ConfigError,
    assignment,
    at_home,
    merge,
    nested,
    parse_yaml,
    printable,
    unknown,
)
from mqe.extensions import load_extensions
from mqe.sim.simulator import SimulatorError

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
_METAVARS = {"--init_from": "CHECKPOINT", "--out": "FOLDER"}
_ALIASES = {"--num_envs": ("--n_rollout_threads",)}
_SIGPIPE = 13  # not in the module signal on Windows
_REQUIRED = "the following arguments are required: "  # argparse's words

# A parser, or a group of its arguments in the help.
Arguments = argparse.ArgumentParser | argparse._ArgumentGroup


class Parser(argparse.ArgumentParser):
    """An argument parser with ConfigError for mistakes and without abbreviated flags.

    ``example`` is a whole command, for the end of the help and for lines about missing arguments.
    """

    def __init__(self, example: str | None = None, **kwargs: Any) -> None:
        """Take the arguments of ``argparse.ArgumentParser``."""
        epilog = None if example is None else f"example: {example}"
        super().__init__(allow_abbrev=False, epilog=epilog, **kwargs)
        self.hint = f"; {'--help lists what is understood' if example is None else epilog}"

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage."""
        names = message.partition(_REQUIRED)[2]
        if names:
            message = f"missing: {names}"
        raise ConfigError(f"{message}{self.hint}")

    def parse(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """Parse ``argv``. Raise ConfigError with the nearest known flag for an unknown one."""
        arguments, rest = self.parse_known_args(self.spelled(argv))
        if rest:
            words = other_names.hint(rest[0], all_classes())
            if words is None:
                raise ConfigError(self.unknown(rest[0]))
            raise ConfigError(f"there is no {rest[0].partition('=')[0]} here; {words}")
        for name, value in vars(arguments).items():
            if isinstance(value, str):
                setattr(arguments, name, at_home(value))
        import_modules(getattr(arguments, "imports", ()))
        return arguments

    def spelled(self, argv: Sequence[str] | None) -> list[str]:
        """Return the words of ``argv`` with ``--num-envs`` as ``--num_envs`` and ``--task.object
        NAME`` as ``--set task.object=NAME``.
        """
        flags = self._option_string_actions
        words = iter(sys.argv[1:] if argv is None else argv)
        spelled = []
        for word in words:
            name, equals, value = word.partition("=")
            key = name.removeprefix("--")
            flag = f"--{key.replace('-', '_')}"
            if not word.startswith("--") or name in flags:
                spelled.append(word)
            elif flag in flags:
                spelled.append(f"{flag}{equals}{value}")
            elif key.partition(".")[0] in SECTIONS and "." in key and "--set" in flags:
                spelled += ["--set", f"{key}={value if equals else next(words, '')}"]
            else:
                spelled.append(word)
        return spelled

    def unknown(self, name: str) -> str:
        """Return the message about an unknown argument."""
        shown = [action for action in self._actions if action.help != argparse.SUPPRESS]
        flags = [
            flag for action in shown for flag in action.option_strings if flag.startswith("--")
        ]
        return unknown("argument", name, flags)


def add_import(parser: Arguments) -> None:
    """Add ``--import``. The parser imports its modules as soon as it has read the command line."""
    parser.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="MODULE",
        help="module of your own with further objects, terms, tasks, robots and so on (see "
        "docs/guides/own.md); may be repeated",
    )


def add_flags(parser: Arguments, flags: Sequence[str]) -> None:
    """Add flags from ``FLAGS``, and ``--set``, to a parser."""
    settings = other_names.dotted(all_classes())
    names_of = {"algorithm.name": ALGORITHMS}
    for flag in flags:
        key = FLAGS[flag]
        setting = settings[key]
        words = setting.metadata["help"]
        choices = setting.metadata.get("choices", names_of.get(key))
        if choices is not None:
            words += f": {', '.join(choices)}"
        word = flag.strip("-").rpartition("_")[2].upper()
        parser.add_argument(
            flag,
            *_ALIASES.get(flag, ()),
            dest=flag.strip("-"),
            metavar=_METAVARS.get(flag, word if _is_text(setting) else "N"),
            help=f"{words.replace('%', '%%')} ({key})",
        )
    parser.add_argument(
        "--suite",
        metavar="NAME",
        help="test of a team, with robots, object and success: a name from "
        "mapush list suites, a .yaml file, or several with commas between them",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help=f"any setting, as YAML; may be repeated; sections: {', '.join(SECTIONS)}",
    )


def _is_text(setting: Field) -> bool:
    """Return whether a setting's value is text."""
    return "str" in str(setting.type)


def add_other_flags(parser: Arguments) -> None:
    """Add other libraries' training flags."""
    load_extensions()
    for name, other in other_names.TRAIN_FLAGS.items():
        nargs = None if other.keys else "?"
        parser.add_argument(f"--{name}", nargs=nargs, help=argparse.SUPPRESS)


def add_other_test_flags(parser: Arguments) -> None:
    """Add other libraries' test flags."""
    load_extensions()
    for name, keywords in other_names.TEST_FLAGS.items():
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS, **keywords)


def _other_flag_values(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the values of other libraries' flags. Write a line with our setting for each."""
    layers = []
    for flag, other in other_names.TRAIN_FLAGS.items():
        text = getattr(arguments, flag, None)
        if text is None or not other.keys:
            continue
        texts = [f"{key}={other.value(text)}" for key in other.keys]
        layers += [assignment(text) for text in texts]
        said = " ".join(f"--set {text}" for text in texts)
        sys.stderr.write(f"Note: --{flag} {printable(text)} is {printable(said)} here.\n")
    return layers


def flag_values(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the nested values of the suite, the flags and every ``--set``. Later ones win."""
    layers: list[dict[str, Any]] = []
    suite = getattr(arguments, "suite", None)
    if suite is not None:
        layers.append(dict(load_suite(suite).worlds))
    settings = other_names.dotted(all_classes())
    for flag, key in FLAGS.items():
        given = getattr(arguments, flag.strip("-"), None)
        if given is not None:
            value = given if _is_text(settings[key]) else parse_yaml(given, flag)
            layers.append(nested(key, value))
    layers += _other_flag_values(arguments)
    layers += [assignment(text) for text in arguments.set]
    if getattr(arguments, "imports", ()):
        layers.append({"env": {"imports": list(arguments.imports)}})
    values = reduce(merge, layers, {})
    check_layer(values)
    return values


def check_writable(flag: str, name: str | None) -> None:
    """Raise ConfigError if the file of ``--flag`` cannot be written. Leave no file behind."""
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


def command(make_parser: Callable[[], Parser]) -> Callable[[Callable[[Any], int]], Any]:
    """Return a decorator: a command then takes ``argv``, or the command line's, in place of the
    parsed arguments. It shows the library's messages, and returns its ``exit_code``.
    """

    def decorate(main: Callable[[Any], int]) -> Callable[..., int]:
        @wraps(main)
        def run(argv: Sequence[str] | None = None) -> int:
            parser = make_parser()
            with library_lines(say):
                return exit_code(lambda: main(parser.parse(argv)), parser.prog)

        return run

    return decorate


def exit_code(main: Callable[[], int], program: str) -> int:
    """Run ``main`` and return its exit code, or the code for its final error or signal.

    A user's mistake or a system's refusal gives one line on stderr and exit code 2. Signals give
    128 and their number, as in a shell: Ctrl-C 130, SIGTERM 143, and 141 for output without a
    reader (``| head``).
    """
    try:
        with as_exceptions():
            return main()
    except (ConfigError, SimulatorError) as error:
        write_error(program, str(error))
        return 2 if isinstance(error, ConfigError) else 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # takes unflushed output
        return SIGNALLED + _SIGPIPE
    except Signalled as ending:
        sys.stderr.write(f"{program}: ended by {ending.signal.name}\n")
        return SIGNALLED + ending.signal
    except OSError as error:
        if error.strerror is None:  # not the system's word
            raise
        where = f"{error.filename}: " if error.filename is not None else ""
        # A name may be of any length.
        line = ConfigError(f"{where}{error.strerror}; mend that, or name another place")
        write_error(program, str(line))
        return 2
