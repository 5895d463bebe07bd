"""The networks that a new run starts with: those of a checkpoint (``runner.init_from``)."""

from __future__ import annotations

from pathlib import Path

from harl_mapush import checkpoint
from harl_mapush.runner import Runner
from mqe.config import ConfigError


def resolve(what: str) -> Path:
    """Return the folder of a checkpoint, run or ``pretrained:NAME``; raise ConfigError where there is none."""
    try:
        return checkpoint.resolve(what)
    except ConfigError as error:
        raise ConfigError(str(error).replace("--checkpoint", "runner.init_from (--init_from):")) from None


def load(what: str, runner: Runner) -> str:
    """Load a checkpoint's networks into a new run; return a line about it. Raise ConfigError if they do not fit."""
    folder, algorithm = resolve(what), runner.algorithm
    is_whole = all((folder / f"{name}.pt").is_file() for name in algorithm.networks)
    if checkpoint.format_of(folder) is not checkpoint.OURS or not is_whole:
        checkpoint.load_actors(folder, algorithm.networks)
        return f"Starts with the actors of {folder}, and with a new critic"
    checkpoint.load(folder, algorithm.networks)
    return f"Starts with the actors and the critic of {folder}"
