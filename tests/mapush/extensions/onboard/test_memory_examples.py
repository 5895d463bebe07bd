"""Examples of further memories: earlier detections, messages, and hidden states."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harl_mapush.learning.settings import NetworkCfg
from mqe.controllers.network import Actor
from mqe.extensions import load_extensions
from mqe.tasks.push.senses import SENSES
from mqe.world.scene import STEP_DT
from tests.mapush.extensions.onboard.test_onboard import PERFECT
from tests.support.paths import ROOT
from tests.support.pushing import make_state, make_task
from tests.support.registries import restored_registries
from tests.support.toy import ToyEnv

load_extensions()
DECISION = 5  # control steps


@pytest.fixture
def example(request: pytest.FixtureRequest) -> Iterator[SimpleNamespace]:
    """Run an example, and unregister its members afterwards."""
    with restored_registries(SENSES):
        yield SimpleNamespace(**runpy.run_path(str(ROOT / "examples" / f"{request.param}.py")))


def begin(name: str, term: str, **senses: Any) -> Any:
    settings = PERFECT | {"name": name, "rate": 10.0, "memory_time": 5.0} | senses
    task = make_task(senses=settings, more_observations=(term,), decision_period=DECISION)
    task.layout(torch.zeros(1, dtype=torch.int64))
    task.begin(torch.ones(1, dtype=torch.bool))
    return task


@pytest.mark.parametrize("example", ["onboard_history"], indirect=True)
def test_earlier_detections_of_a_moving_box_are_apart_in_time(example) -> None:
    """The box moves by a millimetre a control step ahead of a robot that stands."""
    task = begin("onboard_history", "past_objects")

    def scene(step: int) -> Any:
        place = [0.001 * step, 0.0]
        return make_state([[-2.0, 0.0], [-1.5, 1.5]], [0.0, 0.3], place, 0.2, [4.0, 1.0])

    for step in range(100):
        task.evaluate(scene(step + 1), scene(step))
    obs, _ = task.observe(scene(100), task.memory)
    past = obs[0, 0, -6 * example.K :].view(example.K, 6)
    known = past[past[:, 0] == 1.0]
    assert 3 <= len(known) < example.K
    assert not past[len(known) :].any()
    seen_at = (known[:, 1] - 2.0) / 0.001  # control step
    torch.testing.assert_close(known[:, 5], (100.0 - seen_at) * STEP_DT / 5.0, atol=1e-4, rtol=0.0)
    assert (seen_at[:-1] - seen_at[1:] >= example.APART / STEP_DT - 1e-3).all()
    torch.testing.assert_close(known[:, 3], torch.full_like(seen_at, 0.2).sin())


@pytest.mark.parametrize("example", ["onboard_messages"], indirect=True)
@pytest.mark.parametrize("lost", [0.0, 1.0])
def test_a_robot_is_told_where_another_saw_the_object(example, lost: float) -> None:
    """Robot 0 looks away from the box, robot 1 at it."""
    name = "onboard_messages"
    task = begin(name, "told_object", field_of_view=1.5, lost_messages=lost)
    state = make_state([[-2.0, 0.0], [-1.5, 1.5]], [3.14, -0.8], [0.0, 0.0], 0.2, [4.0, 1.0])
    for _ in range(20):
        task.evaluate(state, state)
    obs, _ = task.observe(state, task.memory)
    assert not obs[0, 0, 2:6].any()  # the object, unseen
    if lost:
        assert obs[0, :, -3:].tolist() == [[0.0, 0.0, 1.0]] * 2
        return
    assert obs[0, 0, -3:-1].tolist() == pytest.approx([-2.0, 0.0], abs=0.01)
    assert obs[0, 0, -1] < 0.05  # its age
    assert obs[0, 1, -1] == 1.0  # robot 0 has nothing to tell


@pytest.mark.parametrize("example", ["onboard_places"], indirect=True)
@pytest.mark.parametrize("lost", [0.0, 1.0])
def test_a_robot_is_told_where_another_was_a_decision_ago(example, lost: float) -> None:
    """Robot 0 looks away from robot 1, which walks a centimetre in a control step."""
    task = begin("onboard_places", "object_age", field_of_view=1.5, lost_messages=lost)

    def scene(step: int) -> Any:
        robots = [[-2.0, 0.0], [-1.5 + 0.01 * step, 1.5]]
        return make_state(robots, [3.14159, -0.8], [0.0, 0.0], 0.2, [4.0, 1.0])

    for step in range(20):
        task.evaluate(scene(step + 1), scene(step))
    obs, _ = task.observe(scene(20), task.memory)
    other = obs[0, 0, 6:10]  # x, y [m], sine and cosine of the heading
    if lost:
        assert not other.any()
        return
    assert other[:2].tolist() == pytest.approx([-0.65, -1.5], abs=0.001)
    assert other[2].item() == pytest.approx(0.717, abs=0.001)


def recurrent_team(example: SimpleNamespace, env: ToyEnv) -> tuple[Any, Any]:
    torch.manual_seed(0)
    small = {"warmup": 64, "batch_size": 32, "buffer_size": 320, "update_ratio": 1 / 8}
    cfg = example.RecurrentHasacCfg(**small)
    team = example.RecurrentHasac(cfg, NetworkCfg((16,)), env.spec)
    return team, team.make_experience(1, env.num_envs)


def play(team: Any, experience: Any, env: Any, seen: tuple, blocks: int) -> tuple:
    """Collect and learn. Return what the team sees last."""
    experience.start(*seen)
    for _ in range(blocks):
        decision = team.act(seen[0], experience.hidden(0))
        step = env.step(decision.actions)
        experience.add(0, seen[0], decision, step)
        seen = (step.obs, step.state)
        team.update(experience)
    return seen


@pytest.mark.parametrize("example", ["onboard_recurrent"], indirect=True)
def test_a_sequence_gives_the_hidden_states_of_its_decisions_one_by_one(example) -> None:
    """The second sequence has an episode's end after its row 4, and then repeats its first one."""
    env = ToyEnv(4)
    actor = recurrent_team(example, env)[0].actors[0]
    rows = torch.randn(2 * example.L, 2, 3 + 16 + 1)
    rows[..., -1] = 1.0
    rows[example.L + 5 :] = rows[example.L].clone()
    rows[example.L + 5 :, :, -1] = 0.0
    hidden = torch.empty(2 * example.L, 2, 16)
    for i, row in enumerate(rows):
        stored = i % example.L == 0 or i >= example.L + 5
        before = row[:, 3:-1] if stored else hidden[i - 1]
        hidden[i] = actor.features(torch.cat((row[:, :3], before), dim=-1)).detach()
    torch.testing.assert_close(actor.features(rows), hidden)
    actions = torch.tanh(actor.mu_layer(hidden))
    torch.testing.assert_close(actor(rows), actions)
    actor.sample(rows, torch.zeros(2 * example.L, 2, env.spec.action_sizes[0]))
    torch.testing.assert_close(actor(rows), actions)  # as sampled
    exported = Actor(actor.layers())
    decided = exported(torch.cat((rows[0, :, :3], rows[0, :, 3:-1]), dim=-1))
    torch.testing.assert_close(decided[:, -16:], hidden[0])


