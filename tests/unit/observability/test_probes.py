"""The probe server: its answers, and its limits for clients."""

from __future__ import annotations

import http.client
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from queue_over_sql.observability import ProbeServer, Report, probes
from queue_over_sql.observability.probes import ProbePage, SystemdNotifier, read_address
from tests.waiting import eventually

MakeServer = Callable[..., ProbeServer]


class Fixed:
    """A process that is what the test says."""

    def __init__(self, *, live: bool = True, ready: bool = True) -> None:
        self.is_live, self.is_ready = live, ready

    def live(self) -> Report:
        return Report.of({"loop": "ok" if self.is_live else "it hangs"})

    def ready(self) -> Report:
        return Report.of({"database": "ok" if self.is_ready else "it is away"})


@pytest.fixture
def serve() -> Iterator[MakeServer]:
    """Makes servers, which end with the test."""
    with ExitStack() as stack:

        def make(
            probed: probes.Probed, pages: Mapping[str, Callable[[], ProbePage]] | None = None
        ) -> ProbeServer:
            return stack.enter_context(ProbeServer(probed, "0", pages=pages))

        yield make


def ask(server: ProbeServer, path: str, method: str = "GET") -> tuple[int, str, Mapping[str, str]]:
    """Status, body and headers of an answer."""
    host, port = read_address(server.address)
    connection = http.client.HTTPConnection(host, port, timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), dict(answer.getheaders())
    finally:
        connection.close()


def test_addresses() -> None:
    """A port alone is reached from this machine only."""
    good = {
        "127.0.0.1:9000": ("127.0.0.1", 9000),
        "10.0.0.7:80": ("10.0.0.7", 80),
        ":9000": ("127.0.0.1", 9000),
        "9000": ("127.0.0.1", 9000),
        "[::1]:9000": ("::1", 9000),
        "worker-1:9000": ("worker-1", 9000),
    }
    assert good == {text: read_address(text) for text in good}
    for text in ("", "localhost", "localhost:", "a:b", "1:65536", "1:-1", "1:٣"):
        with pytest.raises(ValueError, match="HOST:PORT"):
            read_address(text)


def test_status_and_body_say_the_same(serve: MakeServer) -> None:
    """200 or 503, and JSON that names what was looked at."""
    server = serve(Fixed(ready=False))
    live, ready = ask(server, "/livez"), ask(server, "/readyz?verbose")
    assert 200 == live[0]
    assert {"status": "ok", "checks": {"loop": "ok"}} == json.loads(live[1])
    assert 503 == ready[0]
    assert {"status": "failed", "checks": {"database": "it is away"}} == json.loads(ready[1])
    assert "queue-over-sql" == live[2]["Server"]
    assert "no-store" == live[2]["Cache-Control"]


def test_only_get_and_head_are_answered(serve: MakeServer) -> None:
    """HEAD has no body; what else is asked for is not told back."""
    server = serve(Fixed())
    assert (200, "") == ask(server, "/livez", "HEAD")[:2]
    for method in ("POST", "DELETE", "OPTIONS", "QUERY"):
        status, body, headers = ask(server, "/livez", method)
        assert 405 == status
        assert "GET, HEAD" == headers["Allow"]
        assert method not in body
    status, body, _ = ask(server, "/secret?token=hush")
    assert 404 == status
    assert "hush" not in body


def test_a_page_is_one_line(serve: MakeServer) -> None:
    """Metrics are one; a page that fails says nothing of why."""

    def fail() -> ProbePage:
        raise RuntimeError("password=hush")

    server = serve(Fixed(), {"/metrics": lambda: ProbePage("up 1\n"), "/broken": fail})
    status, body, headers = ask(server, "/metrics")
    assert 200 == status
    assert "up 1\n" == body
    assert headers["Content-Type"].startswith("text/plain")
    status, body, _ = ask(server, "/broken")
    assert 500 == status
    assert "hush" not in body
    assert 404 == ask(serve(Fixed()), "/metrics")[0]


def test_who_says_nothing_is_let_go(serve: MakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection lasts for so long, however slowly it is used; no more than eight at once."""
    monkeypatch.setattr(probes, "_CONNECTION_SECONDS", 1.0)
    server = serve(Fixed())
    with ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(read_address(server.address), 10))
            for _ in range(8)
        ]
        for each in silent:
            each.sendall(b"GET /livez HT")
        eventually(lambda: len(server._server._began) == 8, "all are accepted")
        with socket.create_connection(read_address(server.address), 10) as one_more:
            assert b"" == one_more.recv(100)
        for each in silent:
            assert b"" == each.recv(100)
    assert 200 == ask(server, "/livez")[0]


def test_a_taken_port_is_told_of(serve: MakeServer) -> None:
    """As an error of the system."""
    server = serve(Fixed())
    with pytest.raises(OSError, match=r"Address already in use"):
        ProbeServer(Fixed(), server.address)


def test_systemd_hears_of_ready_live_and_stopping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """READY once, WATCHDOG while it is live, STOPPING at the end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "60000")
        monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
        probed = Fixed(ready=False)
        with SystemdNotifier(probed):
            assert b"WATCHDOG=1" == systemd.recv(100)
            probed.is_ready = True
            while (heard := systemd.recv(100)) != b"READY=1":
                assert b"WATCHDOG=1" == heard
            assert b"WATCHDOG=1" == systemd.recv(100)
            probed.is_live = False
            systemd.settimeout(1.0)
            heard = b"WATCHDOG=1"
            while heard == b"WATCHDOG=1":
                try:
                    heard = systemd.recv(100)
                except TimeoutError:
                    heard = b""
            assert b"" == heard
        assert b"STOPPING=1" == systemd.recv(100)
