"""Domain randomization: properties of bodies and motors, delays, noise and disturbances.

Everything is off by default. A single number holds for all worlds. From a range ``[low, high]``
every world, episode or moment draws its own value, from counter-based streams. World 3's fifth
episode therefore does not depend on the number of worlds.
"""

import math
from dataclasses import dataclass
from itertools import chain
from typing import Any

import mujoco
import torch
from torch import Tensor

from mqe.config import ConfigError, check_ranges, option
from mqe.resumable import Resumable
from mqe.sim.simulator import GRAVITY_FIELD
from mqe.world.actuators import MAX_DELAY, History, TargetDelay
from mqe.world.fields import WorldFields
from mqe.world.geometry import TWO_PI, length, on_circle, rotate_2d
from mqe.world.layout import Layout
from mqe.world.robots import NUM_JOINTS
from mqe.world.scene import ACTUATOR_LAG, GRAVITY, MAX_ROBOTS, PHYSICS_DT, STEP_DT, Scene
from mqe.world.state import SceneState, overwrite
from mqe.world.streams import Streams, UniformRanges

Span = float | tuple[float, float]

# [s] the motors' own lag and a step of rounding come on top.
MAX_LATENCY = (MAX_DELAY - 2) * PHYSICS_DT
# Streams: of each world once, of an episode's start, of each control step, and of each observation.
_WORLD = 20
_EPISODE = 21
_STEP = 22
_NOISE = 23
_KEYS_AN_EPISODE = 1 << 26  # more control steps than any episode has
# Columns of a DC motor's gainprm in MuJoCo
DC_RESISTANCE = 0
DC_STIFFNESS = 4
DC_DAMPING = 6
# Settings with a value for each world, in the order of their draws
_PER_WORLD = (
    "object_mass",
    "object_friction",
    "ground_friction",
    "payload",
    "motor_strength",
    "weak_robot",
    "slope",
)
# Settings of the object and its goal
_OF_THE_OBJECT = ("object_mass", "object_friction", "place_bias", "heading_bias", "goal_speed")
LOSSES = ("dead", "absent", "late", "idle")
ABSENT_DISTANCE = 10.0  # [m] from the middle of the arena to a robot that never comes
IDLE_DISTANCE = 2.2  # [m] from the object to an idle robot
IDLE_BEARING = 0.25 * math.pi  # [rad] of an idle robot, from the way to the goal
_FREEZE_SHARE = 0.5  # of the time limit, in which a freeze begins


