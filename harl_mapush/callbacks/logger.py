"""The log of a run: a progress bar on a terminal, three plain lines now and then, curves in
TensorBoard.
"""

from __future__ import annotations

import logging
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text
from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]

from harl_mapush.callbacks.callback import Callback
from harl_mapush.callbacks.curves import Curves
from harl_mapush.config import LoggerCfg
from harl_mapush.durations import format_duration
from harl_mapush.trainer import IterationReport, Trainer

_BAR_WIDTH = 10  # with the metrics beside it, a bar fits into 80 columns
_NOTHING_YET = "-"  # for a statistic of episodes before the first has finished
# In TensorBoard these come first, in order.
_OVERVIEW = (
    "success_rate",
    "return",
    "episode_time_s",
    "contact_share",
)

Headline = Sequence[tuple[str, str]]  # labels, and the statistics that they stand for


@contextmanager
def library_lines(say: Callable[[str], None]) -> Iterator[None]:
    """Pass the library's messages (kernels that compile, worlds that broke) to ``say``, line by
    line.
    """
    handler = _Lines(say)
    libraries = [logging.getLogger(name) for name in ("mqe", "harl_mapush")]
    levels = [library.level for library in libraries]
    for library in libraries:
        library.addHandler(handler)
        library.setLevel(logging.INFO)
    try:
        yield
    finally:
        for library, level in zip(libraries, levels, strict=True):
            library.removeHandler(handler)
            library.setLevel(level)


class _Lines(logging.Handler):
    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(record.getMessage())


class RunLogger:
    """Shows and records the iterations of one run. ``title`` begins the progress line."""

    def __init__(
        self,
        cfg: LoggerCfg,
        log_dir: Path,
        title: str,
        num_env_steps: int,
        stream: TextIO | None = None,
        env_steps: int = 0,
        headline: Headline = (),
    ) -> None:
        """Open the log; a run that resumes at ``env_steps`` takes back the points that were logged
        beyond.

        ``headline`` names the statistics that are shown.
        Nothing that fails to be written stops the run.
        """
        self._cfg = cfg
        self._title = title
        self._headline = headline
        self._stream = stream or sys.stdout
        self._curves = Curves(log_dir, self.say, purge_step=env_steps + 1)
        self._start = time.perf_counter()
        self._start_env_steps = env_steps
        self._open = ExitStack()
        self._open.enter_context(library_lines(self.say))
        self._bar: Progress | None = None
        if self._stream.isatty() and os.environ.get("TERM") != "dumb":
            self._bar = Progress(
                BarColumn(bar_width=_BAR_WIDTH),
                TextColumn("{task.percentage:>3.0f}%  {task.fields[metrics]}"),
                console=Console(file=self._stream),
                auto_refresh=False,
            )
            self._bar.add_task("", total=num_env_steps, completed=env_steps, metrics="starting")
            self._bar.start()

    def say(self, line: str) -> None:
        """Write one plain line, unwrapped and at once, above the bar if there is one."""
        with self._ignoring_closed_output():
            if self._bar is not None:
                self._bar.console.print(Text(line), soft_wrap=True)
                return
            self._stream.write(line + "\n")
            self._stream.flush()

    def log(self, report: IterationReport, statistics: Mapping[str, float]) -> None:
        """Record one iteration; ``statistics`` are the environment's, means over its last finished
        episodes.
        """
        elapsed = max(time.perf_counter() - self._start, 1e-9)
        fps = int((report.env_steps - self._start_env_steps) / elapsed)
        self._curves.add(scalars(report, statistics), report.env_steps)
        if report.note is not None:
            self.say(f"Note: {report.note}.")
        is_shown = report.iteration % self._cfg.interval == 0 or report.iteration in (
            1,
            report.num_iterations,
        )
        if is_shown:
            self.say(progress_line(self._title, report, fps))
            self.say(statistics_line(statistics, self._headline))
        left_s = (
            elapsed
            * (report.num_env_steps - report.env_steps)
            / max(report.env_steps - self._start_env_steps, 1)
        )
        line = iteration_line(report, statistics, self._headline, left_s)
        if is_shown:
            self.say(line)
            for problem in report.health:
                self.say(problem)
        if self._bar is not None:
            with self._ignoring_closed_output():
                self._bar.update(
                    self._bar.task_ids[0],
                    completed=report.env_steps,
                    metrics=line,
                    refresh=True,
                )

    def introduce(self, summaries: Iterable[Summary]) -> None:
        """Record what TensorBoard shows of the run besides its curves."""
        for summary in summaries:
            self._curves.add_summary(summary)

    def flush(self) -> None:
        """Write the curves so far, so that a run that resumes from here finds them."""
        self._curves.flush()

    def close(self) -> None:
        """Write what is buffered, and stop the progress bar."""
        self._open.close()
        self._curves.close()
        if self._bar is not None:
            with self._ignoring_closed_output():
                self._bar.stop()

    @contextmanager
    def _ignoring_closed_output(self) -> Iterator[None]:
        """Let a run outlive its terminal, or the program at the other end of its pipe: further
        output is dropped.
        """
        try:
            yield
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


