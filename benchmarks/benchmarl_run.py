"""Train BenchMARL's MAPPO or MASAC on the box for a time, and measure its team.

``python benchmarks/benchmarl_run.py mappo --minutes 30``, in an environment of its own
(docs/guides/clients.md). The settings are in ``benchmarl.yaml``. Writes a JSON line after each
iteration and one for the team at the end, without exploration, in the worlds of ``mapush test``.
With ``--policy FILE`` the weights are kept there every minute; ``--minutes 0`` measures them alone.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import suppress
from functools import reduce
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from benchmarl.algorithms import MappoConfig, MasacConfig  # pyright: ignore[reportMissingImports]
from benchmarl.experiment import Callback, Experiment, ExperimentConfig  # pyright: ignore[reportMissingImports]
from benchmarl.models.mlp import MlpConfig  # pyright: ignore[reportMissingImports]
from measuring import emit
from tensordict import TensorDict  # pyright: ignore[reportMissingImports]
from torch import nn
from torchrl.envs.utils import ExplorationType, set_exploration_type  # pyright: ignore[reportMissingImports]

import mapush
from harl_mapush.runs import evaluation_worlds
from mapush.extensions.harl.flat_settings import parse_settings
from mqe.config import assignment, load_yaml, merge
from mqe.registry import make_env
from mqe.tasks.push.rewards import weights_of

SETTINGS = Path(__file__).with_name("benchmarl.yaml")
CONFIGS = {"mappo": MappoConfig, "masac": MasacConfig}
_SATURATED = 0.99  # of actions, which end at 1
_KEEP_S = 60.0  # between two copies of the weights


class TimeIsUpError(Exception):
    """Ends a training."""


class Progress(Callback):
    """Writes the state of the training after each iteration, keeps the weights in ``policy``, and
    ends the training in time.
    """

    def __init__(self, algorithm: str, limit_s: float, policy: Path | None) -> None:
        super().__init__()
        self._algorithm = algorithm
        self._limit_s = limit_s
        self._policy = policy
        self._kept_s = 0.0
        self._start = time.monotonic()
        self.env_steps = 0
        self.reward = 0.0
        self._negative: list[float] = []  # share of advantages, of each update of MAPPO

    @property
    def seconds(self) -> float:
        """Time since the start."""
        return time.monotonic() - self._start

    def on_batch_collected(self, batch: Any) -> None:
        """Count a batch; raise TimeIsUpError after the limit."""
        self.env_steps += batch.numel() * int(self.experiment.task.config["decision_period"])
        self.reward = float(batch["next", "agents", "reward"].mean())
        statistics = self.experiment.collector.env.base_env.statistics()
        emit(
            learner=f"benchmarl_{self._algorithm}",
            env_steps=self.env_steps,
            seconds=self.seconds,
            cpu_seconds=time.process_time(),
            reward=self.reward,
            success_rate=statistics["success_rate"],
            scale=float(batch["agents", "scale"].mean()),
            negative_advantages=fmean(self._negative) if self._negative else None,
            saturated=float((batch["agents", "action"].abs() > _SATURATED).float().mean()),
        )
        self._negative.clear()
        if self._policy is not None and self.seconds > self._kept_s + _KEEP_S:
            self._kept_s = self.seconds
            kept = {"env_steps": self.env_steps, "seconds": self.seconds}
            torch.save(kept | {"policy": self.experiment.policy.state_dict()}, self._policy)
        if self.seconds > self._limit_s:
            raise TimeIsUpError

    def on_train_step(self, batch: Any, group: str) -> None:
        """Note how many advantages are negative."""
        advantages = batch.get((group, "advantage"), None)
        if advantages is not None:
            self._negative.append(float((advantages < 0.0).float().mean()))


def main() -> None:
    """Train and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("algorithm", choices=CONFIGS)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num_threads", type=int, default=1)
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="e.g. experiment.lr=3e-4"
    )
    parser.add_argument("--num_episodes", type=int, default=300, help="episodes at the end")
    parser.add_argument("--policy", type=Path, help="a file for the weights")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.num_threads)
    content = load_yaml(SETTINGS)
    own = reduce(merge, map(assignment, arguments.set), content[arguments.algorithm])
    settings = content["settings"] | {"sim.device": "cpu", "sim.num_threads": arguments.num_threads}
    kinds = {key: getattr(nn, name) for key, name in own["model_classes"].items()}
    model = own["model"] | kinds
    scale = own["rewards"]["scale"]
    weights = {name: scale * weight for name, weight in weights_of("default", "cuboid", {}).items()}
    settings |= {f"task.weights.{name}": weight for name, weight in weights.items()}
    task = mapush.make("go1push_mid", client="benchmarl", settings=settings)
    progress = Progress(arguments.algorithm, 60.0 * arguments.minutes, arguments.policy)
    with tempfile.TemporaryDirectory() as folder:
        experiment = Experiment(
            task=task,
            algorithm_config=_changed(CONFIGS[arguments.algorithm], own["algorithm"]),
            model_config=_changed(MlpConfig, model),
            critic_model_config=_changed(MlpConfig, model),
            seed=arguments.seed,
            config=_changed(ExperimentConfig, own["experiment"] | _quiet(folder)),
            callbacks=[progress],
        )
        env_steps, seconds = _learn(experiment, progress, arguments)
        metrics = measured(experiment, settings, arguments.num_episodes)
    emit(
        learner=f"benchmarl_{arguments.algorithm}",
        changed=arguments.set,
        seed=arguments.seed,
        env_steps=env_steps,
        seconds=seconds,
        **{name: metrics[name] for name in ("num_episodes", "success_rate", "success_ci95")},
    )


