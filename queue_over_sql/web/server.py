"""A web server in a thread, for a process that waits for something else."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from queue_over_sql.web.security_headers import HEADERS

if TYPE_CHECKING:
    from starlette.types import ASGIApp

_END_SECONDS: Final = 3
IDLE_SECONDS: Final = 10.0
"""How long a connection may wait with no request, or with the beginning of one."""


class _WebServer(uvicorn.Server):
    """Ends long polls and event streams first, then waits for running requests."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        end_waits = getattr(getattr(self.config.app, "state", None), "end_waits", None)
        if end_waits is not None:
            end_waits()
        await super().shutdown(sockets)


class _Connection(H11Protocol):
    """A connection that ends if no whole request comes in time, which uvicorn does not look at.

    How long a body may take is decided by who reads it.
    """

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_waiting()

    def send_400_response(self, msg: str) -> None:
        given = {"content-type": "text/plain; charset=utf-8", "connection": "close", **HEADERS}
        headers = [(name.encode(), value.encode()) for name, value in given.items()]
        # Nothing can be sent if an answer has begun.
        with suppress(h11.LocalProtocolError):
            answer = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
            for event in (answer, h11.Data(data=msg.encode()), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self) -> None:
        if self._is_answering:
            self._stop_waiting()
        elif self._deadline is None:
            # Once for each request: more bytes of it give no more time.
            self._deadline = self.loop.call_later(IDLE_SECONDS, self._end)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _end(self) -> None:
        self._deadline = None
        if not self._is_answering:
            self.transport.close()


@contextmanager
def serving(app: ASGIApp, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Serve an application during the block; running requests get three seconds at the end.

    Args:
        app: the application. Its lifespan does not run; the caller starts and stops the service.
        host: address or name to listen on.
        port: 0 picks a free one.

    Yields:
        The address for a browser, such as ``http://127.0.0.1:8080``.

    Raises:
        OSError: it cannot listen there.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family, backlog=128) as listening:
        # asyncio does not do so for this socket, and a browser then waits 40 ms for each answer.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        http: Any = _Connection
        config = uvicorn.Config(
            app,
            http=http,
            # Its library would refuse an upgrade without our headers.
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_END_SECONDS,
        )
        server = _WebServer(config)
        # In the main thread it would handle the signals and end the process.
        thread = threading.Thread(target=server.run, args=([listening],), name="web server")
        thread.start()
        try:
            name, number = listening.getsockname()[:2]
            yield f"http://{f'[{name}]' if ':' in name else name}:{number}"
        finally:
            server.should_exit = True
            thread.join()
