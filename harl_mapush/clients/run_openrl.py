"""Train with OpenRL's own PPO, unpatched: ``python -m harl_mapush.clients.run_openrl --task
go1push_mid --algo ppo``.

The arguments are OpenRL's and those of MAPush's ``openrl_ws/train.py``. OpenRL 0.2.0 needs packages
that nothing else here does, older ones among them, and so an environment of its own: ``make
openrl``.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from torch.utils.tensorboard import SummaryWriter

from harl_mapush import config
from harl_mapush.clients.openrl_env import OpenRLEnv
from harl_mapush.interop import openrl_files
from harl_mapush.interop.mapush_tasks import reference_task
from harl_mapush.process import keep_freed_memory
from mqe.config import ConfigError, assignment, merge, unknown
from mqe.registry import make_env
from mqe.world.objects import OBJECTS

PROGRAM = "python -m harl_mapush.clients.run_openrl"
ALGORITHMS = ("ppo",)
PROGRESS = "progress.jsonl"  # in the run's folder: a line a rollout
# Its trainer's, whatever its --config says.
MAPUSH = {
    "lr": 5e-4,
    "critic_lr": 5e-4,
    "episode_length": 200,
}
CHECKPOINT_EVERY = 10_000_000  # env steps, likewise
_IGNORED = {  # flags of MAPush's that mean nothing here
    "--headless": None,
    "--nographics": None,
    "--horovod": None,
    "--record_video": None,
    "--flex": None,
    "--physx": None,
    "--pipeline": str,
    "--graphics_device_id": int,
    "--num_threads": int,
    "--subscenes": int,
    "--slices": int,
    "--use_wandb": None,
    "--run_name": str,
    "--load_run": str,
    "--max_iterations": int,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the command line says; return the exit code."""
    return config.exit_code(lambda: _main(list(sys.argv[1:] if argv is None else argv)), PROGRAM)


def _main(argv: list[str]) -> int:
    cfg = _parse(argv)
    given = {word.partition("=")[0] for word in argv}
    for flag in sorted(given & set(_IGNORED)):
        sys.stdout.write(f"Note: {flag} has no effect here.\n")
    _follow_mapush(cfg, given)
    if cfg.algo not in ALGORITHMS:
        raise ConfigError(f"--algo: {unknown('algorithm', cfg.algo, ALGORITHMS)}")
    start = _checkpoint(cfg.checkpoint)
    run = _settings(cfg)
    if cfg.train_timesteps < cfg.episode_length * run.env.num_envs * getattr(
        run.task, "decision_period", 1
    ):
        raise ConfigError(
            f"--train_timesteps {cfg.train_timesteps}: less than one rollout of "
            f"{run.env.num_envs} environments and "
            f"{cfg.episode_length} steps; lower --episode_length or --num_envs"
        )
    for key in [text for text in cfg.set or [] if text.startswith("task.")]:
        sys.stdout.write(
            "Note: mapush import openrl, which takes a policy for one of MAPush's task, knows "
            f"nothing of {key}.\n"
        )
    out = Path(cfg.out or Path("results", f"{datetime.now():%m-%d-%H-%M-%S}_{cfg.exp_name}"))
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out {str(out)!r} exists; name a new folder")
    keep_freed_memory()
    env = make_env(run.env, run.sim, run.task, cfg.seed)
    try:
        _train(cfg, env, run.task.name, out, start)
    finally:
        env.close()
    return 0


