"""The log of a run: progress lines, and curves for TensorBoard."""

import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

from harl_mapush.callback import Callback
from harl_mapush.callbacks.curves import Curves
from harl_mapush.config import LoggerCfg
from harl_mapush.durations import format_duration
from harl_mapush.process import library_lines
from harl_mapush.progress import IterationReport
from harl_mapush.trainer import Trainer

_UNKNOWN = "-"  # a statistic before the end of the first episode
# Statistics in the first section of TensorBoard, in this order.
_OVERVIEW = ("success_rate", "return", "episode_time_s", "contact_share")
# Tags with another name in HARL. All other tags are equal.
_HARL_TAGS = {
    "train_episode_rewards": "mapush/return",
    "critic/average_step_rewards": "reward/total",
}

Headline = Sequence[tuple[str, str]]  # pairs of a label and the name of its statistic


class RunLogger:
    """Shows and records a run's iterations. ``title`` begins HARL's lines."""

    def __init__(
        self,
        cfg: LoggerCfg,
        log_dir: Path,
        title: str,
        stream: TextIO | None = None,
        env_steps: int = 0,
        headline: Headline = (),
        check_folder: Callable[[], object] = lambda: None,
    ) -> None:
        """Open the log. A run resumed at ``env_steps`` discards the log's later points.

        ``headline`` names the statistics shown. ``check_folder`` is that of ``Curves``. Write
        errors do not end the run.
        """
        self._cfg = cfg
        self._title = title
        self._headline = headline
        self._stream = stream or sys.stdout
        self._curves = Curves(log_dir, self.say, env_steps + 1, check_folder)
        self._rate = _Rate()
        self._open = ExitStack()
        self._open.enter_context(library_lines(self.say))

    def say(self, line: str) -> None:
        """Write one line at once."""
        with self._ignoring_closed_output():
            self._stream.write(line + "\n")
            self._stream.flush()

    def log(self, report: IterationReport, statistics: Mapping[str, float]) -> None:
        """Record one iteration, with the environment's means over its last finished episodes."""
        fps = self._rate.measure(report.env_steps)
        tagged = scalars(report, statistics, has_harls_tags=self._cfg.lines == "harl")
        self._curves.add(tagged, report.env_steps)
        if report.note is not None:
            self.say(f"Note: {report.note}.")

        is_first_or_last = report.iteration in (1, report.num_iterations)
        if is_first_or_last or report.iteration % self._cfg.interval == 0:
            self._rate.begin_interval(report.env_steps)
            if self._cfg.lines == "harl":
                lines = harl_lines(self._title, report, statistics, self._headline, fps)
            else:
                lines = [progress_line(report, statistics, self._headline, fps)]
            if self._cfg.lines == "async":
                lines += report.health
            for line in lines:
                self.say(line)

    def flush(self) -> None:
        """Write the curves so far. A run resumed from this point continues them."""
        self._curves.flush()

    def close(self) -> None:
        """Write the buffered points."""
        self._open.close()
        self._curves.flush()

    @contextmanager
    def _ignoring_closed_output(self) -> Iterator[None]:
        """Context manager: drop all output once the terminal, or the reader of a pipe, is gone."""
        try:
            yield
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


class ProgressLog(Callback):
    """Logs every iteration with the trainer's statistics, on the first rank only."""

    def __init__(self, logger: RunLogger | None, trainer: Trainer) -> None:
        """Log with ``logger``, None on all ranks but the first."""
        self._logger = logger
        self._trainer = trainer

    def on_iteration(self, report: IterationReport) -> None:
        """Log the iteration. All ranks compute the statistics, as sums over ranks."""
        statistics = self._trainer.statistics()
        if self._logger is not None:
            self._logger.log(report, statistics)

    def on_end(self) -> None:
        """Close the log."""
        if self._logger is not None:
            self._logger.close()


class _Rate:
    """The rate [env steps/s] since the last progress line.

    The process's first iteration is left out: it includes compilation and warm-up.
    """

    def __init__(self) -> None:
        self._begin: tuple[float, int] | None = None  # time [s] and env steps

    def measure(self, env_steps: int) -> float:
        """Return the rate after an iteration, NaN after the first one."""
        now = time.perf_counter()
        if self._begin is None:
            self._begin = now, env_steps
            return math.nan
        start_s, start_env_steps = self._begin
        return (env_steps - start_env_steps) / max(now - start_s, 1e-9)

    def begin_interval(self, env_steps: int) -> None:
        """Measure from now on."""
        self._begin = time.perf_counter(), env_steps


