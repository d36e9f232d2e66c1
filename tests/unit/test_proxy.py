"""The proxy of the tests of broken networks."""

from __future__ import annotations

import contextlib
import socket

from sqlalchemy import make_url

from tests.chaos.proxy import Proxy


def test_a_proxy_outlives_a_server_that_refuses() -> None:
    """Who comes while the server is down is disconnected; who comes later is served."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    proxy = Proxy(f"postgresql://127.0.0.1:{port}/")
    address = ("127.0.0.1", make_url(proxy.url).port or 0)
    with contextlib.closing(proxy):
        for _ in range(2):
            with socket.create_connection(address, timeout=30) as client:
                assert b"" == client.recv(1)
        with (
            socket.create_server(("127.0.0.1", port)) as server,
            socket.create_connection(address, timeout=30) as client,
        ):
            accepted, _ = server.accept()
            with accepted:
                accepted.sendall(b"x")
                assert b"x" == client.recv(1)
