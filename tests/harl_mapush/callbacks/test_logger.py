"""harl_mapush.callbacks.logger: the lines, letter by letter, and the curves in TensorBoard."""

from __future__ import annotations

import io
import json
import logging
import math
import os
import re

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from harl_mapush.callbacks import logger as logger_module
from harl_mapush.callbacks.curves import Curves, read_points
from harl_mapush.callbacks.logger import (
    RunLogger,
    format_count,
    harl_lines,
    progress_line,
    scalars,
)
from harl_mapush.config import LoggerCfg
from harl_mapush.durations import format_duration
from harl_mapush.progress import IterationReport
from harl_mapush.runs import provenance
from mqe.config import ConfigError, build
from mqe.tasks.push import PUSH

HEADLINE = PUSH.report.headline
TITLE = "Env mapush Task go1push_mid Algo happo Exp trial"
STATISTICS = {
    "success_rate": 0.12,
    "collision_rate": 0.0449,
    "num_episodes": 50,
    "return": -1.5,
    "episode_time_s": 12.0,
    "collaboration_degree": math.nan,
    "contact_share_agent0": 0.25,
    "pull_agent1": 1.5,
}


def report(iteration: int, num_iterations: int = 1000) -> IterationReport:
    metrics = {"agent0/policy_loss": 0.5, "critic/value_loss": 2.0, "reward/push": 0.01}
    return IterationReport(
        iteration, num_iterations, iteration * 100_000, num_iterations * 100_000, 3.0, 1.0, metrics
    )


def test_progress_is_one_line() -> None:
    assert progress_line(report(5), STATISTICS, HEADLINE, 5644.2) == (
        "500k of 100M env steps  5.64k/s  return -1.5  success 0.12  4 h 54 min left"
    )
    assert progress_line(report(1), {"num_episodes": 0}, HEADLINE, math.nan) == (
        "100k of 100M env steps  return -  success -"
    )


def test_harl_has_four_lines() -> None:
    total = report(5)._replace(metrics={"reward/total": 0.25})
    assert harl_lines(TITLE, total, STATISTICS, HEADLINE, 5644.2) == [
        "Env mapush Task go1push_mid Algo happo Exp trial updates 5/1000 episodes, "
        "total num timesteps 500000/100000000, FPS 5644.",
        "Average step reward is 0.25.",
        "Some episodes done, average episode reward is -1.5.",
        "[MAPush Stats] Success: 0.120 | Collision: 0.045 | Episodes: 50",
    ]
    assert harl_lines(TITLE, report(1), {"num_episodes": 0}, HEADLINE, math.nan)[1:] == [
        "[MAPush Stats] Success: - | Collision: - | Episodes: 0"
    ]


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0"), (999, "999"), (999.6, "1k"), (61_440, "61.4k"), (999_960, "1M"), (1e10, "10G")],
)
def test_counts_have_three_digits(count: float, words: str) -> None:
    assert format_count(count) == words


def test_the_rate_is_that_of_the_last_interval(tmp_path, monkeypatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr(logger_module.time, "perf_counter", lambda: now_s[0])
    stream = io.StringIO()
    logger = RunLogger(LoggerCfg(interval=2), tmp_path, TITLE, stream, headline=HEADLINE)
    # The first iteration compiles for 60 s; lines follow iterations 1, 2, 4 and 6.
    for iteration, seconds in enumerate((60.0, 10.0, 5.0, 5.0, 1.0, 3.0), start=1):
        now_s[0] += seconds
        logger.log(report(iteration), {})
    logger.close()
    rates = [re.search(r"(\S+)/s", line) for line in stream.getvalue().splitlines()]
    assert [rate and rate[1] for rate in rates] == [None, "10k", "20k", "50k"]


def test_scalars_have_the_agreed_tags_and_leave_out_what_was_not_measured() -> None:
    assert scalars(report(5), STATISTICS) == {
        "agent0/policy_loss": 0.5,
        "critic/value_loss": 2.0,
        "reward/push": 0.01,
        "0_overview/1_success_rate": 0.12,
        "0_overview/2_return": -1.5,
        "0_overview/3_episode_time_s": 12.0,
        "0_overview/4_contact_share_agent0": 0.25,
        "mapush/success_rate": 0.12,
        "mapush/collision_rate": 0.0449,
        "mapush/num_episodes": 50,
        "mapush/return": -1.5,
        "mapush/episode_time_s": 12.0,
        "agent0/contact_share": 0.25,
        "agent1/pull": 1.5,
        "perf/env_steps_per_s": 25_000.0,
        "perf/collect_s": 3.0,
        "perf/update_s": 1.0,
    }


def test_the_tags_of_harl_come_beside_our_own() -> None:
    metrics = {"reward/total": 0.25}
    iteration_report = report(5)._replace(metrics=metrics)
    more = (
        scalars(iteration_report, STATISTICS, has_harls_tags=True).items()
        - scalars(iteration_report, STATISTICS).items()
    )
    assert dict(more) == {
        "train_episode_rewards": -1.5,
        "critic/average_step_rewards": 0.25,
    }


@pytest.mark.parametrize("cfg", [LoggerCfg(), LoggerCfg(lines="harl")])
def test_harls_lines_bring_harls_tags(cfg, tmp_path) -> None:
    logger = RunLogger(cfg, tmp_path, TITLE, io.StringIO())
    logger.log(report(1)._replace(metrics={"reward/total": 0.25}), {})
    logger.close()
    tags = EventAccumulator(str(tmp_path)).Reload().Tags()["scalars"]
    assert ("critic/average_step_rewards" in tags) == (cfg.lines == "harl")


def test_lines_at_first_last_and_every_interval(tmp_path) -> None:
    stream = io.StringIO()
    logger = RunLogger(LoggerCfg(interval=3), tmp_path, TITLE, stream, headline=HEADLINE)
    for iteration in range(1, 9):
        logger.log(report(iteration, 8), STATISTICS)
    logger.close()
    lines = stream.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["100k", "300k", "600k", "800k"]
    assert lines[0] == "100k of 800k env steps  return -1.5  success 0.12"
    assert lines[-1].endswith("/s  return -1.5  success 0.12  0 s left")


@pytest.mark.parametrize(("form", "count"), [("one", 1), ("async", 3)])
def test_lines_about_collectors_are_a_setting(form, count, tmp_path) -> None:
    stream = io.StringIO()
    logger = RunLogger(LoggerCfg(lines=form), tmp_path, TITLE, stream, headline=HEADLINE)
    logger.log(report(1)._replace(health=("[Worker 0] Sent 5", "[AsyncTrainer] Waited")), {})
    logger.close()
    assert len(stream.getvalue().splitlines()) == count


def test_the_lines_may_be_those_of_harl(tmp_path) -> None:
    stream = io.StringIO()
    cfg = LoggerCfg(interval=1, lines="harl")
    logger = RunLogger(cfg, tmp_path, TITLE, stream, headline=HEADLINE)
    logger.log(report(1, 8), STATISTICS)
    logger.close()
    assert [line.split()[0] for line in stream.getvalue().splitlines()] == [
        "Env",
        "Some",
        "[MAPush",
    ]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.4, "0 s"),
        (99, "99 s"),
        (100, "2 min"),
        (5000, "83 min"),
        (11_100, "3 h 05 min"),
        (187_200, "2 d 4 h"),
    ],
)
def test_times_to_go(seconds: float, words: str) -> None:
    assert format_duration(seconds) == words


