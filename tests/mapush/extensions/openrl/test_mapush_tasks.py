"""MAPush's task files: read as text, turned into run files, and each value without effect named."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from harl_mapush import config, train
from harl_mapush.evaluation.tables import table_for
from mapush.extensions.openrl import mapush_tasks
from mqe.config import ConfigError

# A file of that form; MAPush's own have more of the same kind.
FILE = """
import numpy as np
from mqe.envs.go1.go1 import Go1Cfg

class Go1PushMidCfg(Go1Cfg):
    class env(Go1Cfg.env):
        env_name = "go1push"
        num_agents = 2
        num_npcs = 2
        episode_length_s = 20
    class asset(Go1Cfg.asset):
        file_npc = "{LEGGED_GYM_ROOT_DIR}/resources/objects/Tblock/SuperSmallTblock.urdf"
        vertex_list = [[-0.50,-0.25],[0.50,-0.25],[0.25,0.75],[-0.25,0.75],]
    class terrain(Go1Cfg.terrain):
        map_size = [24.0, 24.0]
        BarrierTrack_kwargs = merge_dict(Go1Cfg.terrain.BarrierTrack_kwargs, dict(
            track_width = map_size[1], plane = dict(block_length = map_size[0]), static_friction = 0.1))
    class termination(Go1Cfg.termination):
        collision_kwargs = dict(threshold= 0.27)
        termination_terms = ["roll", "pitch", "z_wave", "collision"]
    class rewards(Go1Cfg.rewards):
        expanded_ocb_reward = True
        class scales:
            target_reward_scale = 60
            approach_reward_scale = 15
            collision_punishment_scale = -40
            push_reward_scale = 30
            ocb_reward_scale = 80
            reach_target_reward_scale = 200000
            exception_punishment_scale = -100000
    class goal:
        random_goal_pos = True
        random_goal_distance_from_init = [1.5 , 3.0]
        random_goal_theta_from_init = [0, 2 * np.pi]
        THRESHOLD = 1.0
        check_setting = [random_goal_pos]
        if check_setting.count(True) != 1:
            raise ValueError("one")
    class init_state(Go1Cfg.init_state):
        init_state_class = Go1Cfg.init_state
        init_states_npc = [init_state_class(pos = [12.0, 0.0, 0.30])]
    class domain_rand(Go1Cfg.domain_rand):
        init_base_pos_range = dict(r= [1.2, 1.3], theta=[-0.01, 2 * np.pi])
        friction_range = [0.6, 0.7]
"""


@pytest.fixture
def write(tmp_path):
    def write(old: str = "", new: str = "") -> Path:
        assert old in FILE
        path = tmp_path / "config.py"
        path.write_text(FILE.replace(old, new) if old else FILE)
        return path

    return write


def test_a_published_file_is_honoured_altogether(write) -> None:
    file = mapush_tasks.convert(write())
    cfg, notices = config.resolve(file.sections, {})
    assert (cfg.task.object, cfg.task.rewards, cfg.env.num_agents) == ("tblock", "published", 2)
    assert (cfg.task.observation, cfg.task.inertia, cfg.task.pitch_limit) == (
        "reference",
        "reference",
        1.6,
    )
    assert cfg.task.weights == {}
    assert notices == []


@pytest.mark.parametrize(
    ("old", "new", "key", "value"),
    [
        ("episode_length_s = 20", "episode_length_s = 40", "episode_length_s", 40.0),
        ("[1.5 , 3.0]", "(1.5, 2)", "goal_distance", (1.5, 2.0)),
        ("THRESHOLD = 1.0", "THRESHOLD = 0.5", "success_radius", 0.5),
        ('"roll", ', "", "roll_limit", math.tau),
        (
            "collision_kwargs",
            "roll_kwargs = dict(threshold=0.6)\n        collision_kwargs",
            "roll_limit",
            0.6,
        ),
    ],
)
def test_values_come_over(write, old: str, new: str, key: str, value: object) -> None:
    file = mapush_tasks.convert(write(old, new))
    assert getattr(config.resolve(file.sections, {})[0].task, key) == value


def test_other_weights_come_over_one_by_one(write) -> None:
    sections = mapush_tasks.convert(
        write("push_reward_scale = 30", "push_reward_scale = 7")
    ).sections
    weights = {
        "target": 60.0,
        "approach": 15.0,
        "collision": -40.0,
        "push": 7.0,
        "ocb_expanded": 80.0,
        "ocb": 0.0,
    }
    assert sections["task"]["weights"] == weights | {"reach": 200_000.0, "exception": -100_000.0}


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("num_npcs = 2", "num_npcs = 2\n        wind = 3", "env.wind"),
        (
            "push_reward_scale",
            "idle_scale = 1\n            push_reward_scale",
            "rewards.scales.idle_scale=1 (see task.weights)",
        ),
        (
            "THRESHOLD = 1.0",
            "THRESHOLD = float('1')",
            "goal.THRESHOLD=float('1') (no literal)",
        ),
        ("friction_range = [0.6, 0.7]", "mass = 3", "domain_rand.mass"),
    ],
)
def test_what_has_no_effect_here_is_named(write, old: str, new: str, line: str) -> None:
    sections, (notice,) = mapush_tasks.apply({}, {}, str(write(old, new)))
    assert line in notice.partition("without effect here: ")[2]
    assert sections["task"]["object"] == "tblock"


def test_a_training_takes_the_task_of_a_file_and_the_rest_of_its_preset(write, monkeypatch) -> None:
    trained = []
    monkeypatch.setattr(train.experiment, "run", lambda cfg, start: trained.append(cfg) or 0)
    words = ["--preset", "smoke", "--load_task", str(write()), "--set", "task.success_radius=0.7"]
    assert train.main(words) == 0
    (cfg,) = trained
    assert (cfg.task.object, cfg.task.rewards, cfg.task.decision_period) == (
        "tblock",
        "published",
        1,
    )
    assert (cfg.task.success_radius, cfg.env.num_agents) == (0.7, 2)
    smoke, _ = config.resolve(config.load_preset("smoke"), {})
    assert (cfg.algorithm, cfg.runner) == (smoke.algorithm, smoke.runner)


def test_nothing_of_the_file_runs(write, tmp_path) -> None:
    trap = f"map_size = [24.0, 24.0]\n        x = open({str(tmp_path / 'ran')!r}, 'w')"
    file = mapush_tasks.convert(write("map_size = [24.0, 24.0]", trap))
    assert not (tmp_path / "ran").exists()
    assert "terrain.x" in file.unread


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "SuperSmallTblock",
            "Sofa",
            "pushes {LEGGED_GYM_ROOT_DIR}/resources/objects/Tblock/Sofa.urdf",
        ),
        ("num_npcs = 2", "num_npcs = 5", "among 5 objects and markers"),
        ("class Go1PushMidCfg", "class (", "not Python that can be read (SyntaxError)"),
        ("class env(", "class nothing(", "no task configuration"),
        ("episode_length_s = 20", "episode_length_s = -20", "task.episode_length_s"),
        (
            "num_agents = 2",
            "num_agents = " + "(" * 190 + "2" + ")" * 190 + " + -" * 3_000 + "1",
            "not Python",
        ),
    ],
)
def test_what_is_no_such_task_is_one_line(
    write, tmp_path, capsys, old: str, new: str, says: str
) -> None:
    path = write(old, new)
    assert train.main(["--load_task", str(path), "--out", str(tmp_path / "run")]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_the_task_file_beside_policies_names_their_object(write, tmp_path) -> None:
    (tmp_path / "run/task").mkdir(parents=True)
    write().rename(tmp_path / "run/task/config.py")
    module = tmp_path / "run/checkpoints/rl_model_10000000_steps/module.pt"
    assert mapush_tasks.object_of(mapush_tasks.values_beside(module)) == "tblock"
    assert mapush_tasks.values_beside(tmp_path / "elsewhere/a/b/c/module.pt") == {}
    (tmp_path / "run/task/config.py").write_text("class")  # no Python
    assert mapush_tasks.values_beside(module) == {}


@pytest.mark.parametrize("coded", ["\ufeff{}", "# -*- coding: latin-1 -*-\n# \xe9\n{}"])
def test_a_file_is_decoded_as_python_decodes_it(coded: str, tmp_path) -> None:
    path = tmp_path / "config.py"
    encoding = "latin-1" if "latin" in coded else "utf-8"
    path.write_text(coded.format(FILE), encoding=encoding)
    assert mapush_tasks.convert(path).sections["task"]["object"] == "tblock"


DERIVED = """
class Three(Go1PushMidCfg):
    class env(Go1PushMidCfg.env):
        num_agents = 3
    class goal:
        THRESHOLD = 0.5
