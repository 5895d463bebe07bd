"""An experiment: a run from its settings to its exit code."""

from __future__ import annotations

import time
from contextlib import ExitStack

import torch

from harl_mapush import parts
from harl_mapush.collectors import collector_settings
from harl_mapush.config import RunCfg
from harl_mapush.distributed import launch
from harl_mapush.distributed.launch import Launch
from harl_mapush.distributed.shares import compile_first, facts, own_settings
from harl_mapush.interruption import WallTime
from harl_mapush.kept_settings import kept_settings, make_record
from harl_mapush.machine import advice, choose_machine
from harl_mapush.memory_plan import check_run_memory
from harl_mapush.process import limit_threads, say, seed_everything
from harl_mapush.start import Start
from harl_mapush.training import Training


def run(cfg: RunCfg, start: Start, program: str) -> int:
    """Train a new run, or resume a saved one in its own folder. Return the exit code.

    Error messages and the resuming command name ``program``.
    """
    launched = Launch.of_environment()
    wall_time = WallTime(cfg.runner.max_wall_time, time.monotonic())
    if cfg.runner.collectors:
        cfg = collector_settings.settled(cfg)
    machine = choose_machine(cfg.sim, cfg.runner, launched)
    for note in advice(cfg.sim, cfg.runner.torch_threads):
        say(note)

    with ExitStack() as stack:
        # Otherwise a context on the first GPU would be created as well.
        stack.enter_context(torch.accelerator.device_index(machine.learner.index))
        ranks = stack.enter_context(
            launch.joined(
                launched,
                machine.device,
                lambda: start.how_to_resume(program, cfg.env.imports),
            )
        )
        ranks.check_equal(facts(cfg, start.saved))

        # All possible checks precede the first large allocation.
        with ranks.together():
            rank_cfg = own_settings(cfg, ranks, launched, machine.device)
            if ranks.is_first:
                start.check_folder(stack)
            state = start.read_state(cfg.task.name)
            check_run_memory(rank_cfg, machine, ranks.size, launched.local_size, say)
        limit_threads(cfg.runner.torch_threads)
        if ranks.size > 1 and machine.device.type != "cpu":
            compile_first(rank_cfg.env, rank_cfg.sim, rank_cfg.task, ranks, launched)

        # Build the parts, and load trained or saved weights.
        with ranks.together():
            seed_everything(cfg.runner.seed)
            built = parts.build(rank_cfg, ranks, machine.learner, stack)
            progress = built.trainer.progress
            num_transitions = progress.num_transitions * progress.num_iterations
            for line in cfg.algorithm.idle_settings(built.env.spec, num_transitions):
                say(f"Note: {line}.")
            start.load(built.trainer, built.env.num_agents, cfg.algorithm, state, say)

        # Make the folder, or remove the incomplete files of a resumed run.
        folder = start.folder
        with ranks.together():
            if ranks.is_first:
                folder = start.open_folder(stack, say)
        folder = ranks.first(folder)

        cfg = kept_settings(cfg, machine, ranks.size, built.env.num_agents)
        record = make_record(cfg, folder, built, machine.device)
        training = Training(cfg, record, built, ranks, wall_time, program)
        return training.train()
