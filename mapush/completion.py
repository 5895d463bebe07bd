"""``mapush completion SHELL``: a script for completing commands, flags, settings and names."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from io import StringIO

from harl_mapush import config
from harl_mapush.algorithms.entries import ALGORITHMS
from harl_mapush.config.other_names import dotted
from harl_mapush.evaluation.policies import policy_names
from harl_mapush.viewing.watch import TRAINED
from mapush.commands import COMMANDS, load
from mapush.listing import PRESETS, SUITES, setting_lines
from mqe.config import ConfigError, unknown
from mqe.extensions import load_extensions
from mqe.pretrained import PRETRAINED, pretrained_names
from mqe.registry import SIMULATORS, TASKS
from mqe.viewer.camera import CAMERAS
from mqe.world.objects import OBJECTS

SHELLS = ("bash", "zsh", "fish")
# A shell expands the words of a completion, and `$(...)` in one of them would run.
_PLAIN = re.compile(r"[\w.:=+@/-]+")
_WITH_TEAMS = ("test", "play", "film", "export")  # commands with a team first


def main(argv: Sequence[str] | None = None) -> int:
    """Write the script. Return the exit code."""
    return config.exit_code(lambda: _main(argv), "mapush completion")


def _main(argv: Sequence[str] | None) -> int:
    parser = config.Parser(
        prog="mapush completion",
        description="The script by which a shell completes mapush, with the commands, settings "
        "and names of this installation; a newer version needs a new one. The line in ~/.bashrc "
        "after the example's command: source ~/.mapush-completion (likewise zsh and ~/.zshrc). "
        "The file for fish: ~/.config/fish/completions/mapush.fish",
        example="mapush completion bash > ~/.mapush-completion",
    )
    parser.add_argument("shell", metavar="SHELL", help=f"one of {', '.join(SHELLS)}")
    shell = parser.parse(argv).shell
    if shell not in SHELLS:
        raise ConfigError(unknown("shell", shell, SHELLS))
    load_extensions()
    flags = {name: _flags(name) if name != "completion" else [] for name in COMMANDS}
    sys.stdout.write(
        _fish(flags, values()) if shell == "fish" else _bash(flags, values(), is_zsh=shell == "zsh")
    )
    return 0


def values() -> dict[str, list[str]]:
    """Return the words after each flag, except names with special characters."""
    words: dict[str, list[str]] = {
        "--set": sorted(
            {f"{line.split()[0]}=" for line in setting_lines()} | {f"{key}=" for key in _known()}
        ),
        "--preset": config.presets(),
        "--algo": [*ALGORITHMS],
        "--task": [*TASKS],
        "--object": [*OBJECTS],
        "--device": ["auto", "cpu", "cuda"],
        "--sim": ["auto", *SIMULATORS],
        "--camera": [*CAMERAS],
        "--suite": config.suites(),
        "--agent": [TRAINED, *policy_names()],
        **{flag: _pretrained() for flag in ("--checkpoint", "--init_from")},
    }
    return {flag: _plain(several) for flag, several in words.items()}


def _plain(words: Iterable[str]) -> list[str]:
    return [word for word in words if _PLAIN.fullmatch(word)]


def _known() -> Mapping[str, object]:
    return dotted(config.all_classes())


def _pretrained() -> list[str]:
    return _plain(f"{PRETRAINED}{name}" for name in pretrained_names())


def _first_words() -> dict[str, list[str]]:
    """Return each command's first words."""
    words = {name: _pretrained() for name in _WITH_TEAMS}
    words["list"] = [PRESETS, SUITES]
    words["completion"] = [*SHELLS]
    return words


def _flags(command: str) -> list[str]:
    """Return the flags in a command's help."""
    text = StringIO()
    with redirect_stdout(text), suppress(SystemExit):
        load(command)(["--help"])
    return sorted(set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text.getvalue())))


def _bash(
    flags: Mapping[str, Sequence[str]], following: Mapping[str, Sequence[str]], is_zsh: bool
) -> str:
    """Return the script for bash, or for zsh by bash functions, without a space after a setting's
    ``=``.
    """
    begin = ""
    option = ""
    spaces = 'case "${COMPREPLY[0]}" in *=) compopt -o nospace 2>/dev/null ;; esac'
    if is_zsh:  # it has no compopt
        begin = "autoload -U +X bashcompinit && bashcompinit\n"
        option = "-o nospace "
        spaces = 'COMPREPLY=("${COMPREPLY[@]/%/ }") && COMPREPLY=("${COMPREPLY[@]/%= /=}")'
    first_words = _first_words()
    after = "".join(
        f'    {flag}) words="{" ".join(words)}" ;;\n' for flag, words in following.items()
    )
    cases = "".join(
        f'      {name}) words="{" ".join([*flags_of_command, *first_words.get(name, [])])}" ;;\n'
        for name, flags_of_command in flags.items()
    )
    return f"""{begin}_mapush() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" words=""
  COMP_WORDBREAKS="${{COMP_WORDBREAKS//[:=]/}}"
  case "$before" in
{after}    *) if [ "$COMP_CWORD" -eq 1 ]; then words="{" ".join(flags)}"; else case "${{COMP_WORDS[1]}}" in
{cases}    esac; fi ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$word"))
  {spaces}
}}
complete -o default {option}-F _mapush mapush
"""


def _fish(flags: Mapping[str, Sequence[str]], following: Mapping[str, Sequence[str]]) -> str:
    first_words = _first_words()
    lines = [f"complete -c mapush -f -n __fish_use_subcommand -a '{' '.join(flags)}'"]
    for name, flags_of_command in flags.items():
        start = f"complete -c mapush -n '__fish_seen_subcommand_from {name}'"
        for flag in flags_of_command:
            words = f" -x -a '{' '.join(following[flag])}'" if flag in following else ""
            lines.append(f"{start} -l {flag.removeprefix('--')}{words}")
        if name in first_words:
            lines.append(f"{start} -a '{' '.join(first_words[name])}'")
    return "\n".join(lines) + "\n"
