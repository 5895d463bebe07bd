"""The viewer's page over its real server: nobody without its token reads or steers it."""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from websockets.datastructures import Headers

from mapush.extensions.studio import page_guard
from mapush.extensions.studio import page_server as studio
from mapush.extensions.studio.page_guard import PageGuard
from mqe.config import ConfigError
from mqe.registry import EnvCfg, SimCfg, make_env
from mqe.tasks.push import PushCfg
from mqe.viewer.player import Player
from tests.support.paths import ROOT

HEADER_TIMEOUT_S = 0.5  # [s] in these tests


class Page(NamedTuple):
    """The port and the token of a page."""

    port: int
    token: str

    @property
    def cookie(self) -> str:
        return f"mapush_{self.port}={self.token}"


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    """Serve a page from a process of its own, since a process can serve one page only."""
    program = f"import runpy; runpy.run_path({__file__!r})['serve']()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    ) as server:
        assert server.stdout is not None
        port, token = server.stdout.readline().decode().split()
        yield Page(int(port), token)
    assert server.returncode == 0


def serve() -> None:
    """Serve a page until the standard input closes. Write port and token into the output."""
    page_guard.HEADER_TIMEOUT_S = HEADER_TIMEOUT_S
    env = make_env(EnvCfg(num_envs=1), SimCfg(name="mujoco", device="cpu"), PushCfg(), seed=1)
    player = Player(env, {"zero": lambda obs: torch.zeros(*obs.shape[:2], 3)})
    listener = studio._listening_socket(0)
    guard = PageGuard(listener.getsockname()[1])
    with studio.served(listener, studio.Panel(player), guard):
        sys.stdout.write(f"{listener.getsockname()[1]} {guard.token}\n")
        sys.stdout.flush()
        sys.stdin.read()


def ask(page: Page, path: str, host: str | None = None, **headers: str) -> bytes:
    """Return the head of the server's answer to a request with the page's cookie."""
    port = page.port
    names = {"Host": host or f"127.0.0.1:{port}", "Cookie": page.cookie}
    names |= {key.replace("_", "-"): value for key, value in headers.items()}
    lines = [f"GET {path} HTTP/1.1", *(f"{key}: {value}" for key, value in names.items())]
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            part = connection.recv(4096)
            if not part:
                break
            answer += part
    return answer.split(b"\r\n\r\n")[0]


def upgrade(page: Page, path: str, **headers: str) -> bytes:
    """Return the head of the answer to a request for a web socket."""
    return ask(
        page,
        path,
        Connection="Upgrade",
        Upgrade="websocket",
        Sec_WebSocket_Version="13",
        Sec_WebSocket_Key=base64.b64encode(os.urandom(16)).decode(),
        **headers,
    )


@pytest.mark.parametrize("path", ["/", "/model", "/web_client.js"])
def test_a_request_under_a_foreign_name_is_forbidden(page: Page, path: str) -> None:
    assert b"403 Forbidden" in ask(page, path, f"evil.example:{page.port}")
    assert b"403" not in ask(page, path)
    assert b"403" not in ask(page, path, "localhost:9000")  # a tunnel's port


@pytest.mark.parametrize("path", ["/", "/state?sid=x", "/ui?sid=x"])
@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1"])
def test_a_foreign_page_is_forbidden(page: Page, path: str, origin: str) -> None:
    assert b"403 Forbidden" in upgrade(page, path, Origin=origin)


def test_the_own_page_gets_its_web_sockets(page: Page) -> None:
    assert b"101 Switching" in upgrade(page, "/state?sid=x", Origin=f"http://127.0.0.1:{page.port}")
    assert b"101 Switching" in upgrade(page, "/ui?sid=x", Origin=f"http://127.0.0.1:{page.port}")


def test_no_answer_is_shared_with_other_origins_or_framed(page: Page) -> None:
    answers = [ask(page, path) for path in ("/", "/model", "/web_client.js")]
    answers.append(upgrade(page, "/state?sid=y"))
    for answer in answers:
        head = answer.lower()
        assert b"access-control-allow-origin" not in head
        assert b"cross-origin-resource-policy: same-origin" in head
        assert b"frame-ancestors 'none'" in head


def test_the_page_takes_no_files(page: Page) -> None:
    assert b"403 Forbidden" in upgrade(page, "/drop?sid=x", Origin=f"http://127.0.0.1:{page.port}")


