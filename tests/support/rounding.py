"""Bounds on the rounding of float32 numbers."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

_EPS = torch.finfo(torch.float32).eps
# Eight roundings of a number near 1: a few operations in float32, one after another.
FEW_STEPS = 8 * _EPS
# The last digit of a number with six decimals, as tests and robots' files write masses.
SIX_DECIMALS = 1e-6

_Module = TypeVar("_Module", bound=nn.Module)


def in_double(module: _Module) -> _Module:
    """Return a copy of a module in float64."""
    return copy.deepcopy(module).double()


def rounding(result: Tensor, exact: Tensor) -> float:
    """Return a bound for the difference of ``result`` from another float32 computation of it.

    ``exact`` is the result in float64. CPUs sum the terms of a product in different orders. The
    errors have one distribution, so none is expected beyond ten times the largest one here. Raises
    AssertionError if the errors are no rounding.
    """
    exact = exact.detach()
    size = max(1.0, float(exact.abs().max()))
    error = float((result.detach().double() - exact).abs().max())
    assert error < 1e3 * _EPS * size
    return max(10 * error, _EPS * size)
