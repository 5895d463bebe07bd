"""Exported networks of a team, and their contracts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harl_mapush.config import RunCfg
from harl_mapush.runs import checkpoint
from harl_mapush.runs.exported import describe_actions, describe_observation, policy_of
from mapush.export import description, gait_networks
from mapush.export.exported_networks import (
    ExportedActor,
    ExportedGait,
    ExportedTeam,
)
from mapush.export.gait_networks import NUM_CHECKED
from mapush.export.onnx_files import Exported
from mqe.config import ConfigError
from mqe.env.environment import MultiAgentEnv
from mqe.tasks.push.keep_apart import BACK_OFF, CommandLimit
from mqe.tasks.task import names_of_others
from mqe.world.scene import STEP_DT

TEAM = "team.onnx"
_DECIDE = (
    "true in the first control step and every control_steps_per_decision after it: the actors "
    "decide"
)


class TeamNetworks:
    """A team's actors as separate networks, and together with their gaits as one network."""

    def __init__(
        self, env: MultiAgentEnv, cfg: RunCfg, folder: Path, gaits: list[ExportedGait]
    ) -> None:
        """Load the actors in checkpoint ``folder``. ``env`` gives example observations.

        Without ``gaits``, there is no network of the whole team.
        """
        if checkpoint.format_of(folder).load_team(folder, env) is not None:
            raise ConfigError(
                f"{folder}: what its format loads has no actors, one network for each robot; a "
                "team without them cannot be exported"
            )
        network = policy_of(folder).network(env.device)
        agents = range(env.num_agents)
        self._num_agents = env.num_agents
        self._gaits = gaits
        self._output = "command" if gaits else "action"
        self._decision_hz = 1.0 / (STEP_DT * env.decision_period)
        self._terms = [
            describe_observation(env.task, agent, names_of_others(agent, env.num_agents))
            for agent in agents
        ]
        self._actions = [describe_actions(cfg, env.task, agent) for agent in agents]
        self._actors = []
        for agent, actor in enumerate(network.actor(agent) for agent in agents):
            limit = self._limit(agent, env)
            scale = self._actions[agent]["scale"]
            self._actors.append(ExportedActor(actor.eval(), tuple(scale), limit))
            if limit is not None:  # robots may back off faster than any action
                largest = [scale[0] + BACK_OFF, scale[1] + BACK_OFF, scale[2]]
                self._actions[agent]["scale"] = largest
        spread = torch.linspace(0.2, 2.0, NUM_CHECKED).view(-1, 1, 1)
        self._obs = env.reset()[0][:NUM_CHECKED] * spread
        self._hidden: dict[str, Tensor] = {}
        if self._actors[0].is_recurrent:
            size = network.memory_size
            self._hidden = {"hidden": torch.rand(NUM_CHECKED, self._num_agents, size)}

    def files(self) -> dict[str, Exported]:
        """Return the networks by file name."""
        files = {}
        for agent, actor in enumerate(self._actors):
            hidden = self._hidden_of(agent)
            inputs = {"obs": self._obs[:, agent, : actor.actor.in_size], **hidden}
            files[_actor_file(agent)] = Exported(actor, inputs, (self._output, *_out(hidden)))
        if self._gaits:
            team = ExportedTeam(self._actors, self._gaits)
            outputs = ("joint_targets", "command_out", "memory_out", *_out(self._hidden))
            files[TEAM] = Exported(team, self._team_inputs(), outputs)
        return files

    def _limit(self, agent: int, env: MultiAgentEnv) -> CommandLimit | None:
        """Return a robot's limit of commands. Raises ConfigError for an unknown kind."""
        if env.task.features.limit is None:
            return None
        apart = self._actions[agent].get("keep_apart")
        if apart is None:
            raise ConfigError(
                "this task limits actions in its own way, which no export has; load the policy "
                "from Python, or say --for policy"
            )
        names = description.observed_names(self._terms[agent])
        return CommandLimit(names, apart, env.decision_period)

    def contracts(self) -> dict[str, Any]:
        """Return descriptions of inputs and outputs by file name."""
        contracts = {_actor_file(agent): self._contract(agent) for agent in range(self._num_agents)}
        return contracts | {TEAM: self._team_contract()} if self._gaits else contracts

    def _hidden_of(self, agent: int) -> dict[str, Tensor]:
        return {name: values[:, agent] for name, values in self._hidden.items()}

    def _team_inputs(self) -> dict[str, Tensor]:
        lead = (NUM_CHECKED, self._num_agents)
        body = gait_networks.example(NUM_CHECKED * self._num_agents)
        body = {name: values.unflatten(0, lead) for name, values in body.items()}
        decides = torch.arange(NUM_CHECKED) % 2 == 0
        first = {"obs": self._obs, "decide": decides, "command": body.pop("command")}
        return first | body | self._hidden

    def _contract(self, agent: int) -> dict[str, Any]:
        """Describe the file with one robot's actor."""
        hidden = _described(self._hidden_of(agent))
        obs = description.observation(self._terms[agent], self._decision_hz)
        action = self._action(["batch"], agent)
        return {
            "inputs": {"obs": obs, **hidden},
            "outputs": {self._output: action, **_renamed_out(hidden)},
        }

    def _action(self, lead: Sequence[int | str], agent: int) -> dict[str, Any]:
        """Describe a robot's scaled action, a gait's command or another action."""
        if self._gaits:
            return description.command(lead, self._actions[agent]["scale"], self._decision_hz)
        return description.action(lead, self._actions[agent], self._decision_hz)

    def _team_contract(self) -> dict[str, Any]:
        """Describe the file with the whole team."""
        lead = ["batch", self._num_agents]
        hidden = _described(self._hidden)
        names = [description.observed_names(terms) for terms in self._terms]
        obs = {
            "shape": [*lead, len(names[0])],
            "names": names,
            "rate_hz": self._decision_hz,
        }
        held = self._action(lead, 0)
        of_last = {"meaning": "command_out of the last control step; zeros in the first"}
        return {
            "inputs": {
                "obs": obs,
                "decide": {"shape": ["batch"], "type": "bool", "meaning": _DECIDE},
                "command": held | of_last,
                **description.gait_inputs(lead),
                **hidden,
            },
            "outputs": {
                "joint_targets": description.joint_targets(lead),
                "command_out": held,
                "memory_out": description.gait_memory(lead),
                **_renamed_out(hidden),
            },
            "rate_hz": 1.0 / STEP_DT,
        }


def _actor_file(agent: int) -> str:
    return f"actor_agent{agent}.onnx"


def _out(names: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(f"{name}_out" for name in names)


def _renamed_out(described: Mapping[str, Any]) -> dict[str, Any]:
    return dict(zip(_out(described), described.values(), strict=True))


def _described(values: Mapping[str, Tensor]) -> dict[str, Any]:
    meaning = "zeros at the start of an episode, then hidden_out of the last decision"
    return {
        name: {"shape": ["batch", *value.shape[1:]], "meaning": meaning}
        for name, value in values.items()
    }
