"""Position of the shadow light, without torch and the scene."""

from __future__ import annotations

import mujoco

LIGHT_DIR = (0.42, 0.30, -0.86)
# [m] around what the camera looks at, within which things cast shadows. Near its edge the shadow
# map shades surfaces in dots, so that it must reach well beyond the object.
SHADOW_HALF_SIZE = 7.5
_HEIGHT = 6.0  # [m] of the light above it


def aim_light(data: mujoco.MjData, lookat: tuple[float, float, float]) -> None:
    """Place the first light above ``lookat`` [m], with shadows ``SHADOW_HALF_SIZE`` around it."""
    scale = _HEIGHT / -LIGHT_DIR[2]
    data.light_xpos[0] = [at - scale * along for at, along in zip(lookat, LIGHT_DIR, strict=True)]
