"""Results of a decision as arrays on the host."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float32]


def to_host(*tensors: Tensor) -> list[Array]:
    """Return tensors as arrays of their shapes, for the caller to keep. Booleans are 0 and 1.

    From a GPU all tensors are copied in one transfer, with one wait, into page-locked memory.
    PyTorch reuses the memory once no array is left.
    """
    numbers = [tensor.detach().to(torch.float32) for tensor in tensors]
    if not numbers[0].is_cuda:
        return [
            tensor.cpu().clone(memory_format=torch.contiguous_format).numpy() for tensor in numbers
        ]
    joined = torch.cat([tensor.flatten() for tensor in numbers])
    locked = torch.empty(joined.shape, pin_memory=True)
    locked.copy_(joined, non_blocking=True)
    torch.cuda.current_stream(joined.device).synchronize()
    parts = locked.numpy()
    ends = np.cumsum([tensor.numel() for tensor in numbers])
    return [
        part.reshape(tensor.shape)
        for part, tensor in zip(np.split(parts, ends[:-1]), numbers, strict=True)
    ]
