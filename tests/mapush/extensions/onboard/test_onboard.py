"""The onboard senses over time: frames, latency, dropouts, errors, odometry, memory."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import tensor

from harl_mapush import config
from harl_mapush.config.suites import load_suite
from mapush.extensions.onboard.model import OnboardSenses
from mapush.extensions.onboard.settings import OnboardCfg
from mqe.config import ConfigError, build
from mqe.extensions import load_extensions
from mqe.registry import SimCfg, make_env
from mqe.tasks.push import PushTask
from mqe.world.scene import STEP_DT
from mqe.world.state import SceneState
from tests.support.operations import operations_of_a_decision
from tests.support.pushing import make_state, make_task
from tests.support.rounding import FEW_STEPS

load_extensions()
PERFECT = {
    "name": "onboard",
    "field_of_view": 6.2832,
    "sight": [0.0, 50.0],
    "rate": 50.0,
    "latency": 0.0,
    "dropout": 0.0,
    "place_noise": 0.0,
    "place_bias": 0.0,
    "heading_noise": 0.0,
    "heading_bias": 0.0,
    "drift": 0.0,
    "heading_drift": 0.0,
}
ALL = torch.ones(1, dtype=torch.bool)


def scene(x: float = 0.0, yaw: float = 0.0) -> SceneState:
    """Return robot 0 behind a box, robot 1 beside it, with the box at ``x`` and robot 0's yaw."""
    return make_state([[-2.0, 0.0], [-1.5, 1.5]], [yaw, 0.3], [x, 0.0], 0.2, [4.0, 1.0])


def begin(num_envs: int = 1, **settings: Any) -> tuple[PushTask, OnboardSenses]:
    """Begin an episode with two robots. ``settings`` are those of the senses or of the task."""
    senses = {key: value for key, value in settings.items() if hasattr(OnboardCfg, key)}
    others = {key: value for key, value in settings.items() if key not in senses}
    task = make_task(num_envs, 2, senses=PERFECT | senses, **others)
    task.layout(torch.zeros(num_envs, dtype=torch.int64))
    task.begin(torch.ones(num_envs, dtype=torch.bool))
    model = task._senses
    assert isinstance(model, OnboardSenses)
    return task, model


def stay(task: PushTask, state: SceneState, steps: int) -> None:
    for _ in range(steps):
        task.evaluate(state, state)


@pytest.mark.parametrize(
    ("observation", "more"),
    [
        ("sincos", {}),
        ("sincos", {"goal_heading": 0.4, "observes_heading": True}),
        ("reference", {}),
        ("sets", {}),
    ],
)
def test_a_perfect_sensor_in_an_open_view_gives_the_exact_observation(observation, more) -> None:
    """A robot then knows all but the hidden part of the outline."""
    task, _ = begin(observation=observation, **more)
    exact = make_task(1, 2, observation=observation, **more)
    state = scene()
    stay(task, state, 2)
    obs, critic = task.observe(state, task.memory)
    true_obs, true_critic = exact.observe(state, exact.memory)
    assert torch.equal(critic, true_critic)
    same = torch.isclose(obs, true_obs, atol=1e-5)
    if observation != "sets":
        assert same.all()
        return
    points = obs[..., 40:].unflatten(-1, (16, 3))
    is_hidden = points[..., 0] == 0.0
    assert 4 <= int(is_hidden[0, 0].sum()) <= 12
    assert (points[is_hidden] == 0.0).all()
    assert same[..., 40:].unflatten(-1, (16, 3))[~is_hidden].all()
    assert same[..., :40].all()


def test_a_robot_remembers_the_sides_that_it_has_seen_until_it_forgets_the_object() -> None:
    task, senses = begin(observation="sets", memory_time=1.0, field_of_view=1.0)

    def points(x: float, yaw: float) -> set[int]:
        state = make_state([[x, 0.0], [-1.5, 9.0]], [yaw, 1.6], [0.0, 0.0], 0.0, [4.0, 1.0])
        stay(task, state, 5)
        return set(senses._recollection.outline[0, 0].nonzero().flatten().tolist())

    near = points(-2.0, 0.0)
    both = points(2.0, math.pi)
    assert near < both
    assert len(both) == 2 * len(near)
    for _ in range(11):
        points(2.0, 0.0)  # looks away
    assert not points(2.0, 0.0)
    assert points(2.0, math.pi) == both - near


