"""Rows of metrics as text."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from mqe.tasks.episode_report import format_metric


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows of metrics as CSV, with two columns for an interval and without ``per_seed``."""
    flat = []
    for row in rows:
        cells: dict[str, Any] = {}
        for name, value in row.items():
            if isinstance(value, list) and len(value) == 2:
                cells[f"{name}_low"] = value[0]
                cells[f"{name}_high"] = value[1]
            elif isinstance(value, list):
                cells[name] = format_metric(value)
            elif not isinstance(value, dict):
                cells[name] = value
        flat.append(cells)

    text = io.StringIO()
    columns = list(dict.fromkeys(name for cells in flat for name in cells))
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()
