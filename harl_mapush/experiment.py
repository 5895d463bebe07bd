"""An experiment: a run from its settings to its exit code.

``run`` shows the order of its steps, ``build`` the parts that it consists of, and ``Experiment``
the callbacks and the ends of the training.
"""

from __future__ import annotations

import dataclasses
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from harl_mapush.algorithms.algorithm import ActingOn, Algorithm
from harl_mapush.algorithms.entries import make_algorithm
from harl_mapush.callbacks.broken_log import BrokenLog
from harl_mapush.callbacks.callback import CALLBACKS, Callback
from harl_mapush.callbacks.checkpoints import CheckpointSaver, FolderTakenError, UnsavedError
from harl_mapush.callbacks.ending import EndOnRequest, RunEnded
from harl_mapush.callbacks.evaluation_film import EvaluationFilm, check_film
from harl_mapush.callbacks.gpu_usage import GpuUsage
from harl_mapush.callbacks.logger import NullLogger, ProgressLog, RunLogger
from harl_mapush.callbacks.training_evaluation import EvaluationCallback, TrainingEvaluation
from harl_mapush.callbacks.wandb_logger import WandbLogger, check_wandb
from harl_mapush.collectors import collector_settings
from harl_mapush.collectors.async_runner import AsyncRunner
from harl_mapush.collectors.launchers import LAUNCHERS
from harl_mapush.collectors.remote_env import RemoteEnvSpec
from harl_mapush.collectors.supervisor import CollectionError
from harl_mapush.config import RunCfg
from harl_mapush.distributed import launch
from harl_mapush.distributed.launch import Launch
from harl_mapush.distributed.ranks import Ranks, UnequalRanksError
from harl_mapush.distributed.shares import compile_first, facts, own_settings
from harl_mapush.interruption import SIGNALLED, TIME_IS_UP, Signalled, WallTime
from harl_mapush.memory_plan import check_memory, describe, plan_learner, plan_memory
from harl_mapush.process import limit_threads, seed_everything
from harl_mapush.runner import Runner
from harl_mapush.runs import (
    checkpoint,
    evaluation_worlds,
    exported,
    init_from,
    provenance,
    resume,
    run_folder,
)
from harl_mapush.runs.resume import SavedRun
from harl_mapush.trainer import BrokenWorldsError, NonFiniteError, Trainer
from mqe.config import ConfigError, dump_yaml, to_dict
from mqe.controllers.gait import from_anywhere
from mqe.cores import num_cores
from mqe.env.environment import MultiAgentEnv
from mqe.env.mixed_teams import MixedTeams
from mqe.registry import make_worlds, resolve_sim, slow_choice
from mqe.sim.simulator import SimulatorError
from mqe.vec_env import TeamSpec
from mqe.world.robots import MODELS

NOTHING_SAVED = 4  # the exit code of a run whose checkpoints cannot be written


class Machine(NamedTuple):
    """The simulator and the devices of a run on this machine."""

    simulator: str
    device: torch.device  # of the worlds
    learner: torch.device


class Parts(NamedTuple):
    """Environment, algorithm and trainer of a run."""

    env: MultiAgentEnv | MixedTeams | RemoteEnvSpec
    algorithm: Algorithm
    trainer: Trainer
    team: Algorithm | ActingOn  # the team as it acts in worlds on the machine's ``device``
    # The worlds that step in this process, if their teams are of one size.
    simulated: MultiAgentEnv | None


