"""The native window: it is gone, and so is its thread, when the viewer ends."""

from __future__ import annotations

import threading
import time

import mujoco
import pytest

from mqe.config import ConfigError
from mqe.viewer.live import window

MODEL = mujoco.MjSpec().compile()


class Window:
    """A window that goes on drawing for a while after the order to end."""

    def __init__(self) -> None:
        self._is_over = threading.Event()
        self.thread = threading.Thread(target=self._draw, daemon=True)
        self.thread.start()

    def _draw(self) -> None:
        self._is_over.wait()
        time.sleep(0.2)

    def close(self) -> None:
        self._is_over.set()


def opened():
    return window._opened(MODEL, mujoco.MjData(MODEL), lambda key: None)


def test_a_signal_waits_for_the_windows_thread(monkeypatch) -> None:
    monkeypatch.setattr(window.mujoco.viewer, "launch_passive", lambda *_, **__: Window())
    with pytest.raises(KeyboardInterrupt), opened() as handle:
        raise KeyboardInterrupt
    assert not handle.thread.is_alive()


def test_a_signal_while_the_window_opens_closes_it(monkeypatch) -> None:
    windows = []

    def launch(*_, **__) -> Window:
        time.sleep(0.2)
        windows.append(Window())
        return windows[0]

    class Interrupted(threading.Thread):
        """A thread that is interrupted while it is waited for, as by a signal."""

        num_joins = 0

        def join(self, timeout: float | None = None) -> None:
            Interrupted.num_joins += 1
            if Interrupted.num_joins == 1:
                raise KeyboardInterrupt
            super().join(timeout)

    monkeypatch.setattr(window.mujoco.viewer, "launch_passive", launch)
    monkeypatch.setattr(window.threading, "Thread", Interrupted)
    with pytest.raises(KeyboardInterrupt), opened():
        raise AssertionError("the window was never open")
    assert not windows[0].thread.is_alive()


def test_a_window_that_cannot_be_opened_is_one_line(monkeypatch) -> None:
    def launch(*_, **__) -> None:
        raise RuntimeError("no screen")

    monkeypatch.setattr(window.mujoco.viewer, "launch_passive", launch)
    with pytest.raises(ConfigError, match="no window can be opened .no screen.; --web"), opened():
        pass
