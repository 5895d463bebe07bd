"""Time simulator, environment and training on a GPU, part by part, one JSON line each.

``python benchmarks/gpu.py --part NAME [--preset cuboid_happo] [--num_envs N ...] [--set
section.key=value]``

- ``throughput``: physics alone (200 control steps with recorded ``ctrl``, no resets), ``env.step``
  with the gait, collect with policies and whole training at every number of worlds: env-steps/s,
  milliseconds per control step in each layer, memory in use. Teams decide in every control step.
  With ``--as_it_stands`` they decide at the preset's rate.
- ``three_cylinder``: ``throughput`` for three robots and the cylinder at 8192 worlds.
- ``gait``: ``throughput`` for ``go1_velocity`` with networks [512, 256, 128] and 24 steps per
  iteration, beside mjlab 1.6.
- ``sync``: one rollout with an error at every wait for the device, and a whole decision as one
  CUDA graph.
- ``kernels``: one rollout's and one update's time, kernel by kernel.
- ``iterations``: physics alone and ``env.step`` under other limits on solver iterations, and the
  worlds' actual iterations in the last step.
- ``memory``: memory in use (``gpu_memory.py``).

``--set sim.device=cpu`` with a few worlds tries all parts on a CPU.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import gpu_memory
import torch
from kernels import time_kernels
from measuring import (
    GIB,
    Watch,
    add_settings,
    alone,
    emit,
    lines_of_simulators,
    make_run,
    name_of,
    settings,
    used,
)
from rates import run_rates, step_rates, warm_up, where_time_goes

from harl_mapush.runner import Runner
from mqe.cuda_graphs import capturing

SIZES = (256, 1024, 4096, 8192, 16384, 32768)
GAIT_NETWORK = {"hidden_sizes": [512, 256, 128], "critic_hidden_sizes": [512, 256, 128]}
MJLAB = {  # env-steps/s of mjlab 1.6 on an H100, one Go1, flat ground, by number of worlds
    4096: {"env": 122_000, "training": 112_000},
    8192: {"env": 224_000, "training": 170_000},
}
PARTS = (
    "throughput",
    "three_cylinder",
    "gait",
    "sync",
    "kernels",
    "iterations",
    "memory",
)
LIMITS = (10, 1, 2, 4, 5, 6, 7, 8, 10)  # of the solver's iterations; the first again at the end
CYLINDER = ("task.object=cylinder", "env.num_agents=3")


def main() -> int:
    """Measure one part, with a separate process for every number of worlds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_settings(parser, "cuboid_happo")
    parser.add_argument("--part", choices=PARTS, required=True)
    parser.add_argument("--num_envs", type=int, nargs="+", default=None)
    parser.add_argument("--control_steps", type=int, default=200, help="of a pass, for trials")
    parser.add_argument(
        "--as_it_stands", action="store_true", help="throughput with the preset's decision_period"
    )
    parser.add_argument(
        "--here", action="store_true", help="in this process, for one number of worlds"
    )
    arguments = parser.parse_args()
    part = arguments.part
    if part == "gait":
        arguments.preset = "go1_velocity"
    if part == "three_cylinder":
        arguments.set = [*CYLINDER, *arguments.set]
    if part == "memory":
        return gpu_memory.measure_all(
            arguments.preset, arguments.set, arguments.num_envs or list(SIZES)
        )
    sizes = arguments.num_envs or {"throughput": SIZES, "gait": tuple(MJLAB)}.get(part, (8192,))
    if not arguments.here:
        return max(
            alone(__file__, *sys.argv[1:], "--here", "--num_envs", str(num_envs))
            for num_envs in sizes
        )
    parts = {"sync": sync, "kernels": kernels, "iterations": iterations}
    parts.get(part, throughput)(arguments, sizes[0])
    return 0


