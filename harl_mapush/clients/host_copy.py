"""Results of a decision as arrays on the host."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float32]


def to_host(*tensors: Tensor) -> list[Array]:
    """Return tensors as arrays of their shapes, for the caller to keep. Booleans are 0 and 1.

    All tensors are copied in one transfer, from a GPU into page-locked memory. PyTorch reuses the
    memory once no array is left.
    """
    joined = torch.cat([tensor.detach().to(torch.float32).flatten() for tensor in tensors])
    host = torch.empty(joined.shape, pin_memory=joined.is_cuda)
    host.copy_(joined)
    parts = host.split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape).numpy() for part, tensor in zip(parts, tensors, strict=True)]
