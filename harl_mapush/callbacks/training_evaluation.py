"""Evaluation during the training, in separate environments. HARL's name is ``use_eval``.

The evaluation draws nothing from the training's generators, so the training does not change. Every
evaluation plays the same episodes, also after a resume, so results can be compared.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from harl_mapush.algorithms.algorithm import ActingOn, Algorithm
from harl_mapush.callback import Callback
from harl_mapush.callbacks.checkpoints import CheckpointSaver
from harl_mapush.callbacks.run_context import RunContext
from harl_mapush.progress import IterationReport
from harl_mapush.run_settings import RunnerCfg
from harl_mapush.runs import durable
from mqe.config import read_text
from mqe.env.environment import MultiAgentEnv
from mqe.env.statistics import EpisodeStatistics
from mqe.registry import EnvCfg, SimCfg, make_env
from mqe.world.randomization import RandomizationCfg

EVALUATIONS = "evaluations.json"  # in the run folder
PREFIX = "eval/"
SEED = 50_000  # added to the run's seed, for other episodes than those of the training


def make_evaluation_env(env: EnvCfg, sim: SimCfg, task: Any, runner: RunnerCfg) -> MultiAgentEnv:
    """Build the evaluation's worlds: the training's task without randomization."""
    num_envs = min(runner.evaluation_envs, runner.evaluation_episodes)
    env = dataclasses.replace(env, num_envs=num_envs, randomize=RandomizationCfg())
    return make_env(env, sim, task, (SEED + runner.seed) % 2**63)


class TrainingEvaluation:
    """Measures a team every ``runner.evaluation_interval`` env steps, and finds the best one."""

    def __init__(self, env: MultiAgentEnv, num_episodes: int, folder: Path, env_steps: int) -> None:
        """Play ``num_episodes`` in ``env``, for the run in ``folder`` at ``env_steps``."""
        self._path = folder / EVALUATIONS
        self._num_rounds = math.ceil(num_episodes / env.num_envs)
        self.env = env
        self.env.reset()
        self._start = self.env.state_dict()
        self.history = [
            metrics for metrics in _read(self._path) if metrics["env_steps"] <= env_steps
        ]

    @property
    def best(self) -> dict[str, Any] | None:
        """The best evaluation so far by ``compared``, None before the first."""
        return max(
            self.history,
            key=lambda metrics: [metrics.get(name, -math.inf) for name in self.compared],
            default=None,
        )

    @property
    def compared(self) -> tuple[str, ...]:
        """The statistics for comparing teams in this task, the most important first."""
        return self.env.report.compared

    def worth(self, metrics: Mapping[str, float]) -> str:
        """Format the statistics for comparing teams."""
        return ", ".join(f"{name} {metrics[name]:.3f}" for name in self.compared if name in metrics)

    def measure(self, algorithm: Algorithm | ActingOn, env_steps: int) -> dict[str, float]:
        """Measure the team without exploration. Write and return its metrics, as ``eval/...``.

        Raises OSError if they cannot be written.
        """
        means = self._play(algorithm)
        metrics = {name: value for name, value in means.items() if math.isfinite(value)}
        self.history.append({"env_steps": env_steps, **metrics})
        text = json.dumps({"best": self.best, "all": self.history}, indent=1)
        durable.write_text(self._path, f"{text}\n")
        return {f"{PREFIX}{name}": value for name, value in metrics.items()}

    def close(self) -> None:
        """Free the worlds."""
        self.env.close()

    @torch.no_grad()
    def _play(self, algorithm: Algorithm | ActingOn) -> dict[str, float]:
        """Return means over each world's first episode in every round."""
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
        assert statistics is not None  # every episode ends by the time limit at the latest
        return statistics.means()


class EvaluationCallback(Callback):
    """Evaluates the team every ``interval`` env steps, and saves it if it is the best so far."""

    def __init__(
        self,
        evaluation: TrainingEvaluation | None,
        interval: int,
        saver: CheckpointSaver,
        run: RunContext,
    ) -> None:
        """Evaluate the team of ``run``. ``evaluation`` is None on all ranks but the first."""
        self.evaluation = evaluation
        self._interval = interval
        self._saver = saver
        self._run = run

    def on_iteration(self, report: IterationReport) -> IterationReport:
        """Return the report with the metrics of an evaluation, if one is due."""
        progress = self._run.trainer.progress
        if not progress.is_due(self._interval):
            return report
        self._saver.check_folder()
        metrics: dict[str, float] = {}
        is_best = False
        if self.evaluation is not None:
            metrics, is_best = self._evaluate(self.evaluation, report.env_steps)
        if self._run.ranks.first(is_best) and not progress.is_checkpoint_due():
            self._saver.save(report.env_steps)
        return report._replace(metrics=report.metrics | metrics)

    def on_end(self) -> None:
        """Free the worlds of the evaluation."""
        if self.evaluation is not None:
            self.evaluation.close()

    def _evaluate(
        self, evaluation: TrainingEvaluation, env_steps: int
    ) -> tuple[dict[str, float], bool]:
        """Return the metrics, and whether the team is the best so far."""
        try:
            metrics = evaluation.measure(self._run.team, env_steps)
        except OSError as error:
            self._run.say(
                f"Note: the evaluation cannot be written ({error.strerror}); training continues."
            )
            return {}, False
        latest = evaluation.history[-1]
        count = latest["num_episodes"]
        self._run.say(
            f"Evaluated at {env_steps} env steps: {evaluation.worth(latest)}, {count} episodes."
        )
        best = evaluation.best
        return metrics, best is not None and best["env_steps"] == env_steps


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _read(path: Path) -> list[dict[str, Any]]:
    """Return a run's evaluations, none if the file is missing or damaged."""
    try:
        evaluations = json.loads(read_text(path))["all"]
        return [
            metrics
            for metrics in evaluations
            if metrics["env_steps"] >= 0 and all(map(_is_number, metrics.values()))
        ]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []
