"""Results of a decision as arrays on the host."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float32]


class HostCopy:
    """Copies tensors to the host, from a GPU in one transfer for which the host waits once.

    The transfer goes through page-locked memory, which is kept; arrays are the caller's.
    """

    def __init__(self) -> None:
        self._locked = torch.zeros(0)

    def __call__(self, *tensors: Tensor) -> list[Array]:
        """Return tensors as arrays of their shapes; False and True are 0 and 1."""
        numbers = [tensor.detach().to(torch.float32) for tensor in tensors]
        if numbers[0].is_cuda:
            numbers = self._transfer(numbers)
        return [np.array(each.cpu().numpy(), order="C") for each in numbers]

    def _transfer(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return tensors of a GPU as views of page-locked memory."""
        joined = torch.cat([tensor.flatten() for tensor in tensors])
        if self._locked.shape != joined.shape:
            self._locked = torch.empty(joined.shape, pin_memory=True)
        self._locked.copy_(joined, non_blocking=True)
        torch.cuda.current_stream(joined.device).synchronize()
        parts = self._locked.split([tensor.numel() for tensor in tensors])
        return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]
