"""Train with OpenRL's own PPO, unpatched: ``python -m mapush.extensions.openrl.run_openrl --task
go1push_mid --algo ppo``.

The arguments are OpenRL's and those of MAPush's ``openrl_ws/train.py``. OpenRL 0.2.0 needs packages
that nothing else here does, older ones among them, and so an environment of its own: ``make
openrl``.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from torch.utils.tensorboard import SummaryWriter

from harl_mapush import config
from harl_mapush.interruption import SIGNALLED, Interruption
from harl_mapush.process import keep_freed_memory
from mapush.extensions.openrl import openrl_files, openrl_format
from mapush.extensions.openrl.mapush_tasks import reference_task
from mapush.extensions.openrl.openrl_env import OpenRLEnv
from mqe.config import ConfigError, assignment, dump_yaml, merge, to_dict, unknown
from mqe.registry import make_env
from mqe.world.objects import OBJECTS

PROGRAM = "python -m mapush.extensions.openrl.run_openrl"
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
    argv = _with_own_file(argv)
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
    out = Path(cfg.out or Path("results", f"{datetime.now():%m-%d-%H-%M-%S}_{cfg.exp_name}"))
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out {str(out)!r} exists; name a new folder")
    keep_freed_memory()
    env = make_env(run.env, run.sim, run.task, cfg.seed)
    worlds = to_dict(run)
    worlds = {"env": worlds["env"] | {"num_agents": env.num_agents}, "task": worlds["task"]}
    try:
        return _train(cfg, env, worlds, out, start)
    finally:
        env.close()


def _train(
    cfg: Any,
    env: Any,
    worlds: Mapping[str, Any],
    out: Path,
    start: openrl_files.OpenRLModule | None,
) -> int:
    """Train, also until a signal asks for the end, and save; return the exit code."""
    # In this order: asked for first, the callback asks for what is only half imported.
    from openrl.modules.common import PPONet  # pyright: ignore[reportMissingImports]
    from openrl.runners.common import PPOAgent  # pyright: ignore[reportMissingImports]
    from openrl.utils.callbacks.checkpoint_callback import CheckpointCallback  # pyright: ignore[reportMissingImports]  # isort: skip

    period = env.decision_period  # OpenRL counts decisions, we control steps
    progress = _Progress(out, env.num_envs * cfg.episode_length, period)
    wrapped = OpenRLEnv(env, worlds["task"]["name"], progress.add)
    # What stays in the file of a checkpoint is plain numbers and text.
    cfg.config = cfg.set = None
    net = PPONet(wrapped, cfg=cfg, device=cfg.rl_device)
    agent = PPOAgent(net)
    if start is not None:
        _load(net.module.models, start)
    _check_return(agent, worlds)
    out.mkdir(parents=True, exist_ok=True)
    (out / openrl_format.WORLDS).write_text(dump_yaml(worlds), encoding="utf-8")
    if cfg.use_tensorboard:
        progress.write_curves()
    interruption = Interruption()

    class Checkpoints(CheckpointCallback):
        """Names folders by env steps, and ends the training after a signal."""

        def _checkpoint_path(self, checkpoint_type: str = "", extension: str = "") -> str:
            return str(out / "checkpoints" / f"rl_model_{self.num_time_steps * period}_steps")

        def _on_step(self) -> bool:
            return super()._on_step() and interruption.signal is None

    every = max(1, CHECKPOINT_EVERY // (env.num_envs * period))
    callback = Checkpoints(save_freq=every, save_path=str(out / "checkpoints"))
    total = cfg.train_timesteps // period
    with interruption:
        agent.train(total_time_steps=total, logger=progress, callback=callback)
        last = callback._checkpoint_path()
        agent.save(last)
    what_next = f"mapush import openrl {out} makes a run of ours of it"
    if interruption.signal is None:
        sys.stdout.write(f"Done; the last checkpoint is {last}. {what_next}.\n")
        return 0
    sys.stdout.write(
        f"Interrupted ({interruption.signal.name}); the last state is saved in {last}. "
        f"--checkpoint {last} starts a run from its networks; {what_next}.\n"
    )
    return SIGNALLED + interruption.signal


def _check_return(agent: Any, worlds: Mapping[str, Any]) -> None:
    """Raise ConfigError, before any training, for a team that could not be brought over."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / openrl_format.WORLDS).write_text(dump_yaml(worlds), encoding="utf-8")
        module = Path(folder) / "checkpoints" / "rl_model_0_steps"
        agent.save(str(module))
        try:
            openrl_format.convert(module / openrl_files.MODULE)
        except ConfigError as error:
            reason = str(error).partition(f"{openrl_files.MODULE}: ")[2]
            raise ConfigError(
                f"mapush could not take over what OpenRL would train ({reason}); it takes layers "
                "of any number (layer_N) with ReLU (activation_id 1), without recurrence, "
                "attention or normalised inputs"
            ) from None


class _Progress:
    """OpenRL's logger, as far as its driver calls one: a JSON line a rollout, and a line on the
    terminal.
    """

    def __init__(self, folder: Path, decisions_per_rollout: int, decision_period: int) -> None:
        self._folder = folder
        self._period = decision_period
        self._steps = decisions_per_rollout * decision_period
        self._start = time.monotonic()
        self._num_rollouts = 0
        self._writer: SummaryWriter | None = None

    def write_curves(self) -> None:
        """Write curves for TensorBoard from now on."""
        self._writer = SummaryWriter(str(self._folder / "logs"))

    def add(self, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a rollout."""
        self._num_rollouts += 1
        line = {
            "env_steps": self._num_rollouts * self._steps,
            "seconds": round(time.monotonic() - self._start, 2),
        }
        plain = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        with (self._folder / PROGRESS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line | plain) + "\n")

    def log_info(self, infos: Mapping[str, Any], step: int) -> None:
        """Show what OpenRL asks to log after ``step`` decisions; NaN is no measurement yet."""
        env_steps = step * self._period
        known = {name: float(value) for name, value in infos.items() if math.isfinite(value)}
        shown = (f"{name} {value:.4g}" for name, value in known.items())
        sys.stdout.write(f"{env_steps} env steps: {', '.join(shown)}\n")
        if self._writer is not None:
            for name, value in known.items():
                self._writer.add_scalar(name, value, env_steps)
            self._writer.flush()
        sys.stdout.flush()

    def info(self, message: str) -> None:
        """Ignore it: the lines above count env steps instead of rollouts."""


def _with_own_file(argv: list[str]) -> list[str]:
    """Return the arguments with our file in the place of MAPush's ``ppo.yaml``, if that is not
    there, and say so.
    """
    given = [word.removeprefix("--config=") for word in argv]
    for i, name in enumerate(given):
        is_value = argv[i].startswith("--config=") or argv[max(i - 1, 0)] == "--config"
        ours = config.openrl_file()
        if is_value and Path(name).name == ours.name and not Path(name).exists():
            sys.stdout.write(
                f"Note: there is no {name}; instead {ours} has the settings of the published "
                "policies.\n"
            )
            argv = [*argv[:i], argv[i].replace(name, str(ours)), *argv[i + 1 :]]
    return argv


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
        "--object",
        type=str,
        default=None,
        help="pushed object; by default the one that --exp_name names",
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
