"""A simulator in a separate process, under another interpreter.

Both sides map the memory with the state, so a control step costs two short messages. Any
end of the process becomes a ``SimulatorError`` in one line, with the process's last output.
"""

import contextlib
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import mujoco
import numpy as np
import torch
from torch import Tensor

from mapush.extensions.isaacgym.worker.protocol import Channel, Sizes, layout, open_memory
from mqe.config import ConfigError, printable
from mqe.sim.simulator import SimulatorData, SimulatorError, SimulatorFeatures, Writable

_LOG = logging.getLogger(__name__)
_LAUNCHER = Path(__file__).parent / "worker" / "__main__.py"
# Waits are counted in ticks, so that the time of a stopped process does not count.
_TICK_S = 0.1
_TAIL = 4096  # bytes of the worker's last words that are kept
_LONGEST = 400  # characters of them that are shown
_PARTING_S = 0.5  # for the last words to arrive
_CLOSING_S = 5.0
TIMEOUTS = (60.0, 1800.0)  # [s] for a step, and for the start up to the end of the first step
_HOST = ("qpos", "qvel", "ctrl", "mocap_pos", "xfrc_applied", "sensordata", "failed")
_STATE = ("qpos", "qvel", "ctrl", "mocap_pos", "xfrc_applied", "memory")


class EngineSpec(NamedTuple):
    """A worker's module, and facts about it for the host."""

    name: str  # of the simulator, as errors call it
    file: Path
    dtype: str  # of the shared numbers
    # The engine's warm start and clock travel in the shared memory, for an exact continuation.
    remembers: bool
    # Words in the last output of a worker, and what a user can do about their cause.
    hints: tuple[tuple[str, str], ...] = ()
    # Words of its output when its buffers were too small and contacts were lost.
    overflows: tuple[str, ...] = ()


