"""The contract between a task and the environment, in tensors and never in simulators."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from mqe.controllers.blocks import ActiveWorlds
from mqe.resumable import Resumable
from mqe.tasks.terms import EpisodeFeatures, Memory, TaskTerms, Terminated, Worlds
from mqe.vec_env import Image, Symmetries, TeamImage, TeamSpec
from mqe.world.layout import Layout
from mqe.world.state import SceneState


def names_of_others(agent: int, num_agents: int) -> list[str]:
    """Return the other robots' names as a term over teammates lists them, backwards round the
    team.
    """
    return [f"robot{(agent - distance) % num_agents}" for distance in range(1, num_agents)]


class Outcome(NamedTuple):
    """Rewards, terminations and measures for one control step, before any reset.

    The task's terms name rows and columns.
    """

    rewards: Tensor  # (K, N, A) weighted terms, whose sum is the reward
    terminations: Tensor  # (E, N) bool conditions; any of them ends the episode
    measures: Tensor  # (N, M) the environment sums them over the episode


class Disturbance(NamedTuple):
    """Changes of velocity and forces on the trunks before a control step."""

    velocity: Tensor  # (N, A, 3) [m/s] added to the trunk's linear velocity at once
    force: Tensor  # (N, A, 3) [N] on the trunk, world frame, for the whole control step


class OutcomeNames(NamedTuple):
    """Names for the rows and columns in an ``Outcome``, and for an episode's metrics."""

    rewards: tuple[str, ...]  # K
    measures: tuple[str, ...]  # M
    metrics: tuple[str, ...]  # F


class Stateful(Protocol):
    """An object with a state for checkpoints."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class TaskFeatures(NamedTuple):
    """A task's optional parts. Only ``planned_way`` waits for the device."""

    # (N, C) the observed memory besides the scene, live.
    memory: Tensor | None = None
    # (O,) factors on env.randomize.observation_noise for an observation's numbers; None: all 1.
    noise_scale: Tensor | None = None
    # Zeros in an observation stand for missing values, and get no noise.
    zeros_are_missing: bool = False
    # Saves and restores the present episodes' state besides the scene.
    stateful: Stateful | None = None
    # Sets another goal (N, 2) [m] in the worlds of a mask (N,); returns whether the scene's goal
    # moves there.
    set_goal: Callable[[Tensor, Tensor], bool] | None = None
    # Sets another goal heading (N,) [rad] of the object in the worlds of a mask (N,), for the
    # present episodes; None: goals have no heading.
    set_goal_heading: Callable[[Tensor, Tensor], None] | None = None
    # Returns the disturbance before a control step (N,) of the episodes.
    disturb: Callable[[Tensor], Disturbance] | None = None
    # (N, 2) [m] where the scene's marker is drawn, live.
    marker: Tensor | None = None
    # Has frozen networks run over blocks of worlds; called before the first step.
    use_blocks: Callable[[ActiveWorlds], None] | None = None
    # Takes two live masks (N, A) before the first step: robots that are excused (dead, absent or
    # idle), and robots that take no part at present (dead, absent, or late and waiting).
    excuse_robots: Callable[[Tensor, Tensor], None] | None = None
    # Takes the push (N,) or (1,) [N] that slides each world's object. Called before the first step.
    weigh: Callable[[Tensor], None] | None = None
    # Limits actions (N, A, U), given the observations (N, A, O) behind them.
    limit: Callable[[Tensor, Tensor], Tensor] | None = None
    reward_weights: Mapping[str, float] = MappingProxyType({})  # of the weighed reward terms
    # Describes an agent's observation by term: names of its numbers, unit and meaning. The argument
    # has the names of the other agents, in their order in the observation.
    describe_observation: Callable[[Sequence[str]], Mapping[str, Any]] | None = None
    success_radius: float = 0.0  # [m] from the object to the goal
    # Returns the signed angle (N,) [rad] from the object's yaw (N,) to the goal's heading; None:
    # goals have no heading.
    heading_error: Callable[[Tensor], Tensor] | None = None
    # Follows a command of vx, vy [m/s] and yaw rate [rad/s] instead of drawn ones; None ends this.
    steer: Callable[[Sequence[float] | None], None] | None = None
    # Returns the object's planned positions (P, 2) [m] in a world. It waits for the device.
    planned_way: Callable[[int], Tensor] | None = None


