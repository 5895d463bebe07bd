"""The motors' mechanical energy, and the cost of transport."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from harl_mapush.evaluation.watchers.watcher import EpisodeWatcher, Goal
from mqe.env.environment import MultiAgentEnv
from mqe.env.observer import PhysicsStep
from mqe.tasks.episode_report import Metrics, mean
from mqe.world.geometry import length
from mqe.world.scene import GRAVITY, PHYSICS_DT
from mqe.world.state import SceneState


class EnergyWatcher(EpisodeWatcher):
    """Adds the work of every motor, and follows the robots' paths."""

    needs_physics_steps = True
    lines = (
        ("mechanical energy [J]", ("mechanical_energy_j",)),
        ("cost of transport", ("cost_of_transport",)),
    )

    def __init__(self, env: MultiAgentEnv, goal: Goal) -> None:
        """Begin with no energy and no path."""
        super().__init__(env.num_envs, env.device)
        shape = (env.num_envs, env.scene.num_robots)
        model = env.scene.model
        weight = [GRAVITY * float(model.body_subtreemass[body]) for body in env.scene.trunk_bodies]
        self._weight = torch.tensor(weight, device=env.device)  # (A,) [N]
        self._path = torch.zeros(shape, device=env.device)  # [m]
        self._work = torch.zeros(shape, device=env.device)  # [J] in the current control step
        self._energy = torch.zeros(shape, device=env.device)  # [J]

    def on_reset(self, state: SceneState) -> None:
        """Record the initial positions of the robots."""
        self._robots = state.robot_pos[..., :2].clone()

    def on_physics_step(self, step: PhysicsStep) -> None:
        """Add the motors' positive mechanical work. Braking recovers no energy."""
        power = step.torque * step.state.joint_vel
        self._work += power.clamp(min=0.0).sum(dim=-1) * PHYSICS_DT

    def on_control_step(self, state: SceneState, live: Tensor) -> None:
        """Add a control step to the live, unfinished worlds."""
        counts = self.counting(live).unsqueeze(1)
        moved = length(state.robot_pos[..., :2] - self._robots)
        self._path += torch.where(counts, moved, 0.0)
        self._energy += torch.where(counts, self._work, 0.0)
        self._work.zero_()
        self._robots = state.robot_pos[..., :2].clone()

    def episodes(self) -> dict[str, Tensor]:
        """Return the energies and the product of weight and path (N,) [J] by name."""
        return {
            "mechanical_energy_j": self._energy.sum(dim=1),
            "transport_j": (self._path * self._weight).sum(dim=1),
        }

    @staticmethod
    def summarize(episodes: Mapping[str, Tensor]) -> Metrics:
        """Return the metrics of energy, without broken episodes.

        - ``mechanical_energy_j``: the team's positive mechanical work, mean over episodes
        - ``cost_of_transport``: all work / all weights times path lengths
        """
        is_whole = ~episodes["broken"].cpu().bool()
        energy = episodes["mechanical_energy_j"].cpu().double()[is_whole]
        transport = float(episodes["transport_j"].cpu().double()[is_whole].sum())
        cost = float(energy.sum()) / transport if transport > 0.0 else None
        return {"mechanical_energy_j": mean(energy), "cost_of_transport": cost}
