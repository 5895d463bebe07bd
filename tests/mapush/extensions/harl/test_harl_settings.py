"""mapush.extensions.harl.harl_settings: allowed values in HARL's settings, and their names in
errors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mapush.extensions.harl.harl_files import HarlFile, apply, read
from mqe.config import ConfigError
from tests.support.paths import ROOT
from tests.support.upstream_folders import upstream_file


@pytest.mark.parametrize(
    ("section", "key", "value", "said"),
    [
        (
            "model",
            "hidden_sizes",
            64,
            "model.hidden_sizes, here network.hidden_sizes: must be a list",
        ),
        ("model", "hidden_sizes", None, "must be a list of whole numbers, not None"),
        (
            "model",
            "hidden_sizes",
            [8, 0],
            "model.hidden_sizes, here network.hidden_sizes: must be at",
        ),
        ("model", "lr", -1, "model.lr, here algorithm.learning_rate: must be"),
        (
            "train",
            "use_valuenorm",
            3,
            "train.use_valuenorm, here algorithm.use_value_norm: must be",
        ),
        ("algo", "gamma", 2, "algo.gamma, here algorithm.gamma: must be"),
        ("train", "n_rollout_threads", 0, "train.n_rollout_threads: must be"),
        (
            "algo",
            "use_max_grad_norm",
            "no",
            "algo.use_max_grad_norm: must be true or false, not 'no'",
        ),
        (
            "train",
            "use_linear_lr_decay",
            1,
            "train.use_linear_lr_decay: must be true or false, not 1",
        ),
        (
            "model",
            "use_recurrent_policy",
            "false",
            "model.use_recurrent_policy: must be true or false",
        ),
        ("device", "cuda", "off", "device.cuda: must be true or false, not 'off'"),
    ],
)
def test_a_bad_value_is_named_by_harls_key(
    section: str, key: str, value: object, said: str
) -> None:
    values = upstream_file("happo", {section: {key: value}})
    with pytest.raises(ConfigError) as caught:
        apply({}, {}, HarlFile(Path("config.json"), "happo", None, values, {}))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def laid_over(
    algo: str, algo_args: dict, env_args: dict | None = None, **over: Any
) -> tuple[dict, list[str]]:
    values = upstream_file(algo, algo_args)
    return apply({}, over, HarlFile(Path("config.json"), algo, "mapush", values, env_args or {}))


@pytest.mark.parametrize(
    ("algo", "num_epochs", "unread"),
    [
        ("happo", 3, ["a2c_epoch"]),
        ("mappo", 3, ["a2c_epoch"]),
        ("ippo", 3, ["a2c_epoch"]),
        ("haa2c", 9, ["ppo_epoch"]),
        ("hatrpo", 5, ["ppo_epoch", "a2c_epoch", "actor_num_mini_batch", "entropy_coef"]),
    ],
)
def test_an_algorithm_has_its_own_name_for_a_number_of_epochs(
    algo: str, num_epochs: int, unread: list[str]
) -> None:
    harl_keys = {"ppo_epoch": 3, "a2c_epoch": 9, "actor_num_mini_batch": 2, "entropy_coef": 0.0}
    sections, (notice,) = laid_over(algo, {"algo": harl_keys})
    assert sections["algorithm"]["num_epochs"] == num_epochs
    named = {f"algo.{key}" for key in unread}
    assert set(notice.removeprefix("config.json: not honoured: ").split(", ")) == named


def test_a_key_counts_in_its_own_section_alone() -> None:
    sections, (notice,) = laid_over(
        "happo", {"train": {"lr": 0.1}, "algo": {"use_valuenorm": False, "lr": 0.2}}
    )
    assert sections["algorithm"]["learning_rate"] == 5e-4
    assert sections["algorithm"]["use_value_norm"]
    assert all(key in notice for key in ("train.lr", "algo.use_valuenorm", "algo.lr"))


@pytest.mark.parametrize(
    ("env_args", "named"),
    [
        ({"n_threads": 64}, ["env_args.n_threads"]),
        (
            {"env.num_envs": 64, "seed": 9},
            ["env_args.env.num_envs", "env_args.seed"],
        ),
        ({"n_threads": 2, "seed": 1}, []),
    ],
)
def test_upstream_counts_worlds_by_its_own_key(env_args: dict, named: list[str]) -> None:
    sections, notices = laid_over(
        "happo", {"train": {"n_rollout_threads": 2, "num_env_steps": 800}}, env_args
    )
    assert sections["env"]["num_envs"] == 2
    assert sections["runner"]["num_env_steps"] == 800
    assert len(notices) == bool(named)
    assert all(text in notices[0] for text in named)


def test_settings_of_the_environment_are_judged_together() -> None:
    # Default radius: 1 m.
    sections, _ = laid_over("happo", {}, {"goal_distance": [0.5, 0.8], "success_radius": 0.3})
    assert sections["task"]["goal_distance"] == [0.5, 0.8]


@pytest.mark.parametrize(
    ("algo_args", "env_args", "said"),
    [
        ({}, {"num_agents": "two"}, "num_agents: must be"),
        ({}, {"object": "ball"}, "object: unknown value 'ball'"),
        (
            {},
            {"sim.num_threads": -1},
            "sim.num_threads: must be at least 0",
        ),
        (
            {},
            {"success_radius": -1.0},
            "success_radius: must be at least 0.001",
        ),
        ({}, {"task": "pull"}, "unknown task 'pull'"),
        ({}, {"task": ["pull"]}, "task: must be a string"),
    ],
)
def test_a_complaint_names_the_file_and_harls_key(
    algo_args: dict, env_args: dict, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        laid_over("happo", algo_args, env_args)
    assert str(caught.value).startswith("HARL's file 'config.json': ")
    assert said in str(caught.value)


def test_a_run_file_of_ours_goes_another_way() -> None:
    with pytest.raises(ConfigError, match="a run file of this project is read by --config"):
        read(ROOT / "configs" / "laptop.yaml")
