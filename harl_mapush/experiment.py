"""An experiment: a run from its settings to its exit code."""

from __future__ import annotations

from contextlib import ExitStack

import torch

from harl_mapush import start
from harl_mapush.collectors import collector_settings
from harl_mapush.config import RunCfg
from harl_mapush.distributed import launch
from harl_mapush.distributed.launch import Launch
from harl_mapush.distributed.shares import compile_first, facts, own_settings
from harl_mapush.interruption import TIME_IS_UP, WallTime
from harl_mapush.kept_settings import kept_settings, make_record
from harl_mapush.machine import advice, choose_machine
from harl_mapush.memory_plan import check_run_memory
from harl_mapush.parts import build
from harl_mapush.process import limit_threads, say, seed_everything
from harl_mapush.runs import init_from, resume
from harl_mapush.runs.resume import SavedRun
from harl_mapush.training import Training


def run(cfg: RunCfg, saved: SavedRun | None, program: str) -> int:
    """Train a new run, or resume a saved one in its own folder. Return the exit code.

    Error messages and the resuming command name ``program``.
    """
    launched = Launch.of_environment()
    wall_time = WallTime(cfg.runner.max_wall_time, launched.first_start())
    if wall_time.is_past():  # an earlier start by torchrun took all the time
        how = ""
        if saved is not None:
            how = f" Resume with: {resume.command(saved.run, program, cfg.env.imports)}"
        limit = f"max_wall_time {cfg.runner.max_wall_time}, from torchrun's first start"
        say(f"Time is up ({limit}).{how}")
        return launched.end_for_good(TIME_IS_UP)

    if cfg.runner.collectors:
        cfg = collector_settings.settled(cfg)
    machine = choose_machine(cfg.sim, cfg.runner, launched)
    for note in advice(cfg.sim, cfg.runner.torch_threads):
        say(note)
    is_named = cfg.logger.out_dir is not None
    if saved is None:
        folder = start.planned_folder(cfg.logger, cfg.task, cfg.algorithm.name, cfg.runner.seed)
    else:
        folder = saved.run

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

        # All possible checks precede the first large allocation.
        with ranks.together():
            rank_cfg = own_settings(cfg, ranks, launched, machine.device)
            start.check_settings(rank_cfg, writes=ranks.is_first)
            if ranks.is_first:
                start.check_folder(folder, saved, is_named, stack)
            state = None
            if saved is None:
                init_from.check(cfg.runner.init_from, cfg.task.name)
            elif saved.folder is not None:
                state = resume.read(saved)
            check_run_memory(rank_cfg, machine, ranks.size, launched.local_size, say)
        limit_threads(cfg.runner.torch_threads)
        if ranks.size > 1 and machine.device.type != "cpu":
            compile_first(rank_cfg, ranks, launched)

        # Build the parts, and load trained or saved weights.
        with ranks.together():
            seed_everything(cfg.runner.seed)
            parts = build(rank_cfg, ranks, machine.learner, stack)
            progress = parts.trainer.progress
            num_transitions = progress.num_transitions * progress.num_iterations
            for line in cfg.algorithm.idle_settings(parts.env.spec, num_transitions):
                say(f"Note: {line}.")
            if saved is None and cfg.runner.init_from is not None:
                networks = parts.algorithm.networks
                num_agents = parts.env.num_agents
                source = cfg.runner.init_from
                say(f"{init_from.load(source, networks, num_agents, cfg.algorithm)}.")
            if saved is not None and state is not None:
                start.load_state(parts.trainer, saved, state)

        # Make the folder, or remove the incomplete files of a resumed run.
        with ranks.together():
            if ranks.is_first:
                folder = start.open_folder(folder, saved, is_named, stack, say)
        folder = ranks.first(folder)
        launched.remember(folder)

        cfg = kept_settings(cfg, machine, ranks.size, parts.env.num_agents)
        record = make_record(cfg, folder, parts, machine.device)
        training = Training(cfg, record, parts, machine.learner, ranks, wall_time, program)
        return training.train(launched)