def test_what_made_a_run_is_in_its_folder(tmp_path) -> None:
    start = provenance.describe("cpu", {"push": 2.0}, {})
    for _ in range(2):
        provenance.write(tmp_path, start)
    starts = json.loads((tmp_path / provenance.ORIGIN).read_text())["starts"]
    assert [record["reward_weights"] for record in starts] == [{"push": 2.0}] * 2
    assert starts[0]["packages"]["torch"].startswith("2.")


def test_a_line_is_not_wrapped(tmp_path) -> None:
    stream = io.StringIO()
    logger = RunLogger(LoggerCfg(), tmp_path, TITLE, stream, headline=HEADLINE)
    logger.say("one line " * 30)
    logger.log(report(2, 8), STATISTICS)
    logger.close()
    assert stream.getvalue() == "one line " * 30 + "\n"


def test_a_run_outlives_whoever_reads_its_lines(tmp_path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as stream:
        logger = RunLogger(LoggerCfg(interval=1), tmp_path, TITLE, stream, headline=HEADLINE)
        for iteration in range(1, 4):
            logger.log(report(iteration, 8), STATISTICS)
        logger.close()
    curve = EventAccumulator(str(tmp_path)).Reload().Scalars("agent0/policy_loss")
    assert [event.step for event in curve] == [100_000, 200_000, 300_000]


def test_tensorboard_reads_the_curves(tmp_path) -> None:
    logger = RunLogger(LoggerCfg(), tmp_path, TITLE, io.StringIO(), headline=HEADLINE)
    logger.log(report(1, 8), STATISTICS)
    logger.log(report(2, 8), STATISTICS)
    logger.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert set(events.Tags()["scalars"]) == set(scalars(report(1), STATISTICS))
    curve = [(event.step, event.value) for event in events.Scalars("agent0/policy_loss")]
    assert curve == [(100_000, 0.5), (200_000, 0.5)]


@pytest.mark.parametrize("exp_name", ["a/b", "..", "", ".", "x\ny"])
def test_names_that_cannot_be_folders(exp_name: str) -> None:
    with pytest.raises(ConfigError, match="exp_name"):
        build(LoggerCfg, {"exp_name": exp_name}, "logger")


def test_notes_and_what_simulators_say_become_lines_of_the_run(tmp_path) -> None:
    stream = io.StringIO()
    logger = RunLogger(LoggerCfg(interval=100), tmp_path, TITLE, stream)
    logging.getLogger("mqe.sim.some_simulator").info("compiling for %s", "an hour")
    logger.log(report(7)._replace(note="buffers grew"), {})
    logger.close()
    logging.getLogger("mqe.sim.some_simulator").info("not any more")
    assert stream.getvalue() == "compiling for an hour\nNote: buffers grew.\n"


def test_a_folder_of_another_run_gets_no_curves(tmp_path, capsys) -> None:
    run_id = provenance.write(tmp_path, provenance.describe("cpu", {}, {}))
    curves = Curves(tmp_path, print, check_folder=lambda: provenance.check_folder(tmp_path, run_id))
    curves.add({"return": 1.0}, 1)
    curves.flush()
    origin = (tmp_path / provenance.ORIGIN).read_text()
    (tmp_path / provenance.ORIGIN).unlink()
    provenance.write(tmp_path, provenance.describe("cpu", {}, {}))  # by another run
    curves.add({"return": 2.0}, 2)
    curves.flush()
    assert [point.value for point in read_points(tmp_path)["return"]] == [1.0]
    assert "cannot be written (another run has taken the folder)" in capsys.readouterr().out
    (tmp_path / provenance.ORIGIN).write_text(origin)
    curves.flush()
    assert [point.value for point in read_points(tmp_path)["return"]] == [1.0, 2.0]
