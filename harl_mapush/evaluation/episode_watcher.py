"""Base class of observers that measure the first episode of every world."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from mqe.env.observer import Observer

# Returns the turn (N,) [rad] to the heading at the goal, for the object's yaw (N,).
HeadingError = Callable[[Tensor], Tensor]


class EpisodeWatcher(Observer, ABC):
    """An observer with metrics of episodes, for ``calculator.first_episodes``."""

    def __init__(self, num_envs: int, device: torch.device) -> None:
        """Begin with no world finished."""
        self._is_finished = torch.zeros(num_envs, dtype=torch.bool, device=device)

    def finish(self, is_finished: Tensor) -> None:
        """Exclude the worlds of ``is_finished`` (N,) from further measurements."""
        self._is_finished = is_finished.clone()

    def counting(self, live: Tensor) -> Tensor:
        """Return which worlds (N,) a control step counts in, of those in which it is ``live``."""
        return live & ~self._is_finished

    @abstractmethod
    def episodes(self) -> dict[str, Tensor]:
        """Return the measurements (N,) by name."""