class ProcessSimulator(Writable):
    """N worlds in another process. On a GPU the tensors are copies of the shared memory, made
    before and after a step.

    The engine is made at once, and its worlds at the first step, when all fields are known.
    """

    def __init__(
        self,
        spec: EngineSpec,
        python: str | None,
        scene: dict[str, Any],
        model: mujoco.MjModel,
        num_envs: int,
        device: torch.device,
        timeouts: tuple[float, float] = TIMEOUTS,
    ) -> None:
        """Start the worker of ``spec`` under ``python`` (None: this interpreter).

        Raises SimulatorError, and ConfigError for an unusable interpreter.
        """
        self.model = model
        self.num_envs = num_envs
        self.device = device
        self._spec = spec
        self._step_timeout, self._start_timeout = timeouts
        self._python = _interpreter(python)
        self._is_started = False
        self._error: SimulatorError | None = None
        self._tail = b""
        self._has_overflowed = threading.Event()  # since the last step
        self._lost_contacts = False  # since the last ``grow_buffers``
        sizes = Sizes(
            num_envs,
            model.nq,
            model.nv,
            model.nu,
            model.nmocap,
            model.nbody,
            model.nsensordata,
            (model.nv + 1) * spec.remembers,
        )
        import fcntl  # not on Windows, where ``engines`` refuses this simulator

        # Freed with the last process that has it, however they end.
        memory = os.memfd_create("mapush", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(memory, layout(sizes, spec.dtype).itemsize)
            self._arrays = open_memory(memory, sizes, spec.dtype)
            # A worker that shortened the file would end this process by SIGBUS.
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            self._launch(memory)
        finally:
            os.close(memory)
        self._shared = {name: torch.from_numpy(array) for name, array in self._arrays.items()}
        self._is_copied = device.type != "cpu"
        self._tensors = {name: shared.to(device) for name, shared in self._shared.items()}
        # Quaternions are not sent: there are no obstacles in a simulator of its own process.
        mocap_quat = torch.eye(4, device=device)[0].repeat(num_envs, model.nmocap, 1)
        of_host = {name: self._tensors[name] for name in _HOST}
        self.data = SimulatorData(mocap_quat=mocap_quat, **of_host)
        self.data.qpos.copy_(torch.as_tensor(model.qpos0))
        try:
            self._ask({"do": "open", "sizes": sizes, "dtype": spec.dtype, "scene": scene})
        except BaseException:
            self.close()
            raise

    @property
    def features(self) -> SimulatorFeatures:
        """Optional abilities: growing buffers only. A message reports lost contacts."""
        return SimulatorFeatures(grow_buffers=self.grow_buffers)

    def step(self, decimation: int, ctrl: Tensor | None = None) -> None:
        """Advance every world by ``decimation`` physics steps, one row of ``ctrl`` for each."""
        if self._is_copied:
            for name in _STATE:
                self._shared[name].copy_(self._tensors[name])
        num_rows = 0
        if ctrl is not None:
            num_rows = decimation
            self._shared["targets"][:num_rows].copy_(ctrl)
        self._ask({"do": "step", "steps": decimation, "rows": num_rows})
        self._is_started = True
        if self._has_overflowed.is_set():
            # The engine does not tell in which worlds.
            self._has_overflowed.clear()
            self._lost_contacts = True
            self._arrays["failed"][:] = True
        if self._is_copied:
            for name in (*_STATE, "sensordata", "failed"):
                self._tensors[name].copy_(self._shared[name])

    def memory(self) -> dict[str, Tensor]:
        """Return the engine's memory."""
        return {"memory": self._tensors["memory"]}

    def set_field(self, name: str, values: Tensor) -> None:
        """Set a model field's values (N, ...) by world. Raise SimulatorError for a field unknown to
        the engine.
        """
        array = np.ascontiguousarray(values.cpu().numpy())
        message = {"do": "set_field", "name": name, "dtype": array.dtype.str, "shape": array.shape}
        self._ask(message, array.tobytes())

    def grow_buffers(self) -> str | None:
        """Return a message if contacts were lost, else None: the engine's buffers never grow."""
        if not self._lost_contacts:
            return None
        self._lost_contacts = False
        return (
            f"sim.name={self._spec.name} lost contacts, and all worlds were reset: its buffers are "
            "too small; start again with a smaller env.num_envs"
        )

    def close(self) -> None:
        """End the process, if necessary by force. A second call does nothing."""
        if self._process.poll() is None and self._error is None:
            with contextlib.suppress(SimulatorError):
                self._ask({"do": "close"})
        self._end()

    def _launch(self, memory: int) -> None:
        ours, theirs = socket.socketpair()
        fds = (theirs.fileno(), memory)
        # The other interpreter has its own packages.
        unset = ("PYTHONPATH", "PYTHONHOME")
        env = {key: value for key, value in os.environ.items() if key not in unset}
        # Isaac Gym looks for libpython there.
        libraries = str(Path(self._python).resolve().parent.parent / "lib")
        env["LD_LIBRARY_PATH"] = os.pathsep.join(
            filter(None, (libraries, env.get("LD_LIBRARY_PATH")))
        )
        command = [self._python, str(_LAUNCHER), str(self._spec.file), *map(str, fds)]
        try:
            self._process = subprocess.Popen(
                command,
                env=env,
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise SimulatorError(
                f"interpreter {self._python!r} cannot be started ({error.strerror})"
            ) from None
        finally:
            theirs.close()
        self._channel = Channel(ours.detach())
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        """Read the worker's output: a full pipe would stop the worker."""
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        while True:
            try:
                text = os.read(fd, 65536)
            except OSError:
                return
            if not text:
                return
            for words in map(str.encode, self._spec.overflows):
                # A part of the words may have come before.
                if words in self._tail[-(len(words) - 1) :] + text:
                    self._has_overflowed.set()
            self._tail = (self._tail + text)[-_TAIL:]
            _LOG.debug("%s: %s", self._spec.name, text.decode(errors="replace").rstrip())

    def _ask(self, message: dict[str, Any], payload: bytes = b"") -> None:
        """Send a message and wait for its answer. Raise SimulatorError without one."""
        if self._error is not None:
            raise self._error
        task = message["do"]
        timeout = self._step_timeout
        if task == "close":
            timeout = _CLOSING_S
        elif not self._is_started:
            task = "start"
            timeout = self._start_timeout
        try:
            self._channel.send(message)
            if payload:
                self._channel.send_bytes(payload)
            self._wait(timeout)
            answer = self._channel.recv()
        except TimeoutError:
            self._fail(f"has not answered for {timeout:g} s in {task!r} and was ended")
        except (EOFError, OSError, ValueError):
            self._fail(self._how_it_ended(task))
        if "refused" in answer:
            self._fail(f"refuses: {answer['refused']}", has_words=False)
        if "error" in answer:
            self._fail(f"failed in {task!r}: {answer['error']}", has_words=False)

    def _wait(self, timeout: float) -> None:
        """Wait for an answer. Raise TimeoutError after ``timeout`` [s], EOFError if the worker has
        gone.
        """
        for _ in range(max(1, round(timeout / _TICK_S))):
            if self._channel.poll(_TICK_S):
                return
            if self._process.poll() is not None:  # something that it started may hold the pipe
                raise EOFError
        raise TimeoutError

    def _how_it_ended(self, task: str) -> str:
        try:
            code = self._process.wait(_PARTING_S)
        except subprocess.TimeoutExpired:
            return f"sent no answer in {task!r}"
        if code >= 0:
            return f"ended in {task!r} with exit code {code}"
        name = signal.Signals(-code).name
        reason = ", as the system does when memory runs out" if name == "SIGKILL" else ""
        return f"was ended by {name} in {task!r}{reason}"

    def _fail(self, what: str, has_words: bool = True) -> NoReturn:
        self._end()
        said = self._tail.decode(errors="replace")
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        words = " | ".join(lines[-3:])[-_LONGEST:] if has_words else ""
        hint = next((hint for sign, hint in self._spec.hints if sign in said or sign in what), "")
        line = f"sim.name={self._spec.name}: its process ({self._python}) {what}"
        line += f"; its last words: {words}" if words else ""
        self._error = SimulatorError(printable(line + (f"; {hint}" if hint else "")))
        raise self._error from None

    def _end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        self._listener.join(_PARTING_S)
        self._channel.close()
        if self._process.stdout is not None and not self._listener.is_alive():
            self._process.stdout.close()


def _interpreter(python: str | None) -> str:
    path = shutil.which(os.path.expanduser(python)) if python is not None else sys.executable
    if path is None:
        raise ConfigError(
            f"interpreter {python!r}: no program that can be started; name another one, for "
            "example /opt/py38/bin/python"
        )
    return path
