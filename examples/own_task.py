"""A task of your own: every robot runs as fast as it can along x, in a lane of its own.

mapush train --import own_task --task race --num_agents 3
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

import mapush
from mqe.config import option
from mqe.controllers.gait import GaitController, load_team_gait
from mqe.extensions import Registry
from mqe.tasks.entry import EnvCfg, TaskEntry, TaskSetup
from mqe.tasks.episode_report import Report
from mqe.tasks.task import TermTask
from mqe.tasks.term_settings import DefaultTerms, TermCfg, build_terms
from mqe.tasks.terms import (
    MeasureTerm,
    MetricTerm,
    ObservationTerm,
    OfEpisode,
    RewardTerm,
    Terminated,
    TerminationTerm,
    TermRegistry,
    Worlds,
)
from mqe.world.layout import Layout
from mqe.world.robots import Robots
from mqe.world.scene import STEP_DT, build_scene
from mqe.world.state import SceneState
from mqe.world.streams import Streams


@dataclass(frozen=True)
class RaceCfg(TermCfg):
    """The section ``task`` of a race."""

    name: str = option("race", "the task", choices=("race",))
    finish: float = option(4.0, "end of the lanes [m]", above=0.0)
    episode_length_s: float = option(10.0, "time limit [s]", above=0.0)

    def __post_init__(self) -> None:
        self.check_terms(TERMS)


class RaceFeatures:
    """Quantities that terms share, of one moment or of the end of a control step."""

    terminated: Terminated  # what ends the race

    def __init__(self, state: SceneState, lanes: Tensor, finish: float) -> None:
        self.state = state
        self.lanes = lanes
        self.finish = finish

    @cached_property
    def robots(self) -> Tensor:
        """(N, A, 4) [m, 1] position along and across each lane, and cosine and sine of the
        heading.
        """
        across = self.state.robot_pos[..., 1] - self.lanes
        place = (self.state.robot_pos[..., :1], across.unsqueeze(-1))
        return torch.cat((*place, self.state.robot_frame[..., 0, :]), dim=-1)

    @cached_property
    def speed(self) -> Tensor:
        """(N, A) [m/s] along the lanes."""
        return self.state.robot_linvel[..., 0]

    @cached_property
    def is_finished(self) -> Tensor:
        """(N,) bool: the first robot is at the end of its lane."""
        return (self.state.robot_pos[..., 0] > self.finish).any(dim=1)


NUMBERS = ("along", "across", "cos", "sin")
TERMS = TermRegistry(
    observations=Registry(
        "observation",
        {"robot": ObservationTerm("place in the lane and heading", lambda m: m.robots, "m, 1")},
    ),
    state=Registry(
        "term of the state",
        {
            "robots": ObservationTerm(
                "places in the lanes and headings",
                lambda m: m.robots,
                "m, 1",
                numbers=NUMBERS,
                over="robots",
            )
        },
    ),
    rewards=Registry(
        "reward", {"speed": RewardTerm("speed of the robot", lambda m: m.speed, "m/s", weight=0.1)}
    ),
    terminations=Registry(
        "termination",
        {
            "finished": TerminationTerm(
                "a robot at the end of its lane", lambda m: m.is_finished, is_failure=False
            )
        },
    ),
    measures=Registry(
        "measure",
        {"speed": MeasureTerm("mean speed of the robots", lambda m: m.speed.mean(dim=1), "m/s")},
    ),
    metrics=Registry(
        "metric",
        {
            "finished": MetricTerm("1 for a finished race", lambda e: e.terminated["finished"]),
            "speed": MetricTerm("mean speed of the robots", OfEpisode("speed"), "m/s"),
        },
    ),
)
DEFAULT = DefaultTerms(("robot",), ("robots",), ("finished",), ("speed",), ("finished", "speed"))


class RaceTask(TermTask):
    """An agent observes its position in its lane and its heading, and commands a velocity."""

    decision_period = 5  # control steps of 0.02 s

    def __init__(self, cfg: RaceCfg, num_envs: int, robots: Robots) -> None:
        self.cfg = cfg
        self._robots = robots
        self.num_agents = len(robots)
        self.action_sizes = (3,) * len(robots)
        self.max_episode_length = round(cfg.episode_length_s / STEP_DT)
        self._lanes = torch.arange(len(robots), device=robots.device) * 1.5
        self._controller = GaitController(load_team_gait(None, robots), num_envs, robots)
        worlds = Worlds(num_envs, len(robots), robots.device, cfg)
        empty = SceneState.zeros(1, len(robots), False, robots.device)
        scene = RaceFeatures(empty, self._lanes, cfg.finish)
        super().__init__(build_terms(TERMS, DEFAULT, cfg, worlds, scene), worlds)

    def layout(self, episode: Tensor) -> Layout:
        """Stand at the start, side by side."""
        n = len(episode)
        a = self.num_agents
        pos = torch.stack((self._lanes * 0.0, self._lanes, self._lanes * 0.0 + 0.35), dim=1).expand(
            n, a, 3
        )
        quat = torch.tensor([1.0, 0.0, 0.0, 0.0], device=pos.device).expand(n, a, 4)
        still = pos.new_zeros(n, a, 6)
        joints = self._robots.joint_pos.expand(n, a, -1)
        return Layout(pos, quat, still, joints, pos[:, 0], quat[:, 0], pos[:, 0])

    def begin(self, mask: Tensor) -> None:
        """Forget the old episodes of ``mask``."""
        super().begin(mask)
        self._controller.begin(mask)

    def command(self, actions: Tensor) -> None:
        """Take actions (N, A, 3) as velocities of up to 0.5 m/s and rad/s."""
        self._controller.command(0.5 * actions)

    def targets(self, state: SceneState) -> Tensor:
        """Return the gait's joint targets."""
        return self._controller.targets(state)

    def scene_features(self, state: SceneState, memory: Tensor) -> RaceFeatures:
        """Return the features of one moment."""
        return RaceFeatures(state, self._lanes, self.cfg.finish)

    def step_features(self, state: SceneState, prev: SceneState) -> RaceFeatures:
        """Return the features of a control step."""
        return RaceFeatures(state, self._lanes, self.cfg.finish)


def make(cfg: RaceCfg, env: EnvCfg, device: torch.device, streams: Streams) -> TaskSetup:
    """Make one world's model, and the task over all of them."""
    scene = build_scene(env.num_agents or 2, None, actuators=env.actuators, robots=env.robots)
    return TaskSetup(scene, RaceTask(cfg, env.num_envs, Robots(scene.robots, device)), {})


REPORT = Report(
    rates=("finished",),
    headline=(("Finished", "finished_rate"),),
    compared=("finished_rate", "return"),
    outcomes={"finished": "finished"},
)
mapush.register_task("race", TaskEntry(RaceCfg, make, REPORT, terms=TERMS))
