"""A frozen team under a leader limits its commands as it learned to."""

from __future__ import annotations

import shutil

import pytest
import torch
import yaml
from torch import tensor

from mapush.extensions.navigate.frozen_team import TeamController
from mqe.config import load_yaml
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
        limit=lambda velocity, state: velocity.clamp(max=0.2),
    )
    team.targets(SceneState.zeros(3, 2, True))
    assert (
        gait.velocity[0].tolist()
        == [[pytest.approx(0.2), pytest.approx(0.2), pytest.approx(0.1)]] * 2
    )


def test_a_leader_keeps_the_limit_of_its_team(tmp_path) -> None:
    team = tmp_path / "team"
    shutil.copytree(pretrained_folder("cuboid"), team)
    settings = load_yaml(team / "config.yaml")
    settings["task"]["keep_apart"] = 0.7
    (team / "config.yaml").write_text(yaml.safe_dump(settings))
    renew_manifest(team)
    leader = navigate_setup(1, team=str(team)).task
    assert leader._team._limit._distance == 0.7  # type: ignore[attr-defined]
    leader = navigate_setup(1, team="pretrained:cuboid").task
    assert leader._team._limit is None  # type: ignore[attr-defined]
