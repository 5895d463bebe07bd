"""The command ``mapush play CHECKPOINT``: the viewer from ``mapush test``."""

from __future__ import annotations

from collections.abc import Sequence

from harl_mapush import test


def main(argv: Sequence[str] | None = None) -> int:
    """Show a team. Return the exit code."""
    return test.main(argv, "mapush play", has_calculator=False)
