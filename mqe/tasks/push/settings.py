"""Settings for the push task, its reward presets and its observation forms."""

import math
import re
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from mqe.config import ConfigError, check_ranges, check_values, load_yaml, option
from mqe.tasks.push.layouts import SPAWNS
from mqe.tasks.push.posture import PITCH_LIMIT, ROLL_LIMIT
from mqe.tasks.push.senses import chosen_senses
from mqe.tasks.term_settings import TermCfg, check_decision_period
from mqe.tasks.terms import PRESENT, TermRegistry
from mqe.world.objects import INERTIAS, OBJECTS, ObjectCfg
from mqe.world.scene import ARENA_HALF_SIZE, STEP_DT, with_sliding_force
from mqe.world.shapes import DRAWN, HELD_OUT, MASSES, check_kinds

_FORCE = re.compile(r"(\d{1,6}(?:\.\d{1,6})?) ?N")
_FORCES = (0.1, 1e4)  # [N] at which objects may slide
ROOM = 8  # robots in observed sets
# The terms of the task. The modules of observations, rewards and so on add them.
PUSH_TERMS = TermRegistry()

# What ``task.observation`` means: the terms that a robot observes, and those of the critic's state.
OBSERVED = {
    "sincos": ("goal", "object", "teammates"),
    "reference": ("goal", "object_and_yaw", "teammates_and_yaw"),
    "sets": (PRESENT, "goal", "object_place", "others", "outline"),
}
OBSERVED_BY_CRITIC = {
    "sincos": ("goal_distance", "object_heading", "robots"),
    "reference": ("object_place", "object_yaw", "goal_place", "robots_in_arena"),
    "sets": ("goal_distance", "outline", "team"),
}
# Reward weights by preset, then by object; other objects take the cuboid's.
PRESETS: dict[str, dict[str, dict[str, float]]] = load_yaml(
    str(files("mqe") / "assets" / "rewards.yaml")
)


def parse_force(text: str) -> float:
    """Return the newtons of ``70 N``. Raise ConfigError for anything else."""
    match = _FORCE.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"task.object_mass={text[:40]!r} is neither a mass [kg] nor a force; write 22 for "
            "kilograms, or 70 N for the mass that takes a push of 70 N to slide"
        )
    if not _FORCES[0] <= float(match[1]) <= _FORCES[1]:
        raise ConfigError(
            f"task.object_mass={text}: must be at least {_FORCES[0]:g} N and at most "
            f"{_FORCES[1]:g} N"
        )
    return float(match[1])