"""


def test_a_class_inherits_from_another_of_its_file(tmp_path) -> None:
    path = tmp_path / "config.py"
    path.write_text(FILE + DERIVED)
    values = mapush_tasks.read_values(path)
    assert (values["env.num_agents"], values["env.episode_length_s"]) == (3, 20)
    assert mapush_tasks.object_of(values) == "tblock"
    # A class without bases replaces the inherited one.
    assert values["goal.THRESHOLD"] == 0.5
    assert "goal.random_goal_distance_from_init" not in values


@pytest.mark.parametrize("module", ["task.cuboid.config", "mqe.envs.configs.go1_push_mid_config"])
def test_a_class_of_another_file_is_named(module: str, tmp_path) -> None:
    path = tmp_path / "config.py"
    path.write_text(f"from {module} import Go1PushMidCfg\n{DERIVED}")
    said = rf"Three derives from Go1PushMidCfg of another task file, {module}; name that file"
    with pytest.raises(ConfigError, match=said):
        mapush_tasks.convert(path)


def test_names_that_multiply_are_refused(tmp_path) -> None:
    path = tmp_path / "config.py"
    lines = [
        f"class C{i + 1}:\n    class a(C{i}): pass\n    class b(C{i}): pass" for i in range(60)
    ]
    path.write_text("class C0:\n    x = 1\n" + "\n".join(lines))
    with pytest.raises(ConfigError, match="not Python that can be read"):
        mapush_tasks.read_values(path)


def test_a_file_that_is_not_there_is_one_line(capsys) -> None:
    assert train.main(["--load_task", "nowhere.py"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_table_of_checkpoints_has_mapushs_lines() -> None:
    row = {
        "checkpoint": "10M",
        "is_fresh": False,
        "success_rate": 0.5,
        "finished_time_s": 19.5,
        "collaboration_degree_reference": 0.25,
    }
    none = row | {"checkpoint": "20M", "collaboration_degree_reference": None}
    table = table_for("success_rate.txt")
    assert table("go1push_mid", [row, none, row | {"is_fresh": True}]) == (
        "Loaded checkpoint from:  10M\nsuccess rate: 0.5\nfinished time: 19.5\n"
        "collision degree: 0.0\ncollaboration degree: 0.25\n" + 53 * "-" + "\n"
        "Loaded checkpoint from:  20M\nsuccess rate: 0.5\nfinished time: 19.5\n"
        "collision degree: 0.0\ncollaboration degree: 0.0\n" + 53 * "-" + "\n"
    )
    with pytest.raises(ConfigError, match=r"describe go1push_mid, not go1_velocity; name a file"):
        table("go1_velocity", [])