@dataclass(frozen=True)
class RandomizationCfg:
    """Section ``env.randomize``: variations of the world, each a number or a range to draw from."""

    object_mass: Span = option(
        1.0, "factor on the object's mass and inertia, per world", min=1e-3, max=100.0
    )
    object_friction: Span = option(
        1.0, "factor on the object's friction, per world", min=1e-3, max=10.0
    )
    ground_friction: Span = option(
        1.0, "factor on the floor's friction with robots and objects, per world", min=1e-3, max=10.0
    )
    payload: Span = option(0.0, "mass added to every trunk, per world [kg]", min=-3.0, max=20.0)
    motor_strength: Span = option(
        1.0, "factor on motor stiffness, damping and torque limits, per world", min=1e-3, max=10.0
    )
    weak_robot: Span = option(
        1.0, "further factor on the motors of one robot, drawn per world", min=1e-3, max=10.0
    )
    slope: Span = option(
        0.0, "slope of the ground, uphill in a direction drawn per world [rad]", min=0.0, max=0.5
    )
    action_latency: Span = option(
        0.0,
        "delay of joint targets, per episode; below 0 counts as 0 [s]",
        min=-MAX_LATENCY,
        max=MAX_LATENCY,
    )
    latency_jitter: float = option(
        0.0,
        "largest deviation from action_latency, drawn at every control step [s]",
        min=0.0,
        max=0.02,
    )
    command_latency: Span = option(
        0.0, "delay of a task's actions, per episode [s]", min=0.0, max=0.2
    )
    observation_noise: Span = option(
        0.0,
        "standard deviation of the noise on observations, in each observation's unit times the "
        "term's noise factor, per world",
        min=0.0,
        max=10.0,
    )
    place_bias: Span = option(
        0.0,
        "offset of the observed object from the true one, in a direction drawn per episode [m]; "
        "task.senses has separate errors",
        min=0.0,
        max=10.0,
    )
    heading_bias: Span = option(
        0.0, "error of the object's observed heading, per episode [rad]", min=-3.2, max=3.2
    )
    goal_speed: Span = option(
        0.0, "speed of the goal, in a direction drawn per episode [m/s]", min=0.0, max=1.0
    )
    kick_speed: Span = option(
        0.0, "sudden change of every trunk's velocity [m/s]", min=0.0, max=5.0
    )
    kick_interval: float = option(2.0, "time between kicks [s]", min=STEP_DT, max=1e6)
    freeze_time: Span = option(
        0.0,
        "duration of zero actions of one agent, once an episode: it stands still [s]",
        min=0.0,
        max=160.0,
    )
    lost_robots: tuple[str, ...] = option(
        (),
        "ways to lose one robot of a team, one drawn per episode: dead (unpowered motors from "
        "lost_time on), absent (it stands 10 m away), late (it stands until lost_time) or idle (it "
        "stands on the object's far side, observed like a teammate)",
        choices=LOSSES,
    )
    lost_share: float = option(
        1.0, "fraction of episodes in which lost_robots takes a robot", min=0.0, max=1.0
    )
    lost_time: Span = option(
        0.0, "time in the episode at which a robot dies, or a late one begins [s]", min=0.0, max=1e6
    )
    absent_robots: tuple[int, int] = option(
        (0, 0),
        "range of the number of absent robots in an episode, drawn from the team; they stand 10 m "
        "away, and the others form a smaller team",
        min=0,
        max=MAX_ROBOTS - 1,
    )
    robot_force: float = option(
        0.0,
        "push of one robot [N]; absent_robots then leaves enough robots to slide the world's "
        "object; 0: no such limit",
        min=0.0,
        max=1e4,
    )
    fewest_share: float = option(
        0.0,
        "fraction of episodes with the smallest team that absent_robots and robot_force allow; "
        "other episodes draw any allowed size",
        min=0.0,
        max=1.0,
    )
    fewest_rise: int = option(
        0,
        "number of a world's first episodes over which fewest_share rises from 0",
        min=0,
        max=10**6,
    )

    def __post_init__(self) -> None:
        check_ranges(self, "env.randomize")
        if bounds(self.action_latency)[1] + self.latency_jitter > MAX_LATENCY:
            raise ConfigError(
                f"env.randomize.latency_jitter: {self.latency_jitter} s on top of action_latency "
                f"exceeds {MAX_LATENCY} s; lower one of them"
            )

    def varies(self, name: str) -> bool:
        """Return whether a setting has an effect, unlike its default."""
        neutral = getattr(RandomizationCfg, name)
        return bounds(getattr(self, name)) != (neutral, neutral)


def bounds(value: Span) -> tuple[float, float]:
    """Return the smallest and the largest value of a setting."""
    return value if isinstance(value, tuple) else (value, value)


