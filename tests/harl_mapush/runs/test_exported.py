"""Every kind of exported policy decides like its training algorithm."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from harl_mapush import config
from harl_mapush.algorithms.algorithm import Algorithm
from harl_mapush.algorithms.entries import make_algorithm
from harl_mapush.config import RunCfg
from harl_mapush.runs import checkpoint, evaluation_worlds, exported, init_from
from harl_mapush.runs.policy import TeamPolicy, make_team
from mapush import cli
from mqe.config import ConfigError, dump_yaml, to_dict
from mqe.controllers.frozen_policy import DESCRIPTION, describe_policy, read_policy
from mqe.controllers.network import build_network, declare
from mqe.env.environment import MultiAgentEnv
from mqe.manifest import renew_manifest
from mqe.pretrained import PRETRAINED, pretrained_names
from mqe.registry import TASKS, SimCfg, make_env
from tests.support.means import mean_actions
from tests.support.off_policy_toys import APART
from tests.support.products import ignore_other_rows
from tests.support.rounding import in_double, rounding

CPU = torch.device("cpu")
SIM = SimCfg(name="mujoco", device="cpu", num_threads=1)
SETS = {"task": {"observation": "sets"}, "env": {"num_agents": 3}}


def kind(algorithm: str, network: dict[str, Any], **sections: Any) -> dict[str, Any]:
    network = {"hidden_sizes": [24, 16], "gain": 1.0, **network}
    return {"algorithm": {"name": algorithm}, "network": network, **sections}


# Without an extension's folder its policies are of unknown tasks.
SHIPPED = [
    name for name in pretrained_names() if describe_policy(PRETRAINED + name).task["name"] in TASKS
]
KINDS = {
    "bounded": kind("happo", {"mean_bound": 0.5}),
    "normalised": kind(
        "mappo",
        {"use_feature_normalization": True, "use_layer_norm": True},
    ),
    "gru": kind("happo", {"use_recurrent_policy": True, "num_recurrent_layers": 2}),
    "hasac": kind("hasac", {"use_layer_norm": True}),
    **{name: kind(name, {}) for name in APART if name != "hasac"},
    "deep sets": kind("happo", {}, **SETS),
    "mixed team": kind("happo", {}, env={"robots": ["go1", "go2"], "num_agents": 2}),
}


def team_of(settings: dict[str, Any], num_envs: int = 5) -> tuple[RunCfg, MultiAgentEnv, Algorithm]:
    cfg, _ = config.resolve(settings, {"env": {"num_envs": num_envs}})
    env = make_env(cfg.env, SIM, cfg.task, 0)
    algorithm = make_algorithm(cfg.algorithm, cfg.network, env.spec, CPU, 0)
    return cfg, env, algorithm


def save(run: Path, cfg: RunCfg, env: MultiAgentEnv, algorithm: Algorithm) -> Path:
    run.mkdir()
    actors = [algorithm.networks[f"actor_agent{i}"] for i in range(env.num_agents)]
    export = partial(exported.export, cfg=cfg, actors=actors, task=env.task)
    settings = dump_yaml(to_dict(cfg))
    return checkpoint.save(run, 1, algorithm.networks, settings=settings, export=export)


@pytest.mark.parametrize("share", [True, False], ids=["shared", "own"])
@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_policy_acts_as_its_algorithm(name: str, share: bool, tmp_path) -> None:
    settings = KINDS[name] | {"algorithm": {**KINDS[name]["algorithm"], "share_param": share}}
    cfg, env, algorithm = team_of(settings)
    num_agents = env.num_agents
    for module in algorithm.networks.values():
        for buffer_name, buffer in module.named_buffers():
            if buffer_name.endswith(("mean", "var")):
                buffer.uniform_(0.5, 2.0)
    folder = save(tmp_path / "run", cfg, env, algorithm)
    described = make_team(folder, env)
    description = describe_policy(str(folder))
    alone = make_team(checkpoint.resolve(without_run(folder, tmp_path / "alone")), env)
    assert len(description.weights) == (1 if share else num_agents)
    assert len(description.observation_names) == env.spec.obs_size
    assert len(description.actions["names"]) == env.spec.action_size
    (folder / DESCRIPTION).unlink()  # as a former release wrote it
    renew_manifest(folder)
    former = make_team(folder, env)

    # The learner's weights, in place
    actors = list(dict.fromkeys(algorithm.networks[f"actor_agent{i}"] for i in range(num_agents)))
    declared = [declare(actor) or [] for actor in actors]
    network = build_network(declared, [actor.state_dict() for actor in actors])
    in_place = TeamPolicy(network)
    # Products depend on the alignment of the weights in memory, which is another in a file's.
    in_float64 = TeamPolicy(in_double(network))

    hidden = None
    done = torch.tensor([False, True, False, False, True])
    for _ in range(3):
        obs = torch.randn(5, env.num_agents, env.spec.obs_size)
        actions, hidden = mean_actions(algorithm, obs, hidden)
        bound = rounding(actions, in_float64(obs.double()))
        for team in (described, former, alone):
            assert isinstance(team, TeamPolicy)
            torch.testing.assert_close(team(obs), actions, rtol=0.0, atol=bound)
        # Intel's AVX2 multiplies the rows of entities in another order.
        bound = 0.0 if ignore_other_rows(32) else bound
        torch.testing.assert_close(in_place(obs), actions, rtol=0.0, atol=bound)
        for team in (described, former, alone, in_place, in_float64):
            team.reset_memory(done)
        if hidden is not None:
            hidden = hidden.masked_fill(done.view(1, -1, 1, 1), 0.0)
    env.close()


@pytest.mark.parametrize("name", [name for name in SHIPPED if name != "leader"])
def test_shipped_policies_are_described_as_their_checkpoints_are_read(name: str, tmp_path) -> None:
    folder = checkpoint.resolve(PRETRAINED + name)
    cfg, env, algorithm = team_of(checkpoint.read_config(folder), 4)
    actors = {name: net for name, net in algorithm.networks.items() if name.startswith("actor")}
    checkpoint.load(folder, actors)
    obs = torch.randn(4, env.num_agents, env.spec.obs_size)
    expected, _ = mean_actions(algorithm, obs)
    policy = read_policy(PRETRAINED + name)
    network = policy.network(CPU)
    bound = rounding(expected, in_double(network)(obs.double()))
    torch.testing.assert_close(network(obs), expected, rtol=0.0, atol=bound)
    actors = [algorithm.networks[f"actor_agent{i}"] for i in range(env.num_agents)]
    described = exported._describe(folder, cfg, actors, env.task)
    assert described is not None
    # Settings that a later release adds are missing in what a policy learned in.
    shipped = replace(policy.description, learned_in={}, command=described.command)
    assert replace(described, learned_in={}) == shipped
    env.close()


def without_run(folder: Path, copy: Path) -> Path:
    """Copy a checkpoint's ``policy.yaml`` and its weights alone."""
    copy.mkdir()
    for name in (DESCRIPTION, *describe_policy(str(folder)).weights):
        shutil.copy(folder / name, copy / name)
    return copy


