"""MAPush's task, and a reader for its configurations (``task/*/config.py``) beside policies.

No file is executed. Literals and derived classes are read.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mqe.config import flatten, merge

TASK_FILE = Path("task", "config.py")  # in a folder of MAPush's results
MAX_BYTES = 2**18
MAX_VALUES = 10_000  # settings of a task file, of which MAPush's have some 100
NUM_NPCS = 2  # object and goal marker
NO_PITCH_LIMIT = 1.6  # [rad] MAPush's limit, which no pitch angle reaches
_FILES = {"SmallBox": "cuboid", "SuperSmallTblock": "tblock", "BigCylinder": "cylinder"}


def reference_task(object_name: str) -> dict[str, Any]:
    """Return the section ``task`` with MAPush's training settings, as far as they exist here."""
    return {
        "name": "go1push_mid",
        "object": object_name,
        "observation": "reference",
        "decision_period": 1,
        "action_scale": [0.5, 0.5, 0.5],
        "rewards": "published",
        "spawn": "independent",
        "inertia": "reference",
        "pitch_limit": NO_PITCH_LIMIT,
        "collapse_ends": False,
    }


def values_beside(module: Path) -> dict[str, Any]:
    """Return the values in the task file near a policy. {} without a readable one."""
    for folder in list(module.absolute().parents)[:3]:
        if (folder / TASK_FILE).is_file():
            return read_values(folder / TASK_FILE)
    return {}


def object_of(values: Mapping[str, Any]) -> str | None:
    """Return the pushed object in a task file's values. None without a known object."""
    name = values.get("asset.file_npc")
    return _FILES.get(Path(name).stem) if isinstance(name, str) else None


def read_values(path: Path) -> dict[str, Any]:
    """Return the literals in the file's first class without a derived class, by dotted names.

    Other expressions are None. Return {} for a file of another kind.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            return {}
        # ast reads bytes as Python does: with a byte-order mark, or another encoding's line.
        return flatten(_task_class(ast.parse(path.read_bytes())))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return {}


def _task_class(tree: ast.Module) -> dict[str, Any]:
    nodes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    base_names = set()
    classes: dict[str, Any] = {}
    for node in nodes:
        base_names |= {base.id for base in node.bases if isinstance(base, ast.Name)}
        classes[node.name] = _class(node, classes)
    return next((values for name, values in classes.items() if name not in base_names), {})


def _class(node: ast.ClassDef, classes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values in a class, in its inner classes and in its bases from ``classes``."""
    values: dict[str, Any] = {}
    for base in reversed(node.bases):
        values = merge(values, _inherited(base, classes))
    for statement in node.body:
        match statement:
            case ast.ClassDef(name=name):
                values[name] = _class(statement, classes)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                values[name] = None
                with suppress(ValueError, TypeError):
                    values[name] = ast.literal_eval(value)
    _check_size(values)
    return values


def _inherited(base: ast.expr, classes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values in the class ``A`` or ``A.inner`` of this file. {} for another class."""
    members = None
    match base:
        case ast.Name(id=name):
            members = classes.get(name)
        case ast.Attribute(value=outer, attr=name):
            members = _inherited(outer, classes).get(name)
    return members if isinstance(members, dict) else {}


def _check_size(values: dict[str, Any]) -> None:
    """Raise ValueError for more than ``MAX_VALUES`` nested values, since classes can multiply."""
    ahead = [values]
    for count, value in enumerate(ahead):
        if count > MAX_VALUES:
            raise ValueError("too many values")
        if isinstance(value, dict):
            ahead += value.values()