def model_fields(
    cfg: RandomizationCfg, scene: Scene, given: dict[str, Tensor], streams: Streams, num_envs: int
) -> dict[str, Tensor]:
    """Return model fields (N, ...) with per-world values: the task's ``given`` fields, and those
    varied by ``cfg``.

    Raises ConfigError if ``cfg`` varies a missing object.
    """
    for name in _OF_THE_OBJECT:
        if scene.object is None and cfg.varies(name):
            neutral = getattr(RandomizationCfg, name)
            raise ConfigError(
                f"env.randomize.{name}: this task has no object; leave the setting at {neutral:g}"
            )
    if scene.object is None and "idle" in cfg.lost_robots:
        raise ConfigError(
            "env.randomize.lost_robots: this task has no object to stand beside; leave out idle"
        )
    ranges = {name: bounds(getattr(cfg, name)) for name in _PER_WORLD}
    ranges |= {"uphill": (0.0, TWO_PI), "weak_number": (0.0, float(scene.num_robots))}
    drawn = UniformRanges([*ranges.values()], streams.device).draw(streams, _WORLD, streams.once)
    values = dict(zip(ranges, drawn.cpu().double().unbind(dim=1), strict=True))
    made = WorldFields(scene, num_envs, given)
    if cfg.varies("object_mass"):
        body = scene.model.body("object").id
        made["body_mass"][:, body] *= values["object_mass"]
        made["body_inertia"][:, body] *= values["object_mass"].unsqueeze(1)
    if cfg.varies("payload"):
        payload = values["payload"]
        for body in scene.trunk_bodies:
            mass = float(scene.model.body_mass[body])
            share = 1.0 + payload / mass
            if float(share.min()) < 0.5:
                raise ConfigError(
                    f"env.randomize.payload: {float(payload.min()):.2g} kg is more than half of "
                    f"the trunk ({mass:.3g} kg); say {-0.5 * mass:.2g} or more"
                )
            made["body_mass"][:, body] *= share
            made["body_inertia"][:, body] *= share.unsqueeze(1)
    if cfg.varies("object_friction"):
        object_friction = values["object_friction"]
        made["geom_friction"][:, scene.object_geoms, 0] *= object_friction.unsqueeze(1)
        made["pair_friction"][:, :, :2] *= object_friction.view(-1, 1, 1)
    if cfg.varies("ground_friction"):
        ground_friction = values["ground_friction"]
        made["geom_friction"][:, scene.ground_geoms, 0] *= ground_friction.unsqueeze(1)
        if scene.object is not None:
            made["pair_friction"][:, :, :2] *= ground_friction.view(-1, 1, 1)
    if cfg.varies("motor_strength") or cfg.varies("weak_robot"):
        robots = torch.arange(scene.model.nu) // NUM_JOINTS
        is_weak = robots == values["weak_number"].floor().unsqueeze(1)
        weakness = torch.where(is_weak, values["weak_robot"].unsqueeze(1), 1.0)
        _scale_motors(made, scene.model, values["motor_strength"].unsqueeze(1) * weakness)
    if cfg.varies("slope"):
        slope = values["slope"]
        downhill = on_circle(-GRAVITY * slope.sin(), values["uphill"])
        vertical = -GRAVITY * slope.cos()
        made[GRAVITY_FIELD] = torch.cat((downhill, vertical.unsqueeze(1)), dim=1)
    return made


