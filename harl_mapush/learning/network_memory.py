"""Memory of a pass through a network, measured on a few rows."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

_NUM_ROWS = 64  # so many that tensors of constant size hardly count
_BYTES_A_FLOAT = 4


def row_floats(
    network: nn.Module, in_size: int, run: Callable[[Tensor], object] | None = None
) -> float:
    """Return the floats per row of a pass with gradients through ``network``.

    These are autograd's saved tensors, and the largest gradient with its product. ``run`` stands
    for the network's call with rows (B, in_size).
    """
    saved: dict[int, float] = {}
    weights = {weight.untyped_storage().data_ptr() for weight in network.parameters()}

    def keep(value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes() / _BYTES_A_FLOAT / _NUM_ROWS
        return value

    device = next(network.parameters()).device
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        (run or network)(torch.zeros(_NUM_ROWS, in_size, device=device))
    return sum(saved.values()) + 2.0 * max(saved.values(), default=0.0)
