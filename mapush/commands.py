"""The subcommands of ``mapush``, by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from mqe.extensions import Registry

Main = Callable[[Sequence[str]], int]  # the rest of the command line to an exit code


class Command(NamedTuple):
    """A subcommand, which is imported when it is called."""

    target: str | Main  # MODULE:FUNCTION, or the function itself
    help: str  # one line in ``mapush --help``
    takes_program: bool = False  # it also runs as a module, and has to be told its name


COMMANDS: Registry[Command] = Registry("command")
for _name, _target, _help in (
    ("train", "harl_mapush.train:main", "train a team"),
    ("test", "harl_mapush.test:main", "measure or watch a trained team"),
    ("play", "mapush.play:main", "watch a trained team, in a window or on a page"),
    ("film", "mapush.film:main", "film a team, or several side by side"),
    ("list", "mapush.listing:main", "list runs and the policies that ship with mapush"),
    (
        "settings",
        "mapush.listing:settings",
        "list all settings, with default, range and meaning",
    ),
    ("report", "mapush.report.command:main", "write a page about runs"),
    ("plot", "mapush.report.command:plot", "draw the curves of runs"),
    (
        "robustness",
        "mapush.robustness:main",
        "measure a team in worlds that differ from the usual ones",
    ),
    ("average", "mapush.averaging:main", "average a run's last checkpoints into one team"),
    (
        "export",
        "mapush.export.command:main",
        "write a trained team as ONNX, with a description of every number",
    ),
    (
        "import",
        "mapush.importing:main",
        "turn policies and task files of MAPush into runs and run files",
    ),
    ("sweep", "mapush.sweep.command:main", "train over a space of settings and rank them"),
    (
        "completion",
        "mapush.completion:main",
        "print a script that completes commands and settings in a shell",
    ),
    ("capacity", "mapush.capacity:main", "print how many worlds this machine's memory holds"),
    ("doctor", "mapush.doctor.command:main", "check this machine, step by step"),
):
    COMMANDS.register(_name, Command(_target, _help, _name in ("train", "test")))


def load(name: str) -> Main:
    """Import a subcommand; raise ImportError if a package that it needs is missing."""
    command = COMMANDS[name]
    if not isinstance(command.target, str):
        return command.target
    module, _, function = command.target.partition(":")
    main = getattr(importlib.import_module(module), function or "main")
    return partial(main, program=f"mapush {name}") if command.takes_program else main
