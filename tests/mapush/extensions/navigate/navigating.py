"""A navigation task on a symmetric map."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import harl_mapush.runs  # noqa: F401, registers a reader for task.team
from mapush.extensions.navigate.entry import NAVIGATE
from mapush.extensions.navigate.settings import NavigateCfg
from mqe.tasks.entry import EnvCfg, TaskSetup
from mqe.world.streams import Streams

MAP = Path(__file__).with_name("symmetric_map.yaml")


def navigate_setup(num_envs: int, **cfg: Any) -> TaskSetup:
    """Return scene and task of ``num_envs`` worlds, before there is a simulator."""
    settings = NavigateCfg(**{"map": str(MAP)} | cfg)
    streams = Streams(0, num_envs, "cpu")
    return NAVIGATE.make(settings, EnvCfg(num_envs=num_envs), torch.device("cpu"), streams)
