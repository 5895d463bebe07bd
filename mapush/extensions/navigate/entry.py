"""The navigation task: a frozen team pushes an object around obstacles to its goal."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from harl_mapush.config.layers import with_own_names
from harl_mapush.config.presets import register_preset
from harl_mapush.config.suites import register_suite
from mapush.extensions.navigate.episode_report import REPORT
from mapush.extensions.navigate.features import NavigateConstants
from mapush.extensions.navigate.frozen_team import TeamController
from mapush.extensions.navigate.incentives import pay_for_waiting
from mapush.extensions.navigate.maps.arena_map import ArenaMap, Room, check_map
from mapush.extensions.navigate.maps.families import FAMILIES, draw_maps
from mapush.extensions.navigate.maps.files import read_maps
from mapush.extensions.navigate.maps.table import MapTable, ObstacleShapes, slots_of
from mapush.extensions.navigate.planners.problem import BLOCKED, Problem, solve_problem
from mapush.extensions.navigate.settings import MID_LEVELS, NAVIGATE_TERMS, NavigateCfg
from mapush.extensions.navigate.task import NavigateTask
from mqe.config import ConfigError, build
from mqe.controllers.frozen_policy import Policy, PolicyDescription, describe_policy, read_policy
from mqe.controllers.gait import GaitController, load_team_gait
from mqe.registry import TASK_ALIASES, TASKS
from mqe.tasks.entry import EnvCfg, PushedObjects, TaskEntry, TaskSetup
from mqe.tasks.push.features import PushConstants, SceneFeatures
from mqe.tasks.push.keep_apart import CommandLimit
from mqe.tasks.push.layouts import OBJECT_CLEARANCE, PushLayouts
from mqe.tasks.push.observations import OBSERVATIONS
from mqe.tasks.push.settings import PushCfg
from mqe.tasks.term_settings import observed_names
from mqe.tasks.terms import ObservationTerms, Worlds
from mqe.world.objects import Footprint, ObjectCfg
from mqe.world.obstacles import ObstacleCfg
from mqe.world.robots import Robots
from mqe.world.scene import STEP_DT, build_scene, object_friction_fields
from mqe.world.state import SceneState
from mqe.world.streams import Streams

__all__ = ["NAVIGATE", "NavigateCfg", "NavigateTask"]

_LOG = logging.getLogger(__name__)
_FOLDER = Path(__file__).parent
_FRICTION = 1  # stream: the object's friction of each world, drawn once
_ROBOT_REACH = 0.5  # [m] from a trunk's middle to its furthest leg


def _make(cfg: NavigateCfg, env: EnvCfg, device: torch.device, streams: Streams) -> TaskSetup:
    policy = read_policy(cfg.team, "task.team")
    team = policy.description
    push_cfg = _task_of(cfg, team)
    _check(cfg, env, team, push_cfg)
    obj = push_cfg.pushed_object()
    room = room_of(obj)
    if cfg.map in FAMILIES:
        maps = draw_maps(cfg.map, cfg.map_seed, cfg.num_maps, room)
    else:
        maps = read_maps(Path(cfg.map))
    _check_maps(cfg, maps, room)
    slots = slots_of(maps)
    problem, shortest = _solved(tuple(maps), slots, room.reach, device)
    _check_reachable(cfg, shortest)

    scene = build_scene(
        team.num_robots,
        obj,
        push_cfg.inertia,
        cfg.success_radius,
        env.robots,
        env.model,
        slots,
        problem.arena,
        num_markers=1,
        foot_friction=env.foot_friction,
    )
    robots = Robots(scene.robots, device)
    push_constants = PushConstants(push_cfg, team.num_robots, device)
    terms = _observations(push_cfg, push_constants, team.num_robots, device)
    mid_level, memory_size = _mid_level(cfg, policy, terms, obj, device)
    limit = None
    if push_cfg.keep_apart > 0.0 and team.num_robots > 1:
        others = [f"robot{k}" for k in range(1, team.num_robots)]
        names = terms.number_names(others)
        limit = CommandLimit(names, push_cfg.keep_apart, push_cfg.decision_period).to(device)
    controller = TeamController(
        mid_level,
        _observer(terms, push_constants),
        GaitController(load_team_gait(push_cfg.gait, robots), env.num_envs, robots),
        push_cfg.decision_period,
        torch.tensor(push_cfg.action_scale, device=device),
        env.num_envs,
        (team.num_robots, memory_size),
        limit,
    )
    task = NavigateTask(
        cfg,
        env.num_envs,
        robots,
        streams,
        controller,
        PushLayouts(Footprint(obj, device), robots, "separated", (1.0, 1.0)),
        problem.maps,
        NavigateConstants(cfg, push_constants, problem),
        shortest,
    )
    episode = torch.zeros(env.num_envs, dtype=torch.int64, device=device)
    friction = streams.between(*obj.friction, _FRICTION, episode)
    return TaskSetup(scene, task, object_friction_fields(scene, friction.cpu()))


def room_of(obj: ObjectCfg) -> Room:
    """Return the room for an object and its team."""
    reach = obj.reach
    # Robots on the ring keep clear of the object's sides.
    furthest = max(obj.spawn_ring[1], reach + OBJECT_CLEARANCE)
    return Room(reach, furthest + _ROBOT_REACH)


def _task_of(cfg: NavigateCfg, team: PolicyDescription) -> PushCfg:
    """Return the task settings of a team."""
    learned = team.task.get("name", PushCfg.name)
    if learned != PushCfg.name:
        raise ConfigError(
            f"task.team: '{cfg.team}' learned {learned}, and a team that pushes is needed; name "
            f"one that learned {PushCfg.name}"
        )
    settings = with_own_names({"task": team.task})["task"]
    return build(PushCfg, settings, f"task.team: '{cfg.team}': task")


def _check(cfg: NavigateCfg, env: EnvCfg, team: PolicyDescription, push_cfg: PushCfg) -> None:
    """Raise ConfigError if the settings do not fit the team."""
    if env.num_agents not in (None, 1):
        raise ConfigError(
            f"env.num_agents: {cfg.name} has one agent, which leads the {team.num_robots} robots "
            f"of task.team, not {env.num_agents}; leave it out"
        )
    if env.robots != team.robots:
        raise ConfigError(
            f"env.robots: the team of '{cfg.team}' are {team.robots}, not {env.robots}; say "
            f"env.robots={team.robots}, or name another task.team"
        )
    if env.randomize.lost_robots:
        raise ConfigError(
            f"env.randomize.lost_robots: {cfg.name} leads a whole team; leave it empty"
        )
    if cfg.decision_period % push_cfg.decision_period:
        raise ConfigError(
            f"task.decision_period: {cfg.decision_period} must be a multiple of the "
            f"{push_cfg.decision_period} control steps of a decision of '{cfg.team}'"
        )
    if cfg.rewards != "default":
        num_steps = round(cfg.episode_length_s / STEP_DT)
        _LOG.warning(
            "Note: task.rewards=%s may pay up to %.0f for never finishing, and %g for finishing.",
            cfg.rewards,
            pay_for_waiting(cfg.all_weights(), num_steps),
            cfg.all_weights().get("success", 0.0),
        )
    if env.model != team.model:
        _LOG.warning(
            "Note: the team of %s learned with env.model=%s, and this is %s.",
            cfg.team,
            team.model,
            env.model,
        )


@cache
def _solved(
    maps: tuple[ArenaMap, ...],
    slots: tuple[ObstacleCfg, ...],
    reach: float,
    device: torch.device,
) -> tuple[Problem, Tensor]:
    """Return the problem on all maps, and each map's shortest way (L,) [m].

    A program with several environments on equal maps solves them once.
    """
    return solve_problem(
        MapTable.of(maps, slots, device), ObstacleShapes(slots, device), maps[0].arena, reach
    )


def _check_maps(cfg: NavigateCfg, maps: list[ArenaMap], room: Room) -> None:
    """Raise ConfigError for maps without room for the object, or with different arenas."""
    for k, arena_map in enumerate(maps):
        check_map(arena_map, room, f"task.map={cfg.map}: map {k}")
    arenas = {arena_map.arena for arena_map in maps}
    if len(arenas) > 1:
        raise ConfigError(
            f"task.map={cfg.map}: its maps have {len(arenas)} different arenas, and the worlds of "
            "a run share one; give all maps the same"
        )


def _check_reachable(cfg: NavigateCfg, shortest: Tensor) -> None:
    """Raise ConfigError if the object does not fit through to a goal."""
    is_blocked = (shortest > BLOCKED).nonzero().flatten().tolist()
    if is_blocked:
        raise ConfigError(
            f"task.map={cfg.map}: on map {is_blocked[0]} ({len(is_blocked)} in all) the object "
            "fits through no gap on the way to the goal; widen one, or take a smaller object"
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
    terms: ObservationTerms,
    obj: ObjectCfg,
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
    num_robots = policy.description.num_robots
    names = terms.number_names([f"robot{k}" for k in range(1, num_robots)])
    return script(names, obj.reach, num_robots, device), 0


def _without_shift(env: Any) -> Callable[[Tensor], Tensor]:
    """Return the policy without shifts: the planner's sub-goals."""
    return lambda obs: obs.new_zeros(*obs.shape[:2], 2)


