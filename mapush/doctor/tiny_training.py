"""A tiny training for the self-check, through the program's own ``experiment``."""

from __future__ import annotations

import io
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path

from harl_mapush import experiment
from harl_mapush.callback import Callback
from harl_mapush.callbacks.run_context import CALLBACKS, RunContext
from harl_mapush.config import RunCfg
from harl_mapush.progress import IterationReport
from harl_mapush.runs.resume import SavedRun
from harl_mapush.start import Start
from mapush.doctor.checkup import Checkup
from mapush.doctor.stage import StageError
from mqe.config import dump_yaml, to_dict
from mqe.env.environment import MultiAgentEnv

NUM_WORLDS = 64
NUM_DECISIONS = 4
_PATIENCE_S = 300.0  # time limit for the first iteration with collectors
_RANKS_S = 600.0  # time limit of a training with several ranks


def small_run(checkup: Checkup, folder: Path) -> RunCfg:
    """Return settings for one iteration in few worlds, in a run folder."""
    cfg = checkup.cfg
    chunk = cfg.network.chunk_length if cfg.network.use_recurrent_policy else 0
    num_steps = chunk or NUM_DECISIONS
    ranks = checkup.num_ranks
    num_envs = max(min(cfg.env.num_envs, NUM_WORLDS) // ranks, 1) * ranks
    rows = num_envs * (1 if cfg.network.use_recurrent_policy else num_steps)
    runner = replace(
        cfg.runner,
        num_env_steps=1,
        num_steps=num_steps,
        max_wall_time=None,
        collectors=0,
        engine="local",
    )
    return replace(
        cfg,
        env=replace(cfg.env, num_envs=num_envs),
        algorithm=cfg.algorithm.for_trial(rows),
        runner=runner,
        logger=replace(cfg.logger, out_dir=str(folder)),
    )


def with_collectors(checkup: Checkup, folder: Path) -> RunCfg:
    """Return settings for an endless training with collectors and a short warm-up."""
    cfg = small_run(checkup, folder)
    number = checkup.num_collectors
    whole = checkup.cfg
    runner = replace(whole.runner, collectors=number, max_wall_time=None)
    num_envs = max(whole.env.num_envs // number, 1) * number
    warmup = min(whole.algorithm.warmup, 2 * runner.num_steps * num_envs)
    return replace(
        cfg,
        env=replace(whole.env, num_envs=num_envs),
        algorithm=replace(whole.algorithm, warmup=warmup),
        runner=replace(runner, num_env_steps=10**12),
    )


def train(
    checkup: Checkup, cfg: RunCfg, saved: SavedRun | None = None, limit_s: float | None = None
) -> IterationReport:
    """Train, for ``limit_s`` after the first iteration at most. Return the last report.

    Raises StageError, with the training's last line, after a failure.
    """
    watch = _Watch(checkup.is_launched_singly, limit_s)
    printed = io.StringIO()
    CALLBACKS["doctor"] = watch.follow
    try:
        with redirect_stdout(printed), redirect_stderr(printed):
            start = Start.anew(cfg, "mapush doctor")
            if saved is not None:
                start = Start.again(saved, cfg, "mapush doctor")
            code = experiment.run(cfg, start)
    except _EnoughError:
        code = 0
    finally:
        del CALLBACKS["doctor"]
    if code or watch.last is None:
        lines = printed.getvalue().strip().splitlines()
        raise StageError(
            lines[-1] if lines else f"exit code {code}", "see the last line of the message"
        )
    return watch.last


def train_on_ranks(checkup: Checkup, folder: Path) -> str:
    """Train in processes under torchrun. Return the last line of the first."""
    run_file = folder / "run.yaml"
    cfg = small_run(checkup, folder / "run")
    run_file.write_text(dump_yaml(to_dict(cfg)), encoding="utf-8")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node"]
    words = [str(checkup.num_ranks), "-m", "harl_mapush.train", "--config", str(run_file)]
    done = subprocess.run(
        [*torchrun, *words], capture_output=True, text=True, timeout=_RANKS_S, check=False
    )
    if done.returncode == 0:
        return done.stdout.strip().splitlines()[-1]
    lines = [line for line in done.stderr.splitlines() if line.startswith(("rank ", "python -m"))]
    problem = lines[0] if lines else f"torchrun ended with exit code {done.returncode}"
    raise StageError(problem, "set NCCL_DEBUG=INFO to see the errors of NCCL")


class _EnoughError(Exception):
    """Ends a training at its time limit."""


class _Watch(Callback):
    """Keeps a training's last report, and ends the training in time."""

    def __init__(self, is_launched_singly: bool, limit_s: float | None) -> None:
        self.last: IterationReport | None = None
        self._is_launched_singly = is_launched_singly
        self._limit_s = limit_s
        self._deadline = time.monotonic() + _PATIENCE_S

    def follow(self, run: RunContext) -> Callback:
        """Return this callback for a new training."""
        if self._is_launched_singly and isinstance(run.env, MultiAgentEnv):
            run.env.use_graphs = False
        return self

    def on_iteration(self, report: IterationReport) -> None:
        """Keep the report. The time limit counts from the first one."""
        if self.last is None and self._limit_s is not None:
            self._deadline = time.monotonic() + self._limit_s
        self.last = report

    def on_wait(self) -> None:
        """End the training at its time limit."""
        if self._limit_s is not None and time.monotonic() > self._deadline:
            raise _EnoughError
