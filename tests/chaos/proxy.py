"""A TCP proxy for a database: it can fall silent, cut connections, and lead to another server."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
from typing import TYPE_CHECKING

from sqlalchemy import make_url

if TYPE_CHECKING:
    from collections.abc import Callable


class Proxy:
    """Passes bytes between clients and the server of a URL; it disconnects only who is told below.

    Attributes:
        url: leads to the same database through the proxy.
        answered: how many bytes of the server were passed on since the last ``cut_after``.
    """

    def __init__(self, url: str) -> None:
        """Listen on a free port of this machine."""
        target = make_url(url)
        self._target = str(target.host), int(target.port or 0)
        self._most = math.inf
        self._once = False
        self.answered = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        port = self._listening.getsockname()[1]
        through = target.set(host="127.0.0.1", port=port)
        self.url = through.render_as_string(hide_password=False)
        self._lock = threading.Lock()
        self._links: list[_Link] = []
        self._silent = False
        threading.Thread(target=self._accept, daemon=True).start()

    def lead_to(self, url: str) -> None:
        """Connect those who come from now on with another server; the others keep theirs."""
        target = make_url(url)
        with self._lock:
            self._target = str(target.host), int(target.port or 0)

    def cut_after(self, answered: float, *, once: bool = False) -> None:
        """Disconnect everybody when so many more bytes of the server were passed on.

        With ``once`` only one connection is cut: what comes then is passed on again.
        """
        with self._lock:
            self._most, self.answered, self._once = answered, 0, once

    def lose_clients(self) -> None:
        """Disconnect the clients; the server does not notice, and goes on with what they asked."""
        with self._lock:
            for link in self._links:
                link.lose_client()

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
                with self._lock:
                    target = self._target
                try:
                    server = socket.create_connection(target)
                except OSError:
                    # It is down, and may come back.
                    client.close()
                    continue
                with self._lock:
                    link = _Link(client, server, self._pass_on, silent=self._silent)
                    self._links.append(link)

    def _pass_on(self, answer: bytes) -> bytes:
        with self._lock:
            left = max(0, self._most - self.answered)
            passed = answer if left >= len(answer) else answer[: int(left)]
            self.answered += len(passed)
            if self._once and len(passed) < len(answer):
                self._most = math.inf
        return passed


class _Link:
    """One connection through the proxy."""

    def __init__(
        self,
        client: socket.socket,
        server: socket.socket,
        pass_on: Callable[[bytes], bytes],
        *,
        silent: bool,
    ) -> None:
        self.silent = silent
        self._pass_on = pass_on
        self._lost = False
        self.swallowed = 0
        self._ends = client, server
        for source, sink in ((client, server), (server, client)):
            source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def lose_client(self) -> None:
        """Disconnect the client's end only."""
        self._lost = True
        with contextlib.suppress(OSError):
            self._ends[0].shutdown(socket.SHUT_RDWR)

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
        ends = [(sink, socket.SHUT_WR)]
        try:
            self._pass_all(source, sink)
        except OSError:
            # A reset. H2's server goes on sending errors to who has gone until it gets one, too,
            # and keeps the locks of its transaction.
            ends.append((source, socket.SHUT_RDWR))
        if not (self.silent or self._lost):
            for end, how in ends:
                with contextlib.suppress(OSError):
                    end.shutdown(how)

    def _pass_all(self, source: socket.socket, sink: socket.socket) -> None:
        while data := source.recv(65_536):
            if self.silent:
                self.swallowed += len(data)
                continue
            passed = self._pass_on(data) if source is self._ends[1] else data
            sink.sendall(passed)
            if len(passed) < len(data):
                source.shutdown(socket.SHUT_RDWR)
                break
