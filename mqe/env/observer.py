"""Hooks of an environment: physics steps, control steps, decisions and resets."""

from __future__ import annotations

from torch import Tensor

from mqe.vec_env import TimeStep
from mqe.world.state import SceneState


class Observer:
    """Base class whose hooks do nothing; ``MultiAgentEnv.observed_by`` calls them.

    While an environment is observed, none of its steps is part of a CUDA graph.
    """

    # Physics steps are then taken one by one, for ``on_physics_step``.
    needs_physics_steps = False

    def on_reset(self, state: SceneState) -> None:
        """Receive the first state after ``MultiAgentEnv.reset``."""

    def on_physics_step(self, torque: Tensor, joint_vel: Tensor) -> None:
        """Receive torques [N m] in a physics step and joint velocities [rad/s] at its start, both
        (N, A, J).
        """

    def on_control_step(self, state: SceneState, live: Tensor) -> None:
        """Receive the end of a control step, before any reset; it counts in the worlds of ``live``
        (N,).
        """

    def on_decision(self, step: TimeStep) -> None:
        """Receive the result of a decision, after worlds that ended were reset."""
