"""A new run's initial networks and settings from a checkpoint (``runner.init_from``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from harl_mapush import config
from harl_mapush.algorithms.entries import ALGORITHMS
from harl_mapush.runs import checkpoint, evaluation_worlds
from harl_mapush.runs.formats import OURS
from harl_mapush.runs.run_folder import CONFIG
from mqe.config import ConfigError, merge, to_dict
from mqe.pretrained import PRETRAINED
from mqe.registry import TASKS
from mqe.tensor_files import read_tensors

KEY = "runner.init_from (--init_from)"
# Settings of the policy's observations and commands. Its networks depend on them.
INTERFACE = (
    "decision_period",
    "observation",
    "replaced_observations",
    "more_observations",
    "action_scale",
    "keep_apart",
)
# Updates of new critics before the first update of trained actors.
CRITIC_WARMUP = 3000


def resolve(what: str) -> Path:
    """Return the folder of a checkpoint, run or ``pretrained:NAME``, else raise ConfigError."""
    try:
        folder = checkpoint.resolve(what)
    except ConfigError as error:
        raise ConfigError(f"{KEY}: {error}") from None
    if checkpoint.format_of(folder) is OURS and not (folder / CONFIG).is_file():
        raise ConfigError(
            f"{KEY}: {what} lacks {CONFIG} with the network sizes; name another checkpoint"
        )
    return folder


def apply(base: Mapping[str, Any], over: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return ``base`` with the settings from the run's initial checkpoint, and notices.

    ``over`` or ``base`` names the checkpoint. Without one ``base`` is returned unchanged.
    """
    in_base = (base.get("runner") or {}).get("init_from")
    source = (over.get("runner") or {}).get("init_from", in_base)
    if not isinstance(source, str):
        return dict(base), []
    taken, notice = _own_settings(source, base, over)
    notices = [] if notice is None else [notice]
    base = merge(base, taken)
    if _begins_with_new_critics(source, base, over):
        base = merge(base, {"algorithm": {"critic_warmup": CRITIC_WARMUP}})
        notices.append(
            f"algorithm.critic_warmup={CRITIC_WARMUP}, since {source} has no critic; --set changes "
            "it"
        )
    return base, notices


def check(what: str | None, task: str) -> None:
    """Raise ConfigError if the run's initial networks ``what`` learned another task."""
    if what is None:
        return
    learned = config.resolve(checkpoint.read_config(resolve(what)), {})[0].task
    if learned.name == task:
        return
    is_gait = "gait" in TASKS[task].frozen_policies and not TASKS[learned.name].frozen_policies
    hint = f", or use this gait for the robots: --set task.gait={what}" if is_gait else ""
    raise ConfigError(
        f"{KEY}: {what} is a policy of {learned.name}, and this run trains {task}; "
        f"start from a checkpoint of {task}{hint}"
    )


def load(what: str, networks: Mapping[str, nn.Module], num_agents: int, cfg: Any) -> str:
    """Load a checkpoint's networks into a new run. Return a line for the user about it.

    ``cfg`` is the run's section ``algorithm``. Raises ConfigError if the networks do not fit.
    """
    folder = resolve(what)
    has = checkpoint.format_of(folder).num_agents(folder)
    if has != num_agents and not (_shares(cfg) and _acts_in_teams_of(folder, num_agents)):
        raise ConfigError(
            f"{KEY}: {what} has actors of {has} robots, and this run has {num_agents}; train "
            f"such a team with --num_agents {has} and its --object, or start from "
            "another checkpoint"
        )
    if _shares(cfg) and not _actors_are_equal(folder, has):
        raise ConfigError(
            f"{KEY}: {what} has an actor of its own for each robot, and this run has one for "
            "all; use --set algorithm.share_param=false"
        )
    needs_critic = any(not name.startswith("actor_agent") for name in networks)
    has_critic = needs_critic and _has_critic(folder, networks)
    name = what if what.startswith(PRETRAINED) else folder
    try:
        if has_critic:
            checkpoint.load(folder, _stored(networks, has))
        else:
            checkpoint.load_actors(folder, _stored(networks, has))
    except ConfigError as error:
        _check_algorithm(what, folder, cfg.name)
        raise ConfigError(f"{error}{_hint(folder, cfg)}") from None
    if has_critic:
        return f"Starts with the actors and the critic of {name}"
    return f"Starts with the actors of {name}" + (", and with a new critic" if needs_critic else "")


