"""The network acknowledges everything, but nobody ever answers."""

from __future__ import annotations

import contextlib
import functools
import logging
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.exc import DBAPIError

from queue_over_sql import ClaimLost, DatabaseUnavailable, Queue, QueueError, QueueService
from queue_over_sql.testing.plugin import MakeService, TestDatabase
from tests.chaos.account import create_effects, effects, live_tokens
from tests.chaos.processes import Crew, Process
from tests.chaos.proxy import Proxy
from tests.chaos.roles import worker
from tests.cli.command_line import started
from tests.contract.bridge import Bridge
from tests.waiting import eventually

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.engines("postgresql", "mariadb", "mysql", "h2"),
    # Whose driver has no bound of its own at all.
    pytest.mark.default_on("mariadb"),
    pytest.mark.timeout(120),
]
ASYNCHRONOUS = ("postgresql", "mariadb", "mysql")
# A bound for what takes less than one: the machine may be short of time.
A_SECOND = 4.0
# Those of the drivers for a connect come on top of the service's own.
BOUND = 60.0
TIMEOUT = 5.0


@pytest.fixture
def proxy(database: TestDatabase) -> Iterator[Proxy]:
    """Before the test's server."""
    proxy = Proxy(database.url)
    yield proxy
    proxy.close()


@pytest.fixture
def bridge() -> Iterator[Bridge]:
    """Asynchronous services under synchronous names."""
    bridge = Bridge()
    yield bridge
    bridge.close()


def in_daemon(act: Callable[[], object]) -> Future[object]:
    """Call it in a thread that does not keep a failed test from ending."""
    future: Future[object] = Future()

    def run() -> None:
        try:
            future.set_result(act())
        except BaseException as error:  # noqa: BLE001 - it is looked at by the test
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def check_that_every_wait_ends(service: Any, proxy: Proxy) -> None:
    """Each verb that waits raises, and afterwards the same objects work again."""
    service.start()
    queue = service.create_queue("jobs")
    queue.publish_many([{"number": number} for number in range(10)])
    acked, nacked, extended, released = queue.consume(4)
    service.schedules.add("often", "jobs", {}, every=timedelta(hours=1))
    verbs: dict[str, Callable[[], object]] = {
        "publish": lambda: queue.publish({}),
        "publish_many": lambda: queue.publish_many([{}] * 100),
        "consume": queue.consume,
        "ack": acked.ack,
        "nack": nacked.nack,
        "extend": lambda: extended.extend(60),
        "release": released.release,
        "stats": queue.stats,
        "queues": service.queues,
        "reap": service.reap,
        "schedules": service.schedules.list,
        "consumers": service.consumers,
    }
    # Each with a connection of its own that was used lately.
    ready = threading.Barrier(len(verbs) + 1)
    silent = threading.Event()

    def call(verb: Callable[[], object]) -> object:
        queue.stats()
        ready.wait(BOUND)
        silent.wait(BOUND)
        return verb()

    calls = {name: in_daemon(functools.partial(call, verb)) for name, verb in verbs.items()}
    ready.wait(BOUND)
    proxy.fall_silent()
    silent.set()
    deadline = time.monotonic() + BOUND
    for name, called in calls.items():
        error = called.exception(max(0.0, deadline - time.monotonic()))
        assert isinstance(error, DatabaseUnavailable | ClaimLost), (name, error)

    proxy.recover()

    def back() -> bool:
        try:
            return bool(queue.consume())
        except DatabaseUnavailable:
            return False

    eventually(back, "it works again", within=BOUND)
    service.stop()


def test_every_wait_ends(proxy: Proxy) -> None:
    """Of publishers, consumers, the reaper, schedules and the heartbeat, on threads."""
    check_that_every_wait_ends(QueueService(proxy.url, consumer_timeout=TIMEOUT), proxy)


@pytest.mark.full
@pytest.mark.engines(*ASYNCHRONOUS)
def test_every_wait_ends_on_an_event_loop(proxy: Proxy, bridge: Bridge) -> None:
    """The same, awaited."""
    check_that_every_wait_ends(on_a_loop(proxy, bridge), proxy)


