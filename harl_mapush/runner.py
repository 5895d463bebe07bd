"""The training loop: collect, update, report, save."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from harl_mapush.algorithms.algorithm import Algorithm, Experience
from harl_mapush.distributed.ranks import ALONE, Ranks
from harl_mapush.distributed.resharding import on_host, redistribute
from harl_mapush.interruption import seconds
from harl_mapush.learning.world_model.world_model import health_line
from mqe.config import option
from mqe.vec_env import TimeStep, VecEnv

_MOST_BROKEN = 0.1  # share of a rollout's transitions


@dataclass(frozen=True)
class RunnerCfg:
    """How long a run lasts and how it is cut into iterations."""

    seed: int = option(1, "of every random number in the run", min=0, max=2**63 - 1)
    num_env_steps: int = option(
        100_000_000, "control steps summed over environments, rounded up", min=1
    )
    num_steps: int = option(
        32, "decisions of every environment per iteration", min=1, max=1_000_000
    )
    checkpoint_interval: int = option(10_000_000, "env steps", min=1)
    evaluation_interval: int | None = option(
        None, "env steps between evaluations in environments of their own; null: none", min=1
    )
    evaluation_envs: int = option(50, "worlds of an evaluation", min=1, max=1_000)
    evaluation_episodes: int = option(
        100, "of an evaluation, in whole rounds of its worlds", min=1, max=1_000
    )
    matmul_precision: str = option(
        "high", "of matrix products on a GPU; high is TF32", choices=("highest", "high", "medium")
    )
    torch_threads: int | None = option(
        None, "null: torch's own choice, at most one per core", min=1, max=1024
    )
    staggered_start: bool = option(
        True, "first episodes end at times spread over the time limit, not all at once"
    )
    max_wall_time: str | None = option(
        None, "save and end in time for this limit, 3h50m for instance; null: none"
    )

    init_from: str | None = option(
        None, "start with the networks of a checkpoint, run or pretrained:NAME"
    )
    collectors: int = option(
        0, "processes that collect beside the learner; 0: it collects itself", min=0, max=256
    )
    engine: str = option(
        "local",
        "where collectors run: as local processes, on a Ray cluster",
        choices=("local", "ray"),
    )
    learner_device: str = option(
        "auto", "of the learner beside collectors: auto (a GPU if there is one), cpu, cuda:K"
    )
    update_ratio: float | None = option(
        None, "updates per transition with collectors; null: the algorithm's", above=0.0, max=1e4
    )
    queue_blocks: int = option(4, "full blocks that may wait, for each collector", min=1, max=1000)
    max_policy_lag: int = option(
        64, "versions; the learner waits for older transitions", min=1, max=1_000_000
    )
    stall_time: float = option(
        30.0,
        "a collector idle for so long is named, for twice as long restarted [s]",
        min=0.5,
        max=1e6,
    )

    def __post_init__(self) -> None:
        if self.max_wall_time is not None:
            try:
                seconds(self.max_wall_time)
            except ValueError as error:
                raise ValueError(f"max_wall_time (--max_wall_time): {error}") from None
        if self.update_ratio is not None and not self.collectors:
            raise ValueError(
                "update_ratio: needs runner.collectors; without them, set algorithm.update_ratio"
            )
        if self.engine != "local" and not self.collectors:
            raise ValueError(f"engine={self.engine}: needs runner.collectors, at least 1")


class IterationReport(NamedTuple):
    """Times and metrics of one iteration."""

    iteration: int  # 1 after the first
    num_iterations: int
    env_steps: int  # since the start of the run
    num_env_steps: int
    collect_s: float
    update_s: float
    metrics: dict[str, float]  # agent{i}/..., critic/..., reward/<term> per env step
    note: str | None = None  # a message about buffers that grew or worlds that broke
    # Lines about a learned model, and the processes of a run with collectors.
    health: tuple[str, ...] = ()


class NonFiniteError(RuntimeError):
    """A loss or weight became infinite or not a number; the message names it."""


class BrokenWorldsError(RuntimeError):
    """The simulation breaks too often to learn from the rest; the message says how often."""


class Runner:
    """Trains an algorithm in an environment until ``num_env_steps``."""

    def __init__(
        self,
        env: VecEnv,
        algorithm: Algorithm,
        cfg: RunnerCfg,
        on_iteration: Callable[[IterationReport], None] | None = None,
        on_checkpoint: Callable[[int], None] | None = None,
        on_broken: Callable[[int], str | None] | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        """Allocate what is collected; ``on_checkpoint`` is called with env steps every interval and
        at the end.

        ``on_broken`` is called with env steps after an iteration in which worlds broke; it may
        return the cause.
        ``env`` has this rank's share of the worlds; counts and reports are over all ``ranks``.

        Raises ValueError if the algorithm's settings do not allow blocks of ``num_steps``.
        """
        self.env = env
        self.algorithm = algorithm
        self.cfg = cfg
        self.ranks = ranks
        self.on_iteration = on_iteration
        self.on_checkpoint = on_checkpoint
        self.on_broken = on_broken
        self.experience = self.make_experience()
        self.num_transitions = cfg.num_steps * env.num_envs * ranks.size  # an iteration
        self.steps_per_iteration = self.num_transitions * env.decision_period
        self.num_iterations = max(1, math.ceil(cfg.num_env_steps / self.steps_per_iteration))
        self.iteration = 0
        self._obs: Tensor | None = None
        self._breaks_often = False  # the rollout before this one had too many broken transitions

    def make_experience(self) -> Experience:
        """Allocate the storage of what is collected."""
        return self.algorithm.make_experience(self.cfg.num_steps, self.env.num_envs)

    @property
    def env_steps(self) -> int:
        """Control steps done, summed over environments."""
        return self.iteration * self.steps_per_iteration

    def learn(self) -> None:
        """Train to the end.

        Raises NonFiniteError as soon as a loss or weight is not finite. Raises BrokenWorldsError if
        the simulation breaks in more than a tenth of the transitions of two successive rollouts;
        buffers that are too small may spoil one.
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
        metrics = self.collect()
        clock.lap()
        metrics |= self.update()
        clock.lap()
        values = self._fetch(metrics)
        self.iteration += 1
        collect_s, update_s = clock.read()
        with self.ranks.busy():
            note = self.ranks.join_messages(self.env.grow_buffers())
        note = self._describe_broken(values["rollout/num_broken"], note)
        if self.on_iteration:
            self.on_iteration(self._report(values, collect_s, update_s, note))
        if self.on_checkpoint and self.is_checkpoint_due():
            self.on_checkpoint(self.env_steps)
        self.ranks.is_busy = False  # kernels are compiled and graphs recorded from here on

    def start(self) -> None:
        """Reset the environment, unless the run was resumed from a saved state."""
        if self._obs is None:
            self._set_inputs(*self.env.reset(staggered=self.cfg.staggered_start))

    def collect(self) -> dict[str, Tensor]:
        """Collect ``num_steps`` decisions; nothing here waits for the device.

        Return the means of reward terms a control step, and how many transitions are broken, as
        0-dim tensors.
        """
        assert self._obs is not None
        experience = self.experience
        algorithm = self.algorithm
        rewards = RewardSums(self.env)
        experience.begin()
        for t in range(self.cfg.num_steps):
            decision = algorithm.act(self._obs, experience.hidden(t))
            step = self.env.step(decision.actions)
            experience.add(t, self._obs, decision, step)
            rewards.add(step)
            self._obs = step.obs
            self.ranks.tick()
        experience.finish()
        rewards.merge(self.ranks)
        return rewards.means() | {"rollout/num_broken": self.num_transitions - rewards.num_valid()}

    def update(self) -> dict[str, Tensor]:
        """Learn from what was collected; return metrics as 0-dim tensors."""
        return self.algorithm.update(self.experience, self.iteration / self.num_iterations)

    def state_dict(self) -> dict[str, Any]:
        """Return all that a run needs to resume, between iterations; with several ranks, rank 0
        alone has all.
        """
        own = {"storage": self.experience.state_dict(), "env": self.env.state_dict()}
        learned = {"iteration": self.iteration, "algorithm": self.algorithm.state_dict()}
        if self.ranks.size == 1:
            return learned | own
        return learned | {"shares": self.ranks.gather_on_first(on_host(own))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a ``state_dict``."""
        self.iteration = state["iteration"]
        self.algorithm.load_state_dict(state["algorithm"])
        shares = state.get("shares") or [{"storage": state["storage"], "env": state["env"]}]
        if len(shares) != self.ranks.size:
            self.env.reset()  # so that there is a state whose shapes can be asked for
            own = {"storage": self.experience.state_dict(), "env": self.env.state_dict()}
            shares = redistribute(shares, own, self.ranks.rank, self.ranks.size)
        else:
            shares = shares[self.ranks.rank]
        self.experience.load_state_dict(shares["storage"])
        self._set_inputs(*self.env.load_state_dict(shares["env"]))

    def _set_inputs(self, obs: Tensor, state: Tensor) -> None:
        self._obs = obs
        self.experience.start(obs, state)

    def _fetch(self, metrics: dict[str, Tensor]) -> dict[str, float]:
        """Copy the iteration's numbers to the host at once; raise NonFiniteError if one is not
        finite.

        The error names the first one; rewards come before the losses that become non-finite because
        of them.
        """
        sizes = {
            f"{name}/weights": flat.abs().max() for name, flat in self.algorithm.weights.items()
        }
        everything = metrics | sizes
        numbers = self.ranks.mean_(
            torch.stack([x.to(torch.float32) for x in everything.values()])
        ).tolist()
        values = dict(zip(everything, numbers, strict=True))
        bad = [name for name, value in values.items() if not math.isfinite(value)]
        if bad:
            more = f" (and {len(bad) - 1} more: {', '.join(bad[1:])})" if len(bad) > 1 else ""
            raise NonFiniteError(
                f"{bad[0]} is {values[bad[0]]}{more} after "
                f"{self.env_steps + self.steps_per_iteration} env steps: the "
                "run is stopped"
            )
        return {name: values[name] for name in metrics}

    def _describe_broken(self, num_broken: float, note: str | None) -> str | None:
        """Add to ``note`` how many transitions of the rollout are broken; stop where there are too
        many again.
        """
        if not num_broken:
            self._breaks_often = False
            return note
        line = (
            f"the simulation broke in {num_broken:.0f} of {self.num_transitions} transitions, "
            "which are left out"
        )
        cause = None if self.on_broken is None else self.on_broken(self.env_steps)
        line += "" if cause is None else f" ({cause})"
        breaks_often = num_broken > _MOST_BROKEN * self.num_transitions
        if breaks_often and self._breaks_often:
            raise BrokenWorldsError(
                f"{line}, as in the rollout before: more than {_MOST_BROKEN:.0%} each, up to "
                f"{self.env_steps} env "
                f"steps; the run is stopped{'' if note is None else f' ({note})'}"
            )
        self._breaks_often = breaks_often
        return line if note is None else f"{line}; {note}"

    def _report(
        self, metrics: dict[str, float], collect_s: float, update_s: float, note: str | None
    ) -> IterationReport:
        total = self.num_iterations * self.steps_per_iteration
        line = health_line(metrics)
        return IterationReport(
            self.iteration,
            self.num_iterations,
            self.env_steps,
            total,
            collect_s,
            update_s,
            metrics,
            note,
            () if line is None else (line,),
        )

    def is_checkpoint_due(self) -> bool:
        """Return whether the iteration that was just done ends with a checkpoint."""
        interval = self.cfg.checkpoint_interval
        crossed = (
            self.env_steps // interval > (self.env_steps - self.steps_per_iteration) // interval
        )
        return crossed or self.iteration == self.num_iterations


class RewardSums:
    """Sums of every reward term, and of the reward, over the transitions of a block in which
    nothing broke.
    """

    def __init__(self, env: VecEnv) -> None:
        self._period = env.decision_period
        self._counter = torch.ones(env.num_envs, env.num_agents, device=env.device)
        self._names: list[str] = []
        self._sums: Tensor | None = None  # the last is the number of agents' valid transitions

    def add(self, step: TimeStep) -> None:
        self._names = [name for name in step.info if name.startswith("reward/")]
        # (K, N, A).
        terms = torch.stack(
            [*(step.info[name] for name in self._names), step.reward, self._counter]
        )
        sums = torch.where(step.valid.unsqueeze(1), terms, 0.0).sum(dim=(1, 2))
        self._sums = sums if self._sums is None else self._sums + sums

    def merge(self, ranks: Ranks) -> None:
        """Add the sums of all ranks up."""
        assert self._sums is not None
        ranks.sum_(self._sums)

    def means(self) -> dict[str, Tensor]:
        """Return the means of one agent and control step by name."""
        assert self._sums is not None
        means = self._sums[:-1] / (self._sums[-1].clamp(min=1.0) * self._period)
        return dict(zip([*self._names, "reward/total"], means, strict=True))

    def num_valid(self) -> Tensor:
        """Return the number of transitions in which nothing broke."""
        assert self._sums is not None
        return self._sums[-1] / self._counter.shape[1]


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
            # Else the current device's.
            event.record(torch.accelerator.current_stream(self._device))
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def read(self) -> list[float]:
        """Return the laps [s]."""
        pairs = zip(self._marks, self._marks[1:], strict=False)
        if self._on_device:
            self._marks[-1].synchronize()
            return [start.elapsed_time(end) / 1e3 for start, end in pairs]
        return [end - start for start, end in pairs]
