"""An upper bound without learning: sub-goals sampled and tried in the simulator itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from harl_mapush.config import RunCfg
from mapush.extensions.navigate.features import Plan
from mqe.env.environment import MultiAgentEnv
from mqe.registry import make_env
from mqe.tasks.episode_report import Metrics
from mqe.world.fields import object_friction_fields
from mqe.world.streams import Streams

HOLD = 2  # decisions that a sampled shift is held
SHIFT = 1.0  # [m] along x and y that it moves the planned sub-goal at most
_FRICTION = 1  # the stream of the object's friction, as in the task


@torch.no_grad()
def measure_sampled(cfg: RunCfg, num_maps: int, num_samples: int) -> Metrics:
    """Return the calculator's metrics for one episode per map, with the best among ``num_samples``
    shifts of the planned sub-goal every ``HOLD`` decisions.

    Each map has ``num_samples`` worlds in one state. Each tries another shift, one tries none. Then
    all take over the state with the least cost-to-go among worlds without failure.
    """
    num_envs = num_maps * num_samples
    task = replace(cfg.task, residual_scale=SHIFT)
    env = make_env(replace(cfg.env, num_envs=num_envs), cfg.sim, task, cfg.runner.seed)
    group = torch.arange(num_envs, device=env.device).div(num_samples, rounding_mode="floor")
    first = group.unique() * num_samples
    _share_friction(env, cfg.runner.seed, group)
    generator = torch.Generator().manual_seed(cfg.runner.seed)
    env.reset()
    _copy_worlds(env, group)  # world k has the map k

    results: dict[int, dict[str, Any]] = {}
    ended: dict[int, dict[str, Any]] = {}
    num_rounds = -(-env.max_episode_length // (HOLD * env.decision_period))
    for _ in range(num_rounds):
        actions = 2.0 * torch.rand(num_envs, 1, 2, generator=generator).to(env.device) - 1.0
        actions[first] = 0.0
        has_ended = torch.zeros(num_envs, dtype=torch.bool)
        for _ in range(HOLD):
            step = env.step(actions)
            values = {name: column.tolist() for name, column in env.episode_metrics.items()}
            for world in (step.done.cpu() & ~has_ended).nonzero().flatten().tolist():
                number = int(group[world])
                episode: dict[str, Any] = {name: column[world] for name, column in values.items()}
                episode["broken"] = not bool(step.valid[world])
                ended[number] = episode
                if episode["success"] and number not in results:
                    results[number] = episode
            has_ended |= step.done.cpu()
        memory = env.task.features.memory
        assert memory is not None
        cost = Plan.of(memory).cost_to_go[:, 0].cpu()
        cost = cost.masked_fill(has_ended, float("inf")).view(num_maps, num_samples)
        for number in cost.isinf().all(dim=1).nonzero().flatten().tolist():
            results.setdefault(number, ended[number])
        if len(results) == num_maps:
            break
        best = first + cost.argmin(dim=1).to(env.device)
        _copy_worlds(env, best[group])
        is_over = torch.tensor([number in results for number in range(num_maps)])
        env.pause(is_over.to(env.device)[group])
    episodes = {
        name: torch.tensor([results[number][name] for number in range(num_maps)])
        for name in results[0]
    }
    env.close()
    limit = env.max_episode_length * env.step_dt
    return env.report.summarize(episodes, limit, env.step_dt)


def _share_friction(env: MultiAgentEnv, seed: int, group: Tensor) -> None:
    """Set every world's object friction to the value in ``group`` (N,), its group's first world."""
    obj = env.scene.object
    assert obj is not None
    streams = Streams(seed, env.num_envs, env.device)
    drawn = streams.between(*obj.friction, _FRICTION, torch.zeros_like(group))
    for name, values in object_friction_fields(env.scene, drawn[group].cpu()).items():
        env.sim.set_field(name, values.to(env.device))


def _copy_worlds(env: MultiAgentEnv, source: Tensor) -> None:
    """Put world k into the state of world ``source[k]``, for all k."""
    state = env.state_dict()
    statistics = state.pop("statistics")
    copied = _indexed(state, source)
    env.load_state_dict(copied | {"statistics": statistics})


def _indexed(state: dict[str, Any], source: Tensor) -> dict[str, Any]:
    """Return a nested state with rows ``source`` (N,) from each tensor."""
    copied = {}
    for name, value in state.items():
        if isinstance(value, dict):
            copied[name] = _indexed(value, source)
        elif value.dim() == 0:
            copied[name] = value
        else:  # delayed values have the worlds second
            copied[name] = value.index_select(int(name == "values"), source)
    return copied