def _train(
    cfg: Any, env: Any, name: str, out: Path, start: openrl_files.OpenRLModule | None
) -> None:
    # In this order: asked for first, the callback asks for what is only half imported.
    from openrl.modules.common import PPONet  # pyright: ignore[reportMissingImports]
    from openrl.runners.common import PPOAgent  # pyright: ignore[reportMissingImports]
    from openrl.utils.callbacks.checkpoint_callback import CheckpointCallback  # pyright: ignore[reportMissingImports]  # isort: skip

    out.mkdir(parents=True, exist_ok=True)
    period = env.decision_period  # OpenRL counts decisions, we control steps
    progress = _Progress(out, env.num_envs * cfg.episode_length * period, cfg.use_tensorboard)
    wrapped = OpenRLEnv(env, name, progress.add)
    # What stays in the file of a checkpoint is plain numbers and text.
    cfg.config = cfg.set = None
    net = PPONet(wrapped, cfg=cfg, device=cfg.rl_device)
    agent = PPOAgent(net)
    if start is not None:
        _load(net.module.models, start)

    class Checkpoints(CheckpointCallback):
        """Names folders by env steps."""

        def _checkpoint_path(self, checkpoint_type: str = "", extension: str = "") -> str:
            return str(out / "checkpoints" / f"rl_model_{self.num_time_steps * period}_steps")

    every = max(1, CHECKPOINT_EVERY // (env.num_envs * period))
    callback = Checkpoints(save_freq=every, save_path=str(out / "checkpoints"))
    agent.train(total_time_steps=cfg.train_timesteps // period, logger=progress, callback=callback)
    last = callback._checkpoint_path()
    agent.save(last)
    sys.stdout.write(
        f"Done; the last checkpoint is {last}. mapush import openrl {out} makes a run of ours of "
        "it.\n"
    )


class _Progress:
    """OpenRL's logger, as far as its driver calls one: a JSON line a rollout, and a line on the
    terminal.
    """

    def __init__(self, folder: Path, steps_per_rollout: int, has_tensorboard: bool) -> None:
        self._path = folder / PROGRESS
        self._steps = steps_per_rollout
        self._start = time.monotonic()
        self._num_rollouts = 0
        self._writer = SummaryWriter(str(folder / "logs")) if has_tensorboard else None

    def add(self, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a rollout."""
        self._num_rollouts += 1
        line = {
            "env_steps": self._num_rollouts * self._steps,
            "seconds": round(time.monotonic() - self._start, 2),
        }
        plain = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line | plain) + "\n")

    def log_info(self, infos: Mapping[str, Any], step: int) -> None:
        """Show what OpenRL asks to log."""
        shown = (f"{name} {float(value):.4g}" for name, value in infos.items())
        sys.stdout.write(f"{step} env steps: {', '.join(shown)}\n")
        if self._writer is not None:
            for name, value in infos.items():
                self._writer.add_scalar(name, float(value), step)
            self._writer.flush()
        sys.stdout.flush()

    def info(self, message: str) -> None:
        """Ignore it: the lines above count env steps instead of rollouts."""


def _parse(argv: list[str]) -> Any:
    """Read the command line; raise ConfigError for what OpenRL's parser does not understand."""
    parser = _make_parser()
    parser.exit_on_error = False  # else it prints all of its 250 flags
    try:
        return parser.parse_args(argv)
    except Exception as error:  # of jsonargparse, whose classes moved between versions
        detail = " ".join(str(error).split())
        raise ConfigError(f"{detail[:300]}; --help lists what is understood") from None


def _make_parser() -> Any:
    try:
        from openrl.configs.config import create_config_parser  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ConfigError(
            f"OpenRL cannot be imported here ({' '.join(str(error).split())[:160]}); make openrl "
            "makes its environment"
        ) from None
    parser = create_config_parser()
    parser.add_argument("--task", type=str, default="go1push_mid", help="what the robots do")
    parser.add_argument("--algo", type=str, default="ppo", help=f"{', '.join(ALGORITHMS)}")
    parser.add_argument(
        "--object", type=str, default=None, help="what they push; by default what --exp_name names"
    )
    parser.add_argument("--num_envs", type=int, default=500, help="parallel worlds")
    parser.add_argument(
        "--train_timesteps", type=int, default=100_000_000, help="env steps of the whole run"
    )
    parser.add_argument(
        "--exp_name", type=str, default="cuboid", help="names the run, and the object if it is one"
    )
    parser.add_argument(
        "--checkpoint", type=str, default=None, help="module.pt to start from; .../None is none"
    )
    parser.add_argument("--out", type=str, default=None, help="the run's folder")
    parser.add_argument(
        "--sim_device", type=str, default="auto", help="of the simulator: auto, cpu, cuda, cuda:K"
    )
    parser.add_argument(
        "--sim", type=str, default="auto", help="auto, mujoco, warp, isaacgym or mujoco_worker"
    )
    parser.add_argument("--rl_device", type=str, default="cpu", help="of OpenRL's networks")
    parser.add_argument(
        "--use_tensorboard", action="store_true", help="write curves for TensorBoard, too"
    )
    parser.add_argument(
        "--set", action="append", default=None, help="a setting of env, sim or task"
    )
    for flag, kind in _IGNORED.items():
        how = {"action": "store_true"} if kind is None else {"type": kind, "default": None}
        parser.add_argument(flag, help="ignored", **how)
    return parser


def _follow_mapush(cfg: Any, given: set[str]) -> None:
    """Put MAPush's learning rates and rollout where the command line has no others, and say so if
    a file does.
    """
    for name, value in MAPUSH.items():
        if f"--{name}" in given:
            continue
        if getattr(cfg, name) != value:
            sys.stdout.write(
                f"Note: {name} is {value:g}, MAPush's, and not the file's "
                f"{getattr(cfg, name):g}; --{name} sets it.\n"
            )
        setattr(cfg, name, value)


def _settings(cfg: Any) -> config.RunCfg:
    """Return the settings of the worlds: MAPush's task, changed by flags and then by every
    ``--set``.
    """
    name = cfg.object or (cfg.exp_name.lower() if cfg.exp_name.lower() in OBJECTS else "cuboid")
    if name not in OBJECTS:
        raise ConfigError(f"--object: {unknown('object', name, OBJECTS)}")
    base = {
        "env": {"num_envs": cfg.num_envs},
        "sim": {"name": cfg.sim, "device": cfg.sim_device},
        "task": reference_task(name) if cfg.task == "go1push_mid" else {"name": cfg.task},
    }
    over: dict[str, Any] = {}
    for text in cfg.set or []:
        over = merge(over, assignment(text))
    others = sorted(set(over) - set(base))
    if others:
        raise ConfigError(
            f"--set {others[0]}...: OpenRL learns, so that only env, sim and task can be set"
        )
    return config.resolve(base, over)[0]


def _checkpoint(path: str | None) -> openrl_files.OpenRLModule | None:
    """Read what to start from, without running anything in it; MAPush's scripts say ``.../None``
    for none.
    """
    if path is None or Path(path).name == "None":
        return None
    return openrl_files.read(Path(path, openrl_files.MODULE) if Path(path).is_dir() else Path(path))


def _load(models: Mapping[str, torch.nn.Module], start: openrl_files.OpenRLModule) -> None:
    """Put a checkpoint into OpenRL's networks and value normaliser; raise ConfigError where it
    does not fit.
    """
    for name, weights in (("policy", start.policy), ("critic", start.critic)):
        try:
            missing = models[name].load_state_dict(weights, strict=False)
        except RuntimeError as error:
            raise ConfigError(
                f"--checkpoint {start.path}: does not fit ({' '.join(str(error).split())[:160]})"
            ) from None
        lacking = [key for key in missing.missing_keys if "value_normalizer" not in key]
        if lacking or missing.unexpected_keys:
            raise ConfigError(
                f"--checkpoint {start.path}: does not fit "
                f"({(lacking + missing.unexpected_keys)[0]})"
            )
    normalizer = getattr(models["critic"], "value_normalizer", None)
    for name, value in start.value_normalizer.items() if normalizer is not None else ():
        getattr(normalizer, name).data.copy_(value)


if __name__ == "__main__":
    sys.exit(main())
