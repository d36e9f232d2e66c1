"""`worker --processes N`: several processes, restarted when they die, ended together."""

from __future__ import annotations

import itertools
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from queue_over_sql.testing.plugin import TestDatabase
from queue_over_sql.worker.processes import Supervisor, WorkerProcess
from queue_over_sql.worker.source_files import SourceFiles
from tests.cli.command_line import ROOT, run, started, succeed
from tests.waiting import eventually

pytestmark = pytest.mark.default_on("sqlite", "postgresql")

MODULE = """
import os, time
from pathlib import Path
from queue_over_sql import QueueService

service = QueueService(os.environ["QUEUE_OVER_SQL_URL"], consumer_timeout=6, reaper_interval=0.2)
worker = service.worker(concurrency=1)

@worker.handle("jobs")
def handle(message):
    with Path(f"calls-{os.getpid()}").open("a") as file:
        file.write(f"{message.payload}\\n")
    until = time.monotonic() + 60
    while message.payload < 0 and not Path("go").exists() and time.monotonic() < until:
        time.sleep(0.01)
"""


# It runs until the file is there that its argument names.
CHILD = """
import os, sys, time
from pathlib import Path
from queue_over_sql.worker.processes import obey_supervisor

obey_supervisor(Path("drains").touch, lambda: os._exit(9), lambda: ({}, {}))
Path("listens").touch()
until = time.monotonic() + 60
while not Path(sys.argv[1]).exists() and time.monotonic() < until:
    time.sleep(0.01)
"""


def starts(log: Path) -> list[int]:
    """The processes that the supervisor started, oldest first."""
    return [int(number) for number in re.findall(r"Process (\d+) starts", log.read_text())]


def said_by(number: int, log: Path, words: str) -> bool:
    """Whether a process has said that it drains, in a line that contains these words."""
    lines = [line for line in log.read_text().splitlines() if f" {number} " in line]
    return any(words in line and "finishes its current messages" in line for line in lines)


def handled(folder: Path) -> dict[int, list[int]]:
    """What each process has begun to handle."""
    return {
        int(path.name.removeprefix("calls-")): list(map(int, path.read_text().split()))
        for path in folder.glob("calls-*")
    }


def all_handled(folder: Path, count: int) -> Callable[[], bool]:
    """Whether each of so many messages was handled, wherever."""
    return lambda: set(range(count)) <= {n for calls in handled(folder).values() for n in calls}


def is_alive(number: int) -> bool:
    """Whether there is such a process, and no zombie."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@contextmanager
def two_at_work(url: str, folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Two processes that handle a message each, until the file `go` is there; with their log."""
    (folder / "my_jobs.py").write_text(MODULE)
    succeed("create", "jobs", url=url)
    # Each of the two holds one of these, so that both are known to have begun.
    succeed("publish", "jobs", url=url, stdin="-1\n-2\n")
    log = folder / "worker.log"
    command = ("worker", "my_jobs", "--processes", "2")
    with started(*command, url=url, log=log, cwd=folder, group=True) as process:
        eventually(lambda: len(handled(folder)) == 2, "both processes handle a message")
        yield process, log


@pytest.mark.chaos
def test_a_killed_process_is_replaced_and_nothing_is_lost(
    database: TestDatabase, tmp_path: Path
) -> None:
    """A process that is killed costs no message; SIGTERM ends all of them with code 0."""
    with two_at_work(database.url, tmp_path) as (process, log):
        killed, other = starts(log)
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: len(starts(log)) == 3, "another process starts")
        (tmp_path / "go").touch()
        succeed("publish", "jobs", url=database.url, stdin="\n".join(map(str, range(50))))
        eventually(all_handled(tmp_path, 50), "all messages are handled")
        eventually(lambda: run("peek", "jobs", url=database.url).out == "", "the queue is empty")
        process.send_signal(signal.SIGTERM)
        assert 0 == process.wait(30), log.read_text()
    held = [n for calls in handled(tmp_path).values() for n in calls if n < 0]
    said = log.read_text()
    assert {
        "killed": f"Process {killed} died: signal 9" in said,
        "drained": f"Process {other} ended: exit code 0" in said,
        "delivered again": True,
        "alive": [],
    } == {
        "killed": True,
        "drained": True,
        "delivered again": len(held) > 2 and set(held) == {-1, -2},
        "alive": [number for number in starts(log) if is_alive(number)],
    }


@pytest.mark.chaos
@pytest.mark.engines("sqlite")
def test_processes_end_with_a_killed_supervisor(sqlite_url: str, tmp_path: Path) -> None:
    """When the supervisor is killed, the processes finish their messages and stop."""
    with two_at_work(sqlite_url, tmp_path) as (process, log):
        process.kill()
        process.wait(30)
        (tmp_path / "go").touch()
        numbers = starts(log)
        eventually(lambda: not any(map(is_alive, numbers)), "both processes end")
    assert "" == run("peek", "jobs", url=sqlite_url).out
    assert 2 == len(numbers)


@pytest.mark.chaos
@pytest.mark.engines("sqlite")
def test_a_second_signal_stops_all_processes_at_once(sqlite_url: str, tmp_path: Path) -> None:
    """The command does not wait for its handlers; their messages go back to the queue."""
    with two_at_work(sqlite_url, tmp_path) as (process, log):
        # As Ctrl-C does: to the whole group.
        os.killpg(process.pid, signal.SIGINT)
        eventually(
            lambda: log.read_text().count("finishes its current messages") == 2, "both drain"
        )
        os.killpg(process.pid, signal.SIGINT)
        assert 0 == process.wait(30), log.read_text()
    assert {"-1", "-2"} == set(run("consume", "jobs", "--count", "2", url=sqlite_url).out.split())


