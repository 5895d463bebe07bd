"""The object's positions around its goal: arrival, arrival time, and length of stay."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from harl_mapush.evaluation.watchers.watcher import (
    EpisodeWatcher,
    Goal,
    format_rate,
    format_rows,
    format_value,
)
from mqe.env.environment import MultiAgentEnv
from mqe.tasks.episode_report import Metrics, mean, rate
from mqe.world.geometry import length
from mqe.world.scene import STEP_DT
from mqe.world.state import SceneState

RADII = (1.0, 0.5, 0.25)  # [m] from the goal
HEADING_TOLERANCE = math.radians(10.0)
HEADING_RADIUS = RADII[0]  # [m] from the goal, within which a heading counts


class ArrivalWatcher(EpisodeWatcher):
    """Follows the object at every control step of the first episodes."""

    metric = "path_efficiency"

    def __init__(self, env: MultiAgentEnv, goal: Goal) -> None:
        """Set up the counters. A goal heading adds a region."""
        n = env.num_envs
        device = env.device
        super().__init__(n, device)
        self._heading_error = goal.heading_error
        self.names = tuple(f"within_{radius:g}m" for radius in RADII)
        if goal.heading_error is not None:
            self.names += ("heading_10deg",)
        self._steps = torch.zeros(n, device=device)  # length of the episode [control steps]

        # Times at each place [control steps]: before the first arrival, until the object first
        # leaves, and in all.
        zeros = torch.zeros(n, len(self.names), device=device)
        self._before = zeros
        self._first_stay = zeros.clone()
        self._inside = zeros.clone()
        self._is_inside = zeros > 0.0  # at the last control step
        self._has_left = zeros > 0.0

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

        # The object's present places.
        targets = [state.goal_distance < radius for radius in RADII]
        if self._heading_error is not None:
            error = self._heading_error(state.object_yaw).abs()
            targets.append((error < HEADING_TOLERANCE) & (state.goal_distance < HEADING_RADIUS))
        inside = torch.stack(targets, dim=1)
        was_reached = self._inside > 0.0

        # The object's way to the first radius.
        moved = length(state.object_pos[:, :2] - self._object)
        is_on_the_way = live & ~was_reached[:, 0]
        self._path += torch.where(is_on_the_way, moved, 0.0)
        straight = length(state.object_pos[:, :2] - self._start)
        self._straight = torch.where(is_on_the_way, straight, self._straight)
        self._object = state.object_pos[:, :2].clone()

        # Times inside and outside the places.
        self._has_left |= counts & was_reached & ~inside
        self._before += counts & ~was_reached & ~inside
        self._inside += counts & inside
        self._first_stay += counts & inside & ~self._has_left
        self._is_inside = torch.where(counts, inside, self._is_inside)
        self._steps += live

    def episodes(self) -> dict[str, Tensor]:
        """Return the measurements (N,) by name. Times of unreached regions are NaN."""
        was_reached = self._inside > 0.0
        nan = torch.full_like(self._path, torch.nan)
        measured: dict[str, Tensor] = {}
        for k, name in enumerate(self.names):
            reached = was_reached[:, k]
            measured[name] = reached.float()
            measured[f"{name}_at_end"] = self._is_inside[:, k].float()
            measured[f"{name}_after_s"] = torch.where(
                reached, (self._before[:, k] + 1.0) * STEP_DT, nan
            )
            measured[f"{name}_first_stay_s"] = torch.where(
                reached, self._first_stay[:, k] * STEP_DT, nan
            )
            rest = self._steps - self._before[:, k]
            measured[f"{name}_stay_share"] = torch.where(reached, self._inside[:, k] / rest, nan)
        measured["path_efficiency"] = torch.where(
            was_reached[:, 0], self._straight / self._path.clamp(min=1e-6), nan
        )
        return measured

    @staticmethod
    def summarize(episodes: Mapping[str, Tensor]) -> Metrics:
        """Return the metrics of the regions. Broken episodes count as failures.

        A region is a disc around the goal, or the disc of 1 m together with the goal heading. Two
        rates for each region NAME are over all episodes:

        - ``NAME_rate``: episodes with the object ever there
        - ``NAME_at_end_rate``: episodes with the object there at the end

        Three means are over the episodes with the object ever there:

        - ``NAME_after_s``: time until the arrival [s]
        - ``NAME_first_stay_s``: time from the arrival until the object first leaves, or the episode
          ends [s]
        - ``NAME_stay_share``: time there / time from the arrival to the end

        ``path_efficiency``: straight distance / length of the object's path, both until the object
        is within 1 m.
        """
        is_whole = ~episodes["broken"].cpu().bool()
        columns = {name: values.cpu().double() for name, values in episodes.items()}
        metrics: Metrics = {}
        for name in _places(columns):
            for event in (name, f"{name}_at_end"):
                metrics |= rate(event, (columns[event] > 0.5) & is_whole)
            for value in ("after_s", "first_stay_s", "stay_share"):
                metrics[f"{name}_{value}"] = mean(columns[f"{name}_{value}"][is_whole])
        metrics["path_efficiency"] = mean(columns["path_efficiency"][is_whole])
        return metrics

    @staticmethod
    def describe(metrics: Metrics) -> str:
        """Format the metrics of the regions, one a line."""
        rows = []
        for name in _places(metrics):
            title = name.replace("_", " ").replace(
                "10deg", f"within 10 degrees, {HEADING_RADIUS:g} m"
            )
            after = format_value(metrics, f"{name}_after_s", " s")
            rows.append((f"object {title}", f"{format_rate(metrics, name)}, after {after}"))
            stay = (
                f"{format_value(metrics, f'{name}_first_stay_s', ' s')} at first, "
                f"{format_value(metrics, f'{name}_stay_share')} of the time left"
            )
            at_end = format_rate(metrics, f"{name}_at_end")
            rows.append(("  it stays", f"{stay}; there at the end {at_end}"))
        efficiency = format_value(metrics, "path_efficiency")
        return format_rows([*rows, ("straight distance over object path", efficiency)])


def _places(names: Iterable[str]) -> list[str]:
    """Return the regions in these names of metrics."""
    suffix = "_stay_share"
    return [name.removesuffix(suffix) for name in names if name.endswith(suffix)]
