"""Mid level, task ``go1push_mid``: a team pushes an object to a goal by commanding velocities to a
frozen gait.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mqe.controllers import Controller
from mqe.tasks.push.default_terms import push_terms
from mqe.tasks.push.features import (
    PushConstants,
    PushEpisodes,
    SceneFeatures,
    StepFeatures,
    StepMemory,
)
from mqe.tasks.push.keep_apart import CommandLimit
from mqe.tasks.push.layouts import PushLayouts
from mqe.tasks.push.roster import Roster
from mqe.tasks.push.settings import PushCfg
from mqe.tasks.task import Outcome, TaskFeatures, TermTask
from mqe.tasks.terms import Memory, Terminated, Worlds
from mqe.vec_env import Image, Symmetries, TeamImage
from mqe.world.layout import Layout
from mqe.world.objects import ObjectCfg
from mqe.world.robots import Robots
from mqe.world.state import SceneState, overwrite
from mqe.world.streams import Streams

_DROPOUT = 11  # stream: the robots that others do not observe
_ACTION_SIGNS = (1.0, -1.0, -1.0)  # of vx, vy and yaw rate in a mirror that swaps left and right


class PushTask(TermTask):
    """N worlds with A agents. An action has three components in [-1, 1]: forward, sideways and
    turning speed.
    """

    def __init__(
        self,
        cfg: PushCfg,
        num_envs: int,
        robots: Robots,
        streams: Streams,
        controller: Controller,
        shapes: Sequence[ObjectCfg] = (),
    ) -> None:
        """Push with ``robots``, walked by ``controller``.

        ``shapes`` are the worlds' own objects, if they differ.
        """
        device = robots.device
        self.cfg = cfg
        self.robots = robots.cfgs
        self.num_agents = len(robots)
        self.decision_period = cfg.decision_period
        self.max_episode_length = cfg.num_steps
        self.state_type = cfg.state_type
        self.action_sizes: tuple[int, ...] = (3,) * self.num_agents
        self.constants = PushConstants(cfg, self.num_agents, device, shapes)
        self._controller = controller
        self._streams = streams
        self._layouts = PushLayouts(
            self.constants.footprint,
            robots,
            cfg.spawn,
            cfg.goal_distance,
            cfg.close_share,
            cfg.tangled_share,
        )
        self._action_scale = torch.tensor(cfg.action_scale, device=device)

        worlds = Worlds(num_envs, self.num_agents, device, cfg)
        memory = Memory(worlds)
        self.steps = StepMemory(memory, self.constants, robots)
        self._is_out: Tensor | None = None
        self._is_away: Tensor | None = None
        # The part of the memory that observations show.
        observed = torch.empty(num_envs, self.constants.memory_size, device=device)
        roster_size = self.constants.roster_size
        self._roster: Roster | None = None
        if cfg.observation == "sets":
            self._roster = Roster.allocate(memory, observed[:, :roster_size], self.num_agents)
            self._observes = self._roster.observes.clone()  # in the episodes that begin next
        self.goal_heading: Tensor | None = None  # (N,) [rad] in force, live
        if cfg.goal_heading is not None:
            self.goal_heading = memory.keep(
                "goal_heading", observed[:, roster_size], start=cfg.goal_heading
            )
        self._senses = None
        if self.constants.senses is not None:
            entry, settings = self.constants.senses
            sensed = observed[:, self.constants.first_sensed :]
            self._senses = entry.make(settings, memory, sensed, self.constants, robots, streams)

        terms = push_terms(cfg, self.constants, worlds)
        super().__init__(terms, worlds, memory, observed)
        self.stateful["controller"] = controller
        self.symmetries = self._symmetries(robots)
        self._limit: CommandLimit | None = None
        if cfg.keep_apart > 0.0 and self.num_agents > 1:
            limit = CommandLimit(self.obs_names(0), cfg.keep_apart, cfg.decision_period)
            self._limit = limit.to(device)

    def _describe(self, others: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return names, unit, meaning and source of every observation term's components.

        The source is the input on a robot, for a term limited by the senses.
        """
        terms = self.terms.observations.describe(others)
        if self._senses is not None:
            for name, term in terms.items():
                source = self._senses.source(name)
                if source is not None:
                    term["source"] = source
        return terms

    def heading_error(self, object_yaw: Tensor) -> Tensor:
        """Return the signed angle (N,) [rad] from ``object_yaw`` (N,) to the goal's heading.

        A symmetric object has several equal headings; the nearest one counts.
        """
        return self.constants.heading_error(object_yaw, self.goal_heading)

    def _symmetries(self, robots: Robots) -> Symmetries:
        """Return the symmetries of a team's scenes."""
        action = Image.of(range(3), _ACTION_SIGNS, robots.device)
        has_mirror = self._senses is None or self._senses.has_mirror
        mirror = self.mirror_image(action) if has_mirror else None
        obs = self.terms.observations
        state = self.terms.state
        if obs.turn is None or state.turn is None:
            return Symmetries(mirror)
        identity = Image.same(obs.size, robots.device)
        action = Image.same(3, robots.device)

        # What is like nothing else has itself as its image.
        turn = TeamImage(obs.turn, action, state.turn)
        rewards = self.terms.rewards
        if not all(rewards.terms[name].is_same_turned for name in rewards.weights):
            turn = TeamImage(identity, action, state.with_numbers_of(0))
        gaits = self.cfg.gait
        differ = robots.is_mixed or (isinstance(gaits, tuple) and len(set(gaits)) > 1)
        shift = 0 if differ else 1
        numbers = TeamImage(identity, action, state.with_numbers_of(shift), shift)
        return Symmetries(mirror, turn, numbers)

    def layout(self, episode: Tensor) -> Layout:
        """Draw every world's initial layout for episode number ``episode`` (N,)."""
        if self.cfg.entity_dropout > 0.0:
            shape = self._observes.shape[1:]
            drawn = self._streams.uniform(_DROPOUT, episode, tuple(shape))
            self._observes.copy_(drawn >= self.cfg.entity_dropout)
        if self._senses is not None:
            self._senses.draw(episode)
        return self._layouts.draw(self._streams, episode)

    def begin(self, mask: Tensor) -> None:
        """Reset the memory in the worlds ``mask``. They begin new episodes."""
        self._controller.begin(mask)
        super().begin(mask)
        if self._roster is not None:
            overwrite(self._roster.observes, mask, self._observes)
            self._update_roster()

    def _update_roster(self) -> None:
        """Mark the robots in observed sets."""
        if self._roster is not None and self._is_away is not None:
            self._roster.takes_part.copy_(~self._is_away)

    @property
    def features(self) -> TaskFeatures:
        """Moving and turning goals, networks in blocks of worlds, lost robots, and success."""
        set_goal_heading = None
        if self.goal_heading is not None:
            set_goal_heading = self.set_goal_heading
        return super().features._replace(
            describe_observation=self._describe,
            set_goal=self.set_goal,
            set_goal_heading=set_goal_heading,
            zeros_are_missing=self._senses is not None,
            use_blocks=self._controller.use_blocks,
            excuse_robots=self.excuse_robots,
            weigh=self.weigh,
            limit=None if self._limit is None else self.limit,
            success_radius=self.cfg.success_radius,
            heading_error=None if self.goal_heading is None else self.heading_error,
        )

    def weigh(self, forces: Tensor) -> None:
        """Take the push (N,) or (1,) [N] that slides each world's object."""
        self.constants.load = forces

    def set_goal(self, goal: Tensor, mask: Tensor) -> bool:
        """Reset the object's nearest distance to the goal, and its resting time there."""
        self.steps.nearest.masked_fill_(mask, torch.inf)
        if self.steps.rest is not None:
            self.steps.rest.masked_fill_(mask, 0.0)
        return True

    def set_goal_heading(self, heading: Tensor, mask: Tensor) -> None:
        """Require the object's ``heading`` (N,) [rad] at the goal, until the episode ends."""
        assert self.goal_heading is not None
        overwrite(self.goal_heading, mask, heading)

    def excuse_robots(self, is_out: Tensor, is_away: Tensor) -> None:
        """Excuse robots in ``is_out`` (N, A): their falls and collapses end no episode.

        Their reward is the mean of the others'. Robots in ``is_away`` (N, A) are in no set.
        """
        self._is_out = is_out
        self._is_away = is_away

    def limit(self, actions: Tensor, obs: Tensor) -> Tensor:
        """Return actions (N, A, 3) limited to keep robots apart, from their observations (N,
        A, O).
        """
        assert self._limit is not None
        velocity = actions * self._action_scale
        limited = self._limit(obs, velocity)
        return torch.where(limited == velocity, actions, limited / self._action_scale)

    def command(self, actions: Tensor) -> None:
        """Take actions (N, A, 3) in [-1, 1], and hold their velocity commands."""
        self._controller.command(actions * self._action_scale)

    def targets(self, state: SceneState) -> Tensor:
        """Return the gait's joint targets (N, A, J) [rad]."""
        return self._controller.targets(state)

    def scene_features(self, state: SceneState, memory: Tensor) -> SceneFeatures:
        """Return features for robots and critic."""
        return SceneFeatures(state, self.constants, memory)

    def step_features(self, state: SceneState, prev: SceneState) -> StepFeatures:
        """Return the features for the control step from ``prev`` to ``state``."""
        return StepFeatures(state, prev, self.constants, self.steps, self._is_out, self.memory)

    def evaluate(self, state: SceneState, prev: SceneState) -> Outcome:
        """Compute rewards, terminations and measures of the control step from ``prev`` to
        ``state``.
        """
        outcome = super().evaluate(state, prev)
        self._update_roster()
        if self._senses is not None:
            self._senses.watch(self.scene_features(state, self.memory), prev)
        if self._is_out is None:
            return outcome
        is_there = (~self._is_out).float()
        mean = (outcome.rewards * is_there).sum(dim=2) / is_there.sum(dim=1).clamp(min=1.0)
        rewards = torch.where(self._is_out, mean.unsqueeze(2), outcome.rewards)
        return outcome._replace(rewards=rewards)

    def observe(self, state: SceneState, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return the robots' observations, by their senses if they have a model, and the critic's
        true state.
        """
        if self._senses is None:
            return super().observe(state, memory)
        scene = self.scene_features(state, memory)
        sensed = self._senses.known(scene, memory[:, self.constants.first_sensed :])
        return self.terms.observations(sensed), self.terms.state(scene)

    def episode_features(self, sums: Tensor, steps: Tensor, terminated: Terminated) -> PushEpisodes:
        """Return the features for finished episodes."""
        return PushEpisodes(sums, steps, terminated, self.terms.measures)
