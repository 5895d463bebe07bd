"""harl_mapush.clients.harl: upstream HARL as a client, installed or a checkout in HARL_PATH."""

from __future__ import annotations

import importlib
import importlib.util
import json
import runpy
import sys
from pathlib import Path

import pytest
import torch

from harl_mapush import clients
from harl_mapush.clients import register_with_harl
from harl_mapush.clients.harl import harl_registration
from mqe.config import ConfigError
from tests.support.paths import ROOT
from tests.support.upstream import HARL, needs_checkout

FUNCTIONS = (
    *("make_train_env", "make_eval_env", "make_render_env"),
    *("get_num_agents", "get_task_name", "get_defaults_yaml_args"),
)
EXAMPLE = ROOT / "examples" / "harl_training.py"
TINY = {"n_threads": 2, "device": "cpu", "seed": 0}


@pytest.fixture
def stub(tmp_path, monkeypatch):
    """A package with upstream's module names. Its functions only record their calls."""
    loaded = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "harl"}
    for name in loaded:
        del sys.modules[name]
    files = {
        "__init__": "",
        "envs/__init__": "LOGGER_REGISTRY = {}",
        "common/__init__": "",
        "common/base_logger": "class BaseLogger: pass",
        "utils/__init__": "",
        **dict.fromkeys(
            (
                "utils/envs_tools",
                "utils/configs_tools",
                "runners/on_policy_base_runner",
                "runners/off_policy_base_runner",
            ),
            "\n".join(
                f"def {name}(env, *rest): return 'upstream', env, *rest" for name in FUNCTIONS
            ),
        ),
        "runners/__init__": "",
    }
    for name, text in files.items():
        path = tmp_path / "checkout" / "harl" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(sys, "path", list(sys.path))
    register_with_harl(tmp_path / "checkout")
    yield tmp_path / "checkout"
    for name in [name for name in sys.modules if name.split(".")[0] == "harl"]:
        del sys.modules[name]
    sys.modules.update(loaded)


def module(name: str):
    return importlib.import_module(f"harl.{name}")


# Without upstream


def test_only_our_name_comes_to_us(stub, walking) -> None:
    for module_name in (
        "runners.on_policy_base_runner",
        "runners.off_policy_base_runner",
        "utils.envs_tools",
    ):
        imported = module(module_name)
        assert imported.make_train_env("smac", 1, 2, {}) == ("upstream", "smac", 1, 2, {})
        assert imported.get_num_agents("smac", {}, None) == ("upstream", "smac", {}, None)
        env = imported.make_train_env("mapush", 5, 2, {"device": "cpu", "object": "tblock"})
        assert isinstance(env, harl_registration.UpstreamEnv)
        assert (env.n_threads, env._cfg.runner.seed, env._cfg.task.object) == (2, 5, "tblock")
        assert imported.get_num_agents("mapush", {}, env) == 2
        env.close()
        env = imported.make_eval_env(
            "mapush", 2, 1, {"device": "cpu", "env.num_envs": 9, "seed": 7}
        )
        assert (env.n_threads, env._cfg.runner.seed) == (1, 100_000)
        env.close()
        env, manual_render, manual_expand_dims, manual_delay, env_num = imported.make_render_env(
            "mapush", 1, TINY
        )
        assert (env.n_threads, manual_render, manual_expand_dims, manual_delay, env_num) == (
            1,
            False,
            False,
            False,
            1,
        )
        env.close()
    for module_name in ("runners.off_policy_base_runner", "utils.configs_tools"):
        assert module(module_name).get_task_name("smac", {}) == ("upstream", "smac", {})
        assert module(module_name).get_task_name("mapush", {"object": "tblock"}) == "go1push_mid"
        assert module(module_name).get_task_name("mapush", {"task": "walking"}) == "walking"


def test_the_forks_runner_is_upstreams_in_our_environment(stub) -> None:
    class Runner:
        def __init__(self, *arguments) -> None:
            self.arguments = arguments

    module("runners").RUNNER_REGISTRY = {"happo": Runner}
    runner = clients.MAPushHAPPORunner({"algo": "happo", "env": "dexhands"}, {}, {"device": "cpu"})
    assert type(runner).__name__ == "MAPushHAPPORunner"
    given = ({"algo": "happo", "env": "mapush"}, {}, {"device": "cpu"})
    assert runner.arguments == given


