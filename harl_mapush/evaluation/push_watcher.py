"""A team's pushes: impulse towards the goal, time in contact, direction, rest.

Contact forces come from the simulator at every physics step (200 Hz), since legs touch for a few
milliseconds. Forces are horizontal, net of each robot on the object. Directions and
velocities belong to the start of the step. Definitions:

- A robot *pushes* during a physics step if its force is above ``PUSH_FORCE``, 1 N: the lightest
  object, the T-block with 3 kg, takes 11 N to slide, and a solver's residue stays far below.
- A team's *pushing time* is the physics steps with at least one pushing robot. Its *phase* lasts
  from the first such step to the last.
- The *useful* force is the component from the object towards the goal, negative away from it.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from mqe.env.environment import MultiAgentEnv
from mqe.env.observer import Observer, PhysicsStep
from mqe.tasks.episode_report import Metrics, mean, rate, with_interval
from mqe.tasks.push.features import NOSE_ANGLE
from mqe.world.geometry import dot, length
from mqe.world.objects import REST_SPEED
from mqe.world.scene import MAX_ROBOTS, PHYSICS_DT
from mqe.world.state import SceneState

PUSH_FORCE = 1.0  # [N]
# Sums of an episode for each robot, then of the team.
_ROBOT_SUMS = (
    "useful_impulse",  # [N s]
    "pushing",  # [s] that the robot pushes
    "impulse",  # [N s] of the force's magnitude
    "ahead",  # [N s] of it, with the force near the nose's direction
)
_TEAM_SUMS = ("pushing", "all_pushing", "phase")  # [s]
_ENDS = ("distance", "speed", "heading_error")  # [m], [m/s], [rad] at the last control step
# Lines of text: a label and the names of its metrics. Lines of missing metrics are left out.
_LINES = (
    ("the least useful share, mean", ("lesser_useful_share",)),
    ("all push at once, of the pushing time", ("simultaneous_share",)),
    ("a robot in contact, of the phase", ("touch_share_of_phase",)),
    ("pushed ahead, of all impulse", ("push_ahead_share",)),
    ("object at the end [m], [m/s]", ("end_distance_m", "end_speed_m_s")),
    ("object still at the goal at the end", ("still_at_goal_rate",)),
    ("heading error at the end [degrees]", ("end_heading_error_deg",)),
    *(
        (
            f"agent{i}: useful share, in contact",
            (f"useful_share_agent{i}", f"touch_share_of_phase_agent{i}"),
        )
        for i in range(MAX_ROBOTS)
    ),
)


class PushTotals:
    """Sums over the physics steps of N episodes with A robots."""

    def __init__(self, num_envs: int, num_agents: int, device: torch.device | str = "cpu") -> None:
        """Begin with no steps."""
        self.robots = torch.zeros(len(_ROBOT_SUMS), num_envs, num_agents, device=device)
        self.team = torch.zeros(len(_TEAM_SUMS), num_envs, device=device)
        self._has_begun = torch.zeros(num_envs, dtype=torch.bool, device=device)
        self._pause = torch.zeros(num_envs, device=device)  # [s] since the last push of any robot

    def add(self, force: Tensor, ahead: Tensor, goal_direction: Tensor) -> None:
        """Add K physics steps.

        Horizontal vectors: ``force`` (K, N, A, 2) [N] from each robot on the object, ``ahead``
        (K, N, A, 2) the robots' headings as unit vectors, and ``goal_direction`` (K, N, 2) the unit
        vector from the object to the goal. A world with all forces zero is not pushed.
        """
        magnitude = length(force)
        is_pushing = magnitude > PUSH_FORCE
        useful = dot(force, goal_direction.unsqueeze(2))

        is_ahead = dot(force, ahead) >= math.cos(NOSE_ANGLE) * magnitude
        sums = torch.stack((useful, is_pushing.float(), magnitude, magnitude * is_ahead))
        self.robots += sums.sum(dim=1) * PHYSICS_DT
        self._follow_phase(is_pushing)

    def _follow_phase(self, is_pushing: Tensor) -> None:
        """Count the team's pushing time, and the phase up to the last push."""
        pushing, all_pushing, phase = self.team
        pushing += is_pushing.any(dim=2).sum(dim=0) * PHYSICS_DT
        all_pushing += is_pushing.all(dim=2).sum(dim=0) * PHYSICS_DT
        for pushes in is_pushing.any(dim=2):
            self._has_begun |= pushes
            self._pause += self._has_begun * PHYSICS_DT
            phase += self._pause * pushes
            self._pause *= ~pushes


