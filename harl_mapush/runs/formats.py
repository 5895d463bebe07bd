"""Checkpoint formats: this project's own, and other libraries'.

Extensions and users' modules register theirs with ``mapush.register_format``.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from harl_mapush.runs.run_folder import CHECKPOINTS, CONFIG, checkpoints
from mqe.config import ConfigError, load_yaml
from mqe.controllers.frozen_policy import DESCRIPTION, describe_policy
from mqe.extensions import Registry
from mqe.manifest import check_files
from mqe.vec_env import VecEnv
from mqe.world.scene import MAX_ROBOTS


class Team(Protocol):
    """A team's policy for evaluation, films and clients."""

    def __call__(self, obs: Tensor) -> Tensor:
        """Return actions (N, A, U) for obs (N, A, O)."""
        ...

    def reset_memory(self, done: Tensor) -> None:
        """Reset the memory in worlds with an ended episode, ``done`` (N,) bool."""
        ...


class Format(NamedTuple):
    """A kind of checkpoint: a folder with settings and actors, one per agent or one for all."""

    owner: str  # owner in messages, for instance "HARL's"
    config: str  # name of the file of settings
    folder: str  # name of a checkpoint's folder, beside or around that file
    # Whether a checkpoint folder, or a single policy file, is of this kind. All functions below get
    # such a file in place of the folder.
    is_format_of: Callable[[Path], bool]
    num_agents: Callable[[Path], int]
    # The settings, as sections of one of our runs.
    read_config: Callable[[Path], dict[str, Any]]
    # The team. None: its actors are those of the settings' algorithm.
    load_team: Callable[[Path, VecEnv], Team | None]
    # The name of an agent's file in the folder.
    actor_file: Callable[[int], str] = "actor_agent{}.pt".format
    # Env steps and path of every checkpoint in a run folder.
    checkpoints: Callable[[Path], list[tuple[int, Path]]] = lambda run: []
    # Writes a checkpoint into an empty folder, in our format. None: its files are in ours.
    write_checkpoint: Callable[[Path, Path], None] | None = None


def _read_config(folder: Path) -> dict[str, Any]:
    """Return a checkpoint's settings. Without ``config.yaml``, ``policy.yaml`` has those of the
    worlds.
    """
    if (folder / CONFIG).is_file():
        return load_yaml(folder / CONFIG)
    policy = describe_policy(str(folder), "checkpoint")
    is_shared = len(policy.weights) == 1
    return {
        "env": {**policy.learned_in.get("env", {}), "num_agents": policy.num_robots},
        "task": policy.learned_in.get("task", {}),
        "algorithm": {"share_param": is_shared},
    }


def _num_agents(folder: Path) -> int:
    if (folder / CONFIG).is_file():
        check_files(folder, [CONFIG])
    section = _read_config(folder).get("env")
    num_agents = section.get("num_agents") if isinstance(section, dict) else None
    if (
        not isinstance(num_agents, int)
        or isinstance(num_agents, bool)
        or not 1 <= num_agents <= MAX_ROBOTS
    ):
        raise ConfigError(
            f"checkpoint {folder}: its {CONFIG} is damaged; env.num_agents must be 1 to "
            f"{MAX_ROBOTS}"
        )
    return num_agents


# Ours comes first, since the first format to accept a folder by ``is_format_of`` gets it.
FORMATS: Registry[Format] = Registry("checkpoint format")
OURS = FORMATS.register(
    "mapush",
    Format(
        owner="ours",
        config=CONFIG,
        folder=CHECKPOINTS,
        is_format_of=lambda folder: any(
            (folder / name).is_file() for name in (CONFIG, DESCRIPTION)
        ),
        num_agents=_num_agents,
        read_config=_read_config,
        load_team=lambda folder, env: None,
        checkpoints=checkpoints,
    ),
)


def foreign() -> list[Format]:
    """Return all formats but ours."""
    return [kind for kind in FORMATS.values() if kind is not OURS]