class Task(Protocol):
    """One task over N worlds with A agents. Masks are (N,) bool. Nothing here waits for the
    device.
    """

    decision_period: int  # control steps a decision
    max_episode_length: int  # control steps, a multiple of decision_period
    names: OutcomeNames

    @property
    def spec(self) -> TeamSpec:
        """The team's sizes and properties."""
        ...

    @property
    def features(self) -> TaskFeatures:
        """The optional parts, asked for once."""
        ...

    def layout(self, episode: Tensor) -> Layout:
        """Draw each world's initial layout for episode number ``episode`` (N,) int64."""
        ...

    def begin(self, mask: Tensor) -> None:
        """Begin episodes in the worlds ``mask``, from their last layouts."""
        ...

    def command(self, actions: Tensor) -> None:
        """Take a decision: actions (N, A, U), clipped to [-1, 1]. Delayed actions come every
        control step.
        """
        ...

    def targets(self, state: SceneState) -> Tensor:
        """Return joint position targets (N, A, J) [rad] for the coming control step."""
        ...

    def evaluate(self, state: SceneState, prev: SceneState) -> Outcome:
        """Judge one control step from ``prev`` to ``state``."""
        ...

    def observe(self, state: SceneState, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return obs (W, A, O) and critic state, (W, S) or (W, A, S), for any W worlds.

        ``memory`` (W, C) is the observed memory of these worlds. C is 0 for a task without one.
        """
        ...

    def episode_metrics(self, sums: Tensor, steps: Tensor, terminations: Tensor) -> Tensor:
        """Compute metrics (N, F) from an episode's sums (N, M), length (N,) and terminations (E,
        N).

        NaN: the metric does not count for this episode (for instance a failure's collaboration
        degree).
        """
        ...


class TermTask(Resumable):
    """Base class for a task made from terms.

    A subclass has ``layout``, ``command``, ``targets``, and the features behind its terms.
    """

    num_agents: int
    action_sizes: tuple[int, ...]
    max_episode_length: int
    state_type = "EP"
    decision_period = 1
    symmetries = Symmetries()

    def __init__(
        self,
        terms: TaskTerms,
        worlds: Worlds,
        features_memory: Memory | None = None,
        memory: Tensor | None = None,
    ) -> None:
        """Build the task from ``terms``.

        ``memory`` (N, C) is the observed part of ``features_memory``.
        """
        if memory is None:
            memory = torch.zeros(worlds.num_envs, 0, device=worlds.device)
        self.memory = memory
        self.terms = terms
        self._features_memory = features_memory or Memory(worlds)
        # Parts with a state, by name in a checkpoint
        self.stateful: dict[str, Stateful] = {"memory": self._features_memory}
        self._term_memories = terms.memories()
        self.names = OutcomeNames(
            terms.rewards.names, terms.measures.columns, terms.metrics.columns
        )

    @property
    def spec(self) -> TeamSpec:
        """The team's sizes and properties."""
        observations = self.terms.observations
        state = self.terms.state
        return TeamSpec(
            (observations.size,) * self.num_agents,
            self.action_sizes,
            state.size,
            self.state_type,
            self.symmetries,
            obs_sets=observations.blocks,
            state_sets=state.blocks,
            presence=observations.presence,
        )

    @property
    def features(self) -> TaskFeatures:
        """The observed memory, the observation noise, and the state for checkpoints."""
        return TaskFeatures(
            memory=self.memory,
            noise_scale=self.terms.observations.noise_scale,
            stateful=self,
            reward_weights=self.terms.rewards.weights,
            describe_observation=self.terms.observations.describe,
        )

    def obs_names(self, agent: int) -> tuple[str, ...]:
        """Return the names of an agent's observation components in order.

        Components without names have the term's name and a number from 0.
        """
        return self.terms.observations.number_names(names_of_others(agent, self.num_agents))

    @abstractmethod
    def scene_features(self, state: SceneState, memory: Tensor) -> Any:
        """Return features for robots and critic in any W worlds."""

    @abstractmethod
    def step_features(self, state: SceneState, prev: SceneState) -> Any:
        """Return the features for the control step from ``prev`` to ``state``."""

    def episode_features(
        self, sums: Tensor, steps: Tensor, terminated: Terminated
    ) -> EpisodeFeatures:
        """Return the features for finished episodes."""
        return EpisodeFeatures(sums, steps, terminated, self.terms.measures)

    def begin(self, mask: Tensor) -> None:
        """Reset the memory in the worlds ``mask``. They begin new episodes."""
        for memory in (self._features_memory, *self._term_memories.values()):
            memory.reset(mask)

    def evaluate(self, state: SceneState, prev: SceneState) -> Outcome:
        """Compute rewards, terminations and measures of the control step from ``prev`` to
        ``state``.
        """
        features = self.step_features(state, prev)
        # First, because rewards may be given for them.
        features.terminated = self.terms.terminations(features)
        rewards = self.terms.rewards(features)
        return Outcome(rewards, features.terminated.rows, self.terms.measures(features))

    def observe(self, state: SceneState, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return observations and critic state for W worlds and their ``memory`` (W, C)."""
        features = self.scene_features(state, memory)
        return self.terms.observations(features), self.terms.state(features)

    def episode_metrics(self, sums: Tensor, steps: Tensor, terminations: Tensor) -> Tensor:
        """Return the metrics (N, F) of episodes with the measures' ``sums`` (N, M), ``steps`` (N,)
        control steps and ``terminations`` (E, N) bool.
        """
        terminated = Terminated(terminations, self.terms.terminations)
        return self.terms.metrics(self.episode_features(sums, steps, terminated))

    def mirror_image(self, action: Image) -> TeamImage | None:
        """Return the mirror image of observations, actions and states.

        None: an observation term has no mirror image.
        """
        obs = self.terms.observations.mirror
        return None if obs is None else TeamImage(obs, action, self.terms.state.mirror)

    def state_parts(self) -> dict[str, Any]:
        """Return the memory of features, terms and controllers."""
        return {"terms": self._term_memories, **self.stateful}
