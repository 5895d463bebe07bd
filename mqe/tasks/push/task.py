"""Mid level, task ``go1push_mid``: a team pushes an object to a goal by commanding velocities to a
frozen gait.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mqe.config import ConfigError, check_values, option
from mqe.controllers import Controller
from mqe.renamed_settings import with_present_keys
from mqe.tasks.push.entities import Roster
from mqe.tasks.push.features import (
    PushConstants,
    PushEpisodes,
    SceneFeatures,
    StepFeatures,
    TangleTimers,
    Teamwork,
)
from mqe.tasks.push.keep_apart import CommandLimit
from mqe.tasks.push.layouts import SPAWNS, PushLayouts
from mqe.tasks.push.metrics import DEFAULT_MEASURES, DEFAULT_METRICS, MEASURES, METRICS
from mqe.tasks.push.observations import OBSERVATIONS, OBSERVED, OBSERVED_BY_CRITIC, STATE
from mqe.tasks.push.rewards import PRESETS, REWARDS, preset_weights
from mqe.tasks.push.terminations import (
    DEFAULT_TERMINATIONS,
    PITCH_LIMIT,
    ROLL_LIMIT,
    TERMINATIONS,
)
from mqe.tasks.task import Outcome, TaskFeatures, TermTask
from mqe.tasks.term_settings import DefaultTerms, TermCfg, build_terms
from mqe.tasks.terms import Memory, TaskTerms, Terminated, TermRegistry, Worlds
from mqe.vec_env import Image, Symmetries, TeamImage
from mqe.world.collapse import CollapseTimers
from mqe.world.layout import Layout
from mqe.world.objects import INERTIAS, OBJECTS, ObjectCfg
from mqe.world.robots import Robots
from mqe.world.scene import ARENA_HALF_SIZE, MAX_ROBOTS, STEP_DT, with_sliding_force
from mqe.world.shapes import check_kinds
from mqe.world.state import SceneState
from mqe.world.streams import Streams

_FORCE = re.compile(r"(\d{1,6}(?:\.\d{1,6})?) ?N")
_DROPOUT = 11  # stream: the robots that others do not observe
PUSH_TERMS = TermRegistry(OBSERVATIONS, STATE, REWARDS, TERMINATIONS, MEASURES, METRICS)
_ACTION_SIGNS = (1.0, -1.0, -1.0)  # of vx, vy and yaw rate in a mirror that swaps left and right


def parse_force(text: str) -> float:
    """Return the newtons of ``70 N``; raise ConfigError for anything else."""
    match = _FORCE.fullmatch(text)
    if match is None or not 1e-3 <= float(match[1]) <= 1e5:
        raise ConfigError(
            f"task.object_mass={text[:40]!r} is neither a mass [kg] nor a force; write 22 for "
            "kilograms, or 70 N for the mass that takes a push of 70 N to slide"
        )
    return float(match[1])


@dataclass(frozen=True)
class PushCfg(TermCfg):
    """The push task: what is pushed, what robots see, the rewards, how episodes start and end."""

    name: str = option("go1push_mid", "name of the task", choices=("go1push_mid",))
    object: str = option("cuboid", "object that the team pushes", choices=OBJECTS)
    object_mass: float | str | None = option(
        None,
        "mass of the object [kg], or the push at which it slides, such as 70 N; null: its own",
        min=1e-3,
        max=1e4,
    )
    shapes: str | None = option(
        None,
        "an object of up to six boxes for each world in place of task.object: drawn (from the "
        "seed), held_out (20 shapes for tests only) or a JSON file; null: task.object everywhere",
    )
    shape_mass: tuple[float, float] = option(
        (2.0, 20.0), "range of the masses of drawn shapes [kg]", min=1e-3, max=1e4
    )
    shape_friction: tuple[float, float] = option(
        (0.2, 1.0), "range of the friction of drawn shapes' material", min=1e-3, max=10.0
    )
    shape_force: tuple[float, float] | None = option(
        None,
        "range of the pushes at which drawn shapes slide [N], in place of task.shape_mass",
        min=1e-2,
        max=1e5,
    )
    shape_kinds: tuple[str, ...] = option(
        (),
        "families of drawn shapes and objects of boxes, as often as they are named; empty: all "
        "families alike",
    )
    object_width: float = option(
        1.0, "factor on the object's length along y, or on its radius", min=0.05, max=10.0
    )
    gait: str | tuple[str, ...] | None = option(
        None, "frozen policy that walks, or one per robot; null: that of each robot's kind"
    )
    rewards: str = option("default", "reward preset", choices=tuple(PRESETS))
    observation: str = option(
        "sincos",
        "form of observations: angles as sine and cosine, or in [0, 2 pi), or sets of robots "
        "and of points of the object's outline, for teams of any size",
        choices=tuple(OBSERVED),
    )
    max_robots: int = option(
        8, "largest team that observations as sets have room for", min=1, max=MAX_ROBOTS
    )
    entity_dropout: float = option(
        0.0,
        "probability that a robot does not observe another one in an episode, with "
        "task.observation=sets",
        min=0.0,
        max=1.0,
    )
    state_type: str = option(
        "EP",
        "number of critic states: one per environment (EP), or one per agent (FP)",
        choices=("EP", "FP"),
    )
    spawn: str = option(
        "separated", "places of robots at spawn: apart, or anywhere on the ring", choices=SPAWNS
    )
    close_share: float = option(
        0.0, "share of starts with two robots almost touching", min=0.0, max=1.0
    )
    tangled_share: float = option(
        0.0, "share of starts with two robots' legs tangled", min=0.0, max=1.0
    )
    goal_distance: tuple[float, float] = option(
        (1.5, 3.0), "range of the goal's distance at spawn [m]", above=0.0
    )
    decision_period: int = option(
        1, "number of control steps (50 Hz) that a command is held", min=1, max=1000
    )
    episode_length_s: float = option(20.0, "time limit [s]", min=0.02, max=1e6)
    success_radius: float = option(
        1.0,
        "distance of the object's origin from the goal below which it is success [m]",
        min=1e-3,
        max=100.0,
    )
    success_ends: bool = option(
        True,
        "end of the episode at success, with the reward reach; false: the goal may be left again",
    )
    success_heading: float | None = option(
        None,
        "largest difference of the object's heading from the goal's at success [rad]; "
        "null: any heading",
        min=1e-3,
        max=math.pi,
    )
    success_rest_s: float = option(
        0.0,
        "time that the object has to rest at the goal before it is success [s]",
        min=0.0,
        max=1e6,
    )
    goal_heading: float | None = option(
        None,
        "heading of the object at the goal, in the arena [rad], until env.set_goal turns the goal; "
        "null: any",
        min=-2.0 * math.pi,
        max=2.0 * math.pi,
    )
    observes_heading: bool | None = option(
        None,
        "observation of the turn to the goal's heading; null: if task.success_heading is set",
    )
    roll_limit: float = option(
        ROLL_LIMIT, "roll of a trunk beyond which it has fallen [rad]", min=0.01, max=2.0 * math.pi
    )
    pitch_limit: float = option(
        PITCH_LIMIT,
        "pitch of a trunk beyond which it has fallen [rad]; the reference's 1.6 is never reached",
        min=0.01,
        max=2.0 * math.pi,
    )
    collapse_ends: bool = option(True, "end of the episode when a robot lies or kneels for a while")
    action_scale: tuple[float, float, float] = option(
        (0.5, 0.5, 0.5),
        "velocity command that an action of 1 stands for: vx, vy [m/s], yaw rate [rad/s]",
        min=1e-3,
        max=1.0,
    )
    keep_apart: float = option(
        0.0,
        "distance between trunks that a limit of the velocity commands keeps [m]; 0: no limit",
        min=0.0,
        max=2.0,
    )
    inertia: str = option(
        "physical",
        "inertia of the object: its own, or the reference's placeholder",
        choices=INERTIAS,
    )

    def __post_init__(self) -> None:
        check_values(PushCfg, vars(self), "task")
        self.check_terms(PUSH_TERMS)
        steps = round(self.episode_length_s / STEP_DT)
        if steps < 1 or self.decision_period < 1 or steps % self.decision_period:
            raise ConfigError(
                f"task.decision_period: {self.decision_period} does not divide the {steps} "
                "control steps of "
                f"task.episode_length_s {self.episode_length_s}; take a divisor of {max(steps, 1)}"
            )
        if self.success_heading is not None and self.goal_heading is None:
            raise ConfigError(
                f"task.success_heading={self.success_heading:g} needs the heading of the goal; say "
                "task.goal_heading=0, or leave both out"
            )
        if self.observes_heading and self.goal_heading is None:
            raise ConfigError(
                "task.observes_heading needs the heading of the goal; say task.goal_heading=0, or "
                "leave both out"
            )
        if isinstance(self.object_mass, str):
            parse_force(self.object_mass)
        if self.shapes is not None:
            self._check_shapes()
        if self.observation == "sets" and self.state_type == "FP":
            raise ConfigError(
                "task.state_type: FP lists the robots in an order for each of them, and "
                "task.observation=sets has none; say task.state_type=EP"
            )
        if self.entity_dropout > 0.0 and self.observation != "sets":
            raise ConfigError(
                f"task.entity_dropout={self.entity_dropout:g} leaves robots out of sets; say "
                f"task.observation=sets instead of {self.observation}, or leave it out"
            )
        nearest, furthest = self.goal_distance
        if not self.success_radius < nearest <= furthest <= ARENA_HALF_SIZE:
            raise ConfigError(
                f"task.goal_distance: {list(self.goal_distance)} must be two distances in "
                "ascending order, up to "
                f"{ARENA_HALF_SIZE} m, where the wall is, and both above "
                f"task.success_radius {self.success_radius}"
            )
        share = self.close_share + self.tangled_share
        if share > 1.0:
            raise ConfigError(
                f"task.close_share and task.tangled_share: {share:g} together; they may be 1 at "
                "most"
            )
        if share > 0.0 and self.spawn != "separated":
            raise ConfigError(
                "task.close_share and task.tangled_share are shares of separated starts; say "
                "task.spawn=separated "
                f"instead of {self.spawn}, or 0 for both"
            )

    def _check_shapes(self) -> None:
        """Raise ConfigError for settings that shapes which differ do not go with."""
        if self.observation != "sets":
            raise ConfigError(
                f"task.shapes={self.shapes}: only outlines tell the worlds' objects apart; say "
                "task.observation=sets"
            )
        for name in ("shape_mass", "shape_friction", "shape_force"):
            low, high = getattr(self, name) or (0.0, 0.0)
            if low > high:
                raise ConfigError(
                    f"task.{name}: [{low:g}, {high:g}] must be a range in ascending order; say "
                    f"[{high:g}, {low:g}]"
                )
        check_kinds(self.shape_kinds, "task.shape_kinds")

    @property
    def is_heading_observed(self) -> bool:
        """Return whether robots and critic observe the turn to the goal's heading."""
        if self.observes_heading is None:
            return self.success_heading is not None
        return self.observes_heading

    @property
    def default_observations(self) -> tuple[str, ...]:
        """Return the terms that robots observe by default."""
        observed = OBSERVED[self.observation]
        return (*observed, "heading_error") if self.is_heading_observed else observed

    def pushed_object(self) -> ObjectCfg:
        """Return the object with the mass and the width of these settings."""
        obj = OBJECTS[self.object]
        if isinstance(self.object_mass, str):
            obj = with_sliding_force(obj, parse_force(self.object_mass))
        elif self.object_mass is not None:
            obj = obj.with_mass(self.object_mass)
        return obj if self.object_width == 1.0 else obj.with_width(self.object_width)

    def preset_weights(self) -> dict[str, float]:
        """Return the weights of the reward preset for the object."""
        return preset_weights(self.rewards, self.object)


