"""The training loop: collect, update, report, save."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from harl_mapush.algorithms.on_policy import OnPolicy
from harl_mapush.interruption import seconds
from harl_mapush.storage import Storage
from mqe.vec_env import TimeStep, VecEnv

_MOST_BROKEN = 0.1  # share of a rollout's transitions


@dataclass(frozen=True)
class RunnerCfg:
    """How long a run lasts and how it is cut into iterations."""

    seed: int = field(default=1, metadata={"min": 0, "max": 2**63 - 1})
    num_env_steps: int = field(
        default=100_000_000, metadata={"min": 1, "help": "control steps summed over environments, rounded up"}
    )
    num_steps: int = field(
        default=32, metadata={"min": 1, "max": 1_000_000, "help": "decisions of every environment an iteration"}
    )
    checkpoint_interval: int = field(default=10_000_000, metadata={"min": 1, "help": "env steps"})
    evaluation_interval: int | None = field(
        default=None,
        metadata={"min": 1, "help": "env steps between evaluations in environments of their own; null: none"},
    )
    evaluation_envs: int = field(default=50, metadata={"min": 1, "max": 1_000, "help": "worlds of an evaluation"})
    evaluation_episodes: int = field(
        default=100, metadata={"min": 1, "max": 1_000, "help": "of an evaluation, in whole rounds of its worlds"}
    )
    matmul_precision: str = field(
        default="high",
        metadata={"choices": ("highest", "high", "medium"), "help": "of matrix products on a GPU; high is TF32"},
    )
    torch_threads: int | None = field(
        default=None, metadata={"min": 1, "max": 1024, "help": "null: torch's own choice"}
    )
    staggered_start: bool = field(
        default=True, metadata={"help": "first episodes end at times spread over the time limit, not all at once"}
    )
    max_wall_time: str | None = field(
        default=None, metadata={"help": "save and end in time for this limit, 3h50m for instance; null: none"}
    )

    init_from: str | None = field(
        default=None,
        metadata={"help": "start with the networks of a checkpoint, run or pretrained:NAME"},
    )

    def __post_init__(self) -> None:
        if self.max_wall_time is not None:
            try:
                seconds(self.max_wall_time)
            except ValueError as error:
                raise ValueError(f"max_wall_time (--max_wall_time): {error}") from None


class IterationReport(NamedTuple):
    """What one iteration did."""

    iteration: int  # 1 after the first
    num_iterations: int
    env_steps: int  # since the start of the run
    num_env_steps: int
    collect_s: float
    update_s: float
    metrics: dict[str, float]  # agent{i}/..., critic/..., reward/<term> per env step
    note: str | None = None  # what the environment had to repair after it


class NonFiniteError(RuntimeError):
    """A loss or weight became infinite or not a number; the message names it."""


class BrokenWorldsError(RuntimeError):
    """The simulation breaks so often that what remains is not worth learning from; the message says how often."""


class Runner:
    """Trains an algorithm in an environment until ``num_env_steps``."""

    def __init__(
        self,
        env: VecEnv,
        algorithm: OnPolicy,
        cfg: RunnerCfg,
        on_iteration: Callable[[IterationReport], None] | None = None,
        on_checkpoint: Callable[[int], None] | None = None,
        on_broken: Callable[[int], str | None] | None = None,
    ) -> None:
        """Allocate the rollout; ``on_checkpoint`` is called with env steps every interval and at the end.

        ``on_broken`` is called with env steps after an iteration in which worlds broke; it may say what was wrong.

        Raises ValueError where a rollout cannot be cut as the algorithm's settings say.
        """
        self.env, self.algorithm, self.cfg = env, algorithm, cfg
        self.on_iteration, self.on_checkpoint, self.on_broken = on_iteration, on_checkpoint, on_broken
        self.storage = Storage(algorithm.storage_shape(cfg.num_steps, env.num_envs), env.device)
        self.steps_per_iteration = cfg.num_steps * env.num_envs * env.decision_period
        self.num_iterations = max(1, math.ceil(cfg.num_env_steps / self.steps_per_iteration))
        self.iteration = 0
        self._obs: Tensor | None = None
        self._terms: list[str] = []  # what the environment pays for
        self._sums: Tensor | None = None  # of them over the rollout so far, and of the reward
        self._breaks_often = False  # the rollout before this one had too many broken transitions

    @property
    def env_steps(self) -> int:
        """Control steps done, summed over environments."""
        return self.iteration * self.steps_per_iteration

    def learn(self) -> None:
        """Train to the end.

        Raises NonFiniteError as soon as a loss or weight is not finite, BrokenWorldsError where the simulation breaks
        in more than a tenth of the transitions twice running; one such rollout is what buffers too small may cost.
        """
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(self.cfg.matmul_precision)
        try:
            self.start()
            while self.iteration < self.num_iterations:
                self._iterate()
        finally:
            torch.set_float32_matmul_precision(before)

    def _iterate(self) -> None:
        clock = _Clock(self.env.device)
        self.collect()
        clock.lap()
        metrics = self.update()
        clock.lap()
        values = self._fetch(metrics)
        self.iteration += 1
        collect_s, update_s = clock.read()
        note = self._mention_broken(values["rollout/num_broken"], self.env.maintain())
        if self.on_iteration:
            self.on_iteration(self._report(values, collect_s, update_s, note))
        if self.on_checkpoint and self.is_checkpoint_due():
            self.on_checkpoint(self.env_steps)

    def start(self) -> None:
        """Reset the environment, unless the run goes on from a saved state."""
        if self._obs is None:
            self._stand_at(*self.env.reset(staggered=self.cfg.staggered_start))

    def collect(self) -> None:
        """Fill the storage with ``num_steps`` decisions; nothing here waits for the device."""
        assert self._obs is not None
        storage, algorithm = self.storage, self.algorithm
        storage.begin()
        self._sums = None
        for t in range(self.cfg.num_steps):
            hidden = None if storage.actor_hidden is None else storage.actor_hidden[:, t]
            decision = algorithm.act(self._obs, hidden)
            storage.add_decision(t, self._obs, decision)
            step = self.env.step(decision.actions)
            state = algorithm.critic_state(step.obs, step.state)
            final_state = algorithm.critic_state(step.final_obs, step.final_state)
            storage.add_outcome(t, step, algorithm.team_rewards(step.reward), state, final_state)
            self._count_rewards(step)
            self._obs = step.obs
        storage.finish()

    def update(self) -> dict[str, Tensor]:
        """Learn from the storage; give metrics as 0-dim tensors."""
        return self.algorithm.update(self.storage, self.iteration / self.num_iterations)

    def state_dict(self) -> dict[str, Any]:
        """Everything that a run goes on from, between iterations."""
        return {
            "iteration": self.iteration,
            "algorithm": self.algorithm.state_dict(),
            "storage": self.storage.state_dict(),
            "env": self.env.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state_dict``."""
        self.iteration = state["iteration"]
        self.algorithm.load_state_dict(state["algorithm"])
        self.storage.load_state_dict(state["storage"])
        self._stand_at(*self.env.load_state_dict(state["env"]))

    def _stand_at(self, obs: Tensor, state: Tensor) -> None:
        self._obs = obs
        self.storage.state[-1] = self.algorithm.critic_state(obs, state)

    def _count_rewards(self, step: TimeStep) -> None:
        self._terms = [name for name in step.info if name.startswith("reward/")]
        terms = torch.stack([*(step.info[name] for name in self._terms), step.reward])  # (K, N, A)
        sums = torch.where(step.valid.unsqueeze(1), terms, 0.0).sum(dim=(1, 2))
        self._sums = sums if self._sums is None else self._sums + sums

    def _fetch(self, metrics: dict[str, Tensor]) -> dict[str, float]:
        """Bring the iteration's numbers to the host at once; raise NonFiniteError where one is not finite."""
        assert self._sums is not None
        control_steps = self.storage.valid.sum().clamp(min=1.0) * self.env.decision_period * self.env.num_agents
        rewards = dict(zip([*self._terms, "reward/total"], self._sums / control_steps, strict=True))
        metrics = (
            rewards | {"rollout/num_broken": (self.storage.valid < 0.5).sum()} | metrics
        )  # in this order, for losses go bad because rewards do
        weights = {f"agent{i}/weights": o.flat for i, o in enumerate(self.algorithm.optimizers)}
        weights["critic/weights"] = self.algorithm.value.optimizer.flat
        sizes = {name: flat.abs().max() for name, flat in weights.items()}
        everything = metrics | sizes
        numbers = torch.stack([x.to(torch.float32) for x in everything.values()]).tolist()
        values = dict(zip(everything, numbers, strict=True))
        bad = [name for name, value in values.items() if not math.isfinite(value)]
        if bad:
            more = f" (and {len(bad) - 1} more: {', '.join(bad[1:])})" if len(bad) > 1 else ""
            raise NonFiniteError(
                f"{bad[0]} is {values[bad[0]]}{more} after {self.env_steps + self.steps_per_iteration} env steps: the "
                "run is stopped"
            )
        return {name: values[name] for name in metrics}

    def _mention_broken(self, num_broken: float, note: str | None) -> str | None:
        """Add to ``note`` how many transitions of the rollout are broken; stop where there are too many again."""
        if not num_broken:
            self._breaks_often = False
            return note
        total = self.storage.valid.numel()
        line = f"the simulation broke in {num_broken:.0f} of {total} transitions, which are left out"
        cause = None if self.on_broken is None else self.on_broken(self.env_steps)
        line += "" if cause is None else f" ({cause})"
        breaks_often = num_broken > _MOST_BROKEN * total
        if breaks_often and self._breaks_often:
            raise BrokenWorldsError(
                f"{line}, as in the rollout before: more than {_MOST_BROKEN:.0%} each, up to {self.env_steps} env "
                f"steps; the run is stopped{'' if note is None else f' ({note})'}"
            )
        self._breaks_often = breaks_often
        return line if note is None else f"{line}; {note}"

    def _report(
        self, metrics: dict[str, float], collect_s: float, update_s: float, note: str | None
    ) -> IterationReport:
        total = self.num_iterations * self.steps_per_iteration
        return IterationReport(
            self.iteration, self.num_iterations, self.env_steps, total, collect_s, update_s, metrics, note
        )

    def is_checkpoint_due(self) -> bool:
        """Return whether the iteration that was just done ends with a checkpoint."""
        interval = self.cfg.checkpoint_interval
        crossed = self.env_steps // interval > (self.env_steps - self.steps_per_iteration) // interval
        return crossed or self.iteration == self.num_iterations


class _Clock:
    """Times laps on the device's own clock, without waiting for it before ``read``."""

    def __init__(self, device: torch.device) -> None:
        self._on_device = device.type != "cpu"
        self._device = device
        self._marks: list[Any] = []
        self.lap()

    def lap(self) -> None:
        if self._on_device:
            event = torch.Event(self._device, enable_timing=True)
            event.record(torch.accelerator.current_stream(self._device))  # else the current device's
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def read(self) -> list[float]:
        """Give the laps [s]."""
        pairs = zip(self._marks, self._marks[1:], strict=False)
        if self._on_device:
            self._marks[-1].synchronize()
            return [start.elapsed_time(end) / 1e3 for start, end in pairs]
        return [end - start for start, end in pairs]
