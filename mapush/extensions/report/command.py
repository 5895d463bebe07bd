"""The command ``mapush report``: an HTML page on runs, or a figure of their curves."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harl_mapush import config
from harl_mapush.process import library_lines, say
from mapush.extensions.report.figure_style import SUFFIXES, figure_style
from mapush.extensions.report.page import DPI, page
from mapush.extensions.report.run_logs import Group, groups, read_run
from mqe.config import ConfigError

PROGRAM = "mapush report"
MAIN_TAGS = {
    "mapush/success_rate": "success rate",
    "mapush/return": "return",
    "mapush/episode_time_s": "episode time [s]",
    "mapush/collision_rate": "collision rate",
    "mapush/fall_rate": "fall rate",
    "mapush/collapse_rate": "collapse rate",
}


def make_parser() -> config.Parser:
    """Build the command line."""
    parser = config.Parser(
        prog=PROGRAM,
        description="A page with curves, metrics and films of runs, or a figure with the curves.",
        example=f"{PROGRAM} results/a results/b",
    )
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="+",
        help="run folders; runs that differ only in the seed are drawn as one band",
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        default="report.html",
        help=f"the file to write: .html for the page, or {', '.join(SUFFIXES)} for the curves "
        "(default: report.html)",
    )
    parser.add_argument(
        "--labels",
        metavar="A,B,...",
        help="names of the curves in the order of the runs, separated by commas; curves of equal "
        "names become one (default: algorithm and preset)",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Write a report. Return the exit code."""

    def styled() -> int:
        arguments = make_parser().parse(argv)
        with figure_style():
            return _report(arguments)

    with library_lines(say):
        return config.exit_code(styled, PROGRAM)


def _report(arguments: Any) -> int:
    from mapush.extensions.report import figures

    out, read_groups = _read(arguments)
    curves = figures.curves(read_groups, MAIN_TAGS)
    if out.suffix in SUFFIXES:
        if curves is None:
            raise ConfigError(f"{arguments.runs[0]}: has none of the curves {', '.join(MAIN_TAGS)}")
        curves.savefig(out, dpi=300)
        say(f"{out}: {', '.join(group.name for group in read_groups)}.")
        return 0

    rewards = figures.curves(read_groups, figures.reward_tags(read_groups))
    pictures = {}
    for title, figure in (("Curves", curves), ("Reward terms", rewards)):
        if figure is not None:
            png = io.BytesIO()
            figure.savefig(png, format="png", dpi=DPI)
            pictures[title] = png.getvalue()
    films = {}
    for group in read_groups:
        film = _newest_film(group.runs[0].folder)
        if film is not None:
            films[group.name] = film.read_bytes()
    out.write_text(page(read_groups, pictures, films), encoding="utf-8")
    num_runs = sum(len(group.runs) for group in read_groups)
    say(f"{out}: runs {num_runs}, figures {len(pictures)}, films {len(films)}.")
    return 0


def _read(arguments: Any) -> tuple[Path, list[Group]]:
    """Return the output file and the groups of runs from the command line."""
    out = Path(arguments.out)
    if out.suffix not in (".html", *SUFFIXES):
        raise ConfigError(
            f"--out {arguments.out!r}: must end in .html, or {', '.join(SUFFIXES)} for curves only"
        )
    config.check_writable("out", arguments.out)
    labels = None
    if arguments.labels is not None:
        labels = [label.strip() for label in arguments.labels.split(",")]
        if not all(labels):
            raise ConfigError(
                f"--labels {arguments.labels!r}: an empty name; give one for each curve, for "
                "example --labels HAPPO,HASAC"
            )
    return out, groups([read_run(Path(name)) for name in arguments.runs], labels)


def _newest_film(run: Path) -> Path | None:
    films = [path for path in run.glob("*.mp4") if path.is_file()]
    return max(films, key=lambda path: path.stat().st_mtime, default=None)
