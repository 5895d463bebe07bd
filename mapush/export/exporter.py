"""Export forms, by their names for ``mapush export --for``."""

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
    last: int  # number of a run's last checkpoints to average


class Exporter(NamedTuple):
    """One export form."""

    help: str
    # Writes the files. Returns each network's largest difference from torch. Raises ConfigError for
    # a policy without this form.
    write: Callable[[ExportRequest], dict[str, float]]


EXPORTERS: Registry[Exporter] = Registry("form of an export")
