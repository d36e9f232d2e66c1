"""Whether a process is live and ready, and whether queues are served, on each engine."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import make_url

from queue_over_sql import DatabaseUnavailable, Message, Queue, QueueService
from queue_over_sql.observability import Check, Health, check_queues, diagnose
from queue_over_sql.service import parts_of
from queue_over_sql.settling.settlements import Settlements
from queue_over_sql.testing.plugin import MakeService, TestDatabase
from queue_over_sql.worker.worker import vital_parts
from tests.contract.observability.test_doctor import run
from tests.contract.worker.running_worker import running
from tests.waiting import eventually, wait_until

pytestmark = pytest.mark.threads("tests/aio/test_health.py has those of the event loop")

# For an answer of the database on a busy machine: a bound, never a measure of speed.
LONGEST_WAIT = 60.0
MINUTES = 120 * 1_000_000
WELL = "ok"


def failed(service: QueueService, **options: float) -> dict[str, str]:
    """The checks that failed, with what they say."""
    checks: list[Check] = check_queues(service, **options)
    return {check.name: check.text for check in checks if not check.ok}


def test_a_service_is_ready_from_its_start_to_its_stop(make_service: MakeService) -> None:
    """Live all the while."""
    service = make_service()
    health = Health(service, database_timeout=LONGEST_WAIT)
    seen = [(health.live().ok, health.ready().ok)]
    service.start()
    seen.append((health.live().ok, health.ready().ok))
    assert {"heartbeat": WELL, "database": WELL} == health.ready().checks
    service.stop()
    seen.append((health.live().ok, health.ready().ok))
    assert [(True, False), (True, True), (True, False)] == seen


def test_one_that_the_database_takes_for_dead_is_not_ready(
    database: TestDatabase, make_service: MakeService
) -> None:
    """The registration is asked for, and not only whether the database answers."""
    # No heartbeat comes between that would register it again.
    service = make_service(consumer_timeout=600)
    service.start()
    health = Health(service, database_timeout=LONGEST_WAIT)
    run(database, "UPDATE queue_over_sql_consumers SET expires_at = 1")
    assert "it considers this consumer dead" == health.ready().checks["database"]


def test_a_worker_is_ready_while_it_takes_messages(make_service: MakeService) -> None:
    """Not before it runs, nor while it drains; live all the while."""
    service = make_service()
    outside = service.create_queue("jobs")
    worker = service.worker(concurrency=1)
    begun, go = threading.Event(), threading.Event()

    @worker.handle("jobs")
    def work(message: Message) -> None:
        assert 1 == message.payload
        begun.set()
        assert go.wait(30)

    health = Health(worker, database_timeout=LONGEST_WAIT)
    assert health.live().ok
    assert "it is not running yet" == health.ready().checks["worker"]
    with running(worker):
        wait_until(lambda: health.ready().ok)
        assert "supply of queue jobs" in health.live().checks
        outside.publish(1)
        assert begun.wait(30)
        worker.stop()
        report = health.ready()
        assert health.live().ok
        assert not report.ok
        assert ["worker"] == list(report.checks)
        go.set()


@contextlib.contextmanager
def no_thread_for(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the system refuse a thread of this name."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == f"queue-over-sql-{name}":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        yield


@pytest.mark.engines("sqlite")
@pytest.mark.parametrize("name", ["heartbeat", "reaper"])
def test_background_work_that_could_not_start_starts_later(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The caller gets the reason and may try again; until then the process is not live."""
    service = make_service()
    queue, health = service.create_queue("jobs"), Health(service, turn_timeout=0.001)
    patient = Health(service)
    verb = service.start if name == "reaper" else queue.consume
    with no_thread_for(name, monkeypatch):
        for _ in range(2):
            with pytest.raises(RuntimeError, match=f"The {name} cannot start"):
                verb()
        said = f"the {name} could not be started"
        # Its first run is due now.
        parts_of(service).background.loops[-1].due_at = 0.0
        wait_until(lambda: health.live().checks.get(name) == said)
    verb()
    assert WELL == patient.live().checks[name]


