"""The robots that observations as sets contain, as columns of a task's memory."""

from __future__ import annotations

from torch import Tensor


class Roster:
    """Which robots take part, and which others each of them observes, as columns of a memory."""

    def __init__(self, values: Tensor, num_agents: int) -> None:
        """Read both off ``values`` (N, C), 1 for yes and 0 for no; they stay views."""
        self.takes_part = values[:, :num_agents]  # (N, A)
        # (N, A, A) the robot of the row observes that of the column, if it takes part.
        self.observes = values[:, num_agents:].unflatten(1, (num_agents, num_agents))

    @staticmethod
    def size(num_agents: int) -> int:
        """Return the number of columns C."""
        return num_agents + num_agents**2