@pytest.mark.parametrize("example", ["onboard_recurrent"], indirect=True)
def test_sequences_follow_a_world_to_the_end_of_its_episode(example) -> None:
    env = ToyEnv(8, death_rate=0.05, failure_rate=0.02)
    team, experience = recurrent_team(example, env)
    play(team, experience, env, env.reset(), 60)
    obs = experience.replay.look_up(torch.arange(320)).obs.unflatten(0, (-1, example.L))
    follows = obs[:, 1:, 0, -1] > 0.0
    assert 0.3 < follows.float().mean() < 0.95
    clock = obs[..., 0, 2]  # the toy's time, which goes on by a twentieth
    torch.testing.assert_close(
        (clock[:, 1:] - clock[:, :-1])[follows], torch.full_like(clock, 0.05)[:, 1:][follows]
    )
    begins = clock[:, :, None, None].expand(-1, -1, 2, 16) == 0.0
    assert not obs[..., 3:-1][begins].any()
    assert obs[..., 3:-1][~begins].abs().mean() > 0.01


@pytest.mark.parametrize("example", ["onboard_recurrent"], indirect=True)
def test_a_resumed_run_with_hidden_states_equals_one_that_never_stopped(example) -> None:
    env = ToyEnv(8, death_rate=0.05)
    team, experience = recurrent_team(example, env)
    seen = play(team, experience, env, env.reset(), 40)
    saved = deepcopy([team.state_dict(), experience.state_dict(), env.state_dict()])
    play(team, experience, env, seen, 20)
    again = ToyEnv(8, death_rate=0.05)
    other, replay = recurrent_team(example, again)
    other.load_state_dict(saved[0])
    replay.load_state_dict(saved[1])
    play(other, replay, again, again.load_state_dict(saved[2]), 20)
    assert other.num_updates == team.num_updates > 50
    for name, weights in team.weights.items():
        assert torch.equal(weights, other.weights[name]), name
