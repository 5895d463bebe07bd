"""What made a run, beside its settings: ``origin.json`` in its folder, and cards of it for
TensorBoard.
"""

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
from mqe.config import dump_yaml
from mqe.manifest import git_revision, packages

ORIGIN = "origin.json"
METRICS = ("success_rate", "return", "episode_time_s")  # of a run, beside its hyper-parameters
_HYPER_PARAMETERS = ("algorithm", "network")  # sections that are shown whole
_MORE = ("env.num_envs", "task.object", "task.decision_period", "runner.num_steps", "runner.seed")


def describe(device: str, reward_weights: Mapping[str, float] | None) -> dict[str, Any]:
    """Return who starts a run, with what and how; ``reward_weights`` by term, None where a task
    does not weigh any.
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
        starts = json.loads(path.read_text(encoding="utf-8"))["starts"]
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
    ):  # none yet, or damaged: nothing depends on it
        starts = []
    durable.write_text(path, json.dumps({"starts": [*starts, dict(start)]}, indent=2) + "\n")


def cards(
    settings: Mapping[str, Any], start: Mapping[str, Any], statistics: Sequence[str]
) -> list[Summary]:
    """Return what TensorBoard shows of a run besides its curves: layout, hyper-parameters,
    settings, origin.

    ``settings`` are nested plain values; ``statistics`` are the names of what the environment
    measures.
    """
    from torch.utils.tensorboard.summary import (  # slow to import, and seldom needed
        custom_scalars,
        hparams,
        text,
    )

    shares = [name for name in statistics if name.startswith("contact_share")]
    charts = {name: ["Multiline", [f"mapush/{name}"]] for name in METRICS if name in statistics}
    if shares:
        charts["contact shares"] = [
            "Multiline",
            [f"{name.rpartition('_')[2]}/contact_share" for name in shares],
        ]
    metrics = {f"mapush/{name}": 0.0 for name in METRICS if name in statistics}
    yaml, origin = (f"```\n{content}\n```" for content in (dump_yaml(settings), dump_yaml(start)))
    return [
        custom_scalars({"overview": charts}),
        *hparams(hyper_parameters(settings), metrics)[:2],
        text("settings", yaml),
        text("origin", origin),
    ]


def hyper_parameters(settings: Mapping[str, Any]) -> dict[str, float | bool | str]:
    """Return the settings that runs are compared by, by dotted name."""
    flat = {
        f"{section}.{key}": value
        for section, content in settings.items()
        for key, value in content.items()
    }
    return {
        name: value if isinstance(value, (bool, int, float)) else str(value)
        for name, value in flat.items()
        if name.partition(".")[0] in _HYPER_PARAMETERS or name in _MORE
    }
