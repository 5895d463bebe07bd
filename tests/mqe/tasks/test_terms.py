"""All registered terms of all tasks: shapes, finite numbers, mirror images, memory, help texts."""

# pyright: reportCallIssue=false, reportOptionalMemberAccess=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, tensor

from mqe.config import ConfigError
from mqe.registry import TASKS
from mqe.tasks.push import PUSH
from mqe.tasks.term_settings import DefaultTerms, TermCfg, build_terms
from mqe.tasks.terms import (
    ColumnTerms,
    MeasureTerm,
    Memory,
    MetricTerm,
    ObservationTerm,
    ObservationTerms,
    OfEpisode,
    RewardTerm,
    RewardTerms,
    StateTerms,
    TerminationTerm,
    TerminationTerms,
    TermRegistry,
    Worlds,
)
from tests.support.pushing import make_task
from tests.support.term_scenes import (
    N,
    Scene,
    extension_scenes,
    mirrored,
    random_state,
)

# The nearest edge of the object's outline: at a corner it is the first of two as near.
WITHOUT_MIRROR = ("ocb", "ocb_expanded")


def push_scenes() -> tuple[Scene, Scene]:
    state = random_state(3, True)
    prev = random_state(3, True)
    settings: dict[str, Any] = {"success_ends": False, "goal_heading": 0.0}
    settings["weights"] = {"shared_progress_ahead": 1.0}
    tasks = [make_task(N, 3, **settings) for _ in range(2)]
    images = mirrored(state), mirrored(prev)
    heading = torch.randn(N, 1)  # of the goal
    return Scene(tasks[0], state, prev, heading), Scene(tasks[1], *images, -heading)


SCENES: dict[str, Callable[[], tuple[Scene, Scene]]] = {
    "go1push_mid": push_scenes,
    **extension_scenes(),
}


def terms_of(kind: str) -> list[Any]:
    """Return parameters for all terms in a kind: task, term name, term."""
    return [
        pytest.param(task, name, term, id=f"{task}-{name}")
        for task, entry in TASKS.items()
        if entry.terms is not None
        for name, term in getattr(entry.terms, kind).items()
    ]


def worlds_of(scene: Scene) -> Worlds:
    return scene.task.terms.observations.worlds


def check_values(value: Tensor, *shapes: tuple[int, ...]) -> None:
    assert tuple(value.shape) in shapes
    assert value.dtype in (torch.float32, torch.bool)
    assert bool(torch.isfinite(value.float()).all())


def check_observation(task: str, name: str, term: ObservationTerm, cls: type) -> None:
    torch.manual_seed(0)
    scene, there = SCENES[task]()
    one = scene.task.scene_features(scene.state.like(scene.state.rows[:, :1]), scene.memory[:1])
    terms = cls({name: term}, worlds_of(scene), one)
    values = terms(scene.observed())
    leading = (N, scene.task.num_agents) if cls is ObservationTerms else (N,)
    check_values(values, (*leading, terms.size))
    assert terms.noise_scale.shape == (terms.size,)
    bodies = scene.state.num_robots - (term.over == "teammates")
    names = terms.number_names([f"robot{k}" for k in range(bodies)])
    assert len(set(names)) == terms.size
    if terms.mirror is None:
        assert term.mirror_signs is None
        return
    image = terms(there.observed())
    torch.testing.assert_close(terms.mirror(values), image, rtol=0.0, atol=1e-4)
    assert torch.equal(terms.mirror(terms.mirror(values)), values)


def check_step_term(
    task: str, name: str, term: RewardTerm | TerminationTerm | MeasureTerm
) -> Tensor:
    """Check a control-step term and return its values."""
    torch.manual_seed(0)
    scene, there = SCENES[task]()
    num_agents = scene.task.num_agents
    shapes = [(N,), (N, num_agents)]
    if isinstance(term, TerminationTerm):
        shapes = [(N,)]
    if isinstance(term, MeasureTerm):
        shapes = [(N, num_agents)] if term.per_robot else [(N,)]
    value = term.build(worlds_of(scene))(scene.step())
    check_values(value, *shapes)
    assert value.dtype == torch.bool or not isinstance(term, TerminationTerm)
    if name not in WITHOUT_MIRROR:
        image = term.build(worlds_of(there))(there.step())
        torch.testing.assert_close(value, image, rtol=1e-3, atol=1e-3)
    return value


