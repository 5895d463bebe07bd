"""Delays: a history of values for every world, and joint targets on their way to the motors."""

import torch
from torch import Tensor

from mqe.resumable import Resumable
from mqe.world.scene import DECIMATION

MAX_DELAY = 12  # physics steps: 60 ms


class History(Resumable):
    """Every world's last values, newest first. Before an episode's start its first value is
    repeated.
    """

    def __init__(self, length: int, shape: tuple[int, ...], device: torch.device) -> None:
        """Allocate ``length`` values of ``shape`` (N, ...)."""
        self._values = torch.zeros(length, *shape, device=device)
        self._is_first = torch.ones(shape[0], dtype=torch.bool, device=device)
        self._world = torch.arange(shape[0], device=device)

    def __len__(self) -> int:
        """Return the number of values."""
        return len(self._values)

    def begin(self, mask: Tensor) -> None:
        """Reset the worlds of ``mask`` (N,)."""
        self._is_first.logical_or_(mask)

    def push(self, value: Tensor) -> None:
        """Add the newest value (N, ...)."""
        is_first = self._is_first.view(1, -1, *[1] * (value.dim() - 1))
        self._values[1:] = torch.where(is_first, value, self._values[:-1])
        self._values[0] = value
        self._is_first.zero_()

    def at(self, age: Tensor) -> Tensor:
        """Return the values (..., N, ...) of ``age`` (..., N or 1) int64, 0 for the newest.

        Ages beyond the oldest return the oldest.
        """
        return self._values[age.clamp(0, len(self) - 1), self._world]

    def state_parts(self) -> dict[str, Tensor]:
        """Return the stored values."""
        return {"values": self._values, "is_first": self._is_first}


class TargetDelay(History):
    """Every world's last joint targets, and the applied target in each physics step."""

    def __init__(self, num_envs: int, num_targets: int, device: torch.device) -> None:
        """Begin without targets. Before an episode's start its first target is repeated."""
        # Targets of this control step, and of earlier ones within the largest delay
        num_steps = 1 - (-MAX_DELAY // DECIMATION)
        super().__init__(num_steps, (num_envs, num_targets), device)
        self._substep = torch.arange(DECIMATION, device=device).unsqueeze(1)

    def send(self, targets: Tensor, delay: Tensor | int) -> Tensor:
        """Add a control step's targets (N, J) [rad]. Return the applied targets (4, N, J) in its
        physics steps.

        ``delay`` counts physics steps, one value or (N,) int64, at most ``MAX_DELAY``.
        """
        self.push(targets)
        if isinstance(delay, int):  # a fixed delay needs no index on the device
            ages = [max(0, -((k - delay) // DECIMATION)) for k in range(DECIMATION)]
            return torch.stack([self._values[age] for age in ages])
        late = delay - self._substep + DECIMATION - 1
        return self.at(torch.div(late, DECIMATION, rounding_mode="floor"))
