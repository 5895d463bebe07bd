"""The push task: observations by hand, endings, metrics, and a whole episode on the CPU
simulator.
"""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import tensor

import mapush
from mqe.config import ConfigError, build
from mqe.tasks.push import PushCfg, PushTask
from mqe.tasks.push.terminations import TERMINATIONS
from mqe.world.geometry import quat_from_rpy
from mqe.world.state import SceneState
from tests.support.pushing import STANCE, make_env, make_state, make_task
from tests.support.scenes import changed

QUARTER = math.pi / 2
# Robot 0 looks left (north), robot 1 right; the box is turned by -90 degrees.
STATE = make_state([[0.0, 0.0], [3.0, 1.0]], [QUARTER, -QUARTER], [2.0, 0.0], -QUARTER, [2.0, 5.0])


def test_teams_and_critics_know_the_objects_velocity_and_the_push_that_slides_it() -> None:
    settings = {
        "env.randomize.ground_friction": [0.5, 1.5],
        "task.object_mass": "70 N",
        "task.more_state": ["load", "object_velocity"],
        "task.more_observations": ["load", "object_velocity"],
        "task.episode_length_s": 0.02,
        "sim.device": "cpu",
    }
    env = mapush.make("go1push_mid", num_envs=4, seed=1, settings=settings)
    _, state = env.reset()
    loads = state[:, -3]
    step = env.step(torch.zeros(4, 2, 3))  # the last one of all episodes
    assert step.truncated.all()
    assert step.state[:, -3].tolist() == step.final_state[:, -3].tolist() == loads.tolist()
    assert loads.tolist() == pytest.approx((env.task.constants.load / 100.0).tolist())
    assert 0.4 < loads.min() < loads.max() < 1.0
    env.state.object_linvel[:] = tensor([0.3, -0.2, 0.0])
    obs, state = env.task.observe(env.state, env.task.memory)
    assert state[:, -3].tolist() == loads.tolist()
    assert obs[..., -3].tolist() == [[load, load] for load in loads.tolist()]
    noise = env.task.terms.observations.noise_scale
    assert noise[-3:].tolist() == [5.0, 0.25, 0.25]  # [100 N, m/s] times observation_noise
    torch.testing.assert_close(state[:, -2:].norm(dim=1), torch.full((4,), math.hypot(0.3, 0.2)))
    way = env.state.goal_direction
    torch.testing.assert_close(state[:, -2], 0.3 * way[:, 0] - 0.2 * way[:, 1])
    nose = env.state.robot_frame[..., 0, :]
    torch.testing.assert_close(obs[..., -2], 0.3 * nose[..., 0] - 0.2 * nose[..., 1])


def test_reference_observation() -> None:
    task = make_task(observation="reference")
    obs, state = task.observe(STATE, task.memory)
    assert obs.shape == (1, 2, task.spec.obs_size)
    # What lies east is to the right of robot 0: (x, y) -> (y, -x). To robot 1, looking south, (x,
    # y) -> (-y, x).
    expected = [
        [5.0, -2.0, 0.0, -2.0, math.pi, 1.0, -3.0, math.pi],
        [-4.0, -1.0, 1.0, -1.0, 0.0, 1.0, -3.0, math.pi],
    ]
    torch.testing.assert_close(obs[0], tensor(expected), atol=1e-5, rtol=0)
    assert task.spec.state_size == 17
    world = [2.0, 0.0, 1.5 * math.pi, 2.0, 5.0]
    robots = [0.0, 0.0, QUARTER, 0.1, 0.2, 0.4, 3.0, 1.0, 1.5 * math.pi, 0.1, 0.2, 0.4]
    torch.testing.assert_close(state[0], tensor(world + robots), atol=1e-5, rtol=0)


