"""The doctor's stages of a learner: act, collect, update, save, and train with several ranks."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch

from harl_mapush.durations import format_duration
from harl_mapush.runs import checkpoint
from harl_mapush.runs.run_folder import CONFIG
from mapush.doctor.checkup import Checkup
from mapush.doctor.stage import REPORT, StageError, finite, runner_of, tensors_of
from mqe.config import dump_yaml, to_dict
from mqe.cores import num_cores


def check_policy(checkup: Checkup) -> str:
    """Compute the policy's actions for a first observation."""
    runner = runner_of(checkup)
    env = runner.env
    obs, _ = env.reset()
    decision = runner.algorithm.act(obs)
    wanted = (env.num_envs, env.num_agents, env.spec.action_size)
    if tuple(decision.actions.shape) != wanted:
        raise StageError(
            f"actions have shape {tuple(decision.actions.shape)}, not {wanted}", REPORT
        )
    finite("actions", decision.actions)
    if decision.log_probs is not None:
        finite("log probabilities", decision.log_probs)
    return f"obs {tuple(obs.shape)} to actions {wanted}"


def check_collect(checkup: Checkup) -> str:
    """Collect one block of decisions."""
    runner = runner_of(checkup)
    runner.start()
    num_broken = float(runner.collect()["rollout/num_broken"])
    for name, tensor in tensors_of(runner.experience, "experience"):
        if tensor.is_floating_point():
            finite(name, tensor)
    if num_broken:
        share = num_broken / runner.progress.num_transitions
        raise StageError(f"{share:.1%} of the transitions come from worlds that broke", REPORT)
    return f"{runner.progress.num_transitions} transitions, all finite"


def check_update(checkup: Checkup) -> str:
    """Make one update with the collected block."""
    runner = runner_of(checkup)
    before = {name: flat.clone() for name, flat in runner.algorithm.weights.items()}
    metrics = runner.update()
    for name, value in metrics.items():
        finite(name, value)
    if any(torch.equal(before[name], flat) for name, flat in runner.algorithm.weights.items()):
        raise StageError("an update has not changed the weights", REPORT)
    return f"{len(metrics)} metrics, all finite; the weights changed"


def check_speed(checkup: Checkup) -> str:
    """Time an iteration with many worlds; return an estimate of the whole run's duration."""
    runner = runner_of(checkup)
    cfg = checkup.cfg
    start = time.perf_counter()
    runner.collect()
    runner.update()
    speed = runner.progress.steps_per_iteration / (time.perf_counter() - start)
    cores = num_cores()
    time_s = cfg.runner.num_env_steps / speed
    return (
        f"{cores} cores; about {speed:,.0f} env steps/s with {runner.env.num_envs} worlds: the "
        f"{cfg.runner.num_env_steps:,} env steps of this run take {format_duration(time_s)}"
    )


def check_save_and_load(checkup: Checkup) -> str:
    """Save a checkpoint and load it into new networks; both policies must act alike."""
    runner = runner_of(checkup)
    algorithm = runner.algorithm
    other = checkup.make_learner()
    with tempfile.TemporaryDirectory() as name:
        run = Path(name)
        (run / CONFIG).write_text(dump_yaml(to_dict(checkup.cfg)), encoding="utf-8")
        folder = checkpoint.save(run, 1, algorithm.networks)
        checkpoint.load(folder, other.networks)
        size = sum(path.stat().st_size for path in folder.iterdir())
    obs, _ = runner.env.reset()
    saved_actions = algorithm.act(obs, deterministic=True).actions
    loaded_actions = other.act(obs, deterministic=True).actions
    if not torch.equal(saved_actions, loaded_actions):
        raise StageError("the loaded policy acts differently from the one that was saved", REPORT)
    return f"{size / 1024:.0f} KiB; the loaded policy acts as the saved one"


def check_ranks(checkup: Checkup) -> str:
    """Communicate and train with the requested number of ranks."""
    from mapush.doctor import rank_stages  # only here, for it is a program of its own as well

    found = rank_stages.start(checkup.num_ranks, checkup.preset, checkup.device.type)
    checkup.ranks = found
    return (
        f"{found['ranks']} ranks on {found['device']}: {found['message_us']:.0f} us for a short "
        f"message, {found['bandwidth_gb_s']:.1f} GB/s for long ones; {found['num_weights']} "
        "weights are bit-identical after updates"
    )
