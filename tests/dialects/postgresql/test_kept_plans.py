"""Plans that PostgreSQL keeps for prepared statements, on a queue that was empty when prepared."""

from __future__ import annotations

import contextlib
import gc
import itertools
import threading
import time
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import create_engine

from queue_over_sql import DatabaseUnavailable, QueueService
from queue_over_sql.service import parts_of
from tests.dialects.plans.explain import analyze

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection, Engine

    from queue_over_sql import Message, Queue
    from queue_over_sql.testing.plugin import TestDatabase

pytestmark = pytest.mark.engines("postgresql")

SCANS = """
    SELECT seq_scan, idx_scan FROM pg_stat_user_tables WHERE relname = 'queue_jobs'
"""
# psycopg prepares a statement at its fifth run, the server keeps a plan from the sixth run on.
ROUNDS = 15


@pytest.fixture
def small(service: QueueService) -> Queue:
    """A queue of which the server knows that a look at the whole table is the best."""
    queue = service.create_queue("jobs", lease=3600)
    queue.publish_many(range(3))
    queue.ack(queue.consume(2))
    with service._parts.connections.engine.connect() as connection:
        analyze(connection, "postgresql", "queue_jobs")
    return queue


def live_a_little(queue: Queue) -> None:
    """Run the hot statements until they are prepared."""
    for number in range(ROUNDS):
        queue.publish_many([number, number])
        [message] = queue.consume()
        [message] = queue.exchange(message)
        queue.ack(message)


def scans(service: QueueService) -> tuple[int, int]:
    """How often the table was read as a whole, and by an index, as far as the server says yet."""
    with service._parts.connections.engine.connect() as connection:
        found = connection.exec_driver_sql(SCANS).one()
    return found[0], found[1]


def test_no_plan_of_a_small_queue_reads_a_large_one(service: QueueService, small: Queue) -> None:
    """What the server keeps goes by an index, so that a burst is worked off."""
    live_a_little(small)
    whole = counted(service, by_index=2 * ROUNDS)
    small.load(range(20_000))
    for _ in range(50):
        [message] = small.consume()
        [message] = small.exchange(message)
        small.ack(message)
        message = small.consume()[0]
        message.nack(delay=60)
    assert counted(service, by_index=2 * ROUNDS + 200) == whole


def counted(service: QueueService, by_index: int) -> int:
    """How often the whole table was read, once the server has counted so many looks by an index."""
    # Else it counts what this session did when that has been idle for ten seconds.
    flush = "SELECT pg_stat_force_next_flush()"
    service._parts.connections.run(lambda connection: connection.exec_driver_sql(flush).close())
    deadline = time.monotonic() + 20
    while scans(service)[1] < by_index:
        assert time.monotonic() < deadline, "the server has not counted in time"
        time.sleep(0.1)
    return scans(service)[0]


def test_a_changed_table_makes_no_operation_fail(service: QueueService, engine: Engine) -> None:
    """The server refuses kept plans once; a caller's transaction can be repeated as a whole."""
    queue = service.create_queue("jobs", archive="all")
    live_a_little(queue)
    width = itertools.count(300)

    def change() -> None:
        names = ("message_key", "kind")
        changes = ", ".join(f"ALTER {name} TYPE VARCHAR({next(width)})" for name in names)
        with engine.begin() as connection:
            connection.exec_driver_sql(f"ALTER TABLE queue_jobs {changes}")

    def work(connection: Connection) -> list[Message]:
        queue.publish("by hand", connection=connection)
        return queue.take(connection=connection)

    for _ in range(ROUNDS):
        change()
        assert [] == queue.consume()
        queue.publish_many([1, 2])
        change()
        [first] = queue.consume()
        change()
        [second] = queue.exchange(first)
        change()
        second.reject("no")
        change()
        assert [] == queue.messages().list()
    with engine.connect() as connection:
        for _ in range(ROUNDS):
            with connection.begin():
                work(connection)
        change()
        with pytest.raises(DatabaseUnavailable), connection.begin():
            work(connection)
        with connection.begin():
            assert ["by hand"] == [message.payload for message in work(connection)]


