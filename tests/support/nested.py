"""Leaves of nested states."""

from __future__ import annotations

from typing import Any


def leaves(values: Any, path: str = "") -> dict[str, Any]:
    """Return the leaves of nested dicts, lists and tuples by their paths."""
    if not isinstance(values, (dict, list, tuple)):
        return {path: values}
    pairs = values.items() if isinstance(values, dict) else enumerate(values)
    tensors: dict[str, Any] = {}
    for name, value in pairs:
        tensors |= leaves(value, f"{path}/{name}")
    return tensors
