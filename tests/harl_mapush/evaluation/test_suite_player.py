"""The player of suites: conditions, comparisons, and errors before anything is played."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harl_mapush import config, test
from harl_mapush.evaluation import suite_player
from harl_mapush.evaluation.episodes import Request
from harl_mapush.runs import checkpoint, evaluation_worlds
from mqe.config import merge
from mqe.registry import TASKS

KNOWN = {
    "success_rate",
    "success_ci95",
    "success_rate_spawned",
    "time_given_success_s",
    "fall_rate",
    "collision_rate",
    "collapse_rate",
    "tangle_rate",
    "timeout_rate",
    "num_broken",
    "lesser_contact_share",
    "contact_share_agent0",
    "num_episodes",
    "condition",
    "seeds",
}
ROBUSTNESS = config.measured_suite("go1push_mid", "robustness")
SUITE = ("--suite", "robustness")


def worlds(condition: str) -> dict:
    """Return a condition's settings in the ``robustness`` suite."""
    return merge(ROBUSTNESS.worlds, ROBUSTNESS.conditions[condition])


def test_every_condition_is_a_setting_for_a_training() -> None:
    seen = [config.resolve(ROBUSTNESS.worlds, {})[0]]
    for name in ROBUSTNESS.conditions:
        cfg, notices = config.resolve({}, worlds(name))
        assert notices == []
        assert cfg not in seen[1:]  # no two are the same
        seen.append(cfg)


def test_a_preset_s_harder_episodes_are_measured_as_usual() -> None:
    """Whatever setting of episodes a preset changes, the default suite has its usual value."""
    # Settings of a team rather than of its episodes
    of_team = {
        "name",
        "object",
        "object_mass",
        "shapes",
        "shape_force",
        "shape_kinds",
        "action_scale",
        "keep_apart",
        "goal_heading",
        "decision_period",
        "observation",
        "more_observations",
        "more_state",
        "replaced_observations",
        "senses",
        "weights",
        "rewards",
    }
    tasks = [config.load_preset(name)["task"] for name in sorted(config.PRESETS)]
    changed = {key for task in tasks if task["name"] == "go1push_mid" for key in task} - of_team
    assert {"episode_length_s", "success_radius", "goal_distance"} <= changed
    usual = config.measured_suite("go1push_mid", None).worlds["task"]
    assert changed <= set(usual)
    cfg = TASKS["go1push_mid"].cfg()
    for key in changed:
        value = getattr(cfg, key)
        assert usual[key] == (list(value) if isinstance(value, tuple) else value)


def test_a_condition_changes_its_own_settings_and_nothing_else() -> None:
    folder = checkpoint.resolve("pretrained:cuboid")
    apart = evaluation_worlds.settings(folder, worlds("separated"))
    assert apart.task.spawn == "separated"
    assert apart.task.goal_distance == (1.5, 3.0)
    assert apart.env.randomize.object_mass == 1.0
    heavy = evaluation_worlds.settings(folder, worlds("mass x4"))
    assert heavy.task == apart.task
    assert heavy.env.randomize.object_mass == 4.0
    assert heavy.env.randomize.object_friction == 1.0
    late = evaluation_worlds.settings(folder, worlds("command and joints 20 ms late"))
    assert late.env.randomize.action_latency == 0.02
    assert late.env.randomize.command_latency == 0.02


def test_conditions_change_the_worlds_of_another_suite(monkeypatch) -> None:
    measured = []

    def measure(request):
        measured.append(request.cfg)
        return {"success_rate": 1.0, "success_ci95": [0.9, 1.0]}

    monkeypatch.setattr(suite_player, "measure", measure)
    words = ["pretrained:team2", "--suite", "pose,robustness", "--device", "cpu", "--only"]
    assert test.main([*words, "separated", "independent", "within 0.5 m", "mass x2"]) == 0
    apart, independent, within, heavy = measured
    assert (apart.task.spawn, independent.task.spawn) == ("separated", "independent")
    assert [cfg.task.success_radius for cfg in measured] == [0.1, 0.1, 0.5, 0.1]
    assert [cfg.task.success_rest_s for cfg in measured] == [2.0] * 4
    assert (heavy.env.randomize.object_mass, apart.env.randomize.object_mass) == (2.0, 1.0)
    assert within.task.spawn == "separated"
    same = ["mass x2", "--set", "env.randomize.object_mass=2"]
    assert test.main([*words, *same]) == 0
    assert measured[-1] == heavy


def test_a_suite_of_ones_own_has_conditions_in_every_file(tmp_path, capsys) -> None:
    suite = tmp_path / "mine.yaml"
    suite.write_text(
        "task: {episode_length_s: 0.2}\n"
        "watchers: [pushing]\n"
        "seeds: [1, 2]\n"
        "episodes: 1\n"
        "conditions:\n"
        "  apart: {task: {spawn: separated}}\n"
        "  heavy: {env: {randomize: {object_mass: 2.0}}}\n"
    )
    rows, table = (tmp_path / name for name in ("r.json", "r.csv"))
    words = ["pretrained:cuboid", "--suite", str(suite), "--device", "cpu"]
    words += ["--json", str(rows), "--csv", str(table)]
    assert test.main(words) == 0
    conditions = json.loads(rows.read_text())
    assert [(row["condition"], row["num_episodes"], row["seeds"]) for row in conditions] == [
        ("apart", 2, [1, 2]),
        ("heavy", 2, [1, 2]),
    ]
    assert all(set(row) >= {*KNOWN, "lesser_useful_share"} for row in conditions)
    assert len(table.read_text().splitlines()) == 3
    out = capsys.readouterr().out
    assert "n = 2 for each condition" in out
    assert "0.000 (0.000 to 0.658)" in out


