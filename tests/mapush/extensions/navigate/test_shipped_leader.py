"""The shipped leader, and the example with a high level of one's own."""

from __future__ import annotations

import io
import runpy
import sys

import pytest

from harl_mapush import config
from harl_mapush.runs import checkpoint
from harl_mapush.runs.policy import load_team
from mqe.pretrained import PRETRAINED
from mqe.registry import make_env
from tests.support.paths import ROOT

LEADER = "leader"


@pytest.mark.slow
def test_the_shipped_leader_leads_its_team() -> None:
    folder = checkpoint.resolve(PRETRAINED + LEADER)
    over = {
        "env": {"num_envs": 2},
        "sim": {"name": "mujoco", "device": "cpu"},
        "task": {"num_maps": 2},
    }
    cfg, _ = config.resolve(checkpoint.read_config(folder), over)
    assert cfg.task.team == f"{PRETRAINED}team2"
    env = make_env(cfg.env, cfg.sim, cfg.task, seed=0)
    leader = load_team(folder, env)
    obs, _ = env.reset()
    start = env.state.object_pos.clone()
    for _ in range(17):  # 8.5 s
        obs = env.step(leader(obs)).obs
    moved = env.state.object_pos - start
    env.close()
    assert (moved[:, :2].norm(dim=1) > 1.0).all()


def test_a_high_level_leads_a_team_by_the_goals_of_its_input(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("1 0\n1.5 -2\n"))
    monkeypatch.setattr(sys, "argv", ["own_high_level.py", "3"])
    runpy.run_path(str(ROOT / "examples" / "own_high_level.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    goals = [line.partition(",")[0] for line in lines]
    assert goals == ["goal 1.00 0.00", "goal 1.50 -2.00", "goal 1.50 -2.00"]
