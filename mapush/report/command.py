"""The commands ``mapush report``, an HTML page on runs, and ``mapush plot``, their curves alone."""

from __future__ import annotations

import base64
import html
import importlib
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harl_mapush import config
from harl_mapush.config import RunCfg
from harl_mapush.evaluation.measuring import with_interval
from harl_mapush.process import library_lines
from harl_mapush.runs import checkpoint, evaluation_worlds
from harl_mapush.viewing import filming
from harl_mapush.viewing.filming import FilmCfg
from mapush.report.run_logs import Group, RunLog, differences, groups, read_run
from mapush.report.trajectories import Played, play, training_worlds
from mqe.config import ConfigError, printable, read_text
from mqe.registry import TASKS
from mqe.tasks.episode_report import wilson_interval
from mqe.viewer.camera import CAMERAS

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
EVALUATION = (
    "evaluation.json"  # the calculator's metrics in a run folder, as ``make train`` names it
)
_FILM_SIZE = (480, 270)  # [pixels]
_FILM_EPISODES = 2
_FILM_SECONDS = 10.0  # at most
_LARGEST_FILM = 30 * 2**20  # bytes; larger ones in a run folder are not embedded
_DPI = 160  # of the PNG files
_PAGE_DPI = 112  # of the same on the page
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:1150px;margin:2em auto;padding:0 1em;"
    "color:#222}"
    "img,video{max-width:100%}"
    "figure{margin:1em 0}"
    "figcaption,p{max-width:75ch}"
    "figcaption{color:#555}"
    ".films{display:flex;flex-wrap:wrap;gap:1em}.films figure{margin:0}"
    ".table{overflow-x:auto}"
    "table{border-collapse:collapse}"
    "td,th{border-bottom:1px solid #ddd;padding:.25em .8em;text-align:left;vertical-align:top;"
    "overflow-wrap:break-word}"
    "pre{overflow-x:auto;font-size:13px}"
    "h2{margin-top:2em}"
    "@media print{h2{break-after:avoid}figure,tr{break-inside:avoid}}"
)


