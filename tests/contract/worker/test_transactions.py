"""Transactional handlers: effects and ack in one commit."""

from __future__ import annotations

import gc
import logging
import math
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from sqlalchemy import Engine, event, select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from queue_over_sql import DatabaseUnavailable, Observer, QueueError
from queue_over_sql.service import parts_of
from queue_over_sql.worker.shared_transaction import SHARED_SECONDS
from tests.contract.queue_state import add_effect, archived, counts, effect_count
from tests.contract.worker.running_worker import HandlerFailed, running
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqlalchemy import Connection

    from queue_over_sql import Message, Queue
    from queue_over_sql.testing.plugin import MakeService, TestDatabase
    from queue_over_sql.worker.worker import Worker

pytestmark = pytest.mark.driver_decides


def test_effects_and_ack_commit_together_or_not_at_all(
    worker: Worker, outside: Queue, effects_engine: Engine
) -> None:
    """A handler writes on the connection it is given; a failed attempt leaves no effect."""

    @worker.handle("jobs", transactional=True)
    def work(message: Message, connection: Connection) -> None:
        add_effect(connection, message.payload * 10 + message.attempt)
        if message.payload == 1:
            raise HandlerFailed("after the effect")

    outside.publish_many(list(range(10)))
    with running(worker):
        wait_until(lambda: counts(outside) == (0, 0, 1))
    assert 9 == effect_count(effects_engine)
    (dead,) = archived(outside)
    assert 1 == dead.payload
    assert 3 == dead.attempt


@pytest.fixture
def single(make_service: MakeService, outside: Queue) -> Worker:
    """A worker of one thread."""
    assert "jobs" == outside.name
    return make_service().worker(concurrency=1, poll_interval=(0.005, 0.05))


@pytest.mark.engines("sqlite")
def test_one_connection_serves_message_after_message(
    make_service: MakeService, outside: Queue
) -> None:
    """It is checked out once for what is at hand, and given back when nothing comes."""
    seen = []
    # All are claimed at once: a slow machine lets the handler wait for none.
    single = make_service().worker(concurrency=1, prefetch=10)

    @single.handle("jobs", transactional=True)
    def work(message: Message, connection: Connection) -> None:
        del message
        seen.append((connection, connection.in_transaction()))

    outside.publish_many(range(10))
    with running(single):
        wait_until(lambda: outside.messages().count() == 0)
        first = seen[0][0]
        assert [(first, False)] * 10 == seen
        wait_until(lambda: first.closed)


@pytest.mark.engines("sqlite")
def test_what_a_handler_sets_on_its_connection_ends_with_its_message(
    single: Worker, outside: Queue
) -> None:
    """Neither a connection with options of its own nor one whose transaction failed is kept."""
    seen = []

    @single.handle("jobs", transactional=True)
    def work(message: Message, connection: Connection) -> None:
        seen.append(dict(connection.get_execution_options()))
        connection.execution_options(mine=message.payload)
        if message.payload == 2:
            raise HandlerFailed("at the end")

    outside.publish_many([0, 1, 2, 3])
    with running(single):
        wait_until(lambda: counts(outside) == (0, 0, 1))
    assert all("mine" not in options for options in seen)
    assert 4 + 2 == len(seen)


SESSION_CHANGES = {
    "sqlite": ["PRAGMA query_only = 1", "ATTACH ':memory:' AS other"],
    "postgresql": [
        "SET search_path TO pg_catalog",
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
        "SELECT set_config('search_path', 'pg_catalog', false)",
    ],
    "mysql": ["USE mysql", "SET SESSION TRANSACTION READ ONLY", "SET SESSION sql_mode = ''"],
    "mariadb": ["USE mysql", "SET SESSION TRANSACTION READ ONLY", "SET SESSION sql_mode = ''"],
    "h2": ["SET SCHEMA INFORMATION_SCHEMA"],
}


