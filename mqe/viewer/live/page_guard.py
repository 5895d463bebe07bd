"""Guard of the viewer's page: only pages that this machine served may read or steer it.

Studio's server answers whoever reaches its port. A loopback port is reached by every web page that
is open in a browser of this machine, also under a name of its own that resolves to 127.0.0.1. The
guard refuses such requests by their ``Host`` and ``Origin``.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from websockets.asyncio.server import ServerConnection
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

_OWN_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]+)?", re.IGNORECASE)
HEADER_TIMEOUT_S = 10.0  # [s] after which a connection without a complete header ends
_DROP = "/drop"  # where Studio's page uploads models

_Check = Callable[[ServerConnection, Request], Response | None]
_Finish = Callable[[ServerConnection, Request, Response], Response | None]


def refusal(path: str, headers: Headers) -> str | None:
    """Return the reason to refuse a request, or None.

    The port in ``Host`` may be another than the server's: that of a tunnel, for instance by ssh.
    """
    hosts = headers.get_all("Host")
    if len(hosts) != 1 or _OWN_HOST.fullmatch(hosts[0]) is None:
        return "the page can only be opened as 127.0.0.1 or localhost"
    for origin in headers.get_all("Origin"):
        if origin.lower() not in (f"http://{hosts[0].lower()}", f"https://{hosts[0].lower()}"):
            return "the request comes from another page"
    if path.split("?")[0] == _DROP:
        return "the page takes no files"
    return None


def guarded(serve: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``serve`` of websockets with the guard in front of the caller's own hooks."""

    def serve_guarded(
        *args: Any, process_request: _Check, process_response: _Finish, **options: Any
    ) -> Any:
        return serve(
            *args,
            process_request=partial(_check, process_request),
            process_response=partial(_finish, process_response),
            create_connection=_Connection,
            **options,
        )

    return serve_guarded


class _Connection(ServerConnection):
    """A connection that ends if its header is not complete in time."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        asyncio.get_running_loop().call_later(HEADER_TIMEOUT_S, self._end_without_header)

    def _end_without_header(self) -> None:
        if self.request is None:
            self.transport.abort()


def _check(own: _Check, connection: ServerConnection, request: Request) -> Response | None:
    """Refuse a request, or hand it to the server's own hook."""
    reason = refusal(request.path, request.headers)
    if reason is None:
        return own(connection, request)
    body = f"Forbidden: {reason}.\n".encode()
    headers = Headers({"Content-Type": "text/plain", "Content-Length": str(len(body))})
    return Response(403, "Forbidden", headers, body)


def _finish(
    own: _Finish, connection: ServerConnection, request: Request, response: Response
) -> Response | None:
    """Replace the server's permission for all origins by one for the page itself."""
    changed = own(connection, request, response)
    headers = (changed or response).headers
    for name in ("Access-Control-Allow-Origin", "Cross-Origin-Resource-Policy"):
        if name in headers:
            del headers[name]
    headers["Cross-Origin-Resource-Policy"] = "same-origin"
    headers["Content-Security-Policy"] = "frame-ancestors 'none'"
    return changed
