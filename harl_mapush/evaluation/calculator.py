"""The calculator: one full first episode in every environment, and its metrics."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from harl_mapush.evaluation.strict_protocol import StrictWatcher
from mqe.env.environment import MultiAgentEnv
from mqe.tasks.episode_report import Metrics

Policy = Callable[[Tensor], Tensor]  # obs (N, A, O) to actions (N, A, U)


@torch.no_grad()
def evaluate(
    env: MultiAgentEnv, policy: Policy, on_progress: Callable[[int], None] | None = None
) -> Metrics:
    """Measure a policy over exactly one episode, the first, of every environment; the task defines
    the metrics.

    ``on_progress`` is called after every decision with the number of environments that have
    finished.
    """
    episodes = first_episodes(env, policy, on_progress)
    return env.report.summarize(episodes, env.max_episode_length * env.step_dt, env.step_dt)


@torch.no_grad()
def first_episodes(
    env: MultiAgentEnv,
    policy: Policy,
    on_progress: Callable[[int], None] | None = None,
    unused: Tensor | None = None,
    watch: StrictWatcher | None = None,
) -> dict[str, Tensor]:
    """Run every environment through its first episode; return the task's metrics (N,), and
    ``broken`` (N,) bool.

    Worlds rest once they have finished, those of ``unused`` (N,) from the start: their metrics mean
    nothing. ``watch`` adds what it measures.
    """
    obs, _ = env.reset()
    if unused is None:
        is_finished = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
    else:
        is_finished = unused
    env.rest(is_finished)
    if watch is not None:
        watch.begin(env.state)
        env.watch(watch)
    episodes: dict[str, Tensor] = {
        "broken": torch.zeros_like(is_finished),
        **env.report.at_start(env.state),
    }
    for _ in range(math.ceil(env.max_episode_length / env.decision_period)):
        step = env.step(policy(obs))
        obs = step.obs
        ends_now = step.done & ~is_finished
        is_finished = is_finished | ends_now
        for name, values in (env.episode_metrics | {"broken": ~step.valid}).items():
            old = episodes.get(name, torch.full_like(values, torch.nan))
            episodes[name] = torch.where(ends_now, values, old)
        if watch is not None:
            watch.finish(is_finished)
        env.rest(is_finished)
        num_finished = int(is_finished.sum())
        if on_progress is not None:
            on_progress(num_finished)
        if num_finished == env.num_envs:
            break
    assert bool(is_finished.all())  # the clock ends every episode
    return episodes if watch is None else episodes | watch.episodes()
