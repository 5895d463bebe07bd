"""Examples of further memories: earlier detections, messages, and an actor with an estimate."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mqe.controllers.set_readers import SET_READERS
from mqe.extensions import load_extensions
from mqe.tasks.push.senses import SENSES
from mqe.vec_env import EntityBlock
from mqe.world.scene import STEP_DT
from tests.mapush.extensions.onboard.test_onboard import PERFECT
from tests.support.paths import ROOT
from tests.support.pushing import make_state, make_task
from tests.support.registries import restored_registries

load_extensions()
DECISION = 5  # control steps


@pytest.fixture
def example(request: pytest.FixtureRequest) -> Iterator[SimpleNamespace]:
    """Run an example, and unregister its members afterwards."""
    with restored_registries(SENSES, SET_READERS):
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


@pytest.mark.parametrize("example", ["onboard_history"], indirect=True)
def test_the_reader_of_a_history_replaces_its_numbers_and_heeds_their_order(example) -> None:
    reader = example.GruReader(50, [EntityBlock("past", 2, example.K, 6)], 64)
    x = torch.randn(3, 2, 50)
    turned = x.clone()
    turned[..., 2:50] = x[..., 2:50].unflatten(-1, (example.K, 6)).flip(-2).flatten(-2)
    features = reader(x)
    assert features.shape == (3, 2, reader.out_size) == (3, 2, 2 + example.GRU_SIZE)
    assert torch.equal(features[..., :2], x[..., :2])
    assert not torch.allclose(features, reader(turned))


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


@pytest.mark.parametrize("example", ["onboard_estimator"], indirect=True)
def test_the_estimate_learns_the_place_from_an_actors_features(example) -> None:
    truth = torch.randn(64, 2, 2)
    algorithm = object.__new__(example.Estimator)
    features = torch.cat((truth, torch.zeros(64, 2, 2)), dim=-1)
    spec = SimpleNamespace(teacher=None, teacher_obs=lambda state: truth)
    actor = SimpleNamespace(sets=lambda obs: obs, net=lambda obs: obs)
    zeros = [torch.zeros(5, 2) for _ in range(3)]
    columns = torch.tensor([0, 1])
    algorithm.__dict__ |= {"spec": spec, "actors": [actor], "columns": columns, "knows_load": False}
    algorithm.__dict__ |= dict(zip(("head", "mean", "square"), zeros, strict=True))
    algorithm.__dict__["cfg"] = SimpleNamespace(estimate_weight=1.0)
    batch: Any = SimpleNamespace(obs=features, state=None)
    errors = []
    for _ in range(2000):
        errors.append(float(algorithm.further_losses(batch)["agent0/estimate_loss"]))
        algorithm.head.sub_(example.RATE * algorithm.mean / (algorithm.square.sqrt() + 1e-8))
    assert errors[0] > 1.5
    assert errors[-1] < 0.01
