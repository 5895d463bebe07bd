"""The replay buffer: the transitions that off-policy algorithms learn from.

N environments, A agents, G critic views (1, or A where every agent has its own state), B rows of a
batch, R rows of a ring. Row t N + n holds what happened at one decision of environment n; the
decision after it is N rows further on. Several rings, each of N environments of its own, lie one
after the other where several processes collect.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from harl_mapush.distributed.ranks import ALONE, Ranks
from mqe.vec_env import MirrorImage

_TERMINATED = 1
_DONE = 2
_VALID = 4


class Transition(NamedTuple):
    """One decision of every environment; what follows it belongs to the same episode, also where
    that ended.
    """

    obs: Tensor  # (N, A, O)
    state: Tensor  # (N, G, S)
    actions: Tensor  # (N, A, U)
    active: Tensor  # (N, A) bool: alive when the decision was taken
    rewards: Tensor  # (N, G)
    next_obs: Tensor  # (N, A, O)
    next_state: Tensor  # (N, G, S)
    terminated: Tensor  # (N,) bool: ended by the task
    done: Tensor  # (N,) bool: ended, whatever the reason
    valid: Tensor  # (N,) bool: False where the simulation broke


class Batch(NamedTuple):
    """Transitions over up to n decisions, of which B were drawn."""

    obs: Tensor  # (B, A, O)
    state: Tensor  # (B, G, S)
    actions: Tensor  # (B, A, U)
    active: Tensor  # (B, A) float: 1 where the agent was alive
    returns: Tensor  # (B, G) discounted rewards of the decisions up to next_obs
    discount: Tensor  # (B,) of the value there; 0 where the task ended the episode
    next_obs: Tensor  # (B, A, O)
    next_state: Tensor  # (B, G, S)


def joined(first: Batch, second: Batch) -> Batch:
    """Return the transitions of two batches in one."""
    return Batch(*(torch.cat(parts) for parts in zip(first, second, strict=True)))


def half_mirrored(batch: Batch, image: MirrorImage | None) -> Batch:
    """Put the mirror image of every other transition in its place, in a world that has one; return
    the batch itself.
    """
    if image is None or image.state is None:
        return batch
    parts = (batch.obs, image.obs), (batch.next_obs, image.obs), (batch.actions, image.action)
    for values, mirror in (*parts, (batch.state, image.state), (batch.next_state, image.state)):
        values[::2] = mirror(values[::2])
    return batch


class Replay(Protocol):
    """What an off-policy algorithm asks of a replay."""

    def add(self, transition: Transition) -> None:
        """Store one decision of every environment, in place of the oldest where there is no
        room.
        """
        ...

    def sample(self, batch_size: int) -> Batch:
        """Draw transitions uniformly, with replacement; those of broken simulations never."""
        ...


class ReplayShape(NamedTuple):
    """Sizes of a replay; ``num_rows`` decisions of ``num_envs`` environments fit in."""

    num_rows: int
    num_envs: int
    num_agents: int
    obs_size: int
    action_size: int
    num_views: int  # G
    state_size: int
    num_rings: int = 1

    @property
    def ring_size(self) -> int:
        """R N, the transitions of one ring."""
        return self.num_rows * self.num_envs

    @property
    def num_transitions(self) -> int:
        """Transitions of all rings together."""
        return self.num_rings * self.ring_size

    @property
    def nbytes(self) -> int:
        """Bytes that the ring takes."""
        seen = self.num_agents * self.obs_size + self.num_views * self.state_size
        floats = 2 * seen + self.num_agents * (self.action_size + 1) + self.num_views
        return self.num_transitions * (4 * floats + 1 + 4) + 16 * self.num_rings * self.num_rows


class RingReplay:
    """A ring, or several, on one device. Sums of rewards over n decisions are made when they are
    drawn.

    Nothing here waits for the device, so drawing can be captured in a graph.
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
        """Allocate; a batch looks ``num_steps`` decisions ahead. ``generator``, on ``device``,
        draws.
        """
        self._ranks = ranks
        self.shape = shape
        self.num_steps = num_steps
        self.gamma = gamma
        self.generator = generator
        rows = shape.num_rings * shape.num_rows
        envs = shape.num_envs
        agents = shape.num_agents
        self._seen = (agents * shape.obs_size, shape.num_views * shape.state_size)
        self._acted = (agents * shape.action_size, agents)

        def zeros(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=device)

        # Obs, state, actions, active.
        self.here = zeros(rows, envs, sum(self._seen) + sum(self._acted))
        self.there = zeros(rows, envs, sum(self._seen))  # next obs, next state
        self.rewards = zeros(rows, envs, shape.num_views)
        self.flags = zeros(rows, envs, dtype=torch.uint8)
        # The valid environments of a row, then the others.
        self.order = zeros(rows, envs, dtype=torch.int32)
        self.num_valid = zeros(rows, dtype=torch.int64)
        self.num_valid_up_to = zeros(rows, dtype=torch.int64)  # rows 0 to here together
        self.newest = zeros(shape.num_rings, dtype=torch.int64)  # row of every ring
        self.num_added = [0] * shape.num_rings  # rows ever

    def __len__(self) -> int:
        """Transitions stored, invalid ones included."""
        return (
            sum(min(added, self.shape.num_rows) for added in self.num_added) * self.shape.num_envs
        )

    def add(self, transition: Transition, ring: int = 0) -> None:
        """Store one decision of every environment of a ring."""
        rows = self.shape.num_rows
        envs = self.shape.num_envs
        row = ring * rows + self.num_added[ring] % rows
        x = transition
        parts = (x.obs, x.state, x.actions, x.active.to(x.obs.dtype))
        torch.cat([part.reshape(envs, -1) for part in parts], dim=1, out=self.here[row])
        torch.cat(
            [x.next_obs.reshape(envs, -1), x.next_state.reshape(envs, -1)],
            dim=1,
            out=self.there[row],
        )
        self.rewards[row] = x.rewards
        self.flags[row] = x.terminated * _TERMINATED + x.done * _DONE + x.valid * _VALID
        self.order[row] = torch.argsort((~x.valid).to(torch.uint8), stable=True)
        self.num_valid[row] = x.valid.sum()
        torch.cumsum(self.num_valid, 0, out=self.num_valid_up_to)
        self.newest[ring].fill_(row)  # an assignment copies from the host, and waits
        self.num_added[ring] += 1

    def cut(self, ring: int) -> None:
        """End a ring's episodes at its newest decision, as a time-out does: what is stored next
        does not follow it.
        """
        if self.num_added[ring]:
            self.flags[
                ring * self.shape.num_rows + (self.num_added[ring] - 1) % self.shape.num_rows
            ] |= _DONE

    def sample(self, batch_size: int) -> Batch:
        """Draw valid transitions uniformly, with replacement."""
        return self.look_up(self.draw(batch_size, self.generator))

    def draw(self, batch_size: int, generator: torch.Generator) -> Tensor:
        """Draw rows (B,) of R N for ``look_up``."""
        where = {"dtype": torch.float64, "generator": generator, "device": self.flags.device}
        draw = self._ranks.draw(torch.rand, (batch_size,), **where)
        number = (draw * self.num_valid_up_to[-1]).long()
        row = torch.searchsorted(self.num_valid_up_to, number, right=True).clamp(
            max=len(self.num_valid) - 1
        )
        place = number - (self.num_valid_up_to[row] - self.num_valid[row])
        return row * self.shape.num_envs + self.order[row, place]

    def is_valid(self, index: Tensor) -> Tensor:
        """Return where rows ``index`` (B,) hold a transition in which nothing broke, (B,) bool."""
        return self.flags.view(-1)[index] & _VALID != 0

    def look_up(self, index: Tensor, num_steps: int | None = None) -> Batch:
        """Return the transitions that begin at rows ``index`` (B,) of R N, a ring after the other.

        Rewards are summed over ``num_steps`` decisions (None: the replay's own number). The sum
        stops earlier where the episode ends, at the newest decision, and before a broken one. The
        value of the state that follows stands for the remaining rewards.
        """
        shape = self.shape
        flags = self.flags.view(-1)
        rewards = self.rewards.flatten(0, 1)
        last = index
        returns = rewards[index]
        factor = torch.full_like(self.rewards[0, :1, 0], self.gamma)
        factor = factor.expand(len(index))
        continues = torch.ones_like(index, dtype=torch.bool)
        ring = index // shape.ring_size
        first = ring * shape.ring_size
        newest = self.newest[ring]
        for _ in range((num_steps or self.num_steps) - 1):
            after = first + (last - first + shape.num_envs) % shape.ring_size
            continues = continues & (flags[last] & _DONE == 0) & (last // shape.num_envs != newest)
            continues = continues & (flags[after] & _VALID != 0)
            returns = returns + torch.where(continues, factor, 0.0).unsqueeze(1) * rewards[after]
            factor = torch.where(continues, factor * self.gamma, factor)
            last = torch.where(continues, after, last)
        rows = len(index), shape.num_agents
        here = (
            self.here.flatten(0, 1).index_select(0, index).split([*self._seen, *self._acted], dim=1)
        )
        there = self.there.flatten(0, 1).index_select(0, last).split(list(self._seen), dim=1)
        return Batch(
            obs=here[0].view(*rows, -1),
            state=here[1].view(len(index), shape.num_views, -1),
            actions=here[2].view(*rows, -1),
            active=here[3],
            returns=returns,
            discount=torch.where(flags[last] & _TERMINATED != 0, 0.0, factor),
            next_obs=there[0].view(*rows, -1),
            next_state=there[1].view(len(index), shape.num_views, -1),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the rows in use, and the position of each ring."""
        used = self._used(self.num_added)
        return {name: getattr(self, name)[used] for name in _STORED} | {
            "num_added": list(self.num_added)
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from ``state_dict``; raise ValueError where it is that of a replay of another
        size.
        """
        num_added = state["num_added"]
        if len(num_added) != self.shape.num_rings:
            raise ValueError(f"replay has {len(num_added)} rings, not {self.shape.num_rings}")
        used = self._used(num_added)
        for name in _STORED:
            place = getattr(self, name)
            if state[name].shape != (len(used), *place.shape[1:]):
                raise ValueError(f"replay.{name} has shape {tuple(state[name].shape)}")
            place.zero_()
            place[used] = state[name].to(place.device)
        self.num_added = list(num_added)
        is_valid = self.flags & _VALID != 0  # anew: worlds may have moved to another rank
        self.order.copy_(torch.argsort((~is_valid).to(torch.uint8), dim=1, stable=True))
        self.num_valid.copy_(is_valid.sum(dim=1))
        torch.cumsum(self.num_valid, 0, out=self.num_valid_up_to)
        for ring, added in enumerate(num_added):
            self.newest[ring] = ring * self.shape.num_rows + (added - 1) % self.shape.num_rows

    def _used(self, num_added: Sequence[int]) -> Tensor:
        """Return the rows in use where so many were added to each ring."""
        rows = self.shape.num_rows
        used = [
            torch.arange(min(added, rows)) + ring * rows for ring, added in enumerate(num_added)
        ]
        return torch.cat(used).to(self.flags.device)


_STORED = ("here", "there", "rewards", "flags", "order", "num_valid")


def replay_shape(capacity: int, num_envs: int, **sizes: int) -> ReplayShape:
    """Return the sizes of rings with room for at least ``capacity`` transitions, two decisions each
    at least.

    Each ring is of ``num_envs`` environments.
    """
    row = num_envs * sizes.get("num_rings", 1)
    return ReplayShape(num_rows=max(2, math.ceil(capacity / row)), num_envs=num_envs, **sizes)
