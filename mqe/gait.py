"""Frozen gait policies: from a checkpoint's files to a function on tensors."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import torch
from torch import Tensor, nn

from mqe.config import ConfigError, load_yaml

PRETRAINED = "pretrained:"
_UNKNOWN_LAYERS = ("normalize_obs", "use_feature_normalization", "use_layer_norm", "use_recurrent_policy")
_ACTIVATIONS = {"elu": nn.ELU, "relu": nn.ReLU, "tanh": nn.Tanh}


class GaitPolicy(nn.Module):
    """A multilayer perceptron from gait observations (..., 47) to joint actions (..., 12), weights frozen."""

    def __init__(self, layers: list[tuple[Tensor, Tensor]], activation: str, mean_bound: float | None = None) -> None:
        """Stack ``layers`` with ``activation`` between them; tanh keeps actions within +- ``mean_bound``."""
        super().__init__()
        self._weights = nn.ParameterList([nn.Parameter(weight.t().contiguous(), False) for weight, _ in layers])
        self._biases = nn.ParameterList([nn.Parameter(bias, False) for _, bias in layers])
        self._activation = _ACTIVATIONS[activation]()
        self._mean_bound = mean_bound

    def forward(self, obs: Tensor) -> Tensor:
        """Give the mean action (..., 12)."""
        x = obs.flatten(0, -2)
        last = len(self._weights) - 1
        for k, (weight, bias) in enumerate(zip(self._weights, self._biases, strict=True)):
            x = torch.addmm(bias, x, weight)
            if k < last:
                x = self._activation(x)
        if self._mean_bound is not None:
            x = self._mean_bound * torch.tanh(x / self._mean_bound)
        return x.unflatten(0, obs.shape[:-1])


def pretrained_folder(name: str) -> Path:
    """Give the folder of a policy that ships with the package, or raise ConfigError with the names there are."""
    root = Path(str(resources.files("mqe"))) / "assets" / "pretrained"
    folder = root / name
    if not (folder / "config.yaml").is_file():
        known = (
            sorted(path.name for path in root.iterdir() if (path / "config.yaml").is_file()) if root.is_dir() else []
        )
        raise ConfigError(f"unknown pretrained policy '{name}'; there are: {', '.join(known) or 'none'}")
    return folder


def load_gait(what: str, device: torch.device) -> GaitPolicy:
    """Load the gait of a checkpoint folder or ``pretrained:NAME``."""
    folder = pretrained_folder(what.removeprefix(PRETRAINED)) if what.startswith(PRETRAINED) else Path(what)
    for name in ("config.yaml", "actor_agent0.pt"):
        if not (folder / name).is_file():
            raise ConfigError(f"task.gait: '{what}' is no checkpoint of a gait, it lacks {name}; say pretrained:NAME")
    cfg = load_yaml(folder / "config.yaml")
    try:
        weights = torch.load(folder / "actor_agent0.pt", map_location=device, weights_only=True)
    except Exception as error:  # torch raises what its readers raise: RuntimeError, EOFError, UnpicklingError, ...
        raise ConfigError(f"task.gait: '{what}' is damaged ({type(error).__name__}); take another checkpoint") from None
    if cfg["task"]["name"] != "go1_velocity":
        raise ConfigError(
            f"task.gait: '{what}' is a policy of task {cfg['task']['name']}; a gait is one of go1_velocity"
        )
    for key in _UNKNOWN_LAYERS:
        if cfg["network"].get(key):
            raise ConfigError(f"task.gait: '{what}' was trained with network.{key}; a gait is a plain MLP")
    hidden = [
        key.removesuffix(".weight") for key in weights if key.startswith("base.mlp.fc.") and key.endswith(".weight")
    ]
    names = [*hidden, "act.action_out.fc_mean"]
    layers = [(weights[f"{name}.weight"], weights[f"{name}.bias"]) for name in names]
    network = cfg["network"]
    return GaitPolicy(layers, network["activation"], network.get("mean_bound"))