def make_parser(program: str = PROGRAM) -> config.Parser:
    """Build the command line of ``mapush report`` or ``mapush plot``."""
    words = "A figure with the curves of runs."
    if program == PROGRAM:
        words = "A page with curves, metrics, paths and films of runs."
    parser = config.Parser(
        prog=program, description=words, example=f"{program} results/a results/b"
    )
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
    parser.add_argument(
        "--labels",
        metavar="A,B,...",
        help="names of the curves in the order of the runs, separated by commas; curves of equal "
        "names become one (default: algorithm and preset)",
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
            help="page without the task's scripted policies on the same starts",
        )
        parser.add_argument(
            "--no_films",
            action="store_true",
            help="page without the films, one for each curve",
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
    together = groups(logs, _labels(arguments))

    drawn = {
        "curves": figures.curves(together, MAIN_TAGS),
        "wall_clock": figures.curves(together, dict(list(MAIN_TAGS.items())[:2]), "seconds"),
        "rewards": figures.curves(together, figures.reward_tags(together), columns=4),
        "agents": figures.curves(together, figures.agent_tags(together)),
        "throughput": figures.curves(together, SPEED_TAGS),
    }
    played: dict[str, Played] = {}
    worlds: list[RunCfg] = []
    for group in together if arguments.num_episodes else ():
        for log in group.runs:
            _say(f"{log.folder}: playing {arguments.num_episodes} episodes ...")
            cfg = training_worlds(log.folder, arguments.num_episodes)
            found = play(cfg, log.folder)
            if found is None:
                continue
            played[str(log.folder)] = found
            name = f"{group.name}, seed {log.settings.get('runner.seed')}"
            radius = getattr(cfg.task, "success_radius", None)
            drawn[f"from_above_{len(played)}"] = figures.from_above(
                name, found.trajectories, radius
            )
            worlds.append(cfg)
    scripted = {} if arguments.no_baselines else _play_scripts(worlds, list(played))
    films = {} if arguments.no_films else _films(together, out)

    pictures = {}
    for name, figure in drawn.items():
        if figure is not None:
            path = out.with_name(f"{out.stem}_{name}.png")
            figure.savefig(path, dpi=_DPI)
            pictures[name] = path.read_bytes()
    out.write_text(_page(logs, together, pictures, played | scripted, films), encoding="utf-8")
    _say(
        f"{out}: {len(logs)} run{'s' if len(logs) > 1 else ''}, {len(pictures)} figures, also as "
        f"PNG files beside it, {len(films)} film{'' if len(films) == 1 else 's'}."
    )
    return 0


def _labels(arguments: Any) -> list[str] | None:
    if arguments.labels is None:
        return None
    labels = [label.strip() for label in arguments.labels.split(",")]
    if not all(labels):
        raise ConfigError(
            f"--labels {arguments.labels!r}: an empty name; give one for each curve, for example "
            "--labels HAPPO,HASAC"
        )
    return labels


def _films(together: Sequence[Group], out: Path) -> dict[str, bytes]:
    """Return a film of the first run of each group, by the group's name.

    It is the newest .mp4 file in the run folder, or else a short one of the last checkpoint, which
    is written beside ``out``.
    """
    films = {}
    for k, group in enumerate(together):
        run = group.runs[0].folder
        path = _film_in(run)
        if path is None:
            _say(f"{run}: filming the last checkpoint ...")
            path = out.with_name(f"{out.stem}_film_{k + 1}.mp4")
            try:
                _film(run, path)
            except ConfigError as error:
                _say(f"Note: no film of {run}: {error}")
                continue
        films[group.name] = path.read_bytes()
    return films


def _film_in(run: Path) -> Path | None:
    """Return the newest film in a run folder that is small enough for a page."""
    found = [path for path in run.glob("*.mp4") if path.stat().st_size <= _LARGEST_FILM]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def _film(run: Path, path: Path) -> None:
    """Film the last checkpoint of ``run``; raise ConfigError if this machine cannot."""
    folder = checkpoint.resolve(str(run))
    cfg = evaluation_worlds.shown(folder, {}, suite=None)
    wanted = FilmCfg(
        path,
        _FILM_SIZE,
        (1, 1),
        CAMERAS["follow"],
        _FILM_EPISODES,
        _FILM_SECONDS,
    )
    filming.make(cfg, folder, wanted, _say)


def _play_scripts(worlds: Sequence[RunCfg], runs: Sequence[str]) -> dict[str, Played]:
    """Play the scripted policies of the task in the worlds of each run, in equal ones only once."""
    played: dict[str, Played] = {}
    seen: list[Any] = []
    for cfg, run in zip(worlds, runs, strict=True):
        if (cfg.env, cfg.task) in seen:
            continue
        seen.append((cfg.env, cfg.task))
        for policy in TASKS[cfg.task.name].policies:
            _say(f"{policy}: playing the episodes of {run} ...")
            found = play(cfg, policy)
            if found is not None:
                played[f"{policy}, on the starts of {run}"] = found
    return played


def plot(argv: Sequence[str] | None = None) -> int:
    """Draw curves as the command line says; return the exit code."""
    return config.exit_code(lambda: _plot(make_parser("mapush plot").parse(argv)), "mapush plot")


def _plot(arguments: Any) -> int:
    out = _writable(arguments.out, ".png", ".svg", ".pdf")
    figures = import_figures()
    together = groups([read_run(Path(name)) for name in arguments.runs], _labels(arguments))
    figure = figures.curves(together, MAIN_TAGS)
    if figure is None:
        raise ConfigError(f"{arguments.runs[0]}: has none of the curves {', '.join(MAIN_TAGS)} yet")
    figure.savefig(out, dpi=300)
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
    place = path if path.exists() else path.parent
    if not os.access(place, os.W_OK):
        raise ConfigError(f"--out {name!r}: {place} cannot be written; name another file")
    return path


def _page(
    logs: Sequence[RunLog],
    together: Sequence[Group],
    pictures: dict[str, bytes],
    played: dict[str, Played],
    films: dict[str, bytes],
) -> str:
    """Return the HTML page with all pictures and films embedded."""

    def picture(name: str, title: str, note: str = "") -> str:
        data = base64.b64encode(pictures[name]).decode()
        caption = f"<figcaption>{html.escape(note)}</figcaption>" if note else ""
        num_pixels = int.from_bytes(pictures[name][16:20], "big")  # in the header of a PNG file
        width = round(num_pixels * _PAGE_DPI / _DPI)
        source = f'width="{width}" src="data:image/png;base64,{data}"'
        return f'<figure><img alt="{html.escape(title)}" {source}>{caption}</figure>'

    parts = ["<h1>Runs</h1>", _runs_table(together)]
    measured = _measured(logs)
    if measured:
        parts += ["<h2>Measured by the calculator</h2>", *measured]
    parts += ["<h2>Settings that differ</h2>", _differences_table(logs)]
    titles = {
        "curves": "Curves against env steps",
        "wall_clock": "Against wall clock",
        "rewards": "Reward terms",
        "agents": "Contributions of each robot",
        "throughput": "Throughput",
    }
    bands = (
        "Lines are interquartile means over runs, bands their 95 % stratified bootstrap intervals."
    )
    has_bands = any(len(group.runs) > 1 for group in together)
    for name, title in titles.items():
        if name in pictures:
            note = bands if name == "curves" and has_bands else ""
            parts += [f"<h2>{title}</h2>", picture(name, title, note)]
    if films:
        videos = "".join(_video(name, data) for name, data in films.items())
        parts += ["<h2>Films</h2>", f'<div class="films">{videos}</div>']
    if played:
        parts += ["<h2>Paths of objects and outcomes of episodes</h2>", _outcomes_table(played)]
        names = [name for name in pictures if name.startswith("from_above_")]
        parts += [picture(name, "Paths from above") for name in names]
        parts += [
            _folded(f"{name}: metrics of these episodes", each.metrics)
            for name, each in played.items()
        ]
    body = "\n".join(parts)
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>mapush: report</title><style>{_STYLE}</style>"
    )
    return f'<!doctype html><html lang="en">{head}{body}</html>\n'


