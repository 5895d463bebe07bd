"""Saved worlds redistributed over another number of ranks."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def redistribute(shares: Sequence[Any], current: Any, rank: int, size: int) -> Any:
    """Return the part for rank ``rank`` of ``size`` from the states saved by other ranks.

    ``shares`` are the saved states, by rank. ``current`` is a state of the rank's present worlds. A
    dimension counts worlds, or parts of worlds, if its length in ``current`` differs from the saved
    one by the ratio between the two numbers of ranks. The saved states are joined and cut again
    along this dimension. All other values, such as counters and buffer sizes, come from the first
    state.
    """
    first = shares[0]
    if isinstance(first, dict):
        result = dict(first)
        for key in first:
            if key in current:
                parts = [share[key] for share in shares]
                result[key] = redistribute(parts, current[key], rank, size)
        return result
    if (
        not isinstance(first, Tensor)
        or not isinstance(current, Tensor)
        or first.dim() != current.dim()
    ):
        return first

    for dim, (before, now) in enumerate(zip(first.shape, current.shape, strict=True)):
        if before and before * len(shares) == now * size:
            return torch.cat(list(shares), dim=dim).chunk(size, dim=dim)[rank].clone()
    return first
