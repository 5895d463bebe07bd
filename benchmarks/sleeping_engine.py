"""An engine that takes its time and moves every number as a real one would: for ``bridge.py``."""

import time


class Sleeper:
    """Worlds in which nothing happens, slowly."""

    versions = {"sleeper": "1"}  # noqa: RUF012

    def __init__(self, scene, sizes, views):
        self._seconds = scene["seconds"]
        self._is_busy = scene["is_busy"]
        self._views = views
        self._state = {
            name: views[name].copy() for name in ("qpos", "qvel", "targets", "sensordata")
        }

    def set_field(self, name, values):
        """Ignore it."""

    def step(self, num_steps, num_rows):
        """Read what the host wrote, take the time of a step, and write all of it back."""
        for name in ("qpos", "qvel"):
            self._state[name][:] = self._views[name]
        self._state["targets"][:num_rows] = self._views["targets"][:num_rows]
        start = time.perf_counter()
        while self._is_busy and time.perf_counter() - start < self._seconds:
            pass
        if not self._is_busy:
            time.sleep(self._seconds)
        took = time.perf_counter() - start
        self._views["ctrl"][:] = self._state["targets"][num_rows - 1]
        for name in ("qpos", "qvel", "sensordata"):
            self._views[name][:] = self._state[name]
        self._views["sensordata"][0, :2] = took, time.process_time()

    def close(self):
        """Do nothing: this engine holds no resource."""


def make_engine(scene, sizes, views):
    """Make one."""
    return Sleeper(scene, sizes, views)
