"""MAPush's task, and a reader for its configurations (``task/*/config.py``) beside policies.

No file is executed. Three settings are read as text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

TASK_FILE = Path("task", "config.py")  # in a folder of MAPush's results
MAX_CHARACTERS = 2**18
NUM_NPCS = 2  # object and goal marker
NO_PITCH_LIMIT = 1.6  # [rad] MAPush's limit, which no pitch angle reaches
_FILES = {"SmallBox": "cuboid", "SuperSmallTblock": "tblock", "BigCylinder": "cylinder"}
_SETTING = re.compile(
    r"^\s+(num_agents|num_npcs|file_npc)\s*=\s*[\"']?([^\"'\s#]{1,200})", re.MULTILINE
)


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


def values_beside(module: Path) -> dict[str, str]:
    """Return ``num_agents``, ``num_npcs`` and ``file_npc`` from the task file near a policy, as
    text.

    The last assignment in the file counts, as for derived classes. Return {} without a file.
    """
    for folder in list(module.absolute().parents)[:3]:
        path = folder / TASK_FILE
        if path.is_file():
            with suppress(OSError), path.open(encoding="utf-8", errors="replace") as file:
                return dict(_SETTING.findall(file.read(MAX_CHARACTERS)))
    return {}


def object_of(values: Mapping[str, str]) -> str | None:
    """Return the pushed object in a task file's values. None without a known object."""
    return _FILES.get(Path(values.get("file_npc", "")).stem)