def check_memory(task: str, name: str, term: RewardTerm | TerminationTerm | MeasureTerm) -> None:
    """A stateful term resumes from its saved state and restarts with an episode."""
    torch.manual_seed(0)
    scene, _ = SCENES[task]()
    first = term.build(worlds_of(scene))
    other = term.build(worlds_of(scene))
    if not isinstance(first, Memory):
        return
    pointers = [tensor.data_ptr() for tensor in first._tensors.values()]
    start = first.state_dict()
    features = scene.step()
    begun = first(features).clone()
    saved = first.state_dict()
    again = first(features).clone()
    other.load_state_dict(saved)
    assert torch.equal(other(features), again)
    first.reset(torch.ones(N, dtype=torch.bool))
    assert {key: value.tolist() for key, value in first.state_dict().items()} == {
        key: value.tolist() for key, value in start.items()
    }
    assert torch.equal(first(features), begun)
    # Memory is changed in place, so that a CUDA graph finds it again.
    assert pointers == [tensor.data_ptr() for tensor in first._tensors.values()]


def test_every_task_with_terms_has_scenes_here():
    assert set(SCENES) == {task for task, entry in TASKS.items() if entry.terms is not None}


@pytest.mark.parametrize("kind", TermRegistry.__dataclass_fields__)
def test_every_term_has_a_help_text_and_a_unit(kind):
    for task, name, term in (param.values for param in terms_of(kind)):
        assert term.help == term.help.strip(), (task, name)
        assert term.help, (task, name)
        assert not term.help.endswith("."), (task, name)
        assert term.unit, (task, name)


@pytest.mark.parametrize(("task", "name", "term"), terms_of("observations"))
def test_an_observation_has_shape_and_mirror_image(task, name, term):
    check_observation(task, name, term, ObservationTerms)


@pytest.mark.parametrize(("task", "name", "term"), terms_of("state"))
def test_a_term_of_the_state_has_shape_and_mirror_image(task, name, term):
    check_observation(task, name, term, StateTerms)


@pytest.mark.parametrize(
    ("task", "name", "term"),
    [*terms_of("rewards"), *terms_of("terminations"), *terms_of("measures")],
)
def test_a_term_of_control_steps_has_shape_mirror_image_and_memory(task, name, term):
    check_step_term(task, name, term)
    check_memory(task, name, term)


@pytest.mark.parametrize("task", SCENES)
def test_metrics_are_columns_of_their_names(task):
    torch.manual_seed(0)
    scene, _ = SCENES[task]()
    terms = scene.task.terms
    steps = torch.randint(1, 50, (N,))
    sums = torch.rand(N, len(terms.measures.columns))
    terminations = torch.rand(len(terms.terminations.names), N) > 0.5
    values = scene.task.episode_metrics(sums, steps, terminations)
    assert values.shape == (N, len(scene.task.names.metrics))
    assert not torch.isinf(values).any()  # NaN: it does not count for an episode


class Count(Memory):
    """Number of control steps."""

    def __init__(self, worlds: Worlds) -> None:
        super().__init__(worlds)
        self.count = self.remember("count", start=1.0)

    def __call__(self, features: Any) -> Tensor:
        return self.count.add_(1.0)


def own_task(monkeypatch) -> Any:
    """Return a push task with a stateful reward, ending and metric."""
    terms = PUSH.terms
    assert terms is not None
    late = TerminationTerm("late", lambda step: step.state.goal_distance > 0.1, is_failure=False)
    measure = MeasureTerm("count", Count)
    metric = MetricTerm("count", OfEpisode("count", "sum"), measures={"count": measure})
    monkeypatch.setitem(terms.rewards, "count", RewardTerm("count", Count, weight=2.0))
    monkeypatch.setitem(terms.terminations, "late", late)
    monkeypatch.setitem(terms.metrics, "count", metric)
    return make_task(N, 3, more_terminations=("late",), more_metrics=("count",))


def test_a_task_saves_and_restores_the_memory_of_its_terms(monkeypatch):
    torch.manual_seed(0)
    scene, _ = push_scenes()
    task = own_task(monkeypatch)
    other = own_task(monkeypatch)
    row = task.names.rewards.index("count")
    column = task.names.measures.index("count")
    task.evaluate(scene.state, scene.prev)
    other.load_state_dict(task.state_dict())
    for push_task in (task, other):
        outcome = push_task.evaluate(scene.state, scene.prev)
        assert (outcome.rewards[row] == 2.0 * 3.0).all()
        assert (outcome.measures[:, column] == 3.0).all()
    task.begin(torch.arange(N) < 5)
    outcome = task.evaluate(scene.state, scene.prev)
    assert outcome.rewards[row, :, 0].tolist() == [4.0] * 5 + [8.0] * (N - 5)


