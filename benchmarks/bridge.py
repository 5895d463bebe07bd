"""Measure what a simulator's own process costs a control step: ``python benchmarks/bridge.py``.

The worker runs an engine that sleeps for the time that a step of all worlds is to take, so that what is left is the
bridge: words, waking up, and copies of states and targets. One JSON line a case.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch

from mqe.objects import OBJECTS
from mqe.scene import DECIMATION, build_scene
from mqe.sim.process import EngineSpec, ProcessSimulator

ENGINE = EngineSpec("sleeper", Path(__file__).parent / "sleeping_engine.py", "float32", False)


def main() -> None:
    """Measure and write the lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_envs", type=int, default=500)
    parser.add_argument("--milliseconds", type=float, default=4.0, help="of a control step of all worlds")
    parser.add_argument("--num_steps", type=int, default=500)
    parser.add_argument("--python", help="the worker's interpreter")
    arguments = parser.parse_args()
    for num_robots in (2, 3):
        model = build_scene(num_robots, OBJECTS["cuboid"]).model
        scene = {"seconds": arguments.milliseconds / 1000.0}
        sim = ProcessSimulator(
            ENGINE, arguments.python, scene, model, arguments.num_envs, torch.device("cpu"), (4.0, 60.0)
        )
        targets = torch.randn(DECIMATION, arguments.num_envs, model.nu)
        sim.step(DECIMATION, targets)
        spent, slept = [], []
        for _ in range(arguments.num_steps):
            start = time.perf_counter()
            sim.step(DECIMATION, targets)
            spent.append(time.perf_counter() - start)
            slept.append(float(sim.sensordata[0, 0]))  # [s] as the worker's own clock has it
        assert torch.equal(sim.ctrl, targets[-1])
        sim.close()
        over = [a - b for a, b in zip(spent, slept, strict=True)]
        line = {
            "num_envs": arguments.num_envs, "num_robots": num_robots, "python": sim.versions["python"],
            "engine_ms": round(1000 * statistics.median(slept), 3),
            "step_ms": round(1000 * statistics.median(spent), 3),
            "bridge_ms": round(1000 * statistics.median(over), 3),
            "overhead": round(statistics.median(over) / statistics.median(slept), 4),
            "overhead_of_the_sum": round(sum(over) / sum(slept), 4),
        }  # fmt: skip
        sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
