"""Files as OpenRL writes them, made here from torch's own layers under OpenRL's class names."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_CLASSES = {
    "PPOModule": ("openrl.modules.ppo_module", object),
    "Path": ("jsonargparse._util", object),
    "PolicyNetwork": ("openrl.modules.networks.policy_network", nn.Module),
    "ValueNetwork": ("openrl.modules.networks.value_network", nn.Module),
    "MLPBase": ("openrl.modules.networks.utils.mlp", nn.Module),
    "MLPLayer": ("openrl.modules.networks.utils.mlp", nn.Module),
    "ACTLayer": ("openrl.modules.networks.utils.act", nn.Module),
    "DiagGaussian": ("openrl.modules.networks.utils.distributions", nn.Module),
    "AddBias": ("openrl.modules.networks.utils.distributions", nn.Module),
    "ValueNorm": ("openrl.modules.utils.valuenorm", nn.Module),
    "Namespace": ("jsonargparse._namespace", object),
    "Box": ("gym.spaces.box", object),
}
_MADE = {
    name: type(name, (base,), {"__module__": module}) for name, (module, base) in _CLASSES.items()
}


@contextmanager
def _importable() -> Iterator[None]:
    """Let the classes be found under their names, as pickling asks for."""
    names = [module.split(".") for module, _ in _CLASSES.values()]
    packages = {".".join(parts[: k + 1]) for parts in names for k in range(len(parts))}
    modules = {name: ModuleType(name) for name in packages - set(sys.modules)}
    for made in _MADE.values():
        setattr(modules[made.__module__], made.__name__, made)
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]


def make(kind: str, **children: Any) -> Any:
    """Build an OpenRL class's object with these attributes."""
    made = _MADE[kind]()
    for name, child in children.items():
        setattr(made, name, child)
    return made


def trunk(obs_size: int, activation: nn.Module | None = None, layer_n: int = 1) -> Any:
    """Build OpenRL's layers, with plausible trained weights."""
    layers = make(
        "MLPLayer",
        fc1=nn.Sequential(nn.Linear(obs_size, 16), activation or nn.ReLU(), nn.LayerNorm(16)),
        fc3=nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16)),
    )
    if layer_n > 1:
        layers.fc_h = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.LayerNorm(16))
        layers.fc2 = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.LayerNorm(16))
            for _ in range(layer_n - 1)
        )
    for parameter in layers.parameters():
        nn.init.normal_(parameter, std=0.7)
    return make("MLPBase", mlp=layers)


def module(
    num_agents: int = 2,
    action_size: int = 3,
    obs_size: int | None = None,
    on_cpu: bool = False,
    layer_n: int = 1,
    **settings: Any,
) -> Any:
    """Build a team's PPOModule. ``on_cpu``: OpenRL's value normaliser has parameters instead of
    plain tensors.
    """
    torch.manual_seed(num_agents)
    size = 2 + 3 * num_agents if obs_size is None else obs_size
    head = make("DiagGaussian", fc_mean=nn.Linear(16, action_size))
    nn.init.normal_(head.fc_mean.weight, std=3.0)
    head.logstd = make(
        "AddBias", _bias=nn.Parameter(torch.tensor([[0.5], [1.0], [1.5]])[:action_size])
    )
    policy = make(
        "PolicyNetwork", base=trunk(size, layer_n=layer_n), act=make("ACTLayer", action_out=head)
    )
    statistics = {"running_mean": torch.tensor([-50.0]), "running_mean_sq": torch.tensor([5e4])}
    statistics["debiasing_term"] = torch.tensor(0.5)
    norm = make("ValueNorm")
    for name, value in statistics.items():
        setattr(norm, name, nn.Parameter(value, requires_grad=False) if on_cpu else value)
    critic = make(
        "ValueNetwork",
        base=trunk(size, layer_n=layer_n),
        v_out=nn.Linear(16, 1),
        value_normalizer=norm,
    )
    optimizer = torch.optim.Adam(policy.parameters(), lr=5e-4)
    policy.act.action_out.fc_mean.bias.sum().backward()
    optimizer.step()
    cfg = make(
        "Namespace",
        **({"lr": 5e-4, "ppo_epoch": 10, "num_mini_batch": 1, "exp_name": "x"} | settings),
    )
    space = make("Box", low=np.zeros(size), high=np.ones(size), dtype=np.dtype("float32"))
    models = {"policy": policy, "critic": critic}
    return make(
        "PPOModule", cfg=cfg, models=models, optimizers={"policy": optimizer}, input_space=space
    )


def mean(model: Any, obs: Tensor, head: nn.Linear) -> Tensor:
    """Return an OpenRL network's output, computed by its own layers."""
    layers = model.base.mlp
    features = layers.fc1(obs)
    for middle in getattr(layers, "fc2", []):
        features = middle(features)
    return head(layers.fc3(features))


def save(path: Path, content: Any) -> Path:
    """Write a whole pickled object, as OpenRL does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _importable():
        torch.save(content, path)
    return path


def archive(path: Path, pickled: bytes, storages: dict[str, bytes] | None = None) -> Path:
    """Write an archive as torch does around any pickle."""
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("module/data.pkl", pickled)
        file.writestr("module/version", "3\n")
        file.writestr("module/byteorder", "little")
        for key, numbers in (storages or {}).items():
            file.writestr(f"module/data/{key}", numbers)
    return path
