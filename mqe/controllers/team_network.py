"""A trained team as exported networks: a file of weights for each robot, and a description.

The description names the steps of the actors (linear layers, norms, activations and a GRU, with the
tensors of each in the file), the names of the numbers that a robot observes, and the settings of
the push task that the team learned, so that a team of any learner can be described without
rewriting its weights. ``TEAM_READERS`` describe checkpoints; a folder with ``team.yaml`` describes
itself.
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
        (), "steps of the actors: linear NAME, layer_norm NAME, gru NAME, bound X or an activation"
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
    """The frozen actors of a team, from observations and memories (N, A, O + M) to actions and
    memories (N, A, U + M); M is ``memory_size``, 0 without a GRU.
    """

    def __init__(self, actors: list[Actor], num_robots: int) -> None:
        """Take one actor for all robots, or one for each."""
        super().__init__()
        self._actors = nn.ModuleList(actors)
        self._num_robots = num_robots
        self.memory_size = actors[0].memory_size
        self.requires_grad_(False)

    def forward(self, obs: Tensor) -> Tensor:
        """Return the actions, clipped to [-1, 1], and the memories after them."""
        if len(self._actors) == 1:
            return self._actors[0](obs.flatten(0, 1)).unflatten(0, obs.shape[:2])
        each = [actor(obs[:, i]) for i, actor in enumerate(self._actors)]
        return torch.stack(each, dim=1)


class Actor(nn.Module):
    """One actor: plain steps, the layers of a GRU if it has one, and plain steps again."""

    def __init__(self, before: nn.Sequential, cells: list[nn.GRUCell], after: nn.Sequential):
        super().__init__()
        self._before = before
        self._cells = nn.ModuleList(cells)
        self._after = after
        self._sizes = [cell.hidden_size for cell in cells]
        self.memory_size = sum(self._sizes)

    def forward(self, obs: Tensor) -> Tensor:
        """Return actions and memories (B, U + M) for observations and memories (B, O + M)."""
        size = obs.shape[-1] - self.memory_size
        x = self._before(obs[:, :size])
        memories = []
        for cell, memory in zip(self._cells, obs[:, size:].split(self._sizes, dim=-1), strict=True):
            x = cell(x, memory)
            memories.append(x)
        return torch.cat((self._after(x).clamp(-1.0, 1.0), *memories), dim=-1)


class Bound(nn.Module):
    """A smooth bound: ``limit`` times the hyperbolic tangent of ``x / limit``."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self._limit = limit

    def forward(self, x: Tensor) -> Tensor:
        """Return the bounded values."""
        return self._limit * torch.tanh(x / self._limit)


def load_team_network(team: ReadTeam, device: torch.device) -> TeamNetwork:
    """Load the actors of a team; raise ConfigError if files and description do not fit."""
    description = team.description
    check_files(team.folder, description.weights)
    actors = []
    for name in description.weights:
        path = team.folder / name
        if not path.is_file():
            raise ConfigError(f"task.team: '{team.name}' lacks {name}; name another team")
        actors.append(_actor(team.name, description.steps, read_tensors(path)))
    return TeamNetwork(actors, description.num_robots).to(device)


def _actor(name: str, steps: tuple[str, ...], tensors: Mapping[str, Tensor]) -> Actor:
    """Build the network of ``steps``; raise ConfigError for one that cannot be built."""
    before: list[nn.Module] = []
    cells: list[nn.GRUCell] = []
    after: list[nn.Module] = []
    for step in steps:
        kind, _, prefix = step.partition(" ")
        modules = after if cells else before
        try:
            if kind in ACTIVATIONS and not prefix:
                modules.append(ACTIVATIONS[kind]())
            elif kind in _WITH_WEIGHTS:
                weight = tensors[f"{prefix}.weight"]
                modules.append(_module(kind, weight, tensors[f"{prefix}.bias"]))
            elif kind == "bound":
                modules.append(Bound(float(prefix)))
            elif kind == "gru":
                cells += _cells(prefix, tensors)
            else:
                known = ", ".join((*_WITH_WEIGHTS, "gru", "bound", *ACTIVATIONS))
                raise ConfigError(
                    f"task.team: '{name}' has the step {step!r}, which is not known; there are: "
                    f"{known}"
                )
        except KeyError as error:
            raise ConfigError(
                f"task.team: '{name}': its weights lack {error}; name another team"
            ) from None
    return Actor(nn.Sequential(*before), cells, nn.Sequential(*after))


def _cells(prefix: str, tensors: Mapping[str, Tensor]) -> list[nn.GRUCell]:
    """Return the layers of a GRU with their weights."""
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    cells = []
    while not cells or f"{prefix}.weight_ih_l{len(cells)}" in tensors:
        own = {name: tensors[f"{prefix}.{name}_l{len(cells)}"] for name in names}
        cell = nn.GRUCell(own["weight_ih"].shape[1], own["weight_hh"].shape[1])
        cell.load_state_dict(own)
        cells.append(cell)
    return cells


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
