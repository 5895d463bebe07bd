"""How many threads torch computes with."""

from __future__ import annotations

import torch

from mqe.cores import num_cores


def limit_threads(asked: int | None = None) -> None:
    """Make torch use as many threads as ``asked`` for, or no more than the cores that this process
    may use.

    By itself torch takes one for each core, also where a CPU limit leaves the process only a part
    of their time.
    """
    if asked is not None or torch.get_num_threads() > num_cores():
        torch.set_num_threads(asked or num_cores())