def test_a_list_of_few_does_not_read_the_whole_archive(service: QueueService) -> None:
    """Even though the session avoids sorting: after a window of ids the index of outcomes leads."""
    queue = service.create_queue("jobs", archive="all")
    queue.load(range(9_000))
    queue.ack(queue.consume(9_000))
    with service._parts.connections.engine.connect() as connection:
        analyze(connection, "postgresql", "queue_jobs_archive")
    before = rows_read(service)
    for _ in range(3):
        assert [] == queue.archive.messages(status="rejected").list()
    assert rows_read(service) < before + 3 * 2_500


def rows_read(service: QueueService) -> int:
    """How many entries of the archive's indexes, and rows of the table, were read until now."""
    read = """
        SELECT seq_tup_read + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes AS i
                               WHERE i.relid = t.relid)
        FROM pg_stat_user_tables AS t WHERE relname = 'queue_jobs_archive'
    """
    connections = service._parts.connections
    # The session that read reports it when it is asked to, in the next transaction.
    for _ in range(2):
        connections.run(lambda c: c.exec_driver_sql("SELECT pg_stat_force_next_flush()").close())
    with connections.engine.connect() as connection:
        return int(connection.exec_driver_sql(read).scalar_one())


def test_handlers_and_counts_are_planned_as_usual(service: QueueService) -> None:
    """What is set for claims is not found by others who use the connection next."""
    queue = service.create_queue("jobs")
    queue.publish("x")
    show = "SHOW enable_seqscan"
    assert "off" == service._parts.connections.run(lambda c: c.exec_driver_sql(show).scalar_one())
    assert 1 == queue.stats().ready
    assert "off" == service._parts.connections.run(lambda c: c.exec_driver_sql(show).scalar_one())
    with service._parts.connections.transaction() as connection:
        assert "on" == connection.exec_driver_sql(show).scalar_one()
    thread = threading.Thread(target=queue.consume)
    thread.start()
    thread.join()
    del thread
    gc.collect()
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            connection = stack.enter_context(service._parts.connections.transaction())
            assert "on" == connection.exec_driver_sql(show).scalar_one()


@pytest.fixture
def unprepared(database: TestDatabase) -> Iterator[QueueService]:
    """A service that prepares nothing, as behind PgBouncer."""
    engine = create_engine(database.url, connect_args={"prepare_threshold": None})
    with QueueService(engine) as service:
        yield service
    engine.dispose()


def test_sessions_that_may_be_others_are_left_alone(unprepared: QueueService) -> None:
    """A pooler may give the same session of the server to another program next."""
    show = "SHOW enable_seqscan"
    connections = parts_of(unprepared).connections
    assert "on" == connections.run(lambda c: c.exec_driver_sql(show).scalar_one())


def test_a_queue_that_an_analyze_found_empty_is_claimed_by_its_ids(
    service: QueueService, database: TestDatabase
) -> None:
    """A held transaction keeps the dead: who reads the primary key from its beginning meets all."""
    queue = service.create_queue("jobs")
    holding = create_engine(database.url)
    with holding.connect() as reader:
        reader.execution_options(isolation_level="REPEATABLE READ")
        reader.exec_driver_sql("SELECT COUNT(*) FROM pg_class").all()
        queue.load(range(20_000))
        while messages := queue.consume(500):
            queue.ack(messages)
        with service._parts.connections.engine.connect() as connection:
            analyze(connection, "postgresql", "queue_jobs")
        queue.load(range(100))
        [message] = queue.consume()
        before = tuples_read(service)
        for _ in range(20):
            [message] = queue.exchange(message)
        queue.ack(message)
        assert tuples_read(service) - before < 20 * 1000
    holding.dispose()


def tuples_read(service: QueueService) -> int:
    """How many entries of the primary key were read, by what the server has counted."""
    flush = "SELECT pg_stat_force_next_flush()"
    service._parts.connections.run(lambda connection: connection.exec_driver_sql(flush).close())
    time.sleep(1.1)
    read = "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'queue_jobs_pkey'"
    with service._parts.connections.engine.connect() as connection:
        return int(connection.exec_driver_sql(read).scalar_one())