def test_defaults_and_logger_are_found_by_name(stub) -> None:
    configs = module("utils.configs_tools")
    assert configs.get_defaults_yaml_args("happo", "smac") == ("upstream", "happo", "smac")
    module_name = stub / "harl" / "configs" / "algos_cfgs"
    module_name.mkdir(parents=True)
    (module_name / "happo.yaml").write_text("algo: {gamma: 0.9}\n")
    assert configs.get_defaults_yaml_args("happo", "mapush") == (
        {"algo": {"gamma": 0.9}},
        harl_registration.DEFAULT_SETTINGS,
    )
    from harl_mapush.clients import MAPushLogger

    assert issubclass(MAPushLogger, module("common.base_logger").BaseLogger)
    assert callable(MAPushLogger.set_envs)


def test_registering_twice_changes_nothing(stub) -> None:
    before = module("runners.on_policy_base_runner").make_train_env
    register_with_harl(stub)
    assert module("runners.on_policy_base_runner").make_train_env is before
    assert list(module("envs").LOGGER_REGISTRY) == ["mapush"]


def test_two_checkouts_cannot_be_mixed(stub, tmp_path) -> None:
    (tmp_path / "other" / "harl" / "runners").mkdir(parents=True)
    with pytest.raises(ConfigError, match="another HARL is already loaded"):
        register_with_harl(tmp_path / "other")


def test_a_place_without_harl(tmp_path) -> None:
    with pytest.raises(ConfigError, match="no checkout of HARL"):
        register_with_harl(tmp_path)


def test_a_module_that_python_3_13_has_no_more(monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "uu", raising=False)
    monkeypatch.setattr(sys, "version_info", (3, 13, 0))
    harl_registration._stand_in_for_uu()
    assert issubclass(sys.modules["uu"].Error, Exception)
    monkeypatch.delitem(sys.modules, "uu")


# With upstream

SMALL = {
    "on_policy": {
        "episode_length": "4",
        "log_interval": "1",
        "eval_interval": "1",
        "n_eval_rollout_threads": "2",
        "eval_episodes": "2",
        "critic_epoch": "1",
    },
    "off_policy": {
        "warmup_steps": "16",
        "train_interval": "4",
        "eval_interval": "4",
        "batch_size": "8",
        "buffer_size": "100",
    },
}


def upstream_run(out: Path, algo: str, *argv: str, task: str = "go1push_mid") -> Path:
    """Train the example with upstream's own runner and return the run folder."""
    register_with_harl(HARL)
    family = "on_policy" if algo in ("happo", "hatrpo", "mappo") else "off_policy"
    settings = {
        **SMALL[family],
        "n_rollout_threads": "2",
        "num_env_steps": "16",
        "torch_threads": str(torch.get_num_threads()),
        "hidden_sizes": "[8]",
        "log_dir": str(out),
        "task": task,
        "device": "cpu",
        "episode_length_s": "0.1",
    }
    words = [word for key, text in settings.items() for word in (f"--{key}", text)]
    runpy.run_path(str(EXAMPLE))["main"](["--algo", algo, *words, *argv])
    return next((out / "mapush" / task / algo / "default").iterdir())


@needs_checkout
def test_upstream_trains_a_task_without_an_object(tmp_path, walking) -> None:
    assert (upstream_run(tmp_path, "happo", task="walking") / "models").is_dir()


@needs_checkout
def test_a_setting_that_neither_has_is_refused(tmp_path) -> None:
    with pytest.raises(ConfigError, match="unknown key 'episode_lenth'; did you mean"):
        upstream_run(tmp_path, "happo", "--episode_lenth", "3")


@needs_checkout
def test_upstream_trains_with_fp_states(tmp_path) -> None:
    weights = torch.load(
        upstream_run(tmp_path, "happo", "--state_type", "FP") / "models" / "critic_agent.pt"
    )
    assert weights["base.feature_norm.weight"].shape == (17,)


@needs_checkout
def test_another_runs_configuration(tmp_path) -> None:
    run = upstream_run(tmp_path / "first", "happo", "--observation", "reference")
    argv = ("--load_config", str(run / "config.json"), "--gamma", "0.9")
    again = upstream_run(tmp_path / "second", "happo", *argv)
    settings = json.loads((again / "config.json").read_text())
    assert settings["env_args"]["observation"] == "reference"
    assert settings["algo_args"]["algo"]["gamma"] == 0.9
