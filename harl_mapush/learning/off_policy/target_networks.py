"""Networks that follow others slowly."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from torch import Tensor

from harl_mapush.learning.normalization import RunningNorm
from harl_mapush.learning.optimizer import FlatAdam, flatten


def target_of(network: Any) -> Any:
    """Copy a network, but share its running normalisation."""
    target = deepcopy(network).requires_grad_(False)
    for name, module in network.named_children():
        if isinstance(module, RunningNorm):
            setattr(target, name, module)
    return target


def targets_of(
    networks: Sequence[Any], optimizers: Sequence[FlatAdam]
) -> tuple[list[Any], list[tuple[Tensor, Tensor]]]:
    """Copy networks; return the copies, and their flat weights beside those that they follow, the
    optimisers'.
    """
    copies = [target_of(network) for network in networks]
    weights = [flatten(list(copy.parameters())) for copy in copies]
    return copies, [
        (own, optimizer.flat) for own, optimizer in zip(weights, optimizers, strict=True)
    ]
