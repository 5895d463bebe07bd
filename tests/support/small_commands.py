"""The documentation's commands at test size: few worlds, steps and episodes, on the CPU.

Only sizes and devices are replaced. The rest stays as on the page.
"""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

from harl_mapush import config
from mapush import cli
from mqe.config import load_yaml

MORE_STEPS = 320  # of a run, or of its continuation
CPU = ["--device", "cpu", "--sim", "mujoco"]
SHORT = ["--set", "task.episode_length_s=1.0"]
FEW = ["--num_episodes", "2", "--num_envs", "2"]
FEW_EPISODES = [*FEW, *SHORT]
OFF_POLICY = [
    "--set",
    "algorithm.warmup=16",
    "--set",
    "algorithm.batch_size=16",
    "--set",
    "algorithm.buffer_size=1000",
]
LARGE = (
    (r"(_interval)=[\d_]+", r"\1=320"),
    (r"(collectors)=\d+", r"\1=2"),
    (r"\bcuda(:\d+)?", "cpu"),
)


def main(words: list[str]) -> int:
    """Run a page's command with smaller numbers and return its exit code."""
    program, *rest = [_smaller(word) for word in words]
    if program == "mapush":
        name, *rest = rest
        return cli.main([name, *rest, *sizes(name, rest)])
    if program == "torchrun":
        rest = ["-m", "torch.distributed.run", *rest, *sizes("train", rest)]
    elif program != "python":
        raise AssertionError(f"no size for {program}; name it in NOT_RUN if it cannot run here")
    if "examples/harl_training.py" in rest:
        rest += ["--n_rollout_threads", "2", "--num_env_steps", "32", "--device", "cpu"]
        if "hasac" in rest:
            rest += ["--warmup_steps", "8", "--batch_size", "8"]
        else:
            rest += ["--episode_length", "8"]
    elif "--num_episodes" in rest:
        rest += ["--num_episodes", "2"]
    return _python(rest)


def _python(words: list[str]) -> int:
    """Run a script or a module like Python's command line and return its exit code."""
    try:
        if words[0] == "-m":
            sys.argv = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = words
            sys.path.insert(0, str(Path(words[0]).parent))
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _smaller(word: str) -> str:
    """Return a word with smaller numbers, the CPU, and a checkpoint from the tiny run."""
    for large, small in LARGE:
        word = re.sub(large, small, word)
    run, separator, _ = word.rpartition("/checkpoints/")
    folder = Path(run.rpartition("=")[2]) / "checkpoints"
    if separator and folder.is_dir() and not Path(word).exists():
        newest = max(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        return f"{run}/checkpoints/{newest.name}"
    return word


def sizes(name: str, words: list[str]) -> list[str]:
    """Return the flags for a small subcommand."""
    if name == "train":
        return _sizes_of_training(words)
    if name in ("test", "play"):
        return _sizes_of_episodes(name, words)
    if name == "doctor":
        return ["--device", "cpu"]
    if name == "sweep":
        is_continued = Path(words[0]).is_dir()
        return ["--num_trials", "3" if is_continued else "2"]
    return []


def _sizes_of_training(words: list[str]) -> list[str]:
    if "--resume" in words:
        checkpoint = Path(words[words.index("--resume") + 1])
        run = checkpoint if (checkpoint / "checkpoints").is_dir() else checkpoint.parents[1]
        done = load_yaml(run / "config.yaml")["runner"]["num_env_steps"]
        return ["--num_env_steps", str(done + MORE_STEPS)]
    small = ["--num_env_steps", str(MORE_STEPS), *CPU, "--num_envs", "4"]
    small += ["--set", "runner.num_steps=4", "--set", "runner.checkpoint_interval=16"]
    if "--init_from" not in words:
        small += ["--set", "network.hidden_sizes=[8]"]
    return small + OFF_POLICY if _is_off_policy(words) else small


def _is_off_policy(words: list[str]) -> bool:
    for flag in ("--preset", "--config"):
        if flag in words:
            layer = config.load_preset(words[words.index(flag) + 1])
            return layer.get("algorithm", {}).get("name") in ("hasac", "hatd3", "masac", "matd3")
    return False


def _sizes_of_episodes(name: str, words: list[str]) -> list[str]:
    if "--replay" in words:
        return []
    if "--record" in words:
        return ["--num_episodes", "1", "--size", "192x108", *SHORT, *CPU]
    if name == "play":
        return ["--num_episodes", "1", *SHORT, *CPU]
    if "--all_checkpoints" in words:
        return [*FEW_EPISODES, *CPU]
    if "robustness" in "".join(words):  # its conditions set the length of their episodes
        return [*FEW, *CPU]
    return [*FEW_EPISODES, "--team_only", *CPU]
