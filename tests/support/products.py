"""Kinds of CPUs, by the rows of their matrix products."""

from __future__ import annotations

import torch
from torch.nn import functional

# Numbers in and out of the layers in the tests' teams and gaits.
LAYERS = ((6, 16), (16, 16), (16, 3), (45, 24), (70, 512), (512, 256), (256, 128), (128, 12))


def ignore_other_rows(*counts: int) -> bool:
    """Return whether rows of a product with ``counts`` rows are those of one with twice as many.

    They are with AVX-512, and with AMD's AVX2. Intel's AVX2 multiplies six rows at once, and the
    remainder in another order.
    """
    generator = torch.Generator().manual_seed(0)
    for num_in, num_out in LAYERS:
        weight = torch.randn(num_out, num_in, generator=generator)
        bias = torch.randn(num_out, generator=generator)
        for count in counts:
            rows = torch.randn(2 * count, num_in, generator=generator)
            whole = functional.linear(rows, weight, bias)
            parts = [functional.linear(part, weight, bias) for part in rows.split(count)]
            if not torch.equal(torch.cat(parts), whole):
                return False
    return True
