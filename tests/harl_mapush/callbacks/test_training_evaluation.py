"""runner.evaluation_interval: evaluation during training, without effect on the training."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from harl_mapush import config, train
from harl_mapush.callbacks.training_evaluation import (
    EVALUATIONS,
    TrainingEvaluation,
    make_evaluation_env,
)
from harl_mapush.progress import Progress
from tests.support.tiny_runs import TINY

EVERY = (
    "runner.evaluation_interval=48",
    "runner.evaluation_envs=3",
    "runner.evaluation_episodes=5",
)
SHORT = ("task.episode_length_s=0.2", "task.decision_period=2", "runner.checkpoint_interval=64")


def command(gait: Path, out: Path, *settings: str) -> list[str]:
    """Four iterations with 32 env steps each. Checkpoints after 64 and 128, evaluations after 64,
    96 and 128.
    """
    values = (*SHORT, "runner.torch_threads=1", f"task.gait={gait}", *settings)
    sets = [word for value in values for word in ("--set", value)]
    return [*TINY, "--num_env_steps", "128", "--out", str(out), *sets]


@pytest.fixture(scope="module")
def run(gait, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("evaluated") / "run"
    assert train.main(command(gait, out, *EVERY)) == 0
    return out


def known(run: Path) -> list[dict]:
    return json.loads((run / EVALUATIONS).read_text())["all"]


def test_the_training_does_not_notice(run, gait, tmp_path):
    assert train.main(command(gait, tmp_path / "run")) == 0
    for env_steps in ("64", "128"):
        for name in ("actor_agent0.pt", "critic_agent.pt", "training_state.pt"):
            path = Path("checkpoints", env_steps, name)
            assert (run / path).read_bytes() == (tmp_path / "run" / path).read_bytes(), path
    assert not (tmp_path / "run" / EVALUATIONS).exists()


def test_every_interval_and_at_the_end(run):
    assert [evaluation["env_steps"] for evaluation in known(run)] == [64, 96, 128]
    for evaluation in known(run):
        assert evaluation["num_episodes"] == 6  # two rounds of three worlds
        assert evaluation["episode_time_s"] == pytest.approx(0.2)
        assert evaluation["success_rate"] == 0.0
    returns = [evaluation["return"] for evaluation in known(run)]
    assert len(set(returns)) == 3  # the team changes, the episodes do not
    curves = EventAccumulator(str(run))
    curves.Reload()
    assert [(point.step, point.value) for point in curves.Scalars("eval/success_rate")] == [
        (64, 0),
        (96, 0),
        (128, 0),
    ]
    assert [point.value for point in curves.Scalars("eval/return")] == pytest.approx(returns)


def test_the_best_is_named_and_saved(run):
    best = json.loads((run / EVALUATIONS).read_text())["best"]
    assert best == max(known(run), key=lambda evaluation: evaluation["return"])  # nobody succeeds
    saved = {int(path.name) for path in (run / "checkpoints").iterdir()}
    assert saved == {64, 128} | (
        {96} if known(run)[1]["return"] > known(run)[0]["return"] else set()
    )
    assert best["env_steps"] in saved


def test_a_resumed_run_has_the_same_evaluations(run, tmp_path, capsys):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    for path in (copy / "checkpoints").iterdir():
        if path.name != "64":
            shutil.rmtree(path)
    assert train.main(["--resume", str(copy)]) == 0
    assert known(copy) == known(run)
    said = capsys.readouterr().out
    best = json.loads((run / EVALUATIONS).read_text())["best"]["env_steps"]
    assert (
        f"Best in evaluation: {copy / 'checkpoints' / str(best)} (success_rate 0.000, return"
        in said
    )


def evaluation_of(gait: Path, folder: Path) -> TrainingEvaluation:
    words = command(gait, folder, *EVERY)
    over = config.flag_values(train.make_parser().parse(words))
    cfg, _ = config.resolve(config.load_preset("smoke"), over)
    env = make_evaluation_env(cfg.env, cfg.sim, cfg.task, cfg.runner)
    return TrainingEvaluation(env, cfg.runner.evaluation_episodes, folder, 96)


def test_success_counts_before_return_and_what_a_resume_plays_again_is_forgotten(gait, tmp_path):
    rates = ((32, 0.5, 1.0), (64, 0.5, 2.0), (96, 0.4, 9.0), (128, 1.0, 9.0))
    rows = [
        {"env_steps": steps, "success_rate": rate, "return": gain} for steps, rate, gain in rates
    ]
    (tmp_path / EVALUATIONS).write_text(json.dumps({"all": rows}))
    evaluation = evaluation_of(gait, tmp_path)
    assert evaluation.best == rows[1]
    evaluation.close()


def test_intervals_are_crossed_where_env_steps_pass_a_multiple_of_them() -> None:
    steps = (47, 48, 49)
    due = [Progress(1, env_steps, 2, 10**9, iteration=1).is_due(48) for env_steps in steps]
    assert due == [False, True, True]
    assert not Progress(1, 32, 9, 10**9, iteration=2).is_due(48 * 2)
    assert Progress(1, 32, 9, 10**9, iteration=3).is_due(48 * 2)
    assert not Progress(1, 32, 9, 10**9, iteration=8).is_due(48 * 100)
    assert Progress(1, 32, 9, 10**9, iteration=9).is_due(48 * 100)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"all": 3}', '{"all": [{"env_steps": "x"}]}', '{"all": [{}]}']
)
def test_a_damaged_file_of_evaluations_is_begun_anew(gait, tmp_path, text):
    (tmp_path / EVALUATIONS).write_text(text)
    evaluation = evaluation_of(gait, tmp_path)
    assert evaluation.best is None
    evaluation.close()
