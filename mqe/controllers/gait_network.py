"""A gait as an exported network: a file of weights, and ``gait.yaml``, which describes it.

The description names the weights' file and the tensors of each layer in it, so that a gait of any
learner can be described without rewriting its weights. Folders without ``gait.yaml`` are described
by the members of ``GAIT_READERS``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from mqe.config import ConfigError, build, dump_yaml, load_yaml, option, to_dict
from mqe.controllers.trot import GAIT_TERMS
from mqe.extensions import Registry
from mqe.manifest import check_files
from mqe.pretrained import PRETRAINED, pretrained_folder
from mqe.tensor_files import read_tensors
from mqe.world.robots import NUM_JOINTS, RobotCfg

DESCRIPTION = "gait.yaml"
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "sigmoid": nn.Sigmoid,
    "leaky_relu": nn.LeakyReLU,
    "hardswish": nn.Hardswish,
    "identity": nn.Identity,
}


@dataclass(frozen=True)
class GaitDescription:
    """The contents of ``gait.yaml``: a multilayer perceptron and its interface to a robot."""

    robot: str = option("", "kind of robot that the gait was trained on")
    observation: dict[str, int] = option(dict, "terms of the observation in their order, and sizes")
    activation: str = option("elu", "activation between the layers", choices=tuple(ACTIVATIONS))
    mean_bound: float | None = option(
        None, "bound of the actions, kept by a tanh; null: none", above=0.0
    )
    weights: str = option("", "file of the weights, in the same folder")
    layers: dict[str, int] = option(
        dict, "linear layers in their order (tensors NAME.weight, NAME.bias), and output sizes"
    )

    def __post_init__(self) -> None:
        if not self.weights or Path(self.weights).name != self.weights:
            raise ValueError(f"weights: must be the name of a file beside it, not {self.weights!r}")
        if not self.layers:
            raise ValueError("layers: must name at least one layer")


GAIT_READERS: Registry[Callable[[Path], GaitDescription | None]] = Registry("gait reader")
OBSERVATION = {term.name: len(term.mirror_signs) for term in GAIT_TERMS}


class GaitNetwork(nn.Module):
    """A multilayer perceptron from gait observations (..., 59) to joint actions (..., J), weights
    frozen.
    """

    def __init__(
        self, layers: list[tuple[Tensor, Tensor]], activation: str, mean_bound: float | None = None
    ) -> None:
        """Stack ``layers`` with ``activation`` between them; tanh keeps actions within +-
        ``mean_bound``.
        """
        super().__init__()
        self._weights = nn.ParameterList(
            [nn.Parameter(weight.t().contiguous(), False) for weight, _ in layers]
        )
        self._biases = nn.ParameterList([nn.Parameter(bias, False) for _, bias in layers])
        self._activation = ACTIVATIONS[activation]()
        self._mean_bound = mean_bound

    def forward(self, obs: Tensor) -> Tensor:
        """Return the mean action (..., J)."""
        x = obs.flatten(0, -2)
        last = len(self._weights) - 1
        for k, (weight, bias) in enumerate(zip(self._weights, self._biases, strict=True)):
            x = torch.addmm(bias, x, weight)
            if k < last:
                x = self._activation(x)
        if self._mean_bound is not None:
            x = self._mean_bound * torch.tanh(x / self._mean_bound)
        return x.unflatten(0, obs.shape[:-1])


def gait_folder(name: str) -> Path:
    """Return the folder of a gait, ``pretrained:NAME`` or a path."""
    if name.startswith(PRETRAINED):
        return pretrained_folder(name.removeprefix(PRETRAINED))
    return Path(name)


def write_description(folder: Path, description: GaitDescription) -> None:
    """Write ``gait.yaml`` beside the weights that it names."""
    text = dump_yaml(to_dict(description))
    (folder / DESCRIPTION).write_text(text, encoding="utf-8")


def read_description(name: str) -> GaitDescription:
    """Return the description of a gait; raise ConfigError for a folder that is none."""
    folder = gait_folder(name)
    if not folder.is_dir():
        raise ConfigError(
            f"task.gait: there is no folder '{folder.absolute()}'; name a checkpoint of a gait or "
            "pretrained:NAME"
        )
    if (folder / DESCRIPTION).is_file():
        check_files(folder, [DESCRIPTION])
        values = load_yaml(folder / DESCRIPTION)
        return build(GaitDescription, values, f"task.gait: '{name}': {DESCRIPTION}")
    for reader in GAIT_READERS.values():
        description = reader(folder)
        if description is not None:
            return description
    raise ConfigError(
        f"task.gait: '{name}' is no gait: it has no {DESCRIPTION} and is no checkpoint; name a "
        "checkpoint of a gait or pretrained:NAME"
    )


def load_gait(name: str, device: torch.device, robot: RobotCfg | None = None) -> GaitNetwork:
    """Load a gait from a folder or ``pretrained:NAME``.

    Raises ConfigError for a folder that is no gait, and for the gait of another kind of robot than
    ``robot``.
    """
    description = read_description(name)
    if robot is not None and description.robot != robot.name:
        raise ConfigError(
            f"task.gait: '{name}' is the gait of a {description.robot}, not of a {robot.name}; "
            f"leave it out, or name one that was trained with env.robots={robot.name}"
        )
    if list(description.observation.items()) != list(OBSERVATION.items()):
        raise ConfigError(
            f"task.gait: '{name}' was trained with the observation {description.observation}, "
            f"but this version has {OBSERVATION}; train it anew, or name pretrained:NAME"
        )
    layers = _read_layers(name, description)
    return GaitNetwork(layers, description.activation, description.mean_bound).to(device)


def _read_layers(name: str, description: GaitDescription) -> list[tuple[Tensor, Tensor]]:
    """Return the weight (out, in) and bias (out,) of each layer; raise ConfigError for others."""
    folder = gait_folder(name)
    path = folder / description.weights
    if not path.is_file():
        raise ConfigError(f"task.gait: '{name}' lacks {path.name}; name another gait")
    check_files(folder, [path.name])
    tensors = read_tensors(path)

    layers = []
    size_in = sum(description.observation.values())
    for layer, size_out in description.layers.items():
        try:
            weight = tensors[f"{layer}.weight"]
            bias = tensors[f"{layer}.bias"]
        except KeyError as error:
            raise ConfigError(
                f"task.gait: '{name}': {path.name} lacks {error}; name another gait"
            ) from None
        if weight.shape != (size_out, size_in) or bias.shape != (size_out,):
            raise ConfigError(
                f"task.gait: '{name}': layer {layer} is {tuple(weight.shape)}, but its description "
                f"and the layer before it need {(size_out, size_in)}; name another gait"
            )
        layers.append((weight, bias))
        size_in = size_out
    if size_in != NUM_JOINTS:
        raise ConfigError(
            f"task.gait: '{name}' has {size_in} actions, but a robot has {NUM_JOINTS} joints; name "
            "another gait"
        )
    return layers
