"""Exact observations of the push task's robots, for a teacher of robots with senses."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from mqe.config import ConfigError
from mqe.tasks.push.default_terms import push_terms
from mqe.tasks.push.features import SceneFeatures
from mqe.tasks.push.roster import Roster
from mqe.tasks.push.settings import ROOM
from mqe.tasks.push.task import PushTask
from mqe.tasks.task import names_of_others
from mqe.world.geometry import quat_from_yaw
from mqe.world.objects import NUM_OUTLINE_POINTS
from mqe.world.state import SceneState


class ExactObservations:
    """Default observations without senses, from the critic's true states."""

    def __init__(self, task: PushTask) -> None:
        """Read the states of ``task``. Raise ConfigError for states without the whole scene."""
        cfg = replace(task.cfg, senses={}, replaced_observations={}, more_observations=())
        self._has_sets = cfg.observation == "sets"
        is_readable = self._has_sets or cfg.observation == "sincos"
        if not is_readable or cfg.state_type == "FP" or cfg.is_heading_observed:
            raise ConfigError(
                "algorithm.name=hasac_taught with task.senses reads the teacher's observations off "
                "the critic's state; say task.observation=sincos or sets, task.state_type=EP, and "
                "leave out task.success_heading and task.observes_heading"
            )
        self._constants = task.constants
        worlds = task.terms.observations.worlds._replace(cfg=cfg)
        self._terms = push_terms(cfg, task.constants, worlds).observations
        self._num_agents = task.num_agents
        self.size = self._terms.size
        self.names = self._terms.number_names(names_of_others(0, task.num_agents))

    def __call__(self, state: Tensor) -> Tensor:
        """Return the observations (B, A, O) in states (B, 1, S)."""
        num_agents = self._num_agents
        sizes = (1, 2, 7 * num_agents)
        if self._has_sets:
            sizes = (1, 3 * NUM_OUTLINE_POINTS, 8 * ROOM)
        distance, thing, robots = state[:, 0, : sum(sizes)].split(sizes, dim=1)

        # The critic's frame: origin at the object, x axis to the goal
        scene = SceneState.zeros(len(state), num_agents, True, state.device)
        scene.goal_pos[:, :1] = distance
        features = SceneFeatures(scene, self._constants)
        if self._has_sets:
            robots = robots.unflatten(1, (ROOM, 8))[:, :num_agents]
            takes_part = robots[..., 0]
            robots = robots[..., 1:]
            observes = torch.ones_like(takes_part).repeat(1, num_agents)
            features.roster = Roster(torch.cat((takes_part, observes), dim=1), num_agents)
            features.outline = thing.unflatten(1, (-1, 3))[..., 1:]
        else:
            robots = robots.unflatten(1, (num_agents, 7))
            scene.object_quat.copy_(quat_from_yaw(torch.atan2(thing[:, 0], thing[:, 1])))
        scene.robot_pos[..., :2] = robots[..., :2]
        scene.robot_quat.copy_(quat_from_yaw(torch.atan2(robots[..., 2], robots[..., 3])))
        return self._terms(features)