@pytest.mark.parametrize("name", SHIPPED)
def test_a_policy_needs_its_description_and_its_weights_alone(name: str, tmp_path) -> None:
    shipped = checkpoint.resolve(PRETRAINED + name)
    assert describe_policy(PRETRAINED + name).command
    alone = checkpoint.resolve(without_run(shipped, tmp_path / name))
    measured = evaluation_worlds.settings(alone, {})
    worlds = evaluation_worlds.settings(shipped, {})
    assert (measured.env, measured.task) == (worlds.env, worlds.task)
    filmed = evaluation_worlds.settings(alone, {}, num_envs=1, with_suite=False)
    worlds = evaluation_worlds.settings(shipped, {}, num_envs=1, with_suite=False)
    assert (filmed.env, filmed.task) == (worlds.env, worlds.task)
    assert evaluation_worlds.differences(alone, measured) == evaluation_worlds.differences(
        shipped, measured
    )
    out = tmp_path / "copy"
    assert cli.main(["export", str(alone), str(out), "--for", "policy"]) == 0
    assert describe_policy(str(out)) == describe_policy(str(alone))


def test_a_team_of_its_description_alone_is_measured_filmed_and_exported(tmp_path) -> None:
    alone = without_run(checkpoint.resolve("pretrained:cuboid"), tmp_path / "cuboid")
    json_file = tmp_path / "metrics.json"
    episode = ["--num_episodes", "1", "--device", "cpu", "--set", "task.episode_length_s=0.4"]
    assert cli.main(["test", str(alone), *episode, "--team_only", "--json", str(json_file)]) == 0
    assert json.loads(json_file.read_text())["num_episodes"] == 1
    film = ["--record", str(tmp_path / "film.mp4"), "--size", "64x36"]
    assert cli.main(["play", str(alone), *episode, *film]) == 0
    assert cli.main(["export", str(alone), str(tmp_path / "onnx")]) == 0
    assert (tmp_path / "onnx" / "actor_agent0.onnx").is_file()


def test_a_training_cannot_begin_with_a_description_alone(tmp_path) -> None:
    alone = without_run(checkpoint.resolve("pretrained:cuboid"), tmp_path / "cuboid")
    with pytest.raises(ConfigError, match=r"lacks config\.yaml"):
        init_from.apply({}, {"runner": {"init_from": str(alone)}})


def test_a_large_declaration_takes_no_memory(tmp_path) -> None:
    cfg, env, algorithm = team_of(KINDS["bounded"])
    folder = save(tmp_path / "run", cfg, env, algorithm)
    policy = read_policy(str(folder))
    actors = ([["linear", "base.mlp.fc.0", 10, 100_000], *[["linear", "x", 100_000, 100_000]] * 9],)
    large = policy._replace(
        description=policy.description.__class__(
            weights=policy.description.weights, num_robots=2, actors=actors
        )
    )
    with pytest.raises(ValueError, match="has shape"):
        large.network(CPU)
    env.close()