class PushWatcher(Observer):
    """Measures how the robots push the object in every world's first episode.

    The environment then takes its physics steps one by one, and on a GPU outside CUDA graphs, so
    watched episodes take longer. The host reads nothing before the end.
    """

    needs_physics_steps = True

    def __init__(self, env: MultiAgentEnv) -> None:
        """Watch ``env`` with no world finished."""
        self._is_finished = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
        self._goal_radius = env.task.features.success_radius
        self._heading_error = env.task.features.heading_error
        self._steps: list[PhysicsStep] = []  # of the present control step
        self._totals = PushTotals(env.num_envs, env.scene.num_robots, env.device)
        self._end = torch.full((len(_ENDS), env.num_envs), torch.nan, device=env.device)

    def finish(self, is_finished: Tensor) -> None:
        """Exclude the worlds of ``is_finished`` (N,) from further measurements."""
        self._is_finished = is_finished.clone()

    def on_physics_step(self, step: PhysicsStep) -> None:
        """Keep the step until its control step is known to count."""
        self._steps.append(step)

    def on_control_step(self, state: SceneState, live: Tensor) -> None:
        """Add the physics steps of a control step, and keep the object's last state."""
        counts = live & ~self._is_finished

        def counted(values: list[Tensor]) -> Tensor:
            stacked = torch.stack(values)
            mask = counts.view(-1, *[1] * (stacked.dim() - 2))
            return torch.where(mask, stacked, 0.0)

        states = [step.state for step in self._steps]
        force = counted([state.contact_force[..., :2] for state in states])
        self._totals.add(
            force,
            counted([state.robot_frame[:, :, 0] for state in states]),
            counted([state.goal_direction for state in states]),
        )
        self._steps.clear()

        if self._heading_error is None:
            error = torch.full_like(state.goal_distance, torch.nan)
        else:
            error = self._heading_error(state.object_yaw).abs()
        end = torch.stack((state.goal_distance, length(state.object_linvel), error))
        self._end = torch.where(counts, end, self._end)

    def episodes(self) -> dict[str, Tensor]:
        """Return the episodes' sums (N,) by name."""
        sums = {f"team_{name}": self._totals.team[k] for k, name in enumerate(_TEAM_SUMS)}
        for k, name in enumerate(_ROBOT_SUMS):
            for agent, of_robot in enumerate(self._totals.robots[k].unbind(dim=1)):
                sums[f"{name}_agent{agent}"] = of_robot
        for k, name in enumerate(_ENDS):
            sums[f"end_{name}"] = self._end[k]
        distance, speed, _ = self._end
        is_still = (distance < self._goal_radius) & (speed < REST_SPEED)
        sums["end_still"] = is_still.float()
        return sums


def summarize(episodes: Mapping[str, Tensor]) -> Metrics:
    """Return the metrics of pushing, without broken episodes.

    Means over episodes:

    - ``useful_share_agent<i>``: max(J_i, 0) / sum_j max(J_j, 0), with J a robot's useful
      impulse (useful force times dt), over episodes with a positive one
    - ``lesser_useful_share``: the least such share in an episode
    - ``end_distance_m``, ``end_speed_m_s``: the object's distance from the goal and its speed
      at the last control step
    - ``end_heading_error_deg``: turn to the goal's heading at the last control step, from
      the nearest heading with the same outline, with ``task.goal_heading`` only
    - ``still_at_goal_rate``: episodes ending with the object within ``task.success_radius`` and
      slower than 0.02 m/s, with their Wilson interval

    Ratios between sums over all episodes and robots, so an episode counts by its amount of
    pushing:

    - ``simultaneous_share``: time with all robots pushing / pushing time
    - ``touch_share_of_phase``, and ``touch_share_of_phase_agent<i>`` of a robot: a robot's
      pushing time / the team's phase
    - ``push_ahead_share``: impulse within 60 degrees from the nose / all impulse
    """
    is_counted = ~episodes["broken"].cpu().bool()
    sums = {name: values.cpu().double()[is_counted] for name, values in episodes.items()}
    still = torch.zeros(len(is_counted), dtype=torch.bool)
    still[is_counted] = sums["end_still"] > 0.5
    return {
        **_team_means(sums),
        **rate("still_at_goal", still),
        **_robot_means(sums),
        **_ratios(sums),
    }


def describe(metrics: Metrics) -> str:
    """Format the metrics of pushing."""
    text = ""
    for label, names in _LINES:
        if all(name in metrics for name in names):
            values = ", ".join(with_interval(metrics, name) for name in names)
            text += f"{label:<40}{values}\n"
    return text


def _of_robots(sums: Mapping[str, Tensor], name: str) -> Tensor:
    """Return the robots' sums (N, A) under ``name``."""
    num_agents = sum(key.startswith("useful_impulse_agent") for key in sums)
    return torch.stack([sums[f"{name}_agent{i}"] for i in range(num_agents)], dim=1)


def _useful_shares(sums: Mapping[str, Tensor]) -> Tensor:
    """Return the robots' fractions (N, A) of the useful impulse.

    NaN: no robot has a positive impulse, and no mean counts the episode.
    """
    positive = _of_robots(sums, "useful_impulse").clamp(min=0.0)
    return positive / positive.sum(dim=1, keepdim=True)


def _team_means(sums: Mapping[str, Tensor]) -> Metrics:
    """Return the team's means over episodes."""
    return {
        "lesser_useful_share": mean(_useful_shares(sums).amin(dim=1)),
        "simultaneous_share": _ratio(sums["team_all_pushing"], sums["team_pushing"]),
        "end_distance_m": mean(sums["end_distance"]),
        "end_speed_m_s": mean(sums["end_speed"]),
        "end_heading_error_deg": mean(sums["end_heading_error"].rad2deg()),
    }


def _robot_means(sums: Mapping[str, Tensor]) -> Metrics:
    """Return each robot's mean share of the useful impulse."""
    shares = _useful_shares(sums).unbind(dim=1)
    return {f"useful_share_agent{i}": mean(share) for i, share in enumerate(shares)}


def _ratios(sums: Mapping[str, Tensor]) -> Metrics:
    """Return the ratios between sums over all episodes."""
    pushing = _of_robots(sums, "pushing")
    phase = sums["team_phase"].unsqueeze(1).expand_as(pushing)
    ratios: Metrics = {"touch_share_of_phase": _ratio(pushing, phase)}
    for i in range(pushing.shape[1]):
        ratios[f"touch_share_of_phase_agent{i}"] = _ratio(pushing[:, i], phase[:, i])
    ratios["push_ahead_share"] = _ratio(_of_robots(sums, "ahead"), _of_robots(sums, "impulse"))
    return ratios


def _ratio(upper: Tensor, lower: Tensor) -> float | None:
    """Return the ratio of two sums, None if it is not finite."""
    ratio = float(upper.sum() / lower.sum())
    return ratio if math.isfinite(ratio) else None
