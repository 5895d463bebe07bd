"""The environment: the order of one control step on one screen, latched endings, automatic resets,
statistics.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Any, Protocol

import torch
from torch import Tensor

from mqe.env.decision_graph import StepResult, captured_step
from mqe.env.statistics import EpisodeStatistics
from mqe.sim.simulator import Simulator
from mqe.tasks.episode_report import Report
from mqe.tasks.task import Task
from mqe.vec_env import ALL_WORLDS, Share, TimeStep
from mqe.world.broken_worlds import BrokenWorld, LastStates, Limits, num_rows
from mqe.world.randomization import Randomization, RandomizationCfg
from mqe.world.scene import DECIMATION, STEP_DT, Scene, pack_layout, read_state
from mqe.world.state import SceneState
from mqe.world.streams import Streams

# Its multiples, modulo 1, spread evenly over any run of neighbours.
GOLDEN_RATIO = (math.sqrt(5.0) - 1.0) / 2.0
_RANDOMIZATION_KEY = "nature"  # in saved states, since before the class had its name


class Watcher(Protocol):
    """Called after every step of an environment; resets are not among them."""

    def see_physics_step(self, torque: Tensor, joint_vel: Tensor) -> None:
        """See torques [N m] in a physics step and joint velocities [rad/s] at its start, (N, A,
        J).
        """
        ...

    def see_control_step(self, state: SceneState, live: Tensor) -> None:
        """See the end of a control step, before any reset; it counts in the worlds of ``live``
        (N,).
        """
        ...


class MultiAgentEnv:
    """N worlds of one task behind ``VecEnv``. No step waits for the device; ``statistics`` does."""

    def __init__(
        self,
        sim: Simulator,
        scene: Scene,
        task: Task,
        randomization: Randomization | None = None,
        report: Report | None = None,
        share: Share = ALL_WORLDS,
    ) -> None:
        """Join a simulator, its scene, a task and its randomization; call ``reset`` before
        ``step``.

        ``report`` says how metrics are summed up (None: by their means), ``share`` which of a run's
        worlds these are.
        """
        self.share = share
        self.sim = sim
        self.scene = scene
        self.task = task
        self.report = report or Report()
        self.num_envs = sim.num_envs
        self.num_agents = task.num_agents
        self.device = sim.device
        self.obs_sizes = task.obs_sizes
        self.action_sizes = task.action_sizes
        self.state_size = task.state_size
        self.state_type = task.state_type
        self.decision_period = task.decision_period
        self.step_dt = STEP_DT
        self.max_episode_length = task.max_episode_length
        self.mirror = task.mirror
        self.planar = task.planar
        n = self.num_envs
        if randomization is None:
            actions = (n, task.num_agents, max(task.action_sizes))
            randomization = Randomization(
                RandomizationCfg(),
                scene,
                actions,
                task.max_episode_length,
                Streams(0, n, sim.device),
            )
        self.randomization = randomization
        self._episode = torch.full((n,), -1, dtype=torch.int64, device=self.device)
        # Control steps into the episode.
        self._steps = torch.zeros(n, dtype=torch.int64, device=self.device)
        # Control steps before episodes count.
        self._unsettled = torch.zeros((), dtype=torch.int64, device=self.device)
        self._limits = Limits(scene, self.device)
        self._last_states: LastStates | None = None
        self._everywhere = torch.ones(n, dtype=torch.bool, device=self.device)
        self._zero = torch.zeros((), device=self.device)
        # Of the metrics, over the episode.
        self._sums = torch.zeros(n, len(task.metric_names), device=self.device)
        self._return = torch.zeros(n, device=self.device)
        names = (*task.episode_metric_names, "return")
        self._statistics = EpisodeStatistics(names, self.report.rates, n, self.device, share)
        # (N,) each: of the episodes that ended at the last step, where they did. The next step may
        # overwrite them.
        self.episode_metrics: dict[str, Tensor] = {}
        # Worlds that broke, ever.
        self.num_failed = torch.zeros((), dtype=torch.int64, device=self.device)
        self._state: SceneState | None = None
        # Plain values of the sections env and task, if it was built from any.
        self.settings: dict[str, Any] = {}
        self._resting: Tensor | None = None  # (N,) bool; None: no world does
        self._watcher: Watcher | None = None
        self._is_closed = False
        # Replay each decision as one graph; observers of single steps say no.
        self.captures = not sim.synchronous
        sim.captures = (
            False  # a second graph, of single control steps, would hold scratch memory of its own
        )
        self._captured = captured_step(self.device)
        self._captured_at = sim.generation

    def number_from(self, episode: int) -> None:
        """Set the number of every world's first episode; call it before ``reset``."""
        self._episode.fill_(episode - 1)

    @property
    def state(self) -> SceneState:
        """The scene as the tasks see it now; the next step may overwrite it."""
        if self._state is None:
            raise RuntimeError("reset() comes first")
        return self._state

    def reset(self, *, staggered: bool = False) -> tuple[Tensor, Tensor]:
        """Start a new episode in every world; return obs (N, A, O) and critic state.

        Staggered, these first episodes begin at ages spread evenly over the time limit. Statistics
        begin when it has passed once: until then these cut-off episodes end, and of whole ones only
        the short.
        """
        self.check_open()
        self._resting = None
        self.sim.resting.zero_()
        self._start_episodes(self._everywhere)
        self._unsettled.fill_(self.max_episode_length if staggered else 0)
        if staggered:
            self._steps.copy_(self._ages())
        return self._observe(self.state, self.task.memory)

    def step(self, actions: Tensor) -> TimeStep:
        """Hold ``actions`` (N, A, U) for one decision; see ``TimeStep`` for what comes back."""
        wanted = (self.num_envs, self.num_agents, max(self.action_sizes))
        self.check_open()
        if not isinstance(actions, Tensor):
            raise TypeError(
                f"actions must be a torch.Tensor, not {type(actions).__name__}; see torch.as_tensor"
            )
        if actions.dtype is torch.bool or actions.is_complex():
            raise TypeError(f"actions must be real numbers, not {actions.dtype}")
        if actions.shape != wanted:
            raise ValueError(
                f"actions must have the shape {wanted} (worlds, agents, numbers), not "
                f"{tuple(actions.shape)}"
            )
        actions = actions.detach()
        if not self.captures:
            return self._step(actions)
        if self.sim.generation != self._captured_at:
            self._captured = captured_step(self.device)
            self._captured_at = self.sim.generation
        step, self._state, self.episode_metrics = self._captured(self._decide, actions)
        return step

    def rest(self, mask: Tensor) -> None:
        """Leave the worlds of ``mask`` (N,) alone until the next ``reset``: they do not move, end
        or count.

        On a device where reading a value would have to wait, they keep running: a graph steps all
        worlds.
        """
        if self.sim.synchronous:
            self._resting = mask.clone()
            self.sim.resting.copy_(mask)

    def watch(self, watcher: Watcher) -> None:
        """Show ``watcher`` every step from now on; none is part of a graph then."""
        self._watcher = watcher
        self.captures = False

    def grow_buffers(self) -> str | None:
        """Enlarge the simulator's contact buffers if they overflowed, and return a message, or None
        if all was well.

        To be called between rollouts: it waits for the device, and the next step is captured anew.
        """
        return self.sim.grow_buffers()

    def _decide(self, actions: Tensor) -> StepResult:
        return StepResult(self._step(actions), self.state, self.episode_metrics)

    def _step(self, actions: Tensor) -> TimeStep:
        task = self.task
        sim = self.sim
        randomization = self.randomization
        if not sim.synchronous:
            # A replayed graph starts from memory, not from objects.
            self._state = read_state(sim, self.scene)
        # Engines hide an action that is no number.
        running = (actions.abs() < math.inf).flatten(1).all(dim=1)
        if self._resting is not None:
            running &= ~self._resting
        actions = actions.clamp(-1.0, 1.0)
        step_rewards = []
        ends = []
        for k in range(task.decision_period):
            if k == 0 or randomization.changes_actions:
                task.command(randomization.actions_in_force(actions, self._steps))
            targets, kicks = randomization.motor_targets(
                task.targets(self.state), self._episode, self._steps
            )
            self._disturb(kicks)
            has_failed = self._advance(targets)
            last = read_state(sim, self.scene)
            outcome = task.evaluate(last, self.state)  # before any reset
            self._state = last

            is_within_limits = (
                self._limits.are_met(last, looks_inside=k == task.decision_period - 1) & ~has_failed
            )
            if self._last_states is not None:
                self._last_states.record(last)
            live = running & is_within_limits
            if self._watcher is not None:
                self._watcher.see_control_step(last, live)
            self._steps += live
            self._sums += torch.where(live.unsqueeze(1), outcome.measures, self._zero)
            step_rewards.append(torch.where(live.unsqueeze(1), outcome.rewards, self._zero))
            timed_out = self._steps >= self.max_episode_length
            ends.append(live & torch.cat((outcome.terminations, timed_out.unsqueeze(0))))
            # Latched: the first ending counts, the rest of the decision does not.
            running = live & ~ends[-1].any(dim=0)
        if self._resting is not None:
            running |= self._resting
        rewards = reduce(torch.add, step_rewards)
        endings = reduce(torch.bitwise_or, ends)
        ended = endings.any(dim=0)
        terminated = endings[:-1].any(dim=0)
        self._unsettled -= task.decision_period
        valid = running | ended
        if self._last_states is not None:
            self._last_states.keep(valid)
        reward = rewards.sum(dim=0)
        self._return += reward.mean(dim=1)

        if sim.synchronous and bool(running.all()):
            obs, critic_state = final_obs, final_state = self._observe(last, task.memory)
        else:
            memory = task.memory.clone()
            self._record(ended, endings[:-1])
            self.num_failed += (~valid).sum()
            self._start_episodes(~running)
            # Observe the last state (where it cannot be observed, the new first one) and the first
            # together.
            is_observable = valid & is_within_limits
            rows = torch.cat(
                (torch.where(is_observable, last.rows, self.state.rows), self.state.rows), dim=1
            )
            memory = torch.cat(
                (torch.where(is_observable.unsqueeze(1), memory, task.memory), task.memory)
            )
            inputs = self._observe(last.like(rows), memory)
            (final_obs, obs), (final_state, critic_state) = (
                both.split(self.num_envs) for both in inputs
            )
        return TimeStep(
            obs,
            critic_state,
            reward,
            terminated.unsqueeze(1).expand(-1, self.num_agents),
            ended ^ terminated,
            valid,
            final_obs,
            final_state,
            {f"reward/{name}": rewards[k] for k, name in enumerate(task.reward_names)},
        )

    def record_states(self) -> None:
        """Keep the last states of every world from now on, for ``take_broken``; call it before the
        first step.
        """
        self._last_states = LastStates(num_rows(self.scene), self.num_envs, self.device)

    def take_broken(self) -> list[BrokenWorld]:
        """Return what is recorded of worlds that broke since the last call, 64 at most; waits for
        the device.
        """
        if self._last_states is None:
            return []
        taken = self._last_states.take()
        limits = Limits(self.scene, torch.device("cpu"))
        broken = []
        for world, rows in taken.items():
            cause = limits.complaint(self.state.like(rows))
            cause = cause or "the simulator gave up on it, or an action was no number"
            broken.append(BrokenWorld(self.share.first + world, cause, rows.t().numpy()))
        return broken

    def statistics(self) -> dict[str, float]:
        """Return means over the last at most 1,000 finished episodes, and ``num_episodes`` among
        them.
        """
        return self._statistics.means()

    def reset_statistics(self) -> None:
        """Forget finished episodes."""
        self._statistics.reset()

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a bit-exact resume needs."""
        self.check_open()
        return {
            "sim": self.sim.state_dict(),
            "task": self.task.state_dict(),
            "episode": self._episode.clone(),
            "steps": self._steps.clone(),
            "return": self._return.clone(),
            "num_failed": self.num_failed.clone(),
            "sums": self._sums.clone(),
            "statistics": self._statistics.state_dict(),
            "unsettled": self._unsettled.clone(),
            "forces": self.state.forces.clone(),
            _RANDOMIZATION_KEY: self.randomization.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Restore a ``state_dict``; return the obs and critic state it was saved in."""
        self.check_open()
        self.sim.load_state_dict(state["sim"])
        self.task.load_state_dict(state["task"])
        self._episode.copy_(state["episode"])
        self._steps.copy_(state["steps"])
        self._unsettled.copy_(state["unsettled"])
        self._return.copy_(state["return"])
        self.num_failed.copy_(state["num_failed"])
        self._sums.copy_(state["sums"])
        self._statistics.load_state_dict(state["statistics"])
        self._state = read_state(self.sim, self.scene)
        self._state.forces.copy_(state["forces"])
        self.randomization.load_state_dict(state[_RANDOMIZATION_KEY])
        return self._observe(self._state, self.task.memory)

    def check_open(self) -> None:
        """Raise RuntimeError if the environment is closed."""
        if self._is_closed:
            raise RuntimeError("the environment is closed; make another one")

    def close(self) -> None:
        """Free the simulator, and what was recorded of it."""
        self._captured = captured_step(self.device)
        self._is_closed = True
        self.sim.close()

    def _start_episodes(self, mask: Tensor) -> None:
        """Put the worlds of ``mask`` (N,) at the start of their next episode."""
        self._episode += mask
        self._steps.masked_fill_(mask, 0)
        self._return.masked_fill_(mask, 0.0)
        self._sums.masked_fill_(mask.unsqueeze(1), 0.0)
        self.sim.write(mask, *pack_layout(self.scene, self.task.layout(self._episode)))
        self._state = read_state(self.sim, self.scene)
        self._state.forces.masked_fill_(mask.unsqueeze(1), 0.0)
        self.task.begin(mask)
        self.randomization.begin(mask, self._episode)
        if self._last_states is not None:
            self._last_states.begin(mask)

    def _observe(self, state: SceneState, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return what agents and critic see of W worlds, W = N or 2 N, and their ``memory``."""
        obs, critic_state = self.task.observe(state, memory)
        return self.randomization.add_noise(
            obs, self._episode, self._steps, self.task.noise_scale
        ), critic_state

    def _advance(self, targets: Tensor) -> Tensor:
        """Take the physics steps of a control step, motors following ``targets`` (4, N, J); return
        what failed.
        """
        if self._watcher is None:
            self.sim.step(DECIMATION, targets)
            return self.sim.failed
        has_failed = torch.zeros_like(self.sim.failed)
        for row in targets:
            joint_vel = read_state(self.sim, self.scene).joint_vel
            self.sim.step(1, row.unsqueeze(0))
            self._watcher.see_physics_step(self.sim.actuator_force.view_as(joint_vel), joint_vel)
            has_failed |= self.sim.failed
        return has_failed

    def _disturb(self, kicks: Tensor | None) -> None:
        disturbance = self.task.disturb(self._steps)
        for i, body in enumerate(self.scene.trunk_bodies):
            start = self.scene.robot_qvel // self.scene.num_robots * i
            velocity = self.sim.qvel[:, start : start + 3]
            if kicks is not None:
                velocity.add_(kicks[:, i])
            if disturbance is not None:
                velocity.add_(disturbance.velocity[:, i])
                self.sim.xfrc_applied[:, body, :3].copy_(disturbance.force[:, i])

    def _record(self, ended: Tensor, endings: Tensor) -> None:
        metrics = self.task.episode_metrics(self._sums, self._steps, endings)
        metrics = torch.cat((metrics, self._return.unsqueeze(1)), dim=1)
        self.episode_metrics = dict(zip(self._statistics.names, metrics.unbind(dim=1), strict=True))
        self._statistics.record(ended & (self._unsettled <= 0), metrics)

    def _ages(self) -> Tensor:
        """Return control steps (N,) in whole decisions, from 0 to just below the time limit."""
        decisions = self.max_episode_length // self.decision_period
        first = self.share.first
        world = torch.arange(first, first + self.num_envs, dtype=torch.float64, device=self.device)
        return (world * GOLDEN_RATIO % 1.0 * decisions).to(torch.int64) * self.decision_period
