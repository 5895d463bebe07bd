"""The onboard senses: frames of a sensor, detections with delays and errors, and odometry.

A sensor takes a frame at its own rate. A frame's detections arrive after the latency. A robot acts
on the newest arrived frame, so a model needs no more than the scene at that frame's time. N worlds,
A robots, B = A + 1 bodies, E = A entities of a robot (the object, then the others), H control steps
of history.
"""

from __future__ import annotations

import math
from itertools import chain

import torch
from torch import Tensor

from mapush.extensions.onboard.recollection import KnownFeatures, Recollection
from mapush.extensions.onboard.settings import OnboardCfg
from mapush.extensions.onboard.sight import Sensor, Views
from mqe.config import ConfigError
from mqe.tasks.push.features import PushConstants, SceneFeatures
from mqe.tasks.terms import Memory
from mqe.world.geometry import TWO_PI, length, rotate_2d
from mqe.world.randomization import bounds
from mqe.world.robots import Robots
from mqe.world.scene import STEP_DT
from mqe.world.state import SceneState
from mqe.world.streams import Streams, UniformRanges

_EPISODE = 60  # stream: properties of sensors and odometry in an episode
_FRAME = 61  # stream: noise and dropouts of a frame
_KEYS_AN_EPISODE = 1 << 26  # more control steps than any episode has
_LEAST_POINTS = 2  # of the outline, in a detection of the object
_SOURCES = {
    "goal": "given place of the goal, and the robot's odometry",
    "object": "last detection of the object, moved by the robot's odometry",
    "teammates": "last detection of each mate, moved by the robot's odometry",
    "heading_error": "given heading at the goal, and the last detection of the object",
    "own_velocity": "the robot's odometry",
    "outline": "visible outline in the last detection of the object",
    "present": "1 on every robot",
}
_SAME_SOURCES = {
    "object_and_yaw": "object",
    "object_place": "object",
    "object_age": "object",
    "teammates_and_yaw": "teammates",
    "others": "teammates",
    "others_and_age": "teammates",
}


