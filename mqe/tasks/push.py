"""Mid level, task ``go1push_mid``: a team pushes an object to a goal by commanding velocities to a frozen gait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from mqe.config import ConfigError, option
from mqe.geometry import TWO_PI, rotate, rotate_2d
from mqe.objects import INERTIAS, OBJECTS, Footprint
from mqe.scene import STEP_DT
from mqe.state import SceneState
from mqe.streams import Streams
from mqe.task import Disturbance, Layout, Outcome
from mqe.tasks import terminations
from mqe.tasks.layouts import SPAWNS, PushLayouts
from mqe.tasks.rewards import PRESETS, TERMS, Measures, Pairs, PushWeights, measure, weights_of

EXCEPTIONS = ("roll", "pitch", "height", "collision")  # endings that are failures
COLLABORATION_DISTANCE = 0.5  # [m] trunk to the object's outline: close enough to be at work
REFERENCE_COLLABORATION_DISTANCE = 1.0  # [m] trunk to the object's origin, the reference's definition


class Controller(Protocol):
    """What turns velocity commands into joint targets."""

    def begin(self, mask: Tensor) -> None: ...

    def targets(self, command: Tensor, state: SceneState) -> Tensor: ...

    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None: ...


@dataclass(frozen=True)
class PushCfg:
    """The push task: what is pushed, what is seen, what is paid, how it starts and ends."""

    name: str = option("go1push_mid", choices=("go1push_mid",))
    object: str = option("cuboid", "what is pushed", choices=OBJECTS)
    gait: str = option("pretrained:go1_velocity", "the frozen policy that walks")
    rewards: str = option("default", "reward preset", choices=PRESETS)
    weights: PushWeights = option(PushWeights, "single weights that replace the preset's")
    observation: str = option("sincos", "angles as sine and cosine, or in [0, 2 pi)", choices=("sincos", "reference"))
    state_type: str = option("EP", "one critic state an environment, or one an agent", choices=("EP", "FP"))
    spawn: str = option("separated", "robots born apart, or anywhere on the ring", choices=SPAWNS)
    goal_distance: tuple[float, float] = option((1.5, 3.0), "range of the goal's distance at birth [m]", above=0.0)
    decision_period: int = option(1, "control steps (50 Hz) that a command is held", min=1)
    episode_length_s: float = option(20.0, "time limit [s]", above=0.0)
    success_radius: float = option(1.0, "object's origin this near the goal is success [m]", above=0.0)
    roll_limit: float = option(terminations.ROLL_LIMIT, "a trunk rolled further has fallen [rad]", above=0.0)
    pitch_limit: float = option(
        terminations.PITCH_LIMIT, "a trunk pitched further has fallen [rad]; the reference's 1.6 never ends", above=0.0
    )
    action_scale: tuple[float, float, float] = option(
        (0.5, 0.5, 0.5), "command at action 1: vx, vy [m/s], yaw rate [rad/s]", above=0.0, max=1.0
    )
    inertia: str = option("physical", "the object's inertia, or the reference's placeholder", choices=INERTIAS)

    def __post_init__(self) -> None:
        steps = round(self.episode_length_s / STEP_DT)
        if steps < 1 or steps % self.decision_period:
            raise ConfigError(
                f"task.decision_period: {self.decision_period} does not divide the {steps} control steps of "
                f"task.episode_length_s {self.episode_length_s}; take a divisor of {max(steps, 1)}"
            )
        nearest, furthest = self.goal_distance
        if not self.success_radius < nearest <= furthest:
            raise ConfigError(
                f"task.goal_distance: {list(self.goal_distance)} must be two distances in ascending order, both above "
                f"task.success_radius {self.success_radius}"
            )


class PushTask:
    """N worlds, A agents, three numbers an action: forward, sideways and turning speed in [-1, 1]."""

    def __init__(
        self,
        cfg: PushCfg,
        num_envs: int,
        num_agents: int,
        device: torch.device,
        streams: Streams,
        controller: Controller,
    ) -> None:
        """Push with ``num_agents`` robots that ``controller`` walks."""
        self.cfg = cfg
        self.object = OBJECTS[cfg.object]
        self.num_agents = a = num_agents
        self.decision_period = cfg.decision_period
        self.max_episode_length = round(cfg.episode_length_s / STEP_DT)
        self.state_type = cfg.state_type
        self.uses_sincos = cfg.observation == "sincos"
        self.obs_sizes: tuple[int, ...] = (2 + 4 * a if self.uses_sincos else 2 + 3 * a,) * a
        self.action_sizes: tuple[int, ...] = (3,) * a
        self.state_size = 6 + 7 * a if self.uses_sincos else 5 + 6 * a
        self.weights = weights_of(cfg.rewards, cfg.object, cfg.weights)

        self._controller = controller
        self._streams = streams
        self._footprint = Footprint(self.object, device)
        self._pairs = Pairs(a, device)
        self._layouts = PushLayouts(self._footprint, a, cfg.spawn, cfg.goal_distance, device)
        # Row i lists robot i, then i - 1, i - 2, ... round the team.
        order = [[(i - k) % a for k in range(a)] for i in range(a)]
        self._order = torch.tensor(order, dtype=torch.int64, device=device)
        self._action_scale = torch.tensor(cfg.action_scale, device=device)
        self._command = torch.zeros(num_envs, a, 3, device=device)

    def layout(self, episode: Tensor) -> Layout:
        """Draw the start of episode number ``episode`` (N,) of every world."""
        return self._layouts.draw(self._streams, episode)

    def begin(self, mask: Tensor, state: SceneState) -> None:
        """Forget the old episodes of ``mask``."""
        self._command.masked_fill_(mask.view(-1, 1, 1), 0.0)
        self._controller.begin(mask)

    def command(self, actions: Tensor) -> None:
        """Take actions (N, A, 3) in [-1, 1] and hold the velocities they ask for."""
        self._command.copy_(actions * self._action_scale)

    def targets(self, state: SceneState) -> Tensor:
        """Give the gait's joint targets (N, A, 12) [rad]."""
        return self._controller.targets(self._command, state)

    def disturb(self, step: Tensor) -> Disturbance | None:
        """Leave the robots alone."""
        return None

    def evaluate(self, state: SceneState, prev: SceneState) -> Outcome:
        """Judge one control step."""
        m = measure(state, prev, self._footprint, self._pairs)
        endings = self._endings(m)
        is_exception = endings["roll"] | endings["pitch"] | endings["height"] | endings["collision"]
        paid = {"reach": endings["success"], "exception": is_exception}
        rewards = {}
        for name, weight in self.weights.items():
            term = weight * (TERMS[name](m) if name in TERMS else paid[name])
            rewards[name] = term if term.dim() == 2 else term.unsqueeze(1).expand(-1, self.num_agents)
        return Outcome(rewards, endings, self._metrics(m))

    def observe(self, state: SceneState) -> tuple[Tensor, Tensor]:
        """Give every agent's view (N, A, O) in its own heading frame, and the critic's of the whole arena.

        An agent sees goal and object (x, y), the object's heading, then of every other robot, in the order i - 1,
        i - 2, ... round the team, (x, y) and heading. The critic sees object (x, y, heading), goal (x, y), and of every
        robot position (x, y), heading, velocity (x, y) and yaw rate: all in the arena's frame, metres, radians and
        seconds. A heading is one number in [0, 2 pi), or its sine and cosine. ``FP`` gives every agent that state with
        the robots in its own order, itself first.
        """
        pos, yaw = state.robot_pos[..., :2], state.robot_yaw
        goal, box = state.goal_pos[:, :2], state.object_pos[:, :2]
        n, a = yaw.shape
        others = self._order[:, 1:]
        seen_pos = torch.cat(
            (torch.stack((goal, box), dim=1).unsqueeze(1).expand(-1, a, -1, -1), pos[:, others]), dim=2
        )
        seen_yaw = torch.cat((state.object_yaw.view(n, 1, 1).expand(-1, a, -1), yaw[:, others]), dim=2)
        seen_pos = rotate_2d(seen_pos - pos.unsqueeze(2), -yaw.unsqueeze(2))
        heading = self._heading(seen_yaw - yaw.unsqueeze(2))
        rest = torch.cat((seen_pos[:, :, 1:], heading), dim=-1).flatten(2)
        obs = torch.cat((seen_pos[:, :, 0], rest), dim=-1)

        yaw_rate = rotate(state.robot_quat, state.robot_angvel_b)[..., 2:]
        robots = torch.cat((pos, self._heading(yaw), state.robot_linvel[..., :2], yaw_rate), dim=-1)
        world = torch.cat((box, self._heading(state.object_yaw), goal), dim=-1)
        if self.state_type == "EP":
            return obs, torch.cat((world, robots.flatten(1)), dim=-1)
        ordered = robots[:, self._order].flatten(2)
        return obs, torch.cat((world.unsqueeze(1).expand(-1, a, -1), ordered), dim=-1)

    def episode_metrics(self, sums: dict[str, Tensor], steps: Tensor, outcome: dict[str, Tensor]) -> dict[str, Tensor]:
        """Give success, collision and fall (0 or 1), time, collaboration degrees, and who did the work.

        The collaboration degrees, shares of control steps, count for successes only. An agent's share of the contact
        impulse counts where anybody touched the object.
        """
        count = steps.clamp(min=1)
        is_success = outcome["success"]
        figures = {
            "success": is_success.float(),
            "collision": outcome["collision"].float(),
            "fall": (outcome["roll"] | outcome["pitch"] | outcome["height"]).float(),
            "episode_time_s": steps * STEP_DT,
            "collaboration_degree": torch.where(is_success, sums["collaboration"] / count, torch.nan),
            "collaboration_degree_reference": torch.where(
                is_success, sums["collaboration_reference"] / count, torch.nan
            ),
        }
        share = sums["contact_impulse"] / sums["contact_impulse"].sum(dim=1, keepdim=True)  # 0 / 0 is NaN, as it should
        distance = sums["object_distance"] / count.unsqueeze(1)
        for i in range(self.num_agents):
            figures[f"contact_share_agent{i}"] = share[:, i]
            figures[f"object_distance_agent{i}"] = distance[:, i]
        return figures

    def state_dict(self) -> dict[str, Any]:
        """The command that is held and the gait's memory."""
        return {"command": self._command.clone(), "controller": self._controller.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state_dict``."""
        self._command.copy_(state["command"])
        self._controller.load_state_dict(state["controller"])

    def _heading(self, angle: Tensor) -> Tensor:
        """Give an angle (...) as the policy sees it: (..., 1) in [0, 2 pi), or (..., 2) sine and cosine."""
        if self.uses_sincos:
            return torch.stack((torch.sin(angle), torch.cos(angle)), dim=-1)
        return torch.remainder(angle, TWO_PI).unsqueeze(-1)

    def _endings(self, m: Measures) -> dict[str, Tensor]:
        state, cfg = m.state, self.cfg
        roll, pitch = terminations.tilt(state.robot_quat, cfg.roll_limit, cfg.pitch_limit)
        robot_z, object_z = state.robot_pos[..., 2], state.object_pos[:, 2]
        return {
            "success": terminations.success(m.goal_distance, cfg.success_radius),
            "roll": roll,
            "pitch": pitch,
            "height": terminations.height(robot_z, object_z, self.object.spawn_height),
            "collision": terminations.collision(m.pair_distance, self.object.collision_distance),
        }

    def _metrics(self, m: Measures) -> dict[str, Tensor]:
        at_work = (m.outline_distance <= COLLABORATION_DISTANCE).all(dim=1)
        near = (m.center_distance < REFERENCE_COLLABORATION_DISTANCE).all(dim=1)
        return {
            "collaboration": at_work.float(),
            "collaboration_reference": near.float(),
            "contact_impulse": torch.linalg.vector_norm(m.state.contact_force, dim=-1) * STEP_DT,
            "object_distance": m.center_distance,
        }
