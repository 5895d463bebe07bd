"""Base class for user tasks: agents command velocities, and gaits move the robots."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from mqe.config import option
from mqe.controllers.gait import GaitController, load_team_gait
from mqe.tasks.entry import EnvCfg, TaskEntry, TaskSetup, velocity_commands
from mqe.tasks.episode_report import Report
from mqe.tasks.task import TermTask
from mqe.tasks.term_settings import DefaultTerms, TermCfg, build_terms
from mqe.tasks.terms import (
    MeasureTerm,
    MetricTerm,
    ObservationTerm,
    RewardTerm,
    Terminated,
    TerminationTerm,
    TermRegistry,
    Worlds,
)
from mqe.world.geometry import quat_from_rpy
from mqe.world.layout import Layout
from mqe.world.robots import Robots
from mqe.world.scene import STEP_DT, build_scene
from mqe.world.state import SceneState
from mqe.world.streams import Streams
from mqe.world.things import Thing, Things

START_HEIGHT = 0.35  # [m] of the trunks, from which robots drop onto their feet


@dataclass(frozen=True)
class WalkingCfg(TermCfg):
    """Settings for a walking task. A subclass adds fields and sets the default ``name``."""

    name: str = option("walking", "name of the task")
    episode_length_s: float = option(10.0, "time limit of an episode [s]", above=0.0)
    action_scale: float = option(0.5, "velocity of an action of 1 [m/s, rad/s]", above=0.0)


class WalkingFeatures:
    """State of W worlds, as terms receive it."""

    terminated: Terminated  # the conditions that end the episode, for rewards

    def __init__(self, state: SceneState, prev: SceneState, task: WalkingTask) -> None:
        """Hold the state before (``prev``) and after a control step. At a single moment both are
        equal.
        """
        self.state = state
        self.prev = prev
        self.task = task


class WalkingTask(TermTask):
    """Base class. A subclass declares settings, terms and initial poses.

    Terms are functions of ``WalkingFeatures``, or of its subclass in ``features_class``. All
    declared terms are in use. ``task.weights`` and the other term settings change them.
    """

    settings: ClassVar[type[WalkingCfg]] = WalkingCfg
    features_class: ClassVar[type[WalkingFeatures]] = WalkingFeatures
    decision_period = 5  # control steps a decision
    observations: ClassVar[Mapping[str, ObservationTerm]] = {}
    state: ClassVar[Mapping[str, ObservationTerm]] = {}
    rewards: ClassVar[Mapping[str, RewardTerm]] = {}
    terminations: ClassVar[Mapping[str, TerminationTerm]] = {}
    measures: ClassVar[Mapping[str, MeasureTerm]] = {}
    metrics: ClassVar[Mapping[str, MetricTerm]] = {}
    report: ClassVar[Report] = Report()

    def __init__(
        self,
        cfg: Any,
        num_envs: int,
        robots: Robots,
        streams: Streams,
        terms: TermRegistry,
        things: Things | None = None,
    ) -> None:
        """Build the task for ``robots`` in ``num_envs`` worlds with ``things``."""
        self.cfg = cfg
        self._things = things
        self.robots = robots
        self.streams = streams
        self.num_agents = len(robots)
        self.action_sizes = (3,) * self.num_agents
        decisions = round(cfg.episode_length_s / STEP_DT / self.decision_period)
        self.max_episode_length = max(1, decisions) * self.decision_period
        self._controller = GaitController(load_team_gait(None, robots), num_envs, robots)
        worlds = Worlds(num_envs, self.num_agents, robots.device, cfg)
        empty = SceneState.zeros(1, self.num_agents, False, robots.device, things=things)
        default = DefaultTerms(
            self.observations, self.state, self.terminations, self.measures, self.metrics
        )
        scene = self.features_class(empty, empty, self)
        super().__init__(build_terms(terms, default, cfg, worlds, scene), worlds)
        self.stateful["controller"] = self._controller

    @classmethod
    def things(cls, cfg: Any) -> Sequence[Thing]:
        """Return the scene's things besides the robots."""
        return ()

    def thing_starts(self, episode: Tensor) -> Mapping[str, Tensor]:
        """Return things' initial joint positions, by joint, for episodes (N,); others are as in the
        files.

        A free joint has x, y [m] and heading [rad], (N, 3), any other one number, (N,).
        """
        return {}

    @abstractmethod
    def starts(self, episode: Tensor) -> Tensor:
        """Return all robots' initial x, y [m] and heading [rad], (N, A, 3), for episodes (N,)."""

    def layout(self, episode: Tensor) -> Layout:
        """Return the initial layout of new episodes: robots standing still."""
        places = self.starts(episode)
        pos = torch.cat((places[..., :2], torch.full_like(places[..., :1], START_HEIGHT)), dim=-1)
        level = torch.zeros_like(places[..., :2])
        quat = quat_from_rpy(torch.cat((level, places[..., 2:]), dim=-1))
        still = pos.new_zeros(*pos.shape[:2], 6)
        joints = self.robots.joint_pos.expand(*pos.shape[:2], -1)
        things = None
        if self._things is not None:
            things = self._things.qpos(self.thing_starts(episode), len(pos), pos.device)
        return Layout(pos, quat, still, joints, pos[:, 0], quat[:, 0], pos[:, 0], things=things)

    def begin(self, mask: Tensor) -> None:
        """Begin new episodes in the worlds of ``mask`` (N,)."""
        super().begin(mask)
        self._controller.begin(mask)

    def command(self, actions: Tensor) -> None:
        """Take actions (N, A, 3): forward, sideways and turning speed relative to
        ``action_scale``.
        """
        self._controller.command(self.cfg.action_scale * actions)

    def targets(self, state: SceneState) -> Tensor:
        """Return the gaits' joint targets (N, A, J) [rad]."""
        return self._controller.targets(state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a ``state_dict``. Gaits missing in older ones begin anew."""
        super().load_state_dict({"controller": self._controller.state_dict(), **state})

    def scene_features(self, state: SceneState, memory: Tensor) -> WalkingFeatures:
        """Return the features at one moment."""
        return self.features_class(state, state, self)

    def step_features(self, state: SceneState, prev: SceneState) -> WalkingFeatures:
        """Return the features for a control step."""
        return self.features_class(state, prev, self)


def walking_entry(task: type[WalkingTask]) -> TaskEntry:
    """Return a walking task's entry for the task registry."""
    terms = TermRegistry()
    for kind in fields(terms):
        getattr(terms, kind.name).update(getattr(task, kind.name))

    def make(cfg: Any, env: EnvCfg, device: torch.device, streams: Streams) -> TaskSetup:
        cfg.check_terms(terms)
        scene = build_scene(
            env.num_agents or 2, None, things=task.things(cfg), **env.scene_options()
        )
        robots = Robots(scene.robots, device)
        walking_task = task(cfg, env.num_envs, robots, streams, terms, scene.things)
        return TaskSetup(scene, walking_task, {})

    return TaskEntry(
        task.settings,
        make,
        task.report,
        actions=lambda cfg: velocity_commands((cfg.action_scale,) * 3),
        gaits=lambda cfg: None,
        terms=terms,
    )
