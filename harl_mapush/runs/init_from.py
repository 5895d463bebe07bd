"""A new run's initial networks and settings from a checkpoint (``runner.init_from``)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from harl_mapush import config
from harl_mapush.runs import checkpoint, evaluation_worlds
from harl_mapush.runs.formats import OURS
from harl_mapush.runs.run_folder import CONFIG
from mqe.config import ConfigError, errors_of, merge, to_dict
from mqe.pretrained import PRETRAINED
from mqe.registry import TASKS
from mqe.tensor_files import read_tensors

KEY = "runner.init_from (--init_from)"
# Updates of new critics before the first update of trained actors.
CRITIC_WARMUP = 3000


def resolve(what: str) -> Path:
    """Return the folder of a checkpoint, run or ``pretrained:NAME``, else raise ConfigError."""
    with errors_of(KEY):
        folder = checkpoint.resolve(what)
    if checkpoint.format_of(folder) is OURS and not (folder / CONFIG).is_file():
        raise ConfigError(
            f"{KEY}: {what} lacks {CONFIG} with the network sizes; name another checkpoint"
        )
    return folder


def apply(base: Mapping[str, Any], over: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return ``base`` with the settings from the run's initial checkpoint, and notices.

    They are its networks' sizes, whether each robot has a separate actor, and its policy's
    observations and commands. Settings in ``over`` are kept. ``over`` or ``base`` names the
    checkpoint. Without one ``base`` is returned unchanged. Raises ConfigError for a policy of
    another task.
    """
    in_base = (base.get("runner") or {}).get("init_from")
    source = (over.get("runner") or {}).get("init_from", in_base)
    if not isinstance(source, str):
        return dict(base), []
    folder = resolve(source)
    values = checkpoint.read_config(folder)
    learned = config.resolve(values, {})[0]
    cfg = config.resolve(base, over)[0]
    if learned.task.name != cfg.task.name:
        raise ConfigError(_other_task(source, learned.task.name, cfg.task.name))

    task = {
        key: value
        for key, value in to_dict(learned.task).items()
        if key in evaluation_worlds.INTERFACE and key not in (over.get("task") or {})
    }
    before = to_dict(cfg.task)
    changed = [f"task.{key}={value}" for key, value in task.items() if value != before[key]]
    algorithm: dict[str, Any] = {}
    given = over.get("algorithm") or {}
    is_given = "share_param" in given
    if _shares(cfg.algorithm) and not _shares(learned.algorithm) and not is_given:
        algorithm["share_param"] = False
        changed.append("algorithm.share_param=false")
    notices = []
    if changed:
        notices.append(f"{', '.join(changed)}, as in the training of {source}; --set changes it")

    warmup = getattr(cfg.algorithm, "critic_warmup", None)
    has_critic = any(folder.glob("critic*.pt"))
    if warmup == 0 and "critic_warmup" not in given and not has_critic:
        algorithm["critic_warmup"] = CRITIC_WARMUP
        notices.append(
            f"algorithm.critic_warmup={CRITIC_WARMUP}, since {source} has no critic; --set changes "
            "it"
        )
    taken = {"network": values.get("network") or {}, "task": task, "algorithm": algorithm}
    return merge(base, taken), notices


def _other_task(what: str, learned: str, task: str) -> str:
    """Format the error for initial networks of another task."""
    is_gait = "gait" in TASKS[task].frozen_policies and not TASKS[learned].frozen_policies
    hint = f", or use this gait for the robots: --set task.gait={what}" if is_gait else ""
    return (
        f"{KEY}: {what} is a policy of {learned}, and this run trains {task}; start from a "
        f"checkpoint of {task}{hint}"
    )


def load(what: str, networks: Mapping[str, nn.Module], num_agents: int, cfg: Any) -> str:
    """Load a checkpoint's networks into a new run. Return a line for the user about it.

    ``cfg`` is the run's section ``algorithm``. Raises ConfigError if the networks do not fit.
    """
    folder = resolve(what)
    learned = config.resolve(checkpoint.read_config(folder), {})[0]
    team_size = checkpoint.format_of(folder).num_agents(folder)
    is_for_any_team = evaluation_worlds.acts_in_teams_of(learned, num_agents)
    if team_size != num_agents and not (is_for_any_team and _shares(cfg)):
        advice = "use --set algorithm.share_param=true"
        if not is_for_any_team:
            advice = (
                f"train such a team with --num_agents {team_size} and its --object, or start from "
                "another checkpoint"
            )
        raise ConfigError(
            f"{KEY}: {what} has actors of {team_size} robots, and this run has {num_agents}; "
            f"{advice}"
        )
    if _shares(cfg) and not _actors_are_equal(folder, team_size):
        raise ConfigError(
            f"{KEY}: {what} has an actor of its own for each robot, and this run has one for "
            "all; use --set algorithm.share_param=false"
        )

    # In a larger team all robots share the first one's actor.
    stored = [f"actor_agent{agent}" for agent in range(team_size)]
    actors = {name: networks[name] for name in stored if name in networks}
    critics = {name: net for name, net in networks.items() if not name.startswith("actor_agent")}
    has_critic = bool(critics) and _has_critic(folder, critics)
    try:
        checkpoint.load(folder, actors | (critics if has_critic else {}))
    except ConfigError as error:
        compat = getattr(learned.algorithm, "compat", "none")
        raise ConfigError(
            f"{error}; it learned with --algo {learned.algorithm.name} "
            f"--set algorithm.compat={compat}"
        ) from None
    name = what if what.startswith(PRETRAINED) else folder
    if has_critic:
        return f"Starts with the actors and the critic of {name}"
    return f"Starts with the actors of {name}" + (", and with a new critic" if critics else "")


def _shares(algorithm: Any) -> bool:
    """Return whether all agents share one actor under these settings."""
    return getattr(algorithm, "share_param", False)


def _actors_are_equal(folder: Path, num_agents: int) -> bool:
    """Return whether a checkpoint's actors all have equal weights."""
    files = checkpoint.actor_files(folder, num_agents)
    first, *others = (read_tensors(folder / name) for name in files)
    return all(
        first.keys() == actor.keys() and all(map(torch.equal, first.values(), actor.values()))
        for actor in others
    )


def _has_critic(folder: Path, critics: Mapping[str, nn.Module]) -> bool:
    """Return whether one of our checkpoints has all these networks in equal shapes."""
    if checkpoint.format_of(folder) is not OURS:
        return False
    for name, network in critics.items():
        path = folder / f"{name}.pt"
        if not path.is_file() or _shapes(read_tensors(path)) != _shapes(network.state_dict()):
            return False
    return True


def _shapes(tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tensor.shape for name, tensor in tensors.items()}
