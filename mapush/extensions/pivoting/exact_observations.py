"""Exact observations of the push task's robots, for a teacher of robots with senses."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from mqe.config import ConfigError
from mqe.tasks.push.default_terms import push_terms
from mqe.tasks.push.features import SceneFeatures
from mqe.tasks.push.roster import Roster
from mqe.tasks.push.task import PushTask
from mqe.tasks.task import names_of_others
from mqe.world.geometry import quat_from_yaw
from mqe.world.state import SceneState

# Observations that the critic's state has only on request, by their names there
_TRUE_STATES = ("load", "object_velocity")


class ExactObservations:
    """Default observations, and ``more``, without senses, from the critic's true states."""

    def __init__(self, task: PushTask, more: Sequence[str] = ()) -> None:
        """Read the states of ``task``. Raise ConfigError for states without the whole scene."""
        cfg = replace(task.cfg, senses={}, replaced_observations={}, more_observations=tuple(more))
        is_readable = cfg.observation in ("sincos", "sets")
        if not is_readable or cfg.state_type == "FP" or cfg.is_heading_observed:
            raise ConfigError(
                "algorithm.name=hasac_taught with task.senses reads the teacher's observations off "
                "the critic's state; say task.observation=sincos or sets, task.state_type=EP, and "
                "leave out task.success_heading and task.observes_heading"
            )
        unknown = [name for name in _TRUE_STATES if name in more and name not in cfg.more_state]
        if unknown:
            raise ConfigError(
                f"it observes {' and '.join(unknown)}, unknown in the critic's state; "
                f"say task.more_state=[{','.join([*cfg.more_state, *unknown])}]"
            )
        self._constants = task.constants
        self.states = task.terms.state
        worlds = task.terms.observations.worlds._replace(cfg=cfg)
        self._terms = push_terms(cfg, task.constants, worlds).observations
        self.size = self._terms.size
        self.names = self._terms.number_names(names_of_others(0, task.num_agents))
        first = task.obs_names(0).index("object_x")
        self._place = slice(first, first + 2)  # of the object, in the robots' own observations

    def knows(self, obs: Tensor) -> Tensor:
        """Return 1 (B, A) for robots that know the object by their own observations (B, A, O)."""
        return (obs[..., self._place] != 0.0).any(dim=-1).float()

    def __call__(self, state: Tensor) -> Tensor:
        """Return the observations (B, A, O) in states (B, 1, S)."""
        num_agents = self._constants.num_agents
        parts = self.states.split(state[:, 0])

        # The critic's frame: origin at the object, x axis to the goal
        scene = SceneState.zeros(len(state), num_agents, True, state.device)
        scene.goal_pos[:, :1] = parts["goal_distance"]
        features = SceneFeatures(scene, self._constants)
        if "team" in parts:
            team = parts["team"][:, :num_agents]
            takes_part = team[..., 0]
            robots = team[..., 1:]
            observes = torch.ones_like(takes_part).repeat(1, num_agents)
            features.roster = Roster(torch.cat((takes_part, observes), dim=1), num_agents)
            features.outline = parts["outline"][..., 1:]
        else:
            robots = parts["robots"]
            heading = torch.atan2(*parts["object_heading"].unbind(dim=1))
            scene.object_quat.copy_(quat_from_yaw(heading))
        scene.robot_pos[..., :2] = robots[..., :2]
        scene.robot_quat.copy_(quat_from_yaw(torch.atan2(robots[..., 2], robots[..., 3])))
        scene.robot_linvel[..., :2] = robots[..., 4:6]
        scene.robot_angvel_b[..., 2] = robots[..., 6]
        if "object_velocity" in parts:
            scene.object_linvel[..., :2] = parts["object_velocity"]
        if "load" in parts:
            features.load = parts["load"]
        return self._terms(features)