def test_sincos_observation() -> None:
    task = make_task()
    obs, state = task.observe(STATE, task.memory)
    expected = [
        [5.0, -2.0, 0.0, -2.0, 0.0, -1.0, 1.0, -3.0, 0.0, -1.0],
        [-4.0, -1.0, 1.0, -1.0, 0.0, 1.0, 1.0, -3.0, 0.0, -1.0],
    ]
    torch.testing.assert_close(obs[0], tensor(expected), atol=1e-5, rtol=0)
    # The critic looks north from the object: (x, y) -> (y - 0, 2 - x).
    world = [5.0, 0.0, -1.0]
    robots = [0.0, 2.0, 0.0, 1.0, 0.2, -0.1, 0.4, 1.0, -1.0, 0.0, -1.0, 0.2, -0.1, 0.4]
    torch.testing.assert_close(state[0], tensor(world + robots), atol=1e-5, rtol=0)


def test_an_object_at_its_goal_gives_these_numbers() -> None:
    task = make_task()
    state = make_state([[0.0, 0.0], [3.0, 1.0]], [0.0, 0.0], [2.0, 0.0], 0.0, [2.0, 0.0])
    assert all(torch.isfinite(x).all() for x in task.observe(state, task.memory))


def test_others_come_in_the_references_order() -> None:
    # Everybody looks east from (i, 0): robot i sees robot j at j - i. Order for three: [2, 1], [0,
    # 2], [1, 0].
    state = make_state([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]], [0.0] * 3, [5.0, 5.0], 0.0, [9.0, 9.0])
    task = make_task(num_agents=3, observation="reference")
    obs, _ = task.observe(state, task.memory)
    assert obs[0, :, [5, 8]].tolist() == [[2.0, 1.0], [-1.0, 1.0], [-1.0, -2.0]]
    _, states = make_task(num_agents=3, observation="reference", state_type="FP").observe(
        state, task.memory
    )
    assert states.shape == (1, 3, 23)
    assert states[0, :, [5, 11, 17]].tolist() == [[0.0, 2.0, 1.0], [1.0, 0.0, 2.0], [2.0, 1.0, 0.0]]


@pytest.mark.parametrize("num_agents", [1, 2, 3, 4])
@pytest.mark.parametrize("observation", ["sincos", "reference"])
@pytest.mark.parametrize("state_type", ["EP", "FP"])
def test_sizes(num_agents: int, observation: str, state_type: str) -> None:
    task = make_task(num_agents=num_agents, observation=observation, state_type=state_type)
    pos = [[float(i), 0.0] for i in range(num_agents)]
    obs, state = task.observe(
        make_state(pos, [0.0] * num_agents, [0.0, 0.0], 0.0, [2.0, 0.0]), task.memory
    )
    assert obs.shape == (1, num_agents, 2 + (4 if observation == "sincos" else 3) * num_agents)
    assert task.spec.obs_sizes == (obs.shape[2],) * num_agents
    assert state.shape[-1] == task.spec.state_size
    assert state.dim() == (3 if state_type == "FP" else 2)
    assert task.spec.state_size == (
        3 + 7 * num_agents if observation == "sincos" else 5 + 6 * num_agents
    )


def test_actions_become_commands() -> None:
    task = make_task(action_scale=(0.5, 0.4, 0.3))
    task.command(tensor([[[1.0, -1.0, 0.5], [0.0, 0.25, -1.0]]]))
    expected = tensor([[[0.5, -0.4, 0.15], [0.0, 0.1, -0.3]]])
    torch.testing.assert_close(task._controller.velocity, expected)  # type: ignore[attr-defined]
    task.begin(tensor([True]))
    assert task._controller.begun.all()  # type: ignore[attr-defined]


