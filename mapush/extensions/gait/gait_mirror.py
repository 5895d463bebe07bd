"""A gait in a mirror between left and right."""

import torch

from mqe.controllers.trot import GAIT_TERMS
from mqe.vec_env import Image
from mqe.world.robots import NUM_JOINTS
from mqe.world.robots.robot import NUM_LEGS

SWAPPED_LEGS = (1, 0, 3, 2)
_JOINT_SIGNS = (-1.0, 1.0, 1.0) * NUM_LEGS  # of hip, thigh, calf
_SWAPPED_JOINTS = tuple(leg * 3 + joint for leg in SWAPPED_LEGS for joint in range(3))
_SIGNS = {
    "gravity": (1.0, -1.0, 1.0),
    "turn_rates": (-1.0, 1.0, -1.0),
    "command": (1.0, -1.0, -1.0),
    "clock": (-1.0, -1.0),  # Left and right swap their turns, half a cycle on.
}


def _mirror_index() -> tuple[int, ...]:
    """Return the source index of each component in a mirrored observation."""
    index: list[int] = []
    for term in GAIT_TERMS:
        order = _SWAPPED_JOINTS if term.size == NUM_JOINTS else range(term.size)
        start = len(index)
        index += [start + number for number in order]
    return tuple(index)


GAIT_MIRROR_INDEX = _mirror_index()
GAIT_MIRROR_SIGNS = tuple(
    sign for term in GAIT_TERMS for sign in _SIGNS.get(term.name, _JOINT_SIGNS)
)


def mirrored_action(device: torch.device) -> Image:
    """Return a gait action's mirror image, left and right swapped."""
    return Image.of(_SWAPPED_JOINTS, _JOINT_SIGNS, device)
