"""The installed command: ``mapush train ...``, ``mapush test ...``."""

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from mapush import __version__

_HELP = "mapush COMMAND --help explains a command, mapush --version prints the version.\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Hand all further arguments to a subcommand. Return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["--version"]:
        sys.stdout.write(f"mapush {__version__}\n")
        return 0
    foreign = _foreign_mqe()
    if foreign is not None:
        sys.stderr.write(
            f"mapush: {foreign} comes before mapush's own package mqe; MAPush, MQE and another "
            "distribution have a package of this name: use an environment without it, or leave "
            "its folder\n"
        )
        return 2
    try:
        return _hand_over(arguments)
    except ImportError as error:
        if "MUJOCO_GL" not in str(error):
            raise
        sys.stderr.write(f"mapush: {error}\n")  # a mistake of the user's
        return 2


def _foreign_mqe() -> str | None:
    """Return the folder of another package ``mqe`` in front of ours, or None."""
    spec = find_spec("mqe")
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    if not folders or Path(folders[0]).resolve().parent == Path(__file__).resolve().parents[1]:
        return None
    return folders[0]


def _hand_over(arguments: list[str]) -> int:
    # Imported here, since MuJoCo checks MUJOCO_GL when it is imported.
    from mapush.built_in import extensions
    from mapush.commands import COMMANDS, MOVED, load
    from mqe.config import ConfigError, unknown
    from mqe.extensions import load_extensions

    for extension in extensions():
        COMMANDS.update(extension.commands)
        MOVED.update(extension.former_commands)
    is_help = not arguments or arguments[0] in ("-h", "--help")
    if is_help or arguments[0] not in COMMANDS:
        try:
            load_extensions()
        except ConfigError as error:
            sys.stderr.write(f"mapush: {error}\n")
            return 2
    if is_help:
        lines = [f"  {name:<12}{command.help}" for name, command in COMMANDS.items()]
        sys.stdout.write("\n".join(["usage: mapush COMMAND ...", "", *lines, "", _HELP]))
        return 0 if arguments else 2
    if arguments[0] in MOVED:
        sys.stderr.write(f"mapush: {arguments[0]} is now: {MOVED[arguments[0]]}\n")
        return 2
    if arguments[0] not in COMMANDS:
        sys.stderr.write(f"mapush: {unknown('command', arguments[0], COMMANDS)}; see --help\n")
        return 2

    try:
        from harl_mapush.interruption import as_exits

        # The next seconds go to importing torch and MuJoCo.
        with as_exits(f"mapush {arguments[0]}"):
            command = load(arguments[0])
    except ImportError as error:
        if "MUJOCO_GL" in str(error):
            raise
        sys.stderr.write(
            f"mapush: the installation is incomplete ({error}); reinstall it with pip\n"
        )
        return 1
    return command(arguments[1:])
