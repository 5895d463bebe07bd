"""Subcommands for ``mapush``, by name."""

import pkgutil
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mqe.extensions import Registry

Main = Callable[[Sequence[str]], int]  # the rest of the command line to an exit code


class Command(NamedTuple):
    """A subcommand, imported at its first call."""

    target: str | Main  # MODULE:FUNCTION, or the function itself
    help: str  # one line in ``mapush --help``


COMMANDS: Registry[Command] = Registry("command")
for _name, _target, _help in (
    ("train", "harl_mapush.train:main", "training of a team"),
    ("test", "harl_mapush.test:main", "success rate and other metrics of a team"),
    ("play", "harl_mapush.test:play", "a team to watch in a browser"),
    ("list", "mapush.listing:main", "runs, and the policies that ship with mapush"),
    ("settings", "mapush.listing:settings", "settings, with default, range and meaning"),
    (
        "export",
        "mapush.export.command:main",
        "a trained team as ONNX, with a description of every number",
    ),
    ("doctor", "mapush.doctor.command:main", "a check of this machine, step by step"),
):
    COMMANDS.register(_name, Command(_target, _help))

# Replacements for commands of release 0.3. Extensions add theirs.
MOVED = {
    "film": "mapush play TEAM --record FILE.mp4",
    "average": "mapush export RUN OUT --for policy --last 4",
    "capacity": "mapush train --num_envs N, which names a number of worlds that fits",
}


def load(name: str) -> Main:
    """Import a subcommand. Raise ImportError if a required package is missing."""
    target = COMMANDS[name].target
    return pkgutil.resolve_name(target) if isinstance(target, str) else target
