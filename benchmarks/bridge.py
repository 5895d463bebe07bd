"""Measure what a simulator's own process costs a control step: ``python benchmarks/bridge.py``.

An engine sleeps (or computes, ``--busy``) for the time that a step of all worlds is to take, and
moves the numbers of a real one. It runs in this process and behind the bridge in turn, a step each,
so that other work on the machine meets both alike. The step that the engine itself takes is left
out; what is left, more than in this process, is the bridge: words, waking up, and colder caches.
One JSON line a case.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch
from sleeping_engine import make_engine

from mapush.extensions.isaacgym.remote_simulator import EngineSpec, ProcessSimulator
from mapush.extensions.isaacgym.worker.protocol import Sizes, layout
from mqe.world.objects import OBJECTS
from mqe.world.scene import DECIMATION, build_scene

ENGINE = EngineSpec("sleeper", Path(__file__).parent / "sleeping_engine.py", "float32", False)


def main() -> None:
    """Measure and write the lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_envs", type=int, default=500)
    parser.add_argument(
        "--milliseconds", type=float, default=4.0, help="of a control step of all worlds"
    )
    parser.add_argument("--num_steps", type=int, default=500)
    parser.add_argument("--num_robots", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--busy", action="store_true", help="compute instead of sleeping")
    parser.add_argument(
        "--pause_ms", type=float, default=0.0, help="between steps, as a policy takes"
    )
    parser.add_argument("--python", help="the worker's interpreter")
    arguments = parser.parse_args()
    for num_robots in arguments.num_robots:
        sys.stdout.write(json.dumps(measure(arguments, num_robots)) + "\n")
        sys.stdout.flush()


def measure(arguments: argparse.Namespace, num_robots: int) -> dict[str, object]:
    """Return the figures of a case."""
    model = build_scene(num_robots, OBJECTS["cuboid"]).model
    num_envs = arguments.num_envs
    scene = {"seconds": arguments.milliseconds / 1000.0, "is_busy": arguments.busy}
    sim = ProcessSimulator(
        ENGINE, arguments.python, scene, model, num_envs, torch.device("cpu"), (4.0, 60.0)
    )
    sizes = Sizes(
        num_envs, model.nq, model.nv, model.nu, model.nmocap, model.nbody, model.nsensordata, 0
    )
    views = {
        name: np.zeros(shape, kind)
        for name, (_, shape, kind) in layout(sizes, ENGINE.dtype)[0].items()
    }
    engine = make_engine(scene, sizes, views)
    targets = torch.randn(DECIMATION, num_envs, model.nu)
    sim.step(DECIMATION, targets)
    in_worker = float(sim.data.sensordata[0, 1])
    rows = []
    for _ in range(arguments.num_steps):
        time.sleep(arguments.pause_ms / 1000.0)
        begin = time.perf_counter()
        cpu = time.process_time()
        views["targets"][:DECIMATION] = targets.numpy()
        engine.step(DECIMATION, DECIMATION)
        spent_here = time.perf_counter() - begin
        cpu_here = time.process_time() - cpu
        own_here = float(views["sensordata"][0, 0])  # [s] that the engine slept or computed
        time.sleep(arguments.pause_ms / 1000.0)
        begin = time.perf_counter()
        cpu = time.process_time()
        sim.step(DECIMATION, targets)
        spent = time.perf_counter() - begin
        cpu = time.process_time() - cpu
        own = float(sim.data.sensordata[0, 0])
        worker = float(sim.data.sensordata[0, 1])
        rows.append((own, spent_here - own_here, spent - own, cpu_here, cpu + worker - in_worker))
        in_worker = worker
    assert torch.equal(sim.data.ctrl, targets[-1])
    version = sim.versions["python"]
    sim.close()
    columns = [list(column) for column in zip(*rows, strict=True)]
    own, around_here, around, cpu_here, cpu = (statistics.median(column) for column in columns)
    means = [statistics.fmean(column) for column in columns]
    return {
        "num_envs": num_envs,
        "num_robots": num_robots,
        "python": version,
        "is_busy": arguments.busy,
        "pause_ms": arguments.pause_ms,
        "engine_ms": round(1e3 * own, 3),
        "around_in_process_ms": round(1e3 * around_here, 3),
        "around_bridged_ms": round(1e3 * around, 3),
        "overhead": round((around - around_here) / (own + around_here), 4),
        "overhead_of_means": round((means[2] - means[1]) / (means[0] + means[1]), 4),
        "cpu_ms_more": round(1e3 * (cpu - cpu_here), 3),
    }


if __name__ == "__main__":
    main()
