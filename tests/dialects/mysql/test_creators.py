"""Servers create queues in one database at the same time, where DDL commits by itself."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import create_engine, func, make_url, select
from sqlalchemy.exc import DBAPIError

from queue_over_sql import QueueService
from queue_over_sql.database.opened_engine import OpenedEngine
from queue_over_sql.dialects.engines import dialect_named
from queue_over_sql.dialects.mysql import ddl as mysql
from queue_over_sql.errors import DatabaseUnavailable
from queue_over_sql.queues.tables import settled
from queue_over_sql.service import parts_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection, Engine

    from queue_over_sql.testing.plugin import MakeService, TestDatabase

pytestmark = pytest.mark.engines("mysql", "mariadb")
QUEUES = "queue_over_sql_queues"


@pytest.fixture
def sql(database: TestDatabase) -> Iterator[Engine]:
    """An engine of the test's own."""
    engine = create_engine(database.url)
    yield engine
    engine.dispose()


@pytest.fixture
def reader(sql: Engine) -> Iterator[Connection]:
    """A transaction that has read the shared table, so that nobody can alter it.

    The table lacks a column: a service of today adds it when it boots.
    """
    with QueueService(sql) as older:
        older.create_queue("jobs")
    with sql.connect() as connection:
        connection.exec_driver_sql(f"ALTER TABLE {QUEUES} DROP COLUMN paused_at")
        connection.exec_driver_sql(f"SELECT name FROM {QUEUES}").all()
        yield connection
        connection.rollback()


def wait_until(sql: Engine, state: str) -> None:
    """Until a session on the test's database waits for something."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with sql.connect() as connection:
            rows = connection.exec_driver_sql("SHOW FULL PROCESSLIST").mappings()
            if any(state in str(r["State"]) for r in rows if r["db"] == sql.url.database):
                return
        time.sleep(0.02)
    pytest.fail(f"nobody waits in the state {state!r}")


def test_who_waits_for_a_creator_is_not_in_its_way(
    make_service: MakeService, reader: Connection, sql: Engine
) -> None:
    """One adds a column, the other has looked at the same table and waits: both succeed."""
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(make_service().create_queue, "mails")
        wait_until(sql, "metadata lock")
        second = pool.submit(make_service().create_queue, "orders")
        wait_until(sql, "User lock")
        reader.rollback()
        assert ["mails", "orders"] == [first.result(60).name, second.result(60).name]
    assert ["jobs", "mails", "orders"] == [queue.name for queue in make_service().queues()]


def test_creators_of_other_databases_are_not_waited_for(
    make_service: MakeService, reader: Connection, sql: Engine, database: TestDatabase
) -> None:
    """A creator that is stuck keeps nobody waiting who works in another database."""
    other = f"{sql.url.database}_other"
    with sql.connect() as connection, ThreadPoolExecutor(1) as pool:
        connection.exec_driver_sql(f"CREATE DATABASE {other}")
        stuck = pool.submit(make_service().create_queue, "mails")
        wait_until(sql, "metadata lock")
        try:
            beside = make_url(database.url).set(database=other)
            with QueueService(beside) as service:
                service.create_queue("mails").publish("up")
            assert not stuck.done()
        finally:
            reader.rollback()
            connection.exec_driver_sql(f"DROP DATABASE {other}")
        assert "mails" == stuck.result(60).name


def test_a_creator_that_never_ends_is_an_error(
    service: QueueService, sql: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waited in vain does not go on as if it had the lock, and can try again."""
    service.create_queue("mails")
    name = mysql._creation_lock_name(sql.url.database)
    with sql.connect() as creator, monkeypatch.context() as hurried:
        assert 1 == creator.scalar(select(func.get_lock(name, 0)))
        # Nobody but this service is in a hurry, since nobody else waits.
        hurried.setitem(vars(parts_of(service).connections.dialect.features), "creation_seconds", 1)
        with pytest.raises(DatabaseUnavailable, match=name):
            service.create_queue("orders")
        assert ["mails"] == [queue.name for queue in service.queues()]
        assert 1 == creator.scalar(select(func.release_lock(name)))
    assert "orders" == service.create_queue("orders").name


def test_the_name_of_the_lock_fits() -> None:
    """Databases of long names have locks of their own, too."""
    names = [mysql._creation_lock_name(name) for name in ("A", "a" * 49, "a" * 63, "a" * 64)]
    assert "queue_over_sql.a" == names[0]
    assert 4 == len(set(names))
    assert [16, 64, 64, 64] == [len(name) for name in names]


@pytest.mark.engines("h2")
def test_a_creator_of_another_clock_is_not_waited_for(service: QueueService, sql: Engine) -> None:
    """It died, and then somebody set the clock back: its row lies in the future."""
    service.create_queue("first")
    with sql.begin() as connection:
        ahead = int(time.time()) + 3600
        connection.exec_driver_sql(f"INSERT INTO queue_over_sql_creation VALUES (1, {ahead})")
    service.create_queue("second")


@pytest.mark.engines("h2")
def test_a_lost_connection_ends_a_look_at_a_table(sql: Engine) -> None:
    """To look again on it would tell of a transaction to roll back, and not of the loss."""
    with sql.connect() as lost, sql.connect() as other:
        dialect = OpenedEngine(lost.engine, dialect_named).dialect_of(lost)
        session = lost.exec_driver_sql("SELECT SESSION_ID()").scalar_one()
        other.exec_driver_sql(f"CALL ABORT_SESSION({session})").close()
        with pytest.raises(DBAPIError):
            settled(lost, lambda: lost.exec_driver_sql("SELECT 1").scalar(), dialect)
