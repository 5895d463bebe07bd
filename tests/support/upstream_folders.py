"""Run folders and configurations as upstream HARL writes them."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from tests.support import harl_recording
from tests.support.paths import DATA

GOLDEN = DATA / "harl_parity"


def recorded(case: str = "happo_2a_tightclip") -> dict:
    return harl_recording.read(GOLDEN / f"{case}.pt.xz")


def write_config(
    path: Path, named: str = "happo", env: str = "mapush", env_args: dict | None = None, **sections
) -> Path:
    content = {
        "main_args": {"algo": named, "env": env, "exp_name": "x", "load_config": ""},
        "algo_args": sections,
        "env_args": env_args or {},
    }
    path.write_text(json.dumps(content, separators=(",", ":\t"), indent=4, sort_keys=True))
    return path


def upstream_folder(path: Path, **env_args) -> Path:
    """A run folder of upstream HARL, weights and configuration as it wrote them."""
    record = recorded()
    models = path / "models"
    models.mkdir(parents=True)
    state = record["stages"][1]["post"]
    for agent, weights in enumerate(state["actor"]):
        torch.save(weights, models / f"actor_agent{agent}.pt")
    torch.save(state["critic"], models / "critic_agent.pt")
    torch.save({}, models / "value_normalizer.pt")  # as upstream leaves it after a run on a GPU
    write_config(path / "config.json", env_args=env_args, **record["config"])
    return models
