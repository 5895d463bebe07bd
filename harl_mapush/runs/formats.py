"""Kinds of checkpoints: this project's own, and foreign ones that entry points register."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from mqe.vec_env import VecEnv


class Team(Protocol):
    """A team's policy, as evaluation, films and clients call it."""

    def __call__(self, obs: Tensor) -> Tensor:
        """Return actions (N, A, U) for obs (N, A, O)."""
        ...

    def reset_memory(self, done: Tensor) -> None:
        """Reset what is remembered of the episode where ``done`` (N,) bool."""
        ...


class Format(NamedTuple):
    """A kind of checkpoint: a folder with a file an agent, or one for all, and settings in some
    form.
    """

    owner: str  # whose it is, as messages call it
    config: str  # the file of its settings
    folder: str  # what its folder is called, beside or around that file
    is_format_of: Callable[[Path], bool]  # whether a checkpoint folder is of this kind
    num_agents: Callable[[Path], int]
    # The sections of a run of ours that its settings amount to.
    read_config: Callable[[Path], dict[str, Any]]
    # None: its actors are those of the settings' algorithm.
    load_team: Callable[[Path, VecEnv], Team | None]
    # Which file of the folder an agent acts by.
    actor_file: Callable[[int], str] = "actor_agent{}.pt".format
    # The last checkpoint in a whole run's folder.
    newest: Callable[[Path], Path | None] = lambda run: None


FOREIGN: list[Format] = []


def register(foreign: Format) -> None:
    """Let checkpoints of a foreign kind be found and evaluated."""
    if foreign not in FOREIGN:
        FOREIGN.append(foreign)
