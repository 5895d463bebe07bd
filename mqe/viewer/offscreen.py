"""Pictures without a display: a working OpenGL context and a renderer."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from types import TracebackType
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from mqe.config import ConfigError
from mqe.viewer.lines import Line

# In order of trial: a GPU's or Mesa's EGL, then software only.
BACKENDS = (
    "egl",
    "osmesa",
)
PACKAGES = {"egl": "libegl1", "osmesa": "libosmesa6"}  # Debian and Ubuntu
PROBE_TIMEOUT = 60.0  # [s]


@cache
def choose_backend() -> str:
    """Return the OpenGL backend: ``MUJOCO_GL`` if set, else the first working one.

    Each backend is tried in a separate process: a half installed backend can crash its process, and
    a failed one keeps the next from loading. Raise ConfigError, with the package to install, if no
    backend works.
    """
    requested = os.environ.get("MUJOCO_GL", "").lower().strip()
    if requested:
        if not _works(requested):
            raise ConfigError(
                f"cannot render: MUJOCO_GL={requested} does not work here; leave it unset, or name "
                f"one of {', '.join(BACKENDS)}"
            )
        return requested
    if not sys.platform.startswith("linux"):
        return "native"
    for backend in BACKENDS:
        if _works(backend):
            return backend
    raise ConfigError(
        "cannot render: neither EGL nor OSMesa works on this machine; install one, for instance "
        "with "
        f"`apt-get install {PACKAGES['egl']}` (or {PACKAGES['osmesa']})"
    )


class OffscreenRenderer:
    """Draws MjData into arrays."""

    def __init__(
        self, model: mujoco.MjModel, width: int, height: int, font_scale: int = 150
    ) -> None:
        """Create an OpenGL context and a scene with ``model``.

        ``font_scale`` [%] is relative to MuJoCo's smallest font.
        """
        self.model = model
        self.width = width
        self.height = height
        backend = choose_backend()
        self._gl = _make_context(backend, width, height)
        self._gl.make_current()
        self._scene = mujoco.MjvScene(model, maxgeom=2000)
        self._option = mujoco.MjvOption()
        try:
            self._context = mujoco.MjrContext(model, font_scale)
        except mujoco.FatalError as error:
            raise ConfigError(
                f"cannot render: MUJOCO_GL={backend} does not work here ({error}); leave it unset"
            ) from None
        mujoco.mjr_resizeOffscreen(width, height, self._context)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._context)
        self._viewport = mujoco.MjrRect(0, 0, width, height)
        self._pixels = np.empty((height, width, 3), dtype=np.uint8)

    def update(self, data: mujoco.MjData, camera: mujoco.MjvCamera) -> None:
        """Set the scene to ``data``, after its forward kinematics, seen through ``camera``."""
        everything = mujoco.mjtCatBit.mjCAT_ALL.value
        mujoco.mjv_updateScene(
            self.model, data, self._option, None, camera, everything, self._scene
        )

    def add(self, drawings: Sequence[Line]) -> None:
        """Draw ``drawings`` besides the model in the current scene, up to the scene's capacity."""
        scene = self._scene
        for drawing in drawings[: scene.maxgeom - scene.ngeom]:
            drawing.draw(scene.geoms[scene.ngeom])
            scene.ngeom += 1

    def draw(self, caption: str = "", outcome: str = "") -> NDArray[np.uint8]:
        """Return a picture (height, width, 3) of the current scene, with text in two corners."""
        self._gl.make_current()
        mujoco.mjr_render(self._viewport, self._scene, self._context)
        font = mujoco.mjtFont.mjFONT_NORMAL.value
        top_left = mujoco.mjtGridPos.mjGRID_TOPLEFT.value
        bottom_left = mujoco.mjtGridPos.mjGRID_BOTTOMLEFT.value
        for corner, text in ((top_left, caption), (bottom_left, outcome)):
            if text:
                mujoco.mjr_overlay(font, corner, self._viewport, text, "", self._context)
        mujoco.mjr_readPixels(self._pixels, None, self._viewport, self._context)
        return np.flipud(self._pixels).copy()

    def close(self) -> None:
        """Free the OpenGL context."""
        self._gl.make_current()
        self._context.free()
        self._gl.free()

    def __enter__(self) -> OffscreenRenderer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _works(backend: str) -> bool:
    module = f"mujoco.{backend}" if backend in BACKENDS else "mujoco"
    program = (
        f"import mujoco; from {module} import GLContext; context = GLContext(64, 64); "
        "context.make_current(); "
        "mujoco.MjrContext(mujoco.MjModel.from_xml_string('<mujoco/>'), 50)"
    )
    environment = os.environ | {"MUJOCO_GL": backend}
    environment.pop("PYOPENGL_PLATFORM", None)
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter and our own words
            [sys.executable, "-c", program],
            env=environment,
            capture_output=True,
            timeout=PROBE_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _make_context(backend: str, width: int, height: int) -> Any:
    if backend not in BACKENDS:
        try:
            # Whatever MuJoCo makes of MUJOCO_GL, or of this platform.
            return mujoco.GLContext(width, height)
        except (mujoco.FatalError, RuntimeError) as error:
            raise ConfigError(
                f"cannot render: MUJOCO_GL={backend} does not work here ({error}); leave it unset"
            ) from None
    os.environ["PYOPENGL_PLATFORM"] = backend
    try:
        return importlib.import_module(f"mujoco.{backend}").GLContext(width, height)
    except (ImportError, AttributeError, RuntimeError) as error:
        raise ConfigError(
            f"MUJOCO_GL={backend}: does not work here ({error}); install {PACKAGES[backend]}, or "
            "leave MUJOCO_GL unset"
        ) from None
