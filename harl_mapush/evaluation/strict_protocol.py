"""The strict protocol's own metrics, computed from scene states and motor torques."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from harl_mapush.evaluation.episode_watcher import EpisodeWatcher, HeadingError
from mqe.env.environment import MultiAgentEnv
from mqe.env.observer import PhysicsStep
from mqe.tasks.episode_report import Metrics, mean, rate
from mqe.world.geometry import length
from mqe.world.scene import GRAVITY, PHYSICS_DT, STEP_DT
from mqe.world.state import SceneState

RADII = (1.0, 0.5, 0.25)  # [m] from the goal
HEADING_TOLERANCE = math.radians(10.0)
HEADING_RADIUS = RADII[0]  # [m] from the goal, within which a heading counts


class StrictWatcher(EpisodeWatcher):
    """Measures object, contacts and motor energy in every control step of the first episodes."""

    needs_physics_steps = True

    def __init__(self, env: MultiAgentEnv, heading_error: HeadingError | None = None) -> None:
        """Set up the counters; ``heading_error`` tells from the object's yaw how far it is turned
        from its heading at the goal (None: any will do).
        """
        n = env.num_envs
        a = env.num_agents
        device = env.device
        super().__init__(n, device)
        model = env.scene.model
        weight = [GRAVITY * float(model.body_subtreemass[body]) for body in env.scene.trunk_bodies]
        self._weight = torch.tensor(weight, device=device)  # (A,) [N]
        self._heading_error = heading_error
        self.names = tuple(f"within_{radius:g}m" for radius in RADII)
        if heading_error is not None:
            self.names += ("heading_10deg",)
        self._steps = torch.zeros(n, device=device)  # length of the episode [control steps]

        # For each name [control steps]: before it was reached, until it was first left, in all.
        zeros = torch.zeros(n, len(self.names), device=device)
        self._before = zeros
        self._first_stay = zeros.clone()
        self._inside = zeros.clone()
        self._is_inside = zeros > 0.0  # at the last control step
        self._has_left = zeros > 0.0

        # The object's path, and its distance from the start, until it is within the first radius.
        self._path = torch.zeros(n, device=device)  # [m]
        self._straight = torch.zeros(n, device=device)  # [m]

        self._touching = torch.zeros(n, a, device=device)  # [control steps]
        self._robot_path = torch.zeros(n, a, device=device)  # [m]
        self._work = torch.zeros(n, a, device=device)  # [J] in the current control step
        self._energy = torch.zeros(n, a, device=device)  # [J]

    def on_reset(self, state: SceneState) -> None:
        """Record the initial positions of objects and robots."""
        self._start = state.object_pos[:, :2].clone()
        self._object = state.object_pos[:, :2].clone()
        self._robots = state.robot_pos[..., :2].clone()

    def on_physics_step(self, step: PhysicsStep) -> None:
        """Add the motors' positive mechanical work; braking recovers no energy."""
        power = step.torque * step.state.joint_vel
        self._work += power.clamp(min=0.0).sum(dim=-1) * PHYSICS_DT

    def on_control_step(self, state: SceneState, live: Tensor) -> None:
        """Add a control step of the worlds that are live and have not finished."""
        live = self.counting(live)
        counts = live.unsqueeze(1)

        # The places that the object is in.
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

        # Times inside and outside the places.
        self._has_left |= counts & was_reached & ~inside
        self._before += counts & ~was_reached & ~inside
        self._inside += counts & inside
        self._first_stay += counts & inside & ~self._has_left
        self._is_inside = torch.where(counts, inside, self._is_inside)
        self._steps += live

        # The robots' contacts, paths and energy.
        self._touching += counts & (state.contact_force != 0.0).any(dim=-1)
        self._robot_path += torch.where(
            counts, length(state.robot_pos[..., :2] - self._robots), 0.0
        )
        self._energy += torch.where(counts, self._work, 0.0)
        self._work.zero_()
        self._object = state.object_pos[:, :2].clone()
        self._robots = state.robot_pos[..., :2].clone()

    def episodes(self) -> dict[str, Tensor]:
        """Return the measurements (N,) by name; times are NaN for a place never reached."""
        was_reached = self._inside > 0.0
        nan = torch.full_like(self._path, torch.nan)
        found: dict[str, Tensor] = {}
        for k, name in enumerate(self.names):
            reached = was_reached[:, k]
            found[name] = reached.float()
            found[f"{name}_at_end"] = self._is_inside[:, k].float()
            found[f"{name}_after_s"] = torch.where(
                reached, (self._before[:, k] + 1.0) * STEP_DT, nan
            )
            found[f"{name}_first_stay_s"] = torch.where(
                reached, self._first_stay[:, k] * STEP_DT, nan
            )
            rest = self._steps - self._before[:, k]
            found[f"{name}_stay_share"] = torch.where(reached, self._inside[:, k] / rest, nan)
        found["path_efficiency"] = torch.where(
            was_reached[:, 0], self._straight / self._path.clamp(min=1e-6), nan
        )
        found["mechanical_energy_j"] = self._energy.sum(dim=1)
        found["transport_j"] = (self._robot_path * self._weight).sum(dim=1)  # weight times path
        for i in range(self._touching.shape[1]):
            touching = self._touching[:, i]
            found[f"contact_time_share_agent{i}"] = touching / self._steps.clamp(min=1.0)
            found[f"mechanical_energy_agent{i}_j"] = self._energy[:, i]
        return found


