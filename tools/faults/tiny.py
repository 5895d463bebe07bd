"""A run in seconds with a save after every iteration, in a forked process, and its reference
end.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the checkout
from harl_mapush import train  # noqa: E402
from harl_mapush.runs import checkpoint, run_folder  # noqa: E402
from tests.support.nested import leaves  # noqa: E402

ITERATION = 32  # env steps
SETTINGS = (
    *(
        "--num_envs",
        "4",
        "--set",
        "runner.num_steps=4",
        "--set",
        "network.hidden_sizes=[8]",
        "--set",
        "algorithm.num_epochs=2",
        "--device",
        "cpu",
    ),
    *(
        "--set",
        "task.decision_period=2",
        "--set",
        "task.episode_length_s=0.2",
        "--set",
        "runner.torch_threads=1",
    ),
    *("--set", f"runner.checkpoint_interval={ITERATION}"),
)


def command(run: Path, num_iterations: int) -> list[str]:
    """Return the command line to start or resume a run, like a cluster script's."""
    if (run / "config.yaml").exists():
        return ["--resume", str(run)]
    return [*SETTINGS, "--num_env_steps", str(num_iterations * ITERATION), "--out", str(run)]


def start(
    run: Path,
    num_iterations: int,
    prepare: Callable[[], None] = lambda: None,
    log: Path | None = None,
) -> int:
    """Train in a forked process, with all imports done, and return its id."""
    process = os.fork()
    if process:
        return process
    code = 99
    try:
        with (log or Path(os.devnull)).open("a") as stream:
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
            prepare()
            code = train.main(command(run, num_iterations))
            sys.stdout.flush()
    finally:
        os._exit(code)


def wait(process: int) -> int:
    """Return the exit code of a process, less than 0 for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def final_state(run: Path) -> dict[str, Any]:
    """Return everything in a run's last checkpoint, by name."""
    folder = run_folder.last_checkpoint(run)
    assert folder is not None
    checkpoint.check_whole(folder)
    state = leaves(checkpoint.read_training_state(folder))
    for path in sorted(folder.glob("*.pt")):
        state |= leaves(torch.load(path, weights_only=True), path.name)
    return state


def is_equal(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    """Return whether two states are equal to the last bit."""
    return ours.keys() == theirs.keys() and all(
        _same(ours[key], value) for key, value in theirs.items()
    )


def _same(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, torch.Tensor):
        of_a_kind = ours.dtype == theirs.dtype and ours.shape == theirs.shape
        return (
            of_a_kind
            and ours.contiguous().numpy().tobytes() == theirs.contiguous().numpy().tobytes()
        )
    return ours == theirs
