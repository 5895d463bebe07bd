"""Flags and files of HARL and MAPush at our command lines."""

from __future__ import annotations

import json
import shutil

import pytest

from harl_mapush import config, test, train
from harl_mapush.config.other_names import NAMES, SETTINGS_FILES, TEST_FLAGS, TRAIN_FLAGS
from mqe.pretrained import pretrained_folder
from tests.support.error_lines import error_line
from tests.test_hostile_files import endless


def test_the_flags_are_those_of_harl_of_mapush_and_the_names_of_other_libraries() -> None:
    assert set(SETTINGS_FILES) == {"load_config"}
    common = {"train_timesteps", "headless", "use_tensorboard"}
    of_training = {"log_interval", "num_workers", "run_duration", "env", "model_dir", "object_type"}
    assert set(TRAIN_FLAGS) == common | of_training | set(NAMES)
    assert set(TEST_FLAGS) == common | {"test_mode", "algo", "exp_name", "config"}


@pytest.mark.parametrize(
    ("words", "section", "expected"),
    [
        ("--lr 0.001", "algorithm", {"learning_rate": 0.001, "critic_learning_rate": 0.001}),
        ("--train_timesteps 100000000", "runner", {"num_env_steps": 100000000}),
        ("--episode_length 200", "runner", {"num_steps": 200}),
        ("--log_interval 5", "logger", {"interval": 5}),
        ("--num_workers 4", "runner", {"collectors": 4}),
        ("--run_duration 3600", "runner", {"max_wall_time": "3600s"}),
        ("--headless", "env", {}),
        ("--headless True --use_tensorboard", "env", {}),
    ],
)
def test_flags_of_harl_and_mapush_do_what_they_ask(words, section, expected, capsys) -> None:
    parser = train.make_parser()
    arguments = parser.parse(["--num_envs", "500", *words.split()])
    values = config.flag_values(arguments)
    assert values == {"env": {"num_envs": 500}} | ({section: expected} if expected else {})
    said = capsys.readouterr().err
    assert said.count("\n") == bool(expected)
    for key, value in expected.items():
        assert f"--set {section}.{key}={value}" in said
    assert words.split()[0] not in parser.format_help()


def test_our_own_flag_wins_over_another_librarys() -> None:
    arguments = train.make_parser().parse(["--lr", "1", "--set", "algorithm.learning_rate=2"])
    assert config.flag_values(arguments)["algorithm"]["learning_rate"] == 2


def test_the_line_of_mapushs_test_measures_a_team() -> None:
    line = (
        "--algo ppo --task go1push_mid --train_timesteps 100000000 --num_envs 2 --use_tensorboard "
        "--headless --seed 1 --exp_name cuboid --test_mode calculator "
        "--checkpoint pretrained:cuboid"
    )
    arguments = test.make_parser().parse(line.split())
    assert (arguments.mode, arguments.team) == ("calculator", "pretrained:cuboid")
    values = config.flag_values(arguments)
    assert values == {
        "task": {"name": "go1push_mid"},
        "env": {"num_envs": 2},
        "runner": {"seed": 1},
    }
    said = [note.split(" ")[1] for note in arguments.notes]
    assert said == ["--algo", "--train_timesteps", "--exp_name"]


def test_the_mode_of_mapushs_test_is_ours() -> None:
    assert test.make_parser().parse([]).mode is None
    assert test.make_parser().parse(["--test_mode", "viewer"]).mode == "viewer"
    assert test.make_parser().parse(["--headless", "pretrained:cuboid"]).team == "pretrained:cuboid"


def test_a_duration_with_a_unit_stays_as_it_was_given() -> None:
    arguments = train.make_parser().parse(["--run_duration", "30m"])
    assert config.flag_values(arguments)["runner"] == {"max_wall_time": "30m"}


def test_a_file_of_openrl_is_said_to_be_one(tmp_path, capsys) -> None:
    path = tmp_path / "ppo.yaml"
    path.write_text("lr: 5.0e-4\ncritic_lr: 5.0e-4\nepisode_length: 200\n")
    assert train.main(["--config", str(path)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "files of other libraries are read by --load_config FILE" in said


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 100_000, '{"train": {"lr": ' + "9" * 5000 + "}}"]
)
def test_a_file_of_harl_that_is_none(text: str, tmp_path, capsys) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    assert train.main(["--load_config", str(path)]) == 2
    assert str(path) in error_line(capsys)


def test_a_flag_that_is_nonsense_in_a_run_of_harl(tmp_path, capsys) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"algo": {"gamma": 0.9}, "train": {}, "model": {}})
    )
    assert (
        train.main(["--load_config", str(tmp_path / "config.json"), "--set", "algorithm.name=[a]"])
        == 2
    )
    assert "algorithm.name: must be a string, not ['a']" in error_line(capsys)


def test_a_resume_reads_no_file_of_another_library(tmp_path, capsys) -> None:
    assert train.main(["--resume", str(tmp_path), "--load_config", "x.yaml"]) == 2
    line = error_line(capsys)
    assert "--load_config" in line
    assert "leave it out" in line


@pytest.mark.parametrize("kind", ["pipe", "device", "16 GiB"])
def test_a_file_that_never_ends_is_refused(kind: str, tmp_path, capsys) -> None:
    base = endless(tmp_path / "base.yaml", kind)
    assert train.main(["--load_config", str(base)]) == 2
    assert "larger than 16 MiB" in (line := error_line(capsys)) or "a pipe, socket or" in line


def test_a_folder_without_settings_may_be_harls(tmp_path, capsys) -> None:
    shutil.copy(pretrained_folder("cuboid") / "actor_agent0.pt", tmp_path)
    assert test.main([str(tmp_path)]) == 2
    assert "it lacks config.yaml or HARL's config.json" in error_line(capsys)
