"""A web server in a thread, for a process that waits for something else."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import uvicorn

if TYPE_CHECKING:
    from starlette.types import ASGIApp

_END_SECONDS: Final = 3


class _WebServer(uvicorn.Server):
    """Ends long polls and event streams first, then waits for running requests."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        end_waits = getattr(getattr(self.config.app, "state", None), "end_waits", None)
        if end_waits is not None:
            end_waits()
        await super().shutdown(sockets)


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
        config = uvicorn.Config(
            app,
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