def run(cfg: RunCfg, saved: SavedRun | None, program: str) -> int:
    """Train a new run, or resume a saved one in its own folder; return the exit code.

    ``program`` is named in error messages and in the command that resumes the run.
    """
    launched = Launch.of_environment()
    wall_time = WallTime(cfg.runner.max_wall_time, launched.first_start())
    if wall_time.is_past():  # an earlier start by torchrun took all the time
        how = ""
        if saved is not None:
            how = f" Resume with: {resume.command(saved.run, program, cfg.env.imports)}"
        limit = f"max_wall_time {cfg.runner.max_wall_time}, from torchrun's first start"
        _say(f"Time is up ({limit}).{how}")
        return launched.end_for_good(TIME_IS_UP)

    if cfg.runner.collectors:
        cfg = collector_settings.settled(cfg)
    machine = _choose_machine(cfg, launched)
    _give_advice(cfg)
    folder = _planned_folder(cfg) if saved is None else saved.run

    with ExitStack() as stack:
        # Otherwise a context on the first GPU would be created as well.
        stack.enter_context(torch.accelerator.device_index(machine.learner.index))
        ranks = stack.enter_context(
            launch.joined(
                launched,
                machine.device,
                lambda: resume.how_to_resume(folder, program, cfg.env.imports),
            )
        )
        ranks.check_equal(facts(cfg, saved))

        # Check everything that can be checked before the first large allocation.
        with ranks.together():
            own = own_settings(cfg, ranks, launched, machine.device)
            state = _check_start(cfg, saved, folder, ranks, stack)
            _check_memory(own, machine, ranks, launched)
        limit_threads(cfg.runner.torch_threads)
        if ranks.size > 1 and machine.device.type != "cpu":
            compile_first(own, ranks, launched)

        # Build the parts, and load trained or saved weights.
        with ranks.together():
            seed_everything(cfg.runner.seed)
            parts = build(own, ranks, machine.learner, stack)
            if saved is None and cfg.runner.init_from is not None:
                networks = parts.algorithm.networks
                num_agents = parts.env.num_agents
                source = cfg.runner.init_from
                _say(f"{init_from.load(source, networks, num_agents, cfg.algorithm)}.")
            if saved is not None and state is not None:
                resume.load(parts.trainer, saved, state)

        # Make the folder, or remove the incomplete files of a resumed run.
        with ranks.together():
            folder = _open_folder(cfg, saved, folder, ranks, stack)
        folder = ranks.first(folder)
        cfg = _as_run(cfg, machine, ranks, parts.env.num_agents)
        launched.remember(folder)

        experiment = Experiment(cfg, folder, parts, machine, ranks, wall_time, program)
        return experiment.train(launched)


def build(cfg: RunCfg, ranks: Ranks, learner: torch.device, stack: ExitStack) -> Parts:
    """Build environment, algorithm and trainer of this rank; ``stack`` closes them.

    Raises ConfigError if algorithm, network and runner do not go together.
    """
    make = _build_with_collectors if cfg.runner.collectors else _build_in_process
    try:
        return make(cfg, ranks, learner, stack)
    except ValueError as error:
        raise ConfigError(f"algorithm, network and runner do not go together: {error}") from None


def _build_in_process(cfg: RunCfg, ranks: Ranks, learner: torch.device, stack: ExitStack) -> Parts:
    share = ranks.share(cfg.env.num_envs)
    env = make_worlds(cfg.env, cfg.sim, cfg.task, cfg.runner.seed, share)
    stack.callback(env.close)
    algorithm = _make_team(cfg, env.spec, learner, ranks)
    trainer = Runner(env, algorithm, cfg.runner, ranks)
    simulated = env if isinstance(env, MultiAgentEnv) else None
    return Parts(env, algorithm, trainer, algorithm, simulated)


def _build_with_collectors(
    cfg: RunCfg, ranks: Ranks, learner: torch.device, stack: ExitStack
) -> Parts:
    if len(cfg.env.team_sizes) > 1:
        raise ConfigError(
            f"env.team_sizes={list(cfg.env.team_sizes)}: collectors have teams of one size; set "
            "runner.collectors=0, or leave it out"
        )
    env = RemoteEnvSpec(cfg, learner)
    stack.callback(env.close)
    algorithm = _make_team(cfg, env.spec, learner, ranks)
    launcher = stack.enter_context(LAUNCHERS[cfg.runner.engine].make(cfg))
    if cfg.runner.engine != "local":
        _say(f"Collectors on {launcher.describe()}.")
    trainer = AsyncRunner(env, algorithm, cfg, launcher)
    return Parts(env, algorithm, trainer, ActingOn(algorithm, learner), None)


def _make_team(cfg: RunCfg, spec: TeamSpec, device: torch.device, ranks: Ranks) -> Algorithm:
    spec = spec._replace(is_trained=cfg.runner.init_from is not None)
    return make_algorithm(cfg.algorithm, cfg.network, spec, device, cfg.runner.seed, ranks)


