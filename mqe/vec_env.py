"""The contract between an environment and any learner.

Letters used everywhere: T decisions a rollout, N environments, A agents, O obs size,
S state size, U action size, J joints a robot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor


class TimeStep(NamedTuple):
    """Result of one decision in every environment.

    Ended environments were reset already: their ``obs`` and ``state`` are the next episode's first.
    ``final_obs`` and ``final_state`` are the ended episode's last, and equal ``obs`` and ``state``
    elsewhere.
    """

    obs: Tensor  # (N, A, O)
    state: Tensor  # (N, S), or (N, A, S) with state_type "FP"
    reward: Tensor  # (N, A), summed over the decision's control steps
    # (N, A) bool, ended by the task; an environment ends when all its agents have ended
    terminated: Tensor
    truncated: Tensor  # (N,) bool, ended by the clock
    # (N,) bool, False for broken simulations: reset, counted, and left out of learning
    valid: Tensor
    final_obs: Tensor  # (N, A, O)
    final_state: Tensor  # like state
    info: dict[str, Tensor]  # (N, A) per reward term, "reward/<term>"

    @property
    def done(self) -> Tensor:
        """(N,) bool: the episode ended at this decision, whatever the reason."""
        return self.terminated.all(dim=1) | self.truncated | ~self.valid

    @property
    def was_cut_off(self) -> Tensor:
        """(N,) bool: the episode ended by the clock, or because the simulation broke."""
        return (self.truncated & ~self.terminated.all(dim=1)) | ~self.valid


class Image(NamedTuple):
    """A vector's image in a symmetric scene: its components in another order, some negated."""

    index: Tensor  # (K,) int64
    sign: Tensor  # (K,)

    @classmethod
    def of(cls, index: Sequence[int], sign: Sequence[float], device: torch.device) -> Image:
        """Build the image on a device."""
        return cls(torch.tensor(index, device=device), torch.tensor(sign, device=device))

    @classmethod
    def same(cls, size: int, device: torch.device) -> Image:
        """Build the identity image."""
        return cls.of(range(size), (1.0,) * size, device)

    @property
    def is_identity(self) -> bool:
        """Whether every vector is its own image."""
        same = torch.arange(len(self.index), device=self.index.device)
        return torch.equal(self.index, same) and bool((self.sign == 1.0).all())

    def __call__(self, vector: Tensor) -> Tensor:
        """Return the vectors' images (..., K)."""
        return vector[..., self.index] * self.sign


class TeamImage(NamedTuple):
    """A team's image in a symmetric scene. All agents' components change alike."""

    obs: Image  # of an agent's observation
    action: Image  # of an agent's action
    state: Image | None = None  # of each critic state; None: no known image
    shift: int = 0  # agent i of the image is agent i + shift of the team, counted round it

    @property
    def is_identity(self) -> bool:
        """Whether every scene is its own image."""
        parts = [self.obs, self.action, *([] if self.state is None else [self.state])]
        return self.shift == 0 and all(part.is_identity for part in parts)


class Symmetries(NamedTuple):
    """Scenes with equal behaviour and equal rewards.

    None: there is no such scene, or a component without a known image.
    """

    mirror: TeamImage | None = None  # left and right swapped
    turn: TeamImage | None = None  # the object at its next heading of equal appearance
    numbers: TeamImage | None = None  # every robot with the number of the one before it


ROBOT_SETS = ("teammates", "robots")  # kinds of sets


class EntityBlock(NamedTuple):
    """Components of several entities of one kind, one entity after the other, in a flat vector.

    An entity's first component is 1 if the entity is present, else 0. The next two are its
    position. Order has no meaning, except in a state: there robot entity k is agent k.
    """

    kind: str  # for instance "outline"
    start: int  # place of the first entity's first number
    num_entities: int
    size: int  # numbers of one entity

    @property
    def are_robots(self) -> bool:
        """Whether the entities are robots in the team."""
        return self.kind in ROBOT_SETS

    @property
    def end(self) -> int:
        """Index behind the last component."""
        return self.start + self.num_entities * self.size


class TeamSpec(NamedTuple):
    """Sizes and properties of a team's environment."""

    obs_sizes: tuple[int, ...]  # each agent's own; tensors are padded with zeros to the largest
    action_sizes: tuple[int, ...]  # likewise
    state_size: int
    state_type: str  # "EP": one state per environment, "FP": one per agent
    symmetries: Symmetries = Symmetries()
    is_trained: bool = False  # whether the run starts with trained networks
    # Sets in observations and in states. Other components describe the agent or the world.
    obs_sets: tuple[EntityBlock, ...] = ()
    state_sets: tuple[EntityBlock, ...] = ()
    # Index of the observed number for participation, 1 or 0. None: all agents always take part.
    presence: int | None = None
    # Returns a teacher's actions (B, A, U) for obs (B, A, O). None: there is no teacher.
    teacher: Callable[[Tensor], Tensor] | None = None
    # Returns the teacher's obs for critic states (B, G, S). None: the teacher has the team's obs.
    teacher_obs: Callable[[Tensor], Tensor] | None = None

    @property
    def num_agents(self) -> int:
        """Number of agents A."""
        return len(self.obs_sizes)

    @property
    def obs_size(self) -> int:
        """Size O of padded observations."""
        return max(self.obs_sizes)

    @property
    def action_size(self) -> int:
        """Size U of padded actions."""
        return max(self.action_sizes)


class Share(NamedTuple):
    """An environment's worlds within a run, if several processes divide the worlds."""

    first: int = 0  # number of its first world
    num_shares: int = 1
    # Add a tensor up over all processes, in place.
    sum_: Callable[[Tensor], object] = lambda tensor: None


ALL_WORLDS = Share()


class VecEnv(Protocol):
    """N environments with A agents, stepped together, tensors in and out on one device."""

    num_envs: int
    num_agents: int
    spec: TeamSpec  # a team's sizes and properties
    decision_period: int  # control steps a decision
    step_dt: float  # [s] one control step
    device: torch.device

    def reset(self, *, staggered: bool = False) -> tuple[Tensor, Tensor]:
        """Start a new episode everywhere. Return obs (N, A, O) and state.

        Staggered, the first episodes' time limits are spread over a whole time limit. The
        collection of ``statistics`` then starts.
        """
        ...

    def step(self, actions: Tensor) -> TimeStep:
        """Apply actions (N, A, U) in [-1, 1] (clipped) for one decision."""
        ...

    def grow_buffers(self) -> str | None:
        """Enlarge the simulator's overflowed buffers, between two rollouts. Return a message, or
        None.
        """
        ...

    def statistics(self) -> dict[str, float]:
        """Return means over the last 1,000 finished episodes at most, and ``num_episodes``.

        Waits for the device once.
        """
        ...

    def reset_statistics(self) -> None:
        """Remove the statistics of finished episodes."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state for a bit-exact resume."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Restore a ``state_dict``. Return its obs and state."""
        ...

    def close(self) -> None:
        """Free the simulator."""
        ...
