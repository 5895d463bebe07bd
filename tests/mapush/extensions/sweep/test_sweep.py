"""Sweeps: what a SPACE.yaml may say, what trials are worth, what is recorded, and what resumes
after a kill.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from harl_mapush.callbacks.curves import Curves
from harl_mapush.runs import run_folder
from mapush import cli
from mapush.extensions.sweep import command, summary, trial_process
from mapush.extensions.sweep import places as places_module
from mapush.extensions.sweep import space as space_module
from mapush.extensions.sweep.space import (
    Parameter,
    Space,
    metric_tags,
    read_space,
    steps_before_episodes,
)
from mapush.extensions.sweep.trial_process import Progress, TrialSpec
from mapush.extensions.sweep.trials import (
    CONFIRM,
    FAILED,
    FINISHED,
    OPEN,
    OUTPUT,
    STOPPED,
    SWEEP,
    Ledger,
    Trial,
    contenders,
    mean_interval,
    order_of_merit,
    rank_settings,
    t_quantile,
)
from tests.support.paths import ROOT

SMALL = {
    "env": {"num_envs": 4},
    "task": {"episode_length_s": 1.0},
    "runner": {"num_env_steps": 1000, "num_steps": 4},
}
RATE = "algorithm.learning_rate"
CLIP = "algorithm.clip_param"
EPOCHS = "algorithm.num_epochs"
VARIED = {RATE: {"log": [1e-4, 1e-2]}, CLIP: [0.1, 0.2], EPOCHS: {"range": [2, 5]}}


@pytest.fixture
def quick(monkeypatch) -> None:
    """No world is built to find out which metrics there are."""
    monkeypatch.setattr(
        space_module, "metric_tags", lambda run: ["mapush/success_rate", "reward/total"]
    )


def write(folder: Path, **keys) -> Path:
    path = folder / "space.yaml"
    path.write_text(yaml.safe_dump({"settings": SMALL, "space": VARIED} | keys, sort_keys=False))
    return path


def make_space(folder: Path, **keys) -> Space:
    return read_space(write(folder, **keys))


def trial(
    number: int, value: float | None, state: str = FINISHED, setting: int | None = None, **more
) -> Trial:
    steps = more.pop("steps", 1000)
    points = [] if value is None else [(100, 0.0), (steps, value)]
    values = more.pop("values", {RATE: 1e-3, CLIP: 0.1, EPOCHS: 3})
    return Trial(
        number, setting or number, values, more.pop("seed", 1), state=state, points=points, **more
    )


# Spaces


@pytest.mark.usefixtures("quick")
def test_a_space_names_lists_and_intervals(tmp_path) -> None:
    space = make_space(tmp_path, seeds=[11, 12], num_trials=20)
    rate, clip, epochs = space.parameters
    assert rate == Parameter(RATE, low=1e-4, high=1e-2, is_log=True)
    assert clip.choices == (0.1, 0.2)
    assert (epochs.low, epochs.high, epochs.is_whole) == (2, 5, True)
    assert space.run.env.num_envs == 4
    assert (space.num_settings, space.seeds, space.first_rung) == (20, (1,), 334)
    assert space.budget() == "20 trials and 6 with other seeds, at most 26,000 env steps in all"


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "budget, keep, first",
    # Episodes count after 200 env steps.
    [
        (1000, 3, 334),
        (2000, 3, 223),
        (9000, 3, 1001),
        (1000, 2, 251),
        (600, 3, 201),
        (500, 3, None),
    ],
)
def test_trials_are_stopped_once_their_metric_is_known_and_not_near_their_end(
    tmp_path, budget: int, keep: int, first: int | None
) -> None:
    runner = SMALL["runner"] | {"num_env_steps": budget}
    space = make_space(tmp_path, settings=SMALL | {"runner": runner}, stopping={"keep": keep})
    assert steps_before_episodes(space.run, space.cfg.metric) == 200
    assert space.first_rung == first
    assert ("none is stopped early" in space.budget()) == (first is None)
    engine = pytest.importorskip("mapush.extensions.sweep.engine")
    pruner = engine.Search(space, Ledger(tmp_path)).study.pruner
    stops_none = isinstance(pruner, engine.optuna.pruners.NopPruner)
    assert stops_none == (first is None)


@pytest.mark.usefixtures("quick")
def test_a_number_that_is_no_count_may_have_whole_ends(tmp_path) -> None:
    (coefficient,) = make_space(
        tmp_path, space={"algorithm.entropy_coef": {"range": [0, 1]}}
    ).parameters
    assert not coefficient.is_whole


@pytest.mark.usefixtures("quick")
def test_a_grid_is_every_combination_with_every_seed_and_nothing_is_stopped(tmp_path) -> None:
    space = make_space(
        tmp_path, search="grid", space={CLIP: [0.1, 0.2], EPOCHS: [3, 4]}, seeds=[1, 2, 3]
    )
    assert [tuple(point.values()) for point in space.grid()] == [
        (0.1, 3),
        (0.1, 4),
        (0.2, 3),
        (0.2, 4),
    ]
    assert (space.num_settings, space.seeds, space.cfg.stopping) == (4, (1, 2, 3), None)
    assert space.budget() == "12 trials, at most 12,000 env steps in all"


@pytest.mark.usefixtures("quick")
def test_the_space_in_the_documents_is_one(tmp_path) -> None:
    text = (ROOT / "docs" / "guides" / "sweep.md").read_text(encoding="utf-8")
    (tmp_path / "shown.yaml").write_text(text.partition("```yaml\n")[2].partition("```")[0])
    assert read_space(tmp_path / "shown.yaml").budget() == (
        "30 trials and 15 with other seeds, at most 135,000,000 env steps in all"
    )


@pytest.mark.parametrize(
    "keys, words",
    [
        ({"space": {}}, "names no setting that varies"),
        ({"space": {"algorithm.clip": [0.1]}}, "did you mean algorithm.clip_param?"),
        (
            {"space": {"runner.init_from": ["nowhere"]}},
            "space.runner.init_from: runner.init_from: checkpoint 'nowhere' does",
        ),
        (
            {"settings": {"runner": {"init_from": "nowhere"}}},
            "runner.init_from: checkpoint 'nowhere' does not exist",
        ),
        (
            {"space": {CLIP: 0.1}},
            "must be a list of values, {range: [low, high]} or {log: [low, high]}, not 0.1",
        ),
        ({"space": {CLIP: [0.1, 0.1]}}, "has a value twice"),
        ({"space": {CLIP: [0.1, -1]}}, "space.algorithm.clip_param: algorithm.clip_param: must be"),
        ({"space": {CLIP: {"range": [0.3, 0.1]}}}, "the first number must be below the second"),
        ({"space": {CLIP: {"range": [0.1]}}}, "must be two numbers, [low, high]"),
        ({"space": {RATE: {"log": [0, 1e-2]}}}, "needs numbers above 0"),
        ({"space": {RATE: {"log": [1e-4, -1e-5]}}}, "the first number must be below the second"),
        ({"space": {EPOCHS: {"range": [1.5, 4]}}}, "must be a whole number, not 1.5"),
        ({"space": {"runner.seed": [1, 2]}}, "list the seeds under seeds: [...]"),
        ({"space": {"runner.num_env_steps": [1, 2]}}, "all trials have the same budget"),
        ({"space": {"clip_param": [0.1]}}, "must have the form section.key"),
        ({"spaces": {}}, "did you mean space?"),
        ({"search": "hyperband"}, "unknown value 'hyperband'"),
        ({"search": "grid"}, "a grid needs a list of values, not an interval"),
        (
            {"search": "grid", "num_trials": 3},
            "a grid has as many trials as it has points and seeds",
        ),
        ({"num_trials": 0}, "num_trials: must be at least 1"),
        ({"seeds": [1, 5]}, "1 is the seed that the search itself trains with"),
        ({"seeds": [5, 5]}, "has a seed twice"),
        ({"stopping": {"first": 1000}}, "must be below runner.num_env_steps 1000"),
        ({"stopping": {"first": 200}}, "above 200 for mapush/success_rate to have a value"),
        ({"stopping": {"keep": 1}}, "stopping.keep: must be at least 2"),
        ({"preset": "tiny"}, "unknown preset 'tiny'"),
        ({"preset": "smoke", "config": "x.yaml"}, "both name the run that is varied"),
        ({"settings": {"env": {"num_worlds": 3}}}, "env.num_worlds"),
        ({"metric": "mapush/sucess_rate"}, "did you mean mapush/success_rate?"),
        (
            {"space": {"task.episode_length_s": [1.0, 20.0]}},
            "runner.num_env_steps 1000: no episode counts within this budget, so "
            "mapush/success_rate has no value: 4 worlds with a time limit of 20 s take 4000 env "
            "steps",
        ),
    ],
)
@pytest.mark.usefixtures("quick")
def test_bad_spaces_are_one_line_before_anything_starts(
    tmp_path, capsys, monkeypatch, keys, words
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)  # it is not even asked for
    assert cli.main(["sweep", str(write(tmp_path, **keys)), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "argv, words",
    [
        (["{space}", "--num_trials", "0"], "must be a whole number above 0"),
        (["{space}", "--jobs", "x"], "--jobs: must be a whole number above 0"),
        (["{space}", "--jobs", ".inf"], "--jobs: must be a whole number above 0"),
        (["{space}", "--num_trials", ".nan"], "--num_trials: must be a whole number above 0"),
        (["{space}", "--jobs", "1", "--gpus_per_trial", "0.5"], "leave one out"),
        (["{space}", "--gpus_per_trial", "2"], "at most 1"),
        (["{space}", "--jobs", "100000"], "the cores of this machine"),
        (["{space}", "--num_envs", "x"], "env.num_envs: must be a whole number"),
        (["{space}", "--set", "algorithm.lr=1"], "say --set algorithm.learning_rate=VALUE"),
        (["{folder}"], "holds no sweep"),
        (["{space}", "--out", "{folder}"], "exists and holds no sweep"),
        (["{folder}/none.yaml"], "cannot be read"),
    ],
)
@pytest.mark.usefixtures("quick")
def test_bad_command_lines_are_one_line(tmp_path, capsys, argv, words) -> None:
    path = write(tmp_path)
    assert cli.main(["sweep", *(word.format(space=path, folder=tmp_path) for word in argv)]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


@pytest.mark.usefixtures("quick")
def test_without_the_extra_a_line_names_it(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert (
        cli.main(["sweep", str(write(tmp_path)), "--jobs", "1", "--out", str(tmp_path / "out")])
        == 2
    )
    assert capsys.readouterr().err == "mapush sweep: optuna missing; pip install 'mapush[sweep]'\n"


def test_metrics_are_those_that_a_run_will_log(tmp_path) -> None:
    tags = metric_tags(make_space(tmp_path).run)
    assert {
        "mapush/success_rate",
        "mapush/return",
        "agent0/contact_share",
        "reward/total",
        "reward/reach",
    } <= set(tags)
    assert not [tag for tag in tags if tag.startswith("eval/")]
    evaluated = SMALL | {
        "runner": {"num_env_steps": 1000, "num_steps": 4, "evaluation_interval": 500}
    }
    assert "eval/success_rate" in metric_tags(
        make_space(tmp_path, settings=evaluated, metric="eval/return").run
    )


# Statistics


def test_intervals_are_students() -> None:
    assert mean_interval([3.0]) is None
    half = 4.302653 / math.sqrt(3)
    assert mean_interval([1.0, 2.0, 3.0]) == pytest.approx((2.0 - half, 2.0 + half))
    tabulated = {1: 12.706, 2: 4.303, 3: 3.182, 10: 2.228, 30: 2.042, 60: 2.000, 1000: 1.962}
    assert {n: round(t_quantile(n), 3) for n in tabulated} == tabulated


def test_settings_are_ranked_by_seeds_that_the_search_did_not_see() -> None:
    trials = [
        trial(1, 0.9),
        trial(2, 0.8),
        trial(3, 0.7),
        trial(4, 0.99, STOPPED),
        trial(5, None, FAILED),
    ]
    trials += [
        trial(5 + k, value, setting=1, seed=10 + k, stage=CONFIRM)
        for k, value in enumerate((0.1, 0.3), 1)
    ]
    trials += [
        trial(7 + k, value, setting=2, seed=10 + k, stage=CONFIRM)
        for k, value in enumerate((0.5, 0.7), 1)
    ]
    ranked = rank_settings(trials, "max")
    assert [setting.number for setting in ranked] == [2, 1, 3]
    assert [setting.mean for setting in ranked] == pytest.approx([0.6, 0.2, 0.7])
    assert [setting.interval is None for setting in ranked] == [False, False, True]
    assert [setting.number for setting in rank_settings(trials, "min")] == [1, 2, 3]


def test_stopped_trials_come_after_finished_ones_and_the_earlier_the_later() -> None:
    trials = [
        trial(1, 0.9, STOPPED, steps=300),
        trial(2, 0.1),
        trial(3, 0.2, STOPPED, steps=600),
        trial(4, 0.3),
    ]
    trials += [
        trial(5, 0.5, STOPPED, steps=600),
        trial(6, None, FAILED),
        trial(7, 0.9, stage=CONFIRM),
    ]
    assert [each.number for each in order_of_merit(trials, "max")] == [4, 2, 5, 3, 1]
    assert [each.number for each in order_of_merit(trials, "min")] == [2, 4, 3, 5, 1]


def test_a_stopped_trial_that_was_ahead_is_confirmed_before_a_worse_finished_one() -> None:
    trials = [
        trial(1, 0.078),
        trial(2, 0.050),
        trial(3, 0.034, STOPPED, steps=300),
        trial(4, 0.025, STOPPED, steps=600),
        trial(5, 0.0),
        trial(6, 0.0, STOPPED, steps=300),
        trial(7, None, STOPPED),
        trial(8, 0.9, stage=CONFIRM),
    ]
    assert [each.number for each in contenders(trials, "max")] == [1, 2, 3, 4, 5, 6]
    assert [each.number for each in contenders(trials, "min")] == [5, 6, 4, 3, 2, 1]


# Records


def test_records_are_read_back_and_numbers_go_on(tmp_path, capsys) -> None:
    ledger = Ledger(tmp_path)
    first = ledger.add(None, {CLIP: 0.1}, 1)
    second = ledger.add(None, {CLIP: 0.2}, 1)
    second.state = STOPPED
    second.points = [(100, 0.5)]
    ledger.write(second)
    again = Ledger(tmp_path)
    assert again.trials == [first, second]
    assert again.open_trials("search") == [first]
    assert again.add(1, {CLIP: 0.1}, 7, CONFIRM).number == 3
    (tmp_path / "trials" / "0002" / "trial.json").write_text("{")
    with pytest.raises(ValueError, match="to continue the sweep without that trial"):
        Ledger(tmp_path)


@pytest.mark.usefixtures("quick")
def test_flags_replace_the_settings_of_a_space_but_not_those_of_a_sweep(
    tmp_path, capsys, monkeypatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    path = write(tmp_path)
    asked = command.make_parser().parse([str(path), "--seed", "41", "--set", "env.num_envs=3"])
    _, space = command._find(asked)
    assert space.run.runner.seed == 41
    assert space.run.env.num_envs == 3
    assert space.run.runner.num_env_steps == SMALL["runner"]["num_env_steps"]

    out = tmp_path / "out"
    out.mkdir()
    (out / SWEEP).write_text(yaml.safe_dump({"space": VARIED}, sort_keys=False))
    (out / "settings.yaml").write_text(yaml.safe_dump(space.base))
    for words in (["--seed", "5"], ["--set", "env.num_envs=4"], ["--suite", "team2"]):
        assert cli.main(["sweep", str(out), *words]) == 2
        line = capsys.readouterr().err
        assert f"{words[0]}: {out} is the folder of a sweep, whose settings stay" in line


@pytest.mark.usefixtures("quick")
def test_a_folder_goes_on_with_its_own_space_only(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    space = make_space(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    (out / SWEEP).write_text(yaml.safe_dump({"space": VARIED}, sort_keys=False))
    (out / "settings.yaml").write_text(yaml.safe_dump(space.base))
    same = ["sweep", str(tmp_path / "space.yaml"), "--out", str(out), "--jobs", "1"]
    assert cli.main([*same, "--num_trials", "50"]) == 2
    assert "optuna missing" in capsys.readouterr().err  # it came as far as Optuna
    write(tmp_path, space={CLIP: [0.1, 0.2]})
    assert cli.main(same) == 2
    assert "holds a sweep over another space" in capsys.readouterr().err


@pytest.mark.usefixtures("quick")
def test_the_summary_says_what_is_best_what_matters_and_what_failed(tmp_path) -> None:
    space = make_space(tmp_path)
    ledger = Ledger(tmp_path)
    ledger.trials = [
        trial(1, 0.5, values={RATE: 1e-3, CLIP: 0.2, EPOCHS: 4}),
        trial(2, 0.1, STOPPED, steps=300),
    ]
    ledger.trials += [trial(3, None, FAILED, reason="exit code 1: a | b")]
    ledger.trials += [trial(3 + k, 0.3 + k / 10, setting=1, seed=k, stage=CONFIRM) for k in (1, 2)]
    ranked = rank_settings(ledger.trials, "max")
    files = summary.write_summary(space, ledger, ranked, {CLIP: 0.7, RATE: 0.2, EPOCHS: 0.1})
    assert [path.name for path in files] == ["summary.md", "trials.csv", "best.yaml", "summary.png"]
    text = (tmp_path / "summary.md").read_text()
    assert "5 trials (3 finished, 1 stopped early, 1 failed, 0 not over)" in text
    assert "| 1 | 0.001 | 0.1 | 3 | 0.450 | -0.185 to 1.085 | 1, 2 | 4, 5 |" in text
    assert "| algorithm.clip_param | 0.70 |" in text
    assert "So few trials give a rough estimate only" in text
    assert "These trials were stopped early" not in text
    assert "exit code 1: a \\| b" in text
    assert (tmp_path / "trials.csv").read_text().splitlines()[2] == (
        "2,2,0.001,0.1,3,1,search,stopped,300,0.1,"
    )
    best = read_space(write(tmp_path, config=str(tmp_path / "best.yaml"), settings={}, seeds=[]))
    assert (best.run.algorithm.clip_param, best.run.runner.seed, best.run.env.num_envs) == (
        0.1,
        1,
        4,
    )


@pytest.mark.usefixtures("quick")
def test_the_summary_warns_of_ties(tmp_path) -> None:
    space = make_space(tmp_path)
    trials = [trial(1, 1.0), trial(2, 1.0), trial(3, 0.5)]
    text = summary.page(space, trials, rank_settings(trials, "max"), {})
    assert "the first 2 of 3 settings are tied, with `mapush/success_rate` 1.000" in text
    assert "tied" not in summary.page(space, trials, rank_settings(trials, "min"), {})


@pytest.mark.usefixtures("quick")
def test_many_trials_give_more_than_a_rough_estimate(tmp_path) -> None:
    trials = [trial(number, number / 40) for number in range(1, 41)]
    page = summary.page(make_space(tmp_path), trials, rank_settings(trials, "max"), {CLIP: 1.0})
    assert "So few" not in page


@pytest.mark.usefixtures("quick")
def test_rewards_and_unstaggered_starts_need_no_whole_episode(tmp_path) -> None:
    long = SMALL | {"task": {"episode_length_s": 20.0}}
    assert make_space(tmp_path, settings=long, metric="reward/total").cfg.metric == "reward/total"
    together = SMALL["runner"] | {"staggered_start": False}
    space = make_space(tmp_path, settings=long | {"runner": together})
    assert not space.base["runner"]["staggered_start"]


# The engine


def test_a_curve_is_given_point_by_point_at_equal_distances(tmp_path) -> None:
    worker = pytest.importorskip("mapush.extensions.sweep.trial_process")
    run = tmp_path / "run"
    points = worker.Points(run, "mapush/return", 200)
    assert points.new() == []  # there is no log yet
    run.mkdir()
    assert points.new() == []  # nor a curve
    curves = Curves(run_folder.curves_folder(run), lambda line: None)  # where the logger has them
    for steps in (100, 200, 300, 400):
        curves.add({"mapush/return": steps / 100}, steps)
    curves.flush()
    assert points.new() == [(200, 2.0), (400, 4.0)]
    curves.add({"mapush/return": 9.0}, 500)
    curves.close()
    assert points.new() == []
    assert points.all()[-1] == (500, 9.0)


@pytest.mark.usefixtures("quick")
def test_the_search_goes_on_from_the_records(tmp_path) -> None:
    engine = pytest.importorskip("mapush.extensions.sweep.engine")
    space = make_space(tmp_path, metric="reward/total", stopping={"first": 100})
    ledger = Ledger(tmp_path / "sweep")
    ledger.add(None, {RATE: 2e-3, CLIP: 0.2, EPOCHS: 4}, 1)
    over = ledger.add(None, {RATE: 1e-3, CLIP: 0.1, EPOCHS: 2}, 1)
    over.state = STOPPED
    over.points = [(100, 0.5)]
    ledger.write(over)
    ended = []
    search = engine.Search(space, ledger)
    waiting = ledger.open_trials("search")
    stage = engine.Stage(space, ledger, waiting, search, 3, ["--x"], ended.append)
    resumed = stage.next_trial()
    spec = stage.spec(resumed)
    assert spec.folder.endswith("trials/0001")
    assert spec.words[2:] == [
        *("--set", f"{RATE}=0.002", "--set", f"{CLIP}=0.2", "--set", f"{EPOCHS}=4", "--seed", "1")
    ]
    # The first trial at a rung goes on if it is the best there; 0.5 was there before.
    for progress, state in (
        ([([(1000, 0.7)], FINISHED)], FINISHED),
        ([([(50, 0.0)], None), ([(100, 0.1)], None), ([(120, 0.1)], OPEN)], STOPPED),
        ([([], FAILED)], FAILED),
        ([([(100, 0.9)], None), ([(120, 0.9)], OPEN)], OPEN),
    ):
        chosen = resumed if not ended else stage.next_trial()
        asked = [stage.follow(chosen, Progress(points, outcome)) for points, outcome in progress]
        assert Path(stage.spec(chosen).folder).is_dir()
        assert ended[-1].state == state
        assert any(asked) == (state == STOPPED)
    assert stage.next_trial() is None
    again = Ledger(tmp_path / "sweep")
    assert [each.state for each in again.trials] == [FINISHED, STOPPED, STOPPED, FAILED, OPEN]
    assert again.trials[0].points == [(1000, 0.7)]
    for each in again.trials:
        assert 1e-4 <= each.values[RATE] <= 1e-2
        assert each.values[CLIP] in (0.1, 0.2)
        assert each.values[EPOCHS] in (2, 3, 4, 5)
    later = engine.Search(space, again).ask()[1]
    assert later not in [each.values for each in again.trials]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("value", "is_hopeless"), [(0.1, True), (0.9, False)])
def test_rungs_remember_trials_of_before_the_kill(tmp_path, value, is_hopeless) -> None:
    engine = pytest.importorskip("mapush.extensions.sweep.engine")
    space = make_space(tmp_path, metric="reward/total", stopping={"first": 100})
    ledger = Ledger(tmp_path)
    ledger.trials = [trial(k, 0.5 + k / 10) for k in (1, 2, 3)]
    for each in ledger.trials:
        each.points = [(100, each.value), (1000, each.value)]
    search = engine.Search(space, ledger)
    new = search.choose(ledger)
    assert not search.is_hopeless(new, 50, value)
    assert search.is_hopeless(new, 100, value) == is_hopeless


class Scripted:
    """A trial that gives its points one by one, until it is asked to end."""

    def __init__(self, spec, log) -> None:
        self.log = log
        self.name = Path(spec.folder).name
        self.points = [(100, 0.1), (200, 0.2), (1000, 0.9)]
        log.append(f"start {self.name}")

    def poll(self) -> Progress:
        if not self.points:
            return Progress([], FINISHED)
        return Progress([self.points.pop(0)])

    def end(self) -> None:
        self.log.append(f"end {self.name}")

    def wait(self) -> None:
        self.log.append(f"wait {self.name}")


class ScriptedPlaces:
    def __init__(self, num_places: int) -> None:
        self.num_places = num_places
        self.log: list[str] = []

    def start(self, place: int, spec) -> Scripted:
        assert 0 <= place < self.num_places
        return Scripted(spec, self.log)

    def close(self) -> None:
        pass


@pytest.mark.usefixtures("quick")
def test_trials_take_the_places_that_are_free(tmp_path, monkeypatch) -> None:
    engine = pytest.importorskip("mapush.extensions.sweep.engine")
    monkeypatch.setattr(engine, "_PAUSE_S", 0.0)
    ledger = Ledger(tmp_path / "sweep")
    trials = [ledger.add(None, {RATE: 2e-3, CLIP: 0.2, EPOCHS: 4}, seed) for seed in (1, 2, 3)]
    stage = engine.Stage(make_space(tmp_path), ledger, trials, None, 0, [], lambda trial: None)
    places = ScriptedPlaces(2)
    engine.run_stage(stage, places)
    assert places.log[:2] == ["start 0001", "start 0002"]
    assert places.log[2:] == ["wait 0001", "wait 0002", "start 0003", "wait 0003"]
    assert [each.state for each in Ledger(tmp_path / "sweep").trials] == [FINISHED] * 3
    assert trials[0].points == [(100, 0.1), (200, 0.2), (1000, 0.9)]


@pytest.mark.usefixtures("quick")
def test_an_interrupted_sweep_asks_its_trials_to_save_and_waits(tmp_path, monkeypatch) -> None:
    engine = pytest.importorskip("mapush.extensions.sweep.engine")

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine.time, "sleep", interrupt)
    ledger = Ledger(tmp_path / "sweep")
    trials = [ledger.add(None, {RATE: 2e-3, CLIP: 0.2, EPOCHS: 4}, seed) for seed in (1, 2)]
    stage = engine.Stage(make_space(tmp_path), ledger, trials, None, 0, [], lambda trial: None)
    places = ScriptedPlaces(2)
    with pytest.raises(KeyboardInterrupt):
        engine.run_stage(stage, places)
    assert places.log[2:] == ["end 0001", "end 0002", "wait 0001", "wait 0002"]
    assert [each.state for each in Ledger(tmp_path / "sweep").trials] == [OPEN] * 2


def test_a_training_outlives_ray_which_kills_the_children_of_its_worker(
    tmp_path, monkeypatch
) -> None:
    """The training, here a script, waits for the end of its standard input and saves then."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho begun\ncat\necho saved\n")
    python.chmod(0o755)
    monkeypatch.setattr(trial_process.sys, "executable", str(python))
    (tmp_path / "run").mkdir()
    output = tmp_path / "run" / OUTPUT
    spec = TrialSpec(str(tmp_path / "run"), [], [], "reward/total", 1000, str(tmp_path))
    process = trial_process.TrialProcess(spec, {}, is_grandchild=True)
    wait_for(lambda: output.read_text() == "begun\n")
    process._child.kill()
    process.end()
    wait_for(lambda: output.read_text() == "begun\nsaved\n")
    process.wait()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_each_gpu_is_shared_by_as_many_trials_as_fit(monkeypatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    monkeypatch.setattr(places_module, "num_cores", lambda: 16)
    places = places_module.make_places(0, 0.5)
    assert isinstance(places, places_module.LocalPlaces)
    gpus = [variables["CUDA_VISIBLE_DEVICES"] for variables in places._variables]
    assert gpus == ["3", "5", "3", "5"]
    assert places_module.make_places(3, 0.0).num_places == 3


@pytest.mark.usefixtures("quick")
def test_importance_finds_the_setting_that_decides(tmp_path) -> None:
    engine = pytest.importorskip("mapush.extensions.sweep.engine")
    space = make_space(tmp_path)
    trials = [
        trial(
            k,
            0.9 if k % 2 else 0.1,
            values={RATE: 1e-4 * (1 + 7 * k % 10), CLIP: (0.1, 0.2)[k % 2], EPOCHS: 2 + k % 4},
        )
        for k in range(1, 25)
    ]
    shares = engine.importance(space, trials)
    assert next(iter(shares)) == CLIP
    assert sum(shares.values()) == pytest.approx(1.0)
    assert engine.importance(space, trials[:7]) == {}


@pytest.mark.usefixtures("quick")
def test_a_cluster_that_does_not_answer_is_one_line(tmp_path, capsys, monkeypatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    words = [
        "sweep",
        str(write(tmp_path)),
        "--gpus_per_trial",
        "0.25",
        "--out",
        str(tmp_path / "out"),
    ]
    assert cli.main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith(
        "mapush sweep: RAY_ADDRESS=127.0.0.1:1: no Ray answers there; start it with ray start"
    )
    assert error.count("\n") == 1
