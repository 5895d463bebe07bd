"""Forms of exported policies, by their names for ``mapush export --for``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from harl_mapush.config import RunCfg
from mqe.extensions import Registry


class ExportRequest(NamedTuple):
    """One export."""

    cfg: RunCfg  # settings of the policy in the worlds of its calculator
    folder: Path  # the checkpoint's
    name: str  # of the checkpoint, as the user wrote it
    out: Path  # an empty folder
    looks: str | None  # of robots in a scene: meshes or shapes
    last: int  # checkpoints of a run that are averaged
    say: Callable[[str], None]  # takes lines for the user


class Exporter(NamedTuple):
    """One form of exported policies."""

    help: str
    # Writes the files; returns the largest difference from torch of each network.
    write: Callable[[ExportRequest], dict[str, float]]
    # Raises ConfigError for a policy without this form.
    check: Callable[[ExportRequest], None] = lambda request: None


EXPORTERS: Registry[Exporter] = Registry("form of an export")
