"""``mapush robustness``: what it asks for, and the lines that it writes."""

from __future__ import annotations

import json

import pytest

from harl_mapush import config
from harl_mapush.runs import checkpoint, evaluation_worlds
from mapush import robustness
from mqe.registry import TASKS
from mqe.tasks.push import APART

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
    "goal_direction_chi2",
    "lesser_contact_share",
    "num_episodes",
    "contact_shares",
    "part",
    "checkpoint",
    "condition",
    "seeds",
}


@pytest.mark.parametrize("task", [name for name, entry in TASKS.items() if entry.conditions])
def test_every_condition_is_a_setting_that_one_can_train_with(task: str) -> None:
    plain, _ = config.resolve({"task": {"name": task}}, {})
    seen = [plain]
    for content in TASKS[task].conditions.values():
        cfg, notices = config.resolve({"task": {"name": task}}, content)
        assert notices == []
        assert cfg not in seen[1:]  # no two are the same
        seen.append(cfg)


def test_what_a_preset_makes_harder_is_measured_as_usual() -> None:
    """Whatever setting of episodes a preset changes, every measurement sets it to its usual
    value.
    """
    # What a team is, not what it meets.
    kept = {
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
        "weights",
        "rewards",
    }
    tasks = [config.load_preset(name)["task"] for name in config.presets()]
    changed = {key for task in tasks if task["name"] == "go1push_mid" for key in task} - kept
    assert {"episode_length_s", "success_radius", "goal_distance"} <= changed
    push = TASKS["go1push_mid"]
    assert changed <= set(push.evaluation)
    assert changed <= set(push.conditions["separated"]["task"])


def test_conditions_change_what_they_say_and_nothing_else() -> None:
    folder = checkpoint.resolve("pretrained:cuboid")
    conditions = TASKS["go1push_mid"].conditions
    apart = evaluation_worlds.settings(folder, conditions["separated"])
    assert (apart.task.spawn, apart.task.goal_distance, apart.env.randomize.object_mass) == (
        "separated",
        (1.5, 3.0),
        1.0,
    )
    heavy = evaluation_worlds.settings(folder, conditions["mass x4"])
    assert heavy.task == apart.task
    assert heavy.env.randomize.object_mass == 4.0
    assert heavy.env.randomize.object_friction == 1.0
    late = evaluation_worlds.settings(
        folder, conditions["command and joints 20 ms late"]
    ).env.randomize
    assert (late.action_latency, late.command_latency) == (0.02, 0.02)


def test_in_a_suite_a_condition_changes_what_is_its_own(monkeypatch) -> None:
    seen = []

    def measured(requests, num_workers, say):
        seen.extend(request.cfg for request in requests)
        return iter(())

    monkeypatch.setattr(robustness, "measure_all", measured)
    words = ["pretrained:team2", "--suite", "pose", "--device", "cpu", "--only"]
    names = ["separated", "independent", "within 0.5 m", "mass x2"]
    with pytest.raises(ValueError, match="zip"):
        robustness.main([*words, *names])
    apart, independent, within, heavy = seen
    assert [cfg.task.spawn for cfg in seen] == [
        "separated",
        "independent",
        "separated",
        "separated",
    ]
    assert [cfg.task.success_radius for cfg in seen] == [0.1, 0.1, 0.5, 0.1]
    assert [cfg.task.success_rest_s for cfg in seen] == [2.0] * 4
    assert (heavy.env.randomize.object_mass, apart.env.randomize.object_mass) == (2.0, 1.0)


def test_a_line_a_condition_with_the_keys_that_are_known(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setitem(APART, "episode_length_s", 0.2)
    lines, table, figure = (tmp_path / name for name in ("r.jsonl", "r.csv", "r.svg"))
    words = [
        "--only",
        "separated",
        "mass x2",
        "--num_episodes",
        "1",
        "--seeds",
        "1",
        "2",
        "--device",
        "cpu",
    ]
    words += ["--json", str(lines), "--csv", str(table), "--figure", str(figure)]
    assert robustness.main(["pretrained:cuboid", *words]) == 0
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [(row["condition"], row["num_episodes"], row["seeds"]) for row in rows] == [
        ("separated", 2, [1, 2]),
        ("mass x2", 2, [1, 2]),
    ]
    assert all(set(row) >= KNOWN and "per_seed" not in row for row in rows)
    assert len(table.read_text().splitlines()) == 3
    assert "mass x2" in figure.read_text()
    out = capsys.readouterr().out
    assert "n = 2 per condition" in out
    assert "0.000 (0.000 to 0.658)" in out


def test_conditions_without_a_failure_are_one_line(capsys, monkeypatch) -> None:
    rates = {"separated": 1.0, "mass x2": 0.5, "mass x3": 1.0}

    def measured(requests, num_workers, say):
        for value in rates.values():
            yield {"success_rate": value, "success_ci95": [value - 0.1, value]}

    monkeypatch.setattr(robustness, "measure_all", measured)
    assert robustness.main(["pretrained:cuboid", "--only", *rates]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert lines == [
        "  mass x2                         0.500 (0.400 to 0.500)",
        "  2 conditions                    1.000 (0.900 to 1.000): separated, mass x3",
    ]


def test_a_pose_is_asked_of_a_team_as_it_was_trained() -> None:
    over = TASKS["go1push_mid"].conditions["within 0.1 m and 10 degrees"]
    cfg = evaluation_worlds.settings(checkpoint.resolve("pretrained:tblock"), over)
    assert (cfg.task.success_radius, cfg.task.success_heading) == (0.1, 0.1745)
    assert not cfg.task.is_heading_observed  # it learned without


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("pretrained:cuboid --only mas", "unknown condition 'mas'"),
        ("pretrained:go1_velocity", "defines no conditions"),
        ("pretrained:nothing", "unknown pretrained policy"),
        ("pretrained:cuboid --seeds 1 1", "different whole numbers"),
        ("pretrained:cuboid --figure a.txt", "must end in"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(words: str, message: str, capsys) -> None:
    assert robustness.main(words.split()) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("pretrained:cuboid pretrained:nosuch", "unknown pretrained policy 'nosuch'"),
        (
            "pretrained:cuboid pretrained:go1_velocity",
            "defines no conditions for mapush robustness",
        ),
        (
            "pretrained:cuboid --set runner.seed=4",
            "runner.seed and --seeds exclude each other",
        ),
        (
            "pretrained:cuboid --only separated --set task.spawn=independent",
            "task.spawn=independent: condition 'separated' sets separated; leave it out",
        ),
        (
            "pretrained:cuboid --set env.randomize.object_mass=2",
            "condition 'mass x0.5' sets 0.5; leave it out",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_played(
    words: str, message: str, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(robustness, "measure_all", lambda *_: pytest.fail("played"))
    assert robustness.main(words.split()) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