class NullLogger:
    """Stands in for the log on ranks that write nothing."""

    def say(self, line: str) -> None: ...

    def log(self, report: IterationReport, statistics: Mapping[str, float]) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


class ProgressLog(Callback):
    """Logs every iteration with the trainer's statistics, on the first rank to a ``RunLogger``."""

    def __init__(self, logger: RunLogger | NullLogger, trainer: Trainer) -> None:
        self._logger = logger
        self._trainer = trainer

    def on_iteration(self, report: IterationReport) -> None:
        """Log the iteration; every rank asks for the statistics, which are a sum over ranks."""
        self._logger.log(report, self._trainer.statistics())

    def on_checkpoint(self, env_steps: int) -> None:
        """Write the curves before the checkpoint from which a run may resume."""
        self._logger.flush()

    def on_end(self) -> None:
        """Close the log."""
        self._logger.close()


def progress_line(title: str, report: IterationReport, fps: int) -> str:
    """Format the first plain line, as HARL's runners do: how far the run is."""
    return (
        f"{title} updates {report.iteration}/{report.num_iterations} episodes, "
        f"total num timesteps {report.env_steps}/{report.num_env_steps}, FPS {fps}."
    )


def statistics_line(statistics: Mapping[str, float], headline: Headline) -> str:
    """Format the second plain line; what ``headline`` names is ``-`` while no episode has
    finished.
    """
    named = [f"{label}: {_metric(statistics, name, '.3f')}" for label, name in headline]
    episodes = f"Episodes: {int(statistics.get('num_episodes', 0))}"
    return f"[MAPush Stats] {' | '.join([*named, episodes])}"


def iteration_line(
    report: IterationReport, statistics: Mapping[str, float], headline: Headline, left_s: float
) -> str:
    """Format the most telling metrics of an iteration in at most 69 columns: the bar's, and the
    third plain line.
    """
    named = [("return", "return"), *((label.lower(), name) for label, name in headline[:1])]
    metrics = [f"{label} {_metric(statistics, name, '.3g')}" for label, name in named]
    return "  ".join(
        [
            f"iteration {report.iteration}/{report.num_iterations}",
            *metrics,
            f"{format_duration(left_s)} left",
        ]
    )


def scalars(report: IterationReport, statistics: Mapping[str, float]) -> dict[str, float]:
    """Return the TensorBoard scalars of one iteration; what was not measured (NaN) is left out.

    The learner's metrics keep their tags, an agent's statistics go under ``agent{i}/``, the others
    under ``mapush/``; what matters most is under ``0_overview/`` as well, which TensorBoard shows
    first.
    """
    tagged = dict(report.metrics)
    for name, value in statistics.items():
        per_agent = re.fullmatch(r"(\w+)_(agent\d+)", name)
        tagged[f"{per_agent[2]}/{per_agent[1]}" if per_agent else f"mapush/{name}"] = value
        bare = name.removesuffix(f"_{per_agent[2]}") if per_agent else name
        if bare in _OVERVIEW:
            tagged[f"0_overview/{_OVERVIEW.index(bare) + 1}_{name}"] = value
    seconds = max(report.collect_s + report.update_s, 1e-9)
    tagged["perf/env_steps_per_s"] = report.env_steps / report.iteration / seconds
    tagged["perf/collect_s"] = report.collect_s
    tagged["perf/update_s"] = report.update_s
    return {tag: value for tag, value in tagged.items() if math.isfinite(value)}


def _metric(statistics: Mapping[str, float], name: str, form: str) -> str:
    value = statistics.get(name, math.nan)
    return _NOTHING_YET if math.isnan(value) else format(value, form)
