"""The contract between collecting and learning: a team's decisions, and the data learned from.

A block is T decisions. N environments, A agents, O obs size, U action size, R recurrent layers, H
hidden size.
"""

from typing import Any, NamedTuple, Protocol

from torch import Tensor

from mqe.vec_env import TimeStep


class Decision(NamedTuple):
    """Actions and log probabilities per dimension (N, A, U), and hidden states (A, N, R, H).

    ``log_probs`` is None if the learner does not need them.
    ``hidden`` is None without recurrence.
    """

    actions: Tensor
    log_probs: Tensor | None
    hidden: Tensor | None


class Experience(Protocol):
    """Training data: one block of T decisions, or a replay buffer.

    ``begin``, ``hidden`` and ``finish`` do nothing unless a subclass has them.
    """

    def start(self, obs: Tensor, state: Tensor) -> None:
        """Store the obs (N, A, O) and state before the first decision.

        Called at the start of a run and after a resume.
        """
        return

    def begin(self) -> None:
        """Begin a block of T decisions."""
        return

    def hidden(self, t: int) -> Tensor | None:
        """Return the hidden states (A, N, R, H) for decision ``t``, None without recurrence."""
        return None

    def add(self, t: int, obs: Tensor, decision: Decision, step: TimeStep) -> None:
        """Store decision ``t`` of the block, taken on obs (N, A, O), and its result."""
        ...

    def finish(self) -> None:
        """End the block. An update may follow."""
        return

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a resumed run. An unsaved replay buffer starts empty."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a ``state_dict``. ``start`` must follow."""
        ...
