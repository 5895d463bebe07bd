"""Player for episodes at a chosen speed. It shows one world."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import mujoco
import numpy as np
import torch
from torch import Tensor

from mqe.env.environment import MultiAgentEnv
from mqe.env.observer import Observer
from mqe.sim.simulator import snapshot
from mqe.vec_env import TimeStep
from mqe.viewer.recording import outcome_words
from mqe.world.state import SceneState

HOLD_S = 1.0  # [s] duration of an episode's last picture
_LATE = 0.25  # [s] behind its own clock the player gives up to catch up
_NAP = 0.01  # [s] between two looks at the controls
_TRAIL_S = 0.1  # [s] between two points of the object's trail


@dataclass
class Controls:
    """Requests by the viewer's user, written by any thread."""

    is_paused: bool = False
    num_steps: int = 0  # single control steps asked for while paused
    speed: float = 1.0  # times real time
    is_next: bool = False  # leave this episode for the next
    policy: str = ""  # name of the acting policy
    world: int = 0  # number of the shown world
    command: tuple[float, float, float] | None = (
        None  # a gait's velocity command; None: those of its training
    )
    is_closed: bool = False


class Player(Observer):
    """Plays episodes in N worlds, and stores the shown world's displayed quantities."""

    def __init__(
        self,
        env: MultiAgentEnv,
        policies: Mapping[str, Callable[[], Callable[[Tensor], Tensor]]],
        action_scale: tuple[float, ...] | None = None,
        num_episodes: float = math.inf,
    ) -> None:
        """Play ``num_episodes`` in the worlds of ``env`` and show one world.

        ``policies`` are factories by name. The first policy acts first. Actions times
        ``action_scale`` are the displayed velocity commands, None for no display.
        """
        self.env = env
        self.policies = policies
        self.controls = Controls(policy=next(iter(policies)))
        self.num_episodes = num_episodes
        self.world = 0  # number of the shown world
        self.outcomes: list[str] = []  # of all worlds, in order of the episodes' ends
        self.note = ""  # the last episode's outcome, or an error
        self.commands: list[list[float]] = []  # of every robot: vx, vy [m/s], yaw rate [rad/s]
        # Times [s] and object to goal [m].
        self.distance: tuple[list[float], list[float]] = (
            [],
            [],
        )
        # Times [s] and terms a decision.
        self.rewards: tuple[list[float], dict[str, list[float]]] = (
            [],
            {},
        )
        # [N s] each robot's impulse on the object towards the goal, since the same moment.
        self.useful_impulse: list[float] = []
        # Positions (3,) [m] of the object's origin since the episode began, or the world is shown.
        self.trail: list[np.ndarray] = []
        # The object's next planned positions (P, 2) [m], in a task with a planner
        self.way: list[list[float]] = []
        features = env.task.features
        self._steer_task = features.steer
        self._planned_way = features.planned_way
        self.can_steer = features.steer is not None
        self.robots = [f"robot{i}/trunk" for i in range(env.scene.num_robots)]
        self._scale = None if action_scale is None else torch.tensor(action_scale)
        self._episodes = [0] * env.num_envs  # of every world: the number of the present one, from 1
        self._times = [0.0] * env.num_envs  # [s] into the episode
        self._name = ""
        self._policy = None
        self._obs: Tensor | None = None
        self._show: Callable[[mujoco.MjData], bool] = lambda _: True
        self._due = 0.0

    @property
    def episode(self) -> int:
        """Number of the shown world's present episode, from 1."""
        return self._episodes[self.world]

    @property
    def time_s(self) -> float:
        """The time [s] since the shown episode began."""
        return self._times[self.world]

    @torch.no_grad()
    def run(self, show: Callable[[mujoco.MjData], bool]) -> list[str]:
        """Play until enough episodes have ended or ``show`` returns False. Return their outcomes.

        ``show`` gets every state, and the present one many times a second while nothing moves.
        """
        self._show = show
        with self.env.observed_by(self):
            while len(self.outcomes) < self.num_episodes:
                try:
                    self._play_episode()
                except _NextError:
                    self._obs = None
                except _ClosedError:
                    break
        return self.outcomes

    def _play_episode(self) -> None:
        """Play to the end of the shown world's episode."""
        env = self.env
        self._steer()
        if self._obs is None:
            self._obs = env.reset()[0]
            self._name = ""  # the policy is loaded anew
            for world in range(env.num_envs):
                self._begin(world)
        self._clear()
        self._plan()
        self._due = time.monotonic()
        while True:
            self._steer()
            step = env.step(self._act(self._obs))
            self._obs = step.obs
            self._record(
                {
                    name.removeprefix("reward/"): float(term[self.world].mean())
                    for name, term in step.info.items()
                }
            )
            if hasattr(self._policy, "reset_memory"):  # a plain function remembers nothing
                self._policy.reset_memory(step.done)  # pyright: ignore[reportOptionalMemberAccess]
            if self._end_episodes(step):
                return
            self._plan()

    def _end_episodes(self, step: TimeStep) -> bool:
        """Note the outcomes of ended episodes. Return whether the shown one ended."""
        ended = step.done.nonzero().flatten().tolist()
        for world in ended:
            outcome = outcome_words(self.env, world, bool(step.valid[world]))
            self.outcomes.append(outcome)
            if world == self.world:
                self.note = outcome
        is_shown = self.world in ended
        if is_shown:
            self._hold_last_picture()
        if len(self.outcomes) >= self.num_episodes:
            return True
        for world in ended:
            self._begin(world)
        return is_shown

    def _begin(self, world: int) -> None:
        self._episodes[world] += 1
        self._times[world] = 0.0

    def _clear(self) -> None:
        """Forget the last episode's or world's displayed quantities."""
        self.distance = ([], [])
        self.rewards = ([], {})
        self.useful_impulse = [0.0] * self.env.scene.num_robots
        self.trail = []
        self.way = []

    def _act(self, obs: Tensor) -> Tensor:
        policy_name = self.controls.policy
        if policy_name != self._name:
            try:
                self._policy = self.policies[policy_name]()
            except ValueError as error:  # a missing or damaged checkpoint: the last policy stays
                if self._policy is None:
                    raise
                self.note = str(error)
            self._name = policy_name
        assert self._policy is not None
        actions = self._policy(obs)
        if self._scale is not None:
            self.commands = (actions[self.world].cpu().clamp(-1.0, 1.0) * self._scale).tolist()
        return actions

    def _steer(self) -> None:
        if self._steer_task is not None:
            self._steer_task(self.controls.command)
            if self.controls.command is not None:
                self.commands = [list(self.controls.command)]
            else:
                self.commands = []

    def _plan(self) -> None:
        """Request the object's planned path in the shown world, from a task with a planner."""
        if self._planned_way is not None:
            self.way = self._planned_way(self.world).tolist()

    def _record(self, terms: Mapping[str, float]) -> None:
        times, values = self.rewards
        for name, value in terms.items():
            values.setdefault(name, []).append(value)
        times.append(self.time_s)

    def on_control_step(self, state: SceneState, live: Tensor) -> None:
        """Show the new state, then wait until the next one is due or requested."""
        for world in range(self.env.num_envs):
            self._times[world] += self.env.step_dt
        self._data = snapshot(self.env.sim, self.world)
        if self.env.scene.object is not None:
            self._follow_object(self._data)
            self._add_impulses(state)

        self._due += self.env.step_dt / self.controls.speed
        while True:
            self._look()
            if self.controls.num_steps > 0:
                self.controls.num_steps -= 1
                self._due = time.monotonic()
                return
            now = time.monotonic()
            if self.controls.is_paused:
                self._due = now
            elif now >= self._due:
                self._due = max(self._due, now - _LATE)
                return
            time.sleep(_NAP if self.controls.is_paused else min(_NAP, max(self._due - now, 0.0)))

    def _add_impulses(self, state: SceneState) -> None:
        """Add a control step's forces towards the goal."""
        impulses = state.useful_push[self.world].clamp(min=0.0) * self.env.step_dt
        pairs = zip(self.useful_impulse, impulses.tolist(), strict=True)
        self.useful_impulse = [old + new for old, new in pairs]

    def _follow_object(self, data: mujoco.MjData) -> None:
        """Record the object's distance to the goal and its path."""
        position = data.body("object").xpos
        to_goal = data.body("goal").xpos - position
        self.distance[1].append(math.hypot(to_goal[0], to_goal[1]))
        self.distance[0].append(self.time_s)
        every = round(_TRAIL_S / self.env.step_dt)
        if (len(self.distance[0]) - 1) % every == 0:
            self.trail.append(position.copy())

    def _hold_last_picture(self) -> None:
        """Keep the last picture for a while."""
        until = time.monotonic() + HOLD_S / self.controls.speed
        while time.monotonic() < until and len(self.outcomes) < self.num_episodes:
            self._look()
            time.sleep(_NAP)

    def _look(self) -> None:
        """Show the present state, of another world on the user's request."""
        requested = min(max(self.controls.world, 0), self.env.num_envs - 1)
        if requested != self.world:
            self.world = requested
            self._data = snapshot(self.env.sim, requested)
            self._clear()
            self._plan()
        if not self._show(self._data) or self.controls.is_closed:
            raise _ClosedError
        if self.controls.is_next:
            self.controls.is_next = False
            raise _NextError


class _NextError(Exception):
    """The user requested the next episode."""


class _ClosedError(Exception):
    """The user closed the viewer."""
