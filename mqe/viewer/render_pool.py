"""Render processes, one per core, that draw the pictures of a film side by side.

This module is also their program: ``python -m mqe.viewer.render_pool``. It needs neither torch nor
the simulator.
"""

from __future__ import annotations

import math
import os
import pickle
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import mujoco
import numpy as np

from mqe.config import ConfigError
from mqe.cores import num_cores
from mqe.viewer.light import aim_light
from mqe.viewer.lines import planned_way
from mqe.viewer.offscreen import OffscreenRenderer, choose_backend

MOST_WORKERS = 16
_WORTHWHILE = 64_000_000  # bytes of pictures that take as long to draw as a process to start
SMOOTHING = 1.5  # pixels drawn for each one of the film, along either side
_QUEUE = 2  # pictures that a worker is asked for before the first is taken from it
_FONT_SCALES = (50, 100, 150, 200, 250, 300)
_FONT_HEIGHT = 405  # pixels of a tile whose captions have a scale of 100
_LEAST_SHADOWS = 512  # pixels of a tile's shadows, along either side
_GAP = 2  # pixels around each of several tiles
_EMPTY = 0.98  # the gray of a tile without an episode


class FrameSpec(NamedTuple):
    """The size of a film's pictures [pixels], and how many tiles they have."""

    width: int
    height: int
    columns: int = 1
    rows: int = 1

    @property
    def aspect(self) -> float:
        """Return how many times as wide as high a tile is."""
        return self.width * self.rows / (self.height * self.columns)

    @property
    def drawn_size(self) -> tuple[int, int]:
        """Return width and height that are drawn for one picture, both even."""
        return 2 * math.ceil(self.width * SMOOTHING / 2), 2 * math.ceil(self.height * SMOOTHING / 2)

    @property
    def tile(self) -> FrameSpec:
        """Return the size of one tile."""
        return FrameSpec(self.width // self.columns, self.height // self.rows)


class Mosaic:
    """Joins separately drawn tiles to one picture."""

    def __init__(self, frame: FrameSpec) -> None:
        """Draw nothing where ``frame`` has more tiles than are joined."""
        self._columns = frame.columns
        width, height = frame.tile.drawn_size
        self._tile_shape = (height, width, 3)
        self.drawn_size = (frame.columns * width, frame.rows * height)
        shape = (frame.rows * height, frame.columns * width, 3)
        self._pixels = np.full(shape, round(255 * _EMPTY), dtype=np.uint8)

    def join(self, tiles: Sequence[bytes]) -> bytes:
        """Return the pixels of a picture, given those of its tiles from the top left."""
        height, width, _ = self._tile_shape
        for i, drawn in enumerate(tiles):
            top = i // self._columns * height + _GAP
            left = i % self._columns * width + _GAP
            tile = np.frombuffer(drawn, dtype=np.uint8).reshape(self._tile_shape)
            inner = tile[_GAP:-_GAP, _GAP:-_GAP]
            self._pixels[top : top + inner.shape[0], left : left + inner.shape[1]] = inner
        return self._pixels.tobytes()


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


Picture = Sequence[Tile | None]  # row by row from the top left; None: nothing there


class RenderPool:
    """Processes that draw, one per core; pictures come back in the order in which they were
    asked for.
    """

    def __init__(self, model: mujoco.MjModel, frame: FrameSpec, num_pictures: int) -> None:
        """Start processes that draw ``model``, none for few pictures; raise ConfigError where none
        can be drawn.
        """
        width, height = frame.drawn_size
        self._num_bytes = width * height * 3
        backend = choose_backend()
        number = min(num_cores(), MOST_WORKERS, num_pictures * self._num_bytes // _WORTHWHILE)
        self._renderer = Renderer(model, frame) if number < 2 else None
        if self._renderer is not None:
            self._workers: list[subprocess.Popen[bytes]] = []
            return
        # Mesa's threads would wait for one another.
        environment = os.environ | {"LP_NUM_THREADS": "0"}
        environment |= {} if backend == "native" else {"MUJOCO_GL": backend}
        roots = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(roots)
        command = [sys.executable, "-m", "mqe.viewer.render_pool"]
        order = pickle.dumps((model, frame))
        self._workers = [
            subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            for _ in range(number)
        ]
        try:
            for worker in self._workers:
                _send(worker, order)
            for worker in self._workers:
                message = _pipe(worker.stdout).readline().decode().rstrip("\n")
                if message != _READY:
                    raise ConfigError(message or _ENDED)
        except OSError:
            self.close()
            raise ConfigError(_ENDED) from None
        except ConfigError:
            self.close()
            raise

    def draw(self, pictures: Iterable[Picture]) -> Iterator[bytes]:
        """Yield every picture's pixels (height, width, 3), of the size that is drawn."""
        if self._renderer is not None:
            yield from map(self._renderer.draw, pictures)
            return
        asked: deque[subprocess.Popen[bytes]] = deque()
        for i, picture in enumerate(pictures):
            worker = self._workers[i % len(self._workers)]
            _send(worker, pickle.dumps(picture))
            asked.append(worker)
            if len(asked) >= _QUEUE * len(self._workers):
                yield self._take(asked.popleft())
        while asked:
            yield self._take(asked.popleft())

    def close(self) -> None:
        """End the processes, or free the OpenGL context."""
        if self._renderer is not None:
            self._renderer.close()
        for worker in self._workers:
            worker.kill()
            worker.communicate()

    def __enter__(self) -> RenderPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self, worker: subprocess.Popen[bytes]) -> bytes:
        pixels = _pipe(worker.stdout).read(self._num_bytes)
        if len(pixels) != self._num_bytes:
            raise ConfigError(_ENDED)
        return pixels


_READY = "ready"
_ENDED = (
    "cannot render: a process that draws pictures has ended; make memory free, or ask for "
    "smaller ones (--size)"
)


def _send(worker: subprocess.Popen[bytes], message: bytes) -> None:
    pipe = _pipe(worker.stdin)
    try:
        pipe.write(len(message).to_bytes(8, "little") + message)
        pipe.flush()
    except BrokenPipeError:
        raise ConfigError(_ENDED) from None


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def _receive(pipe: IO[bytes]) -> bytes | None:
    """Return the next message, None at the end."""
    head = pipe.read(8)
    return pipe.read(int.from_bytes(head, "little")) if len(head) == 8 else None


def _work(orders: IO[bytes], results: IO[bytes]) -> None:
    """Draw tiles until none is asked for any more."""
    order = _receive(orders)
    if order is None:
        return
    model, frame = pickle.loads(order)
    try:
        renderer = Renderer(model, frame)
    except ConfigError as error:
        results.write(f"{error}\n".encode())
        results.flush()
        return
    results.write(f"{_READY}\n".encode())
    results.flush()
    while (message := _receive(orders)) is not None:
        results.write(renderer.draw(pickle.loads(message)))
        results.flush()


class Renderer:
    """Draws pictures in this process."""

    def __init__(self, model: mujoco.MjModel, frame: FrameSpec) -> None:
        """Make an OpenGL context; raise ConfigError where that is impossible."""
        self._model = model
        self._data = mujoco.MjData(model)
        shadows = model.vis.quality.shadowsize // max(frame.columns, frame.rows)
        model.vis.quality.shadowsize = max(shadows, _LEAST_SHADOWS)
        width, height = frame.drawn_size
        tile_width = width // frame.columns
        tile_height = height // frame.rows
        gap = _GAP if frame.columns * frame.rows > 1 else 0
        wanted = 100 * tile_height / _FONT_HEIGHT
        scale = max((scale for scale in _FONT_SCALES if scale <= wanted), default=_FONT_SCALES[0])
        self._renderer = OffscreenRenderer(model, width, height, scale)
        self._renderer.fill(mujoco.MjrRect(0, 0, width, height), _EMPTY)
        self._viewports = [
            mujoco.MjrRect(
                column * tile_width + gap,
                height - (row + 1) * tile_height + gap,
                tile_width - 2 * gap,
                tile_height - 2 * gap,
            )
            for row in range(frame.rows)
            for column in range(frame.columns)
        ]
        self._painted: list[Tile | None] = [None] * len(self._viewports)
        self._camera = mujoco.MjvCamera()

    def draw(self, picture: Picture) -> bytes:
        """Return the pixels of a picture; tiles that are as they were are not drawn again."""
        for i, (tile, viewport) in enumerate(zip(picture, self._viewports, strict=True)):
            if tile != self._painted[i]:
                self._paint_tile(tile, viewport)
                self._painted[i] = tile
        return self._renderer.read().tobytes()

    def close(self) -> None:
        """Free the OpenGL context."""
        self._renderer.close()

    def _paint_tile(self, tile: Tile | None, viewport: mujoco.MjrRect) -> None:
        if tile is None:
            self._renderer.fill(viewport, _EMPTY)
            return
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
        self._renderer.update(data, camera)
        if tile.way:
            way = np.frombuffer(tile.way).reshape(-1, 2)
            self._renderer.add(planned_way([data.body("object").xpos, *way]))
        self._renderer.paint(viewport, tile.caption, tile.outcome)


if __name__ == "__main__":
    _work(sys.stdin.buffer, sys.stdout.buffer)
