"""Pictures for films: tiles drawn by MuJoCo, in this process or in one process per core.

This module is also these processes' program, ``python -m mqe.viewer.render_pool``, without torch
and the simulator. Threads would wait for one another: MuJoCo keeps Python's lock while it renders.
"""

from __future__ import annotations

import math
import os
import pickle
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import mujoco
import numpy as np

from mqe.config import ConfigError
from mqe.cores import num_cores
from mqe.viewer.light import aim_light
from mqe.viewer.lines import planned_way
from mqe.viewer.offscreen import OffscreenRenderer, choose_backend

MOST_WORKERS = 16
_WORTHWHILE = 64_000_000  # bytes of pictures with a drawing time equal to a process's start
SMOOTHING = 1.5  # pixels drawn for each one of the film, along either side
_QUEUE = 2  # pictures sent to a process before its first is taken
_FONT_SCALES = (50, 100, 150, 200, 250, 300)
_FONT_HEIGHT = 405  # pixels of a tile with captions at scale 100
_LEAST_SHADOWS = 512  # pixels of a tile's shadows, along either side
_GAP = 2  # pixels around each of several tiles
_EMPTY = 250  # the gray of a tile without an episode
_ENDED = (
    "cannot render: a process that draws pictures has ended; make memory free, or ask for "
    "smaller ones (--size)"
)


class FrameSpec(NamedTuple):
    """Size of a film's pictures [pixels], and their tiles."""

    width: int
    height: int
    columns: int = 1
    rows: int = 1

    @property
    def aspect(self) -> float:
        """Return a tile's width over its height."""
        return self.width * self.rows / (self.height * self.columns)

    @property
    def drawn_tile(self) -> tuple[int, int]:
        """Return a drawn tile's width and height, both even."""
        width = self.width // self.columns
        height = self.height // self.rows
        return 2 * math.ceil(width * SMOOTHING / 2), 2 * math.ceil(height * SMOOTHING / 2)

    @property
    def drawn_size(self) -> tuple[int, int]:
        """Return a drawn picture's width and height."""
        width, height = self.drawn_tile
        return self.columns * width, self.rows * height


class Tile(NamedTuple):
    """One state of a world, with its camera view and its caption."""

    qpos: bytes  # (nq,) float64
    mocap_pos: bytes  # (nmocap, 3) float64
    mocap_quat: bytes  # (nmocap, 4) float64; empty: as in the model
    lookat: tuple[float, float, float]  # [m]
    distance: float  # [m]
    azimuth: float  # [deg]
    elevation: float  # [deg]
    caption: str = ""
    outcome: str = ""
    way: bytes = b""  # (P, 2) [m] float64, the planned way of the object; empty: none
    model: int = 0  # among the models of the film


Picture = Sequence[Tile | None]  # row by row from the top left; None: nothing there


class Renderer:
    """Draws pictures in this process."""

    def __init__(self, models: Sequence[mujoco.MjModel], frame: FrameSpec) -> None:
        """Make an OpenGL context for each model. Raise ConfigError if that is impossible."""
        self._columns = frame.columns
        self._gap = _GAP if frame.columns * frame.rows > 1 else 0
        self._painters = [_Painter(model, frame) for model in models]
        self._tile_width, self._tile_height = frame.drawn_tile
        width, height = frame.drawn_size
        self._pixels = np.full((height, width, 3), _EMPTY, dtype=np.uint8)
        self._drawn: list[Tile | None] = [None] * (frame.columns * frame.rows)

    def draw(self, picture: Picture) -> bytes:
        """Return a picture's pixels. Unchanged tiles are not drawn again."""
        gap = self._gap
        for i, tile in enumerate(picture):
            if tile == self._drawn[i]:
                continue
            self._drawn[i] = tile
            top = i // self._columns * self._tile_height
            left = i % self._columns * self._tile_width
            rows = slice(top + gap, top + self._tile_height - gap)
            columns = slice(left + gap, left + self._tile_width - gap)
            if tile is None:
                self._pixels[rows, columns] = _EMPTY
            else:
                pixels = self._painters[tile.model].paint(tile)
                end = self._tile_height - gap
                self._pixels[rows, columns] = pixels[gap:end, gap : self._tile_width - gap]
        return self._pixels.tobytes()

    def close(self) -> None:
        """Free the OpenGL contexts."""
        for painter in self._painters:
            painter.renderer.close()


