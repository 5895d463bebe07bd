"""The object's distance from its goal: arrival, arrival time, and the way there."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from harl_mapush.evaluation.watchers.watcher import EpisodeWatcher, Goal
from mqe.env.environment import MultiAgentEnv
from mqe.tasks.episode_report import Metrics, mean, rate
from mqe.world.geometry import length
from mqe.world.scene import STEP_DT
from mqe.world.state import SceneState

RADII = (1.0, 0.5, 0.25)  # [m] from the goal
NAMES = tuple(f"within_{radius:g}m" for radius in RADII)


class ArrivalWatcher(EpisodeWatcher):
    """Follows the object at every control step of the first episodes."""

    lines = (
        *((f"object {name}", (f"{name}_rate",)) for name in NAMES),
        *((f"object {name} at the end", (f"{name}_at_end_rate",)) for name in NAMES),
        *((f"object {name} after [s]", (f"{name}_after_s",)) for name in NAMES),
        ("straight distance over object path", ("path_efficiency",)),
    )

    def __init__(self, env: MultiAgentEnv, goal: Goal) -> None:
        """Set up the counters."""
        n = env.num_envs
        device = env.device
        super().__init__(n, device)
        self._before = torch.zeros(n, len(RADII), device=device)  # [control steps] to the arrival
        self._was_reached = self._before > 0.0
        self._is_inside = self._before > 0.0  # at the last control step

        # The object's path, and its distance from the start, until it is within the first radius.
        self._path = torch.zeros(n, device=device)  # [m]
        self._straight = torch.zeros(n, device=device)  # [m]

    @classmethod
    def supports(cls, env: MultiAgentEnv) -> bool:
        """Return whether the scene has an object."""
        return env.scene.object is not None

    def on_reset(self, state: SceneState) -> None:
        """Record the initial positions of the objects."""
        self._start = state.object_pos[:, :2].clone()
        self._object = state.object_pos[:, :2].clone()

    def on_control_step(self, state: SceneState, live: Tensor) -> None:
        """Add a control step to the live, unfinished worlds."""
        live = self.counting(live)
        counts = live.unsqueeze(1)

        # The object's way to the first radius.
        moved = length(state.object_pos[:, :2] - self._object)
        is_on_the_way = live & ~self._was_reached[:, 0]
        self._path += torch.where(is_on_the_way, moved, 0.0)
        straight = length(state.object_pos[:, :2] - self._start)
        self._straight = torch.where(is_on_the_way, straight, self._straight)
        self._object = state.object_pos[:, :2].clone()

        # Its arrival within each radius.
        inside = torch.stack([state.goal_distance < radius for radius in RADII], dim=1)
        self._before += counts & ~self._was_reached & ~inside
        self._was_reached |= counts & inside
        self._is_inside = torch.where(counts, inside, self._is_inside)

    def episodes(self) -> dict[str, Tensor]:
        """Return the measurements (N,) by name. Times of unreached regions are NaN."""
        nan = torch.full_like(self._path, torch.nan)
        measured: dict[str, Tensor] = {}
        for k, name in enumerate(NAMES):
            reached = self._was_reached[:, k]
            measured[name] = reached.float()
            measured[f"{name}_at_end"] = self._is_inside[:, k].float()
            arrival = (self._before[:, k] + 1.0) * STEP_DT
            measured[f"{name}_after_s"] = torch.where(reached, arrival, nan)
        efficiency = self._straight / self._path.clamp(min=1e-6)
        measured["path_efficiency"] = torch.where(self._was_reached[:, 0], efficiency, nan)
        return measured

    @staticmethod
    def summarize(episodes: Mapping[str, Tensor]) -> Metrics:
        """Return the metrics of the discs NAME around the goal. Broken episodes count as failures.

        - ``NAME_rate``: episodes with the object ever there
        - ``NAME_at_end_rate``: episodes with the object there at the end
        - ``NAME_after_s``: time until the arrival [s], over the episodes with the object ever there
        - ``path_efficiency``: straight distance / length of the object's path, both until the
          object is within 1 m
        """
        is_whole = ~episodes["broken"].cpu().bool()
        columns = {name: values.cpu().double() for name, values in episodes.items()}
        metrics: Metrics = {}
        for name in NAMES:
            for event in (name, f"{name}_at_end"):
                metrics |= rate(event, (columns[event] > 0.5) & is_whole)
            metrics[f"{name}_after_s"] = mean(columns[f"{name}_after_s"][is_whole])
        metrics["path_efficiency"] = mean(columns["path_efficiency"][is_whole])
        return metrics