def test_old_connections_that_a_proxy_lost_are_left(proxy: Proxy) -> None:
    """The heartbeat hears nothing on one of them, so a call that waits on another ends, too.

    New connections are answered, so the database is not silent.
    """
    service = QueueService(proxy.url, consumer_timeout=TIMEOUT)
    service.start()
    queue = service.create_queue("jobs")
    calling, silent = _publishing_later(queue)
    eventually(lambda: _has_renewed(service), "a heartbeat came")
    proxy.fall_silent()
    proxy.recover()
    silent.set()
    # Or none, if so much time had passed that the session was checked before.
    assert isinstance(calling.exception(BOUND), DatabaseUnavailable | None)
    eventually(lambda: bool(queue.stats()), "it works again", within=BOUND)
    service.stop()


@pytest.mark.full
@pytest.mark.engines("postgresql", "mysql", "mariadb")
def test_a_heartbeat_finds_another_way_in_time(proxy: Proxy, database: TestDatabase) -> None:
    """If the ways of all connections are lost at once, and another call waited before it.

    It waited until its consumer had expired, although new connections were answered.
    """
    service, other = QueueService(proxy.url), QueueService(database.url)
    service.start()
    calling, silent = _publishing_later(service.create_queue("jobs"))
    eventually(lambda: _has_renewed(service), "a heartbeat came")
    consumer_id = service.consumer_id

    def renewed_at() -> datetime:
        [found] = [each for each in other.consumers() if each.consumer_id == consumer_id]
        return found.heartbeat_at

    proxy.fall_silent()
    before = renewed_at()
    proxy.recover()
    silent.set()
    eventually(lambda: renewed_at() > before, "it is alive", within=BOUND)
    assert consumer_id == service.consumer_id
    calling.exception(BOUND)
    service.stop()
    other.stop()


@pytest.mark.full
@pytest.mark.engines("postgresql")
def test_who_listens_leaves_with_a_call_that_is_lost(proxy: Proxy, sql: Engine) -> None:
    """It waits for nothing, so it heard of no message until its connection was 15 minutes old."""
    service = QueueService(proxy.url, consumer_timeout=TIMEOUT)
    queue = service.create_queue("jobs")

    def listening() -> set[int]:
        query = "SELECT pid FROM pg_stat_activity WHERE query ILIKE 'listen%%'"
        with sql.connect() as connection:
            return set(connection.exec_driver_sql(query).scalars())

    assert not queue.consume(wait=2.0)
    eventually(listening, "it listens")
    calling, silent = _publishing_later(queue)
    before = listening()
    proxy.fall_silent()
    proxy.recover()
    silent.set()
    # None, if so much time had passed that the session was checked before.
    assert isinstance(calling.exception(BOUND), DatabaseUnavailable | None)
    eventually(lambda: listening() - before, "another one listens", within=BOUND)
    service.stop()


def _in_a_new_thread(service: QueueService) -> object:
    return in_daemon(service.queues).result(BOUND)


@pytest.mark.parametrize(
    ("ready", "act"),
    [
        (False, QueueService.start),
        (True, _in_a_new_thread),
        (True, lambda service: service._parts.connections.server_reads_only()),
        (True, lambda service: service._parts.connections._ask()),
    ],
    ids=["start", "session", "reads-only", "question"],
)
def test_a_connection_that_is_lost_as_soon_as_it_is_made_is_left(
    proxy: Proxy, ready: bool, act: Callable[[QueueService], object]
) -> None:
    """No heartbeat is there yet, or it goes on: others are answered, so nothing else ends the wait.

    A worker's process that had just started waited for ever.
    """
    service = QueueService(proxy.url, consumer_timeout=TIMEOUT)
    if ready:
        service.start()

    lost = threading.Event()

    @event.listens_for(service._parts.connections.engine, "engine_connect", once=True)
    def _(_: object) -> None:
        proxy.fall_silent()
        proxy.recover()
        lost.set()

    error = in_daemon(lambda: act(service)).exception(BOUND)
    assert lost.is_set()
    assert isinstance(error, DatabaseUnavailable | None)
    eventually(lambda: service.queues() == [], "it works again", within=BOUND)
    service.stop()


