"""The onboard senses: frames, delayed detections with errors, and odometry.

A sensor takes a frame at its own rate. Detections arrive after the latency. A robot acts on the
newest arrived frame, so a model needs only the scene at that frame's time. N worlds, A robots,
B = A + 1 bodies, E = A entities per robot (the object, then the others), H control steps in the
history.
"""

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
from mqe.world.geometry import TWO_PI, length, on_circle, rotate_2d, turned
from mqe.world.randomization import bounds
from mqe.world.robots import Robots
from mqe.world.scene import STEP_DT
from mqe.world.state import SceneState, overwrite
from mqe.world.streams import Streams, UniformRanges

_EPISODE = 60  # stream: properties of sensors and odometry in an episode
_FRAME = 61  # stream: noise and dropouts of a frame
_KEYS_AN_EPISODE = 1 << 26  # more control steps than any episode has
_LEAST_POINTS = 2  # of the outline, in a detection of the object
_LEAST_DEPTH = 0.1  # [m] from the nearest to the furthest measured distance
_MOTION_TIME = 0.5  # [s] over which the object's velocity is averaged
_OBJECT = "last detection of the object, moved by the robot's odometry"
_TEAMMATES = "last detection of each teammate, moved by the robot's odometry"
_SOURCES = {
    "goal": "given place of the goal, and the robot's odometry",
    "object": _OBJECT,
    "object_and_yaw": _OBJECT,
    "object_place": _OBJECT,
    "object_age": _OBJECT,
    "teammates": _TEAMMATES,
    "teammates_and_yaw": _TEAMMATES,
    "others": _TEAMMATES,
    "others_and_age": _TEAMMATES,
    "heading_error": "given heading at the goal, and the last detection of the object",
    "own_velocity": "the robot's odometry",
    "object_velocity": "motion of the object between its detections",
    "load": "given push that slides the object",
    "outline": "outline seen since the object is known, at its last detection",
    "present": "1 on every robot",
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
        """Keep the observed memory in ``values`` (N, C), and everything else in ``memory``."""
        num_agents = constants.num_agents
        self._cfg = cfg
        self.has_mirror = cfg.mounting_yaw == 0.0
        self._views = Views(constants.footprint, robots, constants.observed)
        nearest, furthest = cfg.sight
        if furthest < max(self._views.trunks.length, nearest + _LEAST_DEPTH):
            raise ConfigError(
                f"task.senses.sight: no body is in sight from {nearest:g} to {furthest:g} m; say "
                "[0.3, 3]"
            )
        self._constants = constants
        self._streams = streams
        self._axis = on_circle(torch.ones(()), torch.tensor(cfg.mounting_yaw)).to(values.device)
        self._recollection = Recollection(memory.keep("recollection", values), num_agents)
        self._time = memory.remember("sensed_time")  # (N,) control steps since the episode's start
        self._is_dropped = memory.remember(
            "dropped", num_agents, num_agents, dtype=torch.bool, start=0.0
        )
        latest = bounds(cfg.latency)[1] + 1.0 / bounds(cfg.rate)[0]
        num_steps = 2 + math.ceil(latest / STEP_DT)
        # (N, H, B, 4) poses, the newest first. Earlier episodes may follow the present one.
        self._history = memory.remember("history", num_steps, num_agents + 1, 4, start=None)
        # Poses before each control step of the present decision
        self._earlier: list[Tensor] = []

        ranges = {
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
        self._ranges = UniformRanges([*chain(*ranges.values())] * num_agents, values.device)
        self._episode = memory.remember("sensed_episode", start=None, dtype=torch.int64)
        self._drawn = memory.remember("sensors", num_agents, sum(sizes), start=None)
        self._draws = dict(zip(ranges, self._drawn.split(sizes, dim=2), strict=True))
        self._world = torch.arange(len(values), device=values.device).unsqueeze(1)
        self._robot = torch.arange(num_agents, device=values.device)

    def draw(self, episode: Tensor) -> None:
        """Draw every robot's sensor and odometry for episode number ``episode`` (N,)."""
        self._episode.copy_(episode)
        drawn = self._ranges.draw(self._streams, _EPISODE, episode)
        self._drawn.copy_(drawn.view_as(self._drawn))

    def watch(self, scene: SceneFeatures, prev: SceneState) -> None:
        """Add a control step. The decision's last one updates the memory."""
        self._earlier.append(_poses(prev))
        period = self._constants.cfg.decision_period
        if len(self._earlier) < period:
            return
        poses = _poses(scene.state)
        self._walk(poses[:, :-1, :2] - self._earlier[0][:, :-1, :2])
        newest = torch.stack([poses, *reversed(self._earlier)], dim=1)
        history = torch.cat((newest, self._history[:, 1:]), dim=1)
        self._history.copy_(history[:, : self._history.shape[1]])
        self._earlier.clear()
        self._time += period
        self._detect(scene.roster.takes_part)

    def known(self, scene: SceneFeatures, memory: Tensor) -> KnownFeatures:
        """Return the features of W worlds as the robots know them."""
        return KnownFeatures(scene, Recollection(memory, self._constants.num_agents))

    def source(self, term: str) -> str | None:
        """Return an observation term's source on a robot, None for exact components."""
        return _SOURCES.get(term)

    def _walk(self, way: Tensor) -> None:
        """Let the odometry drift over each robot's displacement (N, A, 2) [m] in a decision."""
        drift = self._recollection.drift
        along, across = self._draws["drift"].split(1, dim=2)
        factor = torch.cat((1.0 + along, across), dim=2)
        measured = rotate_2d(turned(factor, way), drift[..., 2])
        turn = length(way).unsqueeze(-1) * self._draws["heading_drift"]
        drift.add_(torch.cat((measured - way, turn), dim=-1))

    def _frames(self) -> tuple[Tensor, Tensor]:
        """Return a mask (N, A) for newly arrived frames, and their ages (N, A) in control steps."""
        period = 1.0 / (STEP_DT * self._draws["rate"][..., 0])
        first = self._draws["phase"][..., 0] * period
        arrival = first + self._draws["latency"][..., 0] / STEP_DT
        time = self._time.unsqueeze(1)
        number = ((time - arrival) / period).floor()
        before = ((time - self._constants.cfg.decision_period - arrival) / period).floor()
        age = time - (first + number * period).floor()
        is_new = (number > before) & (number >= 0.0)
        return is_new, age.clamp(0, self._history.shape[1] - 1)

    def _detect(self, takes_part: Tensor) -> None:
        """Remember the bodies in newly arrived frames. Robots in ``takes_part`` (N, A) exist."""
        is_new, age = self._frames()
        poses = self._history[self._world, age.long()]  # (N, A, B, 4)
        robot = poses[:, self._robot, self._robot]
        outline, others = self._views(self._sensor(robot), poses)
        is_object_visible = outline.sum(dim=2, keepdim=True) >= _LEAST_POINTS
        are_others_there = takes_part[:, self._constants.order[:, 1:]] > 0.0
        is_visible = torch.cat((is_object_visible, others & are_others_there), dim=2)

        shape = (7, *self._is_dropped.shape[1:])
        key = self._episode * _KEYS_AN_EPISODE + self._time.long()
        drawn = self._streams.uniform(_FRAME, key, shape)
        self._drop(is_new, drawn[:, 0])
        is_detected = is_visible & is_new.unsqueeze(-1) & ~self._is_dropped
        # Standard normal numbers, by Box and Muller
        radius = torch.sqrt(-2.0 * torch.log(1.0 - drawn[:, 1:4]))
        noise = radius * torch.cos(TWO_PI * drawn[:, 4:])
        entities = poses[:, self._robot.unsqueeze(1), self._constants.observed]

        memory = self._recollection
        tick = STEP_DT / self._cfg.memory_time
        memory.freshness.sub_(self._constants.cfg.decision_period * tick).clamp_(min=0.0)
        fresh = (1.0 - tick * age).clamp(min=0.0).unsqueeze(-1).expand_as(memory.freshness)
        measured = self._measured(robot, entities, noise)
        detected = torch.cat((measured, fresh.unsqueeze(-1)), dim=-1)
        before = memory.entities[:, :, 0].clone()
        overwrite(memory.entities, is_detected, detected)

        is_known = before[..., 4:] > 0.0
        memory.outline.copy_(memory.outline * is_known + outline * is_detected[..., :1] > 0.0)
        passed = self._cfg.memory_time * (memory.freshness[..., :1] - before[..., 4:])  # [s]
        way = memory.entities[:, :, 0, :2] - before[..., :2]
        motion = memory.motion * is_known
        change = (way - motion * passed) / (passed + _MOTION_TIME)
        memory.motion.copy_(motion + change * (is_known & is_detected[..., :1]))

    def _sensor(self, robot: Tensor) -> Sensor:
        """Return the sensors for robot poses (N, A, 4)."""
        origin, ahead = robot.split(2, dim=-1)
        return Sensor(
            origin + self._cfg.mounting_x * ahead,
            turned(self._axis, ahead),
            torch.cos(0.5 * self._draws["field_of_view"][..., 0]),
            *self._cfg.sight,
        )

    def _drop(self, is_new: Tensor, drawn: Tensor) -> None:
        """Begin and end bursts of missing detections with each new frame.

        ``drawn`` (N, A, E) are uniform numbers.
        """
        share = self._draws["dropout"]
        burst = (self._draws["rate"] * self._cfg.dropout_time).clamp(min=1.0)  # frames
        ends = drawn < 1.0 / burst
        begins = drawn < share / ((1.0 - share) * burst)
        dropped = torch.where(self._is_dropped, ~ends, begins)
        overwrite(self._is_dropped, is_new, dropped)

    def _measured(self, robot: Tensor, entities: Tensor, noise: Tensor) -> Tensor:
        """Return the measured poses (N, A, E, 4) for true ``entities``, in each robot's odometry
        frame.

        ``noise`` (N, 3, A, E) is standard normal. Drift within the latency is left out.
        """
        origin, ahead = robot.unsqueeze(2).split(2, dim=-1)
        drift = self._recollection.drift.unsqueeze(2)
        bias = turned(self._draws["place_bias"].unflatten(2, (-1, 2)), ahead)
        error = bias + self._cfg.place_noise * noise[:, :2].movedim(1, -1)
        offset = rotate_2d(entities[..., :2] - origin + error, drift[..., 2])
        turn = self._cfg.heading_noise * noise[:, 2] + self._draws["heading_bias"] + drift[..., 2]
        heading = rotate_2d(entities[..., 2:], turn)
        return torch.cat((origin + drift[..., :2] + offset, heading), dim=-1)


def _poses(state: SceneState) -> Tensor:
    """Return the robots' and the object's poses (N, B, 4)."""
    return torch.cat((state.body_pos[..., :2], state.frame[..., 0, :]), dim=-1)
