"""All tensors that a run holds, wherever they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

_OURS = ("mqe.", "harl_mapush.")  # the modules whose objects hold tensors of a run


def tensors_of(thing: Any, name: str, seen: set[int] | None = None) -> Iterator[tuple[str, Tensor]]:
    """Go through all tensors that ``thing`` holds, in containers, networks and objects of this
    program.
    """
    seen = set() if seen is None else seen
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, Tensor):
        yield name, thing
    elif isinstance(thing, nn.Module):
        for part, tensor in (*thing.named_parameters(), *thing.named_buffers()):
            yield f"{name}.{part}", tensor
    elif isinstance(thing, dict):
        for key, value in thing.items():
            yield from tensors_of(value, f"{name}[{key!r}]", seen)
    elif isinstance(thing, (list, tuple)):
        for index, value in enumerate(thing):
            yield from tensors_of(value, f"{name}[{index}]", seen)
    elif type(thing).__module__.startswith(_OURS):
        for key, value in vars(thing).items():
            yield from tensors_of(value, f"{name}.{key.lstrip('_')}", seen)
