"""Suites: every one is a layer of valid settings, for training and for measuring."""

from __future__ import annotations

from pathlib import Path

import pytest

from harl_mapush import config, test
from harl_mapush.config import RunCfg
from harl_mapush.config.presets import configs_folder
from harl_mapush.runs import checkpoint
from mapush import cli, listing
from mqe.config import ConfigError, merge
from mqe.extensions import load_extensions
from mqe.registry import make_env
from mqe.tasks.push import PushCfg
from mqe.world.objects import OBJECTS
from mqe.world.randomization import bounds
from mqe.world.scene import sliding_force
from tests.support.paths import ROOT

load_extensions()
# Suites about teams: robots and object are fixed, and no training changes them.
TEAM_SUITES = [name for name in sorted(config.SUITES) if "env" in config.load_suite(name).worlds]


@pytest.mark.parametrize("name", sorted(config.SUITES))
def test_a_suite_is_a_layer_of_settings(name: str) -> None:
    worlds = config.load_suite(name).worlds
    base = {} if "name" in worlds.get("task", {}) else config.load_preset("smoke")
    _, notices = config.resolve(base, worlds)
    assert not notices
    assert config.suite_summaries()[name][0].islower()


@pytest.mark.parametrize("name", TEAM_SUITES)
def test_a_suite_says_whether_the_object_is_the_team_s_own(name: str) -> None:
    worlds = config.load_suite(name).worlds
    assert worlds["env"]["model"] == "physical"
    is_own = worlds["task"]["shapes"] is None and "object" not in worlds["task"]
    assert ("the team's own object" in config.suite_summaries()[name]) == is_own


@pytest.mark.parametrize(
    ("name", "forces"),
    [
        ("team2", [85.0]),
        ("team3", [145.0]),
        ("team4", [200.0]),
        ("heavy", [85.1, 132.6]),
        ("any", [12.8]),
    ],
)
def test_a_team_suite_takes_the_force_that_it_says(name: str, forces: list[float]) -> None:
    cfg, _ = config.resolve({}, config.load_suite(name).worlds)
    factors = sorted(set(bounds(cfg.env.randomize.object_mass)))
    needed = [factor * sliding_force(cfg.task.pushed_object()) for factor in factors]
    assert needed == pytest.approx(forces, abs=1.2)
    # Layouts have room for the team.
    make_env(cfg.env, cfg.sim, cfg.task, 0).close()


@pytest.mark.parametrize("name", ["strain", "robustness", "rough"])
def test_every_condition_of_a_suite_is_a_layer_of_settings(name: str) -> None:
    suite = config.load_suite(name)
    for changes in suite.conditions.values():
        cfg, _ = config.resolve({}, merge(suite.worlds, changes))
        assert sliding_force(cfg.task.pushed_object()) > 0.0


def test_a_loaded_corner_leaves_the_weight_of_team2() -> None:
    box, _ = config.resolve({}, config.load_suite("team2").worlds)
    assert sliding_force(OBJECTS["loaded"]) == pytest.approx(
        sliding_force(box.task.pushed_object()), rel=0.005
    )


def test_an_object_without_a_mass_in_the_suite_is_refused() -> None:
    values = merge(config.load_suite("team2").worlds, {"task": {"object": "tower"}})
    cfg, _ = config.resolve({}, values)
    with pytest.raises(ConfigError, match="no mass for tower; say task.object_mass.tower=20"):
        cfg.task.pushed_object()


@pytest.mark.parametrize("mass", ["70", "70 kg", "-70 N", "N"])
def test_a_mass_is_kilograms_or_newtons(mass: str) -> None:
    with pytest.raises(ConfigError, match="task.object_mass=.* 70 N for the mass"):
        PushCfg(object_mass=mass)
    with pytest.raises(ConfigError, match="task.object_mass=.* 70 N for the mass"):
        PushCfg(object_mass={"cuboid": mass})
    with pytest.raises(ConfigError, match="task.object_mass=0 N: must be at least 0.1 N"):
        PushCfg(object_mass="0 N")


def test_flags_win_over_the_suite() -> None:
    parser = test.make_parser()
    words = ["pretrained:cuboid", "--suite", "team2", "--object", "beam"]
    values = config.flag_values(parser.parse([*words, "--set", "env.num_agents=3"]))
    assert values["env"]["num_agents"] == 3
    assert values["task"]["object"] == "beam"
    assert values["task"]["object_mass"]["beam"] == "110 N"
    light = config.flag_values(parser.parse([*words, "--set", "task.object_mass=20"]))
    assert light["task"]["object_mass"] == 20


def test_a_suite_is_shown_as_it_is_measured() -> None:
    folder = checkpoint.resolve("pretrained:team2")

    def settings(*words: str) -> RunCfg:
        return test._settings(folder, test.make_parser().parse(words))

    shown = settings("--mode", "viewer", "--suite", "team2")
    measured = settings("--suite", "team2")
    assert shown.task == measured.task
    assert shown.env.randomize == measured.env.randomize
    assert (shown.env.num_envs, measured.env.num_envs) == (1, 300)
    assert shown.task.success_radius == 1.0
    assert settings("--mode", "viewer").task.success_radius == 0.5  # as it learned


@pytest.mark.parametrize("name", TEAM_SUITES)
def test_what_a_suite_pushes_does_not_depend_on_the_training(name: str) -> None:
    task = config.load_suite(name).worlds["task"]
    assert "shapes" in task
    assert "object_mass" in task or task["shapes"] is not None


def test_an_unknown_suite_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="--suite: .*team2"):
        config.load_suite("team_2")


def test_suites_are_listed(capsys) -> None:
    assert listing.main(["suites"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == sorted(config.SUITES)


def test_files_of_a_checkout_come_from_that_checkout() -> None:
    assert Path(configs_folder()) == ROOT / "configs"


def test_a_shipped_policy_is_measured_in_the_suite_of_its_name(monkeypatch) -> None:
    played: list[tuple[str | None, str]] = []

    def calculate(cfg, suite, folder, arguments) -> int:
        played.append((suite.name, cfg.task.spawn))
        return 0

    monkeypatch.setattr(test.command, "calculate", calculate)
    for words in ("pretrained:pose", "pretrained:cuboid", "pretrained:pose --suite reference"):
        assert test.main([*words.split(), "--device", "cpu"]) == 0
    assert played == [("pose", "separated"), (None, "separated"), ("reference", "independent")]


def test_a_viewer_without_anything_shows_a_shipped_team(monkeypatch, capsys) -> None:
    shown: list[Path] = []
    monkeypatch.setattr(test.viewing, "watch", lambda cfg, team, *more: shown.append(team) or [])
    assert cli.main(["play", "--device", "cpu"]) == 0
    assert shown == [checkpoint.resolve("pretrained:cuboid")]
    assert capsys.readouterr().out.startswith("pretrained:cuboid, since no CHECKPOINT is named;")
