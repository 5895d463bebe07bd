"""Train a team: ``mapush train``, or ``python -m harl_mapush.train``."""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from harl_mapush import config, experiment
from harl_mapush.distributed import launch
from harl_mapush.distributed.launch import Launch
from harl_mapush.process import keep_freed_memory
from harl_mapush.runs import init_from, named_files, resume
from harl_mapush.start import PROGRAM, Start
from mqe.config import ConfigError
from mqe.extensions import load_extensions


def make_parser() -> config.Parser:
    """Build the command line. Extensions may add flags."""
    load_extensions()
    parser = config.Parser(
        prog=PROGRAM,
        description="Training of a team of quadrupeds. Settings are read from the defaults, the "
        "run file or preset, another library's file, flags and --set; later ones replace earlier "
        "ones.",
        example=f"{PROGRAM} --preset laptop --object tblock --seed 2",
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--preset",
        "--config",
        metavar="NAME",
        help="run file (YAML), for instance the config.yaml of another run, or a preset, one in "
        f"mapush: {', '.join(sorted(config.PRESETS))}",
    )
    source.add_argument(
        "--resume",
        metavar="RUN",
        help="run to continue: its folder, for the newest checkpoint, or a checkpoint",
    )
    for name, kind in config.SETTINGS_FILES.items():
        parser.add_argument(f"--{name}", metavar="FILE", help=kind.help)
    config.add_import(parser)
    config.add_flags(parser, tuple(config.FLAGS))
    config.add_other_flags(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Train a team by the arguments ``argv``. Return the exit code."""
    rank = Launch.of_environment().rank
    name = f"{PROGRAM} (rank {rank})" if rank else PROGRAM
    return launch.run_to_exit(lambda: config.exit_code(lambda: _main(argv), name))


def _main(argv: Sequence[str] | None) -> int:
    keep_freed_memory()
    started = Launch.of_environment()
    if started.rank > 0:
        # Only rank 0 writes output. The file stays open until the process ends.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    arguments = make_parser().parse(argv)
    files = {name: getattr(arguments, name) for name in config.SETTINGS_FILES}
    files = {name: path for name, path in files.items() if path is not None}
    if arguments.resume is not None:
        if files:
            raise ConfigError(
                f"--{next(iter(files))}: a resumed run keeps its own settings; leave it out"
            )
        return _resume(arguments.resume, config.flag_values(arguments))

    over = config.flag_values(arguments)
    if arguments.preset is None and not files:
        arguments.preset, reason = config.machine_preset(over, started.size)
        sys.stdout.write(
            f"The preset is {arguments.preset}, since {reason}; --preset NAME takes another, "
            "mapush list presets names them.\n"
        )
    base = {} if arguments.preset is None else config.load_preset(arguments.preset)
    base, notices = init_from.apply(base, over)
    for name, path in files.items():
        base, more = config.SETTINGS_FILES[name].apply(base, over, path)
        notices += more
    cfg, more = config.resolve(base, over)
    if arguments.preset is not None:
        config.check_preset(arguments.preset, cfg)
    for notice in notices + more:
        sys.stdout.write(f"Note: {notice}.\n")
    cfg = named_files.absolute(cfg)
    return experiment.run(cfg, Start.anew(cfg))


def _resume(name: str, over: Mapping[str, Any]) -> int:
    """Resume a run, changed by ``over``. For a finished run write a line and return 0."""
    saved, notices = resume.find(name)
    cfg, more = resume.settings(saved, over)
    for notice in notices + more:
        sys.stdout.write(f"Note: {notice}.\n")
    if saved.env_steps >= cfg.runner.num_env_steps:
        sys.stdout.write(
            f"{saved.run} is finished: {saved.env_steps} of {cfg.runner.num_env_steps} env steps "
            "are done; a larger --num_env_steps continues the run.\n"
        )
        return 0
    cfg = named_files.absolute(cfg)
    return experiment.run(cfg, Start.anew(cfg)._replace(folder=saved.run, saved=saved))


if __name__ == "__main__":
    sys.exit(main())
