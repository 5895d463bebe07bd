"""The contract between a task and the environment: what a task says about tensors, never about a
simulator.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from mqe.controllers.blocks import ActiveWorlds
from mqe.vec_env import MirrorImage, Planar
from mqe.world.layout import Layout
from mqe.world.state import SceneState


class Outcome(NamedTuple):
    """Rewards, endings and metrics of one control step, before any reset; the task names rows and
    columns.
    """

    rewards: Tensor  # (K, N, A) weighted terms; their sum is the reward
    endings: Tensor  # (E, N) bool conditions; any of them ends the episode
    metrics: Tensor  # (N, M) per-step measures; the environment sums them over the episode


class Disturbance(NamedTuple):
    """Changes of velocity and forces on the trunks before a control step."""

    velocity: Tensor  # (N, A, 3) [m/s] added to the trunk's linear velocity at once
    force: Tensor  # (N, A, 3) [N] on the trunk, world frame, for the whole control step


class Task(Protocol):
    """One task over N worlds of A agents. Masks are (N,) bool; nothing here synchronises with the
    host.
    """

    num_agents: int
    obs_sizes: tuple[int, ...]
    action_sizes: tuple[int, ...]
    state_size: int
    state_type: str  # "EP" or "FP"
    decision_period: int  # control steps a decision
    max_episode_length: int  # control steps, a multiple of decision_period
    reward_names: tuple[str, ...]  # K terms
    metric_names: tuple[str, ...]  # M per-step measures
    episode_metric_names: tuple[str, ...]  # F metrics of an episode
    memory: Tensor  # (N, C) all that observations show besides the scene, live; C may be 0
    # Of observation, action and critic state, where left and right are alike.
    mirror: MirrorImage | None
    planar: Planar | None  # what a learned model predicts of it; None: it has no such state
    noise_scale: (
        Tensor  # (O,) what env.randomize.observation_noise means for each number of an observation
    )

    def layout(self, episode: Tensor) -> Layout:
        """Propose a start for episode number ``episode`` (N,) int64 of every world."""
        ...

    def begin(self, mask: Tensor) -> None:
        """Forget the old episodes of ``mask``, which start anew as ``layout`` proposed last."""
        ...

    def command(self, actions: Tensor) -> None:
        """Take a decision: actions (N, A, U), clipped to [-1, 1]; delayed ones come at every
        control step.
        """
        ...

    def targets(self, state: SceneState) -> Tensor:
        """Return joint position targets (N, A, J) [rad] for the coming control step."""
        ...

    def disturb(self, step: Tensor) -> Disturbance | None:
        """Return what pushes the robots before control step ``step`` (N,) of their episodes."""
        ...

    def evaluate(self, state: SceneState, prev: SceneState) -> Outcome:
        """Judge one control step that went from ``prev`` to ``state``."""
        ...

    def observe(self, state: SceneState, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return obs (W, A, O) and critic state, (W, S) or (W, A, S), of any W worlds and their
        ``memory`` (W, C).
        """
        ...

    def episode_metrics(self, sums: Tensor, steps: Tensor, endings: Tensor) -> Tensor:
        """Compute metrics (N, F) for statistics from an episode's sums (N, M), length (N,) and
        endings (E, N).

        NaN means that the metric does not count for this episode (for instance the collaboration
        degree of a failure).
        """
        ...

    def use_blocks(self, worlds: ActiveWorlds) -> None:
        """Run frozen networks over blocks of ``worlds``; called before the first step."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class TaskDefaults:
    """Base class with what most tasks have in common: no memory, no disturbance, no mirror
    image.
    """

    num_agents: int
    obs_sizes: tuple[int, ...]
    state_type = "EP"
    decision_period = 1
    mirror: MirrorImage | None = None
    planar: Planar | None = None

    def __init__(self, num_envs: int, device: torch.device) -> None:
        """Remember nothing of ``num_envs`` worlds; ``observation_noise`` is the same for every
        number.
        """
        self.memory = torch.zeros(num_envs, 0, device=device)
        self.noise_scale = torch.ones(max(self.obs_sizes), device=device)

    def disturb(self, step: Tensor) -> Disturbance | None:
        """Leave the robots alone."""
        return None

    def use_blocks(self, worlds: ActiveWorlds) -> None:
        """Do nothing: there is no network."""

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: an episode goes by the scene alone."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take nothing."""
