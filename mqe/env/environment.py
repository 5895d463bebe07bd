"""The environment: order of a decision, terminations, automatic resets and statistics.

A decision is held for one or more control steps. Its masks, (N,) bool each:

=============  =====================================================================================
paused         the caller has put the world aside until the next ``reset``
running        since the decision began, the world has neither ended nor broken, and is not paused
is_in_limits   at this control step, the simulator reports no error and no number is impossible
live           the control step counts: the world was running and is still within its limits
terminated     the task ended the episode at this decision (the first reason counts)
timed_out      the episode has reached its time limit at this control step
truncated      the time limit alone ended the episode at this decision
ended          the episode was terminated or truncated at this decision
valid          the world did not break at this decision: it is running, or its episode ended
is_observable  the decision's last state can be observed: valid, and within its limits
=============  =====================================================================================

A world not running at the end of a decision begins its next episode.
"""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mqe.config import ConfigError
from mqe.env.decision_graph import StepResult, captured_step
from mqe.env.observer import Observer, PhysicsStep
from mqe.env.statistics import EpisodeStatistics
from mqe.notices import note
from mqe.resumable import restore, states
from mqe.sim.simulator import GraphSupport, Simulator
from mqe.tasks.episode_report import Report
from mqe.tasks.task import Outcome, Task
from mqe.vec_env import ALL_WORLDS, Share, TimeStep
from mqe.world.broken_worlds import BrokenWorldRecorder, Limits
from mqe.world.randomization import Randomization
from mqe.world.scene import STEP_DT, Scene, pack_layout, read_state, turn_obstacles
from mqe.world.state import SceneState, overwrite

# Its multiples, modulo 1, spread evenly over any run of neighbours.
GOLDEN_RATIO = (math.sqrt(5.0) - 1.0) / 2.0


class _Decision(NamedTuple):
    """The control steps of one decision, before any reset. E are the task's terminations."""

    last: SceneState  # after the last control step
    rewards: Tensor  # (K, N, A) summed over the control steps that count
    ends: Tensor  # (E + 1, N) bool reasons for which the episode ended; the last is the time limit
    running: Tensor  # (N,) bool after the last control step
    is_in_limits: Tensor  # (N,) bool at the last control step


