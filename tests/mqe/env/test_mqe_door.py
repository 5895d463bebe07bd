"""MQE scripts find ``make_mqe_env`` under its old import path."""

from __future__ import annotations

from argparse import Namespace

import pytest
import torch

from mqe.config import ConfigError
from mqe.envs.utils import make_mqe_env

ARGUMENTS = Namespace(num_envs=2, seed=3, sim_device="cpu", headless=True, record_video=False)


def custom_cfg(cfg):
    cfg["task"]["object"] = "tblock"
    return cfg


def test_a_script_of_mqes_gets_its_worlds() -> None:
    env, env_cfg = make_mqe_env("go1push_mid", ARGUMENTS, custom_cfg)
    assert (env.num_envs, env_cfg.env.num_envs, env_cfg.task.object) == (2, 2, "tblock")
    env.reset()
    assert env.step(torch.zeros(2, 2, 3)).reward.shape == (2, 2)
    env.close()


@pytest.mark.parametrize(
    ("task", "custom", "said"),
    [
        ("go1push", None, "task: unknown task 'go1push'; did you mean go1push_mid"),
        ("go1push_mid", lambda cfg: cfg | {"asset": {}}, "custom_cfg: unknown section 'asset'"),
        ("go1push_mid", lambda cfg: cfg["task"].update(objct=1), "did you mean task.object"),
    ],
)
def test_a_setting_that_cannot_be_is_an_error(task, custom, said) -> None:
    with pytest.raises(ConfigError, match=said):
        make_mqe_env(task, ARGUMENTS, custom)
