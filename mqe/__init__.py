"""The simulated world: simulators, scene, robots, tasks, environment, viewers."""

import os

# OpenMP threads that wait by spinning steal the cores from the simulator's threads: ten times
# slower on a busy laptop.
# OpenMP reads this once, when torch is loaded, so it has to stand before that.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def _check_graphics() -> None:
    """Raise a clear ImportError if MuJoCo cannot be imported with the present ``MUJOCO_GL``.

    MuJoCo reads the variable at import, with or without drawing.
    """
    backend = os.environ.get("MUJOCO_GL")
    if not backend:
        return
    try:
        import mujoco as mujoco
    except Exception as error:  # of many types, for OpenGL's loaders fail in many ways
        if getattr(error, "name", None) == "mujoco":  # it is not installed at all
            raise
        reason = " ".join(str(error).split())
        raise ImportError(
            f"MUJOCO_GL={backend}: MuJoCo cannot be imported with it ({type(error).__name__}: "
            f"{reason}); unset it, "
            "or install the library (Debian and Ubuntu: libegl1 for egl, libosmesa6 for osmesa)"
        ) from error


_check_graphics()
