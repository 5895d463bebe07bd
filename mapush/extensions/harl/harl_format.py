"""Upstream HARL's ``models/`` folders as a checkpoint format. An import registers it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from harl_mapush.runs.checkpoint import CONFIG as OUR_CONFIG
from harl_mapush.runs.checkpoint import actor_file
from harl_mapush.runs.formats import FORMATS, Format
from harl_mapush.runs.policy import TeamPolicy
from mapush.extensions.harl.harl_actors import load_off_policy
from mapush.extensions.harl.harl_files import (
    CONFIG,
    MODELS,
    UPSTREAM_ONLY,
    config_beside,
    models_config,
    read,
)
from mqe.tensor_files import read_tensors
from mqe.vec_env import VecEnv


def _is_format_of(folder: Path) -> bool:
    return not (folder / OUR_CONFIG).is_file() and config_beside(folder) is not None


def _num_agents(folder: Path) -> int:
    matches = [re.fullmatch(r"actor_agent(\d+)\.pt", path.name) for path in folder.iterdir()]
    return max((int(match[1]) + 1 for match in matches if match), default=1)


def _read_config(folder: Path) -> dict[str, Any]:
    matrices = [
        tensor for tensor in read_tensors(folder / actor_file(0)).values() if tensor.dim() == 2
    ]
    obs_size = matrices[0].shape[1] if matrices else 0  # inputs of the first layer
    return models_config(_config(folder), _num_agents(folder), obs_size)


def _load_team(folder: Path, env: VecEnv) -> TeamPolicy | None:
    file = read(_config(folder))
    if file.algo not in UPSTREAM_ONLY:
        return None
    return load_off_policy(folder, file.algo_args.get("model", {}), env)


def _config(folder: Path) -> Path:
    path = config_beside(folder)
    assert path is not None
    return path


HARL = FORMATS.register(
    "harl",
    Format(
        owner="HARL's",
        config=CONFIG,
        folder=MODELS,
        is_format_of=_is_format_of,
        num_agents=_num_agents,
        read_config=_read_config,
        load_team=_load_team,
    ),
)
