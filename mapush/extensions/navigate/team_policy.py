"""The frozen team of a navigation task, or a script in its place, as a controller."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from harl_mapush.config.layers import without_former_keys
from mapush.extensions.navigate.frozen_team import TeamController
from mapush.extensions.navigate.settings import MID_LEVELS, NavigateCfg
from mqe.config import ConfigError, build
from mqe.controllers.frozen_policy import Policy, PolicyDescription
from mqe.controllers.gait import GaitController, load_team_gait
from mqe.tasks.push.features import PushConstants, SceneFeatures
from mqe.tasks.push.keep_apart import CommandLimit
from mqe.tasks.push.observations import OBSERVATIONS
from mqe.tasks.push.settings import PushCfg
from mqe.tasks.term_settings import observed_names
from mqe.tasks.terms import ObservationTerms, Worlds
from mqe.world.robots import Robots
from mqe.world.state import SceneState


def settings_of(cfg: NavigateCfg, team: PolicyDescription) -> PushCfg:
    """Return the task settings of a team."""
    learned = team.task.get("name", PushCfg.name)
    if learned != PushCfg.name:
        raise ConfigError(
            f"task.team: '{cfg.team}' learned {learned}, and a team that pushes is needed; name "
            f"one that learned {PushCfg.name}"
        )
    settings = without_former_keys("task", team.task, learned)
    return build(PushCfg, settings, f"task.team: '{cfg.team}': task")


def make_team(
    cfg: NavigateCfg,
    policy: Policy,
    constants: PushConstants,
    robots: Robots,
    num_envs: int,
) -> TeamController:
    """Return the team in N worlds. ``constants`` are those of its own task."""
    device = robots.device
    push_cfg = constants.cfg
    num_robots = policy.description.num_robots
    terms = _observations(push_cfg, constants, num_robots, device)
    names = terms.number_names([f"robot{k}" for k in range(1, num_robots)])
    mid_level, memory_size = _mid_level(cfg, policy, names, constants.object.reach, device)
    limit = None
    if push_cfg.keep_apart > 0.0 and num_robots > 1:
        limit = CommandLimit(names, push_cfg.keep_apart, push_cfg.decision_period).to(device)
    return TeamController(
        mid_level,
        _observer(terms, constants),
        GaitController(load_team_gait(push_cfg.gait, robots), num_envs, robots),
        push_cfg.decision_period,
        torch.tensor(push_cfg.action_scale, device=device),
        num_envs,
        (num_robots, memory_size),
        limit,
    )


def _observations(
    cfg: PushCfg, constants: PushConstants, num_robots: int, device: torch.device
) -> ObservationTerms:
    """Return the observation terms of the team."""
    worlds = Worlds(1, num_robots, device, cfg)
    empty = SceneFeatures(SceneState.zeros(1, num_robots, True, device), constants)
    names = observed_names(cfg.default_observations, cfg)
    return ObservationTerms({name: OBSERVATIONS[name] for name in names}, worlds, empty)


def _observer(
    terms: ObservationTerms, constants: PushConstants
) -> Callable[[SceneState, Tensor], Tensor]:
    """Return the team's observation, with a sub-goal in place of the goal."""

    def observe(state: SceneState, subgoal: Tensor) -> Tensor:
        return terms(SceneFeatures(state.with_goal(subgoal), constants))

    return observe


def _mid_level(
    cfg: NavigateCfg,
    policy: Policy,
    names: Sequence[str],
    reach: float,
    device: torch.device,
) -> tuple[Callable[[Tensor], Tensor], int]:
    """Return the frozen team or a script as a policy, and its memory size for each robot."""
    script = MID_LEVELS[cfg.mid_level]
    if script is None:
        network = policy.network(device, "task.team")
        for layer in network.modules():
            if isinstance(layer, nn.Linear):
                # Equal seeds give the trainings of 0.3, which drew initial weights for this layer.
                nn.Linear(layer.in_features, layer.out_features)
        return network, network.memory_size
    return script(names, reach, policy.description.num_robots, device), 0
