"""Every task is complete: its entry alone suffices to build, step, train, resume, evaluate and film
it.
"""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from harl_mapush import config, test, train
from harl_mapush.evaluation.suite_player import EXAMINATIONS, Examination
from harl_mapush.runs import run_folder
from harl_mapush.runs.policy import load_team
from mqe.config import ConfigError, option
from mqe.controllers import Controller
from mqe.controllers.gait import GaitController, load_team_gait
from mqe.registry import TASKS, SimCfg, make_env
from mqe.tasks.entry import EnvCfg, TaskEntry, TaskSetup
from mqe.tasks.episode_report import Report
from mqe.tasks.task import Outcome, OutcomeNames, TaskFeatures
from mqe.vec_env import TeamSpec
from mqe.viewer.offscreen import choose_backend
from mqe.viewer.video import record
from mqe.world.layout import Layout
from mqe.world.robots import Robots
from mqe.world.scene import STEP_DT, build_scene
from mqe.world.state import SceneState
from mqe.world.streams import Streams
from tests.support.paths import ROOT

SIM = SimCfg(name="mujoco", device="cpu", num_threads=1)
TINY = [
    "--num_envs",
    "4",
    "--device",
    "cpu",
    "--set",
    "runner.num_steps=4",
    "--set",
    "network.hidden_sizes=[8]",
    "--set",
    "algorithm.num_epochs=2",
    "--set",
    "algorithm.num_minibatches=2",
]


@dataclass(frozen=True)
class MeetCfg:
    """Two robots meet: they are paid for coming near one another."""

    name: str = option("meet", "the task", choices=("meet",))
    gait: str | None = option(None, "the frozen policy that walks")
    near: float = option(0.7, "nearer than this is a meeting [m]", above=0.0)
    episode_length_s: float = option(0.4, "time limit [s]", above=0.0)


class MeetTask:
    """Each of two robots observes the other's position and commands a velocity."""

    decision_period = 1
    spec = TeamSpec((2, 2), (3, 3), 4, "EP")
    features = TaskFeatures()
    names = OutcomeNames(("near",), ("distance",), ("met", "distance"))

    def __init__(self, cfg: MeetCfg, num_envs: int, robots: Robots, controller: Controller) -> None:
        self.cfg = cfg
        self._robots = robots
        self._controller = controller
        self.max_episode_length = round(cfg.episode_length_s / STEP_DT)

    def layout(self, episode: Tensor) -> Layout:
        pos = torch.tensor([[-1.0, 0.0, 0.35], [1.0, 0.0, 0.35]]).expand(len(episode), 2, 3)
        quat = torch.tensor([1.0, 0.0, 0.0, 0.0]).expand(len(episode), 2, 4)
        joints = self._robots.joint_pos.expand(len(episode), 2, -1)
        return Layout(
            pos, quat, torch.zeros(len(episode), 2, 6), joints, pos[:, 0], quat[:, 0], pos[:, 0]
        )

    def begin(self, mask: Tensor) -> None:
        self._controller.begin(mask)

    def command(self, actions: Tensor) -> None:
        self._controller.command(0.5 * actions)

    def targets(self, state: SceneState) -> Tensor:
        return self._controller.targets(state)

    def evaluate(self, state: SceneState, prev: SceneState) -> Outcome:
        # (N, 1).
        distance = (state.robot_pos[:, 0] - state.robot_pos[:, 1]).norm(dim=1, keepdim=True)
        return Outcome(
            -distance.expand(-1, 2).unsqueeze(0), (distance < self.cfg.near).t(), distance
        )

    def observe(self, state: SceneState, memory: Tensor) -> tuple[Tensor, Tensor]:
        return state.robot_pos.flip(1)[..., :2] - state.robot_pos[..., :2], state.robot_pos[
            ..., :2
        ].flatten(1)

    def episode_metrics(self, sums: Tensor, steps: Tensor, terminations: Tensor) -> Tensor:
        return torch.cat((terminations.t().float(), sums / steps.clamp(min=1).unsqueeze(1)), dim=1)


def make_meeting(cfg: MeetCfg, env: EnvCfg, device: torch.device, streams: Streams) -> TaskSetup:
    scene = build_scene(2, None, robots=env.robots)
    robots = Robots(scene.robots, device)
    walk = GaitController(load_team_gait(cfg.gait, robots), env.num_envs, robots)
    return TaskSetup(scene, MeetTask(cfg, env.num_envs, robots, walk), {})


MEET = TaskEntry(
    MeetCfg,
    make_meeting,
    Report(rates=("met",), outcomes={"met": "they met"}),
    suite=str(Path(__file__).with_name("meet.yaml")),
)


@pytest.fixture(params=[*TASKS, "meet"])
def task(request, monkeypatch) -> str:
    """Every registered task, and one from this file."""
    monkeypatch.setitem(TASKS, "meet", MEET)
    return request.param


