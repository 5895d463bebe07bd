"""The calculator: a policy's metrics over the first episode of every environment."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from harl_mapush.evaluation.push_watcher import PushWatcher
from mqe.env.environment import MultiAgentEnv
from mqe.tasks.episode_report import Metrics

Policy = Callable[[Tensor], Tensor]  # obs (N, A, O) to actions (N, A, U)


@torch.no_grad()
def evaluate(env: MultiAgentEnv, policy: Policy) -> Metrics:
    """Measure a policy over each environment's first episode, by the task's report."""
    episodes = first_episodes(env, policy)
    return env.report.metrics(episodes, env.max_episode_length * env.step_dt, env.step_dt)


@torch.no_grad()
def first_episodes(
    env: MultiAgentEnv,
    policy: Policy,
    unused: Tensor | None = None,
    watchers: Sequence[PushWatcher] = (),
) -> dict[str, Tensor]:
    """Play each environment's first episode and return its metrics (N,) by name.

    The metrics are the task's and ``broken`` (N,) bool. Finished worlds pause. Worlds of ``unused``
    (N,) pause from the start and have no meaningful metrics. ``watchers`` observe the worlds until
    their episodes end.
    """
    with env.observed_by(*watchers):
        obs, _ = env.reset()
        if unused is None:
            is_finished = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
        else:
            is_finished = unused
        env.pause(is_finished)

        episodes: dict[str, Tensor] = {"broken": torch.zeros_like(is_finished)}
        num_decisions = math.ceil(env.max_episode_length / env.decision_period)
        for _ in range(num_decisions):
            step = env.step(policy(obs))
            obs = step.obs
            ends_now = step.done & ~is_finished
            is_finished = is_finished | ends_now

            metrics = env.episode_metrics | {"broken": ~step.valid}
            for name, values in metrics.items():
                old = episodes.get(name, torch.full_like(values, torch.nan))
                episodes[name] = torch.where(ends_now, values, old)

            for watcher in watchers:
                watcher.finish(is_finished)
            env.pause(is_finished)
            if bool(is_finished.all()):
                break

        assert bool(is_finished.all())  # the time limit ends every episode
        return episodes
