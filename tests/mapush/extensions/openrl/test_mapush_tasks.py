"""MAPush's task files, read as text."""

from __future__ import annotations

from pathlib import Path

import pytest

from harl_mapush import config
from mapush.extensions.openrl import mapush_tasks

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


def test_literals_are_read_and_other_expressions_are_none(write) -> None:
    values = mapush_tasks.read_values(write())
    assert (values["env.num_agents"], values["goal.THRESHOLD"]) == (2, 1.0)
    assert values["terrain.BarrierTrack_kwargs"] is None
    assert mapush_tasks.object_of(values) == "tblock"


@pytest.mark.parametrize("name", ["cuboid", "tblock", "cylinder"])
def test_mapushs_task_exists_here(name: str) -> None:
    cfg, notices = config.resolve({"task": mapush_tasks.reference_task(name)}, {})
    assert (cfg.task.object, cfg.task.rewards, cfg.task.weights) == (name, "published", {})
    assert notices == []


def test_nothing_of_the_file_runs(write, tmp_path) -> None:
    trap = f"map_size = [24.0, 24.0]\n        x = open({str(tmp_path / 'ran')!r}, 'w')"
    assert mapush_tasks.read_values(write("map_size = [24.0, 24.0]", trap))["terrain.x"] is None
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("class Go1PushMidCfg", "class ("),
        (
            "num_agents = 2",
            "num_agents = " + "(" * 190 + "2" + ")" * 190 + " + -" * 3_000 + "1",
        ),
    ],
)
def test_a_file_that_is_no_python_has_no_values(write, old: str, new: str) -> None:
    assert mapush_tasks.read_values(write(old, new)) == {}


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
    assert mapush_tasks.object_of(mapush_tasks.read_values(path)) == "tblock"


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


def test_names_that_multiply_are_not_read(tmp_path) -> None:
    path = tmp_path / "config.py"
    lines = [
        f"class C{i + 1}:\n    class a(C{i}): pass\n    class b(C{i}): pass" for i in range(60)
    ]
    path.write_text("class C0:\n    x = 1\n" + "\n".join(lines))
    assert mapush_tasks.read_values(path) == {}
