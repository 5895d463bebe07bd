"""harl_mapush.interop.harl_settings: what HARL's values may be, and what an error calls them."""

from __future__ import annotations

from pathlib import Path

import pytest

from harl_mapush.interop.harl_files import HarlFile, lay_over
from mqe.config import ConfigError


@pytest.mark.parametrize(
    ("section", "key", "value", "said"),
    [
        ("model", "hidden_sizes", 64, "model.hidden_sizes of HARL's file, here network.hidden_sizes: must be a list"),
        ("model", "hidden_sizes", None, "must be a list of whole numbers, not None"),
        ("model", "hidden_sizes", [8, 0], "model.hidden_sizes of HARL's file, here network.hidden_sizes: must be at"),
        ("model", "lr", -1, "model.lr of HARL's file, here algorithm.learning_rate: must be"),
        ("train", "use_valuenorm", 3, "train.use_valuenorm of HARL's file, here algorithm.use_value_norm: must be"),
        ("algo", "gamma", 2, "algo.gamma of HARL's file, here algorithm.gamma: must be"),
        ("seed", "seed", "x", "seed.seed of HARL's file, here runner.seed: must be a whole number, not 'x'"),
        ("train", "log_interval", 0, "train.log_interval of HARL's file, here logger.interval: must be at least 1"),
        ("train", "n_rollout_threads", 0, "train.n_rollout_threads of HARL's file: must be"),
        ("algo", "use_max_grad_norm", "no", "algo.use_max_grad_norm of HARL's file: must be true or false, not 'no'"),
        ("train", "use_linear_lr_decay", 1, "train.use_linear_lr_decay of HARL's file: must be true or false, not 1"),
        ("model", "use_recurrent_policy", "false", "model.use_recurrent_policy of HARL's file: must be true or false"),
        ("device", "cuda", "off", "device.cuda of HARL's file: must be true or false, not 'off'"),
    ],
)
def test_a_bad_value_is_named_by_harls_key(section: str, key: str, value: object, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        lay_over({}, {}, HarlFile(Path("config.json"), "happo", None, {section: {key: value}}, {}))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