class Experiment:
    """A built run: its settings, folder, parts and callbacks."""

    def __init__(
        self,
        cfg: RunCfg,
        folder: Path,
        parts: Parts,
        machine: Machine,
        ranks: Ranks,
        wall_time: WallTime,
        program: str,
    ) -> None:
        """Write the settings of the run into its folder, and build the callbacks."""
        self.cfg = cfg
        self.folder = folder
        self.parts = parts
        self.trainer = parts.trainer
        self.ranks = ranks
        self.program = program
        settings = dump_yaml(to_dict(cfg))
        # Not every task weighs reward terms.
        weights = getattr(parts.env.task, "weights", None)
        start = provenance.describe(str(machine.device), weights)
        if ranks.is_first:
            run_folder.write_config(folder, settings)

        callbacks: list[Callback] = []
        most = cfg.logger.broken_worlds
        if parts.simulated is not None and most:
            callbacks.append(BrokenLog(parts.simulated, folder, settings, most, ranks))
        run_id = provenance.write(folder, start) if ranks.is_first else ""

        self.logger = self._make_logger(start)
        self.saver = self._make_saver(settings, run_id, start)
        self.evaluation = self._make_evaluation()
        if self.evaluation is not None:
            callbacks.append(self.evaluation)
        loggers: list[RunLogger | WandbLogger | NullLogger] = [self.logger]
        if ranks.is_first and cfg.logger.wandb != "off":
            plain = to_dict(cfg)
            loggers.append(WandbLogger(cfg.logger, folder, run_id, plain, self.logger.say))
        film = self._make_film(loggers)
        if film is not None:
            callbacks.append(film)
        if ranks.is_first and machine.learner.type == "cuda":
            callbacks.append(GpuUsage(machine.learner))
        callbacks.append(ProgressLog(loggers, self.trainer))
        intervals = (cfg.runner.evaluation_interval, cfg.logger.film_interval)
        pauses = [interval for interval in intervals if interval is not None]
        self.ending = EndOnRequest(self.trainer, wall_time, self.saver, self.logger, ranks, pauses)
        callbacks += [make(self) for make in CALLBACKS.values()]
        callbacks += [self.saver, self.ending]
        self.callbacks = callbacks

    def say(self, line: str) -> None:
        """Write a line to the log of the run."""
        self.logger.say(line)

    def train(self, launched: Launch) -> int:
        """Train to the end; return the exit code."""
        self._introduce()
        logs = self.folder / run_folder.COLLECTORS
        try:
            with self.ending.interruption:
                self.trainer.learn(self.callbacks, logs)
            self._conclude()
            return 0
        except RunEnded as ended:
            return self._end_early(ended.signal, launched)
        except CollectionError as error:
            return self._save_and_end(error)
        except FolderTakenError as error:
            if self.ranks.is_first:
                sys.stderr.write(f"{self.program}: {error}\n")
            return NOTHING_SAVED
        except UnsavedError as error:
            self._write_error(
                f"{self.folder}: {error}; the training since the last checkpoint is lost"
            )
            return NOTHING_SAVED
        except SimulatorError as error:
            self._write_error(str(error))
            return 1
        except (NonFiniteError, BrokenWorldsError, UnequalRanksError) as error:
            is_learners = isinstance(error, NonFiniteError) and not str(error).startswith("reward/")
            lower = " --set algorithm.learning_rate=LOWER" if is_learners else ""
            self._write_error(str(error), lower)
            return 1
        except (KeyboardInterrupt, Signalled) as ending:
            # A second signal, or one before the end of the first iteration.
            number = ending.signal if isinstance(ending, Signalled) else signal.SIGINT
            self.ranks.ends_together = False
            lost = "interrupted; the training since the last checkpoint is lost"
            sys.stderr.write(f"{self.program}: {lost}; {self._how_to_resume()}\n")
            return SIGNALLED + number
        finally:
            for callback in self.callbacks:
                callback.on_end()

    def _make_logger(self, start: Mapping[str, Any]) -> RunLogger | NullLogger:
        # All ranks call this, since statistics are sums over ranks.
        names = list(self.trainer.statistics())
        if not self.ranks.is_first:
            return NullLogger()
        cfg = self.cfg
        progress = self.trainer.progress
        logger = RunLogger(
            cfg.logger,
            run_folder.curves_folder(self.folder),
            f"Env mapush Task {cfg.task.name} Algo {cfg.algorithm.name} Exp {cfg.logger.exp_name}",
            progress.num_env_steps,
            env_steps=progress.env_steps,
            headline=self.parts.env.report.headline,
        )
        if not progress.env_steps:
            logger.add_summaries(provenance.tensorboard_summaries(to_dict(cfg), start, names))
        return logger

    def _make_saver(self, settings: str, run_id: str, start: Mapping[str, Any]) -> CheckpointSaver:
        with_checksum = run_folder.with_checksum(settings)
        gait = evaluation_worlds.digest_of_gaits(self.cfg)

        networks = self.parts.algorithm.networks
        actors = [networks[f"actor_agent{i}"] for i in range(self.parts.env.num_agents)]
        export = partial(exported.export, cfg=self.cfg, actors=actors, task=self.parts.env.task)

        def write(env_steps: int, state: dict[str, Any]) -> None:
            checkpoint.save(
                self.folder,
                env_steps,
                self.parts.algorithm.networks,
                state,
                settings=with_checksum,
                device=self.cfg.sim.device,
                gait_sha256=gait,
                run_id=run_id,
                export=export,
            )

        def check_folder() -> None:
            provenance.check_folder(self.folder, run_id, start)

        return CheckpointSaver(self.trainer, write, self.logger.say, self.ranks, check_folder)

    def _make_evaluation(self) -> EvaluationCallback | None:
        interval = self.cfg.runner.evaluation_interval
        if interval is None:
            return None
        evaluation = None
        if self.ranks.is_first:
            env_steps = self.trainer.progress.env_steps
            evaluation = TrainingEvaluation(self.cfg, self.folder, env_steps)
        return EvaluationCallback(
            evaluation,
            interval,
            self.parts.team,
            self.trainer,
            self.saver,
            self.logger.say,
            self.ranks,
        )

    def _make_film(
        self, loggers: Sequence[RunLogger | WandbLogger | NullLogger]
    ) -> EvaluationFilm | None:
        interval = self.cfg.logger.film_interval
        if interval is None or self.evaluation is None:
            return None
        return EvaluationFilm(
            self.evaluation.evaluation,
            interval,
            self.parts.team,
            self.trainer,
            self.saver,
            self.folder,
            [logger for logger in loggers if not isinstance(logger, NullLogger)],
            self.logger.say,
            self.ranks,
        )

    def _introduce(self) -> None:
        cfg = self.cfg
        progress = self.trainer.progress
        resumes = ""
        if progress.env_steps:
            resumes = f"; resumes at {progress.env_steps} of {progress.num_env_steps} env steps"
        where = cfg.sim.device
        if self.ranks.size > 1:
            where = f"{self.ranks.size} x {cfg.sim.device}"
        self.say(
            f"Run folder {self.folder}; {cfg.env.num_envs} worlds on {where} ({cfg.sim.name})"
            f"{resumes}."
        )

    def _conclude(self) -> None:
        self.say(f"Done; the last checkpoint is {run_folder.last_checkpoint(self.folder)}.")
        evaluation = None if self.evaluation is None else self.evaluation.evaluation
        if evaluation is None or evaluation.best is None:
            return
        name = run_folder.step_name(evaluation.best["env_steps"])
        best = self.folder / run_folder.CHECKPOINTS / name
        self.say(f"Best in evaluation: {best} ({evaluation.worth(evaluation.best)}).")

    def _end_early(self, number: signal.Signals | None, launched: Launch) -> int:
        """Report an early end and the last checkpoint; return the exit code."""
        if number is None:
            reason = f"Time is up (max_wall_time {self.cfg.runner.max_wall_time})"
            code = TIME_IS_UP
        else:
            reason = f"Interrupted ({number.name})"
            code = SIGNALLED + number
        again = resume.command(self.folder, self.program, self.cfg.env.imports)
        self.say(
            f"{reason}; the last state is saved in {run_folder.last_checkpoint(self.folder)}. "
            f"Resume with: {again}"
        )
        return launched.end_for_good(code)

    def _save_and_end(self, error: CollectionError) -> int:
        """Save a run that cannot continue, after its first iteration; return the exit code."""
        progress = self.trainer.progress
        if progress.iteration:
            try:
                self.saver.save_last(progress.env_steps)
            except UnsavedError as unsaved:
                sys.stderr.write(f"{self.program}: {unsaved}\n")
        sys.stderr.write(f"{self.program}: {error}; {self._how_to_resume()}\n")
        return 1

    def _write_error(self, line: str, more: str = "") -> None:
        """Write the error that ended a run on all ranks, and the command that resumes it."""
        if self.ranks.is_first:
            sys.stderr.write(f"{self.program}: {line}; {self._how_to_resume(more)}\n")

    def _how_to_resume(self, more: str = "") -> str:
        return resume.how_to_resume(self.folder, self.program, self.cfg.env.imports, more)


