"""A GPU preset runs on a CPU only on request."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
import torch
import yaml

from harl_mapush import config, train
from harl_mapush.config.presets import GPU_WORLDS, PRESETS, check_preset
from harl_mapush.runs import checkpoint
from mqe import cores
from mqe.config import ConfigError

# Settings that do nothing in worlds of one object.
OF_SHAPES = ("shape_force", "shape_kinds")


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    monkeypatch.setattr(cores, "cpu_quota", lambda: math.inf)


def test_a_gpu_preset_asks_on_a_cpu(capsys) -> None:
    assert train.main(["--preset", "cuboid"]) == 2
    error = capsys.readouterr().err
    assert "are meant for a GPU, and none can be used here; say --preset laptop, or" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("preset", sorted(config.PRESETS))
def test_what_is_asked_for_is_done(preset: str) -> None:
    resolved = config.resolve(config.load_preset(preset), {})[0]
    check_preset(preset, config.resolve(config.load_preset(preset), {"sim": {"device": "cpu"}})[0])
    check_preset(
        preset, config.resolve(config.load_preset(preset), {"env": {"num_envs": GPU_WORLDS - 1}})[0]
    )
    assert (resolved.env.num_envs >= GPU_WORLDS) != preset.startswith(("laptop", "leader", "smoke"))


def test_hasac_and_happo_learn_in_the_same_world_on_a_gpu() -> None:
    happo, hasac = (
        config.resolve(config.load_preset(name), {})[0] for name in ("cuboid_happo", "cuboid")
    )
    assert (happo.task, happo.env.randomize) == (hasac.task, hasac.env.randomize)


@pytest.mark.parametrize(
    ("name", "preset", "task"),
    [
        ("cuboid", "cuboid", {}),
        ("tblock", "cuboid", {"object": "tblock"}),
        ("cylinder", "cylinder", {}),
    ],
)
def test_the_shipped_teams_are_of_their_presets(name: str, preset: str, task: dict) -> None:
    resolved = config.resolve(checkpoint.read_config(checkpoint.resolve(f"pretrained:{name}")), {})[
        0
    ]
    without_shapes = (
        {} if resolved.task.shapes else {key: getattr(resolved.task, key) for key in OF_SHAPES}
    )
    now = config.resolve(config.load_preset(preset), {"task": without_shapes | task})[0]
    assert (resolved.env, resolved.task, resolved.network, resolved.algorithm) == (
        now.env,
        now.task,
        now.network,
        now.algorithm,
    )
    assert resolved.runner.num_steps == now.runner.num_steps


def test_an_object_that_is_named_takes_the_place_of_a_presets_shapes() -> None:
    preset = config.load_preset("any")
    cfg, notices = config.resolve(preset, {"task": {"object": "tblock"}})
    assert (cfg.task.object, cfg.task.shapes) == ("tblock", None)
    assert notices == ["task.shapes left out: task.object takes its place"]
    both = {"task": {"object": "tblock", "shapes": "held_out"}}
    assert config.resolve(preset, both)[0].task.shapes == "held_out"


def test_a_preset_and_a_run_file_are_named_alike(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine.yaml", "mine", "laptop"):
        (tmp_path / name).write_text("env: {num_envs: 3}")
    assert config.load_preset("mine.yaml") == config.load_preset("mine") == {"env": {"num_envs": 3}}
    assert config.load_preset("laptop") != config.load_preset("./laptop")
    with pytest.raises(ConfigError, match=f"unknown preset '{'a' * 300}'"):
        config.load_preset("a" * 300)
    with pytest.raises(ConfigError, match="name a file in it, such as .*mine.yaml"):
        config.load_preset(tmp_path)
    with pytest.raises(ConfigError, match="nowhere.yaml: cannot be read"):
        config.load_preset("nowhere.yaml")


@pytest.mark.parametrize(
    ("section", "key", "default", "other"),
    [
        ({"algorithm": {"name": "hasac"}}, "num_atoms", 0, 101),
        ({"algorithm": {"name": "hasac"}}, "value_bound", 5.0, 10.0),
        ({"algorithm": {"name": "hasac"}}, "normalize_returns", True, False),
        ({"algorithm": {"name": "happo"}}, "agent_learning_rates", [], [1e-3, 2e-3]),
        ({"env": {}}, "actuators", "reference", "ideal"),
        ({"task": {"name": "go1push_mid"}}, "shape_friction", [0.2, 1.0], [0.5, 1.0]),
        ({"task": {"name": "go1push_mid"}}, "shape_mass", [2.0, 20.0], [2.0, 30.0]),
        ({"network": {}}, "sets", "flat", "sorted"),
        ({"network": {}}, "sets", "deep_set", "sorted"),
    ],
)
def test_a_former_setting_loads_at_its_default_alone(section, key, default, other) -> None:
    ((name, values),) = section.items()
    cfg, notices = config.resolve({name: {**values, key: default}}, {})
    assert (cfg, notices) == (config.resolve(section, {})[0], [])
    with pytest.raises(ConfigError, match=rf"^unknown key '{name}\.{key}'[^\n]*$"):
        config.resolve({name: {**values, key: other}}, {})


def test_another_tasks_former_setting_is_no_former_one_here() -> None:
    published = {"task": {"name": "go1push_mid", "rewards": "published"}}
    default = {"task": {"name": "go1push_mid", "rewards": "default"}}
    assert config.resolve(published, default)[0].task.rewards == "default"


@pytest.mark.parametrize("section", ["env", "network", "runner", "logger"])
def test_a_section_without_names_refuses_one_in_a_line(section: str) -> None:
    with pytest.raises(ConfigError, match=rf"^unknown key '{section}\.name'[^\n]*$"):
        config.resolve({section: {"name": "a"}}, {section: {}})


def test_a_preset_with_a_small_sibling_names_it_on_a_cpu(capsys) -> None:
    assert train.main(["--preset", "any"]) == 2
    assert "say --preset laptop_any, or" in capsys.readouterr().err


def test_the_home_folder_is_expanded_in_every_path(monkeypatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    arguments = train.make_parser().parse(["--out=~/run", "--set", "runner.init_from=~/other"])
    cfg, _ = config.resolve({"task": {"gait": "~/gait"}}, config.flag_values(arguments))
    assert cfg.logger.out_dir == "/home/me/run"
    assert cfg.runner.init_from == "/home/me/other"
    assert cfg.task.gait == "/home/me/gait"


@pytest.mark.parametrize(
    ("has_gpu", "over", "num_ranks", "preset"),
    [
        (False, {}, 1, "laptop_hasac"),
        (True, {}, 1, "cuboid"),
        (True, {"sim": {"device": "cpu"}, "task": {"object": "tblock"}}, 1, "laptop_hasac"),
        (False, {}, 2, "laptop"),
        (True, {"algorithm": {"name": "happo"}}, 1, "laptop"),
        (True, {"network": {"hidden_sizes": [8]}}, 1, "laptop"),
        (True, {"env": {"imports": ["own_reward"]}}, 1, "laptop"),
        (True, {"task": {"name": "go1_velocity"}}, 1, "laptop"),
        (True, {"sim": {"name": "mujoco_worker"}}, 1, "laptop"),
    ],
)
def test_a_training_without_a_preset_takes_the_best_one_for_the_machine(
    monkeypatch, has_gpu: bool, over: dict, num_ranks: int, preset: str
) -> None:
    device = torch.device("cuda" if has_gpu and "sim" not in over else "cpu")
    names = config.machine_preset.__globals__
    monkeypatch.setitem(names, "resolve_sim", lambda cfg: ("auto", device))
    assert config.machine_preset(over, num_ranks)[0] == preset
    if preset != "laptop":
        config.resolve(config.load_preset(preset), over)


def test_the_preset_of_the_machine_is_named_with_its_reason(monkeypatch, capsys) -> None:
    monkeypatch.setattr(train.experiment, "run", lambda cfg, start: cfg.env.num_envs)
    assert train.main(["--num_envs", "4"]) == 4
    assert capsys.readouterr().out == (
        "The preset is laptop_hasac, since the device is a CPU; --preset NAME takes another, "
        "mapush list presets names them.\n"
    )


def test_the_base_of_a_preset_lies_beside_it() -> None:
    """Another folder has another place in a clone than in an installation."""
    for path in PRESETS.values():
        base = yaml.safe_load(path.read_text(encoding="utf-8")).get("base", path.name)
        assert Path(base).name == base, path


def test_a_device_that_is_no_word_is_refused_before_a_preset_is_chosen() -> None:
    with pytest.raises(ConfigError, match="sim.device: must be a string"):
        config.machine_preset({"sim": {"device": {"z": "cylinder"}}})
