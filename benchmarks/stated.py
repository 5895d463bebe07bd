"""The measurements behind the tables of README and ``docs/results/``, the first page's first."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harl_mapush import config
from mqe.config import load_yaml

ANY = "pretrained:any"
SCRIPT = "scripted_walk"
OBJECTS = ("cuboid", "tblock", "cylinder", "beam")
FRONT = tuple(map(tuple, load_yaml(Path(__file__).parent / "results" / "front.yaml")["cells"]))
TEAMS = {"team2": 2, "team3": 3, "team4": 4}
LARGE_TEAMS = {"team6": 6, "team8": 8}
PERIOD = ("task.decision_period=5",)
GRIP = "env.foot_friction=[0.8]"  # feet of the maker's public models
MINUTE = "task.episode_length_s=60"
LOST = "env.randomize.lost_robots=[dead,absent,late]"
HELD_OUT = "task.shapes=held_out"
MAPS = ("task.num_maps=300", "task.map_seed=20261126")  # of a seed that had no part in any choice
BASELINES = {  # policies and planners among obstacles, on fewer maps
    "straight_line": ("planner", "task.planner=straight_line"),
    "spline": ("planner", "task.planner=spline"),
    "rrt": ("planner", "task.planner=rrt"),
    "no_high_level": ("planner", "task.planner=goal"),
    "no_mid_level": ("walk", ""),
    "scripted_solo": ("scripted_solo", ""),
}
EPISODES = 300
SHIPPED_GAITS = ("go1_push", "go1_strong", "go1_velocity", "go2_push", "go2_velocity")


@dataclass(frozen=True)
class Measurement:
    """One run of ``mapush test``: the worlds, the policy and the episodes."""

    suite: str
    policy: str
    object: str = ""  # empty: the policy's own
    robots: int | None = None  # None: the suite's, or the policy's own
    condition: str = ""  # of the suite
    note: str = ""  # settings beyond the suite's
    episodes: int = EPISODES
    seed: int = 2000
    hidden: tuple[str, ...] = ()  # settings without a place in the tables
    module: str = ""  # that registers the policy or the planner

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that tell a row of the results from the others."""
        return (self.suite, self.object, str(self.robots), self.policy, self.condition, self.note)

    def command(self) -> str:
        """Return the command line."""
        words = ["mapush", "test", self.policy]
        if self.module:
            words += ["--import", self.module]
        words += ["--suite", self.suite]
        if self.condition:
            words += ["--only", self.condition]
        if self.object and "held_out" not in self.object:
            words += ["--object", self.object]
        own = config.load_suite(self.suite).worlds.get("env", {}).get("num_agents")
        if self.robots is not None and self.robots != own:
            words += ["--num_agents", str(self.robots)]
        for setting in (*self.note.split(), *self.hidden):
            words += ["--set", setting]
        if self.suite != "gait":
            words += ["--num_episodes", str(self.episodes), "--seed", str(self.seed)]
            words += [] if self.condition else ["--team_only"]
        return shlex.join(words)


def measurements() -> Iterator[Measurement]:
    """Yield every measurement once."""
    yield from dict.fromkeys(itertools.chain(_front(), _teams(), _shipped(), _obstacles()))


def _front() -> Iterator[Measurement]:
    """Yield the rows of the first page."""
    for suite, name in FRONT:
        yield Measurement(suite, ANY, name, TEAMS[suite])
        yield _one_fewer(suite, name, SCRIPT, GRIP if TEAMS[suite] < 4 else "")


def _one_fewer(suite: str, name: str, policy: str, note: str) -> Measurement:
    return _cell(suite, name, policy, TEAMS[suite] - 1, note)


def _cell(suite: str, name: str, policy: str, robots: int, note: str = "") -> Measurement:
    hidden = PERIOD if policy == SCRIPT else ()
    episodes = 100 if note == MINUTE or suite in LARGE_TEAMS else EPISODES
    return Measurement(suite, policy, name, robots, note=note, episodes=episodes, hidden=hidden)


def _teams() -> Iterator[Measurement]:
    """Yield the cells of the suites that need a team."""
    for suite, name, policy in itertools.product(TEAMS, OBJECTS, (ANY, SCRIPT)):
        size = TEAMS[suite]
        yield _cell(suite, name, policy, size)
        yield _one_fewer(suite, name, policy, GRIP if size < 4 else "")
        if size > 2:
            yield _cell(suite, name, policy, size, MINUTE)
            yield _one_fewer(suite, name, policy, MINUTE)
    for (suite, size), policy in itertools.product(LARGE_TEAMS.items(), (ANY, SCRIPT)):
        for robots in (size, size - 1):
            yield _cell(suite, "tank", policy, robots)
    for suite, name in itertools.product(("heavy", "lost"), OBJECTS):
        yield Measurement(suite, ANY, name, 3)
    for robots in range(1, 9):
        yield Measurement("any", ANY, "cuboid", robots)
        yield Measurement("shapes", ANY, "shapes held_out", robots)
    for robots in (7, 8):
        yield Measurement("shapes", ANY, "shapes held_out", robots, note="task.keep_apart=0")
    for name, robots in (("cuboid", 2), ("tblock", 2), ("cylinder", 3)):
        yield Measurement("push", ANY, name, robots)
    yield Measurement("push", ANY, "cuboid", 2, note=LOST)


def _shipped() -> Iterator[Measurement]:
    """Yield the rows of the other shipped policies, and of robustness."""
    for condition in config.load_suite("robustness").conditions:
        yield Measurement("any,robustness", ANY, "cuboid", 2, condition)
    for condition in config.load_suite("strain").conditions:
        yield Measurement("strain", ANY, "", 2, condition)
        yield Measurement("strain", SCRIPT, "", 2, condition, hidden=PERIOD)
    for condition in config.load_suite("rough").conditions:
        yield Measurement("rough", ANY, "cuboid", 2, condition)
    for team in ("cuboid", "tblock", "cylinder"):
        for condition in config.load_suite("robustness").conditions:
            yield Measurement("robustness", f"pretrained:{team}", "", None, condition)
    for condition in ("separated", "independent"):
        yield Measurement("robustness", "pretrained:cuboid_happo", "", None, condition)
    for name, robots in itertools.product(("cuboid", "tblock", "beam"), (1, 2, 3)):
        yield Measurement("pose", "pretrained:pose", name, robots)
    yield Measurement("pose", "pretrained:pose", "", 2, note=HELD_OUT)
    for name, script in itertools.product(
        ("cuboid", "tblock", "beam"), ("scripted_solo", "scripted_team")
    ):
        yield Measurement("pose", script, name, 2, episodes=60)
    for gait in SHIPPED_GAITS:
        yield Measurement("gait", f"pretrained:{gait}")


def _obstacles() -> Iterator[Measurement]:
    """Yield the rows of teams among obstacles."""
    for suite in ("doors", "u_turn"):
        heavy = "task.team=pretrained:team2"
        yield Measurement(suite, "pretrained:leader", note=heavy, hidden=MAPS)
        yield Measurement(suite, "planner", note=heavy, hidden=MAPS)
        yield Measurement(suite, "planner", note=f"task.team={ANY}", hidden=MAPS)
    for suite in ("two_cubes", "scattered", "doors", "u_turn"):
        for team in ("cuboid", "tblock", "cylinder"):
            note = "" if team == "cuboid" else f"task.team=pretrained:{team}"
            yield Measurement(suite, "planner", note=note, hidden=MAPS)
    for policy, note in BASELINES.values():
        yield Measurement(
            "doors",
            policy,
            note=note,
            hidden=MAPS,
            episodes=20,
            module="navigation_baselines",
        )
