"""Former names of settings, which files, ``--set`` and run folders may still have.

To rename a setting, add its former name to ``RENAMED``; ``mqe.config`` reads it under both names
and writes one line that names the present one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Renamed(NamedTuple):
    """The present dotted name of a setting, and its value for a former value."""

    name: str
    value: Callable[[Any], Any] = lambda former: former


def _schedule(use_linear_decay: Any) -> Any:
    if isinstance(use_linear_decay, bool):
        return "linear" if use_linear_decay else "constant"
    return use_linear_decay  # the error of a value that cannot be names the present setting


RENAMED: dict[str, Renamed] = {
    "algorithm.use_linear_decay": Renamed("algorithm.schedule", _schedule),
    "algorithm.symmetry_coef": Renamed("algorithm.mirror_loss_coef"),
    "algorithm.mirror": Renamed("algorithm.use_mirrored_transitions"),
}
