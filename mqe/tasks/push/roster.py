"""The robots in observed sets, as columns in a task's memory."""

from __future__ import annotations

from torch import Tensor

from mqe.config import ConfigError
from mqe.tasks.push.settings import ROOM
from mqe.tasks.terms import Memory


class Roster:
    """Participating robots, and each robot's observed ones, as columns in a memory."""

    def __init__(self, values: Tensor, num_agents: int) -> None:
        """Read both masks from ``values`` (N, C), 1 for yes and 0 for no, as views."""
        self.takes_part = values[:, :num_agents]  # (N, A)
        # (N, A, A) the row's robot observes the column's robot if that one takes part.
        self.observes = values[:, num_agents:].unflatten(1, (num_agents, num_agents))

    @classmethod
    def allocate(cls, memory: Memory, values: Tensor, num_agents: int) -> Roster:
        """Return a roster in ``memory``, with its columns in ``values`` (N, C).

        Raises ConfigError for a team too large for observed sets.
        """
        if num_agents > ROOM:
            raise ConfigError(
                f"env.num_agents={num_agents}: observations as sets have room for {ROOM} robots; "
                "take fewer robots, or another task.observation"
            )
        return cls(memory.keep("roster", values, start=1.0), num_agents)

    @staticmethod
    def size(num_agents: int) -> int:
        """Return the number of columns C."""
        return num_agents + num_agents**2
