"""What is said and done where the server refuses to write because of its settings."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import create_engine, event, text

from queue_over_sql import DatabaseRefused, DatabaseUnavailable, QueueService
from tests.contract.worker.running_worker import running
from tests.waiting import eventually

if TYPE_CHECKING:
    from typing import Any

    from sqlalchemy import Connection

    from queue_over_sql import Message
    from queue_over_sql.testing.plugin import TestDatabase

# MariaDB has no such schemas, and its servers for tests write no binary log.
pytestmark = pytest.mark.engines("mysql")


def test_a_schema_that_only_reads_is_waited_for(
    service: QueueService, database: TestDatabase
) -> None:
    """As a server is: it blames no message, and work goes on when it is over or has moved.

    With ``READ ONLY = 1`` an administrator moves a schema to another server. It was an error of the
    handler, which made an innocent dead letter.
    """
    queue = service.create_queue("jobs", max_attempts=1)
    service.create_queue("probe")
    queue.publish(1)
    administrator = create_engine(database.url, isolation_level="AUTOCOMMIT")
    worker = service.worker(concurrency=1, poll_interval=(0.01, 0.1))
    tries: list[int] = []

    @worker.handle("jobs", transactional=True)
    def handle(message: Message, connection: Connection) -> None:
        tries.append(message.attempt)
        if len(tries) == 1:
            _set_read_only(value=1)
        connection.execute(text("DELETE FROM queue_probe")).close()

    def _set_read_only(*, value: int) -> None:
        with administrator.connect() as connection:
            name = connection.scalar(text("SELECT DATABASE()"))
            connection.exec_driver_sql(f"ALTER DATABASE `{name}` READ ONLY = {value}").close()

    with contextlib.ExitStack() as stack:
        stack.callback(administrator.dispose)
        stack.callback(_set_read_only, value=0)
        stack.enter_context(running(worker))
        eventually(lambda: len(tries) > 1, "the handler is tried again")
        with pytest.raises(DatabaseUnavailable, match="only reads"):
            queue.publish(2)
        _set_read_only(value=0)
        eventually(lambda: not queue.stats().live, "it is handled")
    assert {1} == set(tries)
    assert not queue.archive.messages().list()


def test_a_binary_log_of_statements_is_named(database: TestDatabase) -> None:
    """InnoDB refuses all writes at READ COMMITTED then, and the error says what to change."""
    engine = create_engine(database.url)

    @event.listens_for(engine, "connect")
    def log_statements(raw: Any, _record: object) -> None:
        with raw.cursor() as cursor:
            cursor.execute("SET SESSION binlog_format = 'STATEMENT'")

    service = QueueService(engine)
    with pytest.raises(DatabaseRefused) as refused:
        service.create_queue("jobs")
    service.stop()
    assert "SET GLOBAL binlog_format = 'ROW'" in str(refused.value)
    engine.dispose()
