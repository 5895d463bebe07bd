"""Joint targets on their way to the motors: they take effect some physics steps after they were given."""

from __future__ import annotations

import torch
from torch import Tensor

from mqe.scene import DECIMATION

MAX_DELAY = 12  # physics steps: 60 ms
_KEPT = -(-MAX_DELAY // DECIMATION)  # targets of earlier control steps that may still be in force


class TargetDelay:
    """The last joint targets of every world, and which of them a motor follows in each physics step."""

    def __init__(self, num_envs: int, num_targets: int, device: torch.device) -> None:
        """Hold no targets yet: the first ones of an episode stand in for those before."""
        self._targets = torch.zeros(1 + _KEPT, num_envs, num_targets, device=device)  # newest first
        self._is_first = torch.ones(num_envs, dtype=torch.bool, device=device)
        self._world = torch.arange(num_envs, device=device)
        self._substep = torch.arange(DECIMATION, device=device).unsqueeze(1)

    def begin(self, mask: Tensor) -> None:
        """Forget the old episodes of ``mask`` (N,)."""
        self._is_first.logical_or_(mask)

    def send(self, targets: Tensor, delay: Tensor | int) -> Tensor:
        """Take the targets (N, J) of a control step; return what the motors follow in its physics steps.

        ``delay`` counts physics steps, one number or (N,) int64, at most ``MAX_DELAY``. The result is (4, N, J).
        """
        older = torch.where(self._is_first.view(1, -1, 1), targets, self._targets[:-1])
        self._targets[1:] = older
        self._targets[0] = targets
        self._is_first.zero_()
        if isinstance(delay, int):
            back = [max(0, -((k - delay) // DECIMATION)) for k in range(DECIMATION)]
            return torch.stack([self._targets[k] for k in back])
        late = torch.div(delay - self._substep + DECIMATION - 1, DECIMATION, rounding_mode="floor").clamp(min=0)
        return self._targets[late, self._world]

    def state_dict(self) -> dict[str, Tensor]:
        """Return the targets that may still take effect."""
        return {"targets": self._targets.clone(), "is_first": self._is_first.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Resume from ``state_dict``."""
        self._targets.copy_(state["targets"])
        self._is_first.copy_(state["is_first"])
