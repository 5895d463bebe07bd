"""The contract between a learner and its users.

Its users are the trainers, checkpoints and evaluation. A block is T decisions. N environments,
A agents, O obs size, U action size, R recurrent layers, H hidden size.
"""

from typing import Any, Protocol

from torch import Tensor, nn

from harl_mapush.learning.collected import Decision as Decision
from harl_mapush.learning.collected import Experience as Experience


class Algorithm(Protocol):
    """A team with its learner. Users need no other members."""

    def make_experience(self, num_steps: int, num_envs: int) -> Experience:
        """Allocate storage for collected data.

        Raise ValueError if the settings do not allow this block size, or if it does not fit into
        the memory.
        """
        ...

    def act(self, obs: Tensor, hidden: Tensor | None = None) -> Decision:
        """Decide for obs (N, A, O), with exploration.

        ``hidden`` (A, N, R, H) are hidden states, None at the start of an episode. The call never
        waits for the device.
        """
        ...

    def update(self, experience: Any, progress: float = 0.0) -> dict[str, Tensor]:
        """Learn after a block, in as many steps as the settings require, none during a warm-up.

        ``progress`` in [0, 1) is the completed fraction of the run. Return metrics as 0-dim tensors
        on the device.
        """
        ...

    @property
    def networks(self) -> dict[str, nn.Module]:
        """The modules of a checkpoint by file name.

        Those named ``actor_agent{i}`` suffice for acting. A run with ``runner.init_from`` loads
        trained weights into the modules after the team is built with ``TeamSpec.is_trained``. Such
        a team acts by its actors from the first decision on, not at random, and copies weights (of
        a target network) at the first update at the earliest.
        """
        ...

    @property
    def weights(self) -> dict[str, Tensor]:
        """All trained weights as flat tensors by name. Updates must keep them finite."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a bit-exact resume, without the experience."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a ``state_dict``. Learning rates come from the settings unless adaptive."""
        ...