@dataclass(frozen=True)
class PushCfg(TermCfg):
    """The push task: object, observations, rewards, initial layout and end of episodes."""

    name: str = option("go1push_mid", "name of the task", choices=("go1push_mid",))
    object: str = option("cuboid", "object that the team pushes", choices=OBJECTS)
    object_mass: float | str | dict[str, float | str] | None = option(
        None,
        "mass of the object [kg], or the push at which it slides, such as 70 N, or one of them by "
        "object; null: its own",
        min=MASSES[0],
        max=MASSES[1],
    )
    shapes: str | None = option(
        None,
        "an object of up to three boxes, or a disc, for each world in place of task.object: drawn "
        "(from the seed) or held_out (20 shapes for tests only); null: task.object everywhere",
        choices=(DRAWN, HELD_OUT),
    )
    shape_force: tuple[float, float] | None = option(
        None,
        "range of the pushes at which drawn shapes slide [N]; null: they have 2 to 20 kg",
        min=_FORCES[0],
        max=_FORCES[1],
    )
    shape_kinds: tuple[str, ...] = option(
        (),
        "families of drawn shapes, and objects made of boxes. A name given twice is drawn twice as "
        "often. Empty: equal shares of all families.",
    )
    object_width: float = option(
        1.0, "factor on the object's length along y, or on its radius", min=0.05, max=10.0
    )
    gait: str | tuple[str, ...] | None = option(
        None,
        "frozen gait policy for all robots, or one per robot; null: the default of each "
        "robot's kind",
    )
    rewards: str = option("default", "reward preset", choices=tuple(PRESETS))
    observation: str = option(
        "sincos",
        "form of observations: angles as sine and cosine, or in [0, 2 pi), or sets of robots "
        "and of points of the object's outline, for teams of any size",
        choices=tuple(OBSERVED),
    )
    senses: dict[str, Any] = option(
        dict,
        "model of the robots' senses in place of exact observations: its name, and its settings; "
        "empty, or the name exact: exact observations",
    )
    entity_dropout: float = option(
        0.0,
        "probability that a robot does not observe another one in an episode, with "
        "task.observation=sets",
        min=0.0,
        max=1.0,
    )
    state_type: str = option(
        "EP",
        "number of critic states: one per environment (EP), or one per agent (FP)",
        choices=("EP", "FP"),
    )
    spawn: str = option(
        "separated", "positions of robots at spawn: apart, or anywhere on the ring", choices=SPAWNS
    )
    close_share: float = option(
        0.0, "fraction of initial layouts with two robots almost touching", min=0.0, max=1.0
    )
    tangled_share: float = option(
        0.0, "fraction of initial layouts with two robots' legs tangled", min=0.0, max=1.0
    )
    goal_distance: tuple[float, float] = option(
        (1.5, 3.0), "range of the goal's distance at spawn [m]", above=0.0
    )
    decision_period: int = option(
        1, "number of control steps (50 Hz) that a command is held", min=1, max=1000
    )
    episode_length_s: float = option(20.0, "time limit of an episode [s]", min=0.02, max=1e6)
    success_radius: float = option(
        1.0,
        "largest distance between object's origin and goal in a success [m]",
        min=1e-3,
        max=100.0,
    )
    success_ends: bool = option(
        True,
        "end of the episode at success, with the reward reach; false: the goal may be left again",
    )
    success_heading: float | None = option(
        None,
        "largest difference of the object's heading from the goal's at success [rad]; "
        "null: any heading",
        min=1e-3,
        max=math.pi,
    )
    success_rest_s: float = option(
        0.0,
        "time that the object has to rest at the goal before it is success [s]",
        min=0.0,
        max=1e6,
    )
    goal_heading: float | None = option(
        None,
        "goal heading of the object, world frame [rad]; env.set_goal changes the heading for "
        "one episode; null: any heading",
        min=-2.0 * math.pi,
        max=2.0 * math.pi,
    )
    observes_heading: bool | None = option(
        None,
        "observation of the angle between the object's heading and the goal's; null: only with "
        "task.success_heading",
    )
    roll_limit: float = option(
        ROLL_LIMIT, "roll of a trunk beyond which it has fallen [rad]", min=0.01, max=2.0 * math.pi
    )
    pitch_limit: float = option(
        PITCH_LIMIT,
        "pitch of a trunk beyond which it has fallen [rad]; the reference's 1.6 is never reached",
        min=0.01,
        max=2.0 * math.pi,
    )
    collapse_ends: bool = option(True, "end of the episode when a robot lies or kneels for a while")
    action_scale: tuple[float, float, float] = option(
        (0.5, 0.5, 0.5),
        "velocity command that an action of 1 stands for: vx, vy [m/s], yaw rate [rad/s]",
        min=1e-3,
        max=1.0,
    )
    keep_apart: float = option(
        0.0,
        "distance between trunks that a limit of the velocity commands keeps [m]; 0: no limit",
        min=0.0,
        max=2.0,
    )
    inertia: str = option(
        "physical",
        "inertia of the object: its own, or the reference's placeholder",
        choices=INERTIAS,
    )

    def __post_init__(self) -> None:
        check_values(PushCfg, vars(self), "task")
        check_ranges(self, "task")
        self.check_terms(PUSH_TERMS)
        chosen_senses(self.senses)
        check_decision_period(self.decision_period, self.episode_length_s)
        if self.success_heading is not None and self.goal_heading is None:
            raise ConfigError(
                f"task.success_heading={self.success_heading:g} needs a goal heading; say "
                "task.goal_heading=0, or leave task.success_heading out"
            )
        if self.observes_heading and self.goal_heading is None:
            raise ConfigError(
                "task.observes_heading needs a goal heading; say task.goal_heading=0, or leave "
                "task.observes_heading out"
            )
        masses = self.object_mass
        for mass in masses.values() if isinstance(masses, dict) else (masses,):
            if isinstance(mass, str):
                parse_force(mass)
        if self.shapes is not None:
            self._check_shapes()
        if self.observation == "sets" and self.state_type == "FP":
            raise ConfigError(
                "task.state_type: FP needs robots in an order, and task.observation=sets has "
                "no order; say task.state_type=EP"
            )
        if self.entity_dropout > 0.0 and self.observation != "sets":
            raise ConfigError(
                f"task.entity_dropout={self.entity_dropout:g} leaves robots out of sets; say "
                f"task.observation=sets instead of {self.observation}, or leave "
                "task.entity_dropout out"
            )
        if self.success_rest_s >= self.episode_length_s:
            raise ConfigError(
                f"task.success_rest_s={self.success_rest_s:g} is too long for "
                f"task.episode_length_s={self.episode_length_s:g}; lower task.success_rest_s, "
                "or raise task.episode_length_s"
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
                f"task.close_share and task.tangled_share: {share:g} in sum; lower one to a sum "
                "of 1 at most"
            )
        if share > 0.0 and self.spawn != "separated":
            raise ConfigError(
                "task.close_share and task.tangled_share are shares of separated starts; say "
                f"task.spawn=separated instead of {self.spawn}, or 0 for both"
            )

    def _check_shapes(self) -> None:
        """Raise ConfigError for settings in conflict with differing shapes."""
        if self.observation != "sets":
            raise ConfigError(
                f"task.shapes={self.shapes} needs outlines in the observation; say "
                "task.observation=sets, or leave task.shapes out"
            )
        check_kinds(self.shape_kinds)

    @property
    def num_steps(self) -> int:
        """Return the time limit in control steps."""
        return round(self.episode_length_s / STEP_DT)

    @property
    def is_heading_observed(self) -> bool:
        """Return whether robots and critic observe the heading error."""
        if self.observes_heading is None:
            return self.success_heading is not None
        return self.observes_heading

    @property
    def default_observations(self) -> tuple[str, ...]:
        """Return the robots' default observation terms."""
        observed = OBSERVED[self.observation]
        return (*observed, "heading_error") if self.is_heading_observed else observed

    def pushed_object(self) -> ObjectCfg:
        """Return the object with the settings' mass and width."""
        obj = OBJECTS[self.object]
        mass = self.object_mass
        if isinstance(mass, dict):
            if self.object not in mass:
                raise ConfigError(
                    f"task.object_mass has {', '.join(mass)}, and no mass for {self.object}; say "
                    f"task.object_mass.{self.object}=20"
                )
            mass = mass[self.object]
        if isinstance(mass, str):
            obj = with_sliding_force(obj, parse_force(mass))
        elif mass is not None:
            obj = obj.with_mass(mass)
        return obj if self.object_width == 1.0 else obj.with_width(self.object_width)

    def preset_weights(self) -> dict[str, float]:
        """Return the reward preset's weights for the object."""
        by_object = PRESETS[self.rewards]
        return by_object.get(self.object, by_object["cuboid"])
