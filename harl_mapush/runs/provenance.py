"""The origin of a run, ``origin.json`` in its folder, and its summaries for TensorBoard."""

from __future__ import annotations

import json
import platform
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]

from harl_mapush.runs import durable
from mqe.config import dump_yaml, read_text
from mqe.manifest import git_revision, packages

ORIGIN = "origin.json"
# Metrics of a run that TensorBoard shows beside its hyper-parameters.
METRICS = ("success_rate", "return", "episode_time_s")
# Sections whose settings are all hyper-parameters, and further settings that are.
_HYPER_PARAMETERS = ("algorithm", "network")
_MORE = ("env.num_envs", "task.object", "task.decision_period", "runner.num_steps", "runner.seed")


def describe(device: str, reward_weights: Mapping[str, float] | None) -> dict[str, Any]:
    """Return the time, command, versions and device of a run's start.

    ``reward_weights`` are by term, None if the task weighs no terms.
    """
    weights = {} if reward_weights is None else {"reward_weights": dict(reward_weights)}
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": shlex.join(sys.argv),
        "git_revision": git_revision(),
        "packages": packages(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": device,
        **weights,
    }


def write(run: Path, start: Mapping[str, Any]) -> None:
    """Add a start to those in a run's ``origin.json``."""
    path = run / ORIGIN
    try:
        starts = [*json.loads(read_text(path))["starts"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        # There is no file yet, or it is damaged; nothing depends on it.
        starts = []
    durable.write_text(path, json.dumps({"starts": [*starts, dict(start)]}, indent=2) + "\n")


def tensorboard_summaries(
    settings: Mapping[str, Any], start: Mapping[str, Any], statistics: Sequence[str]
) -> list[Summary]:
    """Return a run's TensorBoard summaries besides its curves.

    They show its layout, hyper-parameters, settings and origin. ``settings`` are nested plain
    values; ``statistics`` are the names of the environment's statistics.
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
    """Return the settings by which runs are compared, by dotted name."""
    flat = {
        f"{section}.{key}": value
        for section, content in settings.items()
        for key, value in content.items()
    }
    found = {}
    for name, value in flat.items():
        section = name.partition(".")[0]
        if section in _HYPER_PARAMETERS or name in _MORE:
            is_plain = isinstance(value, (bool, int, float))
            found[name] = value if is_plain else str(value)
    return found
