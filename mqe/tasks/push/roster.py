"""The robots in observed sets, as columns in a task's memory."""

from __future__ import annotations

from torch import Tensor


class Roster:
    """Participating robots, and each robot's observed ones, as columns in a memory."""

    def __init__(self, values: Tensor, num_agents: int) -> None:
        """Read both off ``values`` (N, C), 1 for yes and 0 for no. They stay views."""
        self.takes_part = values[:, :num_agents]  # (N, A)
        # (N, A, A) the robot of the row observes that of the column, if it takes part.
        self.observes = values[:, num_agents:].unflatten(1, (num_agents, num_agents))

    @staticmethod
    def size(num_agents: int) -> int:
        """Return the number of columns C."""
        return num_agents + num_agents**2
