"""Run folders and configurations as upstream HARL writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from mqe.config import merge
from tests.support import harl_recording
from tests.support.paths import DATA

# Settings in upstream's file of HAPPO, without evaluation.
UPSTREAM: dict[str, dict[str, Any]] = {
    "seed": {"seed_specify": True, "seed": 1},
    "device": {"cuda": True, "torch_threads": 4},
    "train": {
        "n_rollout_threads": 20,
        "num_env_steps": 10_000_000,
        "episode_length": 200,
        "log_interval": 5,
        "eval_interval": 25,
        "use_valuenorm": True,
        "use_linear_lr_decay": False,
        "use_proper_time_limits": True,
        "model_dir": None,
    },
    "eval": {"use_eval": False},
    "render": {"use_render": False},
    "model": {
        "hidden_sizes": [128, 128],
        "activation_func": "relu",
        "use_feature_normalization": True,
        "initialization_method": "orthogonal_",
        "gain": 0.01,
        "use_naive_recurrent_policy": False,
        "use_recurrent_policy": False,
        "recurrent_n": 1,
        "data_chunk_length": 10,
        "lr": 5e-4,
        "critic_lr": 5e-4,
        "opti_eps": 1e-5,
        "weight_decay": 0.0,
        "std_x_coef": 1.0,
        "std_y_coef": 0.5,
    },
    "algo": {
        "ppo_epoch": 5,
        "critic_epoch": 5,
        "use_clipped_value_loss": True,
        "clip_param": 0.2,
        "actor_num_mini_batch": 1,
        "critic_num_mini_batch": 1,
        "entropy_coef": 0.01,
        "value_loss_coef": 1.0,
        "use_max_grad_norm": True,
        "max_grad_norm": 10.0,
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "use_huber_loss": True,
        "use_policy_active_masks": True,
        "huber_delta": 10.0,
        "share_param": False,
        "fixed_order": False,
    },
    "logger": {"log_dir": "./results"},
}


GOLDEN = DATA / "harl_parity"


def recorded(case: str = "happo_2a_tightclip") -> dict:
    return harl_recording.read(GOLDEN / f"{case}.pt.xz")


# What other algorithms' files have less and more
_LESS = {
    "haa2c": ("ppo_epoch",),
    "ippo": ("fixed_order",),
    "hatrpo": ("ppo_epoch", "actor_num_mini_batch", "entropy_coef"),
}
_MORE = {
    "haa2c": {"a2c_epoch": 5},
    "hatrpo": {"kl_threshold": 0.005, "ls_step": 10, "accept_ratio": 0.5, "backtrack_coeff": 0.8},
}


def upstream_file(algo: str, sections: dict[str, Any]) -> dict[str, Any]:
    """Return an on-policy algorithm's whole file, changed by ``sections``."""
    values = merge(UPSTREAM, {"algo": _MORE.get(algo, {})})
    for name in _LESS.get(algo, ()):
        del values["algo"][name]
    return merge(values, sections)


def write_config(
    path: Path, named: str = "happo", env: str = "mapush", env_args: dict | None = None, **sections
) -> Path:
    content = {
        "main_args": {"algo": named, "env": env, "exp_name": "x", "load_config": ""},
        "algo_args": upstream_file(named, sections),
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