@pytest.mark.parametrize("start", [b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "])
def test_a_connection_without_a_whole_header_ends(page: Page, start: bytes) -> None:
    with socket.create_connection(("127.0.0.1", page.port), timeout=60) as connection:
        connection.sendall(start)
        began = time.monotonic()
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""
        assert time.monotonic() - began > 0.5 * HEADER_TIMEOUT_S


@pytest.mark.parametrize(
    "hosts",
    [
        [],
        ["127.0.0.1", "evil.example"],
        ["[::1"],
        ["[::1]evil.example"],
        ["evil.example@localhost"],
        ["127.0.0.1.nip.io"],
    ],
)
def test_a_malformed_host_is_refused(hosts: list[str]) -> None:
    guard = PageGuard(8080)
    headers = Headers([("Host", host) for host in hosts])
    assert guard.refusal(f"/?token={guard.token}", headers) is not None


STRANGERS = [
    ("/", ""),
    ("/?token=", ""),
    ("/?token=wrong", ""),
    ("/?token=%00", ""),
    ("/?token=%ff%fe", ""),
    ("/TOKEN", ""),
    ("/?notatoken=TOKEN", ""),
    ("/?token=TOKENx", ""),
    ("/", "mapush_PORT="),
    ("/", "mapush_PORT=wrong"),
    ("/", "mapush_1=TOKEN"),
    ("/", "other=TOKEN"),
    ("/", ";;=TOKEN"),
    ("/", "TOKEN"),
]


@pytest.mark.parametrize(("path", "cookie"), STRANGERS)
def test_a_stranger_gets_nothing(page: Page, path: str, cookie: str) -> None:
    def filled(text: str) -> str:
        return text.replace("TOKEN", page.token).replace("PORT", str(page.port))

    assert b"403 Forbidden" in ask(page, filled(path), Cookie=filled(cookie))


@pytest.mark.parametrize("path", ["/state?sid=x", "/ui?sid=x", "/model", "/web_client.js"])
def test_a_stranger_gets_no_part_and_no_web_socket(page: Page, path: str) -> None:
    assert b"403 Forbidden" in upgrade(page, path, Cookie="")


def test_the_printed_address_gives_the_browser_its_cookie(page: Page) -> None:
    answer = ask(page, f"/?token={page.token}", Cookie="")
    assert answer.startswith(b"HTTP/1.1 200")
    line = f"Set-Cookie: {page.cookie}; Path=/; HttpOnly; SameSite=Strict"
    assert line.encode() in answer
    assert b"Set-Cookie" not in ask(page, "/")


def test_every_page_has_a_token_of_its_own() -> None:
    tokens = {PageGuard(8080).token for _ in range(100)}
    assert len(tokens) == 100
    assert min(len(token) for token in tokens) >= 32


def test_a_browser_is_opened_by_a_private_file(monkeypatch) -> None:
    opened = []

    def open_page(uri: str) -> None:
        path = Path(urllib.request.url2pathname(uri.removeprefix("file:")))
        opened.append((uri, path.read_text(), path.parent.stat().st_mode & 0o077))

    monkeypatch.setattr(studio.webbrowser, "open", open_page)
    with studio._open_in_browser("http://127.0.0.1:8080/?token=secret"):
        pass
    ((uri, text, shared),) = opened
    assert "secret" not in uri
    assert "url=http://127.0.0.1:8080/?token=secret" in text
    assert shared == 0


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({}, False), ({"DISPLAY": ":0"}, True), ({"WAYLAND_DISPLAY": "wayland-0"}, True)],
)
def test_a_browser_needs_a_display(monkeypatch, variables, expected) -> None:
    monkeypatch.setattr(studio.sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert studio.has_display() is expected


def test_the_page_is_bound_to_the_loopback_alone() -> None:
    with studio._listening_socket(0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


def test_a_process_serves_one_page_only(monkeypatch) -> None:
    monkeypatch.setattr(studio, "_has_served", threading.Event())
    studio._has_served.set()
    listener = studio._listening_socket(0)
    with (
        pytest.raises(ConfigError, match="has served a page before"),
        studio.served(listener, None, None),
    ):
        pass
    assert listener.fileno() == -1


def test_a_port_belongs_to_one_page(monkeypatch) -> None:
    with studio._listening_socket(0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} cannot be used"):
            studio._listening_socket(port)


@pytest.mark.parametrize(
    ("named", "host", "origin", "is_served"),
    [
        (None, "x-8080.proxy.example", "https://x-8080.proxy.example", False),
        (".proxy.example", "x-8080.proxy.example", "https://x-8080.proxy.example", True),
        (".proxy.example", "x-8080.proxy.example:443", "https://x-8080.proxy.example:443", True),
        (".proxy.example", "localhost:8080", "https://x-8080.proxy.example", True),
        (".proxy.example", "proxy.example.evil", "https://proxy.example.evil", False),
        (".proxy.example", "x-8080.proxy.example", "https://evil.example", False),
        ("me.example", "me.example", "https://me.example", True),
        ("me.example", "not-me.example", "https://not-me.example", False),
    ],
)
def test_a_proxy_shows_the_page_under_a_name_of_the_users(named, host, origin, is_served) -> None:
    guard = PageGuard(8080, named)
    path = f"/?token={guard.token}"
    refusal = guard.refusal(path, Headers({"Host": host, "Origin": origin}))
    assert (refusal is None) == is_served
    assert guard.refusal("/", Headers({"Host": host, "Origin": origin})) is not None
