"""A checkpoint's ``manifest.json``: a SHA-256 for every file beside it, and the writing program.

Readers check their files against it. A folder without a manifest, from older versions, is read
without this check, except shipped ones. ``python -m mqe.manifest FOLDER ...`` rewrites manifests,
for shipping a policy.
"""

import functools
import hashlib
import json
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from mqe.config import ConfigError, read_text, reason_of

MANIFEST = "manifest.json"
NAMED_FILES = "named_files"  # digests by setting
FORMAT_VERSION = 1
PACKAGES = ("mapush", "torch", "mujoco", "mujoco-warp", "warp-lang", "numpy")
UNKNOWN_REVISION = "unknown: not a git checkout, nor built from one"
_REVISION_FILE = Path("mqe", "git_revision.txt")  # setup.py writes it into an installation
_DESCRIBE = ("--always", "--dirty", "--abbrev=40", "--exclude=*")
_HINT = f"take another checkpoint of the run, or remove {MANIFEST} if you changed the file yourself"


def write_manifest(folder: Path, device: str, named_files: Mapping[str, str] | None = None) -> None:
    """Write the manifest for all files in ``folder``. ``device`` is the writer's (``cpu``,
    ``cuda:0``).

    ``named_files`` are the digests of the files and policies named in the settings, by setting.
    """
    content = {**_checksums(folder), **versions(), "device": device}
    if device.startswith("cuda"):
        content["device"] += f" ({torch.cuda.get_device_name(device)})"
    if named_files:
        content[NAMED_FILES] = dict(named_files)
    _write(folder, content)


def versions() -> dict[str, Any]:
    """Return the program's packages, Python, platform and revision."""
    return {
        "packages": packages(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "git_revision": git_revision(),
    }


def packages() -> dict[str, str]:
    """Return the versions of all packages with an influence on results."""
    return {name: version for name in PACKAGES if (version := installed(name)) is not None}


def renew_manifest(folder: Path, more: Mapping[str, Any] | None = None) -> None:
    """Rewrite the manifest in ``folder`` after deliberate changes to its files.

    The entries on the writing program stay. Without an old manifest only the files are known.
    ``more`` are further entries, by name.
    """
    _write(folder, {**read_manifest(folder), **(more or {}), **_checksums(folder)})


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest in ``folder``, empty if it is missing or damaged."""
    return read_json(folder / MANIFEST)


def read_json(path: Path) -> dict[str, Any]:
    """Return the keys and values in a file of JSON, none if it is missing or damaged."""
    try:
        content = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def damage(folder: Path, names: Iterable[str] | None = None) -> str | None:
    """Describe the first damaged file in ``folder``. Return None if all named files are whole.

    A folder without a manifest has no checksums to compare. Readers report missing files
    themselves.
    """
    path = folder / MANIFEST
    if not path.exists():
        return None
    try:
        written = json.loads(read_text(path))
        version = written["format_version"]
        files = written["files"]
        hashes = {str(name): str(value) for name, value in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"{MANIFEST}: damaged ({reason_of(error)})"
    if version != FORMAT_VERSION:
        return (
            f"{MANIFEST}: written in format {str(version):.20}, this version of mapush reads "
            f"format {FORMAT_VERSION}"
        )
    if any(Path(name).name != name for name in hashes):
        return f"{MANIFEST}: damaged (it names a file of another folder)"
    for name in hashes if names is None else names:
        if name not in hashes:
            return f"{name}: damaged, or from elsewhere ({MANIFEST} does not list it)"
        try:
            if (folder / name).is_file() and sha256(folder / name) != hashes[name]:
                return f"{name}: damaged (its SHA-256 is not the one in {MANIFEST})"
        except (OSError, ValueError) as error:
            return f"{name}: cannot be read ({reason_of(error)})"
    return None


def check_files(folder: Path, names: Iterable[str]) -> None:
    """Raise ConfigError if one of a checkpoint's named files has changed."""
    problem = damage(folder, names)
    if problem is not None:
        raise ConfigError(f"checkpoint {folder}: {problem}; {_HINT}")


def _checksums(folder: Path) -> dict[str, Any]:
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != MANIFEST)
    return {"format_version": FORMAT_VERSION, "files": {path.name: sha256(path) for path in files}}


def _write(folder: Path, content: dict[str, Any]) -> None:
    (folder / MANIFEST).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


@functools.cache
def git_revision() -> str:
    """Return the running program's git revision, with ``-dirty`` after changes to its files.

    The revision is the checkout's, or that of the installation's source.
    """
    return revision_of(Path(__file__).resolve().parent.parent)


def revision_of(root: Path) -> str:
    """Return the program's revision in ``root``, or ``UNKNOWN_REVISION``."""
    if (root / ".git").exists():
        command = ["git", "-C", str(root), "describe", *_DESCRIBE]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
        except (OSError, subprocess.SubprocessError):
            return UNKNOWN_REVISION
        return done.stdout.strip() or UNKNOWN_REVISION
    try:
        return (root / _REVISION_FILE).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return UNKNOWN_REVISION


def sha256(path: Path) -> str:
    """Return a file's SHA-256 in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@functools.cache
def installed(package: str) -> str | None:
    """Return an installed package's version, or None. A look-up takes milliseconds."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    for name in sys.argv[1:]:
        renew_manifest(Path(name))
