"""Evaluation while training, in environments of its own: what HARL calls ``use_eval``.

It does not change the training: it draws no random number from the training's generators. Every
evaluation plays the same episodes, so results can be compared, and are the same after a resume.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from harl_mapush.algorithms.algorithm import Algorithm
from harl_mapush.callbacks.logger import RunLogger, Silent
from harl_mapush.callbacks.saver import Saver
from harl_mapush.collectors.async_runner import AsyncRunner
from harl_mapush.collectors.remote_env import ActingOn
from harl_mapush.config import RunCfg
from harl_mapush.runner import IterationReport, Runner
from harl_mapush.runs import durable
from mqe.env.environment import MultiAgentEnv
from mqe.env.statistics import EpisodeStatistics
from mqe.registry import make_env
from mqe.world.randomization import RandomizationCfg

EVALUATIONS = "evaluations.json"  # in the run folder
PREFIX = "eval/"
SEED = 50_000  # added to the run's, so that other episodes are played than those of the training


class TrainingEvaluation:
    """Measures a team every ``runner.evaluation_interval`` env steps, and keeps track of the best
    checkpoint.
    """

    def __init__(self, cfg: RunCfg, folder: Path, env_steps: int) -> None:
        """Build worlds of the training's task without randomisation; a run resumes at
        ``env_steps``.
        """
        runner = cfg.runner
        assert runner.evaluation_interval is not None
        self._path = folder / EVALUATIONS
        self._num_rounds = math.ceil(runner.evaluation_episodes / runner.evaluation_envs)
        worlds = min(runner.evaluation_envs, runner.evaluation_episodes)
        calm = dataclasses.replace(cfg.env, num_envs=worlds, randomize=RandomizationCfg())
        self.env: MultiAgentEnv = make_env(calm, cfg.sim, cfg.task, (SEED + runner.seed) % 2**63)
        self.env.reset()
        self._start = self.env.state_dict()
        self.known = [known for known in _read(self._path) if known["env_steps"] <= env_steps]

    @property
    def best(self) -> dict[str, Any] | None:
        """The evaluation that is best by ``compared``; None before the first."""
        return max(
            self.known,
            key=lambda known: [known.get(name, -math.inf) for name in self.compared],
            default=None,
        )

    @property
    def compared(self) -> tuple[str, ...]:
        """The statistics that teams of the task are compared by."""
        return self.env.report.compared

    def worth(self, metrics: Mapping[str, float]) -> str:
        """Format what a team is compared by."""
        return ", ".join(f"{name} {metrics[name]:.3f}" for name in self.compared if name in metrics)

    def measure(self, algorithm: Algorithm | ActingOn, env_steps: int) -> dict[str, float]:
        """Measure the team, its actions without noise; return the metrics as ``eval/...`` and write
        them down.

        Raises OSError where they cannot be written.
        """
        metrics = {
            name: value for name, value in self._play(algorithm).items() if math.isfinite(value)
        }
        self.known.append({"env_steps": env_steps, **metrics})
        durable.write_text(
            self._path, json.dumps({"best": self.best, "all": self.known}, indent=1) + "\n"
        )
        return {f"{PREFIX}{name}": value for name, value in metrics.items()}

    def close(self) -> None:
        """Free the worlds."""
        self.env.close()

    @torch.no_grad()
    def _play(self, algorithm: Algorithm | ActingOn) -> dict[str, float]:
        """Return means over the first episodes of every world, as many as there are rounds."""
        env = self.env
        env.load_state_dict(self._start)
        statistics: EpisodeStatistics | None = None
        for _ in range(self._num_rounds):
            obs, _ = env.reset()
            hidden = None
            is_finished = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
            for _ in range(math.ceil(env.max_episode_length / env.decision_period)):
                decision = algorithm.act(obs, hidden, deterministic=True)
                step = env.step(decision.actions)
                obs = step.obs
                hidden = decision.hidden
                if statistics is None and env.episode_metrics:
                    statistics = EpisodeStatistics(
                        tuple(env.episode_metrics), env.report.rates, env.num_envs, env.device
                    )
                if statistics is not None:
                    metrics = torch.stack(list(env.episode_metrics.values()), dim=1)
                    statistics.record(step.done & step.valid & ~is_finished, metrics)
                is_finished = is_finished | step.done
                if bool(is_finished.all()):
                    break
        assert statistics is not None  # the clock ends every episode
        return statistics.means()


def evaluated(
    evaluation: TrainingEvaluation | None,
    interval: int,
    runner: Runner,
    report: IterationReport,
    saver: Saver,
    logger: RunLogger | Silent,
) -> IterationReport:
    """Evaluate where it is time to; save the team if it is the best so far, and return the report
    with the metrics.
    """
    before = report.env_steps - runner.steps_per_iteration
    is_last = report.iteration == report.num_iterations
    if not is_evaluation_due(interval, before, report.env_steps, is_last):
        return report
    metrics: dict[str, float] = {}
    is_best = False
    if evaluation is not None:
        team = runner.algorithm
        is_apart = isinstance(runner, AsyncRunner)
        with runner.ranks.busy():
            try:
                metrics = evaluation.measure(
                    ActingOn(team, runner.env.device) if is_apart else team, report.env_steps
                )
            except OSError as error:
                logger.say(
                    f"Note: the evaluation cannot be written ({error.strerror}); training "
                    "continues."
                )
            else:
                best = evaluation.best
                latest = evaluation.known[-1]
                count = latest["num_episodes"]
                logger.say(
                    f"Evaluated at {report.env_steps} env steps: {evaluation.worth(latest)}, "
                    f"{count} episodes."
                )
                is_best = best is not None and best["env_steps"] == report.env_steps
    if runner.ranks.first(is_best) and not runner.is_checkpoint_due():
        saver.save(report.env_steps)
    return report._replace(metrics=report.metrics | metrics)


def is_evaluation_due(interval: int, before: int, env_steps: int, is_last: bool) -> bool:
    """Return whether an evaluation falls between ``before`` and ``env_steps``, or at the end."""
    return is_last or env_steps // interval > before // interval


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _read(path: Path) -> list[dict[str, Any]]:
    """Read the evaluations of a run; none where there is no file, or a damaged one."""
    try:
        known = json.loads(path.read_text(encoding="utf-8"))["all"]
        return [
            each for each in known if each["env_steps"] >= 0 and all(map(_is_number, each.values()))
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return []