@pytest.mark.engines("postgresql")
def test_a_watchdog_that_could_not_start_starts_later(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers work without it, health says that it is missing, and each act tries again."""
    service = make_service()
    health = Health(service, turn_timeout=0.001)
    with no_thread_for("watchdog", monkeypatch):
        service.create_queue("jobs").publish(1)
        wait_until(lambda: "could not" in health.live().checks.get("watchdog", ""))
    assert service.queue("jobs").stats().ready
    assert WELL == Health(service).live().checks["watchdog"]


@pytest.mark.engines("sqlite")
def test_handlers_that_wait_for_each_other_are_hung(make_service: MakeService) -> None:
    """Two of two: the process can do nothing any more. Before the time it may be long work."""
    service = make_service()
    outside = service.create_queue("jobs")
    worker = service.worker(concurrency=2, prefetch=1)
    locks, both = [threading.Lock(), threading.Lock()], threading.Barrier(2)
    stop: list[bool] = []

    @worker.handle("jobs")
    def work(message: Message) -> None:
        first, second = locks[message.payload], locks[1 - message.payload]
        with first:
            both.wait(30)
            while not second.acquire(timeout=0.02):
                if stop:
                    return
            second.release()

    patient, strict = Health(worker), Health(worker, hung_after=0.3)
    outside.publish(0)
    with running(worker):
        wait_until(lambda: len(vital_parts(worker)[1].called_at) == 1)
        assert strict.live().ok
        outside.publish(1)
        wait_until(lambda: not strict.live().ok)
        said = "each of 2 has been in one handler call for more than 300 ms"
        assert said == strict.live().checks["handlers"]
        assert patient.live().ok
        stop.append(True)
        wait_until(lambda: strict.live().ok)


@pytest.mark.engines("sqlite")
def test_handlers_that_wait_for_the_database_are_not_hung(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They failed, and cannot give their message back while the database is away."""
    service = make_service()
    outside = service.create_queue("jobs")
    worker = service.worker(concurrency=1)
    worker.handle("jobs")(lambda message: message.payload["missing"])
    nack, back = Settlements.nack, threading.Event()
    tries: list[int] = []

    def away(settlements: Settlements, *arguments: Any, **options: Any) -> Any:
        tries.append(1)
        if back.is_set():
            return nack(settlements, *arguments, **options)
        raise DatabaseUnavailable("it is away")

    monkeypatch.setattr(Settlements, "nack", away)
    health = Health(worker, hung_after=0.05)
    outside.publish({})
    with running(worker):
        wait_until(lambda: len(tries) > 2)
        [began] = vital_parts(worker)[1].called_at.values()
        wait_until(lambda: time.monotonic() > began + 0.05)
        assert health.live().ok
        back.set()
        wait_until(lambda: not vital_parts(worker)[1].in_outage)


@pytest.mark.engines("sqlite")
def test_a_loop_of_the_library_that_hangs_is_told_of(
    make_service: MakeService, caplog: pytest.LogCaptureFixture
) -> None:
    """A supply whose lock somebody keeps: the log shows where it stands, once."""
    service = make_service()
    service.create_queue("jobs")
    worker = service.worker(concurrency=1)
    worker.handle("jobs")(print)
    health = Health(worker, turn_timeout=0.3)
    with running(worker):
        wait_until(lambda: health.ready().ok)
        supply = vital_parts(worker)[1].supplies[0]
        kept, go = threading.Event(), threading.Event()

        def keep() -> None:
            with supply._changed:
                kept.set()
                go.wait(60)

        keeper = threading.Thread(target=keep)
        keeper.start()
        assert kept.wait(30)
        # It comes round, and meets the lock.
        supply._woken = True
        service.queue("jobs").publish(1)
        eventually(lambda: not health.live().ok, "it is not live")
        assert not health.live().ok
        go.set()
        keeper.join()
        wait_until(lambda: health.live().ok)
    told = [record.getMessage() for record in caplog.records if "not live" in record.msg]
    assert 1 == len(told)
    assert "supply.py" in told[0]


@pytest.mark.engines("sqlite")
def test_a_loop_that_waits_for_the_database_is_not_stuck(
    service: QueueService, make_service: MakeService
) -> None:
    """However late it is: a restart would not help."""
    service.start()
    health = Health(service, turn_timeout=0.1)
    begun, go = threading.Event(), threading.Event()

    def slow(_: object) -> None:
        begun.set()
        go.wait(60)

    other = make_service()
    parts = parts_of(other)
    parts.background.every(0.02, "slow job", lambda: parts.connections.run(slow))
    late = Health(other, turn_timeout=0.1)
    assert begun.wait(30)
    ends_at = time.monotonic() + 0.5
    while time.monotonic() < ends_at:
        assert late.live().ok
        time.sleep(0.02)
    loop = next(loop for loop in parts.background.loops if loop.name == "slow job")
    assert time.monotonic() - loop.due_at > 0.3
    go.set()
    assert health.live().ok


@pytest.mark.engines("sqlite")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_loop_that_ended_by_itself_is_not_live(make_service: MakeService) -> None:
    """What no handler of errors catches must not leave a process that only looks well."""
    service = make_service()
    service.start()
    parts = vital_parts(service.worker())[0]

    def leave() -> None:
        raise SystemExit

    parts.background.every(0.02, "leaver", leave)
    health = Health(service)
    wait_until(lambda: not health.live().ok)
    assert "the leaver has stopped unexpectedly" == health.live().checks["leaver"]


@pytest.mark.engines("sqlite")
def test_what_is_watched_and_how_is_checked(service: QueueService) -> None:
    """Before anybody relies on it."""
    with pytest.raises(TypeError, match="a service or a worker"):
        Health("worker")
    for name in ("hung_after", "database_timeout", "turn_timeout"):
        nothing: dict[str, Any] = {name: 0}
        with pytest.raises(ValueError, match=name):
            Health(service, **nothing)


def test_queues_that_are_served(service: QueueService, queue: Queue) -> None:
    """A consumer is alive, and nothing waits for long."""
    service.start()
    queue.publish(1)
    checks = check_queues(service, max_age=60.0)
    assert {} == failed(service, max_age=60.0)
    names = ["database", "schema", "consumers", "reaper", "queue jobs"]
    assert names == [check.name for check in checks]


@pytest.mark.empty_database
def test_no_tables(service: QueueService) -> None:
    """It says so, and makes none."""
    for _ in range(2):
        assert ["schema"] == list(failed(service))


def test_no_consumer(service: QueueService) -> None:
    """Neither one that died."""
    service.create_queue("jobs")
    assert {"consumers": "none is alive: start a worker"} == failed(service)


def test_what_waits_for_a_reaper_in_vain(
    database: TestDatabase, service: QueueService, make_service: MakeService, queue: Queue
) -> None:
    """Dead consumers, expired leases and schedules that are due; each for more than a minute."""
    service.schedules.add("often", "jobs", 1, every=60.0)
    queue.publish_many([1, 2])
    holder = make_service(consumer_timeout=3600.0)
    assert 1 == len(holder.queue("jobs").consume())
    assert {} == failed(service)
    acts = {
        "expired leases of jobs": "UPDATE queue_jobs SET lease_expires_at = lease_expires_at - "
        f"{MINUTES * 10} WHERE consumer_id IS NOT NULL",
        "schedules that are due": f"UPDATE queue_over_sql_schedules SET next_at = next_at - "
        f"{MINUTES * 10}",
        "1 dead consumers": f"UPDATE queue_over_sql_consumers SET expires_at = expires_at - "
        f"{MINUTES} - 3600000000",
    }
    for waits, act in acts.items():
        run(database, act)
        assert waits in failed(service)["reaper"]
    service.reap()
    assert "reaper" not in failed(service)


def test_a_queue_that_waits(
    database: TestDatabase, service: QueueService, make_service: MakeService, queue: Queue
) -> None:
    """Too old a message, or nobody who handles the queue; a pause is meant.

    Whoever asks for other messages of it handles it, even if it holds none at the moment.
    """
    service.start()
    queue.publish_many([1, 2])
    run(database, f"UPDATE queue_jobs SET available_at = available_at - {MINUTES}")
    text = failed(service)["queue jobs"]
    assert "no consumer handles this queue" in text
    served = make_service()
    assert [] == served.queue("jobs").consume(where=queue.table.c.id < 0)
    assert {} == failed(service)
    assert [] == [each for each in diagnose(service) if "handles" in each.text]
    served.stop()
    assert "queue jobs" in failed(service)
    assert 1 == len([each for each in diagnose(service) if "no consumer handles it" in each.text])
    assert re.search(r"has been due for \d+ min( \d+ s)?,", text)
    assert 1 == len(queue.consume())
    assert {} == failed(service)
    assert "more than 1 min 40 s" in failed(service, max_age=100.0)["queue jobs"]
    service.create_queue("jobs", warn_age=1, critical_age=3600)
    assert {} == failed(service, max_age=100.0)
    service.create_queue("jobs", critical_age=90)
    assert "more than 1 min 30 s" in failed(service)["queue jobs"]
    queue.pause()
    assert {} == failed(service, max_age=100.0)


def test_the_oldest_message_of_any_level_counts(
    database: TestDatabase, service: QueueService
) -> None:
    """Also one of a table of the user's own, and of a level that is not urgent."""
    queue = service.create_queue("levels", priorities=3)
    service.start()
    queue.publish(1)
    queue.publish(2, priority=2)
    run(
        database,
        f"UPDATE queue_levels SET available_at = available_at - {MINUTES} WHERE priority = 2",
        "CREATE TABLE notes (id INTEGER PRIMARY KEY, body INTEGER)",
        "INSERT INTO notes VALUES (1, 1)",
    )
    try:
        notes = service.adopt_queue("notes", "notes")
        notes.enqueue(notes.table.c.id == 1)
        run(database, f"UPDATE notes SET available_at = available_at - {MINUTES}")
        assert {"queue levels", "queue notes"} == set(failed(service, max_age=60.0))
    finally:
        service.drop_queue("notes")
        run(database, "DROP TABLE notes")


@pytest.mark.engines("sqlite")
def test_settings_that_cannot_be_read_fail_one_queue(
    database: TestDatabase, service: QueueService, queue: Queue
) -> None:
    """The others are looked at."""
    assert "jobs" == queue.name
    service.create_queue("other")
    service.start()
    run(database, "UPDATE queue_over_sql_queues SET settings = '{}' WHERE name = 'jobs'")
    assert ["queue jobs"] == list(failed(service))


@pytest.mark.engines("postgresql", "mysql", "mariadb", "h2")
def test_a_database_that_is_not_there(database: TestDatabase) -> None:
    """It is the finding, within the time, and no error."""
    service = QueueService(make_url(database.url).set(host="127.0.0.1", port=1))
    try:
        began = time.monotonic()
        assert ["database"] == list(failed(service, timeout=20.0))
        assert time.monotonic() - began < 25
    finally:
        service.stop(1.0)
