"""Sweeps: spaces, the study in a folder, early stops, rankings and command lines."""

from __future__ import annotations

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
from mapush.extensions.sweep.space import SETTINGS, SWEEP, Space, read_space  # noqa: E402
from mapush.extensions.sweep.study import num_running, open_study, ranking, trials  # noqa: E402

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


def write(folder: Path, **keys) -> Path:
    path = folder / "space.yaml"
    path.write_text(yaml.safe_dump({"settings": SMALL, "space": VARIED} | keys, sort_keys=False))
    return path


def make_space(folder: Path, **keys) -> Space:
    return read_space(write(folder, **keys), {}, {})


# Spaces


def test_a_space_names_lists_and_intervals(tmp_path) -> None:
    space = make_space(tmp_path)
    rate, clip, epochs = space.distributions.values()
    assert rate == optuna.distributions.FloatDistribution(1e-4, 1e-2, log=True)
    assert clip == optuna.distributions.CategoricalDistribution(("0.1", "0.2"))
    assert epochs == optuna.distributions.IntDistribution(2, 5)
    assert (space.run.env.num_envs, space.cfg.num_trials) == (4, 30)
    params = {RATE: 1e-3, CLIP: "0.2", EPOCHS: 3}
    assert space.values(params) == {RATE: 1e-3, CLIP: 0.2, EPOCHS: 3}


def test_a_number_that_is_no_count_may_have_whole_ends(tmp_path) -> None:
    space = make_space(tmp_path, space={"algorithm.entropy_coef": {"range": [0, 1]}})
    (coefficient,) = space.distributions.values()
    assert coefficient == optuna.distributions.FloatDistribution(0.0, 1.0)


def test_a_choice_may_be_a_list(tmp_path) -> None:
    key = "network.hidden_sizes"
    space = make_space(tmp_path, space={key: [[8], [8, 8]]})
    assert space.values({key: "[8, 8]"}) == {key: [8, 8]}


def test_the_space_in_the_documents_is_one(tmp_path) -> None:
    text = (ROOT / "docs" / "guides" / "sweep.md").read_text(encoding="utf-8")
    (tmp_path / "shown.yaml").write_text(text.partition("```yaml\n")[2].partition("```")[0])
    assert read_space(tmp_path / "shown.yaml", {}, {}).cfg.num_trials == 30


