"""Episodes simulated for a film: the drawn states of an environment's first world."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mqe.env.environment import MultiAgentEnv
from mqe.env.observer import Observer
from mqe.world.scene import Scene
from mqe.world.state import SceneState

# Obs (N, A, O) to actions (N, A, U); it may have ``reset_memory(done)``.
FilmedPolicy = Callable[[Tensor], Tensor]


class ShownState(NamedTuple):
    """Drawn part of a world's state."""

    qpos: NDArray[np.float64]  # (nq,)
    mocap_pos: NDArray[np.float64]  # (nmocap, 3) [m]
    mocap_quat: NDArray[np.float64]  # (nmocap, 4)
    way: NDArray[np.float64] | None = None  # (P, 2) [m] planned for the object; None: no planner
    lost: tuple[int, ...] = ()  # robots that are dead, absent or late

    def points(self, scene: Scene) -> NDArray[np.float64]:
        """Return the positions (P, 3) [m] of robots, object and goal."""
        size = scene.robot_qpos // scene.num_robots
        points = [self.qpos[size * i : size * i + 3] for i in range(scene.num_robots)]
        if scene.object is not None:
            points += [self.qpos[scene.robot_qpos : scene.robot_qpos + 3], self.mocap_pos[0]]
        return np.stack(points)


class Episode(NamedTuple):
    """An episode's drawn states, and a text about its outcome, empty for an unfinished one."""

    states: list[ShownState]
    outcome: str


class Recording(Observer):
    """Plays episodes and keeps every ``stride``-th state of the first world."""

    def __init__(self, env: MultiAgentEnv, stride: int) -> None:
        self._env = env
        self._stride = stride
        self._obs: Tensor | None = None
        self._num_steps = 0  # control steps into the episode
        self._states: list[ShownState] = []
        self._way: NDArray[np.float64] | None = None

    def play(self, policy: FilmedPolicy, most_states: float = math.inf) -> Episode:
        """Play the next episode, to its end or for ``most_states`` drawn states."""
        env = self._env
        if self._obs is None:
            self._obs = env.reset()[0]
        self._num_steps = 0
        self._plan()
        self._states = [shown_state(env, self._way)]
        outcome = ""
        while not outcome and len(self._states) < most_states:
            self._obs, outcome = apply_actions(env, policy, policy(self._obs))
            self._plan()
        return Episode(self._states, outcome)

    def on_control_step(self, state: SceneState, live: Tensor) -> None:
        """Keep every ``stride``-th state."""
        self._num_steps += 1
        if self._num_steps % self._stride == 0:
            self._states.append(shown_state(self._env, self._way))

    def _plan(self) -> None:
        """Request the planned path of the coming decision, from a task with a planner."""
        planned_way = self._env.task.features.planned_way
        if planned_way is not None:
            self._way = planned_way(0).cpu().double().numpy()


def apply_actions(env: MultiAgentEnv, policy: Any, actions: Tensor) -> tuple[Tensor, str]:
    """Apply the ``actions`` of ``policy``. Return the next observations, and the outcome of the
    first world's episode in words, empty until its end.
    """
    step = env.step(actions)
    if hasattr(policy, "reset_memory"):  # a plain function remembers nothing
        policy.reset_memory(step.done)
    return step.obs, _outcome(env, bool(step.valid[0])) if step.done[0] else ""


def shown_state(env: MultiAgentEnv, way: NDArray[np.float64] | None = None) -> ShownState:
    """Return the drawn state of the first world, with the object's planned ``way``."""
    data = env.sim.data
    qpos, pos, quat = (
        values[0].double().cpu().numpy().copy()
        for values in (data.qpos, data.mocap_pos, data.mocap_quat)
    )
    randomization = env.randomization
    lost = randomization.is_away[0].nonzero().flatten().tolist() if randomization.has_losses else ()
    return ShownState(qpos, pos, quat, way, tuple(lost))


def _outcome(env: MultiAgentEnv, is_valid: bool) -> str:
    """Return the outcome of the first world's last episode in words."""
    if not is_valid:
        return "the simulation broke"
    for name, words in env.report.outcomes.items():
        if bool(env.episode_metrics[name][0] > 0.5):
            return words
    return "time is up"
