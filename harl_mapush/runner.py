"""The trainer without collectors: it collects, updates and reports in one process."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harl_mapush.algorithms.algorithm import Algorithm, Experience
from harl_mapush.callback import Callback
from harl_mapush.distributed.ranks import ALONE, Ranks
from harl_mapush.distributed.resharding import redistribute
from harl_mapush.progress import Progress
from harl_mapush.run_settings import RunnerCfg
from harl_mapush.trainer import Monitor, fast_products
from mqe.resumable import map_tensors
from mqe.vec_env import TimeStep, VecEnv


class Runner:
    """Trains an algorithm in an environment until ``num_env_steps``: collect, update, report."""

    def __init__(
        self, env: VecEnv, algorithm: Algorithm, cfg: RunnerCfg, ranks: Ranks = ALONE
    ) -> None:
        """Allocate the storage for collected experience.

        ``env`` has this rank's share of the worlds. Counts and reports are over all ``ranks``.
        Raises ValueError if the algorithm's settings do not allow blocks of ``num_steps``.
        """
        self.env = env
        self.algorithm = algorithm
        self.cfg = cfg
        self.ranks = ranks
        self.progress = Progress.of(cfg, env.num_envs * ranks.size, env.decision_period)
        self.experience: Experience = algorithm.make_experience(cfg.num_steps, env.num_envs)
        self._obs: Tensor | None = None

    def learn(self, callbacks: Sequence[Callback] = (), folder: Path | None = None) -> None:
        """Train to the end, as in ``Trainer.learn``."""
        monitor = Monitor(self.progress, callbacks, self.ranks)
        with fast_products():
            self.start()
            while not self.progress.is_done:
                self._iterate(monitor)

    def _iterate(self, monitor: Monitor) -> None:
        clock = _Clock(self.env.device)
        metrics = self.collect()
        clock.lap()
        metrics |= self.update()
        clock.lap()

        values = monitor.to_host(metrics, self.algorithm.weights)
        self.progress.iteration += 1
        collect_s, update_s = clock.read()
        note = self.ranks.join_messages(self.env.grow_buffers())
        note = monitor.note_broken_worlds(values["rollout/num_broken"], note)

        monitor.report(values, collect_s, update_s, note, health=())
        monitor.checkpoint()

    def start(self) -> None:
        """Reset the environment, unless the run was resumed from a saved state."""
        if self._obs is None:
            self._set_inputs(*self.env.reset(staggered=self.cfg.staggered_start))

    def statistics(self) -> dict[str, float]:
        """Return means over all ranks' last finished episodes."""
        return self.env.statistics()

    def collect(self) -> dict[str, Tensor]:
        """Collect ``num_steps`` decisions without waiting for the device.

        Return each reward term's mean per control step, and the number of broken transitions, as
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
        experience.finish()
        rewards.merge(self.ranks)
        num_broken = self.progress.num_transitions - rewards.num_valid()
        return rewards.means() | {"rollout/num_broken": num_broken}

    def update(self) -> dict[str, Tensor]:
        """Update the algorithm with the collected experience. Return metrics as 0-dim tensors."""
        return self.algorithm.update(self.experience, self.progress.share)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a resumed run, between iterations.

        With several ranks, only rank 0's state is complete.
        """
        state = {"storage": self.experience.state_dict(), "env": self.env.state_dict()}
        learned = {"iteration": self.progress.iteration, "algorithm": self.algorithm.state_dict()}
        if self.ranks.size == 1:
            return learned | state
        return learned | {"shares": self.ranks.gather_on_first(map_tensors(Tensor.cpu, state))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a ``state_dict``."""
        self.progress.iteration = state["iteration"]
        self.algorithm.load_state_dict(state["algorithm"])
        shares = state.get("shares") or [{"storage": state["storage"], "env": state["env"]}]
        if len(shares) != self.ranks.size:
            # Only a reset world has a state, and redistribution needs its shapes.
            self.env.reset()
            current = {"storage": self.experience.state_dict(), "env": self.env.state_dict()}
            shares = redistribute(shares, current, self.ranks.rank, self.ranks.size)
        else:
            shares = shares[self.ranks.rank]
        self.experience.load_state_dict(shares["storage"])
        self._set_inputs(*self.env.load_state_dict(shares["env"]))

    def _set_inputs(self, obs: Tensor, state: Tensor) -> None:
        self._obs = obs
        self.experience.start(obs, state)


class RewardSums:
    """Sums over a block's valid transitions, for every reward term and the reward."""

    def __init__(self, env: VecEnv) -> None:
        self._period = env.decision_period
        self._counter = torch.ones(env.num_envs, env.num_agents, device=env.device)
        self._names: list[str] = []
        # Sums by name, then the reward's and the number of agents' valid transitions.
        self._sums: Tensor | None = None

    def add(self, step: TimeStep) -> None:
        self._names = [name for name in step.info if name.startswith("reward/")]
        named = [step.info[name] for name in self._names]
        terms = torch.stack([*named, step.reward, self._counter])  # (K, N, A)
        sums = torch.where(step.valid.unsqueeze(1), terms, 0.0).sum(dim=(1, 2))
        self._sums = sums if self._sums is None else self._sums + sums

    def merge(self, ranks: Ranks) -> None:
        """Add all ranks' sums."""
        assert self._sums is not None
        ranks.sum_(self._sums)

    def means(self) -> dict[str, Tensor]:
        """Return the means per agent and control step, by name."""
        assert self._sums is not None
        means = self._sums[:-1] / (self._sums[-1].clamp(min=1.0) * self._period)
        return dict(zip([*self._names, "reward/total"], means, strict=True))

    def num_valid(self) -> Tensor:
        """Return the number of transitions without a broken simulation."""
        assert self._sums is not None
        return self._sums[-1] / self._counter.shape[1]


class _Clock:
    """Measures lap times on the device's own clock. Only ``read`` waits for the device."""

    def __init__(self, device: torch.device) -> None:
        self._on_device = device.type != "cpu"
        self._device = device
        self._marks: list[Any] = []
        self.lap()

    def lap(self) -> None:
        if self._on_device:
            event = torch.Event(self._device, enable_timing=True)
            # Without a stream it would be recorded on the current device.
            event.record(torch.accelerator.current_stream(self._device))
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def read(self) -> list[float]:
        """Return the lap times [s]."""
        pairs = zip(self._marks, self._marks[1:], strict=False)
        if self._on_device:
            self._marks[-1].synchronize()
            return [start.elapsed_time(end) / 1e3 for start, end in pairs]
        return [end - start for start, end in pairs]
