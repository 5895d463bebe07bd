"""Networks that follow others slowly."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from harl_mapush.learning.normalization import RunningNorm


def target_of(network: Any) -> Any:
    """Copy a network, but share its running normalisation."""
    target = deepcopy(network).requires_grad_(False)
    for name, module in network.named_children():
        if isinstance(module, RunningNorm):
            setattr(target, name, module)
    return target