def test_the_objects_velocity_is_that_of_its_detections() -> None:
    """A robot that looks along y sees the box move by 5 mm a control step along x."""
    task, senses = begin(observation="sets", more_observations=("object_velocity",), rate=10.0)
    way = [0.005 * step for step in range(301)]
    states = [make_state([[1, -3], [9, 9]], [1.5708, 0.0], [x, 0], 0.0, [9, 0]) for x in way]
    for prev, state in itertools.pairwise(states):
        task.evaluate(state, prev)
    obs, _ = task.observe(states[-1], task.memory)
    # It looks along y: the box's x is to its right.
    assert obs[0, 0, -2:].tolist() == pytest.approx([0.0, -0.25], abs=5e-3)
    senses._recollection.freshness.zero_()
    obs, _ = task.observe(states[-1], task.memory)
    assert not obs[0, 0, -2:].any()


def test_nothing_is_known_before_the_first_frame() -> None:
    task, senses = begin(observation="sets", replaced_observations={"others": "others_and_age"})
    obs, _ = task.observe(scene(), task.memory)
    assert obs[0, 0, 1:3].tolist() == pytest.approx([6.0, 1.0])  # the given goal
    assert not obs[0, 0, 3:].any()
    known = senses.known(task.scene_features(scene(), task.memory), task.memory[:, -62:])
    assert known.ages.eq(1.0).all()


@pytest.mark.parametrize(
    ("latency", "rate"),
    [
        (0.1, 10.0),
        (0.06, 5.0),
        *(pytest.param(*pair, marks=pytest.mark.slow) for pair in ((0.0, 10.0), (0.2, 15.0))),
    ],
)
def test_a_detection_is_as_old_as_latency_and_rate_say(latency: float, rate: float) -> None:
    """A box that moves by a millimetre a control step shows the time of its detection."""
    task, senses = begin(latency=latency, rate=rate)
    period = 1.0 / (rate * STEP_DT)
    late = latency / STEP_DT
    phase = float(senses._draws["phase"][0, 0, 0]) * period
    seen = []
    for step in range(60):
        task.evaluate(scene(0.001 * (step + 1)), scene(0.001 * step))
        place = float(senses._recollection.entities[0, 0, 0, 0])
        is_known = bool(senses._recollection.freshness[0, 0, 0] > 0.0)
        number = math.floor((step + 1 - late - phase) / period + 1e-4)
        assert is_known == (number >= 0)
        if number >= 0:
            assert place == pytest.approx(0.001 * math.floor(phase + number * period), abs=1e-5)
            age = step + 1 - round(1000.0 * place)
            assert math.floor(late) <= age <= late + period + 1.0
            seen.append(place)
    assert len(set(seen)) == pytest.approx((60 - late) / period, abs=1.01)


def test_decisions_of_several_control_steps_see_what_single_ones_see() -> None:
    """A decision keeps the time of a frame within it."""
    results = []
    for period in (1, 5):
        task, senses = begin(rate=7.0, latency=0.05, decision_period=period)
        places = []
        for step in range(50):
            task.evaluate(scene(0.001 * (step + 1)), scene(0.001 * step))
            if step % 5 == 4:
                places.append(float(senses._recollection.entities[0, 0, 0, 0]))
        results.append(places)
    assert results[0] == pytest.approx(results[1], abs=FEW_STEPS)


@pytest.mark.slow
def test_dropouts_come_in_bursts_of_the_mean_time_and_share() -> None:
    task, senses = begin(400, dropout=0.3, dropout_time=0.16, rate=25.0, decision_period=2)
    rows = []
    state = scene()
    state = state.like(state.rows.repeat(1, 400))
    for _ in range(80):
        stay(task, state, 2)
        rows.append(senses._is_dropped.clone())
    dropped = torch.stack(rows).float()  # a frame each
    begins = ((dropped[1:] - dropped[:-1]) > 0.0).sum()
    assert float(dropped.mean()) == pytest.approx(0.3, abs=0.02)
    assert float(dropped.sum() / begins) == pytest.approx(4.0, abs=0.3)


def test_a_dropped_body_is_not_detected(monkeypatch) -> None:
    task, senses = begin()
    dropped = senses._is_dropped[:, :, 0]
    monkeypatch.setattr(senses, "_drop", lambda is_new, drawn: dropped.fill_(True))
    stay(task, scene(), 3)
    assert senses._recollection.freshness[0, 0].tolist() == [0.0, pytest.approx(1.0, abs=0.01)]


