"""A run's origin, ``origin.json`` in its folder.

The file has the run's id and every start. A training process compares the id with its own before it
writes. So the process notices if another run has taken its folder.
"""

import errno
import json
import re
import secrets
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harl_mapush.runs import durable
from mqe.config import read_text
from mqe.manifest import NAMED_FILES, versions

ORIGIN = "origin.json"
RUN_ID = "run_id"  # a random text


class LostFolderError(Exception):
    """A run's folder belongs to another run now. The message has the reason."""


def describe(
    device: str, reward_weights: Mapping[str, float], files: Mapping[str, str]
) -> dict[str, Any]:
    """Return the time, command, versions and device for a run's start.

    ``reward_weights`` are the weights of the task's terms, empty for a task without any. ``files``
    has the digests of files and frozen policies by setting.
    """
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": shlex.join(sys.argv),
        **versions(),
        "device": device,
        "reward_weights": dict(reward_weights),
        NAMED_FILES: dict(files),
    }


def write(run: Path, start: Mapping[str, Any]) -> str:
    """Add a start to a run's ``origin.json``. Return the run's id, a new one for a lost file."""
    identity, starts = _read(run)
    if identity is None:
        identity = secrets.token_hex(8)
    content = {RUN_ID: identity, "starts": [*starts, dict(start)]}
    durable.write_text(run / ORIGIN, json.dumps(content, indent=2) + "\n")
    return identity


def preset(run: Path) -> str | None:
    """Return the preset at a run's first start, or the name of its run file. None if unknown."""
    _, starts = _read(run)
    command = str(starts[0].get("command")) if starts else ""
    named = re.search(r"--(?:preset|config)[= ](\S+)", command)
    return None if named is None else Path(named[1]).stem


def check_folder(run: Path, own_id: str) -> None:
    """Raise LostFolderError if ``run`` has another id than ``own_id``, OSError if its
    ``origin.json`` cannot be read.
    """
    (run / ORIGIN).open("rb").close()
    identity, _ = _read(run)
    if identity is None:
        raise OSError(errno.EIO, f"its {ORIGIN} cannot be read")
    if identity != own_id:
        raise LostFolderError(
            f"{run} has become the folder of another run, so this one ends without writing to it; "
            "its checkpoints are wherever its folder was moved, and --resume takes that place"
        )


def _read(run: Path) -> tuple[str | None, list[dict[str, Any]]]:
    """Return the id and the starts in a run's ``origin.json``, neither for a lost file."""
    try:
        content = json.loads(read_text(run / ORIGIN))
        return str(content[RUN_ID]), [dict(start) for start in content["starts"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None, []
