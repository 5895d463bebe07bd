"""The commands ``mapush report``, an HTML page on runs, and ``mapush plot``, their curves alone."""

from __future__ import annotations

import base64
import html
import importlib
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harl_mapush import config
from harl_mapush.config import RunCfg
from harl_mapush.process import library_lines
from mapush.report.run_logs import Group, RunLog, differences, groups, read_run
from mapush.report.trajectories import Trajectory, record_trajectories, training_worlds
from mqe.config import ConfigError, printable
from mqe.registry import TASKS
from mqe.tasks.episode_report import wilson_interval

PROGRAM = "mapush report"
MAIN_TAGS = {
    "mapush/success_rate": "success rate",
    "mapush/return": "return",
    "mapush/episode_time_s": "episode time [s]",
    "mapush/collision_rate": "collision rate",
    "mapush/fall_rate": "fall rate",
    "mapush/collapse_rate": "collapse rate",
}
SPEED_TAGS = {
    "perf/env_steps_per_s": "env steps a second",
    "perf/collect_s": "collecting [s] an iteration",
    "perf/update_s": "updating [s] an iteration",
}
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:1150px;margin:2em auto;padding:0 1em;"
    "color:#222}"
    "img{max-width:100%}"
    "table{border-collapse:collapse}"
    "td,th{border-bottom:1px solid #ddd;padding:.25em .8em;text-align:left}"
    "h2{margin-top:2em}"
)