def test_noise_and_bias_have_their_size() -> None:
    task, senses = begin(400, place_noise=0.1, place_bias=0.2, heading_noise=0.05)
    state = scene()
    state = state.like(state.rows.repeat(1, 400))
    rows = []
    for _ in range(40):
        stay(task, state, 1)
        rows.append(senses._recollection.entities[:, 0, 0].clone())
    places = torch.stack(rows[2:])[..., :2]
    assert float(places.std(dim=0).mean()) == pytest.approx(0.1, abs=0.01)
    means = places.mean(dim=0)
    assert float(means.abs().max()) < 0.2 + 0.1
    assert float(means.std()) == pytest.approx(0.2 / math.sqrt(3.0), abs=0.02)
    heading = torch.stack(rows[2:])[..., 2:4]
    yaw = torch.atan2(heading[..., 1], heading[..., 0])
    assert float(yaw.std()) == pytest.approx(0.05, abs=0.005)


def walk(task: PushTask, metres: float, num_envs: int) -> SceneState:
    """Walk robot 0 straight along x from the origin. Return the last scene."""

    def at(x: float) -> SceneState:
        state = make_state([[x, 0.0], [-1.5, 1.5]], [0.0, 0.3], [0.0, 3.0], 0.2, [4.0, 1.0])
        return state.like(state.rows.repeat(1, num_envs))

    steps = 50
    for step in range(steps):
        task.evaluate(at(metres * (step + 1) / steps), at(metres * step / steps))
    return at(metres)


@pytest.mark.slow
def test_odometry_drifts_by_a_fraction_of_the_way() -> None:
    task, senses = begin(300, drift=0.02, heading_drift=0.01)
    state = walk(task, 10.0, 300)
    drift = senses._recollection.drift
    assert not drift[:, 1].any()  # robot 1 stood still
    assert 0.15 < float(drift[:, 0, 0].abs().max()) < 0.2 + 0.06
    assert 0.08 < float(drift[:, 0, 2].abs().max()) <= 0.1
    obs, _ = task.observe(state, task.memory)
    believed = obs[:, 0, :2]  # the goal, 6 m behind the robot
    assert 0.3 < float((believed - tensor([-6.0, 1.0])).norm(dim=1).max()) < 1.0


def test_perfect_odometry_stays_exact() -> None:
    task, senses = begin()
    walk(task, 10.0, 1)
    assert not senses._recollection.drift.any()


def test_a_robot_that_turns_away_remembers_and_then_forgets() -> None:
    task, senses = begin(field_of_view=1.5, memory_time=1.0)
    stay(task, scene(), 3)
    away = scene(yaw=math.pi)
    stay(task, away, 25)
    obs, _ = task.observe(away, task.memory)
    assert obs[0, 0, 2:4].tolist() == pytest.approx([-2.0, 0.0], abs=1e-4)
    assert float(senses._recollection.freshness[0, 0, 0]) == pytest.approx(0.5, abs=0.05)
    stay(task, away, 30)
    obs, _ = task.observe(away, task.memory)
    assert not obs[0, 0, 2:6].any()


def test_a_new_episode_knows_nothing_of_the_last_one() -> None:
    task, senses = begin()
    stay(task, scene(), 5)
    task.begin(ALL)
    assert not senses._recollection.entities.any()
    assert not senses._time.any()
    task.evaluate(scene(0.5), scene(0.4))
    assert float(senses._recollection.entities[0, 0, 0, 0]) == pytest.approx(0.4)


def test_an_absent_mate_is_not_detected() -> None:
    task, senses = begin(observation="sets")
    is_away = tensor([[False, True]])
    task.excuse_robots(is_away, is_away)
    stay(task, scene(), 3)
    assert senses._recollection.freshness[0, 0].tolist() == [pytest.approx(1.0, abs=0.01), 0.0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"field_of_view": 0.0}, "task.senses.field_of_view: must be above 0.0"),
        (
            {"field_of_view": 90.0},
            "task.senses.field_of_view: must be above 0.0 and at most 6.2832",
        ),
        ({"rate": 60.0}, "task.senses.rate: must be at least 0.1 and at most 50.0, not 60.0"),
        ({"sight": [0.0, 0.2]}, "task.senses.sight: no body is in sight from 0 to 0.2 m"),
        ({"sight": [3.0, 3.0]}, "task.senses.sight: no body is in sight from 3 to 3 m"),
        ({"sight": [3.0, 0.3]}, "task.senses.sight: .* ascending order; say \\[0.3, 3.0\\]"),
        ({"latency": -0.1}, "task.senses.latency: must be at least 0.0"),
        ({"dropout": 1.0}, "task.senses.dropout: must be at least 0.0 and at most 0.9"),
        ({"memory_time": 0.0}, "task.senses.memory_time: must be at least 0.02"),
        ({"latency": [0.0, 0.1], "memory_time": 0.1}, "task.senses.memory_time: .* later"),
        ({"range": 3.0}, "unknown key 'task.senses.range'"),
    ],
)
def test_bad_settings_are_answered_in_a_line(settings, message) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        make_task(1, 2, senses=PERFECT | settings)
    assert "\n" not in str(error.value)