@pytest.mark.parametrize(
    "keys, words",
    [
        ({"space": {}}, "names no setting that varies"),
        ({"space": {"algorithm.clip": [0.1]}}, "did you mean algorithm.clip_param?"),
        (
            {"space": {CLIP: 0.1}},
            "must be a list of values, {range: [low, high]} or {log: [low, high]}, not 0.1",
        ),
        ({"space": {CLIP: []}}, "must be a list of values"),
        ({"space": {CLIP: [0.1, -1]}}, "space.algorithm.clip_param: algorithm.clip_param: must be"),
        ({"space": {CLIP: {"range": [0.3, 0.1]}}}, "space.algorithm.clip_param: "),
        ({"space": {CLIP: {"range": [0.1]}}}, "must be a list of values, {range: [low, high]}"),
        ({"space": {CLIP: {"range": [0.1, 0.2, 0.3]}}}, "space.algorithm.clip_param: "),
        ({"space": {CLIP: {"near": [0.1, 0.2]}}}, "{range: [low, high]} or {log: [low, high]}"),
        ({"space": {"algorithm.entropy_coef": {"log": [0, 1e-2]}}}, "algorithm.entropy_coef: "),
        ({"space": {EPOCHS: {"range": [1.5, 4]}}}, "must be a whole number, not 1.5"),
        ({"space": {"runner.num_env_steps": [1, 2]}}, "cannot vary"),
        ({"space": {"sim.python": ["python3"]}}, "cannot vary"),
        ({"space": {"clip_param": [0.1]}}, "name another setting, section.key"),
        ({"spaces": {}}, "did you mean space?"),
        ({"space": {"runner.seed": [1, 2]}}, "cannot vary"),
        ({"num_trials": 0}, "num_trials: must be at least 1"),
        ({"preset": "tiny"}, "unknown preset 'tiny'"),
        ({"config": "x.yaml"}, "unknown key 'config'"),
        ({"settings": {"env": {"num_worlds": 3}}}, "env.num_worlds"),
    ],
)
def test_bad_spaces_are_one_line_before_anything_starts(tmp_path, capsys, keys, words) -> None:
    assert cli.main(["sweep", str(write(tmp_path, **keys)), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "argv, words",
    [
        (["{space}", "--num_trials", "0"], "num_trials: must be at least 1"),
        (["{space}", "--jobs", "x"], "jobs: must be a whole number"),
        (["{space}", "--jobs", ".inf"], "jobs: must be a finite number"),
        (["{space}", "--set", "env.num_envs=x"], "env.num_envs: must be a whole number"),
        (["{space}", "--set", "algorithm.lr=1"], "unknown key 'algorithm.lr'"),
        (["{folder}"], "holds no sweep"),
        (["{space}", "--out", "{folder}"], "exists; name another folder"),
        (["{folder}/none.yaml"], "cannot be read"),
    ],
)
def test_bad_command_lines_are_one_line(tmp_path, capsys, argv, words) -> None:
    path = write(tmp_path)
    assert cli.main(["sweep", *(word.format(space=path, folder=tmp_path) for word in argv)]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_without_the_extra_a_line_names_it(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert cli.main(["sweep", str(write(tmp_path)), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("mapush sweep: a sweep needs optuna (")
    assert error.endswith("; pip install '.[sweep]' in a clone of mapush\n")


def test_flags_replace_the_settings_of_a_space_but_not_those_of_a_sweep(tmp_path, capsys) -> None:
    path = write(tmp_path)
    arguments = command.make_parser().parse([str(path), "--set", "env.num_envs=3", "--jobs", "2"])
    _, space = command._find(arguments)
    assert (space.run.env.num_envs, space.cfg.jobs) == (3, 2)
    assert space.run.runner.num_env_steps == SMALL["runner"]["num_env_steps"]

    out = tmp_path / "out"
    out.mkdir()
    (out / SWEEP).write_text(yaml.safe_dump({"space": VARIED}, sort_keys=False))
    (out / SETTINGS).write_text(yaml.safe_dump(space.base))
    for words in (["--set", "env.num_envs=4"], ["--suite", "team2"], ["--out", "elsewhere"]):
        assert cli.main(["sweep", str(out), *words]) == 2
        line = capsys.readouterr().err
        assert f"{out}: is the folder of a sweep, whose settings stay" in line


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


def train(folder: Path, space: Space, num_places: int = 1) -> Any:
    study = open_study(folder, space)
    trial_training.train_all(folder, space, trials(study, space), [], [{}] * num_places)
    return study


def test_a_search_stops_trials_that_fall_behind(tmp_path, monkeypatch, capsys) -> None:
    space = make_space(tmp_path, metric=METRIC, num_trials=6)
    finals = {0: 0.5, 1: 0.4, 2: 0.9, 3: 0.1, 4: 0.2, 5: 0.3}
    trainings = Trainings(monkeypatch, lambda number, at: finals[number] * at / 1000)
    study = train(tmp_path, space)
    states = [trial.state.name for trial in study.trials]
    assert states == ["COMPLETE", "PRUNED", "COMPLETE", "PRUNED", "PRUNED", "PRUNED"]
    assert trainings.ended == [1, 3, 4, 5]
    best, second = ranking(study)
    assert (best.number, best.value) == (2, 0.9)
    assert (second.number, second.value) == (0, 0.5)
    assert f"{CLIP}={best.params[CLIP]}" in trainings.words[2]
    assert command._finish(tmp_path, space, study, "mapush sweep") == 0
    page = capsys.readouterr().out
    assert f"The best by {METRIC}, 2 of 6 trials finished:" in page
    assert f"0.900  trial 2: {RATE}={best.params[RATE]}" in page
    assert page.index("0.900  trial 2") < page.index("0.500  trial 0")
    assert yaml.safe_load((tmp_path / command.BEST).read_text())["algorithm"][
        "clip_param"
    ] == float(best.params[CLIP])

    patient = make_space(tmp_path, metric=METRIC, num_trials=6, stopping=False)
    (tmp_path / "patient").mkdir()
    trainings.ended.clear()
    study = train(tmp_path / "patient", patient)
    assert len(ranking(study)) == 6


def test_an_interrupted_sweep_resumes_its_trials_and_draws_no_settings_again(
    tmp_path, monkeypatch
) -> None:
    space = make_space(tmp_path, metric=METRIC, num_trials=3, stopping=False)
    trainings = Trainings(monkeypatch, lambda number, at: at / 1000)

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(trial_training.time, "sleep", interrupt)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path, space, num_places=2)
    assert trainings.ended == [0, 1]
    assert num_running(open_study(tmp_path, space)) == 2
    assert "--out" in trainings.words[0]

    trainings.ended.clear()
    again = train(tmp_path, space, num_places=2)
    assert [trial.state.name for trial in again.trials] == ["COMPLETE"] * 3
    assert ["--resume" in trainings.words[number] for number in range(3)] == [True, True, False]
    assert len({str(trial.params) for trial in again.trials}) == 3
    more = make_space(tmp_path, metric=METRIC, num_trials=4, stopping=False)
    assert len(train(tmp_path, more).trials) == 4


def test_a_trial_that_fails_is_named_and_the_others_go_on(tmp_path, monkeypatch, capsys) -> None:
    space = make_space(tmp_path, metric=METRIC, num_trials=4, stopping=False)
    Trainings(monkeypatch, lambda number, at: at / 1000, lambda number: 1 if number == 1 else 0)
    run = tmp_path / trial_training.TRIALS / "0001"
    run.mkdir(parents=True)
    (run / trial_training.OUTPUT).write_text("some line\nmapush train: no memory\n")
    study = train(tmp_path, space)
    reason = "exit code 1: mapush train: no memory"
    assert f"Trial 1: failed ({reason})." in capsys.readouterr().out
    assert study.trials[1].user_attrs["reason"] == reason
    assert sorted(trial.number for trial in ranking(study)) == [0, 2, 3]


def test_a_trial_that_a_cluster_ends_stays_open(tmp_path, monkeypatch) -> None:
    space = make_space(tmp_path, metric=METRIC, num_trials=1)
    Trainings(monkeypatch, lambda number, at: at / 1000, lambda number: 143)
    assert num_running(train(tmp_path, space)) == 1


def test_a_run_without_the_metric_fails_with_the_way_out(tmp_path, monkeypatch) -> None:
    space = make_space(tmp_path, metric="reward/totl", num_trials=1)
    Trainings(monkeypatch, lambda number, at: 0.0)
    monkeypatch.setattr(trial_training.Training, "_curve", lambda this: [])
    tags = SimpleNamespace(Tags=lambda: {"scalars": [METRIC]})
    monkeypatch.setattr(trial_training, "EventAccumulator", lambda *_, **__: tags)
    (trial,) = train(tmp_path, space).trials
    assert "unknown metric 'reward/totl'; did you mean reward/total?" in trial.user_attrs["reason"]


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
    space = make_space(tmp_path, metric=METRIC, num_trials=3, jobs=jobs)
    places = command._places(space)
    assert [variables["CUDA_VISIBLE_DEVICES"] for variables in places] == gpus
    trainings = Trainings(monkeypatch, lambda number, at: 0.0)
    study = open_study(tmp_path, space)
    trial_training.train_all(tmp_path, space, trials(study, space), [], places)
    assert set(trainings.variables.values()) == set(gpus)


def test_a_damaged_journal_is_one_line(tmp_path, capsys) -> None:
    out = tmp_path / "out"
    space = make_space(tmp_path)
    out.mkdir()
    (out / SWEEP).write_text(yaml.safe_dump({"space": VARIED}, sort_keys=False))
    (out / SETTINGS).write_text(yaml.safe_dump(space.base))
    (out / "study.log").write_text('{"op_code": 0}\nno json\n')
    assert cli.main(["sweep", str(out)]) == 2
    error = capsys.readouterr().err
    assert "study.log: cannot be read as a journal of Optuna" in error
    assert error.count("\n") == 1


def test_names_of_folders_cannot_steer_a_terminal(tmp_path, capsys) -> None:
    folder = tmp_path / "\x1b]0;title\x07"
    folder.mkdir()
    assert command.main([str(folder)]) == 2
    assert "\\x1b]0;title\\x07: holds no sweep" in error_line(capsys)
