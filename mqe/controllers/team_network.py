"""A trained team as exported networks: a file of weights for each robot, and a description.

The description names the steps of the actors (linear layers, norms and activations with the tensors
of each in the file), the names of the numbers that a robot observes, and the settings of the push
task that the team learned, so that a team of any learner can be described without rewriting its
weights. ``TEAM_READERS`` describe checkpoints; a folder with ``team.yaml`` describes itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mqe.config import ConfigError, build, load_yaml, option
from mqe.controllers.gait_network import ACTIVATIONS
from mqe.extensions import Registry
from mqe.manifest import check_files
from mqe.pretrained import PRETRAINED, pretrained_folder
from mqe.tensor_files import read_tensors

DESCRIPTION = "team.yaml"
_WITH_WEIGHTS = ("linear", "layer_norm")  # steps of a network that have tensors NAME.weight, .bias


@dataclass(frozen=True)
class TeamDescription:
    """The contents of ``team.yaml``: the actors of a team, and the task that they learned."""

    steps: tuple[str, ...] = option(
        (), "steps of the actors: linear NAME, layer_norm NAME or an activation"
    )
    weights: tuple[str, ...] = option(
        (), "files of the weights, in the same folder: one for all robots, or one each"
    )
    num_robots: int = option(2, "robots of the team", min=1, max=100)
    robots: str | tuple[str, ...] = option("go1", "kind of its robots, one for all or one each")
    model: str = option("reference", "env.model of its training")
    task: dict[str, Any] = option(dict, "settings of the push task that it learned")

    def __post_init__(self) -> None:
        if not self.steps:
            raise ValueError("steps: must name at least one step")
        if len(self.weights) not in (1, self.num_robots):
            raise ValueError(
                f"weights: {len(self.weights)} files for {self.num_robots} robots; one, or one each"
            )
        for name in self.weights:
            if Path(name).name != name:
                raise ValueError(f"weights: must be names of files beside it, not {name!r}")


class ReadTeam(NamedTuple):
    """A description and the folder that its weights are in."""

    name: str
    folder: Path
    description: TeamDescription


# Each returns the description of a folder that it knows, with the folder of the weights; else None.
TEAM_READERS: Registry[Callable[[str], tuple[Path, TeamDescription] | None]] = Registry(
    "team reader"
)


def read_team(name: str) -> ReadTeam:
    """Return the team of a folder or ``pretrained:NAME``; raise ConfigError if there is none."""
    is_pretrained = name.startswith(PRETRAINED)
    folder = pretrained_folder(name.removeprefix(PRETRAINED)) if is_pretrained else Path(name)
    if not folder.is_dir():
        raise ConfigError(
            f"task.team: there is no folder '{folder.absolute()}'; name a run or a checkpoint of a "
            "team that pushes, or pretrained:NAME"
        )
    if (folder / DESCRIPTION).is_file():
        check_files(folder, [DESCRIPTION])
        values = load_yaml(folder / DESCRIPTION)
        return ReadTeam(name, folder, build(TeamDescription, values, f"task.team: '{name}'"))
    for reader in TEAM_READERS.values():
        found = reader(name)
        if found is not None:
            return ReadTeam(name, *found)
    raise ConfigError(
        f"task.team: '{name}' is no team: it has no {DESCRIPTION} and is no checkpoint; name a run "
        "or a checkpoint of a team that pushes, or pretrained:NAME"
    )


class TeamNetwork(nn.Module):
    """The frozen actors of a team, from observations (N, A, O) to actions (N, A, U)."""

    def __init__(self, actors: list[nn.Sequential], num_robots: int) -> None:
        """Take one actor for all robots, or one for each."""
        super().__init__()
        self._actors = nn.ModuleList(actors)
        self._num_robots = num_robots
        self.requires_grad_(False)

    def forward(self, obs: Tensor) -> Tensor:
        """Return the actions, clipped to [-1, 1]."""
        if len(self._actors) == 1:
            actions = self._actors[0](obs.flatten(0, 1)).unflatten(0, obs.shape[:2])
        else:
            each = [actor(obs[:, i]) for i, actor in enumerate(self._actors)]
            actions = torch.stack(each, dim=1)
        return actions.clamp(-1.0, 1.0)


def load_team_network(team: ReadTeam, device: torch.device) -> TeamNetwork:
    """Load the actors of a team; raise ConfigError if files and description do not fit."""
    description = team.description
    check_files(team.folder, description.weights)
    actors = []
    for name in description.weights:
        path = team.folder / name
        if not path.is_file():
            raise ConfigError(f"task.team: '{team.name}' lacks {name}; name another team")
        actors.append(_sequence(team.name, description.steps, read_tensors(path)))
    return TeamNetwork(actors, description.num_robots).to(device)


def _sequence(name: str, steps: tuple[str, ...], tensors: Mapping[str, Tensor]) -> nn.Sequential:
    """Build the network of ``steps``; raise ConfigError for one that cannot be built."""
    modules: list[nn.Module] = []
    for step in steps:
        kind, _, prefix = step.partition(" ")
        if kind in ACTIVATIONS and not prefix:
            modules.append(ACTIVATIONS[kind]())
            continue
        if kind not in _WITH_WEIGHTS:
            known = ", ".join((*_WITH_WEIGHTS, *ACTIVATIONS))
            raise ConfigError(
                f"task.team: '{name}' has the step {step!r}, which is not known; there are: {known}"
            )
        try:
            weight = tensors[f"{prefix}.weight"]
            bias = tensors[f"{prefix}.bias"]
        except KeyError as error:
            raise ConfigError(
                f"task.team: '{name}': its weights lack {error}; name another team"
            ) from None
        modules.append(_module(kind, weight, bias))
    return nn.Sequential(*modules)


def _module(kind: str, weight: Tensor, bias: Tensor) -> nn.Module:
    """Return the module of one kind of step with its weights."""
    module: nn.Linear | nn.LayerNorm
    if kind == "linear":
        module = nn.Linear(weight.shape[1], weight.shape[0])
    else:
        module = nn.LayerNorm(len(weight))
    module.weight = nn.Parameter(weight, False)
    module.bias = nn.Parameter(bias, False)
    return module
