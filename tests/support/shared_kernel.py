"""One kernel of MuJoCo Warp for contacts of all scenes."""

from __future__ import annotations

import sys
from typing import Any


def share_contact_kernel() -> None:
    """Let all scenes share the kernel for every pair of shapes.

    Warp translates the kernel again for every set of pairs, at more than a second each. Without
    mujoco_warp nothing happens.
    """
    module: Any = sys.modules.get("mujoco_warp._src.collision_primitive")
    if module is None:
        return
    make_kernel = module._primitive_narrowphase
    pairs = module._PRIMITIVE_COLLISIONS
    module._primitive_narrowphase = lambda *_: make_kernel(list(pairs), list(pairs.values()))