class MultiAgentEnv:
    """N worlds with one task behind ``VecEnv``. Only ``statistics`` waits for the device."""

    def __init__(
        self,
        sim: Simulator,
        scene: Scene,
        task: Task,
        randomization: Randomization,
        report: Report,
        share: Share = ALL_WORLDS,
        first_episode: int = 0,
        settings: dict[str, Any] | None = None,
    ) -> None:
        """Join a simulator, its scene, a task and its randomization. Call ``reset`` before
        ``step``.

        ``report`` sums metrics up. ``share`` is the range of these worlds in the
        run. ``first_episode`` is the number of every world's first episode. ``settings`` are the
        plain values for the sections ``env`` and ``task``, if any.
        """
        self.sim = sim
        self.scene = scene
        self.task = task
        sim_features = sim.features
        features = task.features
        self.report = report
        self.share = share
        self.settings = settings or {}
        self.num_envs = sim.num_envs
        self.num_agents = task.spec.num_agents
        self.device = sim.device
        self.spec = task.spec
        self.decision_period = task.decision_period
        self.step_dt = STEP_DT
        self.max_episode_length = task.max_episode_length
        n = self.num_envs
        self._actions_shape = (n, self.num_agents, self.spec.action_size)
        self.randomization = randomization
        if randomization.has_losses and features.excuse_robots is not None:
            features.excuse_robots(randomization.is_out, randomization.is_away)

        # Of the task's optional parts.
        memory = features.memory
        if memory is None:
            memory = torch.zeros(n, 0, device=self.device)
        self._memory = memory
        noise_scale = features.noise_scale
        if noise_scale is None:
            noise_scale = torch.ones(self.spec.obs_size, device=self.device)
        self._noise_scale = noise_scale
        self._features = features

        # State of the present episodes
        self._state: SceneState | None = None
        self._episode = torch.full((n,), first_episode - 1, dtype=torch.int64, device=self.device)
        self._steps = torch.zeros(n, dtype=torch.int64, device=self.device)  # control steps
        # Observations (N, A, O) behind the coming decision, for the task's limit alone
        obs_size = 0 if features.limit is None else self.spec.obs_size
        self._obs = torch.zeros(n, self.num_agents, obs_size, device=self.device)
        self._sums = torch.zeros(n, len(task.names.measures), device=self.device)  # of the metrics
        self._return = torch.zeros(n, device=self.device)

        # Metrics (N,) of the episodes that ended at the last step, undefined for other worlds. The
        # next step may overwrite them.
        self.episode_metrics: dict[str, Tensor] = {}
        names = (*task.names.metrics, "return")
        self._statistics = EpisodeStatistics(names, self.report.rates, n, self.device, share)
        # Control steps before episodes count.
        self._unsettled = torch.zeros((), dtype=torch.int64, device=self.device)

        # Of broken worlds.
        self.num_failed = torch.zeros((), dtype=torch.int64, device=self.device)  # ever
        self._limits = Limits(scene, self.device)
        self._recorder: BrokenWorldRecorder | None = None

        self._everywhere = torch.ones(n, dtype=torch.bool, device=self.device)
        self._paused: Tensor | None = None  # (N,) bool; None: no world is
        self._observers: tuple[Observer, ...] = ()
        self._is_closed = False

        # (N,) bool, for ``pause`` to set; a simulator that cannot leave worlds alone steps them.
        resting = sim_features.resting
        if resting is None:
            resting = torch.zeros(n, dtype=torch.bool, device=self.device)
        self.resting = resting
        self._grow_buffers = sim_features.grow_buffers

        # Whether each decision is captured and replayed as one CUDA graph.
        self.use_graphs = sim_features.graphs is not None
        self._graphs = sim_features.graphs or GraphSupport()
        # Whether reading a value costs no wait, so that branching on one is free.
        self.is_synchronous = sim_features.graphs is None
        self._graph = captured_step(self.device)
        self._graph_generation = self._graphs.generation
        self._process = os.getpid()

    @property
    def state(self) -> SceneState:
        """The present scene for tasks. The next step may overwrite it."""
        if self._state is None:
            raise RuntimeError("reset() comes first")
        return self._state

    def reset(self, *, staggered: bool = False) -> tuple[Tensor, Tensor]:
        """Start a new episode in every world. Return obs (N, A, O) and critic state.

        Staggered, these first episodes begin at ages spread evenly over the time limit. Statistics
        begin after one whole time limit: until then only these cut-off episodes and short whole
        episodes end.
        """
        self.check_open()
        self._paused = None
        self.resting.zero_()
        self._start_episodes(self._everywhere)
        self._unsettled.fill_(self.max_episode_length if staggered else 0)
        if staggered:
            self._steps.copy_(self._ages())
        return self._observe(self.state, self._memory)

    def restart(self, mask: Tensor, was_reset: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Start a new episode in the worlds ``mask`` (N,) bool. Return all worlds' obs (N, A, O)
        and critic state.

        An episode not yet begun stays, since the last step has reset its world already. But worlds
        of ``was_reset`` (N,) bool, which the caller has reset since, draw another one. Episodes cut
        off here do not enter the statistics. Call ``reset`` before.
        """
        self.check_open()
        has_begun = self._steps > 0
        if was_reset is not None:
            has_begun |= was_reset
        mask = mask & has_begun
        forces = self.state.forces.masked_fill(mask.unsqueeze(1), 0.0)
        self._start_episodes(mask)
        self.state.forces.copy_(forces)
        return self._observe(self.state, self._memory)

    def set_goal(self, goal: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Move the goals in the worlds ``mask`` (N,), by default in all. Return obs (N, A, O) and
        critic state.

        ``goal`` is x and y (N, 2) [m], or x, y and heading (N, 3) [m, m, rad], world frame.

        In the push task the present episode's goal moves. A heading needs ``task.goal_heading`` and
        holds until the episode ends. (N, 2) leaves the heading unchanged. In the navigation task
        ``goal`` replaces the planner's sub-goal in the coming decision. Call this after ``reset``,
        between two decisions. Raises ConfigError if the task has no goal, or goals without a
        heading, and ValueError for a goal with infinite or undefined values. A device ahead of
        the host does not check values: such a goal shows in the observations.
        """
        self.check_open()
        features = self._features
        if features.set_goal is None:
            raise ConfigError("set_goal: this task has no goal; go1push_mid has one")
        shapes = ((self.num_envs, 2), (self.num_envs, 3))
        if not isinstance(goal, Tensor) or goal.shape not in shapes:
            given = tuple(goal.shape) if isinstance(goal, Tensor) else repr(goal)
            raise ValueError(
                f"goal must be a tensor of the shape {shapes[0]} (worlds, x and y) or {shapes[1]} "
                f"(x, y and heading), not {given}"
            )
        has_heading = goal.shape[1] == 3
        if has_heading and features.set_goal_heading is None:
            raise ConfigError(
                "set_goal: goals of this task have no heading; in go1push_mid say "
                "task.goal_heading=0, or give only x and y"
            )
        if mask is None:
            mask = self._everywhere
        if mask.dtype != torch.bool or mask.shape != (self.num_envs,):
            raise ValueError(
                f"mask must be {self.num_envs} booleans, not {tuple(mask.shape)} of {mask.dtype}"
            )
        if self.is_synchronous and not bool((goal.isfinite().all(dim=1) | ~mask).all()):
            raise ValueError("goal must be finite in every world of mask")
        state = self.state
        goal = goal.detach()
        if has_heading:
            assert features.set_goal_heading is not None
            features.set_goal_heading(goal[:, 2], mask)
        target = goal[:, :2]
        if features.set_goal(target, mask):
            goal_pos = self.sim.data.mocap_pos[:, 0, :2]
            overwrite(goal_pos, mask, target)
            # The next step compares with this state, so no reward counts the goal's own way.
            self._state = state.like(state.rows.clone())
            self._state.goal_pos[:, :2].copy_(goal_pos)
        return self._observe(self.state, self._memory)

    def step(self, actions: Tensor) -> TimeStep:
        """Hold ``actions`` (N, A, U) for one decision. Return a ``TimeStep``."""
        self.check_open()
        self._check_actions(actions)
        actions = actions.detach()
        if self._observers or not self.use_graphs:
            return self._step(actions)
        if self._graphs.generation != self._graph_generation:
            self._graph = captured_step(self.device)
            self._graph_generation = self._graphs.generation
        step, self._state, self.episode_metrics = self._graph(self._step_result, actions)
        return step

    def pause(self, mask: Tensor) -> None:
        """Put the worlds ``mask`` (N,) aside until the next ``reset``: paused worlds do not move,
        end or count.

        If reading a value would make the host wait, the worlds keep running: a graph steps all
        worlds.
        """
        if self.is_synchronous:
            self._paused = mask.clone()
            self.resting.copy_(mask)

    @contextmanager
    def observed_by(self, *observers: Observer) -> Iterator[None]:
        """Context manager: call the hooks of ``observers``, and no others."""
        assert not self._observers
        self._observers = observers
        try:
            yield
        finally:
            self._observers = ()

    def record_broken_worlds(self) -> BrokenWorldRecorder:
        """Record the causes of broken worlds from now on, for ``grow_buffers``. Return the
        recorder. Call this before the first step.
        """
        self._recorder = BrokenWorldRecorder(
            self.scene, self.num_envs, self.device, self.share.first
        )
        return self._recorder

    def grow_buffers(self) -> str | None:
        """Enlarge the simulator's overflowed contact buffers. Return a message about them and about
        a recorded broken world, or None.

        Call this between rollouts: it waits for the device, and the next step is captured anew.
        """
        cause = None if self._recorder is None else self._recorder.take_cause()
        growth = None if self._grow_buffers is None else self._grow_buffers()
        return "; ".join(filter(None, (cause, growth))) or None

    def statistics(self) -> dict[str, float]:
        """Return means over the last at most 1,000 finished episodes, and ``num_episodes`` among
        them.
        """
        return self._statistics.means()

    def reset_statistics(self) -> None:
        """Remove the statistics of finished episodes."""
        self._statistics.reset()

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state for a bit-exact resume."""
        self.check_open()
        return states(self._parts() | {"forces": self.state.forces})

    def load_state_dict(self, state: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Restore a ``state_dict``. Return its obs and critic state."""
        self.check_open()
        parts = self._parts()
        if state["sums"].shape[1] != self._sums.shape[1]:
            note("the saved state is older and has other metrics, whose statistics begin anew")
            del parts["sums"], parts["statistics"]
        restore(parts, state)
        self._state = read_state(self.sim, self.scene)
        self._state.forces.copy_(state["forces"])
        return self._observe(self._state, self._memory)

    def _parts(self) -> dict[str, Any]:
        """Return the parts of the state besides the contact forces."""
        return {
            "sim": self.sim,
            "task": self._features.stateful or {},
            "episode": self._episode,
            "steps": self._steps,
            "return": self._return,
            "num_failed": self.num_failed,
            "sums": self._sums,
            "statistics": self._statistics,
            "unsettled": self._unsettled,
            "randomization": self.randomization,
        }

    def check_open(self) -> None:
        """Raise RuntimeError if the environment is closed, or was made before a fork.

        Threads and GPU contexts of a simulator do not survive a fork; a step would hang.
        """
        if self._is_closed:
            raise RuntimeError("the environment is closed; make another one")
        if self._process != os.getpid():
            raise RuntimeError(
                f"these worlds belong to process {self._process}, and this is its fork "
                f"{os.getpid()}; make the environment in the process that steps it"
            )

    def close(self) -> None:
        """Free the simulator and its captured graph."""
        self._graph = captured_step(self.device)
        self._is_closed = True
        self.sim.close()

    def _check_actions(self, actions: Tensor) -> None:
        if not isinstance(actions, Tensor):
            raise TypeError(
                f"actions must be a torch.Tensor, not {type(actions).__name__}; see torch.as_tensor"
            )
        if actions.dtype is torch.bool or actions.is_complex():
            raise TypeError(f"actions must be real numbers, not {actions.dtype}")
        if actions.shape != self._actions_shape:
            raise ValueError(
                f"actions must have the shape {self._actions_shape} (worlds, agents, action "
                f"components), not {tuple(actions.shape)}"
            )

    def _step_result(self, actions: Tensor) -> StepResult:
        return StepResult(self._step(actions), self.state, self.episode_metrics)

    def _step(self, actions: Tensor) -> TimeStep:
        """Take one decision."""
        if not self.is_synchronous:
            # A replayed graph starts from memory, not from objects.
            self._state = read_state(self.sim, self.scene)
        decision = self._take_control_steps(actions)

        ended = decision.ends.any(dim=0)
        terminated = decision.ends[:-1].any(dim=0)
        self._unsettled -= self.task.decision_period
        valid = decision.running | ended
        if self._recorder is not None:
            self._recorder.keep(valid)
        reward = decision.rewards.sum(dim=0)
        self._return += reward.mean(dim=1)

        if self.is_synchronous and bool(decision.running.all()):
            final_obs, final_state = self._observe(decision.last, self._memory)
            obs = final_obs
            state = final_state
        else:
            final_obs, final_state, obs, state = self._restart(decision, ended, valid)
        return TimeStep(
            obs=obs,
            state=state,
            reward=reward,
            terminated=terminated.unsqueeze(1).expand(-1, self.num_agents),
            truncated=ended ^ terminated,
            valid=valid,
            final_obs=final_obs,
            final_state=final_state,
            info={
                f"reward/{name}": decision.rewards[k]
                for k, name in enumerate(self.task.names.rewards)
            },
        )

    def _take_control_steps(self, actions: Tensor) -> _Decision:
        """Hold ``actions`` for the control steps of one decision."""
        # Simulators hide an action that is not a number.
        running = (actions.abs() < math.inf).flatten(1).all(dim=1)
        if self._paused is not None:
            running &= ~self._paused
        actions = actions.clamp(-1.0, 1.0)
        if self._features.limit is not None:
            actions = self._features.limit(actions, self._obs)
        step_rewards: list[Tensor] = []
        step_ends: list[Tensor] = []
        for k in range(self.task.decision_period):
            if k == 0 or self.randomization.changes_actions:
                self.task.command(self.randomization.actions_in_force(actions, self._steps))
            has_failed = self._simulate()
            last = read_state(self.sim, self.scene)
            outcome = self.task.evaluate(last, self.state)  # before any reset
            self._state = last

            # The last control step is also checked for robots inside the object.
            is_last = k == self.task.decision_period - 1
            is_in_limits = self._limits.are_met(last, looks_inside=is_last) & ~has_failed
            live = running & is_in_limits
            if self._recorder is not None:
                self._recorder.record(last, is_in_limits | ~running)
            for observer in self._observers:
                observer.on_control_step(last, live)

            rewards, ends = self._count(outcome, live)
            step_rewards.append(rewards)
            step_ends.append(ends)
            # The first ending counts, and the rest of the decision does not.
            running = live & ~ends.any(dim=0)
        if self._paused is not None:
            running |= self._paused
        return _Decision(
            last=last,
            rewards=reduce(torch.add, step_rewards),
            ends=reduce(torch.bitwise_or, step_ends),
            running=running,
            is_in_limits=is_in_limits,
        )

    def _simulate(self) -> Tensor:
        """Simulate one control step. Return a mask (N,) of failed worlds."""
        targets = self.task.targets(self.state)
        if self.randomization.has_losses:
            joint_pos = self.state.joint_pos
            targets = self.randomization.without_power(targets, joint_pos, self._steps)
        targets, velocity_kicks = self.randomization.motor_targets(
            targets, self._episode, self._steps
        )
        self._disturb(velocity_kicks)
        if self.randomization.has_moving_goals:
            way = STEP_DT * self.randomization.goal_velocity()
            self.sim.data.mocap_pos[:, 0, :2].add_(way.masked_fill(self.resting.unsqueeze(1), 0.0))
        if self._features.marker is not None:
            self.sim.data.mocap_pos[:, -1, :2].copy_(self._features.marker)
        if not any(observer.needs_physics_steps for observer in self._observers):
            self.sim.step(len(targets), targets)
            return self.sim.data.failed
        return self._take_physics_steps(targets)

    def _take_physics_steps(self, targets: Tensor) -> Tensor:
        """Take the physics steps of a control step one by one, with motor targets (4, N, J)
        [rad].
        """
        has_failed = torch.zeros_like(self.sim.data.failed)
        for row in targets:
            before = read_state(self.sim, self.scene)
            self.sim.step(1, row.unsqueeze(0))
            step = PhysicsStep(before, self.sim)
            for observer in self._observers:
                observer.on_physics_step(step)
            has_failed |= self.sim.data.failed
        return has_failed

    def _disturb(self, velocity_kicks: Tensor | None) -> None:
        """Change the trunks' velocities by kicks (N, A, 3) [m/s], and by the task's disturbance."""
        disturbance = None
        if self._features.disturb is not None:
            disturbance = self._features.disturb(self._steps)
        if velocity_kicks is None and disturbance is None:
            return

        for i, body in enumerate(self.scene.trunk_bodies):
            start = self.scene.robot_qvel // self.scene.num_robots * i
            velocity = self.sim.data.qvel[:, start : start + 3]
            if velocity_kicks is not None:
                velocity.add_(velocity_kicks[:, i])
            if disturbance is not None:
                velocity.add_(disturbance.velocity[:, i])
                self.sim.data.xfrc_applied[:, body, :3].copy_(disturbance.force[:, i])

    def _count(self, outcome: Outcome, live: Tensor) -> tuple[Tensor, Tensor]:
        """Add a control step in ``live`` worlds. Return its rewards (K, N, A) and ends (E +
        1, N).
        """
        self._steps += live
        self._sums += torch.where(live.unsqueeze(1), outcome.measures, 0.0)
        rewards = torch.where(live.unsqueeze(1), outcome.rewards, 0.0)
        timed_out = self._steps >= self.max_episode_length
        ends = live & torch.cat((outcome.terminations, timed_out.unsqueeze(0)))
        return rewards, ends

    def _restart(
        self, decision: _Decision, ended: Tensor, valid: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Begin new episodes in stopped worlds. Return last obs and critic state, then present
        ones.

        The last state and the present one are observed together. If the last one cannot be
        observed, the present one takes its place.
        """
        last = decision.last
        last_memory = self._memory.clone()
        self._record_episodes(ended, decision.ends[:-1])
        self.num_failed += (~valid).sum()
        self._start_episodes(~decision.running)

        is_observable = valid & decision.is_in_limits
        last_rows = torch.where(is_observable, last.rows, self.state.rows)
        rows = torch.cat((last_rows, self.state.rows), dim=1)
        last_memory = torch.where(is_observable.unsqueeze(1), last_memory, self._memory)
        memory = torch.cat((last_memory, self._memory))
        both_obs, both_states = self._observe(last.like(rows), memory)
        final_obs, obs = both_obs.split(self.num_envs)
        final_state, state = both_states.split(self.num_envs)
        return final_obs, final_state, obs, state

    def _record_episodes(self, ended: Tensor, terminations: Tensor) -> None:
        """Add the episodes of ``ended`` (N,) to the statistics."""
        metrics = self.task.episode_metrics(self._sums, self._steps, terminations)
        metrics = torch.cat((metrics, self._return.unsqueeze(1)), dim=1)
        self.episode_metrics = dict(zip(self._statistics.names, metrics.unbind(dim=1), strict=True))
        self._statistics.record(ended & (self._unsettled <= 0), metrics)

    def _start_episodes(self, mask: Tensor) -> None:
        """Begin the next episode in the worlds ``mask`` (N,)."""
        self._episode += mask
        self._steps.masked_fill_(mask, 0)
        self._return.masked_fill_(mask, 0.0)
        self._sums.masked_fill_(mask.unsqueeze(1), 0.0)
        self.randomization.begin(mask, self._episode)
        layout = self.randomization.placed(self.task.layout(self._episode))
        self.sim.write(mask, *pack_layout(self.scene, layout))
        turn_obstacles(self.sim, self.scene, layout, mask)
        self._state = read_state(self.sim, self.scene)
        self._state.forces.masked_fill_(mask.unsqueeze(1), 0.0)
        self.task.begin(mask)

    def _observe(self, state: SceneState, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return obs and critic state for W worlds and their ``memory``. W is N or 2 N."""
        obs, critic_state = self.task.observe(state, memory)
        if self.randomization.has_bias:
            obs = self.task.observe(self.randomization.biased(state), memory)[0]
        obs = self.randomization.add_noise(
            obs,
            self._episode,
            self._steps,
            self._noise_scale,
            spares_zeros=self._features.zeros_are_missing,
        )
        if self._features.limit is not None:
            self._obs.copy_(obs[-self.num_envs :])  # the present worlds come last
        return obs, critic_state

    def _ages(self) -> Tensor:
        """Return control steps (N,) in whole decisions, from 0 to just below the time limit."""
        decisions = self.max_episode_length // self.decision_period
        first = self.share.first
        world = torch.arange(first, first + self.num_envs, dtype=torch.float64, device=self.device)
        return (world * GOLDEN_RATIO % 1.0 * decisions).to(torch.int64) * self.decision_period
