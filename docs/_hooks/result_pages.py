"""Result pages, generated from ``benchmarks/results/``."""

from __future__ import annotations


def pages() -> dict[str, str]:
    """Return the text of every page by its path."""
    return {}
