"""The command ``mapush report``: an HTML page on runs, or a figure of their curves."""

import io
from pathlib import Path
from typing import Any

from harl_mapush import config
from harl_mapush.process import say
from mapush.extensions.report.figure_style import SUFFIXES, figure_style
from mapush.extensions.report.page import page
from mapush.extensions.report.run_logs import groups, read_run
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
        description="A page with curves and metrics of runs, or a figure with the curves.",
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
    return parser


@config.command(make_parser)
@figure_style()
def main(arguments: Any) -> int:
    """Write a report. Return the exit code."""
    from mapush.extensions.report import figures

    out = Path(arguments.out)
    if out.suffix not in (".html", *SUFFIXES):
        raise ConfigError(
            f"--out {arguments.out!r}: must end in .html, or {', '.join(SUFFIXES)} for curves only"
        )
    config.check_writable("out", arguments.out)
    read_groups = groups([read_run(Path(name)) for name in arguments.runs])
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
            figure.savefig(png, format="png", dpi=160)
            pictures[title] = png.getvalue()
    out.write_text(page(read_groups, pictures), encoding="utf-8")
    num_runs = sum(len(group.runs) for group in read_groups)
    say(f"{out}: runs {num_runs}, figures {len(pictures)}.")
    return 0