def test_evaluate_pays_success_and_exception_once_each() -> None:
    task = make_task(rewards="repo")
    box = [2.0, 4.5]
    state = make_state([[1.0, 4.5], [1.2, 4.5]], [0.0, 0.0], box, 0.0, [2.0, 5.0])
    outcome = task.evaluate(state, state)
    assert dict(zip(TERMINATIONS, outcome.terminations[:, 0].tolist(), strict=True)) == {
        "success": True,
        "roll": False,
        "pitch": False,
        "height": False,
        "collision": True,
        "collapse": False,
    }
    rewards = dict(zip(task.names.rewards, outcome.rewards.tolist(), strict=True))
    assert rewards["reach"] == [[10.0, 10.0]]
    assert rewards["exception"] == [[-5.0, -5.0]]
    assert outcome.rewards.shape == (len(task.terms.rewards.weights), 1, 2)
    assert rewards["target"] == [[pytest.approx(-0.325 * 0.005)] * 2]


@pytest.mark.parametrize("ending", ["roll", "pitch", "height"])
def test_every_failure_gets_the_exception_reward(ending: str) -> None:
    task = make_task(rewards="repo")
    rpy = {"roll": [0.9, 0.0, 0.0], "pitch": [0.0, 1.1, 0.0]}.get(ending, [0.0, 0.0, 0.0])
    state = changed(STATE, robot_quat=quat_from_rpy(tensor([[rpy, [0.0, 0.0, 0.0]]])))
    if ending == "height":
        state.robot_pos[0, 0, 2] = 0.9
    outcome = task.evaluate(state, state)
    assert [
        name
        for name, ends in zip(TERMINATIONS, outcome.terminations[:, 0].tolist(), strict=True)
        if ends
    ] == [ending]
    rewards = dict(zip(task.names.rewards, outcome.rewards.tolist(), strict=True))
    assert (rewards["reach"], rewards["exception"]) == ([[0.0, 0.0]], [[-5.0, -5.0]])


def metrics_of(task: PushTask, state: SceneState) -> dict[str, float]:
    return dict(
        zip(task.names.measures, task.evaluate(state, state).measures[0].tolist(), strict=True)
    )


def test_metrics_of_a_step() -> None:
    # Robot 0 is 0.4 m from the box's outline, robot 1 0.6 m, then 0.39 m.
    task = make_task()
    state = make_state([[-1.0, 0.0], [0.0, 1.2]], [0.0, 0.0], [0.0, 0.0], 0.0, [2.0, 0.0])
    state.contact_force[0, 0] = tensor([3.0, 4.0, 0.0])
    assert metrics_of(task, state) == pytest.approx(
        {
            "collaboration": 0.0,
            "collaboration_reference": 0.0,
            "collapse": 0.0,
            "tangle": 0.0,
            "contact_impulse_agent0": 0.1,
            "contact_impulse_agent1": 0.0,
        }
    )
    nearer = make_state([[-1.0, 0.0], [0.0, 0.99]], [0.0, 0.0], [0.0, 0.0], 0.0, [2.0, 0.0])
    metrics = metrics_of(task, nearer)
    assert metrics["collaboration"] == 1.0
    assert metrics["collaboration_reference"] == 0.0  # robot 0 stands at 1.0 m, not nearer


