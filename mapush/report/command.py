"""The commands ``mapush report``, an HTML page on runs, and ``mapush plot``, their curves alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harl_mapush import config
from harl_mapush.figure_style import SUFFIXES, figure_style
from harl_mapush.process import library_lines, say
from harl_mapush.runs import checkpoint, evaluation_worlds
from harl_mapush.viewing import filming
from harl_mapush.viewing.filming import FilmCfg
from mapush.report.page import DPI, page
from mapush.report.run_logs import Group, groups, read_run
from mqe.config import ConfigError
from mqe.viewer.camera import CAMERAS

PROGRAM = "mapush report"
PLOT = "mapush plot"
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
_FILM_SIZE = (480, 270)  # [pixels]
_FILM_EPISODES = 2
_FILM_SECONDS = 10.0  # at most
_LARGEST_FILM = 30 * 2**20  # bytes of a film on the page


def make_parser(program: str = PROGRAM) -> config.Parser:
    """Build the command line for ``mapush report`` or ``mapush plot``."""
    is_page = program == PROGRAM
    parser = config.Parser(
        prog=program,
        description="A page with curves, metrics and films of runs."
        if is_page
        else "A figure with the curves of runs.",
        example=f"{program} results/a results/b",
    )
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="+",
        help="run folders; runs that differ only in the seed are drawn as one band",
    )
    default = "report.html" if is_page else "curves.png"
    parser.add_argument(
        "--out", metavar="FILE", default=default, help=f"the file to write (default: {default})"
    )
    parser.add_argument(
        "--labels",
        metavar="A,B,...",
        help="names of the curves in the order of the runs, separated by commas; curves of equal "
        "names become one (default: algorithm and preset)",
    )
    if is_page:
        config.add_import(parser)
        parser.add_argument(
            "--no_films", action="store_true", help="page without the films, one for each curve"
        )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Write a report. Return the exit code."""
    return _run(_report, argv, PROGRAM)


def plot(argv: Sequence[str] | None = None) -> int:
    """Draw curves. Return the exit code."""
    return _run(_plot, argv, PLOT)


def _run(work: Callable[[Any], int], argv: Sequence[str] | None, program: str) -> int:
    def styled() -> int:
        arguments = make_parser(program).parse(argv)
        with figure_style():
            return work(arguments)

    with library_lines(say):
        return config.exit_code(styled, program)


def _report(arguments: Any) -> int:
    from mapush.report import figures

    out, read_groups = _read(arguments, ".html")
    drawn = {
        "curves": figures.curves(read_groups, MAIN_TAGS),
        "wall_clock": figures.curves(read_groups, dict(list(MAIN_TAGS.items())[:2]), "seconds"),
        "rewards": figures.curves(read_groups, figures.reward_tags(read_groups), columns=4),
        "agents": figures.curves(read_groups, figures.agent_tags(read_groups)),
        "throughput": figures.curves(read_groups, SPEED_TAGS),
    }
    films = {} if arguments.no_films else _films(read_groups, out)

    pictures = {}
    for name, figure in drawn.items():
        if figure is not None:
            path = out.with_name(f"{out.stem}_{name}.png")
            figure.savefig(path, dpi=DPI)
            pictures[name] = path.read_bytes()
    out.write_text(page(read_groups, pictures, films), encoding="utf-8")
    num_runs = sum(len(group.runs) for group in read_groups)
    say(
        f"{out}: {num_runs} run{'s' if num_runs > 1 else ''}, {len(pictures)} figures, also as "
        f"PNG files beside it, {len(films)} film{'' if len(films) == 1 else 's'}."
    )
    return 0


def _plot(arguments: Any) -> int:
    from mapush.report import figures

    out, read_groups = _read(arguments, *SUFFIXES)
    figure = figures.curves(read_groups, MAIN_TAGS)
    if figure is None:
        raise ConfigError(f"{arguments.runs[0]}: has none of the curves {', '.join(MAIN_TAGS)} yet")
    figure.savefig(out, dpi=300)
    say(f"{out}: {', '.join(group.name for group in read_groups)}.")
    return 0


def _read(arguments: Any, *suffixes: str) -> tuple[Path, list[Group]]:
    """Return the output file and the groups of runs from the command line."""
    out = Path(arguments.out)
    if out.suffix not in suffixes:
        raise ConfigError(f"--out {arguments.out!r}: must end in {' or '.join(suffixes)}")
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


def _films(read_groups: Sequence[Group], out: Path) -> dict[str, bytes]:
    """Return a film for each group's first run, by the group's name.

    It is the newest .mp4 file in the run folder, or else a short one with the last checkpoint,
    written beside ``out``.
    """
    films = {}
    for k, group in enumerate(read_groups):
        run = group.runs[0].folder
        path = _film_in(run)
        if path is None:
            say(f"{run}: filming the last checkpoint ...")
            path = out.with_name(f"{out.stem}_film_{k + 1}.mp4")
            try:
                _film(run, path)
            except ConfigError as error:
                say(f"Note: no film of {run}: {error}")
                continue
        films[group.name] = path.read_bytes()
    return films


def _film_in(run: Path) -> Path | None:
    """Return the newest film in a run folder within a page's size limit."""
    films = [
        path
        for path in run.glob("*.mp4")
        if path.is_file() and path.stat().st_size <= _LARGEST_FILM
    ]
    return max(films, key=lambda path: path.stat().st_mtime, default=None)


def _film(run: Path, path: Path) -> None:
    """Film the last checkpoint of ``run``. Raises ConfigError without rendering on this machine."""
    folder = checkpoint.resolve(str(run))
    cfg = evaluation_worlds.shown(folder, {}, suite=None)
    film = FilmCfg(path, _FILM_SIZE, (1, 1), CAMERAS["follow"], _FILM_EPISODES, _FILM_SECONDS)
    filming.make(cfg, folder, film, say)
