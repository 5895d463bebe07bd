"""Player for episodes at a chosen speed, in an environment's first world."""

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
from mqe.extensions import Registry
from mqe.sim.simulator import snapshot
from mqe.viewer.lines import Line, command_arrows, planned_way, trail
from mqe.viewer.recording import apply_actions
from mqe.world.state import SceneState

_LATE = 0.25  # [s] behind its own clock the player gives up to catch up
_NAP = 0.01  # [s] between two looks at the controls
_TRAIL_STEPS = 5  # control steps between two points of the object's trail


@dataclass
class Controls:
    """Requests by the viewer's user, written by any thread."""

    is_paused: bool = False
    num_steps: int = 0  # single control steps asked for while paused
    speed: float = 1.0  # times real time
    is_next: bool = False  # leave this episode for the next
    policy: str = ""  # name of the acting policy
    # A gait's velocity command; None: those of its training.
    command: tuple[float, float, float] | None = None
    is_closed: bool = False


class Player(Observer):
    """Plays episodes, and stores the displayed quantities."""

    def __init__(
        self,
        env: MultiAgentEnv,
        policies: Mapping[str, Callable[[], Callable[[Tensor], Tensor]]],
        action_scale: tuple[float, ...] | None = None,
        num_episodes: float = math.inf,
    ) -> None:
        """Play ``num_episodes`` in the first world of ``env``.

        ``policies`` are factories by name. The first policy acts first. Actions times
        ``action_scale`` are the displayed velocity commands, None for no display.
        """
        self.env = env
        self.policies = policies
        self.controls = Controls(policy=next(iter(policies)))
        self.num_episodes = num_episodes
        self.episode = 0  # number of the present one, from 1
        self.time_s = 0.0  # [s] since the episode began
        self.num_shown = 0  # states of the present episode that the viewer has
        self.outcomes: list[str] = []
        self.note = ""  # the last episode's outcome, or an error
        self.commands: list[list[float]] = []  # of every robot: vx, vy [m/s], yaw rate [rad/s]
        # Positions (3,) [m] of the object's origin since the episode began.
        self.trail: list[np.ndarray] = []
        # The object's next planned positions (P, 2) [m], in a task with a planner
        self.way: list[list[float]] = []
        self.steer = env.task.features.steer
        self.robots = [f"robot{i}/trunk" for i in range(env.scene.num_robots)]
        self._scale = None if action_scale is None else torch.tensor(action_scale)
        self._name = ""
        self._policy = None
        self._show: Callable[[mujoco.MjData], bool] = lambda _: True
        self._due = 0.0

    @torch.no_grad()
    def run(self, show: Callable[[mujoco.MjData], bool]) -> list[str]:
        """Play until enough episodes have ended or ``show`` returns False. Return their outcomes.

        ``show`` gets every state, and the present one many times a second while nothing moves.
        """
        self._show = show
        obs = None
        with self.env.observed_by(self):
            while len(self.outcomes) < self.num_episodes:
                try:
                    obs = self._play_episode(obs)
                except _NextError:
                    obs = None
                except _ClosedError:
                    break
        return self.outcomes

    def lines(self, data: mujoco.MjData) -> list[Line]:
        """Return the drawings: velocity commands, the object's path and its planned path."""
        lines = trail(self.trail)
        if self.way:
            lines += planned_way([data.body("object").xpos, *self.way])
        for name, command in zip(self.robots, self.commands, strict=False):
            body = data.body(name)
            lines += command_arrows(body.xpos, body.xmat, command)
        return lines

    def _play_episode(self, obs: Tensor | None) -> Tensor:
        """Play an episode from its first observations, None for a reset. Return the next ones."""
        env = self.env
        self._steer()
        if obs is None:
            obs = env.reset()[0]
            self._name = ""  # the policy is loaded anew
        self.num_shown = 0
        self.episode += 1
        self.time_s = 0.0
        self.trail = []
        self._due = time.monotonic()
        while True:
            self._plan()
            self._steer()
            actions = self._act(obs)
            obs, outcome = apply_actions(env, self._policy, actions)
            if outcome:
                self.note = outcome
                self.outcomes.append(outcome)
                return obs

    def _act(self, obs: Tensor) -> Tensor:
        name = self.controls.policy
        if name != self._name:
            try:
                self._policy = self.policies[name]()
            except ValueError as error:  # a missing or damaged checkpoint: the last policy stays
                if self._policy is None:
                    raise
                self.note = str(error)
            self._name = name
        assert self._policy is not None
        actions = self._policy(obs)
        if self._scale is not None:
            self.commands = (actions[0].cpu().clamp(-1.0, 1.0) * self._scale).tolist()
        return actions

    def _steer(self) -> None:
        if self.steer is not None:
            command = self.controls.command
            self.steer(command)
            self.commands = [] if command is None else [list(command)]

    def _plan(self) -> None:
        """Request the object's planned path, from a task with a planner."""
        planned_way = self.env.task.features.planned_way
        if planned_way is not None:
            self.way = planned_way(0).tolist()

    def on_control_step(self, state: SceneState, live: Tensor) -> None:
        """Show the new state, then wait until the next one is due or requested."""
        data = snapshot(self.env.sim, 0)
        is_due = round(self.time_s / self.env.step_dt) % _TRAIL_STEPS == 0
        if is_due and self.env.scene.object is not None:
            self.trail.append(data.body("object").xpos.copy())
        self.time_s += self.env.step_dt
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

    def _look(self, data: mujoco.MjData) -> None:
        """Show the present state."""
        if not self._show(data) or self.controls.is_closed:
            raise _ClosedError
        self.num_shown += 1
        if self.controls.is_next:
            self.controls.is_next = False
            raise _NextError


# Live viewers. Each shows a player until it has played its episodes, and returns their outcomes.
# Arguments: the player; a page's port, or None for any port and an open browser; a proxy's host
# name, or None.
Viewer = Callable[[Player, int | None, str | None], list[str]]
VIEWERS: Registry[Viewer] = Registry("viewer")


class _NextError(Exception):
    """The user requested the next episode."""


class _ClosedError(Exception):
    """The user closed the viewer."""
