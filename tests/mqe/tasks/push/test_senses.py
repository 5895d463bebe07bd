"""Models of the robots' senses: their knowledge reaches the observations and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from mqe.config import ConfigError, option
from mqe.tasks.push import PushCfg, PushTask
from mqe.tasks.push.features import SceneFeatures
from mqe.tasks.push.senses import SENSES, SensesEntry
from tests.support.pushing import make_state, make_task


@dataclass(frozen=True)
class ToyCfg:
    """The toy's settings."""

    far: float = option(5.0, "place of the goal", min=0.0)


class Toy:
    """Robots believe that the goal is far away, by one metre a control step."""

    has_mirror = False

    def __init__(self, cfg, memory, values, constants, robots, streams) -> None:
        self.far = cfg.far
        self.values = memory.keep("toy", values)

    def draw(self, episode: Tensor) -> None:
        self.episode = episode

    def watch(self, scene, prev) -> None:
        self.values += 1.0

    def known(self, scene: SceneFeatures, memory: Tensor) -> SceneFeatures:
        known = SceneFeatures(scene.state, scene.constants)
        known.places_b = known.places_b.clone()
        known.places_b[:, :, 0] = self.far + memory.unsqueeze(-1)
        return known

    def source(self, term: str) -> str | None:
        return "a toy" if term == "goal" else None


@pytest.fixture
def toy(monkeypatch) -> None:
    monkeypatch.setitem(SENSES, "toy", SensesEntry(ToyCfg, lambda num_agents: num_agents, Toy))


def two_robots(**settings) -> PushTask:
    return make_task(1, 2, senses={"name": "toy", **settings})


STATE = make_state([[-2.0, 0.0], [0.0, 2.0]], [0.0, 1.0], [0.0, 0.0], 0.3, [3.0, 0.0])


def test_robots_observe_by_their_senses_and_the_critic_the_truth(toy) -> None:
    task = two_robots(far=7.0)
    exact = make_task(1, 2)
    task.begin(torch.ones(1, dtype=torch.bool))
    obs, critic = task.observe(STATE, task.memory)
    true_obs, true_critic = exact.observe(STATE, exact.memory)
    assert obs[..., :2].tolist() == [[[7.0, 7.0], [7.0, 7.0]]]
    assert torch.equal(obs[..., 2:], true_obs[..., 2:])
    assert torch.equal(critic, true_critic)


def test_a_control_step_updates_the_observed_memory_and_an_episode_resets_it(toy) -> None:
    task = two_robots()
    task.begin(torch.ones(1, dtype=torch.bool))
    before = task.memory.clone()
    task.evaluate(STATE, STATE)
    after, _ = task.observe(STATE, task.memory)
    earlier, _ = task.observe(STATE, before)
    assert (after - earlier)[..., :2].tolist() == [[[1.0, 1.0], [1.0, 1.0]]]
    state = task.state_dict()
    task.begin(torch.ones(1, dtype=torch.bool))
    assert torch.equal(task.memory, before)
    task.load_state_dict(state)
    assert float(task.memory[0, -1]) == 1.0


def test_a_scene_has_no_mirror_image_if_the_senses_have_none(toy, monkeypatch) -> None:
    assert two_robots().symmetries.mirror is None
    monkeypatch.setattr(Toy, "has_mirror", True)
    assert two_robots().symmetries.mirror is not None


def test_the_policy_names_the_source_of_a_sensed_term(toy) -> None:
    describe = two_robots().features.describe_observation
    assert describe is not None
    terms = describe(["robot1"])
    assert terms["goal"]["source"] == "a toy"
    assert "source" not in terms["object"]


def test_exact_senses_have_no_model_whatever_the_other_keys() -> None:
    for senses in ({}, {"name": "exact"}, {"name": "exact", "far": 3.0}):
        assert make_task(1, 2, senses=senses).constants.senses is None


@pytest.mark.parametrize(
    ("senses", "message"),
    [
        ({"name": "eyes"}, "task.senses.name: unknown model of the senses 'eyes' .*exact"),
        ({"name": ["toy"]}, "task.senses.name"),
        ({"far": 3.0}, "task.senses: far need the name of a model; say task.senses.name=NAME"),
        ({"name": "toy", "near": 3.0}, "unknown key 'task.senses.near'"),
        ({"name": "toy", "far": -1.0}, "task.senses.far: must be at least 0.0, not -1.0"),
    ],
)
def test_a_wrong_model_is_refused_in_a_line(toy, senses, message) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        PushCfg(senses=senses)
    assert "\n" not in str(error.value)
