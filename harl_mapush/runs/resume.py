"""Resume a run: find its checkpoint, check for changed settings, and restore its state.

The state is ``training_state.pt`` in a checkpoint. The settings are the run's ``config.yaml``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from harl_mapush import config
from harl_mapush.config import RunCfg
from harl_mapush.runs import checkpoint, named_files, run_folder
from mqe.config import ConfigError, flatten, load_yaml, to_dict
from mqe.registry import resolve_sim

KINDS = "a run folder or one of its checkpoint folders"
# Settings for a resumed run to change. The saved state depends on all others.
CHANGEABLE_ON_RESUME = (
    "runner.num_env_steps",
    "runner.checkpoint_interval",
    "runner.torch_threads",
    "runner.max_wall_time",
    "algorithm.learning_rate",
    "algorithm.critic_learning_rate",
    "algorithm.schedule",
    "algorithm.desired_kl",
    "algorithm.clip_param",
    "algorithm.entropy_coef",
    "algorithm.max_grad_norm",
    "sim.device",
    "sim.num_threads",
    "logger.interval",
    "logger.lines",
    "runner.queue_blocks",
    "runner.stall_time",
)


class SavedRun(NamedTuple):
    """A run and the checkpoint it resumes from, None for a start from the beginning."""

    run: Path
    folder: Path | None
    env_steps: int


def find(name: str) -> tuple[SavedRun, list[str]]:
    """Return the run named by ``--resume``, with its newest intact checkpoint, and notices.

    If the name is a checkpoint's, the run resumes from it. Raises ConfigError if there is nothing
    to resume from.
    """
    path = Path(name)
    if not path.is_dir():
        problem = "is not a folder" if path.exists() else "does not exist"
        raise ConfigError(f"--resume {name!r} {problem}; give {KINDS}")
    real = path.resolve()
    env_steps = run_folder.parse_step_name(real.name)
    run = run_folder.run_of(real)
    if env_steps is not None and run is not None:
        problem = _problem(real)
        if problem is not None:
            raise ConfigError(
                f"--resume {name!r}: {problem}; give the run ({run}), which resumes from its "
                "newest intact checkpoint"
            )
        return SavedRun(run, real, env_steps), []

    files = [path / run_folder.CONFIG, path / run_folder.CHECKPOINTS]
    if any(path.glob("actor_agent*.pt")) or not any(file.exists() for file in files):
        raise ConfigError(
            f"--resume {name!r} is neither a run nor a checkpoint in a run's folder; give {KINDS}, "
            f"or start a new run from a checkpoint's networks with --init_from {name}"
        )
    return _newest(path)


def settings(saved: SavedRun, over: Mapping[str, Any]) -> tuple[RunCfg, list[str]]:
    """Return the run's settings changed by ``over``, and notices about the changes.

    Raises ConfigError for a change in conflict with the saved state.
    """
    values, notices = _run_values(saved)
    old_values = values
    if saved.folder is not None:
        old_values = load_yaml(saved.folder / run_folder.CONFIG)
    old, _ = config.resolve(old_values, {})
    new, _ = config.resolve(values, over)
    if new.sim != old.sim:
        name, device = resolve_sim(new.sim)
        new = replace(new, sim=replace(new.sim, name=name, device=str(device)))

    before = flatten(to_dict(old))
    after = flatten(to_dict(new))
    changed = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    # Names come first, since other keys follow from them.
    changed.sort(key=lambda key: not key.endswith(".name"))
    for key in changed:
        moves = key == "sim.device" and _kind(old.sim.device) != _kind(new.sim.device)
        if key not in CHANGEABLE_ON_RESUME or moves:
            changeable = ", ".join(CHANGEABLE_ON_RESUME)
            limit = ", to one of the same kind" if moves else ""
            raise ConfigError(
                f"{key}={after.get(key)}: the run {saved.run} was trained with "
                f"{before.get(key)}, and its saved state depends on it; leave it out, or start a "
                f"new run (a resume may change {changeable}{limit})"
            )
    return new, notices + _notices(saved, new, changed)


def _newest(run: Path) -> tuple[SavedRun, list[str]]:
    skipped: list[str] = []
    for env_steps, folder in run_folder.checkpoints(run):
        problem = _problem(folder)
        if problem is None:
            return SavedRun(run, folder, env_steps), skipped
        skipped.append(f"{folder} is skipped: {problem}")
    if skipped:
        raise ConfigError(
            f"--resume {str(run)!r}: it has no checkpoint to resume from ({skipped[0]})"
        )
    if not (run / run_folder.CONFIG).is_file():
        raise ConfigError(
            f"--resume {str(run)!r} has no {run_folder.CONFIG} and no checkpoint, so it cannot be "
            f"resumed; start it again with --out {run}"
        )
    return SavedRun(run, None, 0), [f"{run} has no checkpoint yet and starts again"]


def _run_values(saved: SavedRun) -> tuple[dict[str, Any], list[str]]:
    """Return the run's settings, or its checkpoint's with a notice if they are lost or damaged."""
    try:
        return run_folder.read_config(saved.run), []
    except ConfigError as error:
        if saved.folder is None:
            raise
        instead = saved.folder / run_folder.CONFIG
        return load_yaml(instead), [f"{error}; the settings are those of {instead}"]


def _problem(folder: Path) -> str | None:
    """Return a description of a checkpoint's missing or damaged file, or None."""
    try:
        checkpoint.check_whole(folder)
    except ConfigError as error:
        return str(error)
    return None


def _notices(saved: SavedRun, new: RunCfg, changed: Sequence[str]) -> list[str]:
    """Return notices about a resumed run's files and learning rates."""
    notices = []
    if saved.folder is not None:
        notices += [
            f"the file or policy of {name} has changed since the run began"
            for name in named_files.changed(saved.folder, new)
        ]
    # An algorithm from outside need not have a schedule.
    is_adaptive = getattr(new.algorithm, "schedule", "constant") == "adaptive"
    if is_adaptive and "algorithm.learning_rate" in changed:
        notices.append("schedule adaptive: the actors' learning rates continue from the saved ones")
    return notices


def _kind(device: str) -> str:
    return device.partition(":")[0]
