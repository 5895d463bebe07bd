"""The navigation task: sub-goals, plans, contacts and rewards by hand-made states."""

# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false
from __future__ import annotations

import math
from contextlib import closing
from typing import Any

import pytest
import torch
from torch import tensor

from harl_mapush import config, test
from harl_mapush.evaluation.calculator import evaluate
from harl_mapush.evaluation.policies import make_policy
from mapush.extensions.navigate.planners.followers import LOOK_AHEAD
from mapush.extensions.navigate.settings import NavigateCfg
from mqe.config import ConfigError
from mqe.registry import SimCfg, make_env
from mqe.tasks.entry import EnvCfg
from mqe.viewer.camera import cameras
from mqe.viewer.offscreen import SceneRenderer
from mqe.viewer.player import Player
from mqe.viewer.recording import Recording
from mqe.world.randomization import RandomizationCfg
from mqe.world.state import SceneState
from tests.mapush.extensions.navigate.navigating import MAP, navigate_setup

SIM = SimCfg(name="mujoco", device="cpu", num_threads=1)


def test_an_action_shifts_the_planned_sub_goal():
    task = navigate_setup(2, residual_scale=0.5).task
    task.layout(torch.zeros(2, dtype=torch.int64))
    task.begin(torch.ones(2, dtype=torch.bool))
    planned = task.memory[:, :2].clone()
    subgoal = task.memory[:, 2:4]
    state = SceneState.zeros(2, 2, True, num_obstacles=3)
    state.object_pos[:, :2] = tensor([-2.8, 0.0])
    task.command(tensor([[[0.0, 0.0]], [[1.0, -1.0]]]))
    task.targets(state)
    ahead = torch.nn.functional.normalize(planned[1] - tensor([-2.8, 0.0]), dim=0)
    right = tensor([ahead[1], -ahead[0]])
    shifted = planned[1] + 0.5 * (ahead + right)
    assert torch.equal(subgoal[0], planned[0])  # no shift: the planner, to the bit
    torch.testing.assert_close(subgoal[1], shifted)
    marker = task.features.marker
    assert marker is not None
    assert torch.equal(marker, subgoal)
    task.command(tensor([[[1.0, 1.0]]] * 2))  # in the middle of a decision
    task.targets(state)
    torch.testing.assert_close(subgoal[1], shifted)


def test_a_mirrored_action_in_a_mirrored_world_leads_to_the_mirrored_sub_goal():
    task = navigate_setup(2).task
    task.layout(torch.zeros(2, dtype=torch.int64))
    task.begin(torch.ones(2, dtype=torch.bool))
    state = SceneState.zeros(2, 2, True, num_obstacles=3)
    state.object_pos[:, :2] = tensor([[-2.0, 1.0], [-2.0, -1.0]])
    task.planning.update(state.object_pos[:, :2])
    action = tensor([[0.4, -0.7]])
    task.command(torch.stack((action, task.symmetries.mirror.action(action))))
    task.targets(state)
    first, second = task.planning.plan.subgoal
    assert (first - task.planning.plan.planned[0]).norm() == pytest.approx(
        0.75 * math.hypot(0.4, 0.7)
    )
    torch.testing.assert_close(second, first * tensor([1.0, -1.0]), atol=1e-4, rtol=0.0)


@pytest.mark.parametrize("planner", ["field", "straight_line"])
def test_the_planned_way_leads_from_the_sub_goal_to_the_goal(planner: str) -> None:
    env = make_env(EnvCfg(num_envs=2), SIM, NavigateCfg(map=str(MAP), planner=planner), seed=0)
    env.reset()
    way = env.task.planning.way(1)
    torch.testing.assert_close(way[0], env.task.planning.plan.planned[1])
    assert float((way[-1] - env.state.goal_pos[1, :2]).norm()) < 0.1
    steps = (way[1:] - way[:-1]).norm(dim=1)
    assert bool((steps <= LOOK_AHEAD + 0.2).all())
    env.close()


def test_the_viewer_draws_the_planned_way() -> None:
    env = make_env(EnvCfg(num_envs=1), SIM, NavigateCfg(map=str(MAP)), seed=0)
    player = Player(env, {"nobody": lambda: lambda obs: torch.zeros(1, 1, 2)}, None)
    drawn = []

    def show(data) -> bool:
        drawn.append((player.way, player.lines(data)))
        return len(drawn) < 2

    player.run(show)
    for way, lines in drawn:
        assert len(lines) == len(way) > 1
        assert lines[-1].end[:2].tolist() == pytest.approx(way[-1])
    env.close()


