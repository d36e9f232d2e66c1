"""Mistakes that other queues of this design made: each has a test of its own.

Those of the second queue's indexes (``test_create``), of unordered batches and shared
instances, of deleting what another holds (``test_contract``) and of the heartbeat's unit
(``test_consumer``) stand there.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import make_url

from queue_over_sql import DatabaseUnavailable, QueueError, QueueService
from queue_over_sql.dialects.sqlite import hooks
from queue_over_sql.dialects.sqlite.features import FEATURES
from tests.contract.queue_state import counts
from tests.waiting import consume_exactly

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import URL, Engine

    from queue_over_sql import Queue
    from queue_over_sql.testing.plugin import MakeService, TestDatabase


def unreachable(url: URL, tmp_path: Path) -> URL:
    """The same database where nobody answers: a closed port, or a folder that is not there."""
    if url.host is None:
        return url.set(database=str(tmp_path / "missing" / "queues.db"))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return url.set(port=listener.getsockname()[1])


def test_a_database_that_is_down_fails_the_boot(database: TestDatabase, tmp_path: Path) -> None:
    """A server that boots without its database gets a clear error, so that it can end itself."""
    service = QueueService(unreachable(make_url(database.url), tmp_path))
    try:
        with pytest.raises(DatabaseUnavailable):
            service.create_queue("jobs")
    finally:
        service.stop()


@pytest.mark.engines("sqlite")
@pytest.mark.empty_database
@pytest.mark.threads("a transaction of the caller's own thread")
def test_a_creation_inside_of_ones_own_transaction_is_told(
    make_service: MakeService, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for that transaction, which waits for it: to connect at all, then to create."""
    monkeypatch.setitem(vars(FEATURES), "creation_seconds", 0.1)
    monkeypatch.setattr(hooks, "_FIRST_TIMEOUT", 0.1)
    said = r"by your own transaction\? then call create_queue\(\) or .* before it begins"
    service = make_service()
    for again in (False, True):
        service = make_service() if again else service
        with engine.connect() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            with pytest.raises(DatabaseUnavailable, match=said):
                service.create_queue("jobs")
            connection.rollback()
        # Now the file is as the service wants it, with the shared tables.
        service.queues()
    service.create_queue("jobs")


def test_an_error_is_raised_and_never_an_empty_answer(queue: Queue, engine: Engine) -> None:
    """When the table is gone, consume and stats do not say that there is nothing to do."""
    queue.publish("x")
    queue.table.drop(engine)
    with pytest.raises(QueueError):
        queue.consume()
    with pytest.raises(QueueError):
        queue.stats()


@pytest.mark.engines("sqlite")
def test_an_attempt_is_counted_even_if_nothing_is_reported(make_service: MakeService) -> None:
    """A consumer that vanishes without a nack has used an attempt."""
    queue = make_service(reaper_interval=0.1).create_queue("jobs")
    queue.publish("x")
    seen = []
    for _ in range(3):
        (message,) = consume_exactly(queue, 1)
        seen.append(message.attempt)
        message.extend(lease=0.05)
    assert [1, 2, 3] == seen


@pytest.mark.engines("sqlite")
def test_an_acked_message_never_comes_again(make_service: MakeService) -> None:
    """It is gone for the service that acked, for others, and for a reaper."""
    queue = make_service().create_queue("jobs")
    queue.publish("x")
    (message,) = queue.consume()
    message.ack()
    other = make_service()
    assert 0 == other.reap().restored
    assert [] == other.queue("jobs").consume()
    assert [] == queue.consume()
    assert (0, 0, 0) == counts(queue)
