"""A player of one world's episodes at a chosen speed, independent of windows and pages."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import mujoco
import torch
from torch import Tensor

from mqe.env.environment import MultiAgentEnv
from mqe.env.observer import Observer
from mqe.viewer.recording import outcome_words
from mqe.world.state import SceneState

HOLD_S = 1.0  # [s] that an episode's last picture stays
_LATE = 0.25  # [s] behind its own clock the player gives up to catch up
_NAP = 0.01  # [s] between two looks at the controls


@dataclass
class Controls:
    """The requests of a viewer's user; any thread may write them."""

    is_paused: bool = False
    num_steps: int = 0  # single control steps asked for while paused
    speed: float = 1.0  # times real time
    is_next: bool = False  # leave this episode for the next
    policy: str = ""  # which of the player's policies acts
    command: tuple[float, float, float] | None = (
        None  # a gait's velocity command; None: those of its training
    )
    is_closed: bool = False


class Player(Observer):
    """One world, the policies that can act in it, and the displayed quantities of the episode."""

    def __init__(
        self,
        env: MultiAgentEnv,
        policies: Mapping[str, Callable[[], Callable[[Tensor], Tensor]]],
        action_scale: tuple[float, ...] | None = None,
        num_episodes: float = math.inf,
    ) -> None:
        """Play ``num_episodes`` in the first world of ``env``; ``policies`` are factories by name,
        and the first acts first.

        Actions times ``action_scale`` are velocity commands, which can be shown; None: they are
        not.
        """
        self.env = env
        self.policies = policies
        self.controls = Controls(policy=next(iter(policies)))
        self.num_episodes = num_episodes
        self.episode = 0  # the number of the present one, from 1
        self.time_s = 0.0  # into the episode
        self.outcomes: list[str] = []
        self.note = ""  # how the last episode ended, or what went wrong
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
        self.can_steer = hasattr(env.task, "steer")
        self.robots = [f"robot{i}/trunk" for i in range(env.scene.num_robots)]
        self._scale = None if action_scale is None else torch.tensor(action_scale)
        self._name = ""
        self._policy = None
        self._obs: Tensor | None = None
        self._show: Callable[[mujoco.MjData], bool] = lambda _: True
        self._due = 0.0

    @torch.no_grad()
    def run(self, show: Callable[[mujoco.MjData], bool]) -> list[str]:
        """Play until enough episodes have ended or ``show`` returns False; return their outcomes.

        ``show`` is called with every state, and many times a second while nothing moves.
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
        """Play to the end of an episode."""
        env = self.env
        self._steer()
        obs = env.reset()[0] if self._obs is None else self._obs
        self.episode = self.episode + 1
        self.time_s = 0.0
        self.distance = ([], [])
        self.rewards = ([], {})
        self._name = ""  # the policy is loaded anew
        self._due = time.monotonic()
        while True:
            self._steer()
            step = env.step(self._act(obs))
            obs = self._obs = step.obs
            self._record(
                {
                    name.removeprefix("reward/"): float(term[0].mean())
                    for name, term in step.info.items()
                }
            )
            if bool(step.done[0]):
                self.note = outcome_words(env, 0, bool(step.valid[0]))
                self.outcomes.append(self.note)
                self._hold_last_picture()
                return

    def _act(self, obs: Tensor) -> Tensor:
        wanted = self.controls.policy
        if wanted != self._name:
            try:
                self._policy = self.policies[wanted]()
            except (
                ValueError
            ) as error:  # a checkpoint that has gone, or was damaged: the last policy stays
                if self._policy is None:
                    raise
                self.note = str(error)
            self._name = wanted
        assert self._policy is not None
        actions = self._policy(obs)
        if self._scale is not None:
            self.commands = (actions[0].cpu().clamp(-1.0, 1.0) * self._scale).tolist()
        return actions

    def _steer(self) -> None:
        if self.can_steer:
            self.env.task.steer(self.controls.command)  # type: ignore[attr-defined]
            if self.controls.command is not None:
                self.commands = [list(self.controls.command)]
            else:
                self.commands = []

    def _record(self, terms: Mapping[str, float]) -> None:
        times, values = self.rewards
        for name, value in terms.items():
            values.setdefault(name, []).append(value)
        times.append(self.time_s)

    def on_control_step(self, state: SceneState, live: Tensor) -> None:
        """Show the new state, then wait until the next one is due or requested."""
        self.time_s += self.env.step_dt
        self._data = data = self.env.sim.data(0)
        if self.env.scene.object is not None:
            to_goal = data.body("goal").xpos - data.body("object").xpos
            self.distance[1].append(math.hypot(to_goal[0], to_goal[1]))
            self.distance[0].append(self.time_s)
        self._due += self.env.step_dt / self.controls.speed
        while True:
            self._look(data)
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

    def _hold_last_picture(self) -> None:
        """Keep the last picture for a while."""
        until = time.monotonic() + HOLD_S / self.controls.speed
        while time.monotonic() < until and len(self.outcomes) < self.num_episodes:
            self._look(self._data)
            time.sleep(_NAP)

    def _look(self, data: mujoco.MjData) -> None:
        if not self._show(data) or self.controls.is_closed:
            raise _ClosedError
        if self.controls.is_next:
            self.controls.is_next = False
            raise _NextError


class _NextError(Exception):
    """The user requested the next episode."""


class _ClosedError(Exception):
    """The user closed the viewer."""
