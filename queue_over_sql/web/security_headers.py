"""Guard: headers that protect browsers and a limit for bodies, for every request and answer."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_log = logging.getLogger(__name__)

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not no-referrer, because then browsers send no Origin with a form.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
"""The headers of every answer."""
NDJSON: Final = "application/x-ndjson"


class Guard:
    """Middleware around the whole application.

    It adds the headers, and ``Cache-Control: no-store`` unless an answer has its own. An error that
    nothing else answers becomes a 500 with them. It refuses bodies over a limit with 413. NDJSON
    bodies have no total limit; their reader limits each line.

    Args:
        app: the application.
        max_body_bytes: the largest body.
    """

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        started = False

        async def guarded(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        kind = Headers(scope=scope).get("content-type", "").partition(";")[0].strip().lower()
        if kind != NDJSON:
            receive = bounded(receive, self._max_body_bytes)
        try:
            await self._app(scope, receive, guarded)
        except ClientDisconnect:
            return
        except Exception:
            if started:
                raise
            _log.exception("A request failed with an unexpected error.")
            text = "The request failed; the log of the web server has the reason."
            await PlainTextResponse(text, 500)(scope, receive, guarded)


def bounded(receive: Receive, most: int) -> Receive:
    """A body with a limit; reading beyond it raises ``HTTPException`` with 413."""
    read = 0

    async def limited() -> Message:
        nonlocal read
        message = await receive()
        read += len(message.get("body", b""))
        if read > most:
            raise HTTPException(413, f"The body is larger than {most:,} bytes.")
        return message

    return limited