def progress_line(
    report: IterationReport, statistics: Mapping[str, float], headline: Headline, fps: float
) -> str:
    """Format the progress of a run as one line: env steps, rate, return, success, time left.

    Unknown rates and times are left out.
    """
    done = f"{format_count(report.env_steps)} of {format_count(report.num_env_steps)} env steps"
    named = [("return", "return"), *((label.lower(), name) for label, name in headline[:1])]
    metrics = [f"{label} {_metric(statistics, name, '.3g')}" for label, name in named]
    if not math.isnan(fps):
        left_s = (report.num_env_steps - report.env_steps) / max(fps, 1e-9)
        metrics = [f"{format_count(fps)}/s", *metrics, f"{format_duration(left_s)} left"]
    return "  ".join([done, *metrics])


def harl_lines(
    title: str,
    report: IterationReport,
    statistics: Mapping[str, float],
    headline: Headline,
    fps: float,
) -> list[str]:
    """Format the four lines of HARL's runners and of MAPush. ``title`` begins the first one.

    Lines with unknown statistics are left out, as in HARL. The rate is 0 until it is known.
    """
    known_fps = 0 if math.isnan(fps) else int(fps)
    lines = [
        f"{title} updates {report.iteration}/{report.num_iterations} episodes, "
        f"total num timesteps {report.env_steps}/{report.num_env_steps}, FPS {known_fps}."
    ]
    step_reward = report.metrics.get("reward/total")
    if step_reward is not None:
        lines.append(f"Average step reward is {step_reward}.")
    episode_reward = statistics.get("return", math.nan)
    if not math.isnan(episode_reward):
        lines.append(f"Some episodes done, average episode reward is {episode_reward}.")
    return [*lines, statistics_line(statistics, headline)]


def statistics_line(statistics: Mapping[str, float], headline: Headline) -> str:
    """Format the ``headline`` statistics as MAPush does, with ``-`` before the first episode."""
    named = [f"{label}: {_metric(statistics, name, '.3f')}" for label, name in headline]
    episodes = f"Episodes: {int(statistics.get('num_episodes', 0))}"
    return f"[MAPush Stats] {' | '.join([*named, episodes])}"


def format_count(count: float) -> str:
    """Format a number with three digits, and k, M or G for thousand, million or billion."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= 0.9995 * size:
            return f"{count / size:.3g}{unit}"
    return f"{count:.0f}"


def scalars(
    report: IterationReport, statistics: Mapping[str, float], *, has_harls_tags: bool = False
) -> dict[str, float]:
    """Return one iteration's TensorBoard scalars, without the NaN of missing measurements.

    The learner's metrics keep their tags. An agent's statistics get the prefix ``agent{i}/``, all
    others ``mapush/``. The most important ones are also under ``0_overview/``, TensorBoard's first
    section. ``has_harls_tags`` adds copies under HARL's tags wherever HARL has another name.
    """
    tagged = dict(report.metrics)
    for name, value in statistics.items():
        per_agent = re.fullmatch(r"(\w+)_(agent\d+)", name)
        if per_agent:
            statistic = per_agent[1]
            tagged[f"{per_agent[2]}/{statistic}"] = value
        else:
            statistic = name
            tagged[f"mapush/{name}"] = value
        if statistic in _OVERVIEW:
            tagged[f"0_overview/{_OVERVIEW.index(statistic) + 1}_{name}"] = value

    seconds = max(report.collect_s + report.update_s, 1e-9)
    tagged["perf/env_steps_per_s"] = report.env_steps / report.iteration / seconds
    tagged["perf/collect_s"] = report.collect_s
    tagged["perf/update_s"] = report.update_s
    if has_harls_tags:
        tagged |= {name: tagged[tag] for name, tag in _HARL_TAGS.items() if tag in tagged}
    return {tag: value for tag, value in tagged.items() if math.isfinite(value)}


def _metric(statistics: Mapping[str, float], name: str, form: str) -> str:
    value = statistics.get(name, math.nan)
    return _UNKNOWN if math.isnan(value) else format(value, form)