def _learn(experiment: Any, progress: Progress, arguments: argparse.Namespace) -> tuple[int, float]:
    """Train, or load kept weights; return env steps and seconds of the training."""
    if arguments.minutes == 0.0:
        kept = torch.load(arguments.policy, weights_only=True)
        experiment.policy.load_state_dict(kept["policy"])
        return kept["env_steps"], kept["seconds"]
    with suppress(TimeIsUpError):
        experiment.run()
    return progress.env_steps, progress.seconds


def measured(experiment: Any, settings: dict[str, Any], num_episodes: int) -> Any:
    """Return the calculator's metrics of ``num_episodes`` episodes of BenchMARL's team."""
    of_training = ("task.close_share", "task.tangled_share")
    worlds = {key: value for key, value in settings.items() if key not in of_training}
    cfg = evaluation_worlds.settings(None, parse_settings(worlds), num_envs=num_episodes)
    env = make_env(cfg.env, cfg.sim, cfg.task, cfg.runner.seed)

    def act(obs: torch.Tensor) -> torch.Tensor:
        agents = TensorDict({"observation": obs}, batch_size=obs.shape[:2])
        given = TensorDict({"agents": agents}, batch_size=obs.shape[:1])
        return experiment.policy(given)["agents", "action"]

    with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
        return mapush.evaluate(env, act)


def _changed(kind: Any, values: dict[str, Any]) -> Any:
    """Return a configuration: BenchMARL's defaults, changed by ``values``."""
    cfg = kind.get_from_yaml()
    for name, value in values.items():
        if not hasattr(cfg, name):
            raise SystemExit(f"benchmarl.yaml: {kind.__name__} has no {name}")
        setattr(cfg, name, value)
    return cfg


def _quiet(folder: str) -> dict[str, Any]:
    """Return the settings that leave out evaluation and logs; the time limit ends the training."""
    return {
        "evaluation": False,
        "render": False,
        "loggers": [],
        "create_json": False,
        "save_folder": folder,
        "max_n_frames": 10**9,
    }


if __name__ == "__main__":
    main()
