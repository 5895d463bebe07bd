"""State in named parts, for checkpoints."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


def states(parts: Any) -> Any:
    """Return copies of tensors, and the states of generators and other objects.

    Lists and dictionaries of these have the same lists and dictionaries of states.
    """
    if isinstance(parts, Mapping):
        return {name: states(part) for name, part in parts.items()}
    if isinstance(parts, list):
        return [states(part) for part in parts]
    if isinstance(parts, Tensor):
        return parts.clone()
    return parts.get_state() if isinstance(parts, torch.Generator) else parts.state_dict()


def restore(parts: Any, state: Any) -> None:
    """Restore ``states`` in place."""
    if isinstance(parts, Mapping):
        for name, part in parts.items():
            restore(part, state[name])
    elif isinstance(parts, list):
        for part, saved in zip(parts, state, strict=True):
            restore(part, saved)
    elif isinstance(parts, Tensor):
        parts.copy_(state)
    elif isinstance(parts, torch.Generator):
        parts.set_state(state.cpu())
    else:
        parts.load_state_dict(state)


def map_tensors(function: Callable[[Tensor], Tensor], values: Any) -> Any:
    """Apply ``function`` to the tensors in nested dictionaries, lists and tuples."""
    if isinstance(values, Tensor):
        return function(values)
    if isinstance(values, dict):
        return {name: map_tensors(function, value) for name, value in values.items()}
    if not isinstance(values, (list, tuple)):
        return values
    mapped = [map_tensors(function, value) for value in values]
    return type(values)(*mapped) if hasattr(values, "_fields") else type(values)(mapped)


class Resumable(ABC):
    """An object with a state for checkpoints."""

    @abstractmethod
    def state_parts(self) -> dict[str, Any]:
        """Return the state's live parts by name, as ``states`` takes them."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a bit-exact resume."""
        return states(self.state_parts())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a ``state_dict``."""
        restore(self.state_parts(), state)