def _straight_line(env: Any) -> Callable[[Tensor], Tensor]:
    """Return the policy with straight ways to the goal."""
    env.task.use_planner("straight_line")
    return _without_shift(env)


def _robots_of_team(cfg: NavigateCfg) -> Mapping[str, Any]:
    """Return the frozen team's robots and model.

    A team without a readable description has none. Acting with it is an error.
    """
    try:
        team = describe_policy(cfg.team, "task.team")
    except ConfigError:
        return {}
    return {"robots": team.robots, "model": team.model}


def _objects(cfg: NavigateCfg) -> PushedObjects:
    team = describe_policy(cfg.team, "task.team")
    return PushedObjects.of([_task_of(cfg, team).pushed_object()], team.num_robots)


NAVIGATE = TaskEntry(
    NavigateCfg,
    _make,
    REPORT,
    usual_env=_robots_of_team,
    objects=_objects,
    terms=NAVIGATE_TERMS,
    policies={"straight_line": _straight_line, "planner": _without_shift},
    frozen_policies=("team",),
    files=("map",),
)
TASKS.register("go1push_upper", NAVIGATE)
TASK_ALIASES["navigate"] = "go1push_upper"
# Suites by their present names, with those of release 0.3.
for _name, _former in {
    "two_cubes": "H0",
    "scattered": "H1",
    "doors": "H2",
    "u_turn": "H3",
    "unmapped": "H4",
    "moving": None,
    "moving_goal": None,
}.items():
    register_suite(_FOLDER / "suites" / f"{_name}.yaml", former_name=_former)
for _preset in ("navigate", "laptop_navigate"):
    register_preset(_FOLDER / "presets" / f"{_preset}.yaml")