@pytest.mark.slow
def test_a_film_draws_the_planned_way() -> None:
    env = make_env(EnvCfg(num_envs=1), SIM, NavigateCfg(map=str(MAP)), seed=0)
    recording = Recording(env, 10)
    planned = []

    def act(obs):
        planned.append(env.task.planning.way(0))
        return torch.zeros(1, 1, 2)

    with env.observed_by(recording):
        states = recording.play(act, most_states=6).states
    assert len(states) == 6
    assert states[0].way.tolist() == planned[0].tolist()
    assert states[-1].way.tolist() == planned[-1].tolist() != planned[0].tolist()
    (camera,) = cameras(env.scene, states[-1:], 5.0, 1.5)
    with closing(SceneRenderer(env.scene, (160, 96))) as renderer:
        with_way = renderer.draw(states[-1], camera)
        without = renderer.draw(states[-1]._replace(way=None), camera)
    assert (with_way != without).any()
    env.close()


def test_observations_show_an_object_that_is_stuck_and_robots_without_room():
    names = ("recent_progress", "subgoal", "robot_room")
    task = navigate_setup(1, more_observations=names, more_state=names).task
    assert task.symmetries.mirror is not None
    task.layout(torch.zeros(1, dtype=torch.int64))
    task.begin(torch.ones(1, dtype=torch.bool))
    state = SceneState.zeros(1, 2, True, num_obstacles=3)
    state.obstacle_pos[0] = tensor([[0.5, 0.0, 0.3], [1.0, 3.0, 0.3], [1.0, -3.0, 0.3]])
    state.obstacle_quat[:] = tensor([1.0, 0.0, 0.0, 0.0])
    state.object_pos[0, :2] = tensor([-2.8, 0.0])
    state.robot_pos[0, 0, :2] = tensor([-0.4, 0.2])  # 0.4 m from the cube
    state.robot_pos[0, 1, :2] = tensor([-3.8, -3.5])  # 0.5 m from the wall at y = -4
    first = float(task.planning.plan.cost_to_go)
    shown = task.observe(state, task.memory)[1][0, -10:]
    assert shown[:2].tolist() == [0.0, 0.0]
    task.planning.plan.planned[:] = tensor([[-1.8, 0.0]])
    task.planning.plan.subgoal[:] = tensor([[-1.3, 0.5]])
    shown = task.observe(state, task.memory)[1][0, -10:]
    assert shown[2:].tolist() == pytest.approx([1.5, 0.5, 0.4, -1.0, 0.0, 0.5, 0.0, 1.0], abs=1e-4)
    task.planning.update(tensor([[-1.8, 0.0]]))
    fall = first - float(task.planning.plan.cost_to_go)
    assert fall > 0.5
    shown = task.observe(state, task.memory)[1][0, -10:]
    decay = [math.exp(-0.5 / 2.0), math.exp(-0.5 / 8.0)]  # after a decision of 0.5 s
    assert shown[:2].tolist() == pytest.approx([fall * share for share in decay], rel=1e-3)
    for _ in range(200):
        task.planning.update(tensor([[-1.8, 0.0]]))
    stuck = task.observe(state, task.memory)[1][0, -10:-8]
    assert float(stuck.abs().max()) < 1e-3 * fall


def test_a_goal_from_outside_takes_the_planners_place_for_one_decision():
    env = make_env(EnvCfg(num_envs=2), SIM, NavigateCfg(map=str(MAP)), seed=0)
    env.reset()
    planned = env.task.memory[1, :2].clone()
    goal = env.state.object_pos[:, :2] + tensor([0.5, 1.0])
    goal_of_the_map = env.state.goal_pos.clone()
    env.set_goal(goal, tensor([True, False]))
    env.step(torch.zeros(2, 1, 2))
    torch.testing.assert_close(env.task.planning.plan.subgoal, torch.stack((goal[0], planned)))
    marker = env.scene.model.body("marker").mocapid[0]
    drawn = env.sim.data.mocap_pos[:, marker, :2]
    assert torch.equal(drawn, env.task.planning.plan.subgoal.to(drawn.dtype))
    assert torch.equal(env.state.goal_pos, goal_of_the_map)
    env.step(torch.zeros(2, 1, 2))
    assert not torch.allclose(env.task.planning.plan.subgoal[0], goal[0], atol=0.1)
    env.close()


@pytest.mark.slow
def test_an_episode_is_led_to_the_goal(tmp_path):
    path = tmp_path / "near.yaml"
    path.write_text(
        "{arena: [8, 8], maps: [{start: [-1, 0], goal: [0.5, 0], "
        "obstacles: [{post: 0.15, at: [0, 3]}]}]}"
    )
    env = make_env(EnvCfg(num_envs=2), SIM, NavigateCfg(map=str(path)), seed=0)
    metrics: dict[str, Any] = evaluate(env, make_policy("planner", "go1push_upper", env, 0))
    env.close()
    assert metrics["success_rate"] == 1.0
    assert 0.7 < metrics["spl"] <= 1.0
    assert metrics["object_contact_share"] == 0.0


