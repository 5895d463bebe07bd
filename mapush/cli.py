"""The installed command: ``mapush train ...``, ``mapush test ...``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from functools import partial

from mapush import __version__

_COMMANDS = {
    "train": ("harl_mapush.train", "train a team"),
    "test": ("harl_mapush.test", "measure or watch a trained team"),
    "play": ("mapush.play", "watch a trained team, in a window or on a page"),
    "list": ("mapush.listing", "list runs and the policies that ship with mapush"),
    "settings": ("mapush.listing:settings", "list all settings, with default, range and meaning"),
    "report": ("mapush.report.command", "write a page about runs"),
    "plot": ("mapush.report.command:plot", "draw the curves of runs"),
    "robustness": ("mapush.robustness", "measure a team in worlds that differ from the usual ones"),
    "average": ("mapush.averaging", "average a run's last checkpoints into one team"),
    "export": (
        "mapush.export.command",
        "write a trained team as ONNX, with a description of every number",
    ),
    "import": (
        "mapush.importing",
        "turn policies and task files of MAPush into runs and run files",
    ),
    "sweep": ("mapush.sweep.command", "train over a space of settings and rank them"),
    "completion": (
        "mapush.completion",
        "print a script that completes commands and settings in a shell",
    ),
    "doctor": ("mapush.doctor.command", "check this machine, step by step"),
}
_MODULES_TOO = ("train", "test")  # these also run as modules; the name goes into usage and errors


def commands() -> dict[str, Callable[[], Callable[[Sequence[str]], int]]]:
    """Return the function that loads each subcommand, by name."""
    return {name: partial(_load, name) for name in _COMMANDS}


def _load(name: str) -> Callable[[Sequence[str]], int]:
    module, _, function = _COMMANDS[name][0].partition(":")
    command = getattr(importlib.import_module(module), function or "main")
    return partial(command, program=f"mapush {name}") if name in _MODULES_TOO else command


def main(argv: Sequence[str] | None = None) -> int:
    """Hand the rest of the command line to a subcommand; return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        lines = [f"  {name:<12}{words}" for name, (_, words) in _COMMANDS.items()]
        more = "mapush COMMAND --help explains a command, mapush --version prints the version.\n"
        sys.stdout.write("\n".join(["usage: mapush COMMAND ...", "", *lines, "", more]))
        return 0 if arguments else 2
    if arguments[0] == "--version":
        sys.stdout.write(f"mapush {__version__}\n")
        return 0
    if arguments[0] not in _COMMANDS:
        sys.stderr.write(
            f"mapush: unknown command {arguments[0]!r} (allowed: {', '.join(_COMMANDS)}); see "
            "--help\n"
        )
        return 2
    try:
        from harl_mapush.interruption import (
            as_exits,  # here, for it may complain of MUJOCO_GL as the others do
        )

        # The next seconds go to importing torch and MuJoCo.
        with as_exits(f"mapush {arguments[0]}"):
            command = _load(arguments[0])
    except ImportError as error:
        if "MUJOCO_GL" in str(error):  # a mistake of the user's
            sys.stderr.write(f"mapush: {error}\n")
            return 2
        sys.stderr.write(
            f"mapush: the installation is incomplete ({error}); reinstall it with pip\n"
        )
        return 1
    return command(arguments[1:])