def test_episode_metrics() -> None:
    task = make_task()
    # Steps at work, twice; steps collapsed and tangled; both agents' impulses
    sums = tensor(
        [
            [50.0, 20.0, 0.0, 7.0, 3.0, 1.0],
            [50.0, 20.0, 1.0, 0.0, 0.0, 0.0],
        ]
    )
    names = list(TERMINATIONS)
    terminations = torch.zeros(len(names), 2, dtype=torch.bool)
    terminations[names.index("success"), 0] = True
    terminations[names.index("collision"), 1] = True
    terminations[names.index("collapse"), 1] = True
    values = task.episode_metrics(sums, tensor([100, 50]), terminations)
    metrics = dict(zip(task.names.metrics, values.unbind(dim=1), strict=True))
    assert metrics["success"].tolist() == [1.0, 0.0]
    assert metrics["collision"].tolist() == [0.0, 1.0]
    assert metrics["fall"].tolist() == [0.0, 0.0]
    assert metrics["collapse"].tolist() == [0.0, 1.0]
    assert metrics["tangle"].tolist() == [1.0, 0.0]
    torch.testing.assert_close(metrics["episode_time_s"], tensor([2.0, 1.0]))
    nan = math.nan
    for name, expected in (
        ("collaboration_degree", [0.5, nan]),
        ("collaboration_degree_reference", [0.2, nan]),
        ("contact_share_agent0", [0.75, nan]),
        ("contact_share_agent1", [0.25, nan]),
    ):
        torch.testing.assert_close(metrics[name], tensor(expected), equal_nan=True, msg=name)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"decision_period": 7}, "task.decision_period: 7 does not divide the 1000 control steps"),
        ({"goal_distance": [0.5, 2.0]}, "task.goal_distance"),
        ({"goal_distance": [3.0, 2.0]}, "task.goal_distance"),
        ({"object": "sphere"}, "cuboid"),
        ({"weights": {"progres": 1.0}}, "progress"),
        ({"rewards": "mine"}, "published"),
        ({"spawn": 3}, "task.spawn"),
        ({"close_share": 0.6, "tangled_share": 0.6}, "1.2 in sum"),
        ({"close_share": 0.1, "spawn": "independent"}, "say task.spawn=separated"),
    ],
)
def test_bad_settings_come_with_a_hint(values: dict, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        build(PushCfg, values, "task")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_settings_from_plain_values() -> None:
    cfg = build(
        PushCfg, {"decision_period": 5, "weights": {"progress": 2}, "object": "tblock"}, "task"
    )
    assert dataclasses.asdict(cfg)["weights"]["progress"] == 2.0


@pytest.mark.parametrize(
    ("name", "num_agents"), [("cuboid", 1), ("tblock", 2), ("cylinder", 3), ("cuboid", 4)]
)
def test_standing_robots_run_out_of_time(name: str, num_agents: int) -> None:
    env = make_env(4, num_agents, object=name, episode_length_s=1.0, decision_period=10)
    obs, state = env.reset()
    for decision in range(5):
        step = env.step(torch.zeros(4, num_agents, 3))
        assert torch.isfinite(step.obs).all()
        assert torch.isfinite(step.reward).all()
        assert step.truncated.tolist() == [decision == 4] * 4
        assert not step.terminated.any()
        assert step.valid.all()
    assert env.num_failed == 0
    statistics = env.statistics()
    assert statistics["num_episodes"] == 4
    assert statistics["episode_time_s"] == pytest.approx(1.0)
    assert statistics["success_rate"] == 0.0
    assert math.isnan(statistics["collaboration_degree"])


def test_independent_spawns_are_lost_at_the_first_step() -> None:
    env = make_env(256, spawn="independent", episode_length_s=0.04)
    env.reset()
    step = env.step(torch.zeros(256, 2, 3))
    assert 0.02 < step.terminated[:, 0].float().mean().item() < 0.12
    assert env.statistics()["collision_rate"] == 1.0
    separated = make_env(256, episode_length_s=0.04)
    separated.reset()
    assert not separated.step(torch.zeros(256, 2, 3)).terminated.any()


# How long robots have been down or in contact: what the task keeps between control steps.


def crouching() -> SceneState:
    """Robot 1 crouches: its trunk is at 0.2 m, too low, and its knees are 5 cm above the floor."""
    state = make_state([[-3.0, 0.0], [3.0, 1.0]], [0.0, 0.0], [0.0, 0.0], 0.0, [2.0, 5.0])
    lower = state.robot_pos - tensor([[[0.0] * 3, [0.0, 0.0, 0.1]]])
    return changed(state, robot_pos=lower, joint_pos=STANCE.expand(1, 2, 12))


def last_ending(
    task: PushTask, state: SceneState, steps: int
) -> tuple[list[str], dict[str, float]]:
    """Return the ending after ``steps`` control steps in ``state``, and the last metrics."""
    outcome = None
    for _ in range(steps):
        outcome = task.evaluate(state, state)
    assert outcome is not None
    ends = [
        name
        for name, ending in zip(TERMINATIONS, outcome.terminations[:, 0].tolist(), strict=True)
        if ending
    ]
    return ends, dict(zip(task.names.measures, outcome.measures[0].tolist(), strict=True))


def test_a_lasting_collapse_ends_an_episode_as_an_exception() -> None:
    task = make_task(rewards="repo")
    ends, metrics = last_ending(task, crouching(), 29)
    assert (ends, metrics["collapse"]) == ([], 0.0)
    outcome = task.evaluate(crouching(), crouching())  # 0.6 s
    assert outcome.terminations[:, 0].tolist() == [name == "collapse" for name in TERMINATIONS]
    rewards = dict(zip(task.names.rewards, outcome.rewards.tolist(), strict=True))
    assert rewards["exception"] == [[-5.0, -5.0]]
    task.begin(tensor([True]))
    assert last_ending(task, crouching(), 29)[0] == []


def test_a_collapse_may_be_counted_without_ending_anything() -> None:
    ends, metrics = last_ending(make_task(collapse_ends=False), crouching(), 40)
    assert (ends, metrics["collapse"]) == ([], 1.0)


def test_a_lasting_contact_is_a_tangle_of_its_own_pair() -> None:
    task = make_task(num_agents=3)
    apart = make_state(
        [[-3.0, 0.0], [3.0, 1.0], [0.0, 4.0]], [0.0] * 3, [0.0, 0.0], 0.0, [2.0, 5.0]
    )
    touch = [
        changed(apart, robot_contact_force=20.0 * torch.eye(3)[k].view(1, 3, 1).expand(1, 3, 3))
        for k in range(3)
    ]
    assert last_ending(task, touch[0], 49)[1]["tangle"] == 0.0
    assert last_ending(task, touch[1], 49)[1]["tangle"] == 0.0  # another pair is another contact
    assert last_ending(task, touch[1], 1) == ([], metrics_of(task, touch[1]) | {"tangle": 1.0})
    task.begin(tensor([True]))
    assert last_ending(task, touch[1], 49)[1]["tangle"] == 0.0


def test_what_is_counted_resumes_exactly_from_its_saved_state() -> None:
    task = make_task()
    other = make_task()
    state = changed(crouching(), robot_contact_force=tensor([[[0.0, 5.0, 0.0]]]))
    last_ending(task, state, 28)
    other.load_state_dict(task.state_dict())
    for k in range(30):
        ours = task.evaluate(state, state)
        theirs = other.evaluate(state, state)
        assert torch.equal(ours.terminations, theirs.terminations)
        assert torch.equal(ours.measures, theirs.measures)
        assert bool(ours.terminations[-1]) == (k >= 1)
    assert ours.measures[0, 2:4].tolist() == [1.0, 1.0]


def test_a_robot_that_lies_down_ends_its_episode_in_the_world_too() -> None:
    env = make_env(2)
    env.reset()
    stand = STANCE.expand(2, 2, 12).clone()
    crouch = tensor([0.0, 1.1, -2.2] * 4)
    stand[1, 0] = crouch
    env.task._controller.targets = lambda state: stand  # type: ignore[attr-defined]
    for _ in range(100):
        step = env.step(torch.zeros(2, 2, 3))
        if bool(step.done.any()):
            break
    assert step.terminated[:, 0].tolist() == [False, True]
    assert env.episode_metrics["collapse"].tolist() == [0.0, 1.0]
    assert env.episode_metrics["fall"].tolist() == [0.0, 0.0]
    assert env.statistics()["collapse_rate"] == 1.0
    assert env.statistics()["tangle_rate"] == 0.0