@pytest.mark.chaos
@pytest.mark.engines("sqlite")
def test_a_signal_to_all_processes_drains_them(sqlite_url: str, tmp_path: Path) -> None:
    """As systemd sends it: with what the supervisor says it is one request, whichever is first."""
    with two_at_work(sqlite_url, tmp_path) as (process, log):
        first, last = starts(log)
        os.kill(first, signal.SIGTERM)
        eventually(lambda: said_by(first, log, "SIGTERM"), "the first process drains")
        process.send_signal(signal.SIGTERM)
        for number in (first, last):
            eventually(lambda: said_by(number, log, "This process"), "it is told to drain")  # noqa: B023 - runs at once
        os.kill(last, signal.SIGTERM)
        eventually(lambda: said_by(last, log, "SIGTERM"), "the signal arrives")
        (tmp_path / "go").touch()
        assert 0 == process.wait(30), log.read_text()
    said = log.read_text()
    assert "" == run("peek", "jobs", url=sqlite_url).out, said
    assert 0 == sum(words in said for words in ("immediately", "again: the worker", "died")), said
    assert 2 == sum(len(calls) for calls in handled(tmp_path).values()), said


@pytest.mark.chaos
@pytest.mark.engines("sqlite")
def test_a_signal_to_all_processes_during_their_start_is_no_failure(
    sqlite_url: str, tmp_path: Path
) -> None:
    """They die of it, or leave their start; nothing was in work, so the command ends in order."""
    (tmp_path / "my_jobs.py").write_text(MODULE)
    succeed("create", "jobs", url=sqlite_url)
    for number in (signal.SIGTERM, signal.SIGINT):
        log = tmp_path / f"{number.name}.log"
        command = ("worker", "my_jobs", "--processes", "2")
        with started(*command, url=sqlite_url, log=log, cwd=tmp_path, group=True) as process:
            eventually(lambda: len(starts(log)) == 2, "both processes start")  # noqa: B023 - runs at once
            process.send_signal(number)
            for each in starts(log):
                os.kill(each, number)
            assert 0 == process.wait(30), log.read_text()
        assert " died" not in log.read_text()


@pytest.mark.engines("sqlite")
def test_a_process_that_does_not_listen_is_told_to_stop_later(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its socket is full, because it did not read; what it was told is not lost."""
    (tmp_path / "my_jobs.py").write_text(MODULE)
    succeed("create", "jobs", url=sqlite_url)
    monkeypatch.setenv("QUEUE_OVER_SQL_URL", sqlite_url)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-m", "queue_over_sql", "worker", "my_jobs", "--supervised"]
    process = WorkerProcess(command)
    running, pipe = process._running, process._pipe
    assert running is not None
    assert pipe is not None
    try:
        os.kill(running.pid, signal.SIGSTOP)
        for _ in range(10_000):
            process.request_health()
        with suppress(BlockingIOError):
            while True:
                pipe.send(b"?")
        process.request_stop(1)
        os.kill(running.pid, signal.SIGCONT)
        codes: list[int | None] = []

        def is_over() -> bool:
            codes.append(process.poll(restart=False))
            return process.is_over

        eventually(is_over, "the process drains")
        assert 0 == codes[-1]
    finally:
        running.kill()
        process.let_go()


@pytest.mark.engines("sqlite")
def test_a_worker_that_cannot_start_is_not_started_for_ever(
    sqlite_url: str, tmp_path: Path
) -> None:
    """A wrong path and a missing queue end the command, with the exit code of one process."""
    (tmp_path / "my_jobs.py").write_text(MODULE)
    for target, code, reason in (("nothing", 2, "no module"), ("my_jobs", 3, "no queue 'jobs'")):
        ended = run("worker", target, "--processes", "2", url=sqlite_url, cwd=tmp_path)
        assert code == ended.exit_code, ended.err
        assert reason in ended.err, ended.err


@pytest.mark.engines("sqlite")
def test_a_supervisor_is_not_ready_before_its_processes_are_there() -> None:
    """Probes are answered from the first moment on, when there is nobody to ask."""
    supervisor = Supervisor(["true"], 2)
    assert {"supervisor": "ok"} == supervisor.live()
    assert {"supervisor": "ok", "process": "it starts"} == supervisor.ready()


@pytest.mark.engines("sqlite")
def test_a_signal_after_a_changed_file_is_the_first_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process drains already because of the file. It still finishes its messages."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    drains, changed, asked = tmp_path / "drains", [True], itertools.count()

    class Sources(SourceFiles):
        def have_changed(self) -> bool:
            return (tmp_path / "listens").exists() and bool(changed) and changed.pop()

    def requested() -> int:
        if not drains.exists():
            return 0
        if next(asked) > 3:
            (tmp_path / "go").touch()
        return 1

    supervisor = Supervisor([sys.executable, "-c", CHILD, "go"], 1, sources=Sources())
    assert 0 == supervisor.run(requested)


@pytest.mark.engines("sqlite")
@pytest.mark.parametrize("dies", [True, False])
def test_a_process_notices_the_end_of_a_supervisor_that_has_not_read_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, dies: bool
) -> None:
    """A request of health was answered, and nobody waited for it any more."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    process = WorkerProcess([sys.executable, "-c", CHILD, "drains"])
    running, pipe = process._running, process._pipe
    assert running is not None
    assert pipe is not None
    try:
        process.request_health()
        assert select.select([pipe], [], [], 30)[0]
        if dies:
            pipe.close()
        else:
            process.let_go()
        assert 0 == running.wait(30)
        assert (tmp_path / "drains").exists()
    finally:
        running.kill()