class Randomization(Resumable):
    """Delays, noise and disturbances between a task and the simulator, drawn for each world."""

    def __init__(
        self,
        cfg: RandomizationCfg,
        scene: Scene,
        action_shape: tuple[int, int, int],
        max_episode_length: int,
        streams: Streams,
        needed_force: Tensor | None = None,
    ) -> None:
        """Act on worlds of ``scene`` with actions (N, A, U).

        Episodes have ``max_episode_length`` control steps. ``needed_force`` (N,) or (1,) [N] slides
        the objects.
        """
        num_envs, num_agents, _ = action_shape
        fewest, largest = cfg.absent_robots
        if largest >= num_agents:
            raise ConfigError(
                f"env.randomize.absent_robots: of {num_agents} robots {largest} cannot stay away; "
                f"say [{min(fewest, num_agents - 1)}, {num_agents - 1}], or raise env.num_agents"
            )
        has_absent = largest > 0 or "absent" in cfg.lost_robots
        if has_absent and scene.things is not None and scene.things.has_ropes:
            raise ConfigError(
                "env.randomize: a tied robot cannot stand 10 m away; leave absent_robots at "
                "[0, 0], and absent out of lost_robots"
            )
        longest = bounds(cfg.freeze_time)[1]
        if longest > max_episode_length * STEP_DT:
            raise ConfigError(
                f"env.randomize.freeze_time: {longest:g} s are longer than an episode; say "
                f"{max_episode_length * STEP_DT:g} or less"
            )
        if cfg.robot_force > 0.0 and needed_force is None:
            raise ConfigError(
                "env.randomize.robot_force: this task has no object to slide; "
                "leave the setting at 0"
            )
        self.cfg = cfg
        self.needed_force = needed_force
        self._streams = streams
        device = streams.device
        self._delay = TargetDelay(num_envs, scene.model.nu, device)
        self.has_latency = cfg.varies("action_latency") or cfg.latency_jitter > 0.0
        self.has_command_latency = cfg.varies("command_latency")
        self.has_kicks = cfg.varies("kick_speed")
        self.has_freezes = cfg.varies("freeze_time")
        # Robots that die, are late, stay away, or idle
        self.has_losses = bool(cfg.lost_robots) or largest > 0
        self.has_bias = cfg.varies("place_bias") or cfg.varies("heading_bias")
        self.has_moving_goals = cfg.varies("goal_speed")
        has_object_draws = self.has_bias or self.has_moving_goals
        # Whether actions in force can change within a decision
        self.changes_actions = self.has_command_latency or self.has_freezes or self.has_losses

        latest = max(1.0, _FREEZE_SHARE * max_episode_length)
        # An episode's random values by name, as ranges of their columns.
        ranges: dict[str, list[tuple[float, float]]] = {
            "latency": [bounds(cfg.action_latency)],  # [s] of joint targets
            "command_latency": [bounds(cfg.command_latency)],  # [s] of actions
            "frozen_agent": [(0.0, float(num_agents))],
            "freeze_start": [(0.0, latest)],  # first control step
            "freeze_time": [bounds(cfg.freeze_time)],  # [s]
        }
        if cfg.lost_robots:
            ranges |= {
                "lost_chance": [(0.0, 1.0)],  # a robot is lost if it is below ``lost_share``
                "lost_agent": [(0.0, float(num_agents))],
                "lost_way": [(0.0, float(len(cfg.lost_robots)))],  # its place in ``lost_robots``
                "lost_time": [bounds(cfg.lost_time)],  # [s]
            }
        if has_object_draws:
            ranges |= {
                "place_bias": [bounds(cfg.place_bias), (0.0, TWO_PI)],  # [m], direction [rad]
                "heading_bias": [bounds(cfg.heading_bias)],  # [rad]
                "goal_speed": [bounds(cfg.goal_speed), (0.0, TWO_PI)],  # [m/s], direction [rad]
            }
        if largest > 0:
            ranges |= {
                "num_absent": [(float(fewest), float(largest + 1))],
                "absent_order": [(0.0, 1.0)] * num_agents,  # the first ones stay away
            }
        self._episode = UniformRanges([*chain(*ranges.values())], device)
        sizes = [len(columns) for columns in ranges.values()]
        # Values of the episodes before the last ``begin``, then those of the present episodes
        self._drawn = torch.zeros(2, num_envs, sum(sizes), device=device)
        columns = self._drawn.flatten(0, 1).split(sizes, dim=1)
        self._both_draws = dict(zip(ranges, columns, strict=True))
        self._draws = {name: values[num_envs:] for name, values in self._both_draws.items()}
        self._has_draws = self.has_latency or self.changes_actions or has_object_draws
        self._absent_choices = _absent_choices(cfg, needed_force, num_agents).to(device)
        nobody = torch.zeros(action_shape[:2], dtype=torch.bool, device=device)
        # (N, A) robots that the present episodes lose, for each way to be lost.
        self._lost = {name: nobody.clone() for name in LOSSES}
        # (N, A) masks of the present control step, live: unpowered robots; dead, absent or idle
        # ones; unobserved ones (dead, absent, or late and waiting).
        self.is_dead = nobody.clone()
        self.is_out = nobody.clone()
        self.is_away = nobody.clone()
        kick = [bounds(cfg.kick_speed), (0.0, TWO_PI)] * scene.num_robots
        self._step = UniformRanges([(-cfg.latency_jitter, cfg.latency_jitter), *kick], device)
        noise = UniformRanges([bounds(cfg.observation_noise)], device)
        self._sigma = noise.draw(streams, _NOISE, streams.once).unsqueeze(2)

        self._agent = torch.arange(num_agents, device=device)
        num_decisions = 1 + round(bounds(cfg.command_latency)[1] / STEP_DT)
        self._actions = History(num_decisions, action_shape, device)  # of the last control steps

    def begin(self, mask: Tensor, episode: Tensor) -> None:
        """Start episode number ``episode`` (N,) in the worlds of ``mask`` (N,)."""
        self._delay.begin(mask)
        self._actions.begin(mask)
        if self._has_draws:
            self._drawn[0].copy_(self._drawn[1])
            # Worlds in the middle of an episode draw the same numbers again.
            self._drawn[1].copy_(self._episode.draw(self._streams, _EPISODE, episode))
            if "num_absent" in self._draws:
                self._count_absent(self._draws["num_absent"], episode)
        if self.has_losses:
            self._mark_losses()
            is_past = self._is_past_loss(torch.zeros_like(episode))
            dead_or_late = torch.where(is_past, self._lost["dead"], self._lost["late"])
            is_away = self._lost["absent"] | dead_or_late
            overwrite(self.is_away, mask, is_away)

    def actions_in_force(self, actions: Tensor, step: Tensor) -> Tensor:
        """Return the applied actions (N, A, U) in control step ``step`` (N,). ``actions`` are the
        newest.
        """
        if self.has_freezes:
            draws = self._draws
            since = step.unsqueeze(1) - draws["freeze_start"].floor()
            is_frozen = (
                (self._agent == draws["frozen_agent"].floor())
                & (since >= 0)
                & (since < torch.round(draws["freeze_time"] / STEP_DT))
            )
            actions = actions.masked_fill(is_frozen.unsqueeze(2), 0.0)
        if self.has_losses:
            comes_later = self._lost["late"] & ~self._is_past_loss(step)
            is_waiting = self._lost["absent"] | self._lost["idle"] | comes_later
            actions = actions.masked_fill(is_waiting.unsqueeze(2), 0.0)
        if not self.has_command_latency:
            return actions
        self._actions.push(actions)
        late = (self._draws["command_latency"][:, 0] / STEP_DT).round()
        return self._actions.at(late.to(torch.int64))

    def placed(self, layout: Layout) -> Layout:
        """Return the initial layout with absent robots far away, in their own direction, and idle
        ones on the object's far side.
        """
        if not self.has_losses:
            return layout
        planar = layout.robot_pos[..., :2]
        far = planar * (ABSENT_DISTANCE / length(planar).clamp(min=1e-6)).unsqueeze(-1)
        moved = torch.where(self._lost["absent"].unsqueeze(-1), far, planar)
        if "idle" in self.cfg.lost_robots:
            object_pos = layout.object_pos[:, :2]
            way = layout.goal_pos[:, :2] - object_pos
            way = IDLE_DISTANCE / length(way).clamp(min=1e-6).unsqueeze(-1) * way
            far_side = object_pos + rotate_2d(way, torch.full_like(way[:, 0], IDLE_BEARING))
            moved = torch.where(self._lost["idle"].unsqueeze(-1), far_side.unsqueeze(1), moved)
        robot_pos = torch.cat((moved, layout.robot_pos[..., 2:]), dim=-1)
        return layout._replace(robot_pos=robot_pos)

    def without_power(self, targets: Tensor, joint_pos: Tensor, step: Tensor) -> Tensor:
        """Return joint targets (N, A, J) [rad] equal to ``joint_pos`` for dead robots.

        A dead robot's motors only damp.
        """
        is_past = self._is_past_loss(step)
        self.is_dead.copy_(self._lost["dead"] & is_past)
        is_gone = self.is_dead | self._lost["absent"]
        self.is_out.copy_(is_gone | self._lost["idle"])
        self.is_away.copy_(is_gone | (self._lost["late"] & ~is_past))
        return torch.where(self.is_dead.unsqueeze(-1), joint_pos, targets)

    def _count_absent(self, drawn: Tensor, episode: Tensor) -> None:
        """Replace the drawn numbers (N, 1) by numbers of absent robots.

        The lower ``fewest_share`` of the drawn range stands for the largest allowed number. The
        rest is divided equally among all allowed numbers.
        """
        cfg = self.cfg
        fewest, largest = cfg.absent_robots
        share = torch.full_like(drawn, cfg.fewest_share)
        if cfg.fewest_rise > 0:
            share *= (episode.unsqueeze(1) / cfg.fewest_rise).clamp(max=1.0)
        above = (drawn - fewest) / (largest - fewest + 1) - share
        largest_choice = self._absent_choices - 1.0
        choice = (above / (1.0 - share + 1e-9) * self._absent_choices).floor()
        choice = torch.where(above < 0.0, largest_choice, torch.minimum(choice, largest_choice))
        drawn.copy_(fewest + choice)

    def _mark_losses(self) -> None:
        """Mark lost robots in the present episodes."""
        draws = self._draws
        self._lost["absent"].zero_()
        if self.cfg.lost_robots:
            is_hit = self._agent == draws["lost_agent"].floor()
            is_lost = is_hit & (draws["lost_chance"] < self.cfg.lost_share)
            way = draws["lost_way"].floor()
            for index, name in enumerate(self.cfg.lost_robots):
                self._lost[name].copy_(is_lost & (way == index))
        if "num_absent" in draws:
            order = draws["absent_order"]
            rank = (order.unsqueeze(1) < order.unsqueeze(2)).sum(dim=2)
            self._lost["absent"].logical_or_(rank < draws["num_absent"])

    def _is_past_loss(self, step: Tensor) -> Tensor:
        """Return whether control step ``step`` (N,) is after the episode's loss, (N, 1)."""
        if not self.cfg.lost_robots:
            return torch.ones_like(step, dtype=torch.bool).unsqueeze(1)
        return step.unsqueeze(1) >= torch.round(self._draws["lost_time"] / STEP_DT)

    def motor_targets(
        self, targets: Tensor, episode: Tensor, step: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Return the motors' targets in one control step's physics steps, (4, N, J), and kicks.

        ``targets`` (N, A, J) are the controller's. ``step`` (N,) counts control steps in
        ``episode`` (N,). Kicks (N, A, 3) [m/s] are None without any.
        """
        if not (self.has_kicks or self.has_latency):
            return self._delay.send(targets.flatten(1), ACTUATOR_LAG), None
        drawn = self._step.draw(self._streams, _STEP, episode * _KEYS_AN_EPISODE + step)
        delay: Tensor | int = ACTUATOR_LAG
        if self.has_latency:
            latency = (self._draws["latency"][:, 0] + drawn[:, 0]).clamp(min=0.0)
            delay = (latency / PHYSICS_DT).round().to(torch.int64) + ACTUATOR_LAG
        kicks = self._kicks(drawn, step) if self.has_kicks else None
        return self._delay.send(targets.flatten(1), delay), kicks

    def add_noise(
        self, obs: Tensor, episode: Tensor, step: Tensor, scale: Tensor, *, spares_zeros: bool
    ) -> Tensor:
        """Return ``obs`` (W, A, O) with noise, W a multiple of N. ``scale`` (O,) is the task's.

        With ``spares_zeros`` zeros stay zeros.
        """
        if not self.cfg.varies("observation_noise"):
            return obs
        noise = self._streams.normal(_NOISE, episode * _KEYS_AN_EPISODE + step + 1, obs.shape[1:])
        noise = noise * self._sigma * scale
        noisy = obs + noise.repeat(len(obs) // len(noise), 1, 1)
        return torch.where(obs == 0.0, obs, noisy) if spares_zeros else noisy

    def goal_velocity(self) -> Tensor:
        """Return the velocities of the goals in the present episodes, (N, 2) [m/s]."""
        return on_circle(*self._draws["goal_speed"].unbind(dim=1))

    def biased(self, state: SceneState) -> SceneState:
        """Return the scene of N worlds with the observed object in place of the true one.

        2 N worlds are those before the last ``begin``, then the present ones.
        """
        observed = state.like(state.rows.clone())
        num_worlds = len(observed.object_pos)
        place = self._both_draws["place_bias"][-num_worlds:]
        observed.object_pos[:, :2].add_(on_circle(*place.unbind(dim=1)))
        half = 0.5 * self._both_draws["heading_bias"][-num_worlds:, 0]
        # A turn about the vertical turns w and z, and x and y, by half its angle. Slices, since a
        # list of columns would be copied from the host, which no CUDA graph can capture.
        for pair in (observed.object_quat[:, ::3], observed.object_quat[:, 1:3]):
            pair.copy_(rotate_2d(pair, half))
        return observed

    def state_parts(self) -> dict[str, Any]:
        """Return the state carried between control steps."""
        return {"delay": self._delay, "drawn": self._drawn[1], "actions": self._actions}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a ``state_dict``, and the losses in it."""
        super().load_state_dict(state)
        if self.has_losses:
            self._mark_losses()

    def _kicks(self, drawn: Tensor, step: Tensor) -> Tensor:
        speed, angle = drawn[:, 1:].unflatten(1, (-1, 2)).unbind(dim=2)
        interval = max(1, round(self.cfg.kick_interval / STEP_DT))  # control steps
        is_due = (torch.remainder(step, interval) == 0) & (step > 0)
        kick = on_circle(torch.where(is_due.unsqueeze(1), speed, 0.0), angle)
        return torch.nn.functional.pad(kick, (0, 1))


def _absent_choices(cfg: RandomizationCfg, needed_force: Tensor | None, num_agents: int) -> Tensor:
    """Return how many numbers of the range ``cfg.absent_robots`` a world allows, (N, 1) or (1, 1).

    The range's lower end counts as long as enough robots are left to push.
    """
    fewest, largest = cfg.absent_robots
    if cfg.robot_force == 0.0 or needed_force is None:
        return torch.full((1, 1), largest - fewest + 1.0)
    spare = num_agents - torch.ceil(needed_force / cfg.robot_force)
    return (spare.clamp(min=fewest, max=largest) - fewest + 1.0).float().unsqueeze(1)


def _scale_motors(made: WorldFields, model: mujoco.MjModel, strength: Tensor) -> None:
    """Multiply each motor's stiffness, damping and torque limits by ``strength`` (N, nu).

    No-load speeds stay.
    """
    is_dc = torch.as_tensor(model.actuator_gaintype == mujoco.mjtGain.mjGAIN_DCMOTOR)
    made["actuator_forcerange"][:] *= strength.unsqueeze(2)
    if not is_dc.all():
        factor = strength[:, ~is_dc]
        made["actuator_gainprm"][:, ~is_dc, 0] *= factor
        made["actuator_biasprm"][:, ~is_dc, 1:3] *= factor.unsqueeze(2)
    if is_dc.any():
        factor = strength[:, is_dc]
        made["actuator_gainprm"][:, is_dc, DC_RESISTANCE] /= factor
        for gain in (DC_STIFFNESS, DC_DAMPING):
            made["actuator_gainprm"][:, is_dc, gain] *= factor
