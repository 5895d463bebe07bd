"""An engine with faults from its scene, with standard library and numpy alone."""

import contextlib
import ctypes
import os
import sys
import time

if os.environ.get("FAULT") == "import":
    import a_package_that_nobody_has  # noqa: F401  # pyright: ignore[reportMissingImports]


class Faulty:
    def __init__(self, scene, sizes, views):
        self._scene = scene
        self._views = views
        self._num_steps = 0
        self._fault("make")

    def _fault(self, when):
        kind = self._scene.get(when)
        if kind == "raise":
            raise ValueError("the ground\nis not there")
        if kind == "exit":
            sys.stderr.write("PhysX: fail to allocate memory 536870912 bytes\n")
            sys.stderr.flush()
            os._exit(3)
        if kind == "system exit":
            sys.exit(5)
        if kind == "kill":
            os.kill(os.getpid(), 9)
        if kind == "segfault":
            ctypes.string_at(0)
        if kind == "hang":
            time.sleep(600)
        if kind == "hang in C":
            ctypes.PyDLL(None).sleep(600)  # holds the interpreter's lock
        if kind == "garbage":
            for fd in range(3, 256):  # the socket is among them
                with contextlib.suppress(OSError):
                    os.write(fd, b"[Info] a banner of some library\n")
            time.sleep(600)
        if kind == "chatter":
            sys.stdout.write("{'ok': 'a line on stdout'}\n" * 4000)
            sys.stdout.flush()
            os.write(1, b"MPSH" * 50000)  # straight to the descriptor, as compiled code does
        if kind == "overflow":
            for part in (b"PhysX: Contact buffer over", b"flow detected, please increase it\n"):
                os.write(2, part)
                time.sleep(0.05)
        if kind == "truncate":
            os.ftruncate(int(sys.argv[3]), 0)
        if kind == "sleep":
            time.sleep(self._scene["seconds"])

    def set_field(self, name, values):
        self._views["qpos"][:, 0] = values.reshape(len(values), -1)[:, 0]
        self._fault("set_field")

    def step(self, num_steps, num_rows):
        self._views["qpos"] += 1.0
        self._views["failed"][:] = False
        if num_rows:
            self._views["ctrl"][:] = self._views["targets"][num_rows - 1]
        self._num_steps += 1
        self._fault("step" if self._num_steps == 1 else "second_step")

    def close(self):
        self._fault("close")


def make_engine(scene, sizes, views):
    return Faulty(scene, sizes, views)
