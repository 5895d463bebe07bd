"""Files and policies named in a run's settings: absolute paths and digests."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from harl_mapush.config import RunCfg
from mqe.config import to_dict
from mqe.controllers.frozen_policy import describe_policy
from mqe.controllers.gait import from_anywhere, gait_digest, gait_names
from mqe.manifest import NAMED_FILES, read_manifest, sha256
from mqe.registry import TASKS
from mqe.world.robots import ROBOT_READERS, ROBOTS, RobotCfg, robot_file, robots_of

GAIT = "task.gait"


def digests_of(cfg: RunCfg) -> dict[str, str]:
    """Return the SHA-256 of a run's files, robots' data and frozen policies, by dotted setting."""
    entry = TASKS[cfg.task.name]
    values = to_dict(cfg.task)
    paths = _paths(cfg.task.name, values)
    digests = {f"task.{key}": sha256(path) for key, path in paths.items()}
    for name in _robot_names(cfg):
        file = robot_file(name)
        if file is not None:
            digests[f"env.robots.{file[0]}"] = _robot_digest(ROBOTS.find(name, "env.robots"))
    for key in entry.frozen_policies:
        if key != "gait":
            digests[f"task.{key}"] = describe_policy(values[key], f"task.{key}").digest
    if entry.gaits is not None:
        digests[GAIT] = gait_digest(gaits(cfg))
    return digests


def gaits(cfg: RunCfg) -> list[str]:
    """Return each robot's gait in a task with gaits."""
    gait = TASKS[cfg.task.name].gaits
    assert gait is not None
    robots = robots_of(cfg.env.robots, cfg.env.num_agents or 1, cfg.env.model)
    return gait_names(gait(cfg.task), robots)


def changed(folder: Path, cfg: RunCfg) -> list[str]:
    """Return the settings with another file or policy under the name of the one in training.

    ``folder`` is a checkpoint's, ``cfg`` has its settings.
    """
    manifest = read_manifest(folder)
    before = dict(manifest.get(NAMED_FILES) or {})
    if "gait_sha256" in manifest:  # a checkpoint of 0.3
        before.setdefault(GAIT, manifest["gait_sha256"])
    if not before:
        return []
    present = digests_of(cfg)
    return [name for name, digest in before.items() if present.get(name, digest) != digest]


def _robot_digest(robot: RobotCfg) -> str:
    """Return the digest of a robot's data, whichever files they come from."""
    data = repr(replace(robot, name="", gait="", looks=None))
    return hashlib.sha256(data.encode()).hexdigest()


def _robot_names(cfg: RunCfg) -> tuple[str, ...]:
    return (cfg.env.robots,) if isinstance(cfg.env.robots, str) else cfg.env.robots


def absolute(cfg: RunCfg) -> RunCfg:
    """Return a run's settings with absolute paths to files, frozen policies and checkpoints."""
    weights = cfg.runner.init_from
    robots: Any = tuple(
        str(Path(name).expanduser().absolute()) if Path(name).suffix in ROBOT_READERS else name
        for name in _robot_names(cfg)
    )
    if isinstance(cfg.env.robots, str):
        (robots,) = robots
    return replace(
        cfg,
        env=replace(cfg.env, robots=robots),
        task=replace(cfg.task, **_with_absolute_paths(cfg.task.name, vars(cfg.task))),
        algorithm=cfg.algorithm.with_absolute_paths(),
        runner=replace(cfg.runner, init_from=None if weights is None else from_anywhere(weights)),
    )


def _paths(task: str, values: Mapping[str, Any]) -> dict[str, Path]:
    """Return the files in a task's settings, by key."""
    named = {key: values.get(key) for key in TASKS[task].files}
    paths = {key: Path(value).expanduser() for key, value in named.items() if value is not None}
    return {key: path for key, path in paths.items() if path.suffix and path.is_file()}


def _with_absolute_paths(task: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a task's settings with absolute paths to its files and frozen policies."""
    absolute = dict(values)
    absolute |= {key: str(path.absolute()) for key, path in _paths(task, values).items()}
    for key in TASKS[task].frozen_policies:
        policies = values.get(key)
        if isinstance(policies, str):
            absolute[key] = from_anywhere(policies)
        elif policies is not None:
            absolute[key] = tuple(from_anywhere(policy) for policy in policies)
    return absolute
