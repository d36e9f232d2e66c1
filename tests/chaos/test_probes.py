"""Probes of real processes: outages, deadlocks, drains, and processes of a supervisor."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from queue_over_sql.testing.plugin import TestDatabase
from tests.chaos.proxy import Proxy
from tests.cli.command_line import started, succeed
from tests.waiting import eventually

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(180)]

MODULE = """
import os, threading, time
from pathlib import Path
from queue_over_sql import QueueService

service = QueueService(os.environ["QUEUE_OVER_SQL_URL"], consumer_timeout=6, reaper_interval=0.2)
worker = service.worker(concurrency=2, prefetch=1)
locks = [threading.Lock(), threading.Lock()]

@worker.handle("jobs")
def handle(message):
    Path(f"begun-{message.payload}").touch()
    if message.payload == "slow":
        while not Path("go").exists():
            time.sleep(0.01)
        return
    # Each of two has what the other wants.
    with locks[message.payload]:
        Path(f"locked-{message.payload}").touch()
        while not (Path("locked-0").exists() and Path("locked-1").exists()):
            time.sleep(0.01)
        with locks[1 - message.payload]:
            pass
"""


class Running(NamedTuple):
    """A process that answers probes."""

    process: subprocess.Popen[bytes]
    folder: Path
    log: Path

    def ask(self, path: str) -> tuple[int, dict[str, str]]:
        """The status of an answer, and its checks; 0 where there is none."""
        address = re.search(r"http://([0-9.]+):(\d+)", self.log.read_text())
        if address is None:
            return 0, {}
        connection = http.client.HTTPConnection(address[1], int(address[2]), timeout=20)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())["checks"]
        except OSError:
            return 0, {}
        finally:
            connection.close()

    def becomes(self, path: str, status: int, *, within: float = 90.0) -> dict[str, str]:
        """Wait for an answer; returns its checks."""
        found: dict[str, str] = {}

        def asked() -> bool:
            seen, checks = self.ask(path)
            found.clear()
            found.update(checks)
            return seen == status

        eventually(asked, f"{path} answers {status}: {self.log.read_text()}", within=within)
        return dict(found)


@contextmanager
def running(url: str, folder: Path, *arguments: str) -> Iterator[Running]:
    """A worker of that module that is ready."""
    (folder / "my_jobs.py").write_text(MODULE)
    log = folder / "log"
    command = ("worker", "my_jobs", "--http", "0", *arguments)
    with started(*command, url=url, log=log, cwd=folder) as process:
        worker = Running(process, folder, log)
        worker.becomes("/readyz", 200)
        yield worker


@pytest.mark.engines("postgresql", "mariadb", "mysql")
@pytest.mark.default_on("postgresql")
def test_an_outage_makes_unready_and_restarts_nothing(
    database: TestDatabase, tmp_path: Path
) -> None:
    """It stays live for as long as the silence lasts, and comes back by itself."""
    succeed("create", "jobs", url=database.url)
    proxy = Proxy(database.url)
    try:
        with running(proxy.url, tmp_path) as worker:
            proxy.fall_silent()
            said = worker.becomes("/readyz", 503)
            assert "ok" != said["database"]
            # Until the consumer has expired, and the service has given up its connections.
            eventually(
                lambda: (
                    worker.ask("/livez")[0] == 200 and worker.ask("/readyz")[1]["heartbeat"] != "ok"
                ),
                "its heartbeat ends",
                within=60,
            )
            assert 200 == worker.ask("/livez")[0]
            proxy.recover()
            (tmp_path / "go").touch()
            succeed("publish", "jobs", '"slow"', url=database.url)
            worker.becomes("/readyz", 200)
            assert 200 == worker.ask("/livez")[0]
            eventually((tmp_path / "begun-slow").exists, "it works again")
            assert worker.process.poll() is None
    finally:
        proxy.close()


@pytest.mark.engines("sqlite")
def test_handlers_in_a_deadlock_are_not_live(sqlite_url: str, tmp_path: Path) -> None:
    """Each thread waits for the other. It is ready all the same: the database is well."""
    succeed("create", "jobs", url=sqlite_url)
    with running(sqlite_url, tmp_path, "--hung-after", "500ms") as worker:
        assert 200 == worker.ask("/livez")[0]
        succeed("publish", "jobs", url=sqlite_url, stdin="0\n1\n")
        said = worker.becomes("/livez", 503)
        assert "each of 2 has been in one handler call for more than 500 ms" == said["handlers"]
        log = worker.log.read_text()
        assert "This process is not live" in log
        assert "with locks[1 - message.payload]" in log


@pytest.mark.engines("sqlite")
def test_a_worker_that_drains_is_live_and_not_ready(sqlite_url: str, tmp_path: Path) -> None:
    """From the signal on, until its last handler has ended."""
    succeed("create", "jobs", url=sqlite_url)
    with running(sqlite_url, tmp_path) as worker:
        succeed("publish", "jobs", '"slow"', url=sqlite_url)
        eventually((tmp_path / "begun-slow").exists, "the handler runs")
        worker.process.send_signal(signal.SIGTERM)
        said = worker.becomes("/readyz", 503)
        assert {"worker": "it is stopping: it finishes its current messages"} == said
        assert 200 == worker.ask("/livez")[0]
        (tmp_path / "go").touch()
        assert 0 == worker.process.wait(30)


@pytest.mark.engines("sqlite")
def test_a_supervisor_answers_for_its_processes(sqlite_url: str, tmp_path: Path) -> None:
    """One that is stopped is found; one that is killed is replaced."""
    succeed("create", "jobs", url=sqlite_url)
    with running(sqlite_url, tmp_path, "--processes", "2") as worker:
        live, checks = worker.ask("/livez")
        numbers = sorted({int(n) for key in checks for n in re.findall(r"process (\d+)", key)})
        assert 200 == live
        assert 2 == len(numbers)
        frozen, killed = numbers
        os.kill(frozen, signal.SIGSTOP)
        said = worker.becomes("/livez", 503)
        assert "it does not answer within 4 s" == said[f"process {frozen}"]
        os.kill(frozen, signal.SIGCONT)
        worker.becomes("/livez", 200)
        worker.becomes("/readyz", 200)
        os.kill(killed, signal.SIGKILL)

        def is_named() -> bool:
            return any(f"process {killed}" in key for key in worker.ask("/readyz")[1])

        # Its replacement may be ready before anybody sees that it is missed.
        eventually(lambda: not is_named(), "the killed one is missed or replaced")
        assert 200 == worker.ask("/livez")[0]
        worker.becomes("/readyz", 200)
        assert not is_named()
        worker.process.send_signal(signal.SIGTERM)
        assert 0 == worker.process.wait(60)


@pytest.mark.engines("sqlite")
def test_a_reaper_tells_systemd(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ready once it is, live again and again, and that it stops."""
    succeed("create", "jobs", url=sqlite_url)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "300000")
        heard: list[bytes] = []
        with started("reaper", url=sqlite_url, log=tmp_path / "log") as process:
            while heard.count(b"WATCHDOG=1") < 2 or b"READY=1" not in heard:
                heard.append(systemd.recv(100))
            process.send_signal(signal.SIGTERM)
            while heard[-1] != b"STOPPING=1":
                heard.append(systemd.recv(100))
            assert 0 == process.wait(60)
    assert 1 == heard.count(b"READY=1")
