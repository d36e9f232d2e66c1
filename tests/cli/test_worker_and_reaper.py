"""Long-running commands: `worker` and `reaper`, with real signals."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path

import pytest

from queue_over_sql import Message, QueueService
from queue_over_sql.testing.plugin import MakeService, TestDatabase
from queue_over_sql.worker.worker import narrow
from tests.cli.command_line import run, started, succeed
from tests.waiting import eventually

pytestmark = pytest.mark.default_on("sqlite", "postgresql")

MODULE = """
import os
from pathlib import Path
from queue_over_sql import QueueService

service = QueueService(os.environ["QUEUE_OVER_SQL_URL"])
worker = service.worker(concurrency=2)
number = 7

@worker.handle("jobs")
def write(message):
    Path(f"done-{message.payload}").touch()

def make_worker(threads=2):
    return worker

def of(service):
    return service.worker()

def forgets():
    make_worker()
"""


@pytest.mark.chaos
def test_worker_runs_a_module_of_the_current_folder(database: TestDatabase, tmp_path: Path) -> None:
    """A Worker that a function makes handles messages, and SIGTERM ends it with code 0."""
    (tmp_path / "my_jobs.py").write_text(MODULE)
    succeed("create", "jobs", url=database.url)
    succeed("publish", "jobs", url=database.url, stdin="1\n2\n")
    log = tmp_path / "worker.log"
    target = "my_jobs:make_worker"
    with started("worker", target, url=database.url, log=log, cwd=tmp_path) as process:
        for number in (1, 2):
            eventually((tmp_path / f"done-{number}").exists, f"message {number} is handled")
        process.send_signal(signal.SIGTERM)
        assert 0 == process.wait(30)
    assert target in log.read_text()
    assert 3 == run("consume", "jobs", url=database.url).exit_code


def test_worker_explains_what_it_cannot_load(sqlite_url: str, tmp_path: Path) -> None:
    """A path that leads to no Worker is wrong usage, explained and without a traceback."""
    (tmp_path / "my_jobs.py").write_text(MODULE)
    wrong = {
        "my_jobs:number": "int",
        "my_jobs:nothing": "nothing",
        "my_jobs:of": "a function that needs service",
        "my_jobs:forgets": "NoneType",
        "no_such_module:worker": "no_such_module",
    }
    for target, reason in wrong.items():
        ended = run("worker", target, url=sqlite_url, cwd=tmp_path)
        assert 2 == ended.exit_code, target
        assert reason in ended.err, target
        assert "Traceback" not in ended.err, target


def test_worker_runs_the_handlers_that_are_named(sqlite_url: str) -> None:
    """Those of other queues are left out, and the number of threads is the one given."""
    service = QueueService(sqlite_url)
    queues = {name: service.create_queue(name) for name in ("a", "b")}
    worker = service.worker(concurrency=2)
    threads: set[int] = set()

    @worker.handle("a", batch=1)
    @worker.handle("b", batch=1)
    def note(messages: list[Message]) -> None:
        threads.add(threading.get_ident())
        assert 1 == len(messages)

    narrow(worker, ["a"], 1)
    for queue in queues.values():
        queue.publish_many(range(20))
    worker.run(until_empty=True)
    assert 1 == len(threads)
    assert 0 == queues["a"].stats().live
    assert 20 == queues["b"].stats().live
    service.stop()


def test_worker_names_its_queues_where_another_is_asked_for(
    sqlite_url: str, tmp_path: Path
) -> None:
    """A queue without a handler is wrong usage, told with those that have one."""
    (tmp_path / "my_jobs.py").write_text(MODULE)
    ended = run("worker", "my_jobs", "--queues", "jobs, mails", url=sqlite_url, cwd=tmp_path)
    told = " ".join(ended.err.replace("│", "").split())
    assert 2 == ended.exit_code
    assert "no handler of queue 'mails'; this worker handles: jobs" in told


@pytest.mark.chaos
def test_worker_starts_again_when_its_module_changes(sqlite_url: str, tmp_path: Path) -> None:
    """What it ran is drained; after an error in the module it starts once that is mended."""
    module = tmp_path / "my_jobs.py"
    module.write_text(MODULE)
    succeed("create", "jobs", url=sqlite_url)
    log = tmp_path / "worker.log"
    arguments = ("worker", "my_jobs", "--reload", "--queues", "jobs", "--concurrency", "1")
    with started(*arguments, url=sqlite_url, log=log, cwd=tmp_path) as process:
        succeed("publish", "jobs", "1", url=sqlite_url)
        eventually((tmp_path / "done-1").exists, "the first message is handled")
        module.write_text("import nothing_of_that_name\n")
        eventually(lambda: "nothing_of_that_name" in log.read_text(), "the error is told")
        module.write_text(MODULE.replace("done-", "mended-"))
        succeed("publish", "jobs", "2", url=sqlite_url)
        eventually((tmp_path / "mended-2").exists, "the mended module runs")
        process.send_signal(signal.SIGTERM)
        assert 0 == process.wait(30), log.read_text()


@pytest.mark.parametrize("processes", [1, 2])
def test_worker_ends_when_no_message_is_due(
    sqlite_url: str, tmp_path: Path, processes: int
) -> None:
    """With --until-empty it handles what is due, in several processes too, and ends with code 0."""
    (tmp_path / "my_jobs.py").write_text(MODULE)
    succeed("create", "jobs", url=sqlite_url)
    succeed("publish", "jobs", url=sqlite_url, stdin="1\n2\n")
    succeed("publish", "jobs", "3", "--delay", "1h", url=sqlite_url)
    options = ("--until-empty", "--processes", str(processes))
    ended = run("worker", "my_jobs", *options, url=sqlite_url, cwd=tmp_path)
    done = {path.name for path in tmp_path.glob("done-*")}
    assert 0 == ended.exit_code, ended.err
    assert {"done-1", "done-2"} == done, ended.err
    wrong = run("worker", "my_jobs", "--until-empty", "--reload", url=sqlite_url, cwd=tmp_path)
    assert 2 == wrong.exit_code


def test_worker_puts_url_where_the_module_finds_it(sqlite_url: str, tmp_path: Path) -> None:
    """--url reaches the user's module as QUEUE_OVER_SQL_URL."""
    (tmp_path / "shows.py").write_text(
        "import os; print(os.environ['QUEUE_OVER_SQL_URL'])\nworker = 1"
    )
    assert f"{sqlite_url}\n" == run("worker", "shows", "--url", sqlite_url, cwd=tmp_path).out