def test_a_test_query_that_ends_after_a_stop_leaves_no_connection(proxy: Proxy) -> None:
    """Nothing can interrupt its attempt to connect, and nobody stops the service again."""
    service = QueueService(proxy.url)
    service.create_queue("jobs")
    connections = service._parts.connections
    service.stop()
    opened, closed = mock.Mock(), mock.Mock()
    event.listen(connections.engine, "connect", opened)
    event.listen(connections.engine, "close", closed)
    connections._ask()
    assert 1 == opened.call_count
    assert 1 == closed.call_count


def test_a_session_that_was_idle_is_left_if_its_check_hears_nothing(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a heartbeat; its user notices nothing but the wait."""
    service = QueueService(proxy.url, consumer_timeout=TIMEOUT)
    queue = service.create_queue("jobs")
    queue.publish({"number": 1})
    monkeypatch.setattr("queue_over_sql.database.sessions._IDLE_SECONDS", 0.0)
    proxy.fall_silent()
    proxy.recover()
    assert in_daemon(lambda: queue.publish({"number": 2})).exception(BOUND) is None
    assert 2 == queue.stats().ready
    service.stop()


def _limited_before(service: QueueService) -> contextlib.AbstractContextManager[None]:
    return service._parts.connections.giving_way()


def _unlimited_before(_: QueueService) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


@pytest.mark.parametrize(
    ("before", "after"),
    [(_limited_before, _unlimited_before), (_unlimited_before, _limited_before)],
    ids=["undone", "set"],
)
def test_a_session_is_left_if_its_limit_on_lock_waits_hears_nothing(
    before: Callable[[QueueService], contextlib.AbstractContextManager[None]],
    after: Callable[[QueueService], contextlib.AbstractContextManager[None]],
    proxy: Proxy,
) -> None:
    """It is set before work that gives way, and undone before other work: no lock delays it.

    A worker whose claims waited there for ever never began the suspects that ran alone.
    """
    service = QueueService(proxy.url, consumer_timeout=TIMEOUT)
    queue = service.create_queue("jobs")
    used, silent = threading.Event(), threading.Event()

    def call() -> None:
        with before(service):
            queue.stats()
        used.set()
        silent.wait(BOUND)
        with after(service):
            queue.publish({"number": 1})

    calling = in_daemon(call)
    assert used.wait(BOUND)
    proxy.fall_silent()
    proxy.recover()
    silent.set()
    assert isinstance(calling.exception(BOUND), DatabaseUnavailable | None)
    eventually(lambda: queue.stats().live <= 1, "it works again", within=BOUND)
    service.stop()


@pytest.mark.parametrize("fails", [False, True], ids=["commit", "rollback"])
def test_the_end_of_a_handlers_transaction_is_left_if_it_hears_nothing(
    fails: bool, proxy: Proxy
) -> None:
    """Others are answered, and no heartbeat waits: the server says that its session is idle."""
    service = QueueService(proxy.url, consumer_timeout=TIMEOUT)
    service.create_queue("jobs")

    def work() -> None:
        with service._parts.connections.transaction() as connection:
            connection.exec_driver_sql("SELECT 1").close()
            proxy.fall_silent()
            proxy.recover()
            if fails:
                msg = "the handler failed"
                raise LookupError(msg)

    error = in_daemon(work).exception(BOUND)
    assert isinstance(error, LookupError if fails else DBAPIError)
    service.stop()


def test_a_handlers_statement_is_left_if_it_hears_nothing(proxy: Proxy) -> None:
    """Its time before that is its own, but what it asks for is answered or lost."""
    service = QueueService(proxy.url, consumer_timeout=TIMEOUT)
    service.create_queue("jobs")

    def work() -> None:
        with service._parts.connections.transaction() as connection:
            connection.exec_driver_sql("SELECT 1").close()
            proxy.fall_silent()
            proxy.end_at_server()
            proxy.recover()
            connection.exec_driver_sql("SELECT 2").close()

    assert isinstance(in_daemon(work).exception(BOUND), DBAPIError)
    service.stop()


@contextlib.contextmanager
def questions(service: Any) -> Iterator[threading.Semaphore]:
    """Released once for each test query of the watchdog that was answered."""
    watchdog, answered = service._parts.connections.watchdog, threading.Semaphore(0)
    ask = watchdog._ask()
    assert ask is not None

    def asked(*given: Any) -> Any:
        found = ask(*given)
        answered.release()
        return found

    with mock.patch.object(watchdog, "_ask", return_value=asked):
        yield answered


def on_a_loop(proxy: Proxy, bridge: Bridge) -> Any:
    """A service without a heartbeat on an event loop, by the asyncio driver of the engine."""
    given = proxy.url.replace("+pymysql", "").replace("+psycopg", "")
    return bridge.service(given, consumer_timeout=TIMEOUT)


def check_that_a_lost_request_is_left(service: Any, proxy: Proxy, *, ended: bool) -> None:
    """Others are answered, and no heartbeat waits: the server knows what its session does."""
    queue = service.create_queue("jobs")
    calling, silent = _publishing_later(queue)
    proxy.fall_silent()
    if ended:
        proxy.end_at_server()
    proxy.recover()
    silent.set()
    assert isinstance(calling.exception(BOUND), DatabaseUnavailable)
    eventually(lambda: queue.stats().live == 0, "it works again", within=BOUND)
    service.stop()


@pytest.mark.default_on("h2", "mariadb")
@pytest.mark.parametrize("ended", [False, True], ids=["idle", "ended"])
def test_a_call_whose_request_is_lost_is_left(ended: bool, proxy: Proxy) -> None:
    """The server's session is idle, or has ended because the proxy left only that end."""
    service = QueueService(proxy.url, consumer_timeout=TIMEOUT)
    check_that_a_lost_request_is_left(service, proxy, ended=ended)


@pytest.mark.full
@pytest.mark.engines(*ASYNCHRONOUS)
@pytest.mark.parametrize("ended", [False, True], ids=["idle", "ended"])
def test_a_call_on_a_loop_whose_request_is_lost_is_left(
    ended: bool, proxy: Proxy, bridge: Bridge
) -> None:
    """The same, awaited."""
    check_that_a_lost_request_is_left(on_a_loop(proxy, bridge), proxy, ended=ended)


def check_that_a_lost_answer_is_left(
    service: Any, proxy: Proxy, make_service: MakeService, sql: Engine
) -> None:
    """While the server works on it, it is spared, although it hears nothing for as long."""
    queue = service.create_queue("jobs")
    with questions(service) as answered, sql.connect() as other:
        make_service().queue("jobs").publish({}, key="same", connection=other)
        waiting = in_daemon(lambda: queue.publish({}, key="same"))
        assert answered.acquire(timeout=BOUND)
        proxy.fall_silent()
        proxy.recover()
        for _ in range(2):
            assert answered.acquire(timeout=BOUND)
        assert not waiting.done()
        other.rollback()
        assert isinstance(waiting.exception(BOUND), DatabaseUnavailable)
    eventually(lambda: queue.stats().live <= 1, "it works again", within=BOUND)
    service.stop()


def test_a_call_whose_answer_is_lost_is_left(
    proxy: Proxy, make_service: MakeService, sql: Engine
) -> None:
    """On threads."""
    service = QueueService(proxy.url, consumer_timeout=TIMEOUT)
    check_that_a_lost_answer_is_left(service, proxy, make_service, sql)


@pytest.mark.full
@pytest.mark.engines(*ASYNCHRONOUS)
def test_a_call_on_a_loop_whose_answer_is_lost_is_left(
    proxy: Proxy, bridge: Bridge, make_service: MakeService, sql: Engine
) -> None:
    """The same, awaited."""
    check_that_a_lost_answer_is_left(on_a_loop(proxy, bridge), proxy, make_service, sql)


def test_what_has_reason_to_last_is_spared(
    make_service: MakeService, sql: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """A publish that waits for the lock of another transaction: the database is asked, and there.

    So is what a transactional handler does for long on its own connection.
    """
    service = make_service(consumer_timeout=TIMEOUT)
    queue = service.create_queue("jobs")
    with (
        questions(service) as answered,
        service._parts.connections.transaction() as own,
        sql.connect() as other,
    ):
        queue.publish({}, connection=own)
        queue.publish({}, key="same", connection=other)
        waiting = in_daemon(lambda: queue.publish({}, key="same"))
        for _ in range(2):
            assert answered.acquire(timeout=BOUND)
        assert not waiting.done()
        other.rollback()
        assert waiting.exception(BOUND) is None
    assert 2 == queue.stats().ready
    assert "has not answered" not in caplog.text


@pytest.mark.engines("postgresql")
@pytest.mark.default_on("postgresql")
def test_a_claim_that_commits_late_is_given_back(
    proxy: Proxy, make_service: MakeService, sql: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server carries a claim out long after its client is gone: its consumer calls it back."""
    monkeypatch.setattr("queue_over_sql.claiming.claimer._LATE_SECONDS", 0.0)
    make_service().create_queue("jobs").publish({"number": 1})
    service = QueueService(proxy.url)
    queue = service.queue("jobs")
    queue.release(queue.consume())
    with sql.begin() as connection:
        for statement in _CLAIMS_WAIT:
            connection.exec_driver_sql(statement)
    with sql.begin() as locks:
        locks.exec_driver_sql("SELECT pg_advisory_xact_lock(31)")
        claiming = in_daemon(queue.consume)
        eventually(lambda: _somebody_waits(sql), "the claim waits on the server")
        proxy.lose_clients()
        assert isinstance(claiming.exception(BOUND), DatabaseUnavailable)
        # The first looks for it come too early.
        for _ in range(3):
            assert [] == queue.consume()
    [message] = eventually(queue.consume, "it came back", within=BOUND)
    assert 1 == message.attempt
    message.ack()
    service.stop()


_CLAIMS_WAIT = (
    """CREATE FUNCTION waits() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
       PERFORM pg_advisory_xact_lock_shared(31); RETURN new; END $$""",
    """CREATE TRIGGER waits BEFORE UPDATE ON queue_jobs FOR EACH ROW
       WHEN (old.consumer_id IS NULL) EXECUTE FUNCTION waits()""",
)


def _somebody_waits(sql: Engine) -> bool:
    with sql.connect() as connection:
        return bool(
            connection.exec_driver_sql(
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            ).scalar_one()
        )


@pytest.mark.default_on("h2", "mariadb")
def test_a_connection_that_was_lost_while_it_rested_is_no_error(
    proxy: Proxy, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler's or reader's connection that returns to the pool then: it ended in a traceback."""
    monkeypatch.setattr("queue_over_sql.database.sessions._LONGEST_PAUSE", -1.0)
    service = QueueService(proxy.url, consumer_timeout=TIMEOUT)
    connections = service._parts.connections
    keeper = connections.keeping()
    assert keeper is not None
    for _ in range(2):
        with connections.transaction(keeper) as connection:
            assert 1 == connection.exec_driver_sql("SELECT 1").scalar()
        proxy.lose_clients()
    keeper.close()
    # Its return takes autocommit back, for which most drivers ask the server.
    with connections.reading() as connection:
        assert 1 == connection.exec_driver_sql("SELECT 1").scalar()
        proxy.lose_clients()
    pool: Any = connections.engine.pool
    assert 0 == pool.checkedout()
    with connections.reading() as connection:
        assert 1 == connection.exec_driver_sql("SELECT 1").scalar()
    assert [] == [each for each in caplog.records if each.name.startswith("sqlalchemy.pool")]
    service.stop()


def test_a_thread_that_ends_waits_for_nobody(proxy: Proxy) -> None:
    """A thread that has used a server which fell silent ends at once, and others go on."""
    service = QueueService(proxy.url, consumer_timeout=TIMEOUT)
    queue = service.create_queue("jobs")
    silent, used = threading.Event(), threading.Event()

    def use() -> None:
        queue.stats()
        used.set()
        silent.wait(BOUND)

    thread = threading.Thread(target=use)
    thread.start()
    assert used.wait(BOUND)
    proxy.fall_silent()
    silent.set()
    thread.join(A_SECOND)
    assert not thread.is_alive()
    proxy.recover()
    proxy.lose_clients()
    eventually(lambda: _works(queue), "others work again", within=BOUND)
    service.stop()


def _publishing_later(queue: Queue) -> tuple[Future[object], threading.Event]:
    """A thread that has used its connection, and publishes when the event comes."""
    used, silent = threading.Event(), threading.Event()

    def call() -> None:
        queue.stats()
        used.set()
        silent.wait(BOUND)
        queue.publish({"number": 1})

    calling = in_daemon(call)
    assert used.wait(BOUND)
    return calling, silent


def _has_renewed(service: QueueService) -> bool:
    return any(each.heartbeat_at > each.started_at for each in service.consumers())


def _works(queue: Queue) -> bool:
    with contextlib.suppress(DatabaseUnavailable):
        return queue.stats().live == 0
    return False


def test_a_stop_ends_and_says_what_it_leaves_behind(
    proxy: Proxy,
    make_service: MakeService,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Another gets the messages within the consumer's timeout, and the silent one settles none.

    It does not wait for the test query: nothing can interrupt its attempt to connect, but a process
    can end in spite of it.
    """
    queue = make_service(reaper_interval=0.2).create_queue("jobs")
    queue.publish_many([{"number": number} for number in range(3)])
    silent = QueueService(proxy.url, consumer_timeout=TIMEOUT)
    silent.start()
    messages = silent.queue("jobs").consume(3)
    consumer_id = silent.consumer_id
    proxy.fall_silent()
    in_daemon(messages[0].ack)

    def questions() -> list[threading.Thread]:
        return [each for each in threading.enumerate() if each.name == "queue-over-sql-question"]

    [question] = eventually(questions, "the watchdog asks")
    assert question.daemon
    with caplog.at_level(logging.WARNING):
        assert in_daemon(lambda: silent.stop(timeout=1.0)).exception(BOUND) is None
    said = f"Consumer {consumer_id} is still registered, and messages of jobs are not released"
    assert said in caplog.text

    def all_came_back() -> bool:
        if found := queue.consume(3):
            queue.ack(found)
        return 0 == queue.stats().claimed + queue.stats().ready

    with make_service(reaper_interval=0.2):
        eventually(all_came_back, "they came back and were acked", within=TIMEOUT + 15)
    # Give-backs that are swallowed are lost; the service itself is closed for good.
    with pytest.raises(QueueError):
        messages[1].ack()
    proxy.close()
    eventually(lambda: not question.is_alive(), "nobody waits for the answer any more")


class Workers:
    """Starts workers on a queue, each in a process of its own."""

    def __init__(self, crew: Crew, queue: Queue, *, asynchronous: bool) -> None:
        self.crew = crew
        self.queue = queue
        self._asynchronous = asynchronous

    def start(self, url: str, *, seconds: float, transactional: bool = False) -> Process:
        """One that has not begun yet."""
        process = self.crew.spawn(
            worker.Arguments(
                url,
                str(self.crew.journals),
                seconds=seconds,
                transactional=transactional,
                consumer_timeout=TIMEOUT,
                asynchronous=self._asynchronous,
            )
        )
        process.expect("ready")
        return process


@pytest.fixture
def workers(crew: Crew, make_service: MakeService) -> Workers:
    """In threads."""
    queue = make_service().create_queue("jobs", max_attempts=100)
    return Workers(crew, queue, asynchronous=False)


@pytest.fixture
def loops(crew: Crew, make_service: MakeService) -> Workers:
    """On event loops."""
    queue = make_service().create_queue("jobs", max_attempts=100)
    return Workers(crew, queue, asynchronous=True)


def check_that_it_hands_over(proxy: Proxy, url: str, sql: Engine, workers: Workers) -> None:
    """Each effect is there once, although the first worker goes on when the network is back."""
    create_effects(sql)
    tokens = [f"task-{number:03}" for number in range(60)]
    workers.queue.publish_many([{"token": token} for token in tokens])
    silent = workers.start(proxy.url, seconds=0.05, transactional=True)
    eventually(lambda: len(effects(sql)) >= 10, "the first has begun")
    proxy.fall_silent()
    # A transaction of its that had locked a message would keep it from the other.
    proxy.end_at_server()
    other = workers.start(url, seconds=0.05, transactional=True)
    eventually(lambda: not live_tokens(sql), "the other has done the rest", within=BOUND)
    assert tokens == [token for token, _ in effects(sql)]

    proxy.recover()
    other.kill()
    workers.queue.publish({"token": "later"})
    try:
        eventually(lambda: not live_tokens(sql), "the first works again", within=BOUND)
    except AssertionError as error:
        raise AssertionError(silent.complaint("does not work again")) from error
    assert sorted(["later", *tokens]) == sorted(token for token, _ in effects(sql))
    silent.check_alive()


def test_a_silent_worker_hands_over_and_comes_back(
    proxy: Proxy, database: TestDatabase, sql: Engine, workers: Workers
) -> None:
    """In threads."""
    check_that_it_hands_over(proxy, database.url, sql, workers)


@pytest.mark.full
@pytest.mark.engines(*ASYNCHRONOUS)
def test_a_silent_loop_hands_over_and_comes_back(
    proxy: Proxy, database: TestDatabase, sql: Engine, loops: Workers
) -> None:
    """On an event loop."""
    check_that_it_hands_over(proxy, database.url, sql, loops)


def check_that_it_ends_at_once(proxy: Proxy, workers: Workers) -> None:
    """In the middle of its work, and while it waits for its first answer."""
    workers.queue.publish_many([{"token": f"task-{number:03}"} for number in range(1000)])

    def end(process: Process) -> None:
        process.send(signal.SIGTERM)
        with pytest.raises(AssertionError, match="still running"):
            process.join(within=1.0)
        process.send(signal.SIGTERM)
        assert 0 == process.join(within=A_SECOND)

    busy = workers.start(proxy.url, seconds=0.01)
    finished = workers.crew.account
    eventually(lambda: len(finished().tokens("finished")) >= 10, "it works")
    proxy.fall_silent()
    end(busy)
    before = proxy.swallowed
    beginning = workers.start(proxy.url, seconds=0.01)
    eventually(lambda: proxy.swallowed > before, "it waits for an answer")
    end(beginning)


def test_a_worker_that_is_told_twice_ends_at_once(proxy: Proxy, workers: Workers) -> None:
    """In threads."""
    check_that_it_ends_at_once(proxy, workers)


@pytest.mark.engines(*ASYNCHRONOUS)
def test_a_loop_that_is_told_twice_ends_at_once(proxy: Proxy, loops: Workers) -> None:
    """On an event loop."""
    check_that_it_ends_at_once(proxy, loops)


@pytest.mark.parametrize("arguments", [("consume", "jobs", "--follow"), ("reaper",)])
def test_a_command_that_is_told_twice_ends_at_once(
    arguments: tuple[str, ...],
    proxy: Proxy,
    make_service: MakeService,
    tmp_path: Path,
) -> None:
    """It waits for nothing more, whatever it waits for."""
    service = make_service()
    service.create_queue("jobs")
    with started(*arguments, url=proxy.url, log=tmp_path / "log") as process:
        eventually(lambda: len(service.consumers()) == 1, "it is there")
        proxy.fall_silent()
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.0)
        process.send_signal(signal.SIGTERM)
        process.wait(A_SECOND)
