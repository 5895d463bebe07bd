"""Networks that follow others slowly, and actors that a team shares."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from harl_mapush.learning.normalization import RunningNorm


def target_of(network: Any) -> Any:
    """Copy a network but for its running normalisation, which both have."""
    target = deepcopy(network).requires_grad_(False)
    for name, module in network.named_children():
        if isinstance(module, RunningNorm):
            setattr(target, name, module)
    return target


def flatten(network: nn.Module) -> Tensor:
    """Make a network's parameters views of one flat tensor, and return that."""
    parameters = list(network.parameters())
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.data = part.view(parameter.shape)
    return flat


def shared(make: Callable[..., Any], sizes: list[tuple[int, int]], *, is_shared: bool) -> list[Any]:
    """Build an actor an agent by ``make(obs size, action size)``, or the same one for all.

    Raises ValueError where sizes forbid sharing.
    """
    if not is_shared:
        return [make(*size) for size in sizes]
    if len(set(sizes)) > 1:
        raise ValueError(f"share_param needs agents of equal sizes, not {sizes}; set algorithm.share_param=false")
    return [make(*sizes[0])] * len(sizes)
