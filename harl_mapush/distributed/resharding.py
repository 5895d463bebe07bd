"""The worlds that ranks saved, redistributed over another number of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def on_host(state: Any) -> Any:
    """Return a nested state with all tensors on the host."""
    if isinstance(state, Tensor):
        return state.detach().cpu()
    if isinstance(state, dict):
        return {key: on_host(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(on_host(value) for value in state)
    return state


def redistribute(shares: Sequence[Any], own: Any, rank: int, size: int) -> Any:
    """Return the share of rank ``rank`` of ``size`` of the states that other ranks saved.

    ``shares`` are the saved states, by rank, and ``own`` is a state of the worlds that the rank has
    now. A dimension whose length in ``own`` differs by the ratio of the two numbers of ranks counts
    worlds, or parts of worlds; the shares are joined and cut again along it. All other values, such
    as counters and sizes of buffers, are those of the first share.
    """
    first = shares[0]
    if isinstance(first, dict):
        result = dict(first)
        for key in first:
            if key in own:
                parts = [share[key] for share in shares]
                result[key] = redistribute(parts, own[key], rank, size)
        return result
    if not isinstance(first, Tensor) or not isinstance(own, Tensor) or first.dim() != own.dim():
        return first

    for dim, (before, now) in enumerate(zip(first.shape, own.shape, strict=True)):
        if before and before * len(shares) == now * size:
            return torch.cat(list(shares), dim=dim).chunk(size, dim=dim)[rank].clone()
    return first
