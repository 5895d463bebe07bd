"""High level, task ``go1push_upper``: one agent leads a frozen team around obstacles."""

import torch
from torch import Tensor

from mapush.extensions.navigate.default_terms import navigate_terms
from mapush.extensions.navigate.features import (
    NavigateConstants,
    NavigateEpisodes,
    SceneFeatures,
    StepFeatures,
)
from mapush.extensions.navigate.frozen_team import TeamController
from mapush.extensions.navigate.map_starts import MapStarts
from mapush.extensions.navigate.planning import Planning
from mqe.tasks.task import Outcome, TaskFeatures, TermTask
from mqe.tasks.terms import Memory, Terminated, Worlds
from mqe.vec_env import Image, Symmetries
from mqe.world.collapse import CollapseTimers
from mqe.world.geometry import axes_along, length
from mqe.world.layout import Layout
from mqe.world.robots import Robots
from mqe.world.scene import STEP_DT
from mqe.world.state import SceneState, overwrite


class NavigateTask(TermTask):
    """N worlds with one agent. An action has two components in [-1, 1].

    The components shift the planned sub-goal ahead and to the left.
    """

    num_agents = 1
    action_sizes: tuple[int, ...] = (2,)

    def __init__(
        self,
        num_envs: int,
        robots: Robots,
        team: TeamController,
        starts: MapStarts,
        constants: NavigateConstants,
    ) -> None:
        """Lead ``team`` of ``robots`` from ``starts``."""
        device = robots.device
        cfg = constants.cfg
        self.cfg = cfg
        self.decision_period = cfg.decision_period
        self.max_episode_length = round(cfg.episode_length_s / STEP_DT)
        self.constants = constants
        self.team = team
        self._starts = starts

        worlds = Worlds(num_envs, 1, device, cfg)
        memories = Memory(worlds)
        self.planning = Planning(constants, memories)
        self._collapse = CollapseTimers(
            memories.remember("collapse", len(robots), CollapseTimers.SIZE), robots
        )
        # Control steps of the present decision; equal in all worlds.
        self._age = 0
        self._proposed = (self.planning.map_index.clone(), self.planning.plan.planned.clone())
        self._action = torch.zeros(num_envs, 2, device=device)

        num_obstacles = len(constants.problem.shapes.slots)
        empty = SceneState.zeros(1, len(robots), True, device, num_obstacles)
        scene = self.scene_features(empty, self.planning.values[:1])
        terms = navigate_terms(cfg, worlds, scene)
        super().__init__(terms, worlds, memories, self.planning.values)
        self.stateful["team"] = team
        action = Image.of(range(2), (1.0, -1.0), torch.device(device))
        self.symmetries = Symmetries(self.mirror_image(action))

    def layout(self, episode: Tensor) -> Layout:
        """Return the initial layout for episode number ``episode`` (N,) on its map."""
        layout, index, start = self._starts.draw(episode)
        self._proposed = (index, start)
        return layout

    def begin(self, mask: Tensor) -> None:
        """Reset the memory in the worlds ``mask``, and plan from the new layouts."""
        self.team.begin(mask)
        super().begin(mask)
        self.planning.begin(*self._proposed, mask)

    @property
    def features(self) -> TaskFeatures:
        """Hooks for the planner's goals and pictures, the marker and blocks for frozen networks."""
        return super().features._replace(
            set_goal=self.set_goal,
            marker=self.planning.plan.subgoal,
            use_blocks=self.team.use_blocks,
            success_radius=self.cfg.success_radius,
            planned_way=self.planning.way,
        )

    def set_goal(self, goal: Tensor, mask: Tensor) -> bool:
        """Lead the team to ``goal`` (N, 2) in the coming decision, in place of the planner's
        sub-goal.
        """
        overwrite(self.planning.plan.planned, mask, goal)
        return False

    def command(self, actions: Tensor) -> None:
        """Take actions (N, 1, 2) in [-1, 1]. The first in a decision counts."""
        if self._age > 0:
            return
        self._action.copy_(actions[:, 0])

    def targets(self, state: SceneState) -> Tensor:
        """Return joint targets (N, A, J) [rad] for the team on its way to the sub-goal."""
        if self._age == 0:
            subgoal = self.planning.plan.subgoal
            subgoal.copy_(self._chosen_subgoal(state))
            self.team.command(subgoal)
        self._age += 1
        return self.team.targets(state)

    def _chosen_subgoal(self, state: SceneState) -> Tensor:
        """Return the planned sub-goals (N, 2) [m], shifted by the last actions along and across the
        line to them.
        """
        planned = self.planning.plan.planned
        to_planned = planned - state.object_pos[:, :2]
        ahead = to_planned / length(to_planned).clamp(min=1e-6).unsqueeze(-1)
        shift = (self._action.unsqueeze(-1) * axes_along(ahead)).sum(dim=1)
        return planned + self.cfg.residual_scale * shift

    def evaluate(self, state: SceneState, prev: SceneState) -> Outcome:
        """Judge a control step, and plan at a decision's end."""
        outcome = super().evaluate(state, prev)
        if self._age == self.decision_period:
            self._age = 0
            self.planning.update(state.object_pos[:, :2])
        return outcome

    def scene_features(self, state: SceneState, memory: Tensor) -> SceneFeatures:
        """Return the observed features in any W worlds."""
        return SceneFeatures(state, memory, self.constants)

    def step_features(self, state: SceneState, prev: SceneState) -> StepFeatures:
        """Return the features for the control step from ``prev`` to ``state``."""
        return StepFeatures(
            state, prev, self.memory, self.constants, self.planning.map_index, self._collapse
        )

    def episode_features(
        self, sums: Tensor, steps: Tensor, terminated: Terminated
    ) -> NavigateEpisodes:
        """Return the features for finished episodes."""
        features = NavigateEpisodes(sums, steps, terminated, self.terms.measures)
        features.success_radius = self.cfg.success_radius
        return features
