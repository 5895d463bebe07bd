"""Paths of objects in the first episodes of a trained team, for a view from above."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from harl_mapush.config import RunCfg
from harl_mapush.evaluation.policies import load_policy
from harl_mapush.process import seed_everything
from harl_mapush.runs import checkpoint, evaluation_worlds
from mqe.registry import make_env
from mqe.viewer.recording import outcome_words


@dataclass(frozen=True)
class Trajectory:
    """One episode: the object's path (T, 2) [m], the goal (2,) [m], outcome and duration."""

    path: NDArray[np.float64]
    goal: NDArray[np.float64]
    outcome: str
    seconds: float


def training_worlds(run: Path, num_episodes: int, seed: int = 0) -> RunCfg:
    """Return the settings of a run's ``num_episodes`` training worlds, without randomization."""
    return evaluation_worlds.settings(
        checkpoint.resolve(str(run)),
        {"env": {"num_envs": num_episodes}, "runner": {"seed": seed}},
        is_film=True,
    )


@torch.no_grad()
def record_trajectories(cfg: RunCfg, team: Path | str) -> list[Trajectory]:
    """Play one episode in each world of ``cfg``; ``team`` is a run, or the name of a policy.

    The list is empty for a task without an object.
    """
    seed = cfg.runner.seed
    num_episodes = cfg.env.num_envs
    if isinstance(team, Path):
        team = checkpoint.resolve(str(team))
    seed_everything(seed)
    env = make_env(cfg.env, cfg.sim, cfg.task, seed)
    try:
        if env.scene.object is None:
            return []
        policy = load_policy(team, cfg, env)
        obs, _ = env.reset()
        goals = env.state.goal_pos[:, :2].clone()
        paths = [env.state.object_pos[:, :2].clone()]
        found = {}
        num_decisions = math.ceil(env.max_episode_length / env.decision_period)
        for decision in range(1, num_decisions + 1):
            step = env.step(policy(obs))
            obs = step.obs
            for world in torch.nonzero(step.done).flatten().tolist():
                if world not in found:
                    found[world] = (decision, outcome_words(env, world, bool(step.valid[world])))
            paths.append(env.state.object_pos[:, :2].clone())
            if len(found) == num_episodes:
                break
    finally:
        env.close()

    recorded = torch.stack(paths).cpu().double().numpy()
    goal_positions = goals.cpu().double().numpy()
    period = env.decision_period * env.step_dt
    return [
        Trajectory(recorded[:end, world], goal_positions[world], outcome, end * period)
        for world, (end, outcome) in sorted(found.items())
    ]