class _Painter:
    """Draws one model's tiles."""

    def __init__(self, model: mujoco.MjModel, frame: FrameSpec) -> None:
        self._model = model
        self._data = mujoco.MjData(model)
        self._camera = mujoco.MjvCamera()
        shadows = model.vis.quality.shadowsize // max(frame.columns, frame.rows)
        model.vis.quality.shadowsize = max(shadows, _LEAST_SHADOWS)
        width, height = frame.drawn_tile
        largest = 100 * height / _FONT_HEIGHT
        scale = max((scale for scale in _FONT_SCALES if scale <= largest), default=_FONT_SCALES[0])
        self.renderer = OffscreenRenderer(model, width, height, scale)

    def paint(self, tile: Tile) -> np.ndarray[Any, Any]:
        """Return a tile's picture (height, width, 3)."""
        model = self._model
        data = self._data
        camera = self._camera
        data.qpos[:] = memoryview(tile.qpos).cast("d")
        data.mocap_pos.flat[:] = memoryview(tile.mocap_pos).cast("d")
        if tile.mocap_quat:
            data.mocap_quat.flat[:] = memoryview(tile.mocap_quat).cast("d")
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_camlight(model, data)
        aim_light(data, tile.lookat)
        camera.lookat[:] = tile.lookat
        camera.distance = tile.distance
        camera.azimuth = tile.azimuth
        camera.elevation = tile.elevation
        self.renderer.update(data, camera)
        if tile.way:
            way = np.frombuffer(tile.way).reshape(-1, 2)
            self.renderer.add(planned_way([data.body("object").xpos, *way]))
        return self.renderer.draw(tile.caption, tile.outcome)


class RenderPool:
    """Draws pictures in their order, by several processes if there are many."""

    def __init__(
        self, models: Sequence[mujoco.MjModel], frame: FrameSpec, num_pictures: int
    ) -> None:
        """Start processes for drawing ``models``, none for few pictures.

        Raise ConfigError if this machine cannot draw.
        """
        width, height = frame.drawn_size
        backend = choose_backend()
        number = min(num_cores(), MOST_WORKERS, num_pictures * width * height * 3 // _WORTHWHILE)
        self._workers: list[subprocess.Popen[bytes]] = []
        self._renderer = Renderer(models, frame) if number < 2 else None
        if self._renderer is not None:
            return
        # Mesa's threads would wait for one another.
        environment = os.environ | {"LP_NUM_THREADS": "0"}
        environment |= {} if backend == "native" else {"MUJOCO_GL": backend}
        roots = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(roots)
        command = [sys.executable, "-m", "mqe.viewer.render_pool"]
        try:
            for _ in range(number):
                worker = subprocess.Popen(
                    command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
                self._workers.append(worker)
            for worker in self._workers:
                _send(worker, (list(models), frame))
            for worker in self._workers:
                problem = _take(worker)
                if problem:
                    raise ConfigError(problem)
        except OSError:
            self.close()
            raise ConfigError(_ENDED) from None
        except ConfigError:
            self.close()
            raise

    def draw(self, pictures: Iterable[Picture]) -> Iterator[bytes]:
        """Yield every picture's pixels (height, width, 3) at the drawn size."""
        if self._renderer is not None:
            yield from map(self._renderer.draw, pictures)
            return
        busy: deque[subprocess.Popen[bytes]] = deque()
        for i, picture in enumerate(pictures):
            worker = self._workers[i % len(self._workers)]
            _send(worker, picture)
            busy.append(worker)
            if len(busy) >= _QUEUE * len(self._workers):
                yield _take(busy.popleft())
        while busy:
            yield _take(busy.popleft())

    def close(self) -> None:
        """End the processes, or free the OpenGL contexts."""
        if self._renderer is not None:
            self._renderer.close()
        for worker in self._workers:
            worker.kill()
            worker.communicate()

    def __enter__(self) -> RenderPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _send(worker: subprocess.Popen[bytes], message: object) -> None:
    assert worker.stdin is not None
    try:
        pickle.dump(message, worker.stdin)
        worker.stdin.flush()
    except BrokenPipeError:
        raise ConfigError(_ENDED) from None


def _take(worker: subprocess.Popen[bytes]) -> Any:
    """Return a process's next answer. Raise ConfigError if it has ended."""
    assert worker.stdout is not None
    try:
        return pickle.load(worker.stdout)
    except (EOFError, pickle.UnpicklingError):
        raise ConfigError(_ENDED) from None


def _work() -> None:
    """Draw pictures until standard input ends.

    The first answer is an error's text, empty for none.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the film's process ends its workers
    orders = sys.stdin.buffer
    results = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # drivers may print
    models, frame = pickle.load(orders)

    def answer(message: object) -> None:
        pickle.dump(message, results)
        results.flush()

    try:
        renderer = Renderer(models, frame)
    except ConfigError as error:
        answer(str(error))
        return
    answer("")
    with suppress(EOFError):
        while True:
            answer(renderer.draw(pickle.load(orders)))


if __name__ == "__main__":
    _work()
