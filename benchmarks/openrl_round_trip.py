"""Train with OpenRL under many settings, bring the teams over, and compare their actions.

``make openrl``, then ``.venv-openrl/bin/python benchmarks/openrl_round_trip.py``. The trainings are
tiny: they try the ways through OpenRL and back, not what is learned. Writes a table in Markdown;
exit code 1 if a row is not as it should be.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mapush.extensions.openrl import importing, openrl_format
from mapush.extensions.openrl.openrl_files import MODULE
from mapush.extensions.openrl.run_openrl import PROGRESS

COMMON = "--num_envs 4 --episode_length 20 --sim_device cpu --set sim.num_threads=1"
TOLERANCE = 2e-5  # of actions, which are clipped to [-1, 1]
NUM_OBS = 1_000
_PATIENCE_S = 300.0


class Case(NamedTuple):
    """A command line, and how it should end."""

    name: str
    flags: str
    env_steps: int | None = None  # of the last checkpoint; None: refused before any training
    signal: signal.Signals | None = None  # sent after the first rollout


CASES = (
    Case("the paper's file", "--config ./openrl_ws/cfgs/ppo.yaml --train_timesteps 800", 800),
    Case(
        "fast settings",
        "--set task.observation=sincos --set task.decision_period=5 --train_timesteps 800",
        800,
    ),
    Case("layer_N 2", "--layer_N 2 --train_timesteps 160", 160),
    Case("layer_N 3, 128 wide", "--layer_N 3 --hidden_size 128 --train_timesteps 160", 160),
    Case("T-block", "--exp_name Tblock --train_timesteps 160", 160),
    Case("cylinder, three robots", "--exp_name cylinder --train_timesteps 160", 160),
    Case("without value normaliser", "--use_valuenorm false --train_timesteps 160", 160),
    Case("recurrent", "--use_recurrent_policy true --train_timesteps 160"),
    Case("tanh", "--activation_id 0 --train_timesteps 160"),
    Case("normalised inputs", "--use_feature_normalization true --train_timesteps 160"),
    Case("Ctrl-C", "--train_timesteps 100000000", 0, signal.SIGINT),
    Case("SIGTERM", "--train_timesteps 100000000", 0, signal.SIGTERM),
)


def main() -> int:
    """Try all cases; return the exit code."""
    # A shell lets what it starts in the background ignore Ctrl-C, and so would the trainings.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdout.write("| settings | exit code | env steps | difference | as it should be |\n")
    sys.stdout.write("|---|---|---|---|---|\n")
    are_right = []
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            row, is_right = attempt(case, Path(folder))
        are_right.append(is_right)
        cells = [case.name, *row, "yes" if is_right else "**no**"]
        sys.stdout.write(f"| {' | '.join(cells)} |\n")
        sys.stdout.flush()
    return 0 if all(are_right) else 1


def attempt(case: Case, folder: Path) -> tuple[list[str], bool]:
    """Return the row of a case, and whether it ended as it should."""
    out = folder / "run"
    code = train(case, out)
    if case.env_steps is None:
        return [str(code), "-", "-"], code == 2 and not out.exists()

    modules = sorted(out.glob(f"checkpoints/*/{MODULE}"), key=openrl_format.env_steps_of)
    if not modules:
        return [str(code), "none", "-"], False
    env_steps = openrl_format.env_steps_of(modules[-1])
    difference = largest_difference(modules[-1])
    imported = importing.main(["openrl", str(out), "--out", str(folder / "back")])
    expected = 0 if case.signal is None else 128 + case.signal
    has_steps = env_steps >= 80 if case.signal is not None else env_steps == case.env_steps
    is_right = code == expected and imported == 0 and has_steps and difference <= TOLERANCE
    return [str(code), f"{env_steps:,}", f"{difference:.1e}"], is_right


def train(case: Case, out: Path) -> int:
    """Train in a process of its own; return its exit code."""
    command = [sys.executable, "-m", "mapush.extensions.openrl.run_openrl", "--out", str(out)]
    words = f"{COMMON} {case.flags}".split()
    with (out.parent / "log.txt").open("w") as log:
        process = subprocess.Popen([*command, *words], stdout=log, stderr=log)
        if case.signal is not None:
            deadline = time.monotonic() + _PATIENCE_S
            while not (out / PROGRESS).exists() and time.monotonic() < deadline:
                time.sleep(0.1)
            process.send_signal(case.signal)
        try:
            return process.wait(_PATIENCE_S)
        finally:
            process.kill()


def largest_difference(path: Path) -> float:
    """Return the largest difference between OpenRL's actions and ours, as the worlds get them."""
    module: Any = torch.load(path, map_location="cpu", weights_only=False)  # a file of this run
    policy = module.models["policy"]
    actor = openrl_format.convert(path).networks["actor_agent0"]
    torch.manual_seed(0)
    obs = torch.randn(NUM_OBS, policy.base.mlp.fc1[0].in_features)
    with torch.no_grad():
        theirs = policy.act.action_out.fc_mean(policy.base(obs))
        ours = actor(obs)
    difference = (openrl_format.ACTION_FACTOR * theirs).clip(-1.0, 1.0) - ours.clip(-1.0, 1.0)
    return float(difference.abs().max())


if __name__ == "__main__":
    sys.exit(main())
