"""Small untrained gaits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from mqe.controllers.frozen_policy import PolicyDescription, write_description
from mqe.controllers.trot import GAIT_NAMES, GAIT_OBS_SIZE
from mqe.manifest import sha256


def small_gait(folder: Path, gain: float = 1.0, **changed: Any) -> PolicyDescription:
    """Write a gait of another learner: two layers with other parameter names.

    ``gain`` scales the actions.
    """
    tensors = {
        "hidden.weight": torch.randn(8, GAIT_OBS_SIZE),
        "hidden.bias": torch.randn(8),
        "out.weight": gain * torch.randn(12, 8),
        "out.bias": gain * torch.randn(12),
    }
    torch.save(tensors, folder / "weights.pt")
    settings = {
        "robots": "go1",
        "observations": {"gait": {"names": list(GAIT_NAMES)}},
        "weights": {"weights.pt": sha256(folder / "weights.pt")},
        "actors": ([["linear", "hidden", GAIT_OBS_SIZE, 8], ["tanh"], ["linear", "out", 8, 12]],),
    }
    description = PolicyDescription(**{**settings, **changed})
    write_description(folder, description)
    return description