def make_parser(program: str = PROGRAM) -> config.Parser:
    """Build the command line of ``mapush report`` or ``mapush plot``."""
    words = "Write a page about runs." if program == PROGRAM else "Draw the curves of runs."
    parser = config.Parser(prog=program, description=words)
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="+",
        help="run folders; runs that differ only in the seed are drawn as one band",
    )
    default = "report.html" if program == PROGRAM else "curves.png"
    parser.add_argument(
        "--out", metavar="FILE", default=default, help=f"the file to write (default: {default})"
    )
    if program == PROGRAM:
        config.add_import(parser)
        parser.add_argument(
            "--num_episodes",
            metavar="N",
            type=int,
            default=60,
            help="episodes per run for the view from above (default: 60)",
        )
        parser.add_argument(
            "--no_baselines",
            action="store_true",
            help="leave out the task's scripted policies on the same starts",
        )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Write a report as the command line says; return the exit code."""
    with library_lines(_say):
        return config.exit_code(lambda: _report(make_parser().parse(argv)), PROGRAM)


def _report(arguments: Any) -> int:
    out = _writable(arguments.out, ".html")
    if arguments.num_episodes < 0:
        raise ConfigError(
            f"--num_episodes {arguments.num_episodes}: must be 0 or more; 0 plays none"
        )
    figures = import_figures()
    logs = [read_run(Path(name)) for name in arguments.runs]
    together = groups(logs)

    drawn = {
        "curves": figures.curves(together, MAIN_TAGS),
        "wall_clock": figures.curves(together, dict(list(MAIN_TAGS.items())[:2]), "seconds"),
        "rewards": figures.curves(together, figures.reward_tags(together), columns=4),
        "agents": figures.curves(together, figures.agent_tags(together)),
        "throughput": figures.curves(together, SPEED_TAGS),
    }
    played: dict[str, list[Trajectory]] = {}
    worlds: list[RunCfg] = []
    for log in logs if arguments.num_episodes else ():
        _say(f"{log.folder}: playing {arguments.num_episodes} episodes ...")
        cfg = training_worlds(log.folder, arguments.num_episodes)
        found = record_trajectories(cfg, log.folder)
        if found:
            played[str(log.folder)] = found
            drawn[f"from_above_{len(played)}"] = figures.from_above(str(log.folder), found)
            worlds.append(cfg)
    scripted = {} if arguments.no_baselines else _play_scripts(worlds, list(played))

    pictures = {}
    for name, figure in drawn.items():
        if figure is not None:
            path = out.with_name(f"{out.stem}_{name}.png")
            figure.savefig(path, dpi=110)
            pictures[name] = path.read_bytes()
    out.write_text(_page(logs, together, pictures, played | scripted), encoding="utf-8")
    _say(
        f"{out}: {len(logs)} run{'s' if len(logs) > 1 else ''}, {len(pictures)} figures, also as "
        "PNG files beside it."
    )
    return 0


def _play_scripts(worlds: Sequence[RunCfg], runs: Sequence[str]) -> dict[str, list[Trajectory]]:
    """Play the scripted policies of the task in the worlds of each run, in equal ones only once."""
    played: dict[str, list[Trajectory]] = {}
    seen: list[Any] = []
    for cfg, run in zip(worlds, runs, strict=True):
        if (cfg.env, cfg.task) in seen:
            continue
        seen.append((cfg.env, cfg.task))
        for policy in TASKS[cfg.task.name].policies:
            _say(f"{policy}: playing the episodes of {run} ...")
            played[f"{policy}, on the starts of {run}"] = record_trajectories(cfg, policy)
    return played


def plot(argv: Sequence[str] | None = None) -> int:
    """Draw curves as the command line says; return the exit code."""
    return config.exit_code(lambda: _plot(make_parser("mapush plot").parse(argv)), "mapush plot")


def _plot(arguments: Any) -> int:
    out = _writable(arguments.out, ".png", ".svg", ".pdf")
    figures = import_figures()
    together = groups([read_run(Path(name)) for name in arguments.runs])
    figure = figures.curves(together, MAIN_TAGS)
    if figure is None:
        raise ConfigError(f"{arguments.runs[0]}: has none of the curves {', '.join(MAIN_TAGS)} yet")
    figure.savefig(out, dpi=150)
    _say(f"{out}: {', '.join(group.name for group in together)}.")
    return 0


def import_figures() -> Any:
    """Import the module of figures; raise ConfigError if Matplotlib is not installed."""
    try:
        return importlib.import_module("mapush.report.figures")
    except ImportError as error:
        raise ConfigError(
            f"Matplotlib is missing ({error}); pip install 'mapush[report]'"
        ) from None


def _writable(name: str, *suffixes: str) -> Path:
    path = Path(name)
    if path.suffix not in suffixes:
        raise ConfigError(f"--out {name!r}: must end in {' or '.join(suffixes)}")
    if path.is_dir():
        raise ConfigError(f"--out {name!r}: is a folder; name a file")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _page(
    logs: Sequence[RunLog],
    together: Sequence[Group],
    pictures: dict[str, bytes],
    played: dict[str, list[Trajectory]],
) -> str:
    """Return the HTML page with all pictures embedded."""

    def picture(name: str) -> str:
        data = base64.b64encode(pictures[name]).decode()
        return f'<img alt="{name}" src="data:image/png;base64,{data}">'

    parts = [
        "<h1>Runs</h1>",
        _runs_table(logs),
        "<h2>Settings that differ</h2>",
        _differences_table(logs),
    ]
    titles = {
        "curves": "Curves against env steps",
        "wall_clock": "Against wall clock",
        "rewards": "Reward terms",
        "agents": "Contributions of each robot",
        "throughput": "Throughput",
    }
    bands = "<p>Lines are means over seeds, bands reach from the minimum to the maximum.</p>"
    has_bands = any(len(group.runs) > 1 for group in together)
    for name, title in titles.items():
        if name in pictures:
            note = bands if name == "curves" and has_bands else ""
            parts += [f"<h2>{title}</h2>", note, picture(name)]
    if played:
        parts += ["<h2>Paths of objects and outcomes of episodes</h2>", _outcomes_table(played)]
        parts += [picture(name) for name in pictures if name.startswith("from_above_")]
    body = "\n".join(parts)
    head = f'<meta charset="utf-8"><title>mapush: report</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en">{head}{body}</html>\n'


def _runs_table(logs: Sequence[RunLog]) -> str:
    def last(log: RunLog, tag: str) -> str:
        return f"{log.curves[tag].values[-1]:.3f}" if tag in log.curves else "-"

    rows = []
    for log in logs:
        longest = max(log.curves.values(), key=lambda curve: curve.env_steps[-1])
        steps = longest.env_steps[-1]
        minutes = longest.seconds[-1] / 60.0
        keys = ("task.object", "algorithm.name", "runner.seed")
        values = [log.settings.get(key) for key in keys]
        success = last(log, "mapush/success_rate")
        rows.append([log.folder, *values, f"{steps:,.0f}", f"{minutes:.1f}", success])
    return _table(
        ["run", "object", "algorithm", "seed", "env steps", "minutes", "success rate at the end"],
        rows,
    )


def _differences_table(logs: Sequence[RunLog]) -> str:
    found = differences(logs)
    if not found:
        return "<p>Only seeds differ.</p>"
    return _table(
        ["setting", *(log.folder for log in logs)],
        [[key, *values] for key, values in found.items()],
    )


def _outcomes_table(played: dict[str, list[Trajectory]]) -> str:
    rows = []
    for name, episodes in played.items():
        for outcome, number in Counter(each.outcome for each in episodes).most_common():
            low, high = wilson_interval(number, len(episodes))
            share = f"{number / len(episodes):.3f} ({low:.3f} to {high:.3f})"
            rows.append([name, outcome, f"{number} of {len(episodes)}", share])
    return _table(
        [
            "run",
            "outcome",
            "episodes, in worlds of its training without randomization",
            "share (95 % interval)",
        ],
        rows,
    )


def _table(head: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    def cells(values: Sequence[object], tag: str) -> str:
        return "".join(f"<{tag}>{html.escape(str(value))}</{tag}>" for value in values)

    lines = [cells(head, "th"), *(cells(row, "td") for row in rows)]
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def _say(line: str) -> None:
    sys.stdout.write("\n".join(map(printable, line.split("\n"))) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
