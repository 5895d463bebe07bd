"""Policies shipped with the package, named ``pretrained:NAME`` in settings and flags."""

from importlib import resources
from pathlib import Path

from mqe.config import ConfigError, load_yaml, unknown
from mqe.manifest import MANIFEST

PRETRAINED = "pretrained:"


def pretrained_folder(name: str) -> Path:
    """Return a shipped policy's folder. Raise ConfigError with the known names otherwise."""
    names = pretrained_names()
    if name not in names:
        raise ConfigError(unknown("pretrained policy", name, names))
    folder = _root() / name
    if not (folder / MANIFEST).is_file():
        raise ConfigError(
            f"pretrained:{name}: {folder} lacks {MANIFEST}; install mapush anew, or, if you put "
            f"a policy there, write it with: python -m mqe.manifest {folder}"
        )
    return folder


def pretrained_names() -> list[str]:
    """Return the names of the shipped policies."""
    root = _root()
    if not root.is_dir():
        return []
    return sorted(path.name for path in root.iterdir() if path.is_dir())


def summaries() -> dict[str, str]:
    """Return a line about each shipped policy by name, an empty one if nobody wrote it."""
    written = load_yaml(_root() / "summaries.yaml")
    return {name: written.get(name, "") for name in pretrained_names()}


def _root() -> Path:
    return Path(str(resources.files("mqe"))) / "assets" / "pretrained"
