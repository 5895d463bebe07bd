"""Run folders: their names, their parts, their checkpoints and their lock.

A run is ``config.yaml``, ``origin.json``, TensorBoard's files and ``checkpoints/<env steps>/``.
"""

import hashlib
import itertools
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from harl_mapush.runs import durable
from mqe.config import ConfigError, load_yaml, read_text, reason_of

CONFIG = "config.yaml"
CHECKPOINTS = "checkpoints"
COLLECTORS = "collectors"  # logs of the collectors' processes
LOCK = ".lock"  # locked by the process that trains

_UNITS = {"M": 1_000_000, "k": 1_000}


def step_name(env_steps: int) -> str:
    """Format a number of env steps: ``10M``, ``500k``, else the plain number."""
    for letter, unit in _UNITS.items():
        if env_steps and env_steps % unit == 0:
            return f"{env_steps // unit}{letter}"
    return str(env_steps)


def parse_step_name(name: str) -> int | None:
    """Return the env steps of a checkpoint folder's name, None for any other name."""
    match = re.fullmatch(r"(\d+)([Mk]?)", name)
    return int(match[1]) * _UNITS.get(match[2], 1) if match else None


def checkpoints(run: Path) -> list[tuple[int, Path]]:
    """Return every checkpoint in a run as env steps and folder, newest first."""
    folder = run / CHECKPOINTS
    if not folder.is_dir():
        return []
    saved = []
    for path in folder.iterdir():
        env_steps = parse_step_name(path.name)
        if env_steps is not None:
            saved.append((env_steps, path))
    return sorted(saved, reverse=True)


def run_of(checkpoint: Path) -> Path | None:
    """Return a checkpoint's run folder. None: the checkpoint is not in a run folder."""
    folder = checkpoint.parent
    return folder.parent if folder.name == CHECKPOINTS else None


def last_checkpoint(run: Path) -> Path | None:
    """Return a run's checkpoint folder with the most env steps, None without checkpoints."""
    saved = checkpoints(run)
    return saved[0][1] if saved else None


def set_aside_after(run: Path, env_steps: int) -> list[Path]:
    """Rename a run's obsolete checkpoints, those beyond ``env_steps``. Return them.

    They keep their contents: ``10M`` becomes ``10M.set-aside``, ``10M.set-aside-2`` and so on.
    """
    moved = []
    for steps, path in checkpoints(run):
        if steps > env_steps:
            names = _numbered(path.with_name(f"{path.name}.set-aside"))
            moved.append(path.rename(next(name for name in names if not name.exists())))
    return moved


@contextmanager
def locked(run: Path) -> Iterator[None]:
    """Context manager: lock a run's folder for this process while it trains.

    The system releases the lock when the process ends in any way. Raises ConfigError if another
    process has the lock, or if the folder cannot be written.
    """
    lock = FileLock(run / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise ConfigError(
            f"{run}: another process is training in this run folder{_holder(run)}; wait for "
            "that process, or send SIGTERM to save the state and end the run, then try again"
        ) from None
    except OSError as error:
        raise ConfigError(f"{run}: cannot be written ({reason_of(error)})") from None
    try:
        yield
    finally:
        lock.release()


def _holder(run: Path) -> str:
    """Describe the process named in a lock file.

    Only locks on file systems without ``flock`` have a text. On such systems the lock file outlives
    a killed process.
    """
    try:
        process, host = (run / LOCK).read_text(encoding="utf-8").split()[:2]
    except (OSError, ValueError):
        return ""
    return f" (process {process} on {host}; if that process is over, remove {run / LOCK})"


def write_config(run: Path, text: str) -> None:
    """Write a run's ``config.yaml`` atomically, with its checksum as its first line."""
    durable.write_text(run / CONFIG, _with_checksum(text))


def read_config(run: Path) -> dict[str, Any]:
    """Return a run's ``config.yaml`` as plain values. Raise ConfigError if it was changed."""
    path = run / CONFIG
    values = load_yaml(path)
    text = read_text(path)
    if not values or text != _with_checksum(text.partition("\n")[2]):
        raise ConfigError(f"{path}: damaged or changed by hand")
    return values


def _with_checksum(text: str) -> str:
    return f"# sha256 of the lines below: {hashlib.sha256(text.encode()).hexdigest()}\n{text}"


def default_run_dir(subject: str, algo: str, exp_name: str, seed: int, now: datetime) -> Path:
    """Return a new run's default folder."""
    return Path(
        "results", "mapush", subject, algo, exp_name, f"seed-{seed:05d}-{now:%Y-%m-%d-%H-%M-%S}"
    )


def check_new_run_dir(path: Path) -> None:
    """Raise ConfigError if ``path`` cannot be a new run's folder.

    The path must be no file, writable, and hold no run. A run killed before its first file does not
    count.
    """
    try:
        is_root = path.resolve().parent == path.resolve()
        saved = path / CHECKPOINTS
        holds_run = (path / CONFIG).exists() or (saved.is_dir() and any(saved.iterdir()))
        existing = next(
            parent for parent in (path, *path.absolute().parents) if os.path.lexists(parent)
        )
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        raise _unwritable(path, error) from None
    problem = None
    if is_root:
        problem = "is the root of the file system"
    elif holds_run:
        problem = f"already holds a run; resume it (--resume {path})"
    elif not existing.is_dir():
        problem = f"cannot be a folder because {existing} is a file"
    elif not os.access(existing, os.W_OK | os.X_OK):
        problem = f"cannot be written ({existing} is read-only)"
    if problem is not None:
        raise ConfigError(f"logger.out_dir (--out): {path} {problem}; name another folder")


@contextmanager
def new_run_dir(path: Path, is_named: bool = True) -> Iterator[Path]:
    """Context manager: make a new run's folder, with a folder for checkpoints, and lock it for this
    process.

    A folder named by the user (``is_named``) is used itself, otherwise the first unused name among
    ``path``, ``path-2``, ``path-3``, ... Simultaneous requests by two processes give separate
    folders, or a ConfigError for one.
    """
    with ExitStack() as stack:
        # If the default folder exists, a number is appended to its name.
        check_new_run_dir(path if is_named else path.parent)
        try:
            if is_named:
                durable.make_folder(path)
            else:
                path = _make_next(path)
            stack.enter_context(locked(path))
            # Meanwhile another process may have begun a run in this folder.
            check_new_run_dir(path)
            durable.make_folder(path / CHECKPOINTS)
        except OSError as error:
            raise _unwritable(path, error) from None
        yield path


def _make_next(path: Path) -> Path:
    """Make and return the first unused folder among ``path``, ``path-2``, ``path-3``, ..."""
    for candidate in _numbered(path):
        try:
            durable.make_folder(candidate, exist_ok=False)
        except FileExistsError:
            continue
        return candidate
    raise AssertionError("unreachable: there are more numbers than folders")


def _numbered(path: Path) -> Iterator[Path]:
    """Yield ``path``, ``path-2``, ``path-3``, ..."""
    yield path
    for i in itertools.count(2):
        yield path.with_name(f"{path.name}-{i}")


def _unwritable(path: Path, error: Exception) -> ConfigError:
    return ConfigError(
        f"logger.out_dir (--out): {path} cannot be written ({reason_of(error)}); name another "
        "folder"
    )