def summarize_strict(episodes: Mapping[str, Tensor]) -> Metrics:
    """Return the strict protocol's metrics; broken episodes count as failures.

    A place is a disc around the goal, or the disc of 1 m together with the goal heading. Two rates
    of each place NAME are over all episodes:

    - ``NAME_rate``: the share of episodes in which the object was ever there
    - ``NAME_at_end_rate``: the share in which it was there at the end

    Three means are over the episodes in which it was ever there:

    - ``NAME_after_s``: the time until it arrived [s]
    - ``NAME_first_stay_s``: the time until it first left, or the episode ended [s]
    - ``NAME_stay_share``: its share of the time after the arrival

    ``path_efficiency`` is the straight distance divided by the length of the object's path until it
    was within 1 m. ``cost_of_transport`` is the robots' positive mechanical work divided by their
    weights times the lengths of their paths.
    """
    is_broken = episodes["broken"].cpu().bool()
    columns = {name: values.cpu().double() for name, values in episodes.items() if name != "broken"}
    metrics: Metrics = {}
    for name in _places(columns):
        for event in (name, f"{name}_at_end"):
            metrics |= rate(event, (columns[event] > 0.5) & ~is_broken)
        for value in ("after_s", "first_stay_s", "stay_share"):
            metrics[f"{name}_{value}"] = mean(columns[f"{name}_{value}"][~is_broken])
    metrics["path_efficiency"] = mean(columns["path_efficiency"][~is_broken])
    for name in columns:
        if name.startswith(("contact_time_share_agent", "mechanical_energy_")):
            metrics[name] = mean(columns[name][~is_broken])
    transport = float(columns["transport_j"][~is_broken].sum())
    energy = float(columns["mechanical_energy_j"][~is_broken].sum())
    metrics["cost_of_transport"] = energy / transport if transport > 0.0 else None
    return metrics


def describe_strict(metrics: Metrics) -> str:
    """Format the strict protocol's metrics, one line each."""

    def formatted(name: str, unit: str = "") -> str:
        value = metrics[name]
        return "-" if value is None else f"{value:.3f}{unit}"

    def share(name: str) -> str:
        low, high = metrics[f"{name}_ci95"]  # type: ignore[misc]
        return f"{formatted(f'{name}_rate')} ({low:.3f} to {high:.3f})"

    rows = []
    for name in _places(metrics):
        title = name.replace("_", " ").replace("10deg", f"within 10 degrees, {HEADING_RADIUS:g} m")
        rows.append(
            (f"object {title}", f"{share(name)}, after {formatted(f'{name}_after_s', ' s')}")
        )
        stay = (
            f"{formatted(f'{name}_first_stay_s', ' s')} at first, "
            f"{formatted(f'{name}_stay_share')} of the time left"
        )
        rows.append(("  it stays", f"{stay}; there at the end {share(f'{name}_at_end')}"))
    rows.append(("straight distance over object path", formatted("path_efficiency")))
    rows.append(
        (
            "mechanical energy, cost of transport",
            f"{formatted('mechanical_energy_j', ' J')}, {formatted('cost_of_transport')}",
        )
    )
    agents = [
        name.removeprefix("contact_time_share_")
        for name in metrics
        if name.startswith("contact_time_share_")
    ]
    rows += [
        (
            agent,
            f"touches the object {formatted(f'contact_time_share_{agent}')} of the time, "
            f"{formatted(f'mechanical_energy_{agent}_j', ' J')}",
        )
        for agent in agents
    ]
    return "".join(f"{label:<40}{value}\n" for label, value in rows)


def _places(names: Iterable[str]) -> list[str]:
    """Return the places that metrics of these names are about."""
    suffix = "_stay_share"
    return [name.removesuffix(suffix) for name in names if name.endswith(suffix)]
