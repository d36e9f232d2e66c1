"""Probes: a small HTTP server for ``/livez`` and ``/readyz``, and systemd's notifications."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from queue_over_sql.observability.health import Report


_log = logging.getLogger(__name__)

LOCAL: Final = "127.0.0.1"
_LAST_PORT: Final = 65_535
# Probes come one by one; many at once are a mistake or an attack.
_MOST_CONNECTIONS: Final = 8
# A request and its answer have a few hundred bytes.
_CONNECTION_SECONDS: Final = 10.0


class Probed(Protocol):
    """An object that reports whether a process is live and ready."""

    def live(self) -> Report:
        """Report whether it makes progress."""

    def ready(self) -> Report:
        """Report whether it can work now."""


class ProbePage(NamedTuple):
    """The answer to a GET.

    Attributes:
        body: its text.
        status: the HTTP status.
        kind: the media type.
    """

    body: str
    status: int = HTTPStatus.OK
    kind: str = "text/plain; charset=utf-8"


def read_address(text: str) -> tuple[str, int]:
    """Read ``HOST:PORT``; ``:PORT`` and ``PORT`` mean this machine alone, ``[::1]:PORT`` is IPv6.

    Raises:
        ValueError: it is none of these.
    """
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdecimal() and int(port) <= _LAST_PORT):
        msg = f"{text!r} is not an address: write HOST:PORT, such as 127.0.0.1:9000, or only PORT"
        raise ValueError(msg)
    return host.removeprefix("[").removesuffix("]") or LOCAL, int(port)


class ProbeServer:
    """An HTTP server that answers ``/livez`` and ``/readyz`` with 200 or 503, in its own threads.

    Use it as a context manager. It only answers GET and HEAD, on up to eight connections at once,
    each for up to ten seconds. The answer is JSON: ``{"status": "ok", "checks": {"database":
    "ok"}}``.

    Args:
        probed: a ``Health``, or another object with ``live()`` and ``ready()``.
        address: ``HOST:PORT``; a port without a host listens on this machine only; 0 picks a free
            port.
        pages: further pages: a mapping of paths to functions that return a ``ProbePage``.

    Attributes:
        address: the ``host:port`` on which it listens.

    Raises:
        ValueError: the address cannot be read.
        OSError: the address is in use, or does not belong to this machine.
    """

    def __init__(
        self,
        probed: Probed,
        address: str,
        *,
        pages: Mapping[str, Callable[[], ProbePage]] | None = None,
    ) -> None:
        host, port = read_address(address)
        routes = {
            "/livez": lambda: page_of(probed.live()),
            "/readyz": lambda: page_of(probed.ready()),
            **(pages or {}),
        }
        self._server = _Server(host, port, routes)
        shown = f"[{host}]" if ":" in host else host
        self.address = f"{shown}:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.1},
            name="queue-over-sql-http",
            daemon=True,
        )

    def __enter__(self) -> Self:
        self._thread.start()
        _log.info("Probes are answered on http://%s.", self.address)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


def page_of(report: Report) -> ProbePage:
    """The answer to a probe: 200 or 503, and the checks as JSON."""
    said = {"status": "ok" if report.ok else "failed", "checks": dict(report.checks)}
    status = HTTPStatus.OK if report.ok else HTTPStatus.SERVICE_UNAVAILABLE
    return ProbePage(json.dumps(said) + "\n", status, "application/json")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 32

    def __init__(self, host: str, port: int, routes: Mapping[str, Callable[[], ProbePage]]) -> None:
        self.routes = routes
        self._began: dict[Any, float] = {}
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """As the base class, without its query for the host name."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = map(str, self.server_address[:2])  # type: ignore[assignment]

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Refuse a connection if all threads are busy."""
        del client_address
        if len(self._began) >= _MOST_CONNECTIONS:
            return False
        self._began[request] = time.monotonic()
        return True

    def shutdown_request(self, request: Any) -> None:
        """Count a closed connection."""
        self._began.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """End connections that have lasted too long; called repeatedly."""
        oldest = time.monotonic() - _CONNECTION_SECONDS
        for request, began in list(self._began.items()):
            if began < oldest:
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect early."""
        del request, client_address
        _log.debug("A probe could not be answered.", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _CONNECTION_SECONDS

    def do_GET(self) -> None:
        """Answer a probe."""
        make = self.server.routes.get(self.path.partition("?")[0])
        if make is None:
            known = ", ".join(self.server.routes)
            self._send(ProbePage(f"Not found. Pages: {known}.\n", HTTPStatus.NOT_FOUND))
            return
        try:
            page = make()
        except Exception:  # noqa: BLE001 - the log says what, the asker that it failed
            _log.exception("A probe of %s failed.", self.path.partition("?")[0])
            page = ProbePage(
                "The page could not be created; see the log.\n", HTTPStatus.INTERNAL_SERVER_ERROR
            )
        self._send(page)

    do_HEAD = do_GET  # noqa: N815 - the name that its base calls

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send the error without the requested path and without the HTML of the base class."""
        del message, explain
        if code == HTTPStatus.NOT_IMPLEMENTED:
            code = HTTPStatus.METHOD_NOT_ALLOWED
        self._send(ProbePage(f"{HTTPStatus(code).phrase}.\n", code))

    def version_string(self) -> str:
        """Hide all versions."""
        return "queue-over-sql"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as its base calls it
        """Log at the debug level."""
        _log.debug(format, *args)

    def _send(self, page: ProbePage) -> None:
        body = page.body.encode()
        self.close_connection = True
        self.send_response(page.status)
        self.send_header("Content-Type", page.kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        if page.status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class SystemdNotifier:
    """A context manager that tells systemd when the process is ready, and while it is live.

    For units with ``Type=notify`` and ``WatchdogSec=``; elsewhere it does nothing.

    Args:
        probed: an object that reports whether the process is live and ready.
    """

    def __init__(self, probed: Probed) -> None:
        self._probed = probed
        path = os.environ.get("NOTIFY_SOCKET", "")
        # A name in the abstract namespace is written with '@'.
        self._path = "\0" + path[1:] if path.startswith("@") else path
        watchdog = os.environ.get("WATCHDOG_USEC", "")
        mine = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        has_watchdog = mine and watchdog.isdecimal() and int(watchdog) > 0
        self._every = int(watchdog) / 3_000_000 if has_watchdog else None
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        if self._path:
            threading.Thread(target=self._run, name="queue-over-sql-systemd", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        if self._path:
            self._notify("STOPPING=1")

    def _run(self) -> None:
        is_reported = False
        pause = 0.2
        while not self._ended.wait(pause):
            if not is_reported and self._probed.ready().ok:
                is_reported = True
                self._notify("READY=1")
            if is_reported and self._every is None:
                return
            if self._every is not None and self._probed.live().ok:
                self._notify("WATCHDOG=1")
            pause = 0.2 if self._every is None or not is_reported else min(self._every, 10.0)

    def _notify(self, state: str) -> None:
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd,
        ):
            systemd.connect(self._path)
            systemd.sendall(state.encode())
