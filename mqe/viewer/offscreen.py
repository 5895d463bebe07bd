"""Pictures without a display: a working OpenGL backend, and MuJoCo's renderer for a scene."""

import importlib
import os
import subprocess
import sys
from functools import cache

import mujoco
import numpy as np
from mujoco.rendering.classic import gl_context
from numpy.typing import NDArray

from mqe.config import ConfigError
from mqe.viewer.lines import planned_way
from mqe.viewer.looks import shown_model
from mqe.viewer.recording import ShownState
from mqe.world.scene import Scene

# In order of trial, with the packages of Debian and Ubuntu: a GPU's or Mesa's EGL, then software.
BACKENDS = {"egl": "libegl1", "osmesa": "libosmesa6"}
PROBE_TIMEOUT = 60.0  # [s]
_PROBE = "import mujoco; mujoco.Renderer(mujoco.MjModel.from_xml_string('<mujoco/>'), 64, 64)"


@cache
def choose_backend() -> str:
    """Return the OpenGL backend: ``MUJOCO_GL`` if set, else the first working one.

    Each backend is tried in a separate process: a half installed backend can crash its process.
    Raise ConfigError, with the package to install, if no backend works.
    """
    requested = os.environ.get("MUJOCO_GL", "").lower().strip()
    if not requested and not sys.platform.startswith("linux"):
        return "native"
    for backend in [requested] if requested else BACKENDS:
        if _works(backend):
            return backend
    if requested:
        raise ConfigError(
            f"cannot render: MUJOCO_GL={requested} does not work here; leave it unset, or name "
            f"one of {', '.join(BACKENDS)}"
        )
    raise ConfigError(
        "cannot render: neither EGL nor OSMesa works on this machine; install one, for instance "
        f"with `apt-get install {BACKENDS['egl']}` (or {BACKENDS['osmesa']})"
    )


class SceneRenderer:
    """Draws a scene's states into arrays."""

    def __init__(self, scene: Scene, size: tuple[int, int]) -> None:
        """Open a renderer with ``size`` (width, height) [pixels].

        Raise ConfigError if this machine cannot render.
        """
        backend = choose_backend()
        if backend in BACKENDS:
            # MuJoCo has chosen its backend at import, by default one that needs a display.
            os.environ["PYOPENGL_PLATFORM"] = backend
            context = importlib.import_module(f"mujoco.{backend}").GLContext
            gl_context.GLContext = context  # pyright: ignore[reportAttributeAccessIssue]
        self._model = shown_model(scene)
        self._data = mujoco.MjData(self._model)
        width, height = size
        self._model.vis.global_.offwidth = width
        self._model.vis.global_.offheight = height
        try:
            self._renderer = mujoco.Renderer(self._model, height, width)
        except (ImportError, AttributeError, RuntimeError, mujoco.FatalError) as error:
            raise ConfigError(f"cannot render with {backend}: {error}") from None

    def draw(self, state: ShownState, camera: mujoco.MjvCamera) -> NDArray[np.uint8]:
        """Return a picture (height, width, 3) of ``state`` through ``camera``."""
        data = self._data
        data.qpos[:] = state.qpos
        data.mocap_pos[:] = state.mocap_pos
        data.mocap_quat[:] = state.mocap_quat
        mujoco.mj_kinematics(self._model, data)
        mujoco.mj_comPos(self._model, data)
        mujoco.mj_camlight(self._model, data)
        self._renderer.update_scene(data, camera)
        scene = self._renderer.scene
        if state.way is not None:
            for line in planned_way([data.body("object").xpos, *state.way]):
                line.draw(scene.geoms[scene.ngeom])
                scene.ngeom += 1
        return self._renderer.render()

    def close(self) -> None:
        """Free the OpenGL context."""
        self._renderer.close()


def _works(backend: str) -> bool:
    environment = os.environ | {"MUJOCO_GL": backend}
    environment.pop("PYOPENGL_PLATFORM", None)
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE],
            env=environment,
            capture_output=True,
            timeout=PROBE_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
