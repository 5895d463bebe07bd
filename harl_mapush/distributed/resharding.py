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
    """Return rank ``rank``'s share, of ``size``, of nested states that ``len(shares)`` ranks saved,
    by rank.

    ``own`` is a state of the worlds that the rank has now. A dimension whose length there differs
    by the ratio of the two numbers of ranks counts worlds, or parts of worlds. Along it the shares
    are joined and cut again. Everything else, such as counters and sizes of buffers, is that of the
    first share.
    """
    first = shares[0]
    if isinstance(first, dict):
        return {
            key: redistribute([share[key] for share in shares], own.get(key), rank, size)
            if key in own
            else first[key]
            for key in first
        }
    if not isinstance(first, Tensor) or not isinstance(own, Tensor) or first.dim() != own.dim():
        return first
    for dim, (before, now) in enumerate(zip(first.shape, own.shape, strict=True)):
        if before and before * len(shares) == now * size:
            return torch.cat(list(shares), dim=dim).chunk(size, dim=dim)[rank].clone()
    return first
