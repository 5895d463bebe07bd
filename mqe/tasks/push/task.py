"""Mid level, task ``go1push_mid``: a team pushes an object to a goal by commanding velocities to a
frozen gait.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mqe.config import ConfigError, check_values, option
from mqe.controllers import Controller
from mqe.controllers.blocks import ActiveWorlds
from mqe.controllers.trot import planar_velocity
from mqe.tasks.push import terminations
from mqe.tasks.push.layouts import SPAWNS, PushLayouts
from mqe.tasks.push.planar import PlanarPush
from mqe.tasks.push.rewards import PRESETS, TERMS, Pairs, StepFeatures, check_weights, weights_of
from mqe.tasks.push.tangle import TangleTimers
from mqe.tasks.push.teamwork import Teamwork
from mqe.tasks.task import Outcome, TaskDefaults
from mqe.vec_env import Mirror, MirrorImage, Planar
from mqe.world.collapse import CollapseTimers
from mqe.world.geometry import TWO_PI, axes_along, in_frame, length
from mqe.world.layout import Layout
from mqe.world.objects import INERTIAS, OBJECTS, Footprint
from mqe.world.robots import Robots
from mqe.world.scene import ARENA_HALF_SIZE, STEP_DT
from mqe.world.state import SceneState
from mqe.world.streams import Streams

# All but the first are failures.
ENDINGS = (
    "success",
    *terminations.Posture.names,
    "collision",
    "collapse",
)
# Signs that a mirror gives to x, y; to the sine and cosine of a heading; and to vx, vy, yaw rate.
_PLACE = (1.0, -1.0)
_HEADING = (-1.0, 1.0)
_VELOCITY = (1.0, -1.0, -1.0)
COLLABORATION_DISTANCE = 0.5  # [m] trunk to the object's outline: close enough to be at work
REFERENCE_COLLABORATION_DISTANCE = (
    1.0  # [m] trunk to the object's origin, the reference's definition
)


class ObservationTerm(NamedTuple):
    """Something more that agents may see: its values, (N, A, ...) of a state of N worlds, each
    robot's own.
    """

    function: Callable[[SceneState], Tensor]
    mirror_signs: tuple[float, ...] | None = (
        None  # of each number, left and right swapped; None: it has no such image
    )


OBSERVATIONS: dict[str, ObservationTerm] = {
    "own_velocity": ObservationTerm(
        planar_velocity, _VELOCITY
    ),  # vx, vy [m/s] in the heading frame, yaw rate [rad/s]
}


@dataclass(frozen=True)
class PushCfg:
    """The push task: what is pushed, what robots see, the rewards, how episodes start and end."""

    name: str = option("go1push_mid", "which task", choices=("go1push_mid",))
    object: str = option("cuboid", "what is pushed", choices=OBJECTS)
    gait: str | tuple[str, ...] | None = option(
        None, "the frozen policy that walks, or one per robot; null: that of each robot's kind"
    )
    rewards: str = option("default", "reward preset", choices=PRESETS)
    weights: dict[str, float | None] = option(
        dict, "weights of single terms that replace the preset's, by term"
    )
    observation: str = option(
        "sincos", "angles as sine and cosine, or in [0, 2 pi)", choices=("sincos", "reference")
    )
    more_observations: tuple[str, ...] = option(
        (), "further terms that agents see, by name", choices=OBSERVATIONS
    )
    state_type: str = option(
        "EP", "one critic state per environment, or one per agent", choices=("EP", "FP")
    )
    spawn: str = option(
        "separated", "robots spawned apart, or anywhere on the ring", choices=SPAWNS
    )
    close_share: float = option(
        0.0, "share of starts with two robots almost touching", min=0.0, max=1.0
    )
    tangled_share: float = option(
        0.0, "share of starts with two robots' legs tangled", min=0.0, max=1.0
    )
    goal_distance: tuple[float, float] = option(
        (1.5, 3.0), "range of the goal's distance at spawn [m]", above=0.0
    )
    decision_period: int = option(1, "control steps (50 Hz) that a command is held", min=1)
    episode_length_s: float = option(20.0, "time limit [s]", above=0.0, max=1e6)
    success_radius: float = option(
        1.0, "object's origin this near the goal is success [m]", above=0.0
    )
    success_ends: bool = option(
        True, "success ends the episode, and pays the term reach; else it may be left again"
    )
    goal_heading: float | None = option(
        None,
        "heading that the object should have at the goal [rad], for --protocol strict; null: any",
    )
    roll_limit: float = option(
        terminations.ROLL_LIMIT, "a trunk rolled further has fallen [rad]", above=0.0
    )
    pitch_limit: float = option(
        terminations.PITCH_LIMIT,
        "a trunk pitched further has fallen [rad]; the reference's 1.6 never ends",
        above=0.0,
    )
    collapse_ends: bool = option(True, "a robot that lies or kneels for a while ends the episode")
    action_scale: tuple[float, float, float] = option(
        (0.5, 0.5, 0.5), "command at action 1: vx, vy [m/s], yaw rate [rad/s]", above=0.0, max=1.0
    )
    inertia: str = option(
        "physical", "the object's inertia, or the reference's placeholder", choices=INERTIAS
    )

    def __post_init__(self) -> None:
        check_values(PushCfg, vars(self), "task")
        check_weights(self.weights)
        steps = round(self.episode_length_s / STEP_DT)
        if steps < 1 or self.decision_period < 1 or steps % self.decision_period:
            raise ConfigError(
                f"task.decision_period: {self.decision_period} does not divide the {steps} "
                "control steps of "
                f"task.episode_length_s {self.episode_length_s}; take a divisor of {max(steps, 1)}"
            )
        nearest, furthest = self.goal_distance
        if not self.success_radius < nearest <= furthest <= ARENA_HALF_SIZE:
            raise ConfigError(
                f"task.goal_distance: {list(self.goal_distance)} must be two distances in "
                "ascending order, up to "
                f"{ARENA_HALF_SIZE} m, where the wall is, and both above "
                f"task.success_radius {self.success_radius}"
            )
        share = self.close_share + self.tangled_share
        if share > 1.0:
            raise ConfigError(
                f"task.close_share and task.tangled_share: {share:g} together; they may be 1 at "
                "most"
            )
        if share > 0.0 and self.spawn != "separated":
            raise ConfigError(
                "task.close_share and task.tangled_share are shares of separated starts; say "
                "task.spawn=separated "
                f"instead of {self.spawn}, or 0 for both"
            )


class PushTask(TaskDefaults):
    """N worlds, A agents, three numbers an action: forward, sideways and turning speed in [-1,
    1].
    """

    def __init__(
        self,
        cfg: PushCfg,
        num_envs: int,
        robots: Robots,
        streams: Streams,
        controller: Controller,
    ) -> None:
        """Push with ``robots`` that ``controller`` walks."""
        self.cfg = cfg
        self.object = OBJECTS[cfg.object]
        self.num_agents = len(robots)
        device = robots.device
        a = self.num_agents
        self.decision_period = cfg.decision_period
        self.max_episode_length = round(cfg.episode_length_s / STEP_DT)
        self.state_type = cfg.state_type
        self.uses_sincos = cfg.observation == "sincos"
        self.action_sizes: tuple[int, ...] = (3,) * a
        self.weights = weights_of(cfg.rewards, cfg.object, cfg.weights)
        self.reward_names = tuple(self.weights)
        if not self.weights:
            raise ConfigError(
                "task.weights: every term of the rewards is switched off; leave one that is not 0"
            )
        shared = ("collaboration", "collaboration_reference", "collapse", "tangle")
        self.metric_names = (
            *shared,
            *_of_agents(a, "contact_impulse"),
            *_of_agents(a, "object_distance"),
        )
        if not cfg.success_ends:
            self.metric_names += ("is_reached",)  # from the first success on
        shared = ("success", "collision", "fall", "collapse", "tangle", "episode_time_s")
        shared += ("collaboration_degree", "collaboration_degree_reference")
        self.episode_metric_names = (
            *shared,
            *_of_agents(a, "contact_share"),
            *_of_agents(a, "object_distance"),
        )
        self._controller = controller
        self._streams = streams
        self.footprint = Footprint(self.object, device)
        self.pairs = Pairs(a, device)
        self._posture = terminations.Posture(
            a, self.object, cfg.roll_limit, cfg.pitch_limit, device
        )
        self._layouts = PushLayouts(
            self.footprint, robots, cfg.spawn, cfg.goal_distance, cfg.close_share, cfg.tangled_share
        )
        self._teamwork = Teamwork(num_envs, a, device)
        self._collapse = CollapseTimers(
            torch.zeros(num_envs, a, CollapseTimers.SIZE, device=device), robots
        )
        # Where success does not end episodes.
        self._is_reached = torch.zeros(num_envs, dtype=torch.bool, device=device)
        self._tangle = TangleTimers(
            torch.zeros(num_envs, len(self.pairs.robots), TangleTimers.SIZE, device=device)
        )
        # Row i lists robot i, then i - 1, i - 2, ... round the team. It sees the object (body A),
        # then the others.
        order = [[(i - k) % a for k in range(a)] for i in range(a)]
        self._order = torch.tensor(order, dtype=torch.int64, device=device)
        self._seen = torch.tensor(
            [[a, *row[1:]] for row in order], dtype=torch.int64, device=device
        )
        self._weights = torch.tensor(list(self.weights.values()), device=device).view(-1, 1, 1)
        self._nan = torch.tensor(torch.nan, device=device)
        # Is remembered: all that is seen is in the scene.
        nothing = torch.zeros(1, 0, device=device)
        obs, critic_state = self.observe(SceneState.zeros(1, a, True, device), nothing)
        self.obs_sizes: tuple[int, ...] = (obs.shape[-1],) * a
        self.state_size = critic_state.shape[-1]
        super().__init__(num_envs, device)
        has_planar_state = self.uses_sincos and self.state_type == "EP"
        self.planar: Planar | None = PlanarPush(self, robots) if has_planar_state else None
        self.mirror: MirrorImage | None = self._mirror_image(device)
        self._action_scale = torch.tensor(cfg.action_scale, device=device)

    def layout(self, episode: Tensor) -> Layout:
        """Draw the start of episode number ``episode`` (N,) of every world."""
        return self._layouts.draw(self._streams, episode)

    def begin(self, mask: Tensor) -> None:
        """Forget the old episodes of ``mask``."""
        self._controller.begin(mask)
        self._teamwork.begin(mask)
        self._collapse.begin(mask)
        self._tangle.begin(mask)
        self._is_reached.masked_fill_(mask, False)

    def use_blocks(self, worlds: ActiveWorlds) -> None:
        """Run the gait over blocks of the active ones of ``worlds``."""
        self._controller.use_blocks(worlds)

    def command(self, actions: Tensor) -> None:
        """Take actions (N, A, 3) in [-1, 1] and hold the velocities they ask for."""
        self._controller.command(actions * self._action_scale)

    def targets(self, state: SceneState) -> Tensor:
        """Return the gait's joint targets (N, A, J) [rad]."""
        return self._controller.targets(state)

    def evaluate(self, state: SceneState, prev: SceneState) -> Outcome:
        """Judge one control step."""
        m = StepFeatures(state, prev, self.footprint, self.pairs, self._teamwork)
        self._collapse.update(state)
        self._tangle.update(m.is_touching)
        is_collapsed = self._collapse.collapsed.any(dim=1)
        endings = self._endings(m, is_collapsed)
        if not self.cfg.success_ends:
            self._is_reached |= endings[0]
            endings[0] = False
        return Outcome(self._rewards(m, endings), endings, self._metrics(m, is_collapsed))

    def judge(
        self, state: SceneState, prev: SceneState, teamwork: Teamwork
    ) -> tuple[Tensor, Tensor]:
        """Return rewards and endings, as ``evaluate``, of any W worlds in which no robot collapses;
        change no state.

        ``teamwork`` is that of these worlds up to ``prev``.
        """
        m = StepFeatures(state, prev, self.footprint, self.pairs, teamwork)
        endings = self._endings(m, torch.zeros_like(state.goal_distance, dtype=torch.bool))
        endings[0] &= self.cfg.success_ends
        return self._rewards(m, endings), endings

    def _rewards(self, m: StepFeatures, endings: Tensor) -> Tensor:
        """Return the weighted terms (K, N, A) of a control step that ends what ``endings`` (E, N)
        says.
        """
        at_end = {"reach": endings[0], "exception": endings[1:].any(dim=0)}
        terms = [
            TERMS[name](m) if name in TERMS else at_end[name].float() for name in self.reward_names
        ]
        terms = [
            term if term.dim() == 2 else term.unsqueeze(1).expand(-1, self.num_agents)
            for term in terms
        ]
        return self._weights * torch.stack(terms)

    def observe(self, state: SceneState, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return every agent's view (N, A, O) in its own heading frame, and the critic's of the
        whole scene.

        An agent sees goal and object (x, y), the object's heading, then every other robot's (x, y)
        and heading, in the order i - 1, i - 2, ... round the team. Headings are sine and cosine.
        The critic's frame has its origin at the object and x towards the goal. Its state has the
        goal's distance, the object's heading, then every robot's position (x, y), heading, velocity
        (x, y) and yaw rate. Metres, radians and seconds. ``reference`` observations have headings
        in one number, in [0, 2 pi), and a critic state in the arena's frame: object (x, y,
        heading), goal (x, y), robots as above. ``FP`` gives every agent that state with the robots
        in its own order, itself first. Terms of ``task.more_observations`` follow what an agent
        sees.
        """
        agents, world, robots = self.observation_terms(state)
        obs = torch.cat(tuple(agents.values()), dim=-1)
        if self.state_type == "EP":
            return obs, torch.cat((*world.values(), robots.flatten(1)), dim=-1)
        everyone = (x.unsqueeze(1).expand(-1, self.num_agents, -1) for x in world.values())
        return obs, torch.cat((*everyone, robots[:, self._order].flatten(2)), dim=-1)

    def observation_terms(
        self, state: SceneState
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor]:
        """Return the terms of the agents' observations, of the critic's state, and the robots' part
        of that state.

        The first are (N, A, ...) by name, what each agent sees; the second (N, ...) by name, the
        same for all. The third, (N, A, ...), has place, heading, velocity and yaw rate of every
        robot.
        """
        a = self.num_agents
        pos = state.body_pos[..., :2]
        goal = state.goal_pos[:, :2]
        own_pos = pos[:, :a].unsqueeze(2)
        own_frame = state.robot_frame.unsqueeze(2)
        targets = torch.cat(
            (goal.view(-1, 1, 1, 2).expand(-1, a, -1, -1), pos[:, self._seen]), dim=2
        )
        targets = in_frame(targets - own_pos, own_frame)  # (N, A, goal and bodies, 2)
        moving = state.robot_linvel[..., :2]
        turning = state.yaw_rate.unsqueeze(-1)
        if self.uses_sincos:
            turned = in_frame(state.frame[:, self._seen, 0], own_frame).flip(-1)  # sine, cosine
            planar = torch.cat((state.frame[:, :, 0], pos[:, :a] - pos[:, a:], moving), dim=1)
            planar = in_frame(planar, axes_along(state.goal_direction).unsqueeze(1))
            ahead, offset, speed = planar.split((a + 1, a, a), dim=1)
            heading = ahead.flip(-1)
            world = {
                "goal_distance": state.goal_distance.unsqueeze(1),
                "object_heading": heading[:, a],
            }
            robots = torch.cat((offset, heading[:, :a], speed, turning), dim=-1)
        else:
            turned = torch.remainder(
                state.yaw[:, self._seen] - state.robot_yaw.unsqueeze(2), TWO_PI
            ).unsqueeze(-1)
            heading = torch.remainder(state.yaw, TWO_PI).unsqueeze(-1)
            world = {"object": pos[:, a], "object_heading": heading[:, a], "goal": goal}
            robots = torch.cat((pos[:, :a], heading[:, :a], moving, turning), dim=-1)
        bodies = torch.cat((targets[:, :, 1:], turned), dim=-1)
        agents = {"goal": targets[:, :, 0], "object_and_teammates": bodies.flatten(2)}
        return (
            agents
            | {name: OBSERVATIONS[name].function(state) for name in self.cfg.more_observations},
            world,
            robots,
        )

    def obs_names(self, agent: int) -> tuple[str, ...]:
        """Return the names of the numbers that an agent sees, in their order (``observe`` says what
        they mean).

        Those of a term of ``task.more_observations`` are called by its name and a number from 0.
        """
        turned = ("sin_yaw", "cos_yaw") if self.uses_sincos else ("yaw",)
        others = [f"robot{int(other)}" for other in self._order[agent, 1:]]
        bodies = [
            f"{name}_{number}" for name in ("object", *others) for number in ("x", "y", *turned)
        ]
        nothing = SceneState.zeros(1, self.num_agents, True, self._nan.device)
        sizes = {
            name: OBSERVATIONS[name].function(nothing).shape[-1]
            for name in self.cfg.more_observations
        }
        more = [f"{name}_{k}" for name, size in sizes.items() for k in range(size)]
        return ("goal_x", "goal_y", *bodies, *more)

    def episode_metrics(self, sums: Tensor, steps: Tensor, endings: Tensor) -> Tensor:
        """Return success, collision, fall, collapse, tangle (0 or 1), time [s], collaboration, and
        each robot's share.

        A collapse or a tangle counts wherever in the episode it was. Where success does not end an
        episode, it counts once it was reached, and the time is that until then. The collaboration
        degrees, shares of control steps, count for successes only. An agent's share of the contact
        impulse counts where anybody touched the object.
        """
        success = endings[0]
        collision = endings[-2]
        if not self.cfg.success_ends:
            since = sums[:, -1]
            sums = sums[:, :-1]
            success = since > 0.0
            time_steps = torch.where(since > 0.0, steps - since + 1.0, steps)
        else:
            time_steps = steps
        ended = torch.stack((success, collision, endings[1:-2].any(dim=0)), dim=1)
        together, happened, impulse, distance = sums.split(
            (2, 2, self.num_agents, self.num_agents), dim=1
        )
        ended = torch.cat((ended, happened > 0.0), dim=1).float()
        time = (time_steps * STEP_DT).unsqueeze(1)
        means = torch.cat((together, distance), dim=1) / steps.clamp(min=1).unsqueeze(1)
        degrees = torch.where(success.unsqueeze(1), means[:, :2], self._nan)
        shares = impulse / impulse.sum(dim=1, keepdim=True)  # 0 / 0 is NaN, as it should
        return torch.cat((ended, time, degrees, shares, means[:, 2:]), dim=1)

    def state_dict(self) -> dict[str, Any]:
        """Return the command that is held, the gait's memory, teamwork, and how long robots were
        down or in contact.
        """
        return {
            "controller": self._controller.state_dict(),
            "collapse": self._collapse.values.clone(),
            "tangle": self._tangle.values.clone(),
            "teamwork": self._teamwork.state_dict(),
            **({} if self.cfg.success_ends else {"is_reached": self._is_reached.clone()}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a ``state_dict``."""
        self._controller.load_state_dict(state["controller"])
        self._collapse.values.copy_(state["collapse"])
        self._tangle.values.copy_(state["tangle"])
        self._teamwork.load_state_dict(state["teamwork"])
        if not self.cfg.success_ends:
            self._is_reached.copy_(state["is_reached"])

    def _mirror_image(self, device: torch.device) -> MirrorImage | None:
        """Return how observations, actions and states look in a mirror; None where more than signs
        would change.

        The image of an object that is symmetric about its own x axis has the opposite heading; one
        that is symmetric about its y axis is turned by half a turn as well. Raises ConfigError for
        a term with too few or too many signs.
        """
        axis = self.object.mirror_signs
        more = [OBSERVATIONS[name].mirror_signs for name in self.cfg.more_observations]
        if not self.uses_sincos or axis is None or None in more:
            return None
        sine_cosine = (-axis[0], axis[0])
        others = self.num_agents - 1
        seen = (*_PLACE, *_PLACE, *sine_cosine, *(*_PLACE, *_HEADING) * others)
        seen += tuple(sign for signs in more if signs is not None for sign in signs)
        if len(seen) != self.obs_sizes[0]:
            raise ConfigError(
                "task.more_observations: mirror_signs of "
                f"{', '.join(self.cfg.more_observations)} must have a sign for "
                f"each number, {self.obs_sizes[0] - len(seen):+d} in all; correct them where the "
                "term is registered"
            )
        state = (1.0, *sine_cosine, *(*_PLACE, *_HEADING, *_VELOCITY) * self.num_agents)
        signs = (seen, _VELOCITY, state)
        return MirrorImage(*(Mirror.of(range(len(part)), part, device) for part in signs))

    def _endings(self, m: StepFeatures, is_collapsed: Tensor) -> Tensor:
        """Return what ends now, (E, N) bool in the order of ``ENDINGS``."""
        state = m.state
        success = terminations.success(state.goal_distance, self.cfg.success_radius)
        lost = self._posture.lost(state.rotation, state.body_pos[..., 2])
        collision = terminations.collision(m.pair_distance, self.object.collision_distance)
        collapse = is_collapsed if self.cfg.collapse_ends else torch.zeros_like(is_collapsed)
        return torch.cat(
            (success.unsqueeze(0), lost, collision.unsqueeze(0), collapse.unsqueeze(0))
        )

    def _metrics(self, m: StepFeatures, is_collapsed: Tensor) -> Tensor:
        at_work = m.outline_distance <= COLLABORATION_DISTANCE
        near = m.center_distance < REFERENCE_COLLABORATION_DISTANCE
        together = torch.stack((at_work, near), dim=1).all(dim=2)
        is_tangled = self._tangle.tangled.any(dim=1, keepdim=True)
        happened = torch.cat((together, is_collapsed.unsqueeze(1), is_tangled), dim=1).float()
        impulse = length(m.state.contact_force) * STEP_DT
        parts = [happened, impulse, m.center_distance]
        if not self.cfg.success_ends:
            parts.append(self._is_reached.unsqueeze(1))
        return torch.cat(parts, dim=1)


def _of_agents(num_agents: int, what: str) -> tuple[str, ...]:
    return tuple(f"{what}_agent{i}" for i in range(num_agents))
