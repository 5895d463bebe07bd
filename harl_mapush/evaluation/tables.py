"""Files of a table of checkpoints, by the ending of their name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harl_mapush.evaluation.measuring import as_csv
from mqe.extensions import Registry

# Takes the task's name and rows of metrics, and returns the file's text. Raises ConfigError for a
# task that the file cannot describe.
Table = Callable[[str, Sequence[Mapping[str, Any]]], str]
TABLES: Registry[Table] = Registry("kind of table")


def table_for(file: str) -> Table:
    """Return the kind of table that the ending of ``file`` names; CSV for an unknown ending."""
    return TABLES.get(file.rpartition(".")[2], TABLES["csv"])


TABLES.register("csv", lambda task_name, rows: as_csv(rows))