# Of a task's state in checkpoints of release 0.2.
_FORMER_KEYS = {
    "collapse": "memory/collapse",
    "tangle": "memory/tangle",
    "teamwork/effort": "memory/effort",
    "teamwork/nearest": "memory/nearest",
    "is_reached": "terms/measures.is_reached/is_reached",
}


class PushTask(TermTask):
    """N worlds, A agents, three numbers an action: forward, sideways and turning speed in [-1,
    1].
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
        """Push with ``robots`` that ``controller`` walks; ``shapes`` are the worlds' own objects,
        if they differ.
        """
        device = robots.device
        self.cfg = cfg
        self.num_agents = len(robots)
        self.decision_period = cfg.decision_period
        self.max_episode_length = round(cfg.episode_length_s / STEP_DT)
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
        self._limit: CommandLimit | None = None
        if cfg.keep_apart > 0.0:
            self._limit = CommandLimit(self.constants, cfg.keep_apart, cfg.decision_period)
        self._asked: Tensor | None = None  # (N, A, 3) a new command that is not yet limited

        worlds = Worlds(num_envs, self.num_agents, device, cfg)
        memory = Memory(worlds)
        self.teamwork = Teamwork(
            memory.remember("effort", self.num_agents),
            memory.remember("nearest", start=torch.inf),
        )
        self._collapse = CollapseTimers(
            memory.remember("collapse", self.num_agents, CollapseTimers.SIZE), robots
        )
        self._rest: Tensor | None = None
        if cfg.success_rest_s > 0.0:
            self._rest = memory.remember("rest")
        self._is_out: Tensor | None = None
        self._is_away: Tensor | None = None
        num_pairs = len(self.constants.pairs.robots)
        self._tangle = TangleTimers(memory.remember("tangle", num_pairs, TangleTimers.SIZE))
        # The part of the memory that observations show.
        observed = torch.empty(num_envs, self.constants.memory_size, device=device)
        roster_size = self.constants.roster_size
        self._roster: Roster | None = None
        if cfg.observation == "sets":
            _check_room(cfg, self.num_agents)
            roster = memory.keep("roster", observed[:, :roster_size], start=1.0)
            self._roster = Roster(roster, self.num_agents)
            self._observes = self._roster.observes.clone()  # in the episodes that begin next
        self.goal_heading: Tensor | None = None  # (N,) [rad] in force, live
        if cfg.goal_heading is not None:
            self.goal_heading = memory.keep(
                "goal_heading", observed[:, roster_size], start=cfg.goal_heading
            )

        super().__init__(self._make_terms(worlds), worlds, memory, observed)
        self.symmetries = self._symmetries(robots)

    def heading_error(self, object_yaw: Tensor) -> Tensor:
        """Return the turn (N,) [rad] to the goal's heading from the nearest of those that look
        like ``object_yaw`` (N,).
        """
        return self.constants.heading_error(object_yaw, self.goal_heading)

    def _make_terms(self, worlds: Worlds) -> TaskTerms:
        """Build the terms that the settings choose."""
        cfg = self.cfg
        observed_by_critic = OBSERVED_BY_CRITIC[cfg.observation]
        if cfg.is_heading_observed:
            # The numbers of the robots come last.
            observed_by_critic = (*observed_by_critic[:-1], "heading_error", observed_by_critic[-1])
        measures = DEFAULT_MEASURES
        if not cfg.success_ends:
            measures += ("is_reached",)
        default = DefaultTerms(
            cfg.default_observations,
            observed_by_critic,
            DEFAULT_TERMINATIONS,
            measures,
            DEFAULT_METRICS,
        )
        empty = SceneState.zeros(1, worlds.num_agents, True, worlds.device)
        scene = SceneFeatures(empty, self.constants)
        order = self.constants.order if cfg.state_type == "FP" else None
        return build_terms(PUSH_TERMS, default, cfg, worlds, scene, order)

    def _symmetries(self, robots: Robots) -> Symmetries:
        """Return how the scenes of a team of ``robots`` are alike."""
        action = Image.of(range(3), _ACTION_SIGNS, robots.device)
        mirror = self.mirror_image(action)
        obs = self.terms.observations
        state = self.terms.state
        if obs.turn is None or state.turn is None:
            return Symmetries(mirror)
        here = Image.same(obs.size, robots.device)
        action = Image.same(3, robots.device)

        # What is like nothing else has itself as its image.
        turn = TeamImage(obs.turn, action, state.turn)
        rewards = self.terms.rewards
        if not all(rewards.terms[name].is_same_turned for name in rewards.weights):
            turn = TeamImage(here, action, state.with_numbers_of(0))
        gaits = self.cfg.gait
        differ = robots.is_mixed or (isinstance(gaits, tuple) and len(set(gaits)) > 1)
        shift = 0 if differ else 1
        numbers = TeamImage(here, action, state.with_numbers_of(shift), shift)
        return Symmetries(mirror, turn, numbers)

    def layout(self, episode: Tensor) -> Layout:
        """Draw the start of episode number ``episode`` (N,) of every world."""
        if self.cfg.entity_dropout > 0.0:
            shape = self._observes.shape[1:]
            drawn = self._streams.uniform(_DROPOUT, episode, tuple(shape))
            self._observes.copy_(drawn >= self.cfg.entity_dropout)
        return self._layouts.draw(self._streams, episode)

    def begin(self, mask: Tensor) -> None:
        """Reset the memory of the worlds of ``mask``, which begin new episodes."""
        self._controller.begin(mask)
        super().begin(mask)
        if self._roster is not None:
            observes = self._roster.observes
            observes.copy_(torch.where(mask.view(-1, 1, 1), self._observes, observes))
            self._update_roster()

    def _update_roster(self) -> None:
        """Mark the robots that observations as sets contain."""
        if self._roster is not None and self._is_away is not None:
            self._roster.takes_part.copy_(~self._is_away)

    @property
    def features(self) -> TaskFeatures:
        """Goals that move and turn, frozen networks in blocks, and robots that are lost."""
        set_goal_heading = None
        if self.goal_heading is not None:
            set_goal_heading = self.set_goal_heading
        return super().features._replace(
            set_goal=self.set_goal,
            set_goal_heading=set_goal_heading,
            use_blocks=self._controller.use_blocks,
            excuse_robots=self.excuse_robots,
        )

    def set_goal(self, goal: Tensor, mask: Tensor) -> bool:
        """Forget how near the object came to the old goals, and for how long it rested there."""
        self.teamwork.nearest.masked_fill_(mask, torch.inf)
        if self._rest is not None:
            self._rest.masked_fill_(mask, 0.0)
        return True

    def set_goal_heading(self, heading: Tensor, mask: Tensor) -> None:
        """Ask for ``heading`` (N,) [rad] of the object at the goal, until the episode ends."""
        assert self.goal_heading is not None
        self.goal_heading.copy_(torch.where(mask, heading, self.goal_heading))

    def excuse_robots(self, is_out: Tensor, is_away: Tensor) -> None:
        """Let falls and collapses of the robots that are True in ``is_out`` (N, A) end no episode,
        and pay them the mean of the others' rewards. Those of ``is_away`` (N, A) are in no set.
        """
        self._is_out = is_out
        self._is_away = is_away

    def command(self, actions: Tensor) -> None:
        """Take actions (N, A, 3) in [-1, 1] and hold the velocities they ask for."""
        velocity = actions * self._action_scale
        if self._limit is None:
            self._controller.command(velocity)
        else:
            self._asked = velocity

    def targets(self, state: SceneState) -> Tensor:
        """Return the gait's joint targets (N, A, J) [rad]."""
        if self._limit is not None and self._asked is not None:
            self._controller.command(self._limit(self._asked, state, self.memory))
            self._asked = None
        return self._controller.targets(state)

    def scene_features(self, state: SceneState, memory: Tensor) -> SceneFeatures:
        """Return the features that robots and critic observe."""
        return SceneFeatures(state, self.constants, memory)

    def step_features(self, state: SceneState, prev: SceneState) -> StepFeatures:
        """Return the features of the control step from ``prev`` to ``state``."""
        return StepFeatures(
            state,
            prev,
            self.constants,
            self.teamwork,
            self._collapse,
            self._tangle,
            self._rest,
            self._is_out,
            self.memory,
        )

    def evaluate(self, state: SceneState, prev: SceneState) -> Outcome:
        """Compute rewards, terminations and measures of the control step from ``prev`` to
        ``state``.
        """
        outcome = super().evaluate(state, prev)
        self._update_roster()
        if self._is_out is None:
            return outcome
        is_there = (~self._is_out).float()
        mean = (outcome.rewards * is_there).sum(dim=2) / is_there.sum(dim=1).clamp(min=1.0)
        rewards = torch.where(self._is_out, mean.unsqueeze(2), outcome.rewards)
        return outcome._replace(rewards=rewards)

    def episode_features(self, sums: Tensor, steps: Tensor, terminated: Terminated) -> PushEpisodes:
        """Return the features of finished episodes."""
        return PushEpisodes(sums, steps, terminated, self.terms.measures, self.constants.nan)

    def obs_names(self, agent: int) -> tuple[str, ...]:
        """Return the names of the numbers that an agent observes, in their order.

        Those of a term without names of its own are called by its name and a number from 0.
        """
        others = [f"robot{int(other)}" for other in self.constants.order[agent, 1:]]
        return self.terms.observations.number_names(others)

    def state_dict(self) -> dict[str, Any]:
        """Return the command that is held, the gait's memory, and the memory of features and
        terms.
        """
        return {"controller": self._controller.state_dict(), **super().state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a ``state_dict``."""
        self._controller.load_state_dict(state["controller"])
        if "memory" not in state:
            state = {"terms": {}, **with_present_keys(state, _FORMER_KEYS)}
        super().load_state_dict(state)


def _check_room(cfg: PushCfg, num_agents: int) -> None:
    """Raise ConfigError for a team that observations as sets have no room for."""
    if num_agents > cfg.max_robots:
        raise ConfigError(
            f"env.num_agents={num_agents}: observations as sets have room for "
            f"task.max_robots={cfg.max_robots}; take fewer robots, or train with a larger "
            "task.max_robots"
        )