class OnboardSenses:
    """Sensors and odometry of all robots in N worlds."""

    def __init__(
        self,
        cfg: OnboardCfg,
        memory: Memory,
        values: Tensor,
        constants: PushConstants,
        robots: Robots,
        streams: Streams,
    ) -> None:
        """Keep the observed part of ``memory`` in ``values`` (N, C)."""
        num_envs = len(values)
        num_agents = constants.num_agents
        device = values.device
        self.cfg = cfg
        self.views = Views(constants.footprint, robots, constants.observed)
        if cfg.sight[1] < self.views.trunks.length:
            raise ConfigError(
                f"task.senses.sight: {cfg.sight[1]:g} m end inside a trunk of "
                f"{self.views.trunks.length:.2f} m; say [{cfg.sight[0]:g}, 3]"
            )
        self._num_agents = num_agents
        self._period = constants.cfg.decision_period
        self._observed = constants.observed
        self._order = constants.order[:, 1:]
        self._streams = streams
        self._recollection = Recollection(memory.keep("recollection", values), num_agents)
        self._time = memory.remember("sensed_time")  # (N,) control steps of the episode
        self._is_dropped = memory.remember(
            "dropped", num_agents, num_agents, dtype=torch.bool, start=0.0
        )
        latest = bounds(cfg.latency)[1] + 1.0 / bounds(cfg.rate)[0]
        num_steps = 2 + math.ceil(latest / STEP_DT)
        # (N, H, B, 4) poses, the newest first. Earlier episodes may follow the present one.
        self._history = memory.remember("history", num_steps, num_agents + 1, 4, start=None)
        # Poses at the beginning of the decision's control steps so far.
        self._earlier: list[Tensor] = []

        ranges: dict[str, list[tuple[float, float]]] = {
            "field_of_view": [bounds(cfg.field_of_view)],
            "rate": [bounds(cfg.rate)],
            "phase": [(0.0, 1.0)],
            "latency": [bounds(cfg.latency)],
            "dropout": [bounds(cfg.dropout)],
            "drift": [(-cfg.drift, cfg.drift)] * 2,
            "heading_drift": [(-cfg.heading_drift, cfg.heading_drift)],
            "place_bias": [(-cfg.place_bias, cfg.place_bias)] * (2 * num_agents),
            "heading_bias": [(-cfg.heading_bias, cfg.heading_bias)] * num_agents,
        }
        sizes = [len(columns) for columns in ranges.values()]
        self._ranges = UniformRanges([*chain(*ranges.values())] * num_agents, device)
        self._episode = memory.remember("sensed_episode", start=None, dtype=torch.int64)
        drawn = memory.remember("sensors", num_agents, sum(sizes), start=None)
        self._drawn = drawn
        self._draws = dict(zip(ranges, drawn.split(sizes, dim=2), strict=True))
        self._world = torch.arange(num_envs, device=device).unsqueeze(1)
        self._robot = torch.arange(num_agents, device=device)

    def draw(self, episode: Tensor) -> None:
        """Draw every robot's sensor and odometry for episode number ``episode`` (N,)."""
        self._episode.copy_(episode)
        drawn = self._ranges.draw(self._streams, _EPISODE, episode)
        self._drawn.copy_(drawn.view_as(self._drawn))

    def watch(self, scene: SceneFeatures, prev: SceneState) -> None:
        """Add a control step. The decision's last one updates the memory."""
        self._earlier.append(_poses(prev))
        if len(self._earlier) < self._period:
            return
        poses = _poses(scene.state)
        self._walk(poses[:, :-1, :2] - self._earlier[0][:, :-1, :2])
        passed = [poses, *reversed(self._earlier)]
        history = torch.cat((torch.stack(passed, dim=1), self._history[:, 1:]), dim=1)
        self._history.copy_(history[:, : self._history.shape[1]])
        self._earlier.clear()
        self._time += self._period
        self._detect(scene.roster.takes_part)

    def known(self, scene: SceneFeatures, memory: Tensor) -> KnownFeatures:
        """Return features of W worlds as the robots know them."""
        return KnownFeatures(scene, Recollection(memory, self._num_agents))

    def source(self, term: str) -> str | None:
        """Return the source of an observation term on a robot, None for exact components."""
        return _SOURCES.get(_SAME_SOURCES.get(term, term))

    def _walk(self, way: Tensor) -> None:
        """Let the odometry drift along each robot's way (N, A, 2) [m] in a decision."""
        drift = self._recollection.drift
        error = self._draws["drift"]
        left = torch.stack((-way[..., 1], way[..., 0]), dim=-1)
        measured = way * (1.0 + error[..., :1]) + left * error[..., 1:]
        measured = rotate_2d(measured, drift[..., 2])
        turned = length(way).unsqueeze(-1) * self._draws["heading_drift"]
        drift.add_(torch.cat((measured - way, turned), dim=-1))

    def _frames(self) -> tuple[Tensor, Tensor]:
        """Return a mask (N, A) of robots with a newly arrived frame, and the frame's age (N, A) in
        control steps.
        """
        period = 1.0 / (STEP_DT * self._draws["rate"][..., 0])
        first = self._draws["phase"][..., 0] * period
        arrival = first + self._draws["latency"][..., 0] / STEP_DT
        time = self._time.unsqueeze(1)
        number = ((time - arrival) / period).floor()
        before = ((time - self._period - arrival) / period).floor()
        taken = (first + number * period).floor()
        age = (time - taken).clamp(0, self._history.shape[1] - 1)
        return (number > before) & (number >= 0.0), age

    def _detect(self, takes_part: Tensor) -> None:
        """Remember the bodies in newly arrived frames."""
        is_new, age = self._frames()
        poses = self._history[self._world, age.long()]  # (N, A, B, 4)
        robot = poses[:, self._robot, self._robot]
        is_outline_visible, are_others_visible = self.views(self._sensor(robot), poses)
        is_object_visible = is_outline_visible.sum(dim=2, keepdim=True) >= _LEAST_POINTS
        others_take_part = takes_part[:, self._order] > 0.0
        is_visible = torch.cat((is_object_visible, are_others_visible & others_take_part), dim=2)

        shape = (7, self._num_agents, self._num_agents)
        key = self._episode * _KEYS_AN_EPISODE + self._time.long()
        drawn = self._streams.uniform(_FRAME, key, shape)
        self._drop(is_new, drawn[:, 0])
        is_detected = is_visible & is_new.unsqueeze(-1) & ~self._is_dropped
        entities = poses[:, self._robot.unsqueeze(1), self._observed]
        entities = self._measured(robot, entities, _normal(drawn[:, 1:4], drawn[:, 4:]))

        memory = self._recollection
        tick = STEP_DT / self.cfg.memory_time
        memory.freshness.sub_(self._period * tick).clamp_(min=0.0)
        fresh = (1.0 - tick * age).clamp(min=0.0).unsqueeze(-1).expand_as(memory.freshness)
        detected = torch.cat((entities, fresh.unsqueeze(-1)), dim=-1)
        memory.entities.copy_(torch.where(is_detected.unsqueeze(-1), detected, memory.entities))
        outline = torch.where(is_detected[..., :1], is_outline_visible.float(), memory.outline)
        memory.outline.copy_(outline)

    def _sensor(self, robot: Tensor) -> Sensor:
        """Return the sensors on robots with poses (N, A, 4)."""
        place, ahead = robot.split(2, dim=-1)
        yaw = self.cfg.mounting_yaw
        left = torch.stack((-ahead[..., 1], ahead[..., 0]), dim=-1)
        return Sensor(
            place + self.cfg.mounting_x * ahead,
            math.cos(yaw) * ahead + math.sin(yaw) * left,
            torch.cos(0.5 * self._draws["field_of_view"][..., 0]),
            *self.cfg.sight,
        )

    def _drop(self, is_new: Tensor, drawn: Tensor) -> None:
        """Begin and end bursts of missing detections with each new frame. ``drawn`` (N, A, E) are
        uniform numbers.
        """
        share = self._draws["dropout"]
        burst = (self._draws["rate"] * self.cfg.dropout_time).clamp(min=1.0)  # frames
        ends = drawn < 1.0 / burst
        begins = drawn < share / ((1.0 - share) * burst)
        dropped = torch.where(self._is_dropped, ~ends, begins)
        self._is_dropped.copy_(torch.where(is_new.unsqueeze(-1), dropped, self._is_dropped))

    def _measured(self, robot: Tensor, entities: Tensor, noise: Tensor) -> Tensor:
        """Return poses of entities (N, A, E, 4) as measured, in each robot's odometry frame.

        ``noise`` (N, 3, A, E) is standard normal. The odometry's drift within the latency is left
        out.
        """
        place, ahead = robot.unsqueeze(2).split(2, dim=-1)
        drift = self._recollection.drift.unsqueeze(2)
        bias = self._draws["place_bias"].unflatten(2, (self._num_agents, 2))
        left = torch.stack((-ahead[..., 1], ahead[..., 0]), dim=-1)
        error = bias[..., :1] * ahead + bias[..., 1:] * left
        error = error + self.cfg.place_noise * noise[:, :2].movedim(1, -1)
        offset = entities[..., :2] - place + error
        turn = self.cfg.heading_noise * noise[:, 2] + self._draws["heading_bias"] + drift[..., 2]
        heading = rotate_2d(entities[..., 2:], turn)
        return torch.cat(
            (place + drift[..., :2] + rotate_2d(offset, drift[..., 2]), heading), dim=-1
        )


def _poses(state: SceneState) -> Tensor:
    """Return the poses (N, B, 4) of robots and object."""
    return torch.cat((state.body_pos[..., :2], state.frame[..., 0, :]), dim=-1)


def _normal(first: Tensor, second: Tensor) -> Tensor:
    """Return standard normal numbers from two tensors of uniform ones, by Box and Muller."""
    return torch.sqrt(-2.0 * torch.log(1.0 - first)) * torch.cos(TWO_PI * second)
