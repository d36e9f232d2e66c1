"""A TCP proxy for a database that can stop answering: it accepts all bytes and forwards none."""

from __future__ import annotations

import contextlib
import socket
import threading

from sqlalchemy import make_url


class Proxy:
    """Passes bytes between clients and the server of a URL; nobody is ever disconnected by it.

    Attributes:
        url: leads to the same database through the proxy.
    """

    def __init__(self, url: str) -> None:
        """Listen on a free port of this machine."""
        target = make_url(url)
        self._target = str(target.host), int(target.port or 0)
        self._listening = socket.create_server(("127.0.0.1", 0))
        port = self._listening.getsockname()[1]
        through = target.set(host="127.0.0.1", port=port)
        self.url = through.render_as_string(hide_password=False)
        self._lock = threading.Lock()
        self._links: list[_Link] = []
        self._silent = False
        threading.Thread(target=self._accept, daemon=True).start()

    def fall_silent(self) -> None:
        """Swallow what is sent from now on; new connections are accepted, and hear nothing."""
        with self._lock:
            self._silent = True
            for link in self._links:
                link.silent = True

    def end_at_server(self) -> None:
        """Let the server notice that silent clients are gone, as keepalives do; they hear nothing.

        It rolls back what they had begun. Until then it keeps the locks of their transactions.
        """
        with self._lock:
            for link in self._links:
                if link.silent:
                    link.end_at_server()

    def recover(self) -> None:
        """Serve new connections; those of the silence stay silent."""
        with self._lock:
            self._silent = False

    @property
    def swallowed(self) -> int:
        """How many bytes were taken and not passed on, by connections that are open now."""
        with self._lock:
            return sum(link.swallowed for link in self._links)

    def close(self) -> None:
        """Disconnect everybody."""
        self._listening.close()
        with self._lock:
            for link in self._links:
                link.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._target)
                with self._lock:
                    self._links.append(_Link(client, server, silent=self._silent))


class _Link:
    """One connection through the proxy."""

    def __init__(self, client: socket.socket, server: socket.socket, *, silent: bool) -> None:
        self.silent = silent
        self.swallowed = 0
        self._ends = client, server
        for source, sink in ((client, server), (server, client)):
            source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def end_at_server(self) -> None:
        """Disconnect the server's end."""
        with contextlib.suppress(OSError):
            self._ends[1].shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Disconnect both ends."""
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if self.silent:
                    self.swallowed += len(data)
                else:
                    sink.sendall(data)
            if not self.silent:
                sink.shutdown(socket.SHUT_WR)
