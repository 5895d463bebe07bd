"""Train a team: ``python -m harl_mapush.train``."""

from __future__ import annotations

import dataclasses
import os
import shlex
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from harl_mapush import checkpoint, config, resume, runs
from harl_mapush.algorithms import TeamSpec, make_algorithm
from harl_mapush.allocator import keep_freed_memory
from harl_mapush.broken import BrokenLog
from harl_mapush.collectors import settings as collectors
from harl_mapush.collectors.pool import CollectionError
from harl_mapush.collectors.runner import AsyncRunner
from harl_mapush.collectors.worlds import ActingOn, DistantWorlds
from harl_mapush.config import RunCfg
from harl_mapush.evaluation import playing
from harl_mapush.evaluation.training_evaluation import COMPARED, TrainingEvaluation
from harl_mapush.interop import harl_files, harl_format
from harl_mapush.interruption import SIGNALLED, TIME_IS_UP, Interruption, Signalled, WallTime
from harl_mapush.logger import Headline, RunLogger
from harl_mapush.memory_plan import check_memory, describe, plan_learner, plan_memory
from harl_mapush.resume import SavedRun
from harl_mapush.runner import BrokenWorldsError, IterationReport, NonFiniteError, Runner
from harl_mapush.saving import Saver, UnsavedError
from harl_mapush.seeding import seed_everything
from mqe.config import ConfigError, dump_yaml, merge, to_dict
from mqe.controllers.gait import from_anywhere
from mqe.env import MultiAgentEnv
from mqe.registry import make_env, resolve_sim, slow_choice

PROGRAM = "python -m harl_mapush.train"
NOTHING_SAVED = 4  # the exit code of a run that cannot save any more


