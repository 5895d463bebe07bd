"""Upstream HARL's settings in this project's words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harl_mapush.algorithms import ALGORITHMS, OnPolicyCfg
from harl_mapush.networks import NetworkCfg
from mqe.config import build

NETWORK_KEYS = {
    "hidden_sizes": "hidden_sizes",
    "activation_func": "activation",
    "use_feature_normalization": "use_feature_normalization",
    "initialization_method": "initialization_method",
    "gain": "gain",
    "std_x_coef": "std_x_coef",
    "std_y_coef": "std_y_coef",
    "recurrent_n": "num_recurrent_layers",
    "data_chunk_length": "chunk_length",
}
ALGORITHM_KEYS = {
    "lr": "learning_rate",
    "critic_lr": "critic_learning_rate",
    "opti_eps": "adam_eps",
    "weight_decay": "weight_decay",
    "ppo_epoch": "num_epochs",
    "a2c_epoch": "num_epochs",
    "critic_epoch": "critic_num_epochs",
    "actor_num_mini_batch": "num_minibatches",
    "critic_num_mini_batch": "critic_num_minibatches",
    "clip_param": "clip_param",
    "use_clipped_value_loss": "use_clipped_value_loss",
    "entropy_coef": "entropy_coef",
    "value_loss_coef": "value_loss_coef",
    "max_grad_norm": "max_grad_norm",
    "use_gae": "use_gae",
    "gamma": "gamma",
    "gae_lambda": "lam",
    "use_huber_loss": "use_huber_loss",
    "huber_delta": "huber_delta",
    "use_policy_active_masks": "use_policy_active_masks",
    "action_aggregation": "action_aggregation",
    "share_param": "share_param",
    "fixed_order": "fixed_order",
    "kl_threshold": "kl_threshold",
    "ls_step": "line_search_steps",
    "accept_ratio": "accept_ratio",
    "backtrack_coeff": "backtrack_coeff",
    "use_valuenorm": "use_value_norm",
    "use_proper_time_limits": "use_proper_time_limits",
}


def network_cfg(harl: Mapping[str, Any]) -> NetworkCfg:
    """Translate HARL's merged settings to the network section; raise ConfigError for a value that has no equal here."""
    values = _translate(harl, NETWORK_KEYS, NetworkCfg)
    values["hidden_sizes"] = list(harl["hidden_sizes"])
    naive = bool(harl.get("use_naive_recurrent_policy", False))
    values["use_recurrent_policy"] = naive or bool(harl.get("use_recurrent_policy", False))
    if naive:
        values["chunk_length"] = 0
    return build(NetworkCfg, values, "network")


def algorithm_cfg(name: str, harl: Mapping[str, Any]) -> OnPolicyCfg:
    """Translate HARL's merged settings to the algorithm section, under compat=harl; errors alike."""
    cls = ALGORITHMS[name].cfg
    values = _translate(harl, ALGORITHM_KEYS, cls)
    if not harl.get("use_max_grad_norm", True):
        values["max_grad_norm"] = 0.0
    values["schedule"] = "linear" if harl.get("use_linear_lr_decay", False) else "constant"
    return build(cls, {"compat": "harl", **values}, "algorithm")


def _translate(harl: Mapping[str, Any], names: Mapping[str, str], cls: type) -> dict[str, Any]:
    known = cls.__dataclass_fields__
    return {ours: harl[theirs] for theirs, ours in names.items() if theirs in harl and ours in known}