def _choose_machine(cfg: RunCfg, launched: Launch) -> Machine:
    name, device = resolve_sim(cfg.sim)
    device = launched.device(device)
    learner = torch.device(cfg.runner.learner_device) if cfg.runner.collectors else device
    return Machine(name, device, learner)


def _give_advice(cfg: RunCfg) -> None:
    slow = slow_choice(cfg.sim)
    if slow is not None:
        _say(f"Note: {slow}.")
    cores = num_cores()
    threads = cfg.runner.torch_threads or 1
    if threads > cores:
        _say(
            f"Note: runner.torch_threads={threads} on {cores} cores, where they wait for one "
            "another."
        )


def _planned_folder(cfg: RunCfg) -> Path:
    if cfg.logger.out_dir is not None:
        return Path(cfg.logger.out_dir)
    subject = getattr(cfg.task, "object", cfg.task.name)
    return run_folder.default_run_dir(
        subject, cfg.algorithm.name, cfg.logger.exp_name, cfg.runner.seed, datetime.now()
    )


def _check_start(
    cfg: RunCfg, saved: SavedRun | None, folder: Path, ranks: Ranks, stack: ExitStack
) -> dict[str, Any] | None:
    """Check logs, the run's folder and initial networks; return the state of a saved run."""
    check_film(cfg)
    if ranks.is_first:
        check_wandb(cfg.logger)
    if saved is None:
        init_from.check(cfg)
        if ranks.is_first:
            is_named = cfg.logger.out_dir is not None
            run_folder.check_new_run_dir(folder if is_named else folder.parent)
        return None
    if ranks.is_first:
        stack.enter_context(run_folder.locked(folder))
    return None if saved.folder is None else resume.read(saved)


