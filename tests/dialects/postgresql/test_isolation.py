"""The service works at READ COMMITTED, whatever the default of the database or the login is."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import make_url

from queue_over_sql import QueueService
from queue_over_sql.service import parts_of
from queue_over_sql.sql.operation import Operation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

    from queue_over_sql import Message
    from queue_over_sql.testing.plugin import TestDatabase

pytestmark = pytest.mark.engines("postgresql")


@pytest.fixture(params=["repeatable read", "serializable"])
def strict(request: pytest.FixtureRequest, database: TestDatabase) -> Iterator[QueueService]:
    """A service whose sessions get this level, as ALTER DATABASE or ALTER ROLE set it."""
    level = str(request.param).replace(" ", r"\ ")
    options = {"options": f"-c default_transaction_isolation={level}"}
    with QueueService(make_url(database.url).update_query_dict(options)) as service:
        yield service


def test_an_operation_reads_what_others_committed_meanwhile(strict: QueueService) -> None:
    """Groups, limits and topics lock first and then look; an older snapshot would mislead them."""
    queue = strict.create_queue("jobs")
    connections = parts_of(strict).connections

    def look_twice(connection: Connection) -> tuple[int, int]:
        found = [len(connection.execute(queue.table.select()).all())]
        with ThreadPoolExecutor(1) as pool:
            pool.submit(queue.publish, "late").result(30)
        found.append(len(connection.execute(queue.table.select()).all()))
        return found[0], found[1]

    assert (0, 1) == connections.run(Operation(look_twice, atomic=True))


def test_a_handler_whose_lease_is_renewed_can_ack(strict: QueueService) -> None:
    """Its transaction began before the renewal, which would be a conflict in each attempt."""
    queue = strict.create_queue("jobs", archive="all")
    worker = strict.worker(concurrency=1)

    @worker.handle("jobs", transactional=True)
    def work(message: Message, connection: Connection) -> None:
        connection.exec_driver_sql("SELECT 1")
        message.extend(60)

    queue.publish("x")
    worker.run(until_empty=True)
    [done] = queue.archive.messages().list()
    assert ("done", 1) == (done.outcome, done.attempt)