def _own_settings(
    what: str, base: Mapping[str, Any], over: Mapping[str, Any]
) -> tuple[dict[str, Any], str | None]:
    """Return the checkpoint's settings for this run in place of those in ``base``, and a notice.

    They are its networks' sizes, whether each robot has a separate actor, and, after learning the
    same task, its policy's observations and commands. Settings in ``over`` are kept. The notice
    names the changed values, None without changes.
    """
    settings = checkpoint.read_config(resolve(what))
    cfg = config.resolve(base, over)[0]
    taken: dict[str, Any] = {"network": settings.get("network") or {}}
    source = config.resolve(settings, {})[0]
    task = cfg.task
    learned = source.task
    if learned.name != task.name:  # ``check`` raises for it later
        return taken, None

    given = over.get("task") or {}
    taken["task"] = {
        key: value
        for key, value in to_dict(learned).items()
        if key in INTERFACE and key not in given
    }
    changed = [
        f"task.{key}={value}" for key, value in taken["task"].items() if value != to_dict(task)[key]
    ]
    is_given = "share_param" in (over.get("algorithm") or {})
    if _shares(cfg.algorithm) and not _shares(source.algorithm) and not is_given:
        taken["algorithm"] = {"share_param": False}
        changed.append("algorithm.share_param=false")
    if not changed:
        return taken, None
    return taken, f"{', '.join(changed)}, as in the training of {what}; --set changes it"


def _check_algorithm(what: str, folder: Path, algorithm: str) -> None:
    """Raise ConfigError if ``algorithm`` has another kind of actor than the checkpoint."""
    learned = str((checkpoint.read_config(folder).get("algorithm") or {}).get("name"))
    if learned not in ALGORITHMS or _kind_of_actor(learned) is _kind_of_actor(algorithm):
        return
    kind = _kind_of_actor(algorithm)
    alike = ", ".join(name for name in ALGORITHMS if _kind_of_actor(name) is kind)
    raise ConfigError(
        f"{KEY}: {what} was trained by {learned}, whose actors are networks of another kind than "
        f"those of {algorithm}; start from a checkpoint of {alike}, or train with --algo {learned}"
    ) from None


def _hint(folder: Path, cfg: Any) -> str:
    """Return the end of an error: the checkpoint's ``compat`` if this run has the other one."""
    learned = (checkpoint.read_config(folder).get("algorithm") or {}).get("compat")
    if learned is None or learned == getattr(cfg, "compat", learned):
        return ""
    return f"; its networks are those of compat={learned}: use --set algorithm.compat={learned}"


def _kind_of_actor(name: str) -> Any:
    """Return a class or function as the label for all algorithms with one kind of actor."""
    algorithm = ALGORITHMS[name].cls
    return getattr(algorithm, "actor_class", algorithm)


def _begins_with_new_critics(what: str, base: Mapping[str, Any], over: Mapping[str, Any]) -> bool:
    """Return whether a run has trained actors and untrained critics, and its settings do not say
    how long the critics learn alone.
    """
    algorithm = config.resolve(base, over)[0].algorithm
    is_off_policy = hasattr(algorithm, "critic_warmup")
    is_given = "critic_warmup" in (over.get("algorithm") or {})
    has_critic = any(resolve(what).glob("critic*.pt"))
    return is_off_policy and not is_given and algorithm.critic_warmup == 0 and not has_critic


def _shares(algorithm: Any) -> bool:
    """Return whether all agents share one actor under these settings."""
    return getattr(algorithm, "share_param", False)


def _acts_in_teams_of(folder: Path, num_agents: int) -> bool:
    """Return whether a checkpoint's team can act in teams of ``num_agents`` robots."""
    trained = config.resolve(checkpoint.read_config(folder), {})[0]
    return evaluation_worlds.acts_in_teams_of(trained, num_agents)


def _stored(networks: Mapping[str, nn.Module], num_agents: int) -> dict[str, nn.Module]:
    """Return the networks stored in a checkpoint for ``num_agents`` robots. In a larger team all
    robots share the first one's actor.
    """
    actors = {f"actor_agent{agent}" for agent in range(num_agents)}
    return {
        name: network
        for name, network in networks.items()
        if name in actors or not name.startswith("actor_agent")
    }


def _actors_are_equal(folder: Path, num_agents: int) -> bool:
    """Return whether a checkpoint's actors all have equal weights."""
    names = map(checkpoint.format_of(folder).actor_file, range(num_agents))
    files = dict.fromkeys(checkpoint.stored_file(folder, name) for name in names)
    if len(files) == 1:  # one actor for all
        return True
    first, *others = (read_tensors(folder / name) for name in files)
    return all(
        first.keys() == actor.keys() and all(map(torch.equal, first.values(), actor.values()))
        for actor in others
    )


def _has_critic(folder: Path, networks: Mapping[str, nn.Module]) -> bool:
    """Return whether a checkpoint has all networks besides the actors, in equal shapes."""
    if checkpoint.format_of(folder) is not OURS:
        return False
    for name, network in networks.items():
        if name.startswith("actor_agent"):
            continue
        path = folder / f"{name}.pt"
        if not path.is_file():
            return False
        if _shapes(read_tensors(path)) != _shapes(network.state_dict()):
            return False
    return True


def _shapes(tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tensor.shape for name, tensor in tensors.items()}
