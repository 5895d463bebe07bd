"""An experiment: a run from its settings to its exit code."""

import time
from contextlib import ExitStack
from dataclasses import replace

import torch

from harl_mapush import parts
from harl_mapush.collectors import collector_settings
from harl_mapush.config import RunCfg
from harl_mapush.distributed import launch
from harl_mapush.distributed.launch import Launch
from harl_mapush.distributed.shares import compile_first, facts, own_settings
from harl_mapush.interruption import WallTime
from harl_mapush.machine import Machine, choose_machine
from harl_mapush.process import limit_threads, say, seed_everything
from harl_mapush.start import Start
from harl_mapush.training import Training
from mqe.host_memory import exhaustion_named


def run(cfg: RunCfg, start: Start) -> int:
    """Train a new run, or resume a saved one in its own folder. Return the exit code."""
    launched = Launch.of_environment()
    wall_time = WallTime(cfg.runner.max_wall_time, time.monotonic())
    if cfg.runner.collectors:
        cfg = collector_settings.settled(cfg)
    machine = choose_machine(cfg.sim, cfg.runner, launched)

    with ExitStack() as stack:
        stack.enter_context(exhaustion_named(cfg.env.num_envs))
        # Otherwise a context on the first GPU would be created as well.
        stack.enter_context(torch.accelerator.device_index(machine.learner.index))
        ranks = stack.enter_context(
            launch.joined(launched, machine.device, lambda: start.how_to_resume())
        )
        ranks.check_equal(facts(cfg, start.saved))

        # All possible checks precede the first large allocation.
        with ranks.together():
            rank_cfg = own_settings(cfg, ranks, launched, machine.device)
            if ranks.is_first:
                start.check_folder(stack)
            state = start.read_state()
        limit_threads(cfg.runner.torch_threads)
        if ranks.size > 1 and machine.device.type != "cpu":
            compile_first(rank_cfg, ranks, launched)

        # Build the parts, and load trained or saved weights.
        with ranks.together():
            seed_everything(cfg.runner.seed)
            built = parts.build(rank_cfg, ranks, machine.learner, stack)
            progress = built.trainer.progress
            num_transitions = progress.num_transitions * progress.num_iterations
            notes = cfg.algorithm.idle_settings(built.env.spec, num_transitions, ranks.size)
            if ranks.is_first:
                for line in notes:
                    say(f"Note: {line}.")
            start.load(built.trainer, built.env.num_agents, cfg.algorithm, state)

        # Make the folder, or remove the incomplete files of a resumed run.
        folder = start.folder
        with ranks.together():
            if ranks.is_first:
                folder = start.open_folder(stack)
        start = start._replace(folder=ranks.gather(folder)[0])

        cfg = _stored_settings(cfg, machine, ranks.size, built.env.num_agents)
        record = start.record(cfg, built)
        if ranks.is_first:
            record.begin()
        return Training(cfg.logger, record, built, ranks, wall_time, start).train()


def _stored_settings(cfg: RunCfg, machine: Machine, num_ranks: int, num_agents: int) -> RunCfg:
    """Return the settings for the run's folder, with all automatic values."""
    device = str(machine.device) if num_ranks == 1 else machine.device.type
    return replace(
        cfg,
        env=replace(cfg.env, num_agents=num_agents),
        sim=replace(cfg.sim, name=machine.simulator, device=device),
        runner=replace(cfg.runner, torch_threads=torch.get_num_threads()),
        logger=replace(cfg.logger, out_dir=None),
    )
