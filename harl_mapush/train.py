"""Train a team: ``python -m harl_mapush.train``."""

from __future__ import annotations

import dataclasses
import signal
import sys
import threading
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from harl_mapush import checkpoint, config, runs
from harl_mapush.algorithms import ALGORITHMS, TeamSpec
from harl_mapush.config import RunCfg
from harl_mapush.interop import harl_files
from harl_mapush.logger import RunLogger
from harl_mapush.memory_plan import check_memory, describe, plan_memory
from harl_mapush.runner import IterationReport, NonFiniteError, Runner
from harl_mapush.seeding import seed_everything
from mqe.config import ConfigError, dump_yaml, load_yaml, to_dict
from mqe.registry import make_env, resolve_sim
from mqe.vec_env import VecEnv

PROGRAM = "python -m harl_mapush.train"
INTERRUPTED = 130  # exit code, as shells have it for Ctrl-C


def make_parser() -> config.Parser:
    """Build the command line."""
    parser = config.Parser(
        prog=PROGRAM,
        description="Train a team of quadrupeds. Later wins: defaults, config or preset, HARL's file, flags, --set.",
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--config", metavar="FILE", help="run file (YAML), for instance the config.yaml of another run")
    source.add_argument("--preset", metavar="NAME", help=f"run file that comes along: {', '.join(config.presets())}")
    parser.add_argument(
        "--load_config",
        metavar="FILE",
        help="upstream HARL's config.json or YAML: its algorithm, networks and run instead of the run file's",
    )
    config.add_flags(parser, tuple(config.FLAGS))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the command line says; return the exit code."""
    return config.exit_code(lambda: _main(argv), PROGRAM)


def _main(argv: Sequence[str] | None) -> int:
    arguments = make_parser().parse(argv)
    base, over = _base(arguments), config.flag_values(arguments)
    notices: list[str] = []
    if arguments.load_config is not None:
        base, notices = harl_files.lay_over(base, over, harl_files.read(arguments.load_config))
    cfg, more = config.resolve(base, over)
    for notice in notices + more:
        sys.stdout.write(f"Note: {notice}.\n")
    return train(cfg)


def _base(arguments: Any) -> dict[str, Any]:
    """Read what flags and ``--set`` change: a run file, a preset, or nothing but defaults under HARL's settings."""
    if arguments.config is not None:
        return load_yaml(arguments.config)
    if arguments.load_config is not None and arguments.preset is None:
        return {}
    return config.load_preset(arguments.preset if arguments.preset is not None else config.DEFAULT_PRESET)


def train(cfg: RunCfg) -> int:
    """Build everything, learn, and leave a run folder; return the exit code."""
    name, device = resolve_sim(cfg.sim)
    folder = _run_dir(cfg)
    runs.check_new_run_dir(folder)
    plan = plan_memory(cfg, name, device)
    sys.stdout.write(f"{describe(plan)}\n")
    check_memory(plan)
    if cfg.runner.torch_threads is not None:
        torch.set_num_threads(cfg.runner.torch_threads)
    seed_everything(cfg.runner.seed)
    env = make_env(cfg.env, cfg.sim, cfg.task, cfg.runner.seed)
    try:
        runner = _build_runner(cfg, env, device)
        runs.make_run_dir(folder)
        cfg = dataclasses.replace(
            cfg,
            env=dataclasses.replace(cfg.env, num_agents=env.num_agents),
            sim=dataclasses.replace(cfg.sim, name=name, device=str(device)),
            runner=dataclasses.replace(cfg.runner, torch_threads=torch.get_num_threads()),
            logger=dataclasses.replace(cfg.logger, out_dir=None),
        )
        (folder / runs.CONFIG).write_text(dump_yaml(to_dict(cfg)), encoding="utf-8")
        return _learn(cfg, runner, folder)
    finally:
        env.close()


def _build_runner(cfg: RunCfg, env: VecEnv, device: torch.device) -> Runner:
    try:
        learner = ALGORITHMS[cfg.algorithm.name].cls
        algorithm = learner(cfg.algorithm, cfg.network, TeamSpec.of(env), device, cfg.runner.seed)
        return Runner(env, algorithm, cfg.runner)
    except ValueError as error:
        raise ConfigError(f"algorithm, network and runner do not go together: {error}") from None


def _learn(cfg: RunCfg, runner: Runner, folder: Path) -> int:
    """Run the learner; log every iteration, save at every checkpoint, and at the end in any case."""
    num_env_steps = runner.num_iterations * runner.steps_per_iteration
    title = f"Env mapush Task {cfg.task.name} Algo {cfg.algorithm.name} Exp {cfg.logger.exp_name}"
    logger = RunLogger(cfg.logger, folder / runs.LOGS, title, num_env_steps)
    interruption = _Interruption()

    def on_iteration(report: IterationReport) -> None:
        logger.log(report, runner.env.statistics())
        if interruption.requested:
            on_checkpoint(report.env_steps)
            raise _Interrupted

    def on_checkpoint(env_steps: int) -> None:
        algorithm = runner.algorithm
        checkpoint.save(
            folder, env_steps, algorithm.actors, algorithm.critic, algorithm.value_normalizer, runner.state_dict()
        )

    runner.on_iteration, runner.on_checkpoint = on_iteration, on_checkpoint
    logger.say(f"Run folder {folder}; {cfg.env.num_envs} worlds on {cfg.sim.device} ({cfg.sim.name}).")
    try:
        with interruption:
            runner.learn()
        logger.say(f"Done; the last checkpoint is {checkpoint.resolve(str(folder))}.")
        return 0
    except _Interrupted:
        logger.say(f"Interrupted; the last state is saved in {checkpoint.resolve(str(folder))}.")
        return INTERRUPTED
    except NonFiniteError as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        return 1
    finally:
        logger.close()


class _Interrupted(Exception):  # noqa: N818, not an error
    """The user asked for an end, and everything is saved."""


class _Interruption:
    """Notes Ctrl-C or SIGTERM until the iteration is over; a second one ends the process at once."""

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self.__exit__()


def _run_dir(cfg: RunCfg) -> Path:
    if cfg.logger.out_dir is not None:
        return Path(cfg.logger.out_dir)
    subject = getattr(cfg.task, "object", cfg.task.name)
    return runs.default_run_dir(subject, cfg.algorithm.name, cfg.logger.exp_name, cfg.runner.seed, datetime.now())


if __name__ == "__main__":
    sys.exit(main())
