"""Guard of the viewer's page: a random token keeps out everybody but the user.

Studio's server answers every client. Other users of this machine reach a loopback port, and so does
every web page in a browser of this machine, also under another name for 127.0.0.1. The guard checks
``Host``, ``Origin`` and the token in the printed address. The first answer moves the token into a
cookie, since the page requests its parts without it.
"""

import hmac
import re
import secrets
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlsplit

from websockets.asyncio.server import ServerConnection
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

_OWN_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]+)?", re.IGNORECASE)
HEADER_TIMEOUT_S = 10.0  # [s] limit for a connection's complete header
_DROP = "/drop"  # path for model uploads by Studio's page
_TOKEN_BYTES = 24

_Check = Callable[[ServerConnection, Request], Response | None]
_Finish = Callable[[ServerConnection, Request, Response], Response | None]


class PageGuard:
    """Checks on all requests to one page."""

    def __init__(self, port: int, host: str | None = None) -> None:
        """Draw a token for the page at ``port``.

        ``host`` is the name of a proxy's page. With a leading dot it stands for all its subdomains.
        """
        self._host = host.lower() if host else None
        self.token = secrets.token_urlsafe(_TOKEN_BYTES)
        # Browsers send the cookies of one port to all ports of a host.
        self._cookie = f"mapush_{port}"

    def refusal(self, path: str, headers: Headers) -> str | None:
        """Return the reason for refusing a request, or None.

        ``Host`` may have a tunnel's port, for instance with ssh.
        """
        hosts = headers.get_all("Host")
        if len(hosts) != 1 or not self._is_own(hosts[0]):
            return "the page can only be opened as 127.0.0.1, localhost or the name of --host"
        for origin in headers.get_all("Origin"):
            scheme, _, host = origin.lower().partition("://")
            is_same = host == hosts[0].lower() or self._is_proxy(host)
            if scheme not in ("http", "https") or not is_same:
                return "the request comes from another page"
        if urlsplit(path).path == _DROP:
            return "the page takes no files"
        if not (self._is_in_address(path) or self._is_in_cookie(headers)):
            return "the page's token is missing or wrong; open the address that mapush printed"
        return None

    def around(self, serve: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``serve`` of websockets with this guard before the caller's own hooks."""

        def serve_guarded(
            *args: Any, process_request: _Check, process_response: _Finish, **options: Any
        ) -> Any:
            def check(connection: ServerConnection, request: Request) -> Response | None:
                reason = self.refusal(request.path, request.headers)
                if reason is None:
                    return process_request(connection, request)
                return _forbidden(reason)

            def finish(
                connection: ServerConnection, request: Request, response: Response
            ) -> Response | None:
                changed = process_response(connection, request, response)
                headers = (changed or response).headers
                _keep_to_own_origin(headers)
                if response.status_code == 200 and self._is_in_address(request.path):
                    headers["Set-Cookie"] = (
                        f"{self._cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict"
                    )
                return changed

            return serve(
                *args,
                process_request=check,
                process_response=finish,
                **options | {"open_timeout": HEADER_TIMEOUT_S},
            )

        return serve_guarded

    def _is_own(self, host: str) -> bool:
        return _OWN_HOST.fullmatch(host) is not None or self._is_proxy(host)

    def _is_proxy(self, host: str) -> bool:
        if self._host is None:
            return False
        name = host.lower().partition(":")[0]
        return name == self._host or (self._host.startswith(".") and name.endswith(self._host))

    def _is_in_address(self, path: str) -> bool:
        values = parse_qs(urlsplit(path).query).get("token", [])
        return any(self._is_token(value) for value in values)

    def _is_in_cookie(self, headers: Headers) -> bool:
        for line in headers.get_all("Cookie"):
            try:
                cookie = SimpleCookie(line).get(self._cookie)
            except CookieError:
                continue
            if cookie is not None and self._is_token(cookie.value):
                return True
        return False

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode("utf-8", "replace"), self.token.encode())


def _forbidden(reason: str) -> Response:
    body = f"Forbidden: {reason}.\n".encode()
    headers = Headers({"Content-Type": "text/plain", "Content-Length": str(len(body))})
    return Response(403, "Forbidden", headers, body)


def _keep_to_own_origin(headers: Headers) -> None:
    """Replace the server's permission for all origins by one for the page itself."""
    for name in ("Access-Control-Allow-Origin", "Cross-Origin-Resource-Policy"):
        if name in headers:
            del headers[name]
    headers["Cross-Origin-Resource-Policy"] = "same-origin"
    headers["Content-Security-Policy"] = "frame-ancestors 'none'"
    headers["Referrer-Policy"] = "no-referrer"
