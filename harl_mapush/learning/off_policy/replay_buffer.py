"""Replay buffer: transitions for off-policy algorithms.

N environments, A agents, G critic views (1, or A with one state per agent), B batch rows, R rows in
a ring. Row t N + n has one decision for environment n. Its next decision is N rows further on. If
several processes collect, each has a ring with N environments, and the rings lie one after the
other.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from harl_mapush.distributed.ranks import ALONE, Ranks

# Bits of a transition's flags
TERMINATED = 1
DONE = 2
VALID = 4

_ENDED = TERMINATED | DONE

# Tensors of a replay buffer's state
_STORED = ("here", "there", "rewards", "flags", "order", "num_valid")


class Transition(NamedTuple):
    """One decision for every environment. The next state is always in the same episode."""

    obs: Tensor  # (N, A, O)
    state: Tensor  # (N, G, S)
    actions: Tensor  # (N, A, U)
    active: Tensor  # (N, A) bool: alive when the decision was taken
    rewards: Tensor  # (N, G)
    next_obs: Tensor  # (N, A, O)
    next_state: Tensor  # (N, G, S)
    terminated: Tensor  # (N, A) bool: ended by the task
    done: Tensor  # (N,) bool: ended, for any reason
    valid: Tensor  # (N,) bool: False if the simulation broke


class Batch(NamedTuple):
    """B transitions over up to n decisions."""

    obs: Tensor  # (B, A, O)
    state: Tensor  # (B, G, S)
    actions: Tensor  # (B, A, U)
    active: Tensor  # (B, A) float: 1 if the agent was alive
    returns: Tensor  # (B, G) discounted rewards of the decisions up to next_obs
    # Of the next state's value; 0 if the task ended the episode. (B,), or (B, G) where each agent's
    # sum has an end of its own.
    discount: Tensor
    next_obs: Tensor  # (B, A, O)
    next_state: Tensor  # (B, G, S)


class ReplayShape(NamedTuple):
    """Replay buffer sizes. Each ring holds ``num_rows`` decisions for ``num_envs`` worlds."""

    num_rows: int
    num_envs: int
    num_agents: int
    obs_size: int
    action_size: int
    num_views: int  # G
    state_size: int
    num_rings: int = 1
    ends_apart: bool = False  # whether the sum of an agent that dies alone ends there (G = A)

    @property
    def ring_size(self) -> int:
        """Number of transitions in one ring, R N."""
        return self.num_rows * self.num_envs

    @property
    def num_transitions(self) -> int:
        """Number of transitions in all rings."""
        return self.num_rings * self.ring_size

    @property
    def nbytes(self) -> int:
        """Memory of the whole replay buffer [bytes]."""
        inputs = self.num_agents * self.obs_size + self.num_views * self.state_size
        floats = 2 * inputs + self.num_agents * (self.action_size + 1) + self.num_views
        flags = 1 + self.ends_apart * self.num_agents
        return self.num_transitions * (4 * floats + flags + 4) + 16 * self.num_rings * self.num_rows


def replay_shape(capacity: int, num_envs: int, **sizes: Any) -> ReplayShape:
    """Return the sizes of rings with room for at least ``capacity`` transitions.

    Each ring has ``num_envs`` environments and room for at least two decisions.
    """
    row = num_envs * sizes.get("num_rings", 1)
    return ReplayShape(num_rows=max(2, math.ceil(capacity / row)), num_envs=num_envs, **sizes)


class RingReplay:
    """One or more ring buffers of transitions on one device.

    The n-step returns are computed when a batch is drawn. No method waits for the device, so
    drawing can be captured in a CUDA graph.
    """

    def __init__(
        self,
        shape: ReplayShape,
        num_steps: int,
        gamma: float,
        generator: torch.Generator,
        device: torch.device | str,
        ranks: Ranks = ALONE,
    ) -> None:
        """Allocate the rings. A batch's transition spans up to ``num_steps`` decisions.

        ``generator``, on ``device``, draws the batches.
        """
        self.shape = shape
        self.num_steps = num_steps
        self.gamma = gamma
        self.generator = generator
        self._ranks = ranks
        self._input_sizes = (shape.num_agents * shape.obs_size, shape.num_views * shape.state_size)
        self._action_sizes = (shape.num_agents * shape.action_size, shape.num_agents)
        rows = shape.num_rings * shape.num_rows
        envs = shape.num_envs
        num_inputs = sum(self._input_sizes)

        def zeros(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=device)

        # Obs, state, actions and active; next obs and next state
        self.here = zeros(rows, envs, num_inputs + sum(self._action_sizes))
        self.there = zeros(rows, envs, num_inputs)
        self.rewards = zeros(rows, envs, shape.num_views)
        self.flags = zeros(rows, envs, dtype=torch.uint8)
        # Flags of agents that ended before their team, where their sums do as well
        agents = shape.num_agents if shape.ends_apart else 0
        self.ends = zeros(rows, envs, agents, dtype=torch.uint8)

        # The valid environments of a row before the others, and the numbers of valid ones
        self.order = zeros(rows, envs, dtype=torch.int32)
        self.num_valid = zeros(rows, dtype=torch.int64)
        # Number of valid transitions in a row and those before it.
        self.num_valid_up_to = zeros(rows, dtype=torch.int64)

        self.newest = zeros(shape.num_rings, dtype=torch.int64)  # newest row of each ring
        self.num_added = [0] * shape.num_rings  # rows ever added to each ring

    def __len__(self) -> int:
        """Return the number of stored transitions, invalid ones included."""
        rows = sum(min(added, self.shape.num_rows) for added in self.num_added)
        return rows * self.shape.num_envs

    # Storing

    def add(self, transition: Transition, ring: int = 0) -> None:
        """Store one decision for every environment in a ring."""
        envs = self.shape.num_envs
        row = self._row(ring, self.num_added[ring])

        # The transition itself.
        x = transition
        before = (x.obs, x.state, x.actions, x.active.to(x.obs.dtype))
        after = (x.next_obs, x.next_state)
        torch.cat([part.reshape(envs, -1) for part in before], dim=1, out=self.here[row])
        torch.cat([part.reshape(envs, -1) for part in after], dim=1, out=self.there[row])
        self.rewards[row] = x.rewards
        by_task = x.terminated.all(dim=1)
        self.flags[row] = by_task * TERMINATED + x.done * DONE + x.valid * VALID
        if self.shape.ends_apart:
            self.ends[row] = (x.terminated & ~x.done.unsqueeze(1)) * _ENDED

        # The places of valid transitions.
        self.order[row] = torch.argsort((~x.valid).to(torch.uint8), stable=True)
        self.num_valid[row] = x.valid.sum()
        torch.cumsum(self.num_valid, 0, out=self.num_valid_up_to)

        self.newest[ring].fill_(row)  # unlike an assignment, this does not wait for the device
        self.num_added[ring] += 1

    def cut(self, ring: int) -> None:
        """End a ring's episodes at its newest decision, as a time-out does."""
        if self.num_added[ring]:
            self.flags[self._row(ring, self.num_added[ring] - 1)] |= DONE

    # Drawing

    def sample(self, batch_size: int) -> Batch:
        """Draw valid transitions uniformly, with replacement."""
        uniform = self._ranks.draw(
            torch.rand,
            (batch_size,),
            dtype=torch.float64,
            generator=self.generator,
            device=self.flags.device,
        )
        number = (uniform * self.num_valid_up_to[-1]).long()
        row = torch.searchsorted(self.num_valid_up_to, number, right=True)
        row = row.clamp(max=len(self.num_valid) - 1)
        column = number - (self.num_valid_up_to[row] - self.num_valid[row])
        return self.look_up(row * self.shape.num_envs + self.order[row, column])

    def look_up(self, index: Tensor) -> Batch:
        """Return the transitions beginning at rows ``index`` (B,), among every ring's R N rows.

        Rewards are summed over ``num_steps`` decisions. The sum stops earlier at an episode's end,
        at the newest decision, and before a broken one. The value after the sum replaces the
        remaining rewards. With episode ends per agent, an agent's sum also stops at its own end,
        and the rest belongs to its last decision.
        """
        if not self.shape.ends_apart:
            return self._look_up(index, self.flags.view(-1))
        batches = [
            self._look_up(index, (self.flags | self.ends[..., agent]).view(-1))
            for agent in range(self.shape.num_agents)
        ]

        def of_each(values: Sequence[Tensor]) -> Tensor:
            return torch.stack([value[:, agent] for agent, value in enumerate(values)], dim=1)

        return batches[0]._replace(
            returns=of_each([batch.returns for batch in batches]),
            discount=torch.stack([batch.discount for batch in batches], dim=1),
            next_obs=of_each([batch.next_obs for batch in batches]),
            next_state=of_each([batch.next_state for batch in batches]),
        )

    def _look_up(self, index: Tensor, flags: Tensor) -> Batch:
        """Return the transitions at rows ``index``. ``flags`` (R N,) end the sums."""
        shape = self.shape
        rewards = self.rewards.flatten(0, 1)

        # Advance to the end of the sum.
        last = index
        returns = rewards[index]
        factor = torch.full_like(self.rewards[0, :1, 0], self.gamma).expand(len(index))
        continues = torch.ones_like(index, dtype=torch.bool)
        ring = index // shape.ring_size
        first = ring * shape.ring_size
        newest = self.newest[ring]
        for _ in range(self.num_steps - 1):
            after = first + (last - first + shape.num_envs) % shape.ring_size
            continues = continues & (flags[last] & DONE == 0) & (last // shape.num_envs != newest)
            continues = continues & (flags[after] & VALID != 0)
            returns = returns + torch.where(continues, factor, 0.0).unsqueeze(1) * rewards[after]
            factor = torch.where(continues, factor * self.gamma, factor)
            last = torch.where(continues, after, last)

        # Gather the first decision and the state after the last one.
        first_parts = self.here.flatten(0, 1).index_select(0, index)
        last_parts = self.there.flatten(0, 1).index_select(0, last)
        obs, state, actions, active = first_parts.split(
            [*self._input_sizes, *self._action_sizes], dim=1
        )
        next_obs, next_state = last_parts.split(list(self._input_sizes), dim=1)
        by_agent = (len(index), shape.num_agents, -1)
        by_view = (len(index), shape.num_views, -1)
        return Batch(
            obs=obs.view(by_agent),
            state=state.view(by_view),
            actions=actions.view(by_agent),
            active=active,
            returns=returns,
            discount=torch.where(flags[last] & TERMINATED != 0, 0.0, factor),
            next_obs=next_obs.view(by_agent),
            next_state=next_state.view(by_view),
        )

    # Saving

    def state_dict(self) -> dict[str, Any]:
        """Return the rows in use, and the number of rows ever added to each ring."""
        used = self._used(self.num_added)
        state = {name: getattr(self, name)[used] for name in self._stored}
        return state | {"num_added": list(self.num_added)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a ``state_dict``. Raise ValueError for other sizes."""
        num_added = state["num_added"]
        if len(num_added) != self.shape.num_rings:
            raise ValueError(f"replay has {len(num_added)} rings, not {self.shape.num_rings}")
        used = self._used(num_added)
        if self.shape.ends_apart and "ends" not in state:  # saved before sums ended apart
            state = state | {"ends": torch.zeros_like(self.ends[used])}
        for name in self._stored:
            tensor = getattr(self, name)
            if state[name].shape != (len(used), *tensor.shape[1:]):
                raise ValueError(f"replay.{name} has shape {tuple(state[name].shape)}")
            tensor.zero_()
            tensor[used] = state[name].to(tensor.device)
        self.num_added = list(num_added)

        # Worlds may have moved to another rank, so the places of valid transitions are recomputed.
        is_valid = self.flags & VALID != 0
        self.order.copy_(torch.argsort((~is_valid).to(torch.uint8), dim=1, stable=True))
        self.num_valid.copy_(is_valid.sum(dim=1))
        torch.cumsum(self.num_valid, 0, out=self.num_valid_up_to)
        for ring, added in enumerate(num_added):
            self.newest[ring] = self._row(ring, added - 1)

    @property
    def _stored(self) -> tuple[str, ...]:
        return (*_STORED, "ends") if self.shape.ends_apart else _STORED

    # Rows

    def _row(self, ring: int, number: int) -> int:
        """Return the row of a ring's ``number``-th decision."""
        return ring * self.shape.num_rows + number % self.shape.num_rows

    def _used(self, num_added: Sequence[int]) -> Tensor:
        """Return the rows in use after ``num_added`` rows in each ring."""
        rows = self.shape.num_rows
        used = [
            torch.arange(min(added, rows)) + ring * rows for ring, added in enumerate(num_added)
        ]
        return torch.cat(used).to(self.flags.device)