def test_what_a_handler_does_to_its_session_ends_with_its_message(
    make_service: MakeService, outside: Queue, effects_engine: Engine, engine_name: str
) -> None:
    """``USE``, ``SET`` or ``PRAGMA``: later messages, leases and claims are as without it."""
    changes = SESSION_CHANGES[engine_name]
    worker = make_service().worker(concurrency=1, prefetch=10)
    others: list[object] = []

    @worker.handle("jobs", transactional=True)
    def work(message: Message, connection: Connection) -> None:
        if message.payload % 2:
            add_effect(connection, message.payload)
            others.append(message.attempt)
            if engine_name in {"mysql", "mariadb"}:
                others.append("STRICT" in str(connection.scalar(text("SELECT @@sql_mode"))))
        elif message.attempt == 1:
            connection.exec_driver_sql(changes[message.payload // 2])

    outside.publish_many(list(range(2 * len(changes))))
    with running(worker):
        wait_until(lambda: counts(outside) == (0, 0, 0))
    assert {1} == set(others)
    assert effect_count(effects_engine) == len(changes)


def test_a_handler_keeps_the_connection_for_plain_statements(
    make_service: MakeService, outside: Queue, effects_engine: Engine, engine_name: str
) -> None:
    """Reads, writes and savepoints do not cost a new connection for each message."""
    scoped = {
        "postgresql": ["SET LOCAL work_mem = '4MB'", "SELECT set_config('a.b', 'c', true)"],
    }.get(engine_name, [])
    worker = make_service().worker(concurrency=1, prefetch=10)
    seen: set[Any] = set()

    @worker.handle("jobs", transactional=True)
    def work(message: Message, connection: Connection) -> None:
        seen.add(connection.connection.dbapi_connection)
        with connection.begin_nested():
            add_effect(connection, message.payload)
        connection.exec_driver_sql("/* tagged */ SELECT 1 -- x").close()
        for statement in scoped:
            connection.exec_driver_sql(statement).close()

    outside.publish_many(list(range(10)))
    with running(worker):
        wait_until(lambda: counts(outside) == (0, 0, 0))
    assert 10 == effect_count(effects_engine)
    assert 1 == len(seen)


@pytest.mark.engines("sqlite")
@pytest.mark.parametrize("name", ["checkout", "engine_connect"])
def test_listeners_to_new_uses_hear_of_each_message(
    make_service: MakeService, outside: Queue, name: str
) -> None:
    """As one that sets a role or a tenant for each."""
    service = make_service()
    worker = service.worker(concurrency=1, poll_interval=(0.005, 0.05))
    engine = parts_of(service).connections.engine
    target = engine.pool if name == "checkout" else Engine
    begun: list[bool] = []
    heard: list[int] = []

    def note(*_: object) -> None:
        begun.append(True)

    @worker.handle("jobs", transactional=True)
    def work(message: Message, connection: Connection) -> None:
        del message, connection
        heard.append(len(begun))

    outside.publish_many(range(5))
    # SQLAlchemy's listeners may come and go only while no thread uses them.
    event.listen(target, name, note)
    try:
        with running(worker):
            wait_until(lambda: outside.messages().count() == 0)
        service.stop()
    finally:
        event.remove(target, name, note)
    assert sorted(set(heard)) == heard
    assert 5 == len(heard)


@pytest.mark.engines("sqlite")
def test_a_rollback_that_fails_gives_the_connection_back(single: Worker, outside: Queue) -> None:
    """Whatever the driver raises, the pool has it again."""
    seen: list[Connection] = []

    @single.handle("jobs", transactional=True)
    def work(message: Message, connection: Connection) -> None:
        seen.append(connection)
        if message.attempt == 1:
            connection.rollback = mock.Mock(side_effect=OSError("gone"))  # type: ignore[method-assign]
            raise HandlerFailed("before the rollback")

    outside.publish(1)
    with running(single):
        wait_until(lambda: outside.messages().count() == 0)
    assert seen[0].closed
    assert seen[0] is not seen[1]


@pytest.fixture
def sharing(make_service: MakeService, outside: Queue) -> Iterator[Worker]:
    """A worker of one thread with 20 messages in hand, whose transactions end by their count."""
    assert "jobs" == outside.name
    with mock.patch("queue_over_sql.worker.shared_transaction.SHARED_SECONDS", math.inf):
        yield make_service().worker(concurrency=1, prefetch=20, poll_interval=(0.005, 0.05))


def test_messages_that_share_a_transaction_fail_alone(
    sharing: Worker, outside: Queue, effects_engine: Engine
) -> None:
    """Each effect is there once, but for those of failed attempts; commits are fewer."""
    transactions: dict[int, object] = {}

    @sharing.handle("jobs", transactional=True, commit_every=10)
    def work(message: Message, connection: Connection) -> None:
        add_effect(connection, message.payload * 10 + message.attempt)
        transactions[message.payload] = connection.get_transaction()
        if message.payload in {3, 17}:
            raise HandlerFailed("after the effect")
        if message.payload == 5 and message.attempt == 1:
            # The database refuses it: an effect like this is there.
            add_effect(connection, message.payload * 10 + message.attempt)

    outside.publish_many(list(range(20)))
    with running(sharing):
        wait_until(lambda: counts(outside) == (0, 0, 2))
    assert {
        "effects": 18,
        "dead": [(3, 3), (17, 3)],
        "shared": True,
    } == {
        "effects": effect_count(effects_engine),
        "dead": [(message.payload, message.attempt) for message in archived(outside)],
        "shared": transactions[0] is transactions[4],
    }


def test_a_shared_transaction_that_fails_is_done_again_one_by_one(
    sharing: Worker, outside: Queue, effects_engine: Engine
) -> None:
    """A message whose claim is lost costs the others nothing; its effect is not there twice."""
    calls: list[int] = []
    live = outside.table

    @sharing.handle("jobs", transactional=True, commit_every=10)
    def work(message: Message, connection: Connection) -> None:
        calls.append(message.payload)
        add_effect(connection, message.payload * 10 + message.attempt)
        if message.payload == 7 and calls.count(7) == 1:
            lost = update(live).where(live.c.id == message.id).values(consumer_round=0)
            connection.execute(lost)

    outside.publish_many(list(range(10)))
    with running(sharing):
        wait_until(lambda: counts(outside) == (0, 0, 0))
    # As many as were in hand with it.
    assert 10 == effect_count(effects_engine)
    assert 2 == calls.count(6)
    assert 2 == calls.count(7)


def test_what_a_handler_does_to_its_transaction_costs_no_other(
    sharing: Worker, outside: Queue, effects_engine: Engine
) -> None:
    """It rolls back, sets options, or fails with an error that others may have caused."""
    calls: list[int] = []
    options: dict[int, object] = {}

    @sharing.handle("jobs", transactional=True, commit_every=20)
    def work(message: Message, connection: Connection) -> None:
        calls.append(message.payload)
        options[message.payload] = connection.get_execution_options().get("mine")
        add_effect(connection, message.payload * 10 + message.attempt)
        if message.payload == 3:
            connection.rollback()
            raise HandlerFailed("after a rollback of its own")
        if message.payload == 9:
            connection.execution_options(mine=True)
        if message.payload == 14 and calls.count(14) == 1:
            raise DatabaseUnavailable("a deadlock with another's message")

    outside.publish_many(list(range(20)))
    with running(sharing):
        wait_until(lambda: counts(outside) == (0, 0, 1))
    assert {
        "effects": 19,
        "dead": [(3, 3)],
        "options": [],
        "calls of 14": 2,
    } == {
        "effects": effect_count(effects_engine),
        "dead": [(message.payload, message.attempt) for message in archived(outside)],
        "options": [number for number, found in options.items() if found],
        "calls of 14": calls.count(14),
    }


@pytest.mark.engines("sqlite")
@pytest.mark.threads("a reference is counted alike on a loop")
def test_a_failure_in_a_shared_transaction_keeps_no_cursor(
    sharing: Worker, outside: Queue, effects_engine: Engine
) -> None:
    """An open one would keep the connection in its old snapshot."""
    assert effects_engine is not None
    results: list[weakref.ref[object]] = []

    @sharing.handle("jobs", transactional=True, commit_every=10)
    def work(message: Message, connection: Connection) -> None:
        add_effect(connection, message.payload * 10 + message.attempt)
        result = connection.execute(text("SELECT 1 UNION SELECT 2"))
        results.append(weakref.ref(result))
        result.fetchone()
        raise HandlerFailed("before the second row")

    outside.publish_many(list(range(5)))
    # What is logged keeps the exception, and so its frames, for the report of this test.
    silent = mock.patch.object(logging.getLogger("queue_over_sql"), "disabled", new=True)
    handlers = logging.getLogger("queue_over_sql.worker.outcomes")
    gc.disable()
    try:
        with silent, mock.patch.object(handlers, "disabled", new=True), running(sharing):
            wait_until(lambda: counts(outside) == (0, 0, 5))
    finally:
        gc.enable()
    assert [] == [result() for result in results if result() is not None]


def test_a_handler_that_commits_shares_no_transaction(
    sharing: Worker, outside: Queue, effects_engine: Engine
) -> None:
    """It would commit what others did before their acks: it is refused, and fails alone."""

    @sharing.handle("jobs", transactional=True, commit_every=10)
    def work(message: Message, connection: Connection) -> None:
        add_effect(connection, message.payload)
        if message.payload in {0, 3, 4}:
            try:
                connection.commit()
            except QueueError as error:
                raise HandlerFailed("in words of its own") from error

    outside.publish_many(list(range(10)))
    with running(sharing):
        wait_until(lambda: counts(outside) == (0, 0, 3))
    assert 7 == effect_count(effects_engine)
    assert [0, 3, 4] == sorted(message.payload for message in archived(outside))


ENDINGS: dict[str, Callable[[Connection], object]] = {
    "commit": lambda connection: connection.commit(),
    "commit of begin": lambda connection: connection.get_transaction().commit(),  # type: ignore[union-attr]
    "rollback": lambda connection: connection.rollback(),
    "close": lambda connection: connection.close(),
}


def test_the_worker_ends_the_transaction_of_a_handler(
    single: Worker, outside: Queue, effects_engine: Engine
) -> None:
    """A handler that ends it fails, even if it goes on: its effects would come without the ack."""
    for name in ENDINGS:
        outside.publish(name, max_attempts=1)

    @single.handle("jobs", transactional=True)
    def work(message: Message, connection: Connection) -> None:
        add_effect(connection, message.id)
        with suppress(QueueError):
            ENDINGS[message.payload](connection)

    with running(single):
        wait_until(lambda: outside.messages().count() == 0)
    assert 0 == effect_count(effects_engine)
    found = {message.payload: message.last_error or "" for message in archived(outside)}
    assert set(ENDINGS) == set(found)
    assert all("Leave commit and rollback to the worker" in each for each in found.values())


@pytest.mark.engines("sqlite")
def test_a_handler_may_undo_a_part(single: Worker, outside: Queue, effects_engine: Engine) -> None:
    """With a savepoint, also of a Session. A failure after a rollback is the handler's own."""

    @single.handle("jobs", transactional=True)
    def work(message: Message, connection: Connection) -> None:
        with connection.begin_nested(), Session(connection) as session:
            add_effect(session.connection(), message.id)
            session.commit()
            add_effect(session.connection(), message.id + 20)
        nested = connection.begin_nested()
        add_effect(connection, message.id + 10)
        nested.rollback()
        if message.payload == "bad":
            connection.rollback()
            raise HandlerFailed("no stock")

    outside.publish("good")
    outside.publish("bad", max_attempts=1)
    with running(single):
        wait_until(lambda: counts(outside) == (0, 0, 1))
    assert 1 == effect_count(effects_engine)
    assert ["HandlerFailed: no stock"] == [message.last_error for message in archived(outside)]


@pytest.mark.engines("sqlite")
def test_slow_handlers_share_no_transaction(make_service: MakeService, outside: Queue) -> None:
    """A long transaction would block all writers of SQLite, and a drain would wait for it."""
    sharing = make_service().worker(concurrency=1, prefetch=20, poll_interval=(0.005, 0.05))
    transactions: list[object] = []

    @sharing.handle("jobs", transactional=True, commit_every=10)
    def work(message: Message, connection: Connection) -> None:
        connection.scalar(select(1))
        transactions.append(connection.get_transaction())
        time.sleep(SHARED_SECONDS)
        if message.payload == 2:
            sharing.stop()

    outside.publish_many(list(range(10)))
    with running(sharing):
        wait_until(lambda: len(transactions) == 3)
    assert 3 == len(set(map(id, transactions)))
    assert (7, 0, 0) == counts(outside)
    assert {1} == {message.attempt for message in outside.consume(10)}


@pytest.mark.engines("sqlite")
def test_commit_every_is_for_single_messages_in_transactions(sharing: Worker) -> None:
    """Elsewhere it would do nothing, and is refused."""
    wrong: tuple[dict[str, Any], ...] = ({}, {"transactional": True, "batch": 2})
    for options in wrong:
        with pytest.raises(ValueError, match="commit_every needs transactional=True and no batch"):
            sharing.handle("jobs", commit_every=2, **options)
    with pytest.raises(ValueError, match="commit_every"):
        sharing.handle("jobs", transactional=True, commit_every=0)


def conflicts(engine: str) -> list[str]:
    """Statements that end as conflicts between transactions do: deadlocks, certification."""
    if engine == "postgresql":
        return [
            f"DO $$ BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = '{code}'; END $$"
            for code in ("40001", "40P01", "55P03")
        ]
    # 3101 and 1180 are those of group replication and Galera.
    return [
        f"SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {code}, MESSAGE_TEXT = 'refused'"
        for code in (1213, 1205, 1020, 3101, 1180)
    ]


@pytest.mark.engines("postgresql", "mysql", "mariadb")
def test_a_conflict_with_others_is_no_attempt(
    make_service: MakeService, outside: Queue, effects_engine: Engine
) -> None:
    """What the database rolls back for others' sake runs again, and counts no attempt."""
    single = make_service().worker(concurrency=1, poll_interval=(0.005, 0.05), prefetch=1)
    left = conflicts(effects_engine.dialect.name)
    attempts: list[int] = []

    @single.handle("jobs", transactional=True)
    def work(message: Message, connection: Connection) -> None:
        attempts.append(message.attempt)
        add_effect(connection, len(attempts))
        if left:
            connection.exec_driver_sql(left.pop())

    tries = len(left) + 1
    outside.publish("a")
    with running(single):
        wait_until(lambda: counts(outside) == (0, 0, 0))
    assert attempts == [1] * tries
    assert 1 == effect_count(effects_engine)


def _lose_a_deadlock(connection: Connection, engine: Engine, effect: int) -> None:
    """Add an effect, and lose against an older transaction with more changes."""
    older_has_two, has_one = threading.Event(), threading.Event()
    lock = "UPDATE deadlocks SET other = other + 1 WHERE id = {}"

    def older() -> None:
        with engine.connect() as mine, suppress(DBAPIError):
            mine.exec_driver_sql(lock.format(2))
            for number in range(100, 150):
                mine.exec_driver_sql(f"INSERT INTO deadlocks VALUES ({number}, 0)")
            older_has_two.set()
            assert has_one.wait(20)
            mine.exec_driver_sql(lock.format(1))

    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(older)
        assert older_has_two.wait(20)
        add_effect(connection, effect)
        connection.exec_driver_sql(lock.format(1))
        has_one.set()
        try:
            connection.exec_driver_sql(lock.format(2))
        finally:
            ended.result(20)


@pytest.mark.threads("a driver's connections are the same on a loop")
@pytest.mark.engines("sqlite", "mysql", "mariadb", "h2")
def test_what_the_database_undid_is_not_acked(
    make_service: MakeService, outside: Queue, effects_engine: Engine
) -> None:
    """A handler that catches a deadlock and goes on has lost its effects, so it runs again.

    The ack alone would be committed. PostgreSQL refuses all further statements by itself.
    """
    service = make_service()
    single = service.worker(concurrency=1, poll_interval=(0.005, 0.05), prefetch=1)
    other = service.create_queue("other")
    with effects_engine.begin() as setup:
        setup.exec_driver_sql("CREATE TABLE deadlocks (id INT PRIMARY KEY, other INT)")
        setup.exec_driver_sql("INSERT INTO deadlocks VALUES (1, 0), (2, 0)")
        if effects_engine.dialect.name == "sqlite":
            for table in ("deadlocks", other.table.name):
                setup.exec_driver_sql(
                    f"CREATE TRIGGER undo_{table} BEFORE INSERT ON {table}"
                    " BEGIN SELECT RAISE(ROLLBACK, 'all of it'); END"
                )
    calls: dict[str, int] = {"statement": 0, "verb": 0}

    @single.handle("jobs", transactional=True)
    def work(message: Message, connection: Connection) -> None:
        calls[message.payload] += 1
        first = calls[message.payload] == 1
        with suppress(DBAPIError, QueueError):
            if first and effects_engine.dialect.name != "sqlite":
                _lose_a_deadlock(connection, effects_engine, message.id)
                return
            add_effect(connection, message.id)
            if first and message.payload == "verb":
                other.publish("refused", connection=connection)
            elif first:
                connection.exec_driver_sql("INSERT INTO deadlocks VALUES (99, 0)")
        # What follows is in another transaction.
        connection.exec_driver_sql("UPDATE deadlocks SET other = 7 WHERE id = 2")

    wanted = ["statement", "verb"] if effects_engine.dialect.name == "sqlite" else ["statement"]
    outside.publish_many(wanted)
    with running(single):
        wait_until(lambda: counts(outside) == (0, 0, 0))
    assert [calls[each] for each in wanted] == [2] * len(wanted)
    assert effect_count(effects_engine) == len(wanted)


@pytest.mark.engines("postgresql")
def test_what_a_failed_transaction_acked_is_handled_again(
    single: Worker, outside: Queue, effects_engine: Engine
) -> None:
    """The handler acks, and catches the error of a later statement. That undid its ack, too.

    The server answers the COMMIT with a rollback and with no error, so the worker asks before.
    """
    attempts: list[int] = []

    @single.handle("jobs", transactional=True)
    def work(message: Message, connection: Connection) -> None:
        attempts.append(message.attempt)
        add_effect(connection, message.id)
        message.ack(connection=connection)
        if message.attempt == 1:
            with suppress(DBAPIError):
                connection.exec_driver_sql("SELECT 1 / 0")

    outside.publish("a")
    with running(single):
        wait_until(lambda: counts(outside) == (0, 0, 0))
    assert [1, 2] == attempts
    assert 1 == effect_count(effects_engine)


@pytest.mark.engines("postgresql")
def test_a_conflict_at_the_commit_is_no_attempt(
    make_service: MakeService, outside: Queue, effects_engine: Engine
) -> None:
    """As Galera and SERIALIZABLE transactions end: every statement worked, but not the COMMIT."""
    with effects_engine.begin() as connection:
        connection.exec_driver_sql("CREATE SEQUENCE commits")
        connection.exec_driver_sql(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " IF nextval('commits') < 3 THEN RAISE serialization_failure; END IF;"
            " RETURN NULL; END $$"
        )
        connection.exec_driver_sql(
            "CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON effects DEFERRABLE"
            " INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()"
        )
    single = make_service().worker(concurrency=1, poll_interval=(0.005, 0.05), prefetch=1)
    attempts: list[int] = []

    @single.handle("jobs", transactional=True)
    def work(message: Message, connection: Connection) -> None:
        attempts.append(message.attempt)
        add_effect(connection, 1)

    outside.publish("a")
    with running(single):
        wait_until(lambda: counts(outside) == (0, 0, 0))
    assert [1, 1, 1] == attempts
    assert 1 == effect_count(effects_engine)


class Settled(Observer):
    """Writes down the outcomes of each message."""

    def __init__(self) -> None:
        self.outcomes: dict[int, list[str]] = {}

    def settled(self, queue: str, outcome: str, ids: Sequence[int]) -> None:
        """Write them down."""
        assert "jobs" == queue
        for each in ids:
            self.outcomes.setdefault(each, []).append(outcome)


@pytest.fixture
def deferred_key(database: TestDatabase, engine: Engine) -> Iterator[None]:
    """A table with a foreign key that the database checks at the COMMIT."""

    def check_keys(raw: Any, _: object) -> None:
        cursor = raw.cursor()
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.close()

    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE owners (id BIGINT PRIMARY KEY)")
        connection.exec_driver_sql(
            "CREATE TABLE owned (owner_id BIGINT REFERENCES owners (id)"
            " DEFERRABLE INITIALLY DEFERRED)"
        )
    if database.engine != "sqlite":
        yield
        return
    event.listen(Engine, "connect", check_keys)
    yield
    event.remove(Engine, "connect", check_keys)


@pytest.mark.engines("sqlite", "postgresql")
@pytest.mark.usefixtures("deferred_key")
def test_observers_hear_of_an_ack_once_it_is_committed(
    make_service: MakeService, outside: Queue
) -> None:
    """Not of one whose COMMIT the database refuses, also where messages share the transaction."""
    forms: list[dict[str, Any]] = [{}, {"batch": 3}, {"commit_every": 3}]
    for form in forms:
        observer = Settled()
        service = make_service(observer=observer)
        worker = service.worker(concurrency=1, prefetch=3, poll_interval=(0.005, 0.05))

        @worker.handle("jobs", transactional=True, **form)
        def work(*given: Any) -> None:
            messages, connection = given
            for message in messages if isinstance(messages, list) else [messages]:
                if message.attempt == 1:
                    connection.exec_driver_sql("INSERT INTO owned VALUES (7)")

        ids = [each.id for each in outside.publish_many(range(3))]
        with running(worker):
            wait_until(lambda: counts(outside) == (0, 0, 0))
            expected = {each: ["retried", "done"] for each in ids}
            wait_until(lambda: sum(map(len, observer.outcomes.values())) >= 2 * len(ids))  # noqa: B023 - runs at once
        assert expected == observer.outcomes, form


@pytest.mark.engines("postgresql", "mysql", "mariadb")
def test_a_conflict_that_always_comes_is_a_failure(
    make_service: MakeService, outside: Queue, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tries without attempts are bounded; so are those of a handler that may only read."""
    monkeypatch.setattr("queue_over_sql.worker.transactions._REPEATS", 2)
    single = make_service().worker(concurrency=1, poll_interval=(0.005, 0.05), prefetch=1)
    conflict, *_ = conflicts(engine.dialect.name)
    attempts: dict[str, list[int]] = {"conflict": [], "reads": []}

    @single.handle("jobs", transactional=True)
    def work(message: Message, connection: Connection) -> None:
        attempts[message.payload].append(message.attempt)
        if message.payload == "conflict":
            connection.exec_driver_sql(conflict)
        elif engine.dialect.name == "postgresql":
            connection.exec_driver_sql("SET TRANSACTION READ ONLY")
        else:
            connection.exec_driver_sql("START TRANSACTION READ ONLY")

    outside.publish_many(list(attempts))
    with running(single):
        wait_until(lambda: counts(outside) == (0, 0, 2))
    assert {
        "conflict": [1, 1, 1, 2, 2, 2, 3, 3, 3],
        "reads": [1, 1, 1, 2, 2, 2, 3, 3, 3],
    } == attempts