def test_defaults_lie_within_their_bounds() -> None:
    assert build(OnboardCfg, {}, "task.senses") == OnboardCfg()


@pytest.mark.parametrize("name", ["onboard_90", "onboard_360"])
def test_suites_are_those_of_team2_with_a_sensor(name: str) -> None:
    suite = load_suite(name)
    task = dict(suite.worlds["task"])
    assert task.pop("senses")["name"] == "onboard"
    team2 = load_suite("team2").worlds
    assert (suite.worlds["env"], task) == (team2["env"], team2["task"])


def onboard_env(**task: Any) -> Any:
    over = {"env": {"num_envs": 3, "num_agents": 3}, "task": task}
    cfg = config.resolve(config.load_preset("onboard"), over)[0]
    return make_env(cfg.env, SimCfg("mujoco", "cpu", 1), cfg.task, 1)


def test_the_preset_steps_worlds_of_different_shapes_and_resumes_to_the_bit() -> None:
    env = onboard_env(shapes="drawn")
    env.reset()
    actions = torch.rand(12, 3, 3, 3, generator=torch.Generator().manual_seed(0)) * 2.0 - 1.0
    for k in range(8):
        env.step(actions[k])
    state = env.state_dict()
    after = [env.step(actions[k]).obs.clone() for k in range(8, 12)]
    env.load_state_dict(state)
    again = [env.step(actions[k]).obs.clone() for k in range(8, 12)]
    for first, second in zip(after, again, strict=True):
        assert torch.equal(first, second)
    assert after[-1].isfinite().all()
    env.close()


def test_a_decision_waits_for_nothing() -> None:
    """A decision with senses has at most 400 tensor operations more than one without."""
    numbers = []
    for name in ("onboard", "exact"):
        env = onboard_env(senses={"name": name})
        numbers.append(operations_of_a_decision(env))
        env.close()
    assert 0 < numbers[0] - numbers[1] <= 400


def test_the_policy_says_what_feeds_each_input() -> None:
    env = onboard_env(more_observations=["own_velocity", "load", "object_age"])
    terms = env.task.features.describe_observation(["robot1", "robot2"])
    assert all("source" in term for term in terms.values())
    assert terms["outline"]["source"].startswith("outline seen since the object is known")
    env.close()


def test_a_sensor_that_looks_aside_has_no_mirror_image() -> None:
    assert begin()[0].symmetries.mirror is not None
    assert begin(mounting_yaw=0.5)[0].symmetries.mirror is None


@pytest.mark.parametrize("observation", ["sincos", "sets"])
def test_noise_leaves_the_zeros_of_unseen_bodies(observation: str) -> None:
    """A blind sensor, whose range ends before any body, shows the goal with noise alone."""
    task = {
        "object": "cuboid",
        "observation": observation,
        "senses": {"name": "onboard", "sight": [0.0, 0.6]},
    }
    observations = []
    for noise in (0.0, 0.05):
        env = {"num_envs": 2, "num_agents": 2, "randomize": {"observation_noise": noise}}
        cfg = config.resolve({"env": env, "task": task}, {})[0]
        worlds = make_env(cfg.env, SimCfg("mujoco", "cpu", 1), cfg.task, 1)
        observations.append(worlds.reset()[0].clone())
        worlds.close()
    exact, noisy = observations
    is_known = exact != 0.0
    assert (noisy[~is_known] == 0.0).all()
    assert int(is_known.sum()) > 4
    goal = is_known.nonzero()[:, 2] < (3 if observation == "sets" else 2)
    assert (noisy[is_known] != exact[is_known])[goal].float().mean() > 0.6
