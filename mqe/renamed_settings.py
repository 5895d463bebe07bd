"""Former names of settings, which files, ``--set`` and run folders may still have, and of saved
states.

To rename a setting, add its former name to ``RENAMED``; ``mqe.config`` reads it under both names
and writes one line that names the present one. Settings in ``REMOVED`` are read and left out. To
rename a key of a saved state, load it by ``with_present_keys``.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Renamed(NamedTuple):
    """The present dotted name of a setting, and its value for a former value."""

    name: str
    value: Callable[[Any], Any] = lambda former: former


def _schedule(use_linear_decay: Any) -> Any:
    if isinstance(use_linear_decay, bool):
        return "linear" if use_linear_decay else "constant"
    return use_linear_decay  # the error of a value that cannot be names the present setting


def _symmetries(use_mirrored_transitions: Any) -> Any:
    if isinstance(use_mirrored_transitions, bool):
        return ["mirror"] if use_mirrored_transitions else []
    return use_mirrored_transitions


RENAMED: dict[str, Renamed] = {
    "algorithm.use_linear_decay": Renamed("algorithm.schedule", _schedule),
    "algorithm.symmetry_coef": Renamed("algorithm.mirror_loss_coef"),
    "algorithm.mirror": Renamed("algorithm.symmetries", _symmetries),
    "algorithm.use_mirrored_transitions": Renamed("algorithm.symmetries", _symmetries),
}


class Removed(NamedTuple):
    """A setting that is no more: the value that had no effect, a section that belonged to it, and
    what a run with any other value has to know.
    """

    neutral: Any
    section: str
    reason: str


REMOVED: dict[str, Removed] = {
    "algorithm.model": Removed(
        "none",
        "ensemble",
        "teams learn from the simulation alone; a learned model of the worlds made them worse",
    ),
}


@functools.cache
def note(line: str) -> None:
    """Write a line for the user on stderr, once in a process."""
    sys.stderr.write(f"Note: {line}.\n")


def with_present_keys(state: Mapping[str, Any], moves: Mapping[str, str]) -> dict[str, Any]:
    """Return a saved state in which values under the former keys of ``moves`` have their present
    ones; nested keys are joined by slashes.

    Write one line that names both, if there are any.
    """
    found = {former: _at(state, former) for former in moves}
    moved = {former: value for former, value in found.items() if value is not None}
    tops = {former.split("/")[0] for former in moved}
    present = {key: value for key, value in state.items() if key not in tops}
    for former, value in moved.items():
        *sections, key = moves[former].split("/")
        target = present
        for section in sections:
            target = target.setdefault(section, {})
        target[key] = value
    if moved:
        names = ", ".join(f"{former} is now {moves[former]}" for former in moved)
        note(f"the saved state has former names: {names}")
    return present


def _at(state: Mapping[str, Any], name: str) -> Any:
    """Return the value under a nested key, or None."""
    value: Any = state
    for key in name.split("/"):
        if not isinstance(value, Mapping) or key not in value:
            return None
        value = value[key]
    return value
