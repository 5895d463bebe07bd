"""Train a team: ``python -m harl_mapush.train``."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from harl_mapush import config
from harl_mapush.algorithms.entries import make_algorithm
from harl_mapush.algorithms.team import TeamSpec
from harl_mapush.allocator import keep_freed_memory
from harl_mapush.callbacks.broken_log import BrokenLog
from harl_mapush.callbacks.logger import Headline, RunLogger, Silent
from harl_mapush.callbacks.saver import Saver, UnsavedError
from harl_mapush.callbacks.training_evaluation import TrainingEvaluation, evaluated
from harl_mapush.collectors import settings as collectors
from harl_mapush.collectors.async_runner import AsyncRunner
from harl_mapush.collectors.launcher import are_elsewhere, make_launcher
from harl_mapush.collectors.pool import CollectionError
from harl_mapush.collectors.remote_env import RemoteEnvSpec
from harl_mapush.config import RunCfg
from harl_mapush.distributed import launch
from harl_mapush.distributed.launch import Launch
from harl_mapush.distributed.ranks import Ranks, UnequalRanksError
from harl_mapush.distributed.shares import compile_first, facts, own_settings
from harl_mapush.evaluation import evaluation_worlds
from harl_mapush.interop import harl_files, harl_format
from harl_mapush.interruption import SIGNALLED, TIME_IS_UP, Interruption, Signalled, WallTime
from harl_mapush.memory_plan import check_memory, describe, plan_learner, plan_memory
from harl_mapush.presets import check_preset
from harl_mapush.runner import BrokenWorldsError, IterationReport, NonFiniteError, Runner
from harl_mapush.runs import checkpoint, init_from, provenance, resume, run_folder
from harl_mapush.runs.resume import SavedRun
from harl_mapush.seeding import seed_everything
from harl_mapush.threads import limit_threads
from mqe.config import ConfigError, dump_yaml, to_dict
from mqe.controllers.gait import from_anywhere
from mqe.cores import num_cores
from mqe.env.environment import MultiAgentEnv
from mqe.registry import make_env, resolve_sim, slow_choice
from mqe.sim.simulator import SimulatorError

PROGRAM = resume.PROGRAM
NOTHING_SAVED = 4  # the exit code of a run that cannot save any more


def make_parser(program: str = PROGRAM) -> config.Parser:
    """Build the command line of ``program``."""
    parser = config.Parser(
        prog=program,
        description="Train a team of quadrupeds. Later wins: defaults, config or preset, HARL's "
        "file, flags, --set.",
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--config",
        metavar="FILE",
        help="run file (YAML), for instance the config.yaml of another run",
    )
    source.add_argument(
        "--preset",
        metavar="NAME",
        help=f"run file that ships with mapush: {', '.join(config.presets())}",
    )
    source.add_argument(
        "--resume",
        metavar="RUN",
        help="resume a run in its folder: the run folder (its newest checkpoint) or a checkpoint",
    )
    parser.add_argument(
        "--load_config",
        metavar="FILE",
        help="upstream HARL's config.json or YAML: its algorithm, networks and run instead of "
        "the run file's",
    )
    config.add_import(parser)
    config.add_flags(parser, tuple(config.FLAGS))
    return parser


def main(argv: Sequence[str] | None = None, program: str = PROGRAM) -> int:
    """Train as the command line of ``program`` says; return the exit code."""
    harl_format.register()
    name = launch.name_rank(program)
    return launch.run_to_exit(
        lambda: config.exit_code(lambda: _main(argv, program), name, launch.write_error)
    )


def _main(argv: Sequence[str] | None, program: str) -> int:
    keep_freed_memory()
    started = Launch.of_environment()
    if started.rank > 0:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, until the end: rank 0 says all there is to say
    arguments = make_parser(program).parse(argv)
    begun = started.remembered()
    if begun is not None:  # torchrun starts a run again that it had started
        return _resume(str(begun), {}, program)
    if arguments.resume is not None:
        if arguments.load_config is not None:
            raise ConfigError(
                "--load_config: a resumed run keeps the settings that it began with; leave it out"
            )
        return _resume(arguments.resume, config.flag_values(arguments), program)
    base = _base(arguments)
    over = config.flag_values(arguments)
    base, notices = init_from.apply(base, over)
    if arguments.load_config is not None:
        base, more = harl_files.apply(base, over, harl_files.read(arguments.load_config))
        notices += more
    cfg, more = config.resolve(base, over)
    if arguments.preset is not None:
        check_preset(arguments.preset, cfg)
    for notice in notices + more:
        sys.stdout.write(f"Note: {notice}.\n")
    return train(cfg)


def _resume(what: str, over: Mapping[str, Any], program: str) -> int:
    """Resume a run, changed by ``over``; for one that has reached its end print so, and return
    0.
    """
    saved, notices = resume.find(what)
    cfg, more = resume.settings(saved, over)
    for notice in notices + more:
        sys.stdout.write(f"Note: {notice}.\n")
    if saved.env_steps >= cfg.runner.num_env_steps:
        sys.stdout.write(
            f"{saved.run} is finished: {saved.env_steps} of {cfg.runner.num_env_steps} env steps "
            "are done; "
            "a larger --num_env_steps continues the run.\n"
        )
        return 0
    return train(cfg, saved, program)


def _base(arguments: Any) -> dict[str, Any]:
    """Read what flags and ``--set`` change: a run file, a preset, or nothing but defaults under
    HARL's settings.
    """
    if arguments.config is not None:
        return config.load_file(arguments.config)
    if arguments.load_config is not None and arguments.preset is None:
        return {}
    return config.load_preset(
        arguments.preset if arguments.preset is not None else config.DEFAULT_PRESET
    )


def train(cfg: RunCfg, saved: SavedRun | None = None, program: str = PROGRAM) -> int:
    """Build everything, train, and write a run folder, or resume a saved run in its own; return the
    exit code.

    ``program`` is what error lines begin with, and resumes a run that ended early.
    """
    started = Launch.of_environment()
    wall_time = WallTime(cfg.runner.max_wall_time, started.first_start())
    if wall_time.is_past():  # an earlier start has used it up
        how = "" if saved is None else f" Resume with: {resume.command(saved.run, program)}"
        sys.stdout.write(
            f"Time is up (max_wall_time {cfg.runner.max_wall_time}, from torchrun's first "
            f"start).{how}\n"
        )
        return started.end_for_good(TIME_IS_UP)
    if cfg.runner.collectors:
        cfg = collectors.settled(cfg)
    name, device = resolve_sim(cfg.sim)
    device = started.device(device)
    learner = torch.device(cfg.runner.learner_device) if cfg.runner.collectors else device
    slow = slow_choice(cfg.sim)
    if slow is not None:
        sys.stdout.write(f"Note: {slow}.\n")
    cores = num_cores()
    if (cfg.runner.torch_threads or 1) > cores:
        sys.stdout.write(
            f"Note: runner.torch_threads={cfg.runner.torch_threads} on {cores} cores, which wait "
            "for one another.\n"
        )
    folder = _run_dir(cfg) if saved is None else saved.run
    with ExitStack() as stack:
        # Else the first GPU is in use as well.
        stack.enter_context(torch.accelerator.device_index(learner.index))
        ranks = stack.enter_context(
            launch.joined(started, device, lambda: resume.how_to_resume(folder, program))
        )
        ranks.check_equal(facts(cfg, saved))
        state = None
        with ranks.together():
            own = own_settings(cfg, ranks, started, device)
            if saved is None:
                init_from.check(cfg)
            if saved is None and ranks.is_first:
                run_folder.check_new_run_dir(
                    folder if cfg.logger.out_dir is not None else folder.parent
                )
            elif ranks.is_first:
                stack.enter_context(run_folder.locked(folder))
            state = None if saved is None or saved.folder is None else resume.read(saved)
            plan = plan_memory(own, name, device, ranks.size, started.local_size)
            if are_elsewhere(own):
                _, plan = plan_learner(own, plan, learner)
            elif learner != device:
                plan, alone = plan_learner(own, plan, learner)
                sys.stdout.write(f"{describe(alone)}\n")
            sys.stdout.write(f"{describe(plan)}\n")
            check_memory(plan)
        limit_threads(cfg.runner.torch_threads)
        if ranks.size > 1 and device.type != "cpu":
            compile_first(own, ranks, started)
        with ranks.together():
            seed_everything(cfg.runner.seed)
            env = RemoteEnvSpec(own, learner) if own.runner.collectors else _worlds(own, ranks)
            stack.callback(env.close)
            runner = _build_runner(own, env, learner, ranks)
            if isinstance(runner, AsyncRunner):
                runner.launcher = stack.enter_context(make_launcher(own))
                if own.runner.engine != "local":
                    sys.stdout.write(f"Collectors on {runner.launcher.describe()}.\n")
            if saved is None and cfg.runner.init_from is not None:
                sys.stdout.write(
                    f"{init_from.load(cfg.runner.init_from, runner, cfg.algorithm)}.\n"
                )
            if saved is not None and state is not None:
                resume.load(runner, saved, state)
        with ranks.together():
            if ranks.is_first and saved is None:
                folder = stack.enter_context(
                    run_folder.new_run_dir(folder, is_named=cfg.logger.out_dir is not None)
                )
            elif ranks.is_first and saved is not None:
                checkpoint.remove_partial(folder)
                for path in run_folder.set_aside_after(folder, saved.env_steps):
                    sys.stdout.write(f"Note: a later checkpoint is now called {path}.\n")
        folder = ranks.first(folder)
        cfg = dataclasses.replace(
            cfg,
            env=dataclasses.replace(cfg.env, num_agents=env.num_agents),
            sim=dataclasses.replace(
                cfg.sim, name=name, device=str(device) if ranks.size == 1 else device.type
            ),
            task=_with_absolute_gait(cfg.task),
            runner=dataclasses.replace(
                cfg.runner,
                torch_threads=torch.get_num_threads(),
                init_from=None
                if cfg.runner.init_from is None
                else from_anywhere(cfg.runner.init_from),
            ),
            logger=dataclasses.replace(cfg.logger, out_dir=None),
        )
        settings = dump_yaml(to_dict(cfg))
        if ranks.is_first:
            run_folder.write_config(folder, settings)
        started.remember(folder)
        if isinstance(runner, AsyncRunner):
            runner.logs = folder / run_folder.COLLECTORS
        elif isinstance(env, MultiAgentEnv) and cfg.logger.broken_worlds:
            runner.on_broken = BrokenLog(env, folder, settings, cfg.logger.broken_worlds, ranks)
        # A task need not weigh terms.
        start = provenance.describe(str(device), getattr(env.task, "weights", None))
        if ranks.is_first:
            provenance.write(folder, start)
        return _learn(
            cfg,
            runner,
            folder,
            run_folder.sealed(settings),
            start,
            wall_time,
            env.report.headline,
            program,
        )


def _with_absolute_gait(task: Any) -> Any:
    gait = getattr(task, "gait", None)
    if gait is None:
        return task
    if isinstance(gait, str):
        found = from_anywhere(gait)
    else:
        found = tuple(from_anywhere(name) for name in gait)
    return dataclasses.replace(task, gait=found)


def _worlds(cfg: RunCfg, ranks: Ranks) -> MultiAgentEnv:
    return make_env(cfg.env, cfg.sim, cfg.task, cfg.runner.seed, ranks.share(cfg.env.num_envs))


def _build_runner(
    cfg: RunCfg, env: MultiAgentEnv | RemoteEnvSpec, device: torch.device, ranks: Ranks
) -> Runner:
    try:
        spec = env.spec if isinstance(env, RemoteEnvSpec) else TeamSpec.of(env)
        spec = spec._replace(is_trained=cfg.runner.init_from is not None)
        algorithm = make_algorithm(cfg.algorithm, cfg.network, spec, device, cfg.runner.seed, ranks)
        if isinstance(env, RemoteEnvSpec):
            return AsyncRunner(env, algorithm, cfg)
        return Runner(env, algorithm, cfg.runner, ranks=ranks)
    except ValueError as error:
        raise ConfigError(f"algorithm, network and runner do not go together: {error}") from None


def _learn(
    cfg: RunCfg,
    runner: Runner,
    folder: Path,
    settings: str,
    start: Mapping[str, Any],
    wall_time: WallTime,
    headline: Headline,
    program: str,
) -> int:
    """Run the learner; log every iteration, save at every checkpoint, and at the end in any case.

    ``settings`` is the text of ``config.yaml``, ``start`` what ``origin.json`` has of this start;
    ``headline`` names the statistics that are shown.
    """
    num_env_steps = runner.num_iterations * runner.steps_per_iteration
    title = f"Env mapush Task {cfg.task.name} Algo {cfg.algorithm.name} Exp {cfg.logger.exp_name}"
    ranks = runner.ranks
    logger: RunLogger | Silent = Silent()
    names = list(runner.env.statistics())  # a sum over all ranks
    if ranks.is_first:
        logger = RunLogger(
            cfg.logger,
            run_folder.curves_folder(folder),
            title,
            num_env_steps,
            env_steps=runner.env_steps,
            headline=headline,
        )
        if not runner.env_steps:
            logger.introduce(provenance.cards(to_dict(cfg), start, names))
    interruption = Interruption()
    gait = evaluation_worlds.digest_of_gaits(cfg)

    def state_to_save() -> dict[str, Any]:
        ranks.check_weights(runner.algorithm.weights)
        return runner.state_dict()

    def write(env_steps: int, state: dict[str, Any]) -> None:
        networks = runner.algorithm.networks
        device = cfg.sim.device
        checkpoint.save(
            folder, env_steps, networks, state, settings=settings, device=device, gait_sha256=gait
        )

    saver = Saver(state_to_save, write, logger.say, ranks)

    def on_iteration(report: IterationReport) -> None:
        if cfg.runner.evaluation_interval is not None:
            report = evaluated(
                evaluation, cfg.runner.evaluation_interval, runner, report, saver, logger
            )
        logger.log(report, runner.env.statistics())
        signals, times = zip(*ranks.gather((interruption.signal, wall_time.is_up())), strict=True)
        interruption.signal = next((number for number in signals if number is not None), None)
        if (
            interruption.signal is not None or any(times)
        ) and report.iteration < report.num_iterations:
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
    if cfg.runner.evaluation_interval is not None and ranks.is_first:
        evaluation = TrainingEvaluation(cfg, folder, runner.env_steps)
    runner.on_iteration = on_iteration
    runner.on_checkpoint = on_checkpoint
    if isinstance(runner, AsyncRunner):
        runner.on_wait = on_wait
    if runner.env_steps:
        begins = f"; resumes at {runner.env_steps} of {num_env_steps} env steps"
    else:
        begins = ""
    where = cfg.sim.device if ranks.size == 1 else f"{ranks.size} x {cfg.sim.device}"
    logger.say(
        f"Run folder {folder}; {cfg.env.num_envs} worlds on {where} ({cfg.sim.name}){begins}."
    )
    try:
        with interruption:
            runner.learn()
        logger.say(f"Done; the last checkpoint is {run_folder.last_checkpoint(folder)}.")
        if evaluation is not None and evaluation.best is not None:
            where = (
                folder / run_folder.CHECKPOINTS / run_folder.step_name(evaluation.best["env_steps"])
            )
            logger.say(f"Best in evaluation: {where} ({evaluation.worth(evaluation.best)}).")
        return 0
    except _Interrupted:
        number = interruption.signal
        if number is None:
            reason = f"Time is up (max_wall_time {cfg.runner.max_wall_time})"
        else:
            reason = "Interrupted"
        reason += "" if number is None else f" ({number.name})"
        logger.say(
            f"{reason}; the last state is saved in {run_folder.last_checkpoint(folder)}. "
            f"Resume with: {resume.command(folder, program)}"
        )
        return Launch.of_environment().end_for_good(
            TIME_IS_UP if number is None else SIGNALLED + number
        )
    except CollectionError as error:
        return _save_and_end(runner, saver, folder, error, program)
    except UnsavedError as error:
        _write_error(
            ranks, program, folder, f"{folder}: {error}; what came after the last save is lost"
        )
        return NOTHING_SAVED
    except SimulatorError as error:
        _write_error(ranks, program, folder, str(error))
        return 1
    except (NonFiniteError, BrokenWorldsError, UnequalRanksError) as error:
        is_learners = isinstance(error, NonFiniteError) and not str(error).startswith("reward/")
        lower = " --set algorithm.learning_rate=LOWER" if is_learners else ""
        _write_error(ranks, program, folder, str(error), lower)
        return 1
    except (
        KeyboardInterrupt,
        Signalled,
    ) as ending:  # the second, or one before the first iteration
        number = ending.signal if isinstance(ending, Signalled) else signal.SIGINT
        ranks.ends_together = False
        lost = "interrupted, and what came after the last save is lost"
        sys.stderr.write(f"{program}: {lost}; {resume.how_to_resume(folder, program)}\n")
        return SIGNALLED + number
    finally:
        logger.close()
        if evaluation is not None:
            evaluation.close()


def _write_error(ranks: Ranks, program: str, folder: Path, line: str, more: str = "") -> None:
    """Write what ended a run on all ranks, and how to resume it."""
    if ranks.is_first:
        sys.stderr.write(f"{program}: {line}; {resume.how_to_resume(folder, program, more)}\n")


def _save_and_end(
    runner: Runner, saver: Saver, folder: Path, error: CollectionError, program: str
) -> int:
    """Save a run that cannot continue, if it has done an iteration; return the exit code."""
    if runner.iteration:
        try:
            saver.save_last(runner.env_steps)
        except UnsavedError as unsaved:
            sys.stderr.write(f"{program}: {unsaved}\n")
    sys.stderr.write(f"{program}: {error}; {resume.how_to_resume(folder, program)}\n")
    return 1


class _Interrupted(Exception):  # noqa: N818, not an error
    """A signal or the clock asked for an end, and everything is saved."""


def _run_dir(cfg: RunCfg) -> Path:
    if cfg.logger.out_dir is not None:
        return Path(cfg.logger.out_dir)
    subject = getattr(cfg.task, "object", cfg.task.name)
    return run_folder.default_run_dir(
        subject, cfg.algorithm.name, cfg.logger.exp_name, cfg.runner.seed, datetime.now()
    )


if __name__ == "__main__":
    sys.exit(main())
