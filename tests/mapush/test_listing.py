"""Lists of members and settings, names from other libraries, and runs started from existing
ones.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
import torch

from harl_mapush import config, train
from harl_mapush.algorithms.entries import ALGORITHMS
from harl_mapush.algorithms.off_policy import OffPolicy
from harl_mapush.callbacks.curves import Curves
from harl_mapush.config import other_names
from harl_mapush.runs import run_folder
from harl_mapush.runs.checkpoint import actor_file
from harl_mapush.runs.run_folder import last_checkpoint
from mapush import cli, listing
from mqe.config import load_yaml
from mqe.pretrained import pretrained_folder, summaries
from mqe.registry import TASKS
from mqe.tasks.push.rewards import REWARDS
from mqe.world.randomization import RandomizationCfg
from tests.support.rounding import FEW_STEPS
from tests.support.tiny_runs import OF_ANY_ALGORITHM, SMALL, TINY

SIZES = ("--num_env_steps", "1", "--set", "task.decision_period=1")


@pytest.fixture(scope="module")
def run(gait, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("list") / "run"
    assert train.main([*TINY, *SIZES, "--set", f"task.gait={gait}", "--out", str(out)]) == 0
    return out


def test_a_run_starts_with_the_networks_of_another(run, gait, tmp_path, capsys) -> None:
    still = (
        "--set",
        "algorithm.learning_rate=1e-30",
        "--set",
        "algorithm.schedule=constant",
        "--set",
        "runner.seed=9",
    )
    more = (
        "--set",
        "algorithm.critic_learning_rate=1e-30",
        "--set",
        f"task.gait={gait}",
        "--num_envs",
        "4",
    )
    # Neither a network nor its size is named: it is that of the run that it starts from.
    argv = [
        "--init_from",
        str(run),
        *SIZES,
        *still,
        *more,
        "--set",
        "runner.num_steps=4",
        "--out",
        str(tmp_path / "on"),
    ]
    assert train.main(argv) == 0
    assert "Starts with the actors and the critic of" in capsys.readouterr().out
    old = last_checkpoint(run)
    new = last_checkpoint(tmp_path / "on")
    assert old is not None
    assert new is not None
    for name in (actor_file(0), actor_file(1), "critic_agent.pt"):
        before = torch.load(old / name)
        after = torch.load(new / name)
        for key, value in before.items():
            # Follows the spread of the returns, whatever the learning rate.
            if key.startswith("v_out"):
                continue
            torch.testing.assert_close(after[key], value, rtol=0, atol=FEW_STEPS)
    assert load_yaml(new / "config.yaml")["runner"]["init_from"] == str(run)


def test_a_run_says_by_name_which_shipped_team_it_starts_from(tmp_path, capsys) -> None:
    sizes = ("--num_envs", "2", "--num_env_steps", "20", "--set", "runner.num_steps=2")
    argv = ["--preset", "smoke", "--algo", "hasac", *sizes, "--out", str(tmp_path / "run")]
    assert train.main([*argv, "--init_from", "pretrained:team2", "--device", "cpu"]) == 0
    line = "Starts with the actors of pretrained:team2"
    assert line in capsys.readouterr().out


@pytest.mark.slow
def test_a_team_of_any_size_starts_larger_teams_and_new_critics_learn_first(
    tmp_path, capsys
) -> None:
    argv = [
        "--preset",
        "laptop_any",
        "--num_agents",
        "2",
        "--num_envs",
        "2",
    ]
    argv += ["--num_env_steps", "8", "--set", "runner.num_steps=2", "--init_from", "pretrained:any"]
    argv += ["--set", "algorithm.warmup=2", "--set", "algorithm.update_ratio=1"]
    argv += ["--set", "algorithm.batch_size=8"]
    assert train.main([*argv, "--out", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    assert "Note: algorithm.critic_warmup=3000, since pretrained:any has no critic; --set" in said
    run = last_checkpoint(tmp_path / "run")
    assert run is not None
    assert load_yaml(run / "config.yaml")["algorithm"]["critic_warmup"] == 3000
    shipped = torch.load(pretrained_folder("any") / actor_file(0))
    for k in range(2):
        actor = torch.load(run / actor_file(k))
        assert all(torch.equal(actor[key], value.float()) for key, value in shipped.items())
    soon = ["--set", "algorithm.critic_warmup=1", "--out", str(tmp_path / "soon")]
    assert train.main([*argv, *soon]) == 0
    assert "critic_warmup" not in capsys.readouterr().out
    moved = last_checkpoint(tmp_path / "soon")
    assert moved is not None
    actor = torch.load(moved / actor_file(0))
    assert not all(torch.equal(actor[key], value.float()) for key, value in shipped.items())


@pytest.mark.slow
def test_a_larger_team_starts_from_a_run_that_stores_an_actor_for_each_robot(
    tmp_path, capsys
) -> None:
    argv = ["--preset", "laptop_any", "--num_envs", "2"]
    argv += ["--num_env_steps", "4", "--set", "runner.num_steps=2"]
    first = tmp_path / "first"
    assert train.main([*argv, "--num_agents", "2", "--out", str(first)]) == 0
    capsys.readouterr()
    start = ["--num_agents", "3", "--init_from", str(first), "--out", str(tmp_path / "second")]
    assert train.main([*argv, *start]) == 0
    assert "Starts with the actors and the critic of" in capsys.readouterr().out


def test_a_run_observes_and_commands_as_the_one_it_starts_from_and_reports_it(
    run, gait, tmp_path, capsys
) -> None:
    other = (
        "--set",
        "runner.num_steps=4",
        "--set",
        f"task.gait={gait}",
        "--num_envs",
        "4",
        "--num_env_steps",
        "1",
    )
    sees = ("--set", "task.decision_period=2", "--set", "task.observation=reference")
    first = tmp_path / "first"
    second = tmp_path / "second"
    assert train.main([*TINY, *other, *sees, "--algo", "ippo", "--out", str(first)]) == 0
    capsys.readouterr()
    # HAPPO's critic sees the whole state and IPPO's an observation: the new run has one of its own.
    assert train.main([*TINY, *other, "--init_from", str(first), "--out", str(second)]) == 0
    said = capsys.readouterr().out
    changed = "task.observation=reference, task.decision_period=2"
    assert f"Note: {changed}, as in the training of {first}; --set changes it" in said
    assert "Starts with the actors of" in said
    assert "and with a new critic" in said
    task = load_yaml(second / "config.yaml")["task"]
    assert (task["observation"], task["decision_period"]) == ("reference", 2)
    third = tmp_path / "third"
    more = ("--set", "task.decision_period=1")
    assert train.main([*TINY, *other, *more, "--init_from", str(first), "--out", str(third)]) == 0
    # The notice names what is taken over, and not what the user has set otherwise.
    said = capsys.readouterr().out
    assert f"Note: task.observation=reference, as in the training of {first}" in said
    assert load_yaml(third / "config.yaml")["task"]["decision_period"] == 1


def test_each_robot_keeps_an_actor_of_its_own_where_it_had_one(gait, tmp_path, capsys) -> None:
    argv = [*SMALL, *SIZES, "--set", f"task.gait={gait}"]
    first = tmp_path / "first"
    second = tmp_path / "second"
    assert train.main([*argv, "--set", "algorithm.share_param=false", "--out", str(first)]) == 0
    capsys.readouterr()
    assert (
        train.main(
            [*argv, "--set", "runner.num_steps=4", "--init_from", str(first), "--out", str(second)]
        )
        == 0
    )
    assert (
        f"Note: algorithm.share_param=false, as in the training of {first}"
        in capsys.readouterr().out
    )
    assert load_yaml(second / "config.yaml")["algorithm"]["share_param"] is False
    share = ("--set", "algorithm.share_param=true", "--init_from", str(first))
    assert train.main([*argv, *share, "--out", str(tmp_path / "third")]) == 2
    assert (
        "has an actor of its own for each robot, and this run has one for all; use --set"
        in capsys.readouterr().err
    )


def test_an_off_policy_run_acts_at_random_at_first_unless_it_starts_from_a_team(
    gait, tmp_path, monkeypatch
) -> None:
    num_random = []
    at_random = OffPolicy.act_untrained

    def counted(team: OffPolicy, obs: torch.Tensor) -> torch.Tensor:
        num_random.append(len(obs))
        return at_random(team, obs)

    monkeypatch.setattr(OffPolicy, "act_untrained", counted)
    argv = [
        *OF_ANY_ALGORITHM,
        *SIZES[:2],
        "--set",
        f"task.gait={gait}",
        "--algo",
        "hasac",
        "--num_env_steps",
        "16",
    ]
    first = str(tmp_path / "first")
    second = str(tmp_path / "second")
    assert train.main([*argv, "--out", first]) == 0
    assert num_random
    num_random.clear()
    assert train.main([*argv, "--init_from", first, "--out", second]) == 0
    assert train.main(["--resume", second, "--num_env_steps", "32"]) == 0
    assert not num_random


@pytest.mark.parametrize(
    "argv, words",
    [
        (
            ("--init_from", "RUN", "--num_agents", "3"),
            "this run has 3; train such a team with --num_agents 2 and",
        ),
        (
            ("--init_from", "RUN", "--set", "task.observation=reference"),
            "the settings that it was trained with are in its own",
        ),
        (
            ("--init_from", "RUN", "--algo", "hasac"),
            "it learned with --algo happo --set algorithm.compat=mapush",
        ),
        (
            ("--init_from", "RUN", "--task", "walking"),
            "and this run trains walking; start from a checkpoint of walking",
        ),
    ],
)
def test_networks_that_do_not_fit_are_one_line(
    run, gait, walking, tmp_path, capsys, argv, words
) -> None:
    argv = [str(run) if word == "RUN" else word for word in argv]
    gaits = () if "walking" in argv else ("--set", f"task.gait={gait}")
    capsys.readouterr()
    assert (
        train.main([*OF_ANY_ALGORITHM, *SIZES[:2], *argv, *gaits, "--out", str(tmp_path / "on")])
        == 2
    )
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not (tmp_path / "on").exists()


def test_runs_and_what_comes_along_are_listed(run, tmp_path, capsys) -> None:
    assert cli.main(["list", str(run.parent)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{run}: cuboid, happo, seed 1; success none yet; checkpoints 16"
    assert all(summaries().values())
    policies = dict(line.split(maxsplit=1) for line in lines if line.startswith("pretrained:"))
    assert policies["pretrained:cuboid"] == "team of 2 go1 for the cuboid"
    assert policies["pretrained:team2"] == "team of 2 go1 for the cuboid of 18 kg"
    assert policies["pretrained:any"] == "team of 1 to 8 go1 for shapes that slide at 10 to 240 N"
    assert policies["pretrained:team2"] == "team of 2 go1 for the cuboid of 18 kg"
    pose = "team of 1 to 8 go1 for shapes that slide at 8 to 20 N, to a place and a heading"
    assert policies["pretrained:pose"] == pose
    assert policies["pretrained:leader"] == "leader of pretrained:team2 in maps of the kind doors"
    assert policies["pretrained:go2_push"] == "gait of a go2, physical model"
    assert cli.main(["list", str(tmp_path / "none")]) == 2


def test_a_run_is_listed_with_its_last_success(tmp_path, capsys) -> None:
    (tmp_path / "checkpoints").mkdir()
    run_folder.write_config(tmp_path, "algorithm:\n  name: happo\n")
    points = Curves(tmp_path, lambda line: None)
    for env_steps, success in ((100, 0.25), (200, 0.5)):
        points.add({"mapush/success_rate": success}, env_steps)
    points.flush()
    assert cli.main(["list", str(tmp_path)]) == 0
    assert "success 0.500" in capsys.readouterr().out
    (tmp_path / "events.out.tfevents.9").symlink_to("/dev/zero")
    assert cli.main(["list", str(tmp_path)]) == 0
    assert "success none yet" in capsys.readouterr().out


def test_a_folder_without_runs_is_told_from_another_folder(tmp_path, capsys) -> None:
    assert cli.main(["list", str(tmp_path)]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first == f"No runs in {tmp_path}; mapush list FOLDER looks in another folder."


def test_presets_are_listed_with_the_first_sentence_about_them(capsys) -> None:
    assert cli.main(["list", "presets"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert list(lines) == sorted(config.PRESETS)
    assert (
        lines["laptop"] == "The box, two robots, HAPPO on two CPU cores, 8 M env steps, 20 minutes"
    )


def test_every_setting_is_listed_with_its_default() -> None:
    names = [line.split()[0] for line in listing.setting_lines()]
    assert set(other_names.dotted(config.all_classes())) <= set(names)
    assert "env.num_envs = 256  (min 1, max 1000000000)  parallel worlds" in listing.setting_lines()


def test_every_setting_has_a_help_text() -> None:
    entries = [entry.cfg for registry in (ALGORITHMS, TASKS) for entry in registry.values()]
    for cls in [*config.SECTION_CLASSES.values(), *entries, RandomizationCfg]:
        assert not [
            f"{cls.__name__}.{field.name}"
            for field in fields(cls)
            if not field.metadata.get("help")
        ]


def test_the_terms_of_the_rewards_are_settings_too(capsys) -> None:
    assert cli.main(["settings", "task.weights."]) == 0
    lines = dict(
        line.split(" = ", 1)
        for line in capsys.readouterr().out.splitlines()
        if line.endswith("[go1push_mid]")
    )
    assert set(lines) == {f"task.weights.{name}" for name in REWARDS}
    assert lines["task.weights.reach"] == "20.0  1 once, at success  [go1push_mid]"


def test_settings_without_a_word_are_all(capsys) -> None:
    assert cli.main(["settings"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == listing.setting_lines()
    assert len({line.split()[0] for line in lines}) > 150


def test_settings_are_found_by_name_and_meaning(capsys) -> None:
    assert cli.main(["settings", "every trunk's velocity"]) == 0
    assert capsys.readouterr().out.startswith("env.randomize.kick_speed = 0.0")
    assert cli.main(["settings", "clip_parm"]) == 2
    assert "did you mean algorithm.clip_param?" in capsys.readouterr().err


def test_lines_fit_into_the_terminal(monkeypatch, capsys) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert cli.main(["settings", "clip_param"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("algorithm.clip_param = 0.2  (min 0.0001, max 100.0)  PPO clipping")
    assert len(lines) > 1
    assert all(len(line) <= 80 for line in lines)


def test_a_suggestion_is_near_or_missing(capsys) -> None:
    assert cli.main(["settings", "nothing at all"]) == 2
    error = capsys.readouterr().err
    assert "no setting's line contains 'nothing at all'; mapush settings lists them all" in error
    assert cli.main(["list", "suits"]) == 2
    assert "suits is no folder; did you mean suites?" in capsys.readouterr().err
    assert cli.main(["nothing"]) == 2
    assert "did you mean" not in capsys.readouterr().err
    assert train.main(["--logging", "3"]) == 2
    error = capsys.readouterr().err
    assert "unknown argument '--logging' (allowed: --help," in error


@pytest.mark.parametrize(
    "argv, words",
    [
        (("--max_iterations", "3"), "say --num_env_steps ENV_STEPS (iterations x runner.num_steps"),
        # The fork's: intervals of rollouts, and of episodes.
        (("--eval_interval", "25"), "say mapush test RUN --all_checkpoints"),
        (("--save_interval", "50"), "say --set runner.checkpoint_interval=ENV_STEPS (env steps"),
        (("--warmup_episodes", "2"), "say --set algorithm.warmup=TRANSITIONS (transitions"),
        (("--record_video",), "to film a team say mapush play CHECKPOINT --record FILE"),
        (("--cuda-debug",), "to find a fault on a GPU say CUDA_LAUNCH_BLOCKING=1 mapush doctor"),
        (
            ("--clip_param=0.1",),
            "there is no --clip_param here; say --set algorithm.clip_param=VALUE",
        ),
        (("--kick-speed", "1"), "say --set env.randomize.kick_speed=VALUE"),
        (("--sed", "3"), "did you mean --seed?"),
        (("--object", "crate"), "); one of your own needs --import MODULE"),
        (("--set", "task.weights.looking=1"), "); one of your own needs --import MODULE"),
        (
            ("--set", "task.more_metrics=[object_speed]"),
            "); one of your own needs --import MODULE",
        ),
        (
            ("--set", "task.rewards=own"),
            "unknown value 'own' (allowed: published, repo, default)\n",
        ),
        (
            ("--init_from", "nothing"),
            "runner.init_from (--init_from): checkpoint 'nothing' does not exist",
        ),
    ],
)
def test_names_of_other_libraries_are_answered(capsys, argv, words) -> None:
    assert train.main(list(argv)) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_what_is_suggested_exists() -> None:
    settings = other_names.dotted(config.all_classes())
    for entry in ALGORITHMS.values():
        settings |= other_names.dotted({"algorithm": entry.cfg})
    assert set(other_names.NAMES.values()) <= set(settings)
    assert not {f"{key.partition('.')[0]}.{name}" for name, key in other_names.NAMES.items()} & set(
        settings
    )


def test_a_run_of_which_nothing_may_be_read_does_not_hide_the_others(
    run, capsys, monkeypatch
) -> None:
    def refuse(folder: Path) -> list[tuple[int, Path]]:
        raise PermissionError(13, "Permission denied", str(folder / "checkpoints"))

    monkeypatch.setattr(run_folder, "checkpoints", refuse)
    assert cli.main(["list", str(run.parent)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{run}: cuboid, happo, seed 1; ")
    assert "cannot be read (Permission denied)" in " ".join(lines[:3])
    assert any(line.startswith("pretrained:cuboid ") for line in lines)