def test_a_task_is_built_and_stepped(task: str) -> None:
    entry = TASKS[task]
    env = make_env(EnvCfg(num_envs=3), SIM, entry.cfg(), seed=0)
    obs, state = env.reset()
    assert obs.shape == (3, env.num_agents, env.spec.obs_size)
    assert state.shape[-1] == env.spec.state_size
    starts = env.task.layout(torch.zeros(3, dtype=torch.int64))
    assert {len(part) for part in starts if part is not None} == {3}
    assert starts.robot_vel.shape == (3, env.scene.num_robots, 6)
    for _ in range(2):
        step = env.step(torch.zeros(3, env.num_agents, env.spec.action_size))
    assert step.obs.isfinite().all()
    assert set(step.info) == {f"reward/{name}" for name in env.task.names.rewards}
    statistics = env.statistics()
    assert {name for _, name in entry.report.headline} <= set(statistics)
    assert {f"{name}_rate" for name in entry.report.rates} <= set(statistics)
    assert set(entry.report.outcomes) <= set(env.task.names.metrics)
    env.close()


def test_a_task_without_optional_parts_has_neither_goal_nor_state_nor_memory(monkeypatch) -> None:
    monkeypatch.setitem(TASKS, "meet", MEET)
    env = make_env(EnvCfg(num_envs=2), SIM, MeetCfg(), seed=0)
    env.reset()
    assert env.state_dict()["task"] == {}
    with pytest.raises(ConfigError, match="set_goal: this task has no goal"):
        env.set_goal(torch.zeros(2, 2))
    env.close()


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(name, marks=[] if name == "go1push_mid" else pytest.mark.slow)
        for name in (*TASKS, "meet")
    ],
    indirect=True,
)
def test_a_task_is_trained_resumed_evaluated_and_filmed(task: str, tmp_path, monkeypatch) -> None:
    run = tmp_path / "run"
    assert train.main(["--task", task, "--num_env_steps", "16", "--out", str(run), *TINY]) == 0
    assert train.main(["--resume", str(run), "--num_env_steps", "32"]) == 0
    measures = [
        "--checkpoint",
        str(run),
        "--device",
        "cpu",
        "--json",
        str(tmp_path / "figures.json"),
    ]
    examination = config.measured_suite(task, None).examination
    if examination is not None:
        walks = Examination(lambda *_: {"walks": 1.0})
        monkeypatch.setitem(EXAMINATIONS, examination, walks)
        assert test.main(measures) == 0
    else:
        shorter = ["--num_envs", "3", "--set", "task.episode_length_s=0.4"]
        assert test.main([*measures, *shorter]) == 0
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures.get("num_episodes", 3) == 3
    try:
        choose_backend()
    except config.ConfigError as error:
        pytest.skip(str(error))
    cfg, _ = config.resolve(config.load_preset(run / "config.yaml"), {"env": {"num_envs": 1}})
    env = make_env(cfg.env, cfg.sim, cfg.task, 0)
    last = run_folder.last_checkpoint(run)
    assert last is not None
    film = record(
        env, load_team(last, env), tmp_path / "film.mp4", seconds=0.4, fps=5, size=(32, 32)
    )
    env.close()
    assert film.seconds == pytest.approx(0.4, abs=0.2)


def test_the_calculator_measures_in_the_entrys_suite(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setitem(TASKS, "meet", MEET)
    run = tmp_path / "run"
    assert train.main(["--task", "meet", "--num_env_steps", "16", "--out", str(run), *TINY]) == 0
    capsys.readouterr()
    assert test.main(["--checkpoint", str(run), "--device", "cpu", "--num_envs", "2"]) == 0
    out = capsys.readouterr().out
    (changed,) = [line.split() for line in out.splitlines() if line.startswith("task.near")]
    assert changed == ["task.near", "0.7", "0.8"]
    assert "distance" in out


NAMES = {*TASKS} | {
    name for entry in TASKS.values() for name in (*entry.report.rates, *entry.report.outcomes)
}
NAMES |= {name for entry in TASKS.values() for _, name in entry.report.headline} | {
    "collaboration_degree"
}
ALLOWED = {
    "mqe/registry.py": set(TASKS),  # where they are registered
    "harl_mapush/config/sections.py": {"go1push_mid"},  # the default of the command line
    "mapush/gymnasium_ids.py": {"go1push_mid"},  # with an id
    # A script of the push task alone.
    "mapush/extensions/pivoting/pivoting_team.py": {"go1push_mid"},
    "mapush/export/description.py": {"success", "collapse", "fall", "collision"},  # of pushes
    "mapush/extensions/pettingzoo/push_v0.py": {"go1push_mid"},  # as PettingZoo names modules
    "harl_mapush/clients/harl/harl_registration.py": {"go1push_mid"},  # and HARL's
    # Of MAPush's files, which it reads.
    "mapush/extensions/openrl/mapush_policies.py": {"go1push_mid"},
    # The deques that the fork's environment has.
    "harl_mapush/clients/harl/mapush_env.py": {"success", "collision", "collaboration_degree"},
    "harl_mapush/callbacks/logger.py": {"success_rate"},  # shows it first, where it is
    "mapush/extensions/isaacgym/neutral_model.py": {"collision"},  # an element of URDF
}


@pytest.mark.parametrize("package", ["mqe", "harl_mapush", "mapush"])
def test_no_other_module_names_a_task_or_a_metric_of_one(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        name = path.relative_to(ROOT).as_posix()
        if name.startswith(
            ("mqe/tasks/", "mapush/extensions/navigate/", "mapush/extensions/gait/")
        ):
            continue
        words = {
            node.value
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Constant)
        }
        assert {word for word in words if isinstance(word, str)} & NAMES <= ALLOWED.get(
            name, set()
        ), name
