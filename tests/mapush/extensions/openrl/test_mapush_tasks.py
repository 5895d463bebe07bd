"""MAPush's task files, read as text."""

from __future__ import annotations

from pathlib import Path

import pytest

from harl_mapush import config
from mapush.extensions.openrl import mapush_policies

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
def run(tmp_path) -> Path:
    """Return a policy's path with the task file beside its run."""
    (tmp_path / "run/task").mkdir(parents=True)
    (tmp_path / "run/task/config.py").write_text(FILE)
    return tmp_path / "run/checkpoints/rl_model_10000000_steps/module.pt"


def rewrite(module: Path, text: str, encoding: str = "utf-8") -> dict[str, str]:
    (module.parents[2] / "task/config.py").write_text(text, encoding=encoding)
    return mapush_policies.values_beside(module)


@pytest.mark.parametrize("name", ["cuboid", "tblock", "cylinder"])
def test_mapushs_task_exists_here(name: str) -> None:
    cfg, notices = config.resolve({"task": mapush_policies.reference_task(name)}, {})
    assert (cfg.task.object, cfg.task.rewards, cfg.task.weights) == (name, "published", {})
    assert notices == []


def test_the_task_file_beside_policies_names_their_object(run, tmp_path) -> None:
    values = mapush_policies.values_beside(run)
    assert (values["num_agents"], values["num_npcs"]) == ("2", "2")
    assert mapush_policies.object_of(values) == "tblock"
    assert mapush_policies.values_beside(tmp_path / "elsewhere/a/b/c/module.pt") == {}
    assert mapush_policies.object_of({}) is None


def test_nothing_of_the_file_runs(run, tmp_path) -> None:
    trap = f"num_agents = open({str(tmp_path / 'ran')!r}, 'w')"
    rewrite(run, FILE.replace("num_agents = 2", trap))
    assert not (tmp_path / "ran").exists()


def test_comments_and_names_at_the_top_are_no_settings(run) -> None:
    text = "num_agents = 7\nclass A:\n    # num_agents = 8\n    other_num_agents = 9\n"
    assert rewrite(run, text) == {}


@pytest.mark.parametrize("coded", ["\ufeff{}", "# -*- coding: latin-1 -*-\n# \xe9\n{}"])
def test_a_file_may_have_any_encoding(coded: str, run) -> None:
    encoding = "latin-1" if "latin" in coded else "utf-8"
    assert mapush_policies.object_of(rewrite(run, coded.format(FILE), encoding)) == "tblock"


def test_a_derived_class_counts(run) -> None:
    derived = (
        "class Three(Go1PushMidCfg):\n    class env(Go1PushMidCfg.env):\n        num_agents = 3"
    )
    values = rewrite(run, f"{FILE}\n{derived}  # robots\n")
    assert values["num_agents"] == "3"
    assert mapush_policies.object_of(values) == "tblock"


def test_of_a_huge_file_the_beginning_is_read(run) -> None:
    filler = "#" * mapush_policies.MAX_CHARACTERS
    assert rewrite(run, f"    num_npcs = 2\n{filler}\n    num_npcs = 3\n") == {"num_npcs": "2"}