def throughput(arguments: argparse.Namespace, num_envs: int) -> None:
    """Print the rates for one number of worlds."""
    over: dict[str, dict] = {"env": {"num_envs": num_envs}}
    of_steps: dict[str, dict] = {}
    if arguments.part == "gait":
        over |= {"network": GAIT_NETWORK, "runner": {"num_steps": 24}}
    else:
        of_steps = {"task": {"decision_period": 1}}
    cfg = settings(arguments, **over, **({} if arguments.as_it_stands else of_steps))
    device = torch.device(cfg.sim.device)
    with lines_of_simulators():
        with Watch(device) as watch:
            env, runner = make_run(cfg)
            rates = run_rates(runner)
            memory = used(device)
            broken = int(env.num_failed)
            note = env.grow_buffers()
            env.close()
        del env, runner
        # Anew: a recorder goes into its graph.
        env, _ = make_run(settings(arguments, **over, **of_steps))
        rates |= step_rates(env, num_steps=arguments.control_steps)
        env.close()
    facts = {}
    reference = MJLAB.get(num_envs)
    if arguments.part == "gait" and reference is not None:
        facts["times_mjlab"] = {name: rates[name] / rate for name, rate in reference.items()}
    emit(
        part=arguments.part,
        device=name_of(device),
        preset=arguments.preset,
        num_envs=num_envs,
        num_agents=env.num_agents,
        num_steps=cfg.runner.num_steps,
        as_it_stands=arguments.as_it_stands,
        env_steps_per_s={
            name: rates[name] for name in ("physics", "env", "replayed", "collect", "training")
        },
        env_share=rates["env_share"],
        training_share=rates["training"] / rates["physics"],
        learning_share=rates["learning_share"],
        beyond_env_share=rates["beyond_env_share"],
        ms_a_step=where_time_goes(rates, num_envs),
        memory_gib=memory / GIB,
        memory_peak_gib=watch.peak / GIB,
        worlds_broken=broken,
        note=note,
        **facts,
    )


def sync(arguments: argparse.Namespace, num_envs: int) -> None:
    """Print whether a rollout runs without one wait for the device."""
    cfg = settings(arguments, env={"num_envs": num_envs})
    env, runner = make_run(cfg)
    runner.start()
    runner.collect()
    if env.device.type != "cpu":
        torch.cuda.set_sync_debug_mode("error")
    try:
        runner.collect()
    finally:
        if env.device.type != "cpu":
            torch.cuda.set_sync_debug_mode("default")
    is_one_graph = env.device.type != "cpu" and _captures_whole_step(runner)
    emit(
        part="sync",
        device=name_of(env.device),
        num_envs=num_envs,
        decisions=cfg.runner.num_steps,
        waits_for_device=0 if env.device.type != "cpu" else None,
        decision_is_one_graph=is_one_graph,
    )
    env.close()


def kernels(arguments: argparse.Namespace, num_envs: int) -> None:
    """Print a rollout's and an update's kernels with their times, one line each."""
    env, runner = make_run(
        settings(arguments, env={"num_envs": num_envs}, task={"decision_period": 1})
    )
    warm_up(runner)
    for name, facts in time_kernels(runner).items():
        emit(part="kernels", of=name, device=name_of(env.device), num_envs=num_envs, **facts)
    env.close()


def iterations(arguments: argparse.Namespace, num_envs: int) -> None:
    """Print the effect of each limit on the solver's iterations, on Warp."""
    cfg = settings(arguments, env={"num_envs": num_envs}, task={"decision_period": 1})
    env, _ = make_run(cfg)
    sim: Any = env.sim  # type: ignore[attr-defined]
    for limit in LIMITS:
        sim._model.opt.iterations = limit
        sim._renew()  # recordings hold the limit
        rates = step_rates(env, repeats=2, num_steps=arguments.control_steps)
        taken = torch.as_tensor(sim._data.solver_niter.numpy())
        emit(
            part="iterations",
            device=name_of(env.device),
            num_envs=num_envs,
            limit=limit,
            env_steps_per_s=rates,
            physics_ms=1e3 * num_envs / rates["physics"],
            worlds_by_iterations=torch.bincount(taken).tolist(),
        )
    env.close()


def _captures_whole_step(runner: Runner) -> bool:
    """Capture one environment step, Warp and torch together, and replay it. Any wait breaks the
    capture.
    """
    env = runner.env
    actions = torch.zeros(env.num_envs, env.num_agents, env.spec.action_size, device=env.device)
    graph = torch.cuda.CUDAGraph()
    with capturing(graph, env.device):
        env._step(actions)  # type: ignore[attr-defined]
    before = env.sim.data.qpos.clone()  # type: ignore[attr-defined]
    graph.replay()
    return bool((env.sim.data.qpos != before).any())  # type: ignore[attr-defined]


if __name__ == "__main__":
    sys.exit(main())
