"""The learner's shared memory with its collectors: blocks of transitions, and the newest weights.

K collectors, B blocks and N environments for each, T decisions in a block.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from harl_mapush.learning.off_policy.replay_buffer import ReplayShape, Transition
from mqe.config import ConfigError

_NOT_BUILT = -1  # number of decisions before the worlds are built
State = dict[str, Tensor]  # a network's weights by name


class Channel(NamedTuple):
    """One collector's shared memory, as plain CPU tensors."""

    blocks: Transition  # (B, T, N, ...)
    weights: list[State]  # of the actors, without repetition
    stamps: Tensor  # (2,) updates of the weights, set before and after each change
    counts: Tensor  # (2,) the collector's decisions so far, and its policy's updates

    def block(self, number: int) -> Transition:
        """Return one block's fields, (T, N, ...)."""
        return Transition(*[values[number] for values in self.blocks])


class Exchange:
    """A learner's shared memory with all its collectors."""

    def __init__(
        self,
        shape: ReplayShape,
        num_steps: int,
        num_blocks: int,
        actors: Sequence[Any],
        num_updates: int,
    ) -> None:
        """Allocate ``num_blocks`` blocks for each of ``shape``'s rings, and copy the weights.

        Raises ConfigError without enough shared memory.
        """
        lead = (shape.num_rings, num_blocks, num_steps)
        counts = torch.tensor([_NOT_BUILT, num_updates]).repeat(shape.num_rings, 1)
        try:
            self._blocks = Transition(*[x.share_memory_() for x in new_block(shape, *lead)])
            states = [actor.state_dict() for actor in actors]
            self._weights = [
                {name: value.cpu().clone().share_memory_() for name, value in state.items()}
                for state in states
            ]
            self._stamps = torch.full((2,), num_updates).share_memory_()
            self._counts = counts.share_memory_()
        except RuntimeError as error:
            raise ConfigError(
                f"runner.queue_blocks: no shared memory for {num_blocks} blocks of each collector "
                f"({error}); lower it, or runner.num_steps, or enlarge /dev/shm"
            ) from None

    def channel(self, number: int) -> Channel:
        """Return one collector's memory."""
        blocks = Transition(*[values[number] for values in self._blocks])
        return Channel(blocks, self._weights, self._stamps, self._counts[number])

    def publish(self, actors: Sequence[Any], num_updates: int) -> None:
        """Replace the shared weights by those of ``actors``, unless they are of ``num_updates``
        already. This waits for the actors' device.
        """
        if self._stamps[1] == num_updates:
            return
        self._stamps[0] = num_updates
        for actor, state in zip(actors, self._weights, strict=True):
            for name, value in actor.state_dict().items():
                state[name].copy_(value)
        self._stamps[1] = num_updates


def new_block(shape: ReplayShape, *lead: int) -> Transition:
    """Allocate transitions (lead, N, ...) on the CPU. ``lead`` are additional dimensions."""
    agents = shape.num_agents

    def empty(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(*lead, shape.num_envs, *size, dtype=dtype)

    return Transition(
        obs=empty(agents, shape.obs_size),
        state=empty(shape.num_views, shape.state_size),
        actions=empty(agents, shape.action_size),
        active=empty(agents, dtype=torch.bool),
        rewards=empty(shape.num_views),
        next_obs=empty(agents, shape.obs_size),
        next_state=empty(shape.num_views, shape.state_size),
        terminated=empty(agents, dtype=torch.bool),
        done=empty(dtype=torch.bool),
        valid=empty(dtype=torch.bool),
    )
