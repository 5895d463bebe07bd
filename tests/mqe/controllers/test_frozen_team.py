"""A frozen team acts as the checkpoint that it comes from, and only at its own rate."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from harl_mapush import config
from harl_mapush.algorithms.entries import make_algorithm
from harl_mapush.runs import checkpoint, team_export
from harl_mapush.runs.policy import make_team
from mapush.extensions.navigate.frozen_team import TeamController
from mqe.config import ConfigError, to_dict
from mqe.controllers.team_network import ReadTeam, load_team_network, read_team
from mqe.pretrained import pretrained_folder
from mqe.registry import SimCfg, make_env
from mqe.tasks.entry import EnvCfg
from mqe.world.state import SceneState
from tests.support.pushing import Stander

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["cuboid", "cylinder"])
def test_a_frozen_team_acts_as_its_checkpoint(name):
    folder = checkpoint.resolve(f"pretrained:{name}")
    cfg, _ = config.resolve(checkpoint.read_config(folder), {"env": {"num_envs": 4}})
    env = make_env(cfg.env, SimCfg(name="mujoco", device="cpu", num_threads=1), cfg.task, 0)
    obs, _ = env.reset()
    network = load_team_network(read_team(f"pretrained:{name}"), CPU)
    expected = make_team(cfg, folder, env)(obs).clamp(-1.0, 1.0)
    torch.testing.assert_close(network(obs), expected, rtol=0.0, atol=1e-6)
    env.close()


def test_a_frozen_team_remembers_as_its_recurrent_actors(tmp_path) -> None:
    network = {"use_recurrent_policy": True, "num_recurrent_layers": 2, "mean_bound": 0.02}
    network["hidden_sizes"] = [16, 16]
    cfg, _ = config.resolve({}, {"env": {"num_agents": 2}, "network": network})
    env = make_env(EnvCfg(num_envs=1), SimCfg("mujoco", "cpu", 1), cfg.task, 0)
    spec = env.spec
    env.close()
    algorithm = make_algorithm(cfg.algorithm.for_acting(), cfg.network, spec, CPU, 0)
    names = [f"actor_agent{k}" for k in range(2)]
    actors = [algorithm.networks[name].state_dict() for name in names]
    for name, actor in zip(names, actors, strict=True):
        torch.save(actor, tmp_path / name)
    team = team_export.describe("x", to_dict(cfg), actors[0], tuple(names))
    frozen = load_team_network(ReadTeam("x", tmp_path, team), CPU)

    seen: list[Tensor] = [torch.randn(3, 2, spec.obs_size) for _ in range(4)]
    scene = SceneState.zeros(3, 2, True)
    gait = Stander()
    scale = torch.ones(3)
    shape = (2, frozen.memory_size)
    team_of_it = TeamController(frozen, lambda *_: seen[0], gait, 1, scale, 3, shape)
    hidden = None
    for _ in range(3):
        decision = algorithm.act(seen[0], hidden, deterministic=True)
        team_of_it.targets(scene)
        torch.testing.assert_close(gait.velocity, decision.actions, rtol=0.0, atol=1e-6)
        hidden = decision.hidden * torch.tensor([1.0, 1.0, 0.0]).view(1, 3, 1, 1)
        team_of_it.begin(torch.tensor([False, False, True]))
        seen.pop(0)
    assert float(decision.actions.abs().max()) > 0.001

    resumed = TeamController(frozen, lambda *_: seen[0], Stander(), 1, scale, 3, shape)
    resumed.load_state_dict(team_of_it.state_dict())
    resumed.targets(scene)
    team_of_it.targets(scene)
    assert torch.equal(resumed.state_dict()["memory"], team_of_it.state_dict()["memory"])


def test_an_actor_of_an_on_policy_team_is_described():
    actor = {
        "base.mlp.fc.0.weight": torch.zeros(8, 10),
        "base.mlp.fc.2.weight": torch.zeros(8),
        "base.mlp.fc.3.weight": torch.zeros(8, 8),
        "act.action_out.fc_mean.weight": torch.zeros(3, 8),
    }
    settings = {"env": {"num_agents": 2}, "network": {"activation": "relu"}}
    found = team_export.describe("x", settings, actor, ("actor_agent0.pt",))
    assert found.steps == (
        "linear base.mlp.fc.0",
        "relu",
        "layer_norm base.mlp.fc.2",
        "linear base.mlp.fc.3",
        "relu",
        "linear act.action_out.fc_mean",
    )


def test_what_cannot_be_a_team_is_refused_in_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"task\.team: there is no folder .*; name a run"):
        read_team(str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=r"task\.team: .* is neither a run nor a checkpoint"):
        read_team(str(tmp_path))
    with pytest.raises(ConfigError, match="learned go1_velocity, and a team that pushes is needed"):
        read_team(str(pretrained_folder("go1_velocity")))
    with pytest.raises(ConfigError, match=r"network\.sets=deep_set, which a frozen team has not"):
        read_team("pretrained:any")


def test_a_team_decides_at_its_own_rate():
    asked: list[list[float]] = []

    def observe(state: SceneState, subgoal: Tensor) -> Tensor:
        asked.append(subgoal[0].tolist())
        return state.robot_pos

    gait = Stander()
    team = TeamController(torch.ones_like, observe, gait, 5, torch.tensor([0.5, 0.5, 0.1]), 3)
    state = SceneState.zeros(3, 2, True)
    for place in (1.0, 2.0):
        team.command(torch.full((3, 2), place))
        for _ in range(7):
            team.targets(state)
    assert asked == [[1.0, 1.0], [1.0, 1.0], [2.0, 2.0], [2.0, 2.0]]
    assert gait.velocity[0].tolist() == [[0.5, 0.5, pytest.approx(0.1)]] * 2
    other = TeamController(torch.ones_like, observe, gait, 5, torch.ones(3), 3)
    other.load_state_dict(team.state_dict())
    asked.clear()
    for _ in range(4):
        other.targets(state)
    assert asked == [[2.0, 2.0]]  # three control steps later
