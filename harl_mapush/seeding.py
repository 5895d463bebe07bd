"""One seed for every generator that a run draws from."""

from __future__ import annotations

import random

import numpy
import torch


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch (all devices): network initialisation draws from torch's
    generator.
    """
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)
