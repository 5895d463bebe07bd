"""Networks of an exported policy, each with example inputs and its contract."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from harl_mapush.config import RunCfg
from harl_mapush.runs import checkpoint
from harl_mapush.runs.exported import describe_actions, describe_observation, policy_of
from mapush.export import description
from mapush.export.exported_networks import ExportedActor, ExportedGait
from mapush.export.onnx_files import Exported
from mqe.config import ConfigError
from mqe.controllers.trot import GaitMemory
from mqe.env.environment import MultiAgentEnv
from mqe.tasks.push.keep_apart import BACK_OFF, CommandLimit
from mqe.tasks.task import names_of_others
from mqe.world.robots import NUM_JOINTS
from mqe.world.scene import STEP_DT

NUM_CHECKED = 16  # rows of example inputs


def actors(
    env: MultiAgentEnv, cfg: RunCfg, folder: Path, commands_gaits: bool
) -> dict[str, Exported]:
    """Return the actors in checkpoint ``folder`` by file name. ``env`` gives example observations.

    Their outputs are velocity commands if the actors command gaits.
    """
    if checkpoint.format_of(folder).load_team(folder, env) is not None:
        raise ConfigError(
            f"{folder}: what its format loads has no actors, one network for each robot; a "
            "team without them cannot be exported"
        )
    network = policy_of(folder).network(env.device)
    spread = torch.linspace(0.2, 2.0, NUM_CHECKED).view(-1, 1, 1)
    obs = env.reset()[0][:NUM_CHECKED] * spread
    rate = 1.0 / (STEP_DT * env.decision_period)
    output = "command" if commands_gaits else "action"
    models = {}
    for agent in range(env.num_agents):
        terms = describe_observation(env.task, agent, names_of_others(agent, env.num_agents))
        described = describe_actions(cfg, env.task, agent)
        scale = tuple(described["scale"])
        limit = _limit(env, described, description.observed_names(terms))
        actor = ExportedActor(network.actor(agent).eval(), scale, limit)
        if limit is not None:  # robots may back off faster than any action
            scale = (scale[0] + BACK_OFF, scale[1] + BACK_OFF, scale[2])
        action = description.action(described | {"scale": list(scale)}, rate)
        inputs = {"obs": obs[:, agent, : actor.actor.in_size]}
        contract = {
            "inputs": {"obs": description.observation(terms, rate)},
            "outputs": {output: action},
        }
        outputs = [output]
        if actor.is_recurrent:
            inputs["hidden"] = torch.rand(NUM_CHECKED, network.memory_size)
            hidden = {
                "shape": ["batch", network.memory_size],
                "meaning": "zeros at the start of an episode, then hidden_out of the last decision",
            }
            contract["inputs"]["hidden"] = contract["outputs"]["hidden_out"] = hidden
            outputs.append("hidden_out")
        exported = Exported(actor, inputs, tuple(outputs), contract)
        models[f"actor_agent{agent}.onnx"] = exported
    return models


def gait(network: ExportedGait, scale: Sequence[float], decision_period: int) -> Exported:
    """Return a robot's gait. ``scale`` is the largest command."""
    states = torch.randn(NUM_CHECKED, 6)
    is_walking = torch.arange(NUM_CHECKED) % 4 > 0  # the others stand
    inputs = {
        "command": 0.3 * torch.randn(NUM_CHECKED, 3) * is_walking.unsqueeze(1),
        "up_b": nn.functional.normalize(0.2 * states[:, :3] + torch.tensor((0.0, 0.0, 1.0))),
        "angvel_b": states[:, 3:],
        "joint_pos": network.nominal + 0.2 * torch.randn(NUM_CHECKED, NUM_JOINTS),
        "joint_vel": 3.0 * torch.randn(NUM_CHECKED, NUM_JOINTS),
        "memory": torch.rand(NUM_CHECKED, GaitMemory.SIZE),
    }
    command = description.command(scale, 1.0 / (STEP_DT * decision_period))
    contract = {
        "inputs": {"command": command, **description.gait_inputs()},
        "outputs": {
            "joint_targets": description.joint_targets(),
            "memory_out": description.gait_memory(),
        },
        "rate_hz": 1.0 / STEP_DT,
    }
    return Exported(network, inputs, ("joint_targets", "memory_out"), contract)


def _limit(
    env: MultiAgentEnv, actions: dict[str, Any], obs_names: Sequence[str]
) -> CommandLimit | None:
    """Return a robot's limit of commands. Raises ConfigError for an unknown kind."""
    if env.task.features.limit is None:
        return None
    distance = actions.get("keep_apart")
    if distance is None:
        raise ConfigError(
            "this task limits actions in its own way, which no export has; load the policy from "
            "Python, or say --for policy"
        )
    return CommandLimit(obs_names, distance, env.decision_period)
