"""Files and policies named in a run's settings: digests, and copies in the run folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from mqe.controllers.frozen_policy import describe_policy
from mqe.manifest import NAMED_FILES, read_manifest, sha256
from mqe.registry import TASKS

FOLDER = "named_files"
_LARGEST = 1 << 20  # largest copied file [bytes]


def named_files(task: Any) -> dict[str, Path]:
    """Return the files in a task's settings, by key."""
    values = {key: vars(task)[key] for key in TASKS[task.name].files}
    paths = {key: Path(value).expanduser() for key, value in values.items() if value is not None}
    return {key: path for key, path in paths.items() if path.suffix and path.is_file()}


def digests(task: Any, teacher: str | None = None) -> dict[str, str]:
    """Return the SHA-256 by setting for a task's files and frozen policies, without the gaits.

    A student's ``teacher`` counts as well.
    """
    by_setting = {f"task.{key}": sha256(path) for key, path in named_files(task).items()}
    for key in TASKS[task.name].frozen_policies:
        name = f"task.{key}"
        if key != "gait":
            by_setting[name] = describe_policy(vars(task)[key], name).digest
    if teacher is not None:
        by_setting["algorithm.teacher"] = describe_policy(teacher, "algorithm.teacher").digest
    return by_setting


def keep(run: Path, task: Any) -> None:
    """Copy a task's small files into a run's folder."""
    for key, path in named_files(task).items():
        if path.stat().st_size <= _LARGEST:
            (run / FOLDER).mkdir(exist_ok=True)
            shutil.copyfile(path, run / FOLDER / f"{key}{path.suffix}")


def changed(folder: Path, task: Any, teacher: str | None = None) -> list[str]:
    """Return the settings with another file or policy than in a checkpoint's training.

    ``folder`` is the checkpoint's. The settings are a task's, and a student's ``teacher``.
    """
    before = read_manifest(folder).get(NAMED_FILES)
    if not isinstance(before, dict):
        return []
    present = digests(task, teacher)
    return [name for name, digest in before.items() if present.get(name, digest) != digest]
