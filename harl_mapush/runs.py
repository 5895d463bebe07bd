"""Run folders: where a run goes, what its parts are called, which of its checkpoints is the last.

A run is ``config.yaml``, ``logs/`` and ``checkpoints/<env steps>/``.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from mqe.config import ConfigError

CONFIG = "config.yaml"
LOGS = "logs"
CHECKPOINTS = "checkpoints"

_LOCK = ".lock"
_UNITS = {"M": 1_000_000, "k": 1_000}


def step_name(env_steps: int) -> str:
    """Name a number of env steps: ``10M``, ``500k``, else the plain number."""
    for letter, unit in _UNITS.items():
        if env_steps and env_steps % unit == 0:
            return f"{env_steps // unit}{letter}"
    return str(env_steps)


def parse_step_name(name: str) -> int | None:
    """Give the env steps that a checkpoint folder's name stands for, None for any other name."""
    match = re.fullmatch(r"(\d+)([Mk]?)", name)
    return int(match[1]) * _UNITS.get(match[2], 1) if match else None


def checkpoints(run: Path) -> list[tuple[int, Path]]:
    """Give env steps and folder of every checkpoint of a run, the newest first."""
    folder = run / CHECKPOINTS
    found = [(steps, path) for path in folder.iterdir() if (steps := parse_step_name(path.name)) is not None]
    return sorted(found, reverse=True)


def last_checkpoint(run: Path) -> Path | None:
    """Give the checkpoint folder of a run with the most env steps, None if there is none."""
    found = checkpoints(run)
    return found[0][1] if found else None


def set_aside_after(run: Path, env_steps: int) -> list[Path]:
    """Rename the checkpoints of a run beyond ``env_steps``, so that they no longer count as its newest; return them.

    They keep their contents: ``10M`` becomes ``10M.set-aside``, ``10M.set-aside-2`` and so on.
    """
    moved = []
    for steps, path in checkpoints(run):
        if steps > env_steps:
            moved.append(path.rename(_unused(path.with_name(f"{path.name}.set-aside"))))
    return moved


@contextmanager
def locked(run: Path) -> Iterator[None]:
    """Keep a run's folder to this process while it trains; ConfigError where another does or it cannot be written.

    The system lets go of it with the process, however that ends.
    """
    lock = FileLock(run / _LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise ConfigError(
            f"{run}: another process is training in this folder; wait for its end (SIGTERM makes it save its state and "
            "end), then go on"
        ) from None
    except OSError as error:
        raise ConfigError(f"{run}: cannot be written ({error.strerror or type(error).__name__})") from None
    try:
        yield
    finally:
        lock.release()


def write_config(run: Path, text: str) -> None:
    """Write a run's ``config.yaml`` in one move: it is there whole, or as it was."""
    partial = run / f".{CONFIG}-{os.getpid()}"
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(run / CONFIG)
    finally:
        partial.unlink(missing_ok=True)  # where the disk was full


def default_run_dir(subject: str, algo: str, exp_name: str, seed: int, now: datetime) -> Path:
    """Name a new run: ``results/mapush/<object or task>/<algo>/<exp_name>/seed-00001-<date and time>``.

    Where another began within the same second, ``-2`` and so on follow.
    """
    return _unused(Path("results", "mapush", subject, algo, exp_name, f"seed-{seed:05d}-{now:%Y-%m-%d-%H-%M-%S}"))


def _unused(path: Path) -> Path:
    """Give a path that does not exist: this one, or with ``-2``, ``-3``, ... behind it."""
    names = (f"{path.name}{f'-{i}' if i > 1 else ''}" for i in itertools.count(1))
    return next(path.with_name(name) for name in names if not path.with_name(name).exists())


def check_new_run_dir(path: Path) -> None:
    """Raise ConfigError where a run cannot go: a file, a place that cannot be written, a folder that holds a run."""
    if path.is_dir() and any((path / name).exists() for name in (CONFIG, LOGS, CHECKPOINTS)):
        raise ConfigError(f"logger.out_dir (--out): {path} already holds a run; name another folder or remove it")
    existing = next(parent for parent in (path, *path.absolute().parents) if os.path.lexists(parent))
    if not existing.is_dir():
        raise ConfigError(f"logger.out_dir (--out): {path} cannot be a folder, {existing} is a file; name another one")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(f"logger.out_dir (--out): {path} cannot be written ({existing} is read-only); name another")


def make_run_dir(path: Path) -> Path:
    """Make the folder of a new run, with room for logs and checkpoints, and return it."""
    check_new_run_dir(path)
    try:
        for folder in (path / LOGS, path / CHECKPOINTS):
            folder.mkdir(parents=True)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(f"logger.out_dir (--out): {path} cannot be written ({reason}); name another folder") from None
    return path
