"""The environment: the order of one control step on one screen, latched endings, automatic resets, statistics."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from mqe.capture import CapturedStep
from mqe.scene import DECIMATION, STEP_DT, Scene, pack_layout, read_state
from mqe.sim.base import Simulator
from mqe.state import SceneState
from mqe.statistics import EpisodeStatistics
from mqe.task import Task
from mqe.vec_env import TimeStep

SPEED_LIMIT = 1e3  # [m/s, rad/s] a generalised velocity beyond this is a simulation that blew up


class MultiAgentEnv:
    """N worlds of one task behind ``VecEnv``. No step waits for the device; ``statistics`` does."""

    def __init__(self, sim: Simulator, scene: Scene, task: Task) -> None:
        """Join a simulator of ``scene`` and a task; call ``reset`` before the first ``step``."""
        self.sim, self.scene, self.task = sim, scene, task
        self.num_envs, self.num_agents, self.device = sim.num_envs, task.num_agents, sim.device
        self.obs_sizes, self.action_sizes = task.obs_sizes, task.action_sizes
        self.state_size, self.state_type = task.state_size, task.state_type
        self.decision_period, self.step_dt = task.decision_period, STEP_DT
        self.max_episode_length = task.max_episode_length
        n = self.num_envs
        self._episode = torch.full((n,), -1, dtype=torch.int64, device=self.device)
        self._steps = torch.zeros(n, dtype=torch.int64, device=self.device)  # control steps into the episode
        self._everywhere = torch.ones(n, dtype=torch.bool, device=self.device)
        self._return = torch.zeros(n, device=self.device)
        self._metrics: Tensor | None = None  # (N, M) sums over the episode, side by side
        self._metric_shapes: dict[str, tuple[int, ...]] = {}  # of one world: () or (A,)
        self._statistics: EpisodeStatistics | None = None
        self.figures: dict[str, Tensor] = {}  # (N,) each: of the episodes that ended at the last step, where they did
        self.num_failed = torch.zeros((), dtype=torch.int64, device=self.device)  # worlds that broke, ever
        self._state: SceneState | None = None
        self.captures = not sim.synchronous  # replay each decision as one graph; observers of single steps say no
        sim.captures = False  # a second graph, of single control steps, would hold scratch memory of its own
        self._captured = CapturedStep(self._step)

    @property
    def state(self) -> SceneState:
        """The scene as the tasks see it now."""
        assert self._state is not None, "reset() comes first"
        return self._state

    def reset(self) -> tuple[Tensor, Tensor]:
        """Start a new episode in every world; return obs (N, A, O) and critic state."""
        self._start_episodes(self._everywhere)
        return self.task.observe(self.state)

    def step(self, actions: Tensor) -> TimeStep:
        """Hold ``actions`` (N, A, U) for one decision; see ``TimeStep`` for what comes back."""
        return self._captured(actions) if self.captures else self._step(actions)

    def maintain(self) -> str | None:
        """Repair what only a pause between rollouts allows; say what was done, or None. Waits for the device.

        Contact buffers that overflowed grow, and the step is captured anew.
        """
        note = self.sim.grow()
        if note is not None:
            self._state = read_state(self.sim, self.scene)
            self._captured = CapturedStep(self._step)
        return note

    def _step(self, actions: Tensor) -> TimeStep:
        task = self.task
        if not self.sim.synchronous:
            self._state = read_state(self.sim, self.scene)  # a replayed graph starts from memory, not from objects
        task.command(actions.clamp(-1.0, 1.0))
        ended = torch.zeros_like(self._everywhere)
        broken = torch.zeros_like(self._everywhere)
        truncated = torch.zeros_like(self._everywhere)
        endings: dict[str, Tensor] = {}
        rewards: Tensor | None = None
        names: list[str] = []
        for _ in range(task.decision_period):
            self._disturb()
            self.sim.ctrl.copy_(task.targets(self.state).flatten(1))
            self.sim.step(DECIMATION)
            state = read_state(self.sim, self.scene)
            outcome = task.evaluate(state, self.state)  # before any reset
            self._state = state

            broken = broken | ~ended & self._broken()
            live = ~(ended | broken)
            names = list(outcome.rewards)
            terms = torch.where(live.view(1, -1, 1), torch.stack(list(outcome.rewards.values())), 0.0)
            rewards = terms if rewards is None else rewards + terms
            self._add_metrics(live, outcome.metrics)
            self._steps += live
            endings = {
                name: endings.get(name, False) | (now & live) for name, now in outcome.terminations.items()
            }  # latched: the first ending counts, the rest of the decision does not
            terminated = torch.stack(list(endings.values())).any(dim=0)
            truncated = truncated | (live & (self._steps >= self.max_episode_length) & ~terminated)
            ended = ended | terminated | truncated
        assert rewards is not None
        terminated = ended & ~truncated
        done = ended | broken
        reward = rewards.sum(dim=0)
        self._return += reward.mean(dim=1)
        obs, critic_state = final_obs, final_state = task.observe(self.state)
        if not self.sim.synchronous or bool(done.any()):
            self._record(ended & ~broken, endings)
            self.num_failed += broken.sum()
            self._start_episodes(done)
            obs, critic_state = task.observe(self.state)
            final_obs = torch.where(broken.view(-1, 1, 1), obs, final_obs)
            broken_rows = broken.view(-1, *[1] * (critic_state.dim() - 1))
            final_state = torch.where(broken_rows, critic_state, final_state)
        return TimeStep(
            obs, critic_state, reward, terminated.unsqueeze(1).expand(-1, self.num_agents), truncated, ~broken,
            final_obs, final_state, {f"reward/{name}": rewards[k] for k, name in enumerate(names)},
        )  # fmt: skip

    def statistics(self) -> dict[str, float]:
        """Means over the last at most 1,000 finished episodes, and ``num_episodes`` among them."""
        return {"num_episodes": 0} if self._statistics is None else self._statistics.means()

    def reset_statistics(self) -> None:
        """Forget finished episodes."""
        if self._statistics is not None:
            self._statistics.reset()

    def state_dict(self) -> dict[str, Any]:
        """Everything that a bit-exact resume needs."""
        assert self._metrics is not None or int(self._steps.max()) == 0
        return {
            "sim": self.sim.state_dict(), "task": self.task.state_dict(), "episode": self._episode.clone(),
            "steps": self._steps.clone(), "return": self._return.clone(), "num_failed": self.num_failed.clone(),
            "metrics": None if self._metrics is None else self._metrics.clone(),
            "metric_shapes": dict(self._metric_shapes),
            "statistics": None if self._statistics is None else self._statistics.state_dict(),
            "statistics_names": None if self._statistics is None else list(self._statistics.names),
            "contact_force": self.state.contact_force.clone(),
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Go on from ``state_dict``; return the obs and critic state it stood at."""
        self.sim.load_state_dict(state["sim"])
        self.task.load_state_dict(state["task"])
        self._episode.copy_(state["episode"])
        self._steps.copy_(state["steps"])
        self._return.copy_(state["return"])
        self.num_failed.copy_(state["num_failed"])
        self._metrics = None if state["metrics"] is None else state["metrics"].to(self.device).clone()
        self._metric_shapes = dict(state["metric_shapes"])
        if state["statistics"] is not None:
            self._statistics = EpisodeStatistics(tuple(state["statistics_names"]), self.device)
            self._statistics.load_state_dict(state["statistics"])
        self._state = read_state(self.sim, self.scene)
        self._state.contact_force = state["contact_force"].to(self.device).clone()
        return self.task.observe(self.state)

    def close(self) -> None:
        """Free the simulator."""
        self.sim.close()

    def _start_episodes(self, mask: Tensor) -> None:
        """Put the worlds of ``mask`` (N,) at the start of their next episode."""
        self._episode += mask
        self._steps.masked_fill_(mask, 0)
        self._return.masked_fill_(mask, 0.0)
        if self._metrics is not None:
            self._metrics.masked_fill_(mask.unsqueeze(1), 0.0)
        self.sim.write(mask, *pack_layout(self.scene, self.task.layout(self._episode)))
        state = read_state(self.sim, self.scene)
        state.contact_force = state.contact_force.masked_fill(mask.view(-1, 1, 1), 0.0)
        self._state = state
        self.task.begin(mask, state)

    def _disturb(self) -> None:
        disturbance = self.task.disturb(self._steps)
        if disturbance is None:
            return
        for i, body in enumerate(self.scene.trunk_bodies):
            start = self.scene.robot_qvel // self.scene.num_robots * i
            self.sim.qvel[:, start : start + 3] += disturbance.velocity[:, i]
            self.sim.xfrc_applied[:, body, :3] = disturbance.force[:, i].to(self.sim.xfrc_applied.dtype)

    def _broken(self) -> Tensor:
        """(N,) bool: the engine gave up on the world, or its numbers are no longer finite or sane."""
        seen = torch.cat((self.sim.qpos, self.sim.sensordata), dim=1)  # contact forces are paid for: one NaN spoils all
        sane = torch.isfinite(seen).all(dim=1) & (self.sim.qvel.abs() < SPEED_LIMIT).all(dim=1)
        return self.sim.failed | ~sane

    def _add_metrics(self, live: Tensor, metrics: dict[str, Tensor]) -> None:
        values = torch.cat([value.reshape(self.num_envs, -1) for value in metrics.values()], dim=1)
        if self._metrics is None:
            self._metrics = torch.zeros_like(values)
            self._metric_shapes = {name: tuple(value.shape[1:]) for name, value in metrics.items()}
        self._metrics += torch.where(live.unsqueeze(1), values, 0.0)

    def _record(self, finished: Tensor, endings: dict[str, Tensor]) -> None:
        assert self._metrics is not None
        widths = [math.prod(shape) for shape in self._metric_shapes.values()]
        columns = self._metrics.split(widths, dim=1)
        sums = {
            name: column.reshape(-1, *shape)
            for (name, shape), column in zip(self._metric_shapes.items(), columns, strict=True)
        }
        figures = self.task.episode_metrics(sums, self._steps, endings) | {"return": self._return.clone()}
        self.figures = figures
        if self._statistics is None:
            self._statistics = EpisodeStatistics(tuple(figures), self.device)
        self._statistics.record(finished, figures)