def test_what_an_older_version_did_not_keep_stays_as_it_is_and_is_named(capsys):
    memory = Memory(Worlds(2, 1))
    count = memory.remember("count", start=-3.0)
    memory.remember("age").fill_(5.0)
    memory.load_state_dict({"age": tensor([1.0, 2.0])})
    assert count.tolist() == [-3.0, -3.0]
    assert memory.state_dict()["age"].tolist() == [1.0, 2.0]
    assert "is older and lacks count, which begin anew" in capsys.readouterr().err


def test_ends_by_a_further_termination_are_a_metric(monkeypatch):
    task = own_task(monkeypatch)
    names = task.terms.terminations.names
    ended = torch.zeros(len(names), N, dtype=torch.bool)
    ended[names.index("late"), 3] = True
    sums = torch.zeros(N, len(task.names.measures))
    metrics = task.episode_metrics(sums, torch.ones(N), ended)
    column = task.names.metrics.index("late")
    assert metrics[:, column].tolist() == [float(k == 3) for k in range(N)]
    assert task.names.metrics[-1] == "late"


def test_choices_that_cannot_be_are_named():
    with pytest.raises(ConfigError, match=r"task\.more_state: unknown term of the state 'x'"):
        make_task(more_state=("x",))
    with pytest.raises(
        ConfigError, match=r"unknown key 'task\.replaced_observations\.gaol'; did you mean .*goal\?"
    ):
        make_task(replaced_observations={"gaol": "own_velocity"})
    with pytest.raises(ConfigError, match=r"task\.weights: every reward term has the weight 0"):
        make_task(weights=dict.fromkeys(PUSH.terms.rewards, 0.0))


def test_an_observation_that_remembers_is_refused():
    worlds = Worlds(1, 1)
    terms = TASKS["go1push_mid"].terms
    assert terms is not None
    with pytest.raises(ConfigError, match="count: observation .* cannot have memory"):
        ObservationTerms({"count": ObservationTerm("count", Count)}, worlds, None)
    with pytest.raises(ConfigError, match="every reward term has the weight 0"):
        build_terms(terms, DefaultTerms((), (), (), (), ()), TermCfg(), worlds, None)


def test_a_task_may_have_no_measures() -> None:
    assert ColumnTerms({}, Worlds(3, 2))(None).shape == (3, 0)


@pytest.mark.parametrize(
    ("terms", "value", "words"),
    [
        (RewardTerms, 3, r"\(N,\) or \(N, A\) of N worlds and A = 2 agents, not 3$"),
        (RewardTerms, torch.zeros(5, 1), r"\(N,\) or \(N, A\) .* not shape \(5, 1\)"),
        (RewardTerms, torch.zeros(5, 2, 3), r".* not shape \(5, 2, 3\)"),
        (TerminationTerms, torch.zeros(5, 2, dtype=torch.bool), r"\(N,\) of .* shape \(5, 2\)"),
        (ColumnTerms, torch.zeros(5, 2), r"\(N,\) of N worlds"),
    ],
)
def test_a_term_of_another_shape_is_named(terms, value, words) -> None:
    term = {
        RewardTerms: RewardTerm("x", lambda features: value),
        TerminationTerms: TerminationTerm("x", lambda features: value),
        ColumnTerms: MeasureTerm("x", lambda features: value),
    }[terms]
    weights = ({"own": 1.0},) if terms is RewardTerms else ()
    built = terms({"own": term}, *weights, Worlds(5, 2))
    with pytest.raises(ConfigError, match=f"^own: the term must return a tensor {words}"):
        built(None)


@pytest.mark.parametrize(
    ("terms", "shape", "words"),
    [
        (ObservationTerms, (1, 2), r"\(N, A, ...\) of .* not shape \(1, 2\)"),
        (ObservationTerms, (1, 3, 4), r".* not shape \(1, 3, 4\)"),
        (StateTerms, (1,), r"\(N, ...\) of .* not shape \(1,\)"),
    ],
)
def test_an_observation_of_another_shape_is_named(terms, shape, words) -> None:
    term = ObservationTerm("x", lambda features: torch.zeros(shape))
    with pytest.raises(ConfigError, match=f"^own: the term must return a tensor {words}"):
        terms({"own": term}, Worlds(5, 2), None)
