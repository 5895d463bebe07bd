"""A player in MuJoCo's Studio: a page for browsers on this machine."""

import http.client
import logging
import os
import socket
import sys
import tempfile
import threading
import time
import webbrowser
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import mujoco

from harl_mapush.process import say
from mqe.config import ConfigError
from mqe.viewer.looks import shown_model
from mqe.viewer.player import Player

try:
    from mujoco.studio import launch_thread, viewer_protocol
    from mujoco.studio.viewer_handle import ViewerHandle

    from mapush.extensions.studio.page_guard import PageGuard
    from mapush.extensions.studio.panel import Panel
except ImportError as error:
    raise ConfigError(
        f"MuJoCo's Studio is missing ({error}); pip install 'mujoco>=4.0' brings it"
    ) from None

HOST = "127.0.0.1"
PORTS = range(8080, 8180)  # tried in turn by default
_NAP_S = 0.05  # [s] between two looks at a starting page
_END_S = 10.0  # [s] for a server's start
_STATE = int(mujoco.mjtState.mjSTATE_INTEGRATION)
_has_served = threading.Event()  # set by the only page of this process


def show(player: Player, port: int | None, host: str | None = None) -> list[str]:
    """Serve a player until it has played its episodes. Return their outcomes.

    ``port`` is the page's, 0 for the first free one. None also opens a browser if there is a
    display. ``host`` is the name of a proxy's page. Raise ConfigError if the port is taken.
    """
    panel = Panel(player)
    listener = _listening_socket(port or 0)
    guard = PageGuard(listener.getsockname()[1], host)
    model = shown_model(player.env.scene)
    shown = mujoco.MjData(model)
    with served(listener, panel, guard) as handle, ExitStack() as stack:
        address = f"http://{HOST}:{listener.getsockname()[1]}/?token={guard.token}"
        say(f"Open {address} in a browser; Ctrl-C ends it.")
        if port is None and has_display():
            stack.enter_context(_open_in_browser(address))

        def look(data: mujoco.MjData) -> bool:
            if not handle.is_running():
                return False
            mujoco.mj_copyState(model, data, shown, _STATE)
            handle.sync(model, shown)
            return True

        return player.run(look)


def has_display() -> bool:
    """Return whether a browser on this machine has a screen to open a page on."""
    return not sys.platform.startswith("linux") or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )


@contextmanager
def _open_in_browser(address: str) -> Iterator[None]:
    """Context manager: open a page in the user's browser by a private file, and remove the file at
    the end.

    All users on a machine can read its programs' arguments, so the browser's command line must not
    contain the token.
    """
    with tempfile.TemporaryDirectory(prefix="mapush-") as folder:
        file = Path(folder) / "page.html"
        file.write_text(f'<meta http-equiv="refresh" content="0; url={address}">', "utf-8")
        webbrowser.open(file.as_uri())
        yield


@contextmanager
def served(listener: socket.socket, panel: Panel, guard: PageGuard) -> Iterator[ViewerHandle]:
    """Context manager: serve the page on ``listener`` from a thread. The page is up when the block
    begins.

    Raise ConfigError for the second page of a process: Studio's pages share one connection to Dear
    ImGui, and a second one waits for ever or crashes.
    """
    if _has_served.is_set():
        listener.close()
        raise ConfigError(
            "--web: this process has served a page before, and Studio can serve one only; start "
            "another process for another page"
        )
    _has_served.set()
    is_up = threading.Event()
    handle = launch_thread.launch_thread(lambda end: _serve(end, listener, panel, guard, is_up))
    with handle:
        # Closing a page during its start crashes the process.
        while handle.is_running() and not is_up.wait(_NAP_S):
            pass
        yield handle


def _listening_socket(port: int) -> socket.socket:
    """Bind a loopback port. Raise ConfigError if it is taken."""
    for candidate in (port,) if port else PORTS:
        try:
            return socket.create_server((HOST, candidate))
        except OSError as error:
            problem = os.strerror(error.errno or 0)  # its own text has the address, too
    requested = f"port {port}" if port else f"ports {PORTS[0]} to {PORTS[-1]}"
    raise ConfigError(
        f"--web: {requested} cannot be used ({problem}); name another port, or leave it out for a "
        "free one"
    )


def _serve(
    endpoint: Any, listener: socket.socket, panel: Panel, guard: PageGuard, is_up: threading.Event
) -> None:
    """Serve the page on ``listener`` behind ``guard`` until its end.

    Set ``is_up`` as soon as a browser can open the page.
    """
    from mujoco.studio import web_viewer  # not in every package of Studio

    # Studio's own socket listens to the whole network, and its server answers everybody.
    server = web_viewer.web_server
    server.bind_public_socket = lambda *_: listener
    server.serve = guard.around(server.serve)
    logging.getLogger("WebServer").setLevel(logging.ERROR)
    web_viewer._print_url_banner = lambda *_: None
    web_viewer.print = lambda *_, **__: None  # pyright: ignore  # a line for every model
    viewer = web_viewer.WebViewer(
        viewer_protocol.ViewerConfig(gfx="web"), endpoint, plugins=[panel]
    )
    # A first frame before the server runs can crash or hang.
    _wait_for_answer(listener.getsockname()[1])
    is_up.set()
    viewer_protocol.run_viewer_loop(viewer)


def _wait_for_answer(port: int) -> None:
    """Return when the page answers, or after some seconds."""
    until = time.monotonic() + _END_S
    while time.monotonic() < until:
        connection = http.client.HTTPConnection(HOST, port, timeout=_END_S)
        try:
            connection.request("GET", "/")
            connection.getresponse()
            return
        except (OSError, http.client.HTTPException):
            time.sleep(_NAP_S)
        finally:
            connection.close()
