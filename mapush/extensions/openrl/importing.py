"""Import MAPush's files: ``mapush import openrl`` policies, ``mapush import config`` task files.

No code in the files is executed. The result is a run folder, or a run file, of this project.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harl_mapush import config
from harl_mapush.runs import checkpoint, run_folder
from mapush.extensions.openrl import mapush_tasks, openrl_format
from mapush.extensions.openrl.openrl_files import MODULE
from mqe.config import ConfigError, dump_yaml, to_dict, unknown
from mqe.world.objects import OBJECTS

PROGRAM = "mapush import"
KINDS = ("openrl", "config")


def make_parser() -> config.Parser:
    """Build the command line."""
    parser = config.Parser(
        prog=PROGRAM,
        description="Runs and run files of this project from files of MAPush.",
        example="mapush import config task/cuboid/config.py --out cuboid.yaml",
    )
    parser.add_argument(
        "kind", metavar="KIND", help="openrl (trained policies) or config (task/*/config.py)"
    )
    parser.add_argument(
        "source", metavar="FILE|FOLDER", help="a module.pt, a folder with some, or a config.py"
    )
    parser.add_argument("--out", metavar="PATH", help="the run folder, or run file, to write")
    parser.add_argument(
        "--object",
        metavar="NAME",
        help=f"the object that the policies push: {', '.join(OBJECTS)} (default: from the files)",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Import files by the arguments ``argv``. Return the exit code."""
    return config.exit_code(lambda: _main(argv), PROGRAM)


def _main(argv: Sequence[str] | None) -> int:
    arguments = make_parser().parse(argv)
    source = Path(arguments.source)
    if arguments.kind not in KINDS:
        raise ConfigError(unknown("kind", arguments.kind, KINDS))
    if not source.exists():
        raise ConfigError(f"{arguments.source!r} does not exist; name a file or folder of MAPush")
    if arguments.object is not None and arguments.object not in OBJECTS:
        raise ConfigError(f"--object: {unknown('object', arguments.object, OBJECTS)}")
    if arguments.kind == "openrl":
        _import_policies(source, arguments.out, arguments.object)
    else:
        _import_config(source, arguments.out)
    return 0


def _import_policies(source: Path, out: str | None, object_name: str | None) -> None:
    """Write a run folder with a checkpoint for every policy."""
    files = {openrl_format.env_steps_of(path): path for path in _policies(source)}
    imported = {
        steps: openrl_format.convert(path, object_name) for steps, path in sorted(files.items())
    }
    settings = {steps: _settings(policy.sections) for steps, policy in imported.items()}

    if out is not None:
        run = Path(out)
    elif source.is_file() and source.name != MODULE:
        run = Path("results", source.stem)
    else:
        run = Path("results", source.resolve().name)
    if run.exists() and (not run.is_dir() or any(run.iterdir())):
        raise ConfigError(f"--out {str(run)!r} exists; name a new folder")
    run.mkdir(parents=True, exist_ok=True)
    run_folder.write_config(run, settings[max(settings)])
    for steps, policy in imported.items():
        num_agents = policy.sections["env"]["num_agents"]
        actors = {f"actor_agent{agent}": policy.actor for agent in range(num_agents)}
        folder = checkpoint.save(run, steps, actors, settings=settings[steps])
        sys.stdout.write(f"{files[steps]} -> {folder}\n")

    notices = [notice for policy in imported.values() for notice in policy.notices]
    for notice in dict.fromkeys(notices):
        sys.stdout.write(f"Note: {notice}.\n")
    last = imported[max(imported)]
    guess = "" if last.is_object_known else " (a guess; --object names another)"
    task = last.sections["task"]
    env = last.sections["env"]
    sys.stdout.write(
        f"{run}: {len(files)} policies of {env['num_agents']} robots, pushing "
        f"{task['object']}{guess}.\n"
    )


def _policies(source: Path) -> list[Path]:
    """Return the policies' files, one for each number of env steps."""
    if source.is_file():
        return [source]
    policy_files = sorted(source.rglob(MODULE))
    if not policy_files:
        raise ConfigError(
            f"{str(source)!r} contains no {MODULE}; name a file or folder of OpenRL's"
        )
    taken: dict[int, Path] = {}
    for path in policy_files:
        steps = openrl_format.env_steps_of(path)
        if steps in taken:
            raise ConfigError(
                f"{str(source)!r} has two policies of {steps} steps, {taken[steps]} and {path}; "
                "import one run"
            )
        taken[steps] = path
    return policy_files


def _import_config(source: Path, out: str | None) -> None:
    """Write a run file, and print the task file's settings without effect."""
    task_file = mapush_tasks.convert(source)
    _settings(task_file.sections)  # raises for invalid values
    path = Path(f"{task_file.sections['task']['object']}.yaml" if out is None else out)
    if path.exists():
        raise ConfigError(f"--out {str(path)!r} exists; name a new file")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"# From MAPush's {source.name}.\n{dump_yaml(task_file.sections)}", encoding="utf-8"
    )
    for key, reason in task_file.refused.items():
        sys.stdout.write(f"Note: not converted: {key}={reason}\n")
    sys.stdout.write(f"Without effect here: {', '.join(task_file.unread)}.\n")
    sys.stdout.write(f"{path}: train with --config {path}\n")


def _settings(sections: dict[str, Any]) -> str:
    """Return a run's settings as text. Raise ConfigError for invalid values."""
    return dump_yaml(to_dict(config.resolve(sections, {})[0]))
