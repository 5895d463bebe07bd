"""Resume a run: find its checkpoint, check for changed settings, and restore its state.

The state is ``training_state.pt`` in a checkpoint. The settings are the run's ``config.yaml``.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from harl_mapush import config
from harl_mapush.config import RunCfg
from harl_mapush.runs import checkpoint, named_files, provenance, run_folder
from harl_mapush.runs.evaluation_worlds import other_gait
from mqe.config import ConfigError, flatten, load_yaml, to_dict
from mqe.manifest import MANIFEST
from mqe.registry import SIMULATORS, resolve_sim

PROGRAM = "python -m harl_mapush.train"
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
    "runner.engine",
)


class SavedRun(NamedTuple):
    """A run and the checkpoint it resumes from, None for a start from the beginning."""

    run: Path
    folder: Path | None
    env_steps: int


def find(name: str) -> tuple[SavedRun, list[str]]:
    """Return the run named by ``--resume``, with its newest whole checkpoint, and notices.

    If the name is a checkpoint's, the run resumes from it. Raises ConfigError if there is nothing
    to resume from.
    """
    path = Path(name)
    if not path.is_dir():
        problem = "is not a folder" if path.exists() else "does not exist"
        raise ConfigError(f"--resume {name!r} {problem}; give {KINDS}")
    env_steps = run_folder.parse_step_name(path.resolve().name)
    is_run = (path / run_folder.CHECKPOINTS).is_dir() or (
        env_steps is None and (path / run_folder.CONFIG).is_file()
    )
    if is_run and any(path.glob("actor_agent*.pt")):
        raise ConfigError(
            f"--resume {name!r} is a checkpoint without the rest of its run; start a new run "
            f"with --init_from {name}"
        )
    if is_run:
        return _newest(path)

    real = path.resolve()
    run = real.parent.parent
    if env_steps is None or real.parent.name != run_folder.CHECKPOINTS:
        raise ConfigError(
            f"--resume {name!r} is neither a run nor a checkpoint in a run's folder; give {KINDS}"
        )
    problem = _problem(real)
    if problem is not None:
        raise ConfigError(
            f"--resume {name!r}: {problem}; give the run ({run}), which resumes from its newest "
            "whole one"
        )
    stranger = _of_another_run(run, real)
    if stranger is not None:
        raise ConfigError(
            f"--resume {name!r}: {stranger}; give the run ({run}), which resumes from its newest "
            f"own one, or start a new run from these weights with --init_from {name}"
        )
    return SavedRun(run, real, env_steps), []


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
    changeable_keys = CHANGEABLE_ON_RESUME + tuple(
        f"sim.{key}" for key in SIMULATORS[resolve_sim(new.sim)[0]].changeable
    )
    for key in changed:
        moves = key == "sim.device" and _kind(old.sim.device) != _kind(new.sim.device)
        if key not in changeable_keys or moves:
            changeable = ", ".join(changeable_keys)
            limit = ", to one of the same kind" if moves else ""
            raise ConfigError(
                f"{key}={after.get(key)}: the run {saved.run} was trained with "
                f"{before.get(key)}, and its saved state depends on it; leave it out, or start a "
                f"new run (a resume may change {changeable}{limit})"
            )
    return new, notices + _notices(saved, old, new, changed)


def read(saved: SavedRun) -> dict[str, Any]:
    """Read the saved state onto the CPU.

    Raises ConfigError for a damaged state, or another checkpoint's.
    """
    assert saved.folder is not None
    state = checkpoint.read_training_state(saved.folder)
    iteration = state.get("iteration")
    if not isinstance(iteration, int) or iteration < 1 or saved.env_steps % iteration:
        raise damaged(saved, f"iteration {iteration!r} at {saved.env_steps} env steps")
    return state


def _newest(run: Path) -> tuple[SavedRun, list[str]]:
    skipped: list[str] = []
    for env_steps, folder in run_folder.checkpoints(run):
        problem = _problem(folder) or _of_another_run(run, folder)
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
            raise ConfigError(
                f"{error}, and the run has no checkpoint; remove {saved.run} and start again"
            ) from None
        instead = saved.folder / run_folder.CONFIG
        notice = f"{error}; the settings are those of {instead}, changed by flags and --set"
        return load_yaml(instead), [notice]


def _problem(folder: Path) -> str | None:
    """Return a description of a checkpoint's missing or damaged file, or None."""
    try:
        checkpoint.check_whole(folder)
    except ConfigError as error:
        return str(error)
    return checkpoint.misnamed(folder)


def _of_another_run(run: Path, folder: Path) -> str | None:
    """Return a description of a checkpoint in ``run`` from another run, else None."""
    own_id = provenance.run_id(run)
    other_id = checkpoint.run_id(folder)
    if None in (own_id, other_id) or own_id == other_id:
        return None
    return f"{MANIFEST}: it was written by another run"


def _notices(saved: SavedRun, old: RunCfg, new: RunCfg, changed: Sequence[str]) -> list[str]:
    """Return notices about a resumed run's gait and learning rates."""
    notices = []
    if saved.folder is not None:
        gait = other_gait(saved.folder, new)
        if gait is not None:
            notices.append(f"the team walks otherwise than before: {gait}")
        notices += [
            f"the file or policy of {name} has changed since the run began; small files as they "
            f"were are in {saved.folder.parent.parent / named_files.FOLDER}"
            for name in named_files.changed(saved.folder, new.task, new.algorithm.teacher)
        ]

    # An algorithm from outside need not have a schedule.
    old_schedule = getattr(old.algorithm, "schedule", "constant")
    new_schedule = getattr(new.algorithm, "schedule", "constant")
    if new_schedule == "adaptive" and "algorithm.learning_rate" in changed:
        notices.append(
            "schedule adaptive: the actors' learning rates continue from the saved ones, not "
            "from the new"
        )

    before = old.runner.num_env_steps
    after = new.runner.num_env_steps
    is_changed = (old_schedule, before) != ("linear", after)
    if new_schedule == "linear" and is_changed and after > saved.env_steps:
        old_share = max(0.0, 1.0 - saved.env_steps / before)
        new_share = max(0.0, 1.0 - saved.env_steps / after)
        instead = f", not at {old_share:.3f}" if old_schedule == "linear" else ""
        notices.append(
            f"schedule linear: learning rates now reach zero at {after} env steps; they continue "
            f"at {new_share:.3f} of the full rates{instead}"
        )
    return notices


def _kind(device: str) -> str:
    return device.partition(":")[0]


def damaged(saved: SavedRun, detail: str) -> ConfigError:
    """Format the error for a mismatched saved state."""
    assert saved.folder is not None
    return checkpoint.damaged_state(saved.folder, detail)


def how_to_resume(
    folder: Path, program: str = PROGRAM, imports: Sequence[str] = (), more: str = ""
) -> str:
    """Return the hint for resuming a run after an early end.

    ``imports`` are the user's modules for the run. ``more`` is added to the command line.
    """
    if not folder.is_dir():
        return "the folder is gone; if it was moved, --resume takes its new place"
    if run_folder.checkpoints(folder):
        return f"resume from its last checkpoint with: {command(folder, program, imports)}{more}"
    additions = f" with{more}" if more else ""
    return f"it has no checkpoint yet, start it again{additions}"


def command(folder: Path, program: str = PROGRAM, imports: Sequence[str] = ()) -> str:
    """Return the command line for resuming a run, with ``--import`` of its modules."""
    words = "".join(f"--import {shlex.quote(name)} " for name in imports)
    return f"{program} {words}--resume {shlex.quote(str(folder))}"