def test_contacts_are_told_apart():
    task = navigate_setup(3).task
    state = SceneState.zeros(3, 2, True, num_obstacles=3)
    prev = state.like(state.rows.clone())
    state.obstacle_contacts[1, 0] = tensor([2.0, 2.0])  # the object alone
    state.obstacle_contacts[2, 1] = tensor([3.0, 1.0])  # a robot, too
    features = task.step_features(state, prev)
    assert features.is_touching_obstacle.tolist() == [[False, False], [True, False], [True, True]]


def test_progress_is_the_fall_of_the_cost_to_go():
    task = navigate_setup(1).task
    prev = SceneState.zeros(1, 2, True, num_obstacles=3)
    state = prev.like(prev.rows.clone())
    prev.object_pos[0, :2] = tensor([2.0, 2.0])
    state.object_pos[0, :2] = tensor([2.0, 2.0]) + 0.2 * tensor([1.5, -2.0]) / 2.5
    forth = float(task.step_features(state, prev).progress)
    back = float(task.step_features(prev, state).progress)
    assert 0.15 < forth < 0.8  # at least the way itself, more where it is narrow
    assert forth == pytest.approx(-back)


@pytest.mark.parametrize(
    ("env", "cfg", "words"),
    [
        ({"num_agents": 2}, {}, "has one agent, which leads the 2 robots"),
        ({"robots": "go2"}, {}, "the team of 'pretrained:cuboid' are go1, not go2"),
        ({"randomize": RandomizationCfg(lost_robots=("dead",))}, {}, "leads a whole team"),
        ({"randomize": RandomizationCfg(goal_speed=(0.0, 0.2))}, {}, "a goal that stands"),
        ({}, {"decision_period": 12}, "must be a multiple of the 5 control steps"),
        ({}, {"team": "pretrained:go1_velocity"}, "a team that pushes is needed"),
    ],
)
def test_settings_that_do_not_fit_the_team_are_refused(env, cfg, words):
    with pytest.raises(ConfigError, match=words):
        make_env(EnvCfg(num_envs=1, **env), SIM, NavigateCfg(map=str(MAP), **cfg), seed=0)


def test_a_team_that_pushes_is_told_how_to_enter_a_suite_of_maps(capsys):
    assert test.main(["pretrained:cuboid", "--suite", "scattered"]) == 2
    hint = "let it follow sub-goals: planner --task go1push_upper --set task.team="
    assert hint in capsys.readouterr().err


def test_robots_start_in_a_row_behind_the_object():
    task = navigate_setup(1, map="reference", num_maps=2).task
    start = task.layout(torch.zeros(1, dtype=torch.int64))
    assert start.object_pos[0, :2].tolist() == pytest.approx([-5.4, 0.0])
    yaw = 2.0 * torch.atan2(start.object_quat[0, 3], start.object_quat[0, 0])
    assert float(yaw) == pytest.approx(math.pi / 4)
    assert (start.robot_pos[0, :, 0] < -6.3).all()
    assert start.robot_pos[0, :, 1].tolist() == pytest.approx([-0.45, 0.45])
    assert start.robot_quat[0].tolist() == [[1.0, 0.0, 0.0, 0.0]] * 2


def test_a_team_brings_its_robots_along_where_nobody_names_others():
    task = {"name": "go1push_upper", "team": "pretrained:team2"}
    assert config.resolve({"task": task}, {})[0].env.model == "physical"
    named = config.resolve({"task": task, "env": {"model": "reference"}}, {})[0]
    assert named.env.model == "reference"
    unknown = config.resolve({"task": {**task, "team": "pretrained:nobody"}}, {})[0]
    assert unknown.env.model == "reference"


def test_worlds_that_were_saved_go_on_as_they_were() -> None:
    cfg = NavigateCfg(map="doors", num_maps=2)
    through = make_env(EnvCfg(num_envs=2), SIM, cfg, seed=0)
    through.reset()
    actions = torch.zeros(2, 1, 2)
    through.step(actions)
    resumed = make_env(EnvCfg(num_envs=2), SIM, cfg, seed=0)
    resumed.reset()
    resumed.load_state_dict(through.state_dict())
    assert torch.equal(resumed.task.planning.way(1), through.task.planning.way(1))
    for _ in range(2):
        rewards = [env.step(actions).reward for env in (through, resumed)]
        assert torch.equal(*rewards)
    assert torch.equal(resumed.state.rows, through.state.rows)
    through.close()
    resumed.close()


def test_an_environment_goes_on_from_a_state_that_had_fewer_metrics(capsys) -> None:
    cfg = NavigateCfg(map="doors", num_maps=1)
    env = make_env(EnvCfg(num_envs=1), SIM, cfg, seed=0)
    env.reset()
    saved = env.state_dict()
    saved["sums"] = saved["sums"][:, 1:]
    saved["statistics"]["rows"] = saved["statistics"]["rows"][:, 1:]
    env.load_state_dict(saved)
    assert "has other metrics, whose statistics begin anew" in capsys.readouterr().err
    env.step(torch.zeros(1, 1, 2))
    env.close()
