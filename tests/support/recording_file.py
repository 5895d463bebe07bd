"""Write a recording of upstream HARL as a small file."""

from __future__ import annotations

import io
import lzma
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

FOUR_BYTE_NUMBERS = {
    "id": lzma.FILTER_LZMA2,
    "preset": 9 | lzma.PRESET_EXTREME,
    "lc": 0,
    "lp": 2,
    "pb": 2,
}


def write(path: Path, record: dict[str, Any]) -> None:
    """Write ``record`` as a compressed file of ``torch.save``."""
    buffer = io.BytesIO()
    torch.save(joined(record), buffer)
    path.write_bytes(lzma.compress(buffer.getvalue(), filters=[FOUR_BYTE_NUMBERS]))


def joined(record: dict[str, Any]) -> dict[str, Any]:
    """Return ``record`` with all tensors of a type in one memory.

    ``torch.save`` writes a memory once. Its header for each of hundreds of small memories would
    take more bytes than their numbers.
    """
    by_type: dict[torch.dtype, list[Tensor]] = {}
    for tensor in _tensors(record):
        by_type.setdefault(tensor.dtype, []).append(tensor.flatten())
    rest = {dtype: torch.cat(tensors) for dtype, tensors in by_type.items()}

    def moved(value: Any) -> Any:
        if isinstance(value, Tensor):
            memory = rest[value.dtype]
            rest[value.dtype] = memory[value.numel() :]
            return memory[: value.numel()].view(value.shape)
        if isinstance(value, dict):
            return {key: moved(item) for key, item in value.items()}
        if isinstance(value, list):
            return [moved(item) for item in value]
        return value

    return moved(record)


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [tensor for item in items for tensor in _tensors(item)]
