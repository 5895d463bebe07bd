"""Other libraries' names for our settings, as hints to users, and their settings files."""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

from mqe.config import load_yaml, printable, type_hints
from mqe.extensions import Registry

_TABLES = load_yaml(Path(__file__).with_name("other_names.yaml"))
NAMES: dict[str, str] = _TABLES["names"]
NOTHING: dict[str, str] = _TABLES["hints"]


class OtherFlag(NamedTuple):
    """A flag from another library's training, also valid here under its original name."""

    keys: tuple[str, ...] = ()  # settings set by the flag, none if every run complies anyway
    value: Callable[[str], str] = str  # the value of these settings, as --set takes it


class SettingsFile(NamedTuple):
    """A kind of settings file as a layer in a run's settings."""

    help: str
    # Takes the settings of the run file, those of the command line, and the path. Returns the
    # former with the file's values, and notices for the user.
    apply: Callable[[Mapping[str, Any], Mapping[str, Any], str], tuple[dict[str, Any], list[str]]]


class SaidByCheckpoint(argparse.Action):
    """Keeps a note, which is written once all settings are resolved."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        """Keep the note."""
        note = (
            f"Note: {option_string} {printable(values)} has no effect here: the checkpoint has its "
            "own settings.\n"
        )
        namespace.notes = [*getattr(namespace, "notes", ()), note]


# The flag of a kind is its name: ``--load_config FILE`` for ``load_config``.
SETTINGS_FILES: Registry[SettingsFile] = Registry("file of settings")
# Flags by name without dashes. No help shows them.
TRAIN_FLAGS: Registry[OtherFlag] = Registry("flag")
for _name, _key in NAMES.items():
    _keys = (_key, "algorithm.critic_learning_rate") if _name == "lr" else (_key,)
    TRAIN_FLAGS.register(_name, OtherFlag(_keys))
TEST_FLAGS: Registry[Mapping[str, Any]] = Registry("flag")  # arguments of add_argument


def hint(name: str, classes: Mapping[str, type]) -> str | None:
    """Return a hint for ``name``, an unknown flag or dotted key, or None if no library has it.

    ``classes`` are the sections' classes, for a key with exactly this name.
    """
    word = name.lstrip("-").partition("=")[0].replace("-", "_").rpartition(".")[2]
    if word in NOTHING:
        return NOTHING[word]
    key = NAMES.get(word)
    if key is None and name.startswith("-"):
        key = next((path for path in dotted(classes) if path.rpartition(".")[2] == word), None)
    return None if key is None else f"say --set {key}=VALUE"


def dotted(classes: Mapping[str, type]) -> dict[str, Any]:
    """Return every setting's dataclass field, nested ones as well, by dotted name."""
    by_name: dict[str, Any] = {}
    for section, cls in classes.items():
        hints = type_hints(cls)
        for field in fields(cls):
            name = f"{section}.{field.name}"
            if is_dataclass(hints[field.name]):
                by_name |= dotted({name: hints[field.name]})
            elif field.init:
                by_name[name] = field
    return by_name
