"""Hooks of an environment: physics steps and control steps."""

from torch import Tensor

from mqe.sim.simulator import Simulator
from mqe.world.state import SceneState


class PhysicsStep:
    """One physics step: the scene at its start, and the contact forces during it."""

    def __init__(self, state: SceneState, sim: Simulator) -> None:
        """Take the state before the last step of ``sim``, and its contact forces.

        ``state`` is changed: its contact forces, one step old until now, become this step's forces.
        """
        forces = state.forces
        forces.copy_(sim.data.sensordata[:, : forces.shape[1]])
        self.state = state


class Observer:
    """Base class with empty hooks, called by ``MultiAgentEnv.observed_by``.

    While an environment is observed, none of its steps is part of a CUDA graph.
    """

    # Physics steps are then taken one by one, for ``on_physics_step``.
    needs_physics_steps = False

    def on_physics_step(self, step: PhysicsStep) -> None:
        """Receive a physics step, of every world."""

    def on_control_step(self, state: SceneState, live: Tensor) -> None:
        """Receive the end of a control step, before any reset. The step counts in ``live`` (N,)
        worlds.
        """
