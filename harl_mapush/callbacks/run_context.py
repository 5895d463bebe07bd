"""A run's parts for callbacks, and the registry for users' callbacks."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harl_mapush.callback import Callback
from harl_mapush.distributed.ranks import Ranks
from harl_mapush.trainer import Trainer
from mqe.extensions import Registry


class RunContext(NamedTuple):
    """A run's parts, as arguments for its callbacks."""

    folder: Path
    settings: Mapping[str, Any]  # nested plain values, as in the folder's config.yaml
    env: Any  # the environment; with collectors, a description of theirs
    trainer: Trainer  # with the algorithm, the progress and the statistics
    ranks: Ranks
    say: Callable[[str], None]  # writes one line to the run's log


# Classes, or functions, that build a callback.
CALLBACKS: Registry[Callable[[RunContext], Callback]] = Registry("callback")