def _check_memory(cfg: RunCfg, machine: Machine, ranks: Ranks, launched: Launch) -> None:
    """Print the planned memory; raise ConfigError if it does not fit."""
    plan = plan_memory(cfg, machine.simulator, machine.device, ranks.size, launched.local_size)
    if cfg.runner.collectors and LAUNCHERS[cfg.runner.engine].is_elsewhere():
        _, plan = plan_learner(cfg, plan, machine.learner)
    elif machine.learner != machine.device:
        plan, alone = plan_learner(cfg, plan, machine.learner)
        _say(describe(alone))
    _say(describe(plan))
    check_memory(plan)


def _open_folder(
    cfg: RunCfg, saved: SavedRun | None, folder: Path, ranks: Ranks, stack: ExitStack
) -> Path:
    """Return the run folder: a new one, or that of a saved run without partial files."""
    if not ranks.is_first:
        return folder
    if saved is None:
        is_named = cfg.logger.out_dir is not None
        return stack.enter_context(run_folder.new_run_dir(folder, is_named=is_named))
    checkpoint.remove_partial(folder)
    for path in run_folder.set_aside_after(folder, saved.env_steps):
        _say(f"Note: a later checkpoint is now called {path}.")
    return folder


def _as_run(cfg: RunCfg, machine: Machine, ranks: Ranks, num_agents: int) -> RunCfg:
    """Return the settings for the run's folder, with all automatic values and absolute paths."""
    device = str(machine.device) if ranks.size == 1 else machine.device.type
    weights = cfg.runner.init_from
    model = cfg.env.model
    if model not in MODELS:
        model = str(Path(model).expanduser().absolute())
    return dataclasses.replace(
        cfg,
        env=dataclasses.replace(cfg.env, num_agents=num_agents, model=model),
        sim=dataclasses.replace(cfg.sim, name=machine.simulator, device=device),
        task=_with_absolute_paths(cfg.task),
        runner=dataclasses.replace(
            cfg.runner,
            torch_threads=torch.get_num_threads(),
            init_from=None if weights is None else from_anywhere(weights),
        ),
        logger=dataclasses.replace(cfg.logger, out_dir=None),
    )


def _with_absolute_paths(task: Any) -> Any:
    """Return the settings of a task with the frozen policies that they name found from anywhere."""
    paths: dict[str, Any] = {}
    for key in ("gait", "team"):
        name = getattr(task, key, None)
        if isinstance(name, str):
            paths[key] = from_anywhere(name)
        elif name is not None:
            paths[key] = tuple(from_anywhere(each) for each in name)
    return dataclasses.replace(task, **paths) if paths else task


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