@pytest.mark.chaos
def test_reaper_gives_back_expired_leases(
    database: TestDatabase, make_service: MakeService, tmp_path: Path
) -> None:
    """The daemon alone brings a message back whose lease ran out, and SIGTERM ends it cleanly."""
    queue = make_service(consumer_timeout=60.0).create_queue("jobs")
    queue.publish(1)
    queue.consume(lease=0.05)
    log = tmp_path / "reaper.log"
    arguments = ("reaper", "--interval", "50ms", "--consumer-timeout", "5s")
    with started(*arguments, url=database.url, log=log) as process:
        eventually(lambda: queue.stats().ready == 1, "the message is ready again")
        process.send_signal(signal.SIGTERM)
        assert 0 == process.wait(30)
    assert "The reaper is stopping" in log.read_text()


@pytest.mark.chaos
def test_reaper_leaves_no_consumer_behind(sqlite_url: str, tmp_path: Path) -> None:
    """While it runs it is a consumer named reaper; stopped, it has signed off."""
    with started("reaper", url=sqlite_url, log=tmp_path / "log") as process:
        eventually(
            lambda: '"reaper"' in run("consumers", "--json", url=sqlite_url).out, "it registers"
        )
        process.send_signal(signal.SIGINT)
        assert 0 == process.wait(30)
    with QueueService(sqlite_url) as service:
        assert [service.consumer_id] == [c.consumer_id for c in service.consumers()]


def test_an_unknown_log_level_or_format_is_wrong_usage(sqlite_url: str) -> None:
    """Those that there are stand in the message."""
    for option, given, known in (("--log-level", "loud", "warning"), ("--log-format", "x", "json")):
        ended = run("reaper", option, given, url=sqlite_url)
        assert 2 == ended.exit_code
        assert known in ended.err


def test_log_lines_are_json(database: TestDatabase, tmp_path: Path) -> None:
    """Each is one object, with the fields of the message that it is about and the traceback."""
    (tmp_path / "my_jobs.py").write_text(MODULE)
    succeed("create", "jobs", "--max-attempts", "1", url=database.url)
    succeed("publish", "jobs", url=database.url, stdin='"a/b"\n')
    log = tmp_path / "worker.log"
    arguments = ("worker", "my_jobs:worker", "--log-format", "json")
    with started(*arguments, url=database.url, log=log, cwd=tmp_path) as process:
        eventually(lambda: "dead letter" in log.read_text(), "it has failed")
        process.send_signal(signal.SIGTERM)
        assert 0 == process.wait(30)
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert all({"time", "level", "logger", "message", "process"} <= each.keys() for each in records)
    failed = next(each for each in records if "exception" in each)
    assert ("WARNING", "jobs", 1, 1) == tuple(
        failed[name] for name in ("level", "queue", "message_id", "attempt")
    )
    assert "FileNotFoundError" in failed["exception"]
