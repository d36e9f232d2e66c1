"""Statements bypass SQLAlchemy, but listeners still see them."""

from __future__ import annotations

import logging
import os
import socket
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.exc import DBAPIError

from queue_over_sql import DatabaseRefused
from queue_over_sql.queue import core_of
from queue_over_sql.sql.compiled import DriverResult
from queue_over_sql.sql.driver_calls import _socket_of as socket_of
from queue_over_sql.sql.driver_calls import driver_connection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

    from queue_over_sql import Message, QueueService
    from queue_over_sql.testing.plugin import MakeService

pytestmark = pytest.mark.threads("asks the engine of threads")


@pytest.fixture
def seen() -> Iterator[list[str]]:
    """The statements that a tracer of all engines is told of."""
    statements: list[str] = []

    def note(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    yield statements
    event.remove(Engine, "before_cursor_execute", note)


def goes_round(service: QueueService) -> None:
    queue = service.create_queue("jobs")
    queue.publish("x")
    (message,) = queue.consume()
    message.ack()
    assert 0 == queue.stats().live


@pytest.mark.engines("sqlite", "postgresql")
def test_tracers_are_told_of_each_statement(seen: list[str], make_service: MakeService) -> None:
    """OpenTelemetry and its kind listen to the class of all engines."""
    goes_round(make_service())
    assert any("INSERT INTO" in text and "queue_jobs" in text for text in seen)
    assert any("DELETE FROM" in text and "queue_jobs" in text for text in seen)


@pytest.mark.engines("postgresql", "mysql", "mariadb", "h2")
def test_the_system_notices_that_a_peer_is_gone(make_service: MakeService) -> None:
    """It ends each wait for it: no statement needs a timeout."""
    # A copy of the socket gets a lower number than the socket.
    holes = [os.open(os.devnull, os.O_RDONLY) for _ in range(9)]
    connections = make_service()._parts.connections
    options = ["SO_KEEPALIVE"], ["TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT"]

    def look(connection: Connection) -> list[int]:
        driver = driver_connection(connection)
        for number in holes:
            os.close(number)
        with socket_of(connection.dialect, driver) as found:
            assert found is not None
            levels = zip((socket.SOL_SOCKET, socket.IPPROTO_TCP), options, strict=True)
            return [
                found.getsockopt(level, getattr(socket, name))
                for level, names in levels
                for name in names
            ]

    on, idle, interval, count, unacknowledged = connections.run(look)
    assert on
    assert (25, 25_000) == (idle + interval * count, unacknowledged)


@pytest.mark.engines("sqlite")
def test_the_log_of_sqlalchemy_has_each_statement(
    make_service: MakeService, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever sets its level to INFO sees them."""
    with caplog.at_level(logging.INFO, logger="sqlalchemy.engine"):
        goes_round(make_service())
    assert any("INSERT INTO" in text and "queue_jobs" in text for text in caplog.messages)


def test_an_error_of_the_driver_is_chained_under_ours(service: QueueService) -> None:
    """On the short way, too, SQLAlchemy's error stands between the driver's and ours."""
    queue = service.create_queue("jobs")
    queue.publish("x")
    context = core_of(queue).context
    with pytest.raises(DatabaseRefused) as refused:
        context.run(lambda connection: context.sql.get(_no_such_table).run(connection))
    between = refused.value.__cause__
    assert isinstance(between, DBAPIError)
    assert "no_such_table" in str(between.statement)
    assert between.orig is not None


@pytest.mark.engines("sqlite", "postgresql")
def test_our_statements_on_a_handlers_connection_take_the_short_way(service: QueueService) -> None:
    """Our own listeners to such a connection do not keep acks and publishes from it."""
    queue = service.create_queue("jobs")
    queue.publish("x")
    context, results = core_of(queue).context, list[object]()
    worker = service.worker()

    @worker.handle("jobs", transactional=True)
    def work(_: Message, connection: Connection) -> None:
        context.connections.callers.hasten(connection)
        results.append(context.sql.get(_one).run(connection))

    worker.run(until_empty=True)
    assert [DriverResult] == [type(result) for result in results]


def _one(_: object) -> Any:
    return text("SELECT 1")


def _no_such_table(_: object) -> Any:
    return text("SELECT 1 FROM no_such_table")
