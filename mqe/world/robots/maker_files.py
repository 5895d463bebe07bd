"""Robots' MJCF and URDF files, which may come from anywhere."""

import re
from pathlib import Path

import mujoco

from mqe.config import read_text

# MuJoCo builds a billion bodies from one line with these, and cannot be interrupted.
_MULTIPLIES = re.compile(r"<\s*(replicate|composite|flexcomp)\b")
_INCLUDES = re.compile(r"<\s*(?:include|model)\b[^>]*\bfile\s*=\s*[\"']([^\"'>]*)")


def read_spec(path: Path) -> mujoco.MjSpec:
    """Read an MJCF or URDF. Raise OSError or ValueError for another file, a huge file, a pipe, and
    an element that multiplies bodies.
    """
    _check(path, path.parent, set())
    return mujoco.MjSpec.from_file(str(path))


def _check(path: Path, folder: Path, checked: set[Path]) -> None:
    """Check a file, and the files in its ``include`` and ``model`` elements, from ``folder``."""
    checked.add(path)
    text = read_text(path)
    element = _MULTIPLIES.search(text)
    if element is not None:
        raise ValueError(f"the element {element[1]} multiplies bodies; write them out")
    for name in _INCLUDES.findall(text):
        if folder / name not in checked:
            _check(folder / name, folder, checked)
