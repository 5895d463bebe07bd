"""A frozen team under a leader limits its commands as it learned to."""

from __future__ import annotations

import shutil

import pytest
import torch
import yaml
from torch import Tensor, nn, tensor

from harl_mapush.runs.policy import TeamPolicy
from mapush.extensions.navigate.frozen_team import TeamController
from mqe.config import ConfigError, load_yaml
from mqe.controllers.network import Actor, TeamNetwork
from mqe.manifest import renew_manifest
from mqe.pretrained import pretrained_folder
from mqe.world.state import SceneState
from tests.mapush.extensions.navigate.navigating import navigate_setup
from tests.support.pushing import Stander


def test_a_frozen_team_keeps_its_limit() -> None:
    gait = Stander()
    scale = tensor([0.5, 0.5, 0.1])
    team = TeamController(
        torch.ones_like,
        lambda state, goal: state.robot_pos,
        gait,
        5,
        scale,
        3,
        limit=lambda obs, velocity: velocity.clamp(max=0.2),
    )
    team.targets(SceneState.zeros(3, 2, True))
    assert (
        gait.velocity[0].tolist()
        == [[pytest.approx(0.2), pytest.approx(0.2), pytest.approx(0.1)]] * 2
    )


def test_a_leader_keeps_the_limit_of_its_team(tmp_path) -> None:
    team = tmp_path / "team"
    shutil.copytree(pretrained_folder("cuboid"), team)
    settings = load_yaml(team / "policy.yaml")
    settings["learned_in"]["task"]["keep_apart"] = 0.7
    (team / "policy.yaml").write_text(yaml.safe_dump(settings))
    renew_manifest(team)
    leader = navigate_setup(1, team=str(team)).task
    assert leader.team._limit.distance == 0.7  # type: ignore[attr-defined]
    leader = navigate_setup(1, team="pretrained:cuboid").task
    assert leader.team._limit is None  # type: ignore[attr-defined]


def test_a_frozen_team_remembers_as_its_recurrent_actors() -> None:
    torch.manual_seed(0)
    network = TeamNetwork([Actor([nn.GRU(4, 6, 2), nn.Linear(6, 3)])]).requires_grad_(False)
    shape = (2, network.memory_size)
    gait = Stander()
    scene = SceneState.zeros(3, 2, True)
    scale = torch.ones(3)
    seen = [torch.randn(3, 2, 4) for _ in range(4)]
    team = TeamController(network, lambda *_: seen[0], gait, 1, scale, 3, shape)
    policy = TeamPolicy(network)
    ended = torch.tensor([False, False, True])
    for _ in range(3):
        team.targets(scene)
        assert torch.equal(gait.velocity, policy(seen[0]).clamp(-1.0, 1.0))
        policy.reset_memory(ended)
        team.begin(ended)
        seen.pop(0)

    resumed = TeamController(network, lambda *_: seen[0], Stander(), 1, scale, 3, shape)
    resumed.load_state_dict(team.state_dict())
    resumed.targets(scene)
    team.targets(scene)
    assert torch.equal(resumed.state_dict()["memory"], team.state_dict()["memory"])


def test_a_policy_that_cannot_push_is_refused_in_one_line(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"task\.team: there is no folder .*; name a checkpoint"):
        navigate_setup(1, team=str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=r"task\.team: .* is neither a run nor a checkpoint"):
        navigate_setup(1, team=str(tmp_path))
    with pytest.raises(ConfigError, match="learned go1_velocity, and a team that pushes is needed"):
        navigate_setup(1, team="pretrained:go1_velocity")


def test_a_team_decides_at_its_own_rate() -> None:
    goals: list[list[float]] = []

    def observe(state: SceneState, subgoal: Tensor) -> Tensor:
        goals.append(subgoal[0].tolist())
        return state.robot_pos

    gait = Stander()
    team = TeamController(torch.ones_like, observe, gait, 5, tensor([0.5, 0.5, 0.1]), 3)
    state = SceneState.zeros(3, 2, True)
    for goal_x in (1.0, 2.0):
        team.command(torch.full((3, 2), goal_x))
        for _ in range(7):
            team.targets(state)
    assert goals == [[1.0, 1.0], [1.0, 1.0], [2.0, 2.0], [2.0, 2.0]]
    assert gait.velocity[0].tolist() == [[0.5, 0.5, pytest.approx(0.1)]] * 2
    other = TeamController(torch.ones_like, observe, gait, 5, torch.ones(3), 3)
    other.load_state_dict(team.state_dict())
    goals.clear()
    for _ in range(4):
        other.targets(state)
    assert goals == [[2.0, 2.0]]  # three control steps later