def _video(name: str, film_bytes: bytes) -> str:
    data = base64.b64encode(film_bytes).decode()
    source = f'src="data:video/mp4;base64,{data}"'
    return (
        f"<figure><video controls autoplay loop muted playsinline {source}></video>"
        f"<figcaption>{html.escape(name)}</figcaption></figure>"
    )


def _folded(title: str, text: str) -> str:
    summary = html.escape(title)
    return f"<details><summary>{summary}</summary><pre>{html.escape(text)}</pre></details>"


def _measured(logs: Sequence[RunLog]) -> list[str]:
    """Return a table of the rates in the runs' ``evaluation.json``, and all of their metrics."""
    rows: list[list[object]] = []
    folded = []
    for log in logs:
        metrics = _read_metrics(log.folder / EVALUATION)
        rates = [name for name in metrics if f"{name.removesuffix('_rate')}_ci95" in metrics]
        for name in rates:
            words = name.removesuffix("_rate").replace("_", " ")
            value = with_interval(metrics, name)
            rows.append([log.folder, words, value, metrics.get("num_episodes")])
        if metrics:
            folded.append(_folded(f"{log.folder}: all metrics", json.dumps(metrics, indent=1)))
    if not folded:
        return []
    return [_table(["run", "rate", "share (95 % interval)", "episodes"], rows), *folded]


def _read_metrics(path: Path) -> dict[str, Any]:
    """Return the calculator's metrics in a file; none if there is no such file, or another one."""
    try:
        metrics = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return metrics if isinstance(metrics, dict) else {}


def _runs_table(together: Sequence[Group]) -> str:
    def last(log: RunLog, tag: str) -> str:
        return f"{log.curves[tag].values[-1]:.3f}" if tag in log.curves else "-"

    rows = []
    for group in together:
        for log in group.runs:
            longest = max(log.curves.values(), key=lambda curve: curve.env_steps[-1])
            steps = f"{longest.env_steps[-1]:,.0f}"
            minutes = f"{longest.seconds[-1] / 60.0:.1f}"
            object_name = log.settings.get("task.object", "-")
            seed = log.settings.get("runner.seed")
            success = last(log, "mapush/success_rate")
            rows.append([log.folder, group.name, object_name, seed, steps, minutes, success])
    heads = ["run", "curve", "object", "seed", "env steps", "minutes", "success rate at the end"]
    return _table(heads, rows)


def _differences_table(logs: Sequence[RunLog]) -> str:
    """Return a row for each value of a setting, with the runs that have it."""
    found = differences(logs)
    if not found:
        words = "Only seeds differ." if len(logs) > 1 else "There is one run."
        return f"<p>{words}</p>"
    rows = []
    for key, values in found.items():
        for value in dict.fromkeys(map(str, values)):
            runs = [log.folder for log, own in zip(logs, values, strict=True) if str(own) == value]
            rows.append([key, value, ", ".join(map(str, runs))])
    return _table(["setting", "value", "runs"], rows)


def _outcomes_table(played: dict[str, Played]) -> str:
    rows = []
    for name, each in played.items():
        num_episodes = len(each.trajectories)
        outcomes = Counter(episode.outcome for episode in each.trajectories)
        for outcome, number in outcomes.most_common():
            low, high = wilson_interval(number, num_episodes)
            share = f"{number / num_episodes:.3f} ({low:.3f} to {high:.3f})"
            rows.append([name, outcome, f"{number} of {num_episodes}", share])
    words = "Episodes are played in the worlds of the run's training, without randomization."
    table = _table(["run", "outcome", "episodes", "share (95 % interval)"], rows)
    return f"<p>{words}</p>{table}"


def _table(head: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    def cells(values: Sequence[object], tag: str) -> str:
        # A line may end after a folder's name.
        texts = [html.escape(str(value)).replace("/", "/<wbr>") for value in values]
        return "".join(f"<{tag}>{text}</{tag}>" for text in texts)

    lines = [cells(head, "th"), *(cells(row, "td") for row in rows)]
    table = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="table"><table>{table}</table></div>'


def _say(line: str) -> None:
    sys.stdout.write("\n".join(map(printable, line.split("\n"))) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
