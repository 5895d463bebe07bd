"""A run's origin, ``origin.json`` in its folder, and its summaries for TensorBoard.

The file has every start and the run's id, also found in its checkpoints. A training process
compares the latest start with its own before it writes. So the process notices if another run has
taken its folder, or if another process has resumed the run.
"""

from __future__ import annotations

import errno
import json
import platform
import secrets
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]

from harl_mapush.runs import checkpoint, durable, run_folder
from mqe.config import dump_yaml, read_text
from mqe.manifest import NAMED_FILES, RUN_ID, git_revision, packages

ORIGIN = "origin.json"
# Metrics beside the hyper-parameters in TensorBoard.
METRICS = ("success_rate", "return", "episode_time_s")
# Sections of hyper-parameters, and further hyper-parameters.
_HYPER_PARAMETERS = ("algorithm", "network")
_START_ID = "start_id"
_MORE = ("env.num_envs", "task.object", "task.decision_period", "runner.num_steps", "runner.seed")


class LostFolderError(Exception):
    """A run's folder belongs to another run or process now. The message has the reason."""


def describe(
    device: str,
    reward_weights: Mapping[str, float],
    files: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the random id, time, command, versions and device for a run's start.

    ``reward_weights`` are the weights of the task's terms, empty for a task without any. ``files``
    has the digests of files and frozen policies by setting.
    """
    return {
        _START_ID: secrets.token_hex(8),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": shlex.join(sys.argv),
        "git_revision": git_revision(),
        "packages": packages(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": device,
        "reward_weights": dict(reward_weights),
        NAMED_FILES: dict(files),
    }


def write(run: Path, start: Mapping[str, Any]) -> str:
    """Add a start to a run's ``origin.json``. Return the run's id.

    An older run, or a run with a lost file, gets the id in its last checkpoint, or a new one.
    """
    identity, starts = _read(run)
    last = run_folder.last_checkpoint(run)
    if identity is None and last is not None:
        identity = checkpoint.run_id(last)
    if identity is None:
        identity = secrets.token_hex(8)
    content = {RUN_ID: identity, "starts": [*starts, dict(start)]}
    durable.write_text(run / ORIGIN, json.dumps(content, indent=2) + "\n")
    return identity


def run_id(run: Path) -> str | None:
    """Return a run's id. None: the run is older, or its ``origin.json`` is lost."""
    return _read(run)[0]


def preset(run: Path) -> str | None:
    """Return the preset at a run's first start, or the name of its run file. None if unknown."""
    _, starts = _read(run)
    if not starts:
        return None
    try:
        words = shlex.split(str(starts[0].get("command", "")))
    except ValueError:  # an open quotation mark
        return None
    named = {}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        flag, is_joined, value = word.partition("=")
        if flag in ("--preset", "--config"):
            named[flag] = value if is_joined else following
    if "--config" in named:
        return Path(named["--config"]).stem
    return named.get("--preset")


def check_folder(run: Path, own_id: str, start: Mapping[str, Any]) -> None:
    """Raise LostFolderError if ``run`` has another id than ``own_id`` or a later start than
    ``start``.

    Raises OSError if its ``origin.json`` is lost.
    """
    run.stat()  # raises OSError if the folder is gone
    with suppress(FileNotFoundError), (run / ORIGIN).open("rb"):
        pass  # raises the OSError of a failing network share
    identity, starts = _read(run)
    if not starts:
        raise OSError(errno.ENOENT, f"its {ORIGIN} is gone or damaged")
    if identity != own_id:
        raise LostFolderError(
            f"{run} has become the folder of another run, so this one ends without writing to it; "
            "its checkpoints are wherever its folder was moved, and --resume takes that place"
        )
    latest = starts[-1]
    if latest.get(_START_ID) != start[_START_ID]:
        raise LostFolderError(
            f"{run}: another process resumed this run ({latest.get('time')}), which is possible "
            f"only if {run_folder.LOCK} was removed; this process ends, so that one alone writes"
        )


def _read(run: Path) -> tuple[str | None, list[dict[str, Any]]]:
    """Return the id and the starts in a run's ``origin.json``, neither for a lost file."""
    try:
        content = json.loads(read_text(run / ORIGIN))
        starts = [dict(start) for start in content["starts"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None, []
    identity = content.get(RUN_ID)
    return (identity if isinstance(identity, str) else None), starts


def tensorboard_summaries(
    settings: Mapping[str, Any], start: Mapping[str, Any], statistics: Sequence[str]
) -> list[Summary]:
    """Return a run's TensorBoard summaries besides its curves.

    They show its layout, hyper-parameters, settings and origin. ``settings`` are nested plain
    values. ``statistics`` are the names of the environment's statistics.
    """
    # Slow to import, and needed once in a run.
    from torch.utils.tensorboard.summary import custom_scalars, hparams, text

    shares = [name for name in statistics if name.startswith("contact_share")]
    charts = {name: ["Multiline", [f"mapush/{name}"]] for name in METRICS if name in statistics}
    if shares:
        charts["contact shares"] = [
            "Multiline",
            [f"{name.rpartition('_')[2]}/contact_share" for name in shares],
        ]
    metrics = {f"mapush/{name}": 0.0 for name in METRICS if name in statistics}
    return [
        custom_scalars({"overview": charts}),
        *hparams(hyper_parameters(settings), metrics)[:2],
        text("settings", f"```\n{dump_yaml(settings)}\n```"),
        text("origin", f"```\n{dump_yaml(start)}\n```"),
    ]


def hyper_parameters(settings: Mapping[str, Any]) -> dict[str, float | bool | str]:
    """Return the settings for comparing runs, by dotted name."""
    flat = {
        f"{section}.{key}": value
        for section, content in settings.items()
        for key, value in content.items()
    }
    parameters = {}
    for name, value in flat.items():
        section = name.partition(".")[0]
        if section in _HYPER_PARAMETERS or name in _MORE:
            is_plain = isinstance(value, (bool, int, float))
            parameters[name] = value if is_plain else str(value)
    return parameters