def test_a_pose_is_asked_of_a_team_as_it_was_trained() -> None:
    over = worlds("within 0.1 m and 10 degrees")
    cfg = evaluation_worlds.settings(checkpoint.resolve("pretrained:tblock"), over)
    assert (cfg.task.success_radius, cfg.task.success_heading) == (0.1, 0.1745)
    assert not cfg.task.is_heading_observed  # it learned without


def test_the_strict_suite_continues_after_success(tmp_path) -> None:
    figures = tmp_path / "figures.json"
    words = ["pretrained:cuboid", "--suite", "strict", "--team_only", "--num_episodes", "1"]
    words += ["--device", "cpu", "--set", "task.episode_length_s=0.2", "--json", str(figures)]
    assert test.main(words) == 0
    metrics = json.loads(figures.read_text())
    assert {"end_distance_m", "lesser_useful_share"} <= set(metrics)
    suite = config.measured_suite("go1push_mid", "strict")
    assert suite.worlds["task"]["success_ends"] is False
    assert suite.worlds["task"]["success_radius"] == 1.0  # of the default suite


@pytest.mark.compared
def test_one_robot_is_not_compared_with_none(tmp_path, capsys) -> None:
    suite = tmp_path / "alone.yaml"
    suite.write_text("policies: [one_fewer]\nenv: {num_agents: 1}\n")
    words = ["--policy", "scripted_team", "--suite", str(suite), "--num_episodes", "1"]
    assert test.main([*words, "--device", "cpu", "--set", "task.episode_length_s=0.2"]) == 0
    assert "one_fewer" not in capsys.readouterr().out


@pytest.mark.compared
def test_one_robot_fewer_plays_the_same_starts(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(suite_player, "NUM_COMPARED", 2)
    suite = tmp_path / "fewer.yaml"
    suite.write_text("policies: [one_fewer]\nenv: {num_agents: 3}\n")
    figures = tmp_path / "figures.json"
    words = ["--suite", str(suite), "--num_episodes", "3", "--device", "cpu", "--json"]
    words += [str(figures), "--set", "task.episode_length_s=0.2"]
    assert test.main(["pretrained:any", *words]) == 0
    compared = json.loads(figures.read_text())["baselines"]
    assert compared == {
        "one_fewer": {
            "success_rate": 0.0,
            "success_ci95": compared["one_fewer"]["success_ci95"],
            "num_episodes": 2,
        }
    }
    words += ["--set", "env.robots=[go2,go1,go2]"]
    teams = []
    request_of = suite_player.Player._other

    def other(player: suite_player.Player, request: Request, policy: str) -> Request:
        played = request_of(player, request, policy)
        teams.append(played.cfg.env.robots)
        return played

    monkeypatch.setattr(suite_player.Player, "_other", other)
    assert test.main(["pretrained:any", *words]) == 0
    compared = json.loads(figures.read_text())["baselines"]
    assert list(compared) == ["without go2", "without go1"]
    assert teams == [("go1", "go2"), ("go2", "go2")]
    suite.write_text("policies: [one_fewer]\n")
    assert test.main(["pretrained:cuboid", *words[:-2]]) == 0  # it acts in teams of two only
    assert "baselines" not in json.loads(figures.read_text())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--suite robustness --only mas", "unknown condition 'mas'"),
        ("--only separated", "the suite has no conditions"),
        ("--suite robustness --all_checkpoints", "suite robustness has conditions"),
        (
            "--suite robustness --only separated independent --set task.spawn=separated",
            "task.spawn=separated: condition 'independent' sets independent; leave it out",
        ),
        (
            "--suite robustness --set env.randomize.object_mass=2",
            "condition 'mass x0.5' sets 0.5; leave it out",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_played(
    words: str, message: str, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(suite_player, "measure", lambda *_: pytest.fail("played"))
    assert test.main(["pretrained:cuboid", *words.split()]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("watcher: [pushing]", "watcher'; did you mean suite"),
        ("watchers: pushing", "watchers: must be a list of strings, not 'pushing'"),
        ("watchers: [pushin]", "watchers: unknown value 'pushin'"),
        ("seeds: [a]", "seeds[0]: must be a whole number, not 'a'"),
        ("episodes: 0", "episodes: must be at least 1, not 0"),
        ("conditions: [a]", "conditions: must be a section of keys, not ['a']"),
        ("task: {success_radius: far}", "task.success_radius"),
        ("conditions: {a: {env: {num_envs: none}}}", "env.num_envs"),
        ("examination: knee", "unknown examination 'knee'"),
    ],
)
def test_a_file_that_is_no_suite_is_refused(text: str, message: str, tmp_path: Path, capsys):
    path = tmp_path / "suite.yaml"
    path.write_text(text + "\n")
    assert test.main(["pretrained:cuboid", "--suite", str(path)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
