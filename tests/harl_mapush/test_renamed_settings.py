"""mqe.renamed_settings: settings are still read under their former names."""

from __future__ import annotations

from pathlib import Path

import pytest

from harl_mapush import config
from harl_mapush.algorithms.entries import ALGORITHMS
from harl_mapush.config import other_names
from mqe.config import ConfigError, assignment, with_present_names
from mqe.registry import TASKS
from mqe.renamed_settings import RENAMED, note, with_present_keys


@pytest.fixture(autouse=True)
def fresh() -> None:
    note.cache_clear()


def present_names() -> set[str]:
    classes = [entry.cfg for entry in (*ALGORITHMS.values(), *TASKS.values())]
    sections = ["algorithm"] * len(ALGORITHMS) + ["task"] * len(TASKS)
    found: set[str] = set()
    for section, cls in (*zip(sections, classes, strict=True), *config.SECTION_CLASSES.items()):
        found |= set(other_names.dotted({section: cls}))
    return found


@pytest.mark.parametrize("former", RENAMED)
def test_a_former_name_stands_for_a_setting_that_exists_and_for_none_that_does(former) -> None:
    names = present_names()
    assert RENAMED[former].name in names
    assert former not in names


def test_a_line_names_the_present_setting_once(capsys) -> None:
    for _ in range(2):
        values = with_present_names({"algorithm": {"mirror": True, "gamma": 0.9}, "env": None})
    assert values == {
        "algorithm": {"symmetries": ["mirror"], "gamma": 0.9},
        "env": None,
    }
    written = capsys.readouterr().err
    line = "Note: the setting algorithm.mirror is now called algorithm.symmetries.\n"
    assert written == line


@pytest.mark.parametrize(("former", "present"), [(True, "linear"), (False, "constant")])
def test_a_former_switch_becomes_a_schedule(former: bool, present: str) -> None:
    given = {"algorithm": {"name": "hasac", "use_linear_decay": former}}
    assert config.resolve(given, {})[0].algorithm.schedule == present
    assert config.resolve({"algorithm": {"name": "hasac"}}, given)[0].algorithm.schedule == present
    assert given == {"algorithm": {"name": "hasac", "use_linear_decay": former}}


def test_files_and_assignments_have_present_names(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("algorithm:\n  name: happo\n  symmetry_coef: 0.5\n")
    assert config.load_file(path)["algorithm"] == {"name": "happo", "mirror_loss_coef": 0.5}
    assert assignment("algorithm.symmetry_coef=1") == {"algorithm": {"mirror_loss_coef": 1}}


def test_a_wrong_value_and_both_names_are_errors_of_one_line() -> None:
    with pytest.raises(ConfigError, match="^algorithm.schedule: unknown value 'often'"):
        config.resolve({"algorithm": {"name": "hasac", "use_linear_decay": "often"}}, {})
    both = {"algorithm": {"symmetry_coef": 0.5, "mirror_loss_coef": 0.5}}
    with pytest.raises(ConfigError, match="^algorithm.symmetry_coef is the former name of"):
        config.resolve(both, {})


def test_a_schedule_that_the_other_kind_of_algorithm_has_not_is_left_out() -> None:
    preset = {"algorithm": {"name": "happo", "schedule": "adaptive", "gamma": 0.9}}
    cfg, notices = config.resolve(preset, {"algorithm": {"name": "hasac"}})
    assert (cfg.algorithm.schedule, cfg.algorithm.gamma) == ("constant", 0.9)
    assert notices == ["algorithm.schedule left out: set for happo, unknown to hasac"]


@pytest.mark.parametrize("former", RENAMED)
def test_each_former_name_alone_is_read(former: str) -> None:
    section, key = former.split(".")
    nested = with_present_names({section: {key: None}})
    name_section, name = RENAMED[former].name.split(".")
    assert list(nested[name_section]) == [name]


def test_former_keys_of_a_saved_state_are_read_with_one_line_that_names_the_present_ones(
    capsys,
) -> None:
    state = {"collapse": 1, "teamwork": {"effort": 2, "nearest": 3}, "controller": 4}
    moves = {
        "collapse": "memory/collapse",
        "teamwork/effort": "memory/effort",
        "teamwork/nearest": "memory/nearest",
        "is_reached": "terms/measures.is_reached/is_reached",
    }
    for _ in range(2):
        present = with_present_keys(state, moves)
    assert present == {"controller": 4, "memory": {"collapse": 1, "effort": 2, "nearest": 3}}
    assert capsys.readouterr().err == (
        "Note: the saved state has former names: collapse is now memory/collapse, teamwork/effort "
        "is now memory/effort, teamwork/nearest is now memory/nearest.\n"
    )
    assert with_present_keys({"is_reached": 5}, moves) == {
        "terms": {"measures.is_reached": {"is_reached": 5}}
    }


def test_a_state_under_present_keys_is_left_alone(capsys) -> None:
    state = {"memory": {"collapse": 1}, "terms": {}}
    assert with_present_keys(state, {"collapse": "memory/collapse"}) == state
    assert capsys.readouterr().err == ""


def test_a_removed_setting_is_left_out_with_a_line_where_it_had_an_effect(capsys) -> None:
    section = {"name": "hasac", "model": "none", "ensemble": {"members": 5}, "n_step": 3}
    assert with_present_names({"algorithm": section}) == {
        "algorithm": {"name": "hasac", "n_step": 3}
    }
    assert capsys.readouterr().err == ""
    for _ in range(2):
        cfg, _ = config.resolve({"algorithm": section | {"model": "ensemble"}}, {})
    assert cfg.algorithm.n_step == 3
    assert capsys.readouterr().err.count("algorithm.model=ensemble is no more") == 1
    with pytest.raises(ConfigError, match=r"algorithm.ensemble"):
        config.resolve({"algorithm": {"name": "hasac", "ensemble": {"members": 5}}}, {})