def make_parser() -> config.Parser:
    """Build the command line."""
    parser = config.Parser(
        prog=PROGRAM,
        description="Train a team of quadrupeds. Later wins: defaults, config or preset, HARL's file, flags, --set.",
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--config", metavar="FILE", help="run file (YAML), for instance the config.yaml of another run")
    source.add_argument("--preset", metavar="NAME", help=f"run file that comes along: {', '.join(config.presets())}")
    source.add_argument(
        "--resume",
        metavar="RUN",
        help="go on with a run where it stood, in its folder: the run folder (its newest checkpoint) or a checkpoint",
    )
    parser.add_argument(
        "--load_config",
        metavar="FILE",
        help="upstream HARL's config.json or YAML: its algorithm, networks and run instead of the run file's",
    )
    config.add_import(parser)
    config.add_flags(parser, tuple(config.FLAGS))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the command line says; return the exit code."""
    harl_format.register()
    return config.exit_code(lambda: _main(argv), PROGRAM)


def _main(argv: Sequence[str] | None) -> int:
    keep_freed_memory()
    arguments = make_parser().parse(argv)
    if arguments.resume is not None:
        return _resume(arguments)
    base, over = _base(arguments), config.flag_values(arguments)
    notices: list[str] = []
    start = (over.get("runner") or {}).get("init_from", (base.get("runner") or {}).get("init_from"))
    if isinstance(start, str):
        base = merge(base, {"network": checkpoint.read_config(_resolve_start(start)).get("network") or {}})
    if arguments.load_config is not None:
        base, notices = harl_files.lay_over(base, over, harl_files.read(arguments.load_config))
    cfg, more = config.resolve(base, over)
    for notice in notices + more:
        sys.stdout.write(f"Note: {notice}.\n")
    return train(cfg)


def _resume(arguments: Any) -> int:
    """Go on with a run; one that has reached its end says so and is no mistake."""
    if arguments.load_config is not None:
        raise ConfigError("--load_config: a resumed run keeps the settings that it began with; leave it out")
    saved, notices = resume.find(arguments.resume)
    cfg, more = resume.settings(saved, config.flag_values(arguments))
    for notice in notices + more:
        sys.stdout.write(f"Note: {notice}.\n")
    if saved.env_steps >= cfg.runner.num_env_steps:
        sys.stdout.write(
            f"{saved.run} is finished: {saved.env_steps} of {cfg.runner.num_env_steps} env steps are done; "
            "a larger --num_env_steps goes on.\n"
        )
        return 0
    return train(cfg, saved)


def _base(arguments: Any) -> dict[str, Any]:
    """Read what flags and ``--set`` change: a run file, a preset, or nothing but defaults under HARL's settings."""
    if arguments.config is not None:
        return config.load_file(arguments.config)
    if arguments.load_config is not None and arguments.preset is None:
        return {}
    return config.load_preset(arguments.preset if arguments.preset is not None else config.DEFAULT_PRESET)


def train(cfg: RunCfg, saved: SavedRun | None = None) -> int:
    """Build everything, learn, and leave a run folder, or go on with a saved run in its own; return the exit code."""
    wall_time = WallTime(cfg.runner.max_wall_time, time.monotonic())
    if cfg.runner.collectors:
        cfg = collectors.settled(cfg)
    name, device = resolve_sim(cfg.sim)
    learner = torch.device(cfg.runner.learner_device) if cfg.runner.collectors else device
    slow = slow_choice(cfg.sim)
    if slow is not None:
        sys.stdout.write(f"Note: {slow}.\n")
    num_cores = os.cpu_count() or 1
    if (cfg.runner.torch_threads or 1) > num_cores:
        sys.stdout.write(
            f"Note: runner.torch_threads={cfg.runner.torch_threads} on {num_cores} cores, which wait for one another.\n"
        )
    folder = _run_dir(cfg) if saved is None else saved.run
    with ExitStack() as stack:
        stack.enter_context(torch.accelerator.device_index(learner.index))  # else the first GPU is in use as well
        if saved is None:
            runs.check_new_run_dir(folder if cfg.logger.out_dir is not None else folder.parent)
        else:
            stack.enter_context(runs.locked(folder))
        state = None if saved is None or saved.folder is None else resume.read(saved)
        plan = plan_memory(cfg, name, device)
        if learner != device:
            plan, alone = plan_learner(cfg, plan, learner)
            sys.stdout.write(f"{describe(alone)}\n")
        sys.stdout.write(f"{describe(plan)}\n")
        check_memory(plan)
        if cfg.runner.torch_threads is not None:
            torch.set_num_threads(cfg.runner.torch_threads)
        seed_everything(cfg.runner.seed)
        env = (DistantWorlds if cfg.runner.collectors else _worlds)(cfg, learner)
        stack.callback(env.close)
        runner = _build_runner(cfg, env, learner)
        if saved is None and cfg.runner.init_from is not None:
            sys.stdout.write(f"{_start_from(cfg.runner.init_from, runner)}.\n")
        if saved is None:
            folder = stack.enter_context(runs.new_run_dir(folder, is_named=cfg.logger.out_dir is not None))
        else:
            if state is not None:
                resume.load(runner, saved, state)
            checkpoint.remove_partial(folder)
            for path in runs.set_aside_after(folder, saved.env_steps):
                sys.stdout.write(f"Note: a later checkpoint is now called {path}.\n")
        cfg = dataclasses.replace(
            cfg,
            env=dataclasses.replace(cfg.env, num_agents=env.num_agents),
            sim=dataclasses.replace(cfg.sim, name=name, device=str(device)),
            task=_found_from_anywhere(cfg.task),
            runner=dataclasses.replace(
                cfg.runner,
                torch_threads=torch.get_num_threads(),
                init_from=None if cfg.runner.init_from is None else from_anywhere(cfg.runner.init_from),
            ),
            logger=dataclasses.replace(cfg.logger, out_dir=None),
        )
        settings = dump_yaml(to_dict(cfg))
        runs.write_config(folder, settings)
        if isinstance(runner, AsyncRunner):
            runner.logs = folder / runs.COLLECTORS
        elif isinstance(env, MultiAgentEnv) and cfg.logger.broken_worlds:
            runner.on_broken = BrokenLog(env, folder, settings, cfg.logger.broken_worlds)
        return _learn(cfg, runner, folder, runs.sealed(settings), wall_time, env.report.headline)


def _found_from_anywhere(task: Any) -> Any:
    gait = getattr(task, "gait", None)
    if gait is None:
        return task
    found = from_anywhere(gait) if isinstance(gait, str) else tuple(from_anywhere(name) for name in gait)
    return dataclasses.replace(task, gait=found)


def _resolve_start(what: str) -> Path:
    try:
        return checkpoint.resolve(what)
    except ConfigError as error:
        raise ConfigError(str(error).replace("--checkpoint", "runner.init_from (--init_from):")) from None


def _start_from(what: str, runner: Runner) -> str:
    """Put a checkpoint's networks into those of a new run; say which. Raise ConfigError where they do not fit."""
    folder, algorithm = _resolve_start(what), runner.algorithm
    is_whole = all((folder / f"{name}.pt").is_file() for name in algorithm.networks)
    if checkpoint.format_of(folder) is not checkpoint.OURS or not is_whole:
        checkpoint.load_actors(folder, algorithm.networks)
        return f"Starts with the actors of {folder}, and with a new critic"
    checkpoint.load(folder, algorithm.networks)
    return f"Starts with the actors and the critic of {folder}"


def _worlds(cfg: RunCfg, _: torch.device) -> MultiAgentEnv:
    return make_env(cfg.env, cfg.sim, cfg.task, cfg.runner.seed)


def _build_runner(cfg: RunCfg, env: MultiAgentEnv | DistantWorlds, device: torch.device) -> Runner:
    try:
        spec = env.spec if isinstance(env, DistantWorlds) else TeamSpec.of(env)
        algorithm = make_algorithm(cfg.algorithm, cfg.network, spec, device, cfg.runner.seed)
        if isinstance(env, DistantWorlds):
            return AsyncRunner(env, algorithm, cfg)
        return Runner(env, algorithm, cfg.runner)
    except ValueError as error:
        raise ConfigError(f"algorithm, network and runner do not go together: {error}") from None


def _learn(cfg: RunCfg, runner: Runner, folder: Path, settings: str, wall_time: WallTime, headline: Headline) -> int:
    """Run the learner; log every iteration, save at every checkpoint, and at the end in any case.

    ``settings`` is the text of ``config.yaml``; ``headline`` names the statistics that are shown.
    """
    num_env_steps = runner.num_iterations * runner.steps_per_iteration
    title = f"Env mapush Task {cfg.task.name} Algo {cfg.algorithm.name} Exp {cfg.logger.exp_name}"
    logger = RunLogger(
        cfg.logger, folder / runs.LOGS, title, num_env_steps, env_steps=runner.env_steps, headline=headline
    )
    interruption = Interruption()
    gait = playing.digest_of_gaits(cfg)

    def save(env_steps: int) -> None:
        networks, state = runner.algorithm.networks, runner.state_dict()
        device = cfg.sim.device
        checkpoint.save(folder, env_steps, networks, state, settings=settings, device=device, gait_sha256=gait)

    saver = Saver(save, logger.say)

    def on_iteration(report: IterationReport) -> None:
        if evaluation is not None:
            report = _evaluated(evaluation, runner, report, saver, logger)
        logger.log(report, runner.env.statistics())
        time_is_up = wall_time.is_up()
        if (interruption.signal is not None or time_is_up) and report.iteration < report.num_iterations:
            logger.flush()
            saver.save_last(report.env_steps)
            raise _Interrupted

    def on_wait() -> None:
        if interruption.signal is None and (runner.iteration == 0 or not wall_time.is_past()):
            return
        if runner.iteration == 0 and interruption.signal is not None:
            raise Signalled(interruption.signal)
        logger.flush()
        saver.save_last(runner.env_steps)
        raise _Interrupted

    def on_checkpoint(env_steps: int) -> None:
        logger.flush()
        if env_steps < num_env_steps:
            saver.save(env_steps)
        else:
            saver.save_last(env_steps)

    evaluation = None
    if cfg.runner.evaluation_interval is not None:
        evaluation = TrainingEvaluation(cfg, folder, runner.env_steps)
    runner.on_iteration, runner.on_checkpoint = on_iteration, on_checkpoint
    if isinstance(runner, AsyncRunner):
        runner.on_wait = on_wait
    begins = f"; goes on at {runner.env_steps} of {num_env_steps} env steps" if runner.env_steps else ""
    logger.say(f"Run folder {folder}; {cfg.env.num_envs} worlds on {cfg.sim.device} ({cfg.sim.name}){begins}.")
    try:
        with interruption:
            runner.learn()
        logger.say(f"Done; the last checkpoint is {runs.last_checkpoint(folder)}.")
        if evaluation is not None and evaluation.best is not None:
            where = folder / runs.CHECKPOINTS / runs.step_name(evaluation.best["env_steps"])
            logger.say(f"Best in evaluation: {where} ({_worth(evaluation.best)}).")
        return 0
    except _Interrupted:
        number = interruption.signal
        reason = f"Time is up (max_wall_time {cfg.runner.max_wall_time})" if number is None else "Interrupted"
        reason += "" if number is None else f" ({number.name})"
        logger.say(
            f"{reason}; the last state is saved in {runs.last_checkpoint(folder)}. Go on with: "
            f"{_resume_command(folder)}"
        )
        return TIME_IS_UP if number is None else SIGNALLED + number
    except CollectionError as error:
        return _save_and_end(runner, saver, folder, error)
    except UnsavedError as error:
        sys.stderr.write(f"{PROGRAM}: {folder}: {error}; what came after the last save is lost; {_way_on(folder)}\n")
        return NOTHING_SAVED
    except (NonFiniteError, BrokenWorldsError) as error:
        is_learners = isinstance(error, NonFiniteError) and not str(error).startswith("reward/")
        lower = " --set algorithm.learning_rate=LOWER" if is_learners else ""
        sys.stderr.write(f"{PROGRAM}: {error}; {_way_on(folder, lower)}\n")
        return 1
    except (KeyboardInterrupt, Signalled) as ending:  # the second, or one before the first iteration
        number = ending.signal if isinstance(ending, Signalled) else signal.SIGINT
        sys.stderr.write(f"{PROGRAM}: interrupted, and what came after the last save is lost; {_way_on(folder)}\n")
        return SIGNALLED + number
    finally:
        logger.close()
        if evaluation is not None:
            evaluation.close()


def _evaluated(
    evaluation: TrainingEvaluation, runner: Runner, report: IterationReport, saver: Saver, logger: RunLogger
) -> IterationReport:
    """Evaluate where it is time to; save the team if it is the best so far, and return the report with the figures."""
    before, is_last = report.env_steps - runner.steps_per_iteration, report.iteration == report.num_iterations
    if not evaluation.is_due(before, report.env_steps, is_last):
        return report
    try:
        team = runner.algorithm
        is_apart = isinstance(runner, AsyncRunner)
        figures = evaluation.measure(ActingOn(team, runner.env.device) if is_apart else team, report.env_steps)
    except OSError as error:
        logger.say(f"Note: the evaluation cannot be written ({error.strerror}); training goes on.")
        return report
    best, latest = evaluation.best, evaluation.known[-1]
    logger.say(f"Evaluated at {report.env_steps} env steps: {_worth(latest)}, {latest['num_episodes']} episodes.")
    if best is not None and best["env_steps"] == report.env_steps and not runner.is_checkpoint_due():
        saver.save(report.env_steps)
    return report._replace(metrics=report.metrics | figures)


def _worth(figures: Mapping[str, float]) -> str:
    """Format what a team is compared by."""
    return ", ".join(f"{name} {figures[name]:.3f}" for name in COMPARED if name in figures)


def _save_and_end(runner: Runner, saver: Saver, folder: Path, error: CollectionError) -> int:
    """Save a run that cannot go on, if an iteration of it is done; return the exit code."""
    if runner.iteration:
        try:
            saver.save_last(runner.env_steps)
        except UnsavedError as unsaved:
            sys.stderr.write(f"{PROGRAM}: {unsaved}\n")
    sys.stderr.write(f"{PROGRAM}: {error}; {_way_on(folder)}\n")
    return 1


class _Interrupted(Exception):  # noqa: N818, not an error
    """A signal or the clock asked for an end, and everything is saved."""


def _way_on(folder: Path, more: str = "") -> str:
    """Say how to go on with a run that ended before its time; ``more`` is what the command line should add."""
    if not folder.is_dir():
        return "the folder is gone; if it was moved, --resume takes its new place"
    if runs.checkpoints(folder):
        return f"go on from its last checkpoint with: {_resume_command(folder)}{more}"
    return f"it has no checkpoint yet, start anew{f' with{more}' if more else ''}"


def _resume_command(folder: Path) -> str:
    return f"{PROGRAM} --resume {shlex.quote(str(folder))}"


def _run_dir(cfg: RunCfg) -> Path:
    if cfg.logger.out_dir is not None:
        return Path(cfg.logger.out_dir)
    subject = getattr(cfg.task, "object", cfg.task.name)
    return runs.default_run_dir(subject, cfg.algorithm.name, cfg.logger.exp_name, cfg.runner.seed, datetime.now())


if __name__ == "__main__":
    sys.exit(main())
