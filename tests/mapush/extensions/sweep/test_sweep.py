"""Sweeps: spaces, the study in a folder, early stops, rankings and command lines."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from mapush import cli
from tests.support.error_lines import error_line
from tests.support.paths import ROOT

optuna = pytest.importorskip("optuna")

from mapush.extensions.sweep import command, trial_training  # noqa: E402
from mapush.extensions.sweep import space as space_module  # noqa: E402
from mapush.extensions.sweep.space import Space, metric_tags, read_space  # noqa: E402
from mapush.extensions.sweep.study import Sweep  # noqa: E402

SMALL = {
    "env": {"num_envs": 4},
    "task": {"episode_length_s": 1.0},
    "runner": {"num_env_steps": 1000, "num_steps": 4},
}
RATE = "algorithm.learning_rate"
CLIP = "algorithm.clip_param"
EPOCHS = "algorithm.num_epochs"
VARIED = {RATE: {"log": [1e-4, 1e-2]}, CLIP: [0.1, 0.2], EPOCHS: {"range": [2, 5]}}
METRIC = "reward/total"


@pytest.fixture
def quick(monkeypatch) -> None:
    """No world is built for the names of metrics."""
    monkeypatch.setattr(space_module, "metric_tags", lambda run: ["mapush/success_rate", METRIC])


def write(folder: Path, **keys) -> Path:
    path = folder / "space.yaml"
    path.write_text(yaml.safe_dump({"settings": SMALL, "space": VARIED} | keys, sort_keys=False))
    return path


def make_space(folder: Path, **keys) -> Space:
    return read_space(write(folder, **keys))


# Spaces


@pytest.mark.usefixtures("quick")
def test_a_space_names_lists_and_intervals(tmp_path) -> None:
    space = make_space(tmp_path, seeds=[11, 12], num_trials=20)
    rate, clip, epochs = space.distributions.values()
    assert rate == optuna.distributions.FloatDistribution(1e-4, 1e-2, log=True)
    assert clip == optuna.distributions.CategoricalDistribution(("0.1", "0.2"))
    assert epochs == optuna.distributions.IntDistribution(2, 5)
    assert (space.run.env.num_envs, space.num_trials) == (4, 20)
    params = {RATE: 1e-3, CLIP: "0.2", EPOCHS: 3}
    assert space.values(params) == {RATE: 1e-3, CLIP: 0.2, EPOCHS: 3}


@pytest.mark.usefixtures("quick")
def test_a_number_that_is_no_count_may_have_whole_ends(tmp_path) -> None:
    space = make_space(tmp_path, space={"algorithm.entropy_coef": {"range": [0, 1]}})
    (coefficient,) = space.distributions.values()
    assert coefficient == optuna.distributions.FloatDistribution(0.0, 1.0)


@pytest.mark.usefixtures("quick")
def test_a_choice_may_be_a_list(tmp_path) -> None:
    key = "network.hidden_sizes"
    space = make_space(tmp_path, search="grid", space={key: [[8], [8, 8]]})
    assert [space.values(point) for point in space.grid()] == [{key: [8]}, {key: [8, 8]}]


@pytest.mark.usefixtures("quick")
def test_a_grid_is_every_combination_with_every_seed_and_nothing_is_stopped(tmp_path) -> None:
    space = make_space(
        tmp_path, search="grid", space={CLIP: [0.1, 0.2], EPOCHS: [3, 4]}, seeds=[1, 2, 3]
    )
    assert [tuple(space.values(point).values()) for point in space.grid()] == [
        (0.1, 3),
        (0.1, 4),
        (0.2, 3),
        (0.2, 4),
    ]
    assert (space.num_trials, space.grid_seeds, space.cfg.stopping) == (12, (1, 2, 3), None)


@pytest.mark.usefixtures("quick")
def test_the_space_in_the_documents_is_one(tmp_path) -> None:
    text = (ROOT / "docs" / "guides" / "sweep.md").read_text(encoding="utf-8")
    (tmp_path / "shown.yaml").write_text(text.partition("```yaml\n")[2].partition("```")[0])
    space = read_space(tmp_path / "shown.yaml")
    assert (space.num_trials, len(space.cfg.seeds)) == (30, 5)


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
        ({"stopping": {"keep": 1}}, "stopping.keep: must be at least 2"),
        ({"preset": "tiny"}, "unknown preset 'tiny'"),
        ({"preset": "smoke", "config": "x.yaml"}, "both name the run that is varied"),
        ({"settings": {"env": {"num_worlds": 3}}}, "env.num_worlds"),
        ({"metric": "mapush/sucess_rate"}, "did you mean mapush/success_rate?"),
    ],
)
@pytest.mark.usefixtures("quick")
def test_bad_spaces_are_one_line_before_anything_starts(tmp_path, capsys, keys, words) -> None:
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
        (["{space}", "--jobs", "100000", "--device", "cpu"], "the cores of this machine"),
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
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert cli.main(["sweep", str(write(tmp_path)), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error == "mapush sweep: optuna is missing; pip install '.[sweep]' in a clone of mapush\n"


@pytest.mark.usefixtures("quick")
def test_flags_replace_the_settings_of_a_space_but_not_those_of_a_sweep(tmp_path, capsys) -> None:
    path = write(tmp_path)
    arguments = command.make_parser().parse([str(path), "--seed", "41", "--set", "env.num_envs=3"])
    _, space = command._find(arguments)
    assert (space.run.runner.seed, space.run.env.num_envs) == (41, 3)
    assert space.run.runner.num_env_steps == SMALL["runner"]["num_env_steps"]

    out = tmp_path / "out"
    out.mkdir()
    (out / command.SWEEP).write_text(yaml.safe_dump({"space": VARIED}, sort_keys=False))
    (out / command.SETTINGS).write_text(yaml.safe_dump(space.base))
    for words in (["--seed", "5"], ["--set", "env.num_envs=4"], ["--suite", "team2"]):
        assert cli.main(["sweep", str(out), *words]) == 2
        line = capsys.readouterr().err
        assert f"{words[0]}: {out} is the folder of a sweep, whose settings stay" in line
    write(tmp_path, space={CLIP: [0.1, 0.2]})
    assert cli.main(["sweep", str(path), "--out", str(out)]) == 2
    assert "holds a sweep over another space" in capsys.readouterr().err


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


# Trainings: a scripted child process writes a curve that depends on the trial


class Trainings:
    """Stands for the processes of trials."""

    def __init__(self, monkeypatch, value: Any, code: Any = lambda number: 0) -> None:
        self.value = value
        self.code = code
        self.words: dict[int, list[str]] = {}
        self.variables: dict[int, str | None] = {}
        self.ended: list[int] = []
        monkeypatch.setattr(trial_training.subprocess, "Popen", self.start)
        monkeypatch.setattr(trial_training.Training, "_curve", lambda this: self.curve(this))
        monkeypatch.setattr(trial_training, "_PAUSE_S", 0.0)

    def start(self, words: list[str], env: dict[str, str], **_: Any) -> Any:
        flag = "--resume" if "--resume" in words else "--out"
        folder = Path(words[words.index(flag) + 1])
        number = int(folder.name)
        (folder / "config.yaml").write_text("")
        self.words[number] = words
        self.variables[number] = env.get("CUDA_VISIBLE_DEVICES")
        looks = iter([None] * 10)

        def poll() -> int | None:
            is_over = number in self.ended or next(looks, 0) is not None
            return (143 if number in self.ended else self.code(number)) if is_over else None

        stdin = SimpleNamespace(close=lambda: self.ended.append(number))
        return SimpleNamespace(poll=poll, stdin=stdin, wait=lambda: None)

    def curve(self, this: Any) -> list[tuple[int, float]]:
        number = this.trial.number
        steps = getattr(this, "steps", 0) + 100
        this.steps = steps
        last = min(steps, 1000)
        return [(at, self.value(number, at)) for at in range(100, last + 1, 100)]


def train(sweep: Sweep, num_places: int = 1) -> None:
    trial_training.train_all(sweep, sweep.trials(), [], [{}] * num_places)


@pytest.mark.usefixtures("quick")
def test_a_search_stops_trials_that_fall_behind_and_repeats_the_best(tmp_path, monkeypatch) -> None:
    space = make_space(
        tmp_path,
        metric=METRIC,
        num_trials=6,
        seeds=[11, 12],
        confirm=1,
        stopping={"first": 100, "keep": 3},
    )
    # Trial 2 is best at first and at last; the seeds of its repetition give less.
    finals = {0: 0.5, 1: 0.4, 2: 0.9, 3: 0.1, 4: 0.2, 5: 0.3, 6: 0.6, 7: 0.4}
    trainings = Trainings(monkeypatch, lambda number, at: finals[number] * at / 1000)
    sweep = Sweep(tmp_path, space)
    train(sweep)
    states = [trial.state.name for trial in sweep.study.trials]
    assert states == ["COMPLETE", "PRUNED", "COMPLETE", "PRUNED", "PRUNED", "PRUNED"]
    assert trainings.ended == [1, 3, 4, 5]

    sweep.repeat_best()
    train(sweep)
    best, second = sweep.ranking()
    assert (best.trial, best.seeds, best.results) == (2, (11, 12), (0.6, 0.4))
    assert (second.trial, second.seeds, second.results) == (0, (1,), (0.5,))
    words = trainings.words[7]
    assert words[words.index("--seed") + 1] == "12"
    assert f"{CLIP}={best.values[CLIP]}" in words
    sweep.repeat_best()
    assert len(list(sweep.trials())) == 0

    page = command.summary(sweep)
    assert "8 trials (4 finished, 4 stopped early, 0 failed, 0 open), search optuna" in page
    assert "| 0.500 | 0.400 to 0.600 | 11, 12 |" in page
    assert "A result of one seed is the best of many" in page
    assert "Importance (PED-ANOVA" in page


@pytest.mark.usefixtures("quick")
def test_an_interrupted_sweep_resumes_its_trials_and_draws_no_settings_again(
    tmp_path, monkeypatch
) -> None:
    space = make_space(tmp_path, metric=METRIC, num_trials=3, stopping=None)
    trainings = Trainings(monkeypatch, lambda number, at: at / 1000)
    sweep = Sweep(tmp_path, space)

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(trial_training.time, "sleep", interrupt)
        with pytest.raises(KeyboardInterrupt):
            train(sweep, num_places=2)
    assert trainings.ended == [0, 1]
    assert sweep.count(optuna.trial.TrialState.RUNNING) == 2
    assert "--out" in trainings.words[0]

    trainings.ended.clear()
    again = Sweep(tmp_path, space)
    train(again, num_places=2)
    assert [trial.state.name for trial in again.study.trials] == ["COMPLETE"] * 3
    assert ["--resume" in trainings.words[number] for number in range(3)] == [True, True, False]
    assert len({str(trial.params) for trial in again.study.trials}) == 3
    more = make_space(tmp_path, metric=METRIC, num_trials=4, stopping=None)
    train(Sweep(tmp_path, more))
    assert len(again.study.trials) == 4


@pytest.mark.usefixtures("quick")
def test_a_trial_that_fails_is_named_and_the_others_go_on(tmp_path, monkeypatch, capsys) -> None:
    space = make_space(
        tmp_path, metric=METRIC, search="grid", space={CLIP: [0.1, 0.2]}, seeds=[1, 2]
    )
    Trainings(monkeypatch, lambda number, at: at / 1000, lambda number: 1 if number == 1 else 0)
    sweep = Sweep(tmp_path, space)
    run = sweep.run_folder(1)
    run.mkdir(parents=True)
    (run / trial_training.OUTPUT).write_text("some line\nmapush train: no memory\n")
    train(sweep)
    reason = "exit code 1: mapush train: no memory"
    assert f"Trial 1: failed ({reason})." in capsys.readouterr().out
    assert f"- Trial 1: {reason}" in command.summary(sweep)
    assert [setting.seeds for setting in sweep.ranking()] == [(1, 2), (1,)]
    # Trials of a grid are in the journal from the beginning, once.
    assert len(Sweep(tmp_path, space).study.trials) == 4


@pytest.mark.usefixtures("quick")
def test_a_run_without_the_metric_fails_with_the_way_out(tmp_path, monkeypatch) -> None:
    space = make_space(tmp_path, metric=METRIC, num_trials=1)
    Trainings(monkeypatch, lambda number, at: 0.0)
    monkeypatch.setattr(trial_training.Training, "_curve", lambda this: [])
    sweep = Sweep(tmp_path, space)
    train(sweep)
    (trial,) = sweep.study.trials
    expected = f"its curves never had {METRIC}; raise runner.num_env_steps"
    assert trial.user_attrs == {"reason": expected}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("visible", "jobs", "gpus"),
    [(None, None, ["0", "1"]), ("3,5", None, ["3", "5"]), ("3,5", 3, ["3", "5", "3"])],
)
def test_each_gpu_has_a_trial_and_more_if_more_are_asked_for(
    tmp_path, monkeypatch, visible: str | None, jobs: int | None, gpus: list[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    space = make_space(tmp_path, metric=METRIC, num_trials=3)
    places = command._places(space, jobs)
    assert [variables["CUDA_VISIBLE_DEVICES"] for variables in places] == gpus
    trainings = Trainings(monkeypatch, lambda number, at: 0.0)
    sweep = Sweep(tmp_path, space)
    trial_training.train_all(sweep, sweep.trials(), [], places)
    assert set(trainings.variables.values()) == set(gpus)


@pytest.mark.usefixtures("quick")
def test_a_damaged_journal_is_one_line(tmp_path, capsys) -> None:
    out = tmp_path / "out"
    space = make_space(tmp_path)
    out.mkdir()
    (out / command.SWEEP).write_text(yaml.safe_dump({"space": VARIED}, sort_keys=False))
    (out / command.SETTINGS).write_text(yaml.safe_dump(space.base))
    (out / "study.log").write_text('{"op_code": 0}\nno json\n')
    assert cli.main(["sweep", str(out)]) == 2
    error = capsys.readouterr().err
    assert "study.log: cannot be read as a journal of Optuna" in error
    assert error.count("\n") == 1


def test_a_sweep_needs_no_figures() -> None:
    """A notebook's MPLBACKEND cannot end a sweep after its work."""
    for name in ("command", "trial_training", "study", "space"):
        module = sys.modules[f"mapush.extensions.sweep.{name}"]
        assert "matplotlib" not in Path(str(module.__file__)).read_text(encoding="utf-8")


def test_names_of_folders_cannot_steer_a_terminal(tmp_path, capsys) -> None:
    folder = tmp_path / "\x1b]0;title\x07"
    folder.mkdir()
    assert command.main([str(folder)]) == 2
    assert "\\x1b]0;title\\x07: holds no sweep" in error_line(capsys)
