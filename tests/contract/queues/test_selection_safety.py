"""An operator's mistakes and failures halfway: nothing unintended is changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import exists, select
from sqlalchemy.exc import DBAPIError

from queue_over_sql import DuplicateKey
from queue_over_sql.statements.operations import savepoint
from tests.contract.queue_state import counts

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection, Engine

    from queue_over_sql import Queue, QueueService


def rejected(queue: Queue, payload: object, key: str | None = None) -> None:
    """A dead letter."""
    queue.publish(payload, key=key)
    queue.reject(queue.consume(), "no")


def test_a_refused_requeue_leaves_the_archive_as_it_was(queue: Queue, engine: Engine) -> None:
    """Also when its caller goes on with the transaction and commits."""
    rejected(queue, "other")
    rejected(queue, "old", key="k")
    queue.publish("new", key="k")
    with engine.begin() as caller, pytest.raises(DuplicateKey):
        queue.archive.messages().requeue(connection=caller)
    assert ["old", "other"] == sorted(m.payload for m in queue.archive.messages().list())
    assert ["new"] == [m.payload for m in queue.messages().list()]


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python refuses it")
def test_a_condition_on_another_table_is_refused(service: QueueService) -> None:
    """It would be true for all messages as soon as it is true for one row of the other table."""
    queue, other = service.create_queue("jobs"), service.create_queue("others")
    queue.publish("a")
    rejected(queue, "b")
    other.publish("c", kind="go")
    slips: list[Callable[[], object]] = [
        lambda: queue.messages(where=other.table.c.kind == "go").hold(),
        lambda: queue.messages(where=queue.archive.table.c.id > 0).remove(),
        lambda: queue.archive.messages(where=queue.table.c.id > 0).remove(),
        lambda: queue.consume(where=other.table.c.kind == "go"),
    ]
    for slip in slips:
        with pytest.raises(ValueError, match="where uses"):
            slip()
    assert 1 == queue.messages(status="ready").count()
    assert 1 == queue.archive.messages().count()


def test_a_subquery_may_ask_another_table(service: QueueService) -> None:
    """What it says of the queue's own table is about each message by itself."""
    queue, other = service.create_queue("jobs"), service.create_queue("others")
    queue.publish("a", kind="x")
    queue.publish("b", kind="y")
    other.publish("c", kind="y")
    found = other.table
    known = exists().where(found.c.kind == queue.table.c.kind)
    listed = queue.table.c.kind.in_(select(found.c.kind))
    for condition in (known, listed):
        assert ["b"] == [m.payload for m in queue.messages(where=condition).list()]
    assert ["b"] == [m.payload for m in queue.consume(5, where=known)]


@pytest.mark.engines("sqlite")
def test_what_is_skipped_is_counted_over_all_batches(queue: Queue) -> None:
    """Not only in the last of them."""
    queue.load(range(1200))
    held = queue.consume(3)
    removed = queue.messages().remove(progress=lambda _: None)
    assert 1197 == removed
    assert 3 == removed.skipped
    queue.ack(held)
    assert (0, 0, 0) == counts(queue)


@pytest.mark.default_on("sqlite", "postgresql")
def test_a_refusal_hides_no_failed_undoing(queue: Queue, engine: Engine) -> None:
    """A deadlock while a refused batch is undone has ended the whole transaction of the caller.

    Here the savepoint has gone instead, which fails as well.
    """
    refused = DuplicateKey("jobs", "k", 1)
    spoilt = DBAPIError("INSERT", None, Exception("spoilt"))
    for failure in (refused, spoilt):
        with engine.connect() as caller:
            queue.publish("x", connection=caller)
            with pytest.raises(DBAPIError) as caught, savepoint(caller):
                _end_savepoint(caller, failure)
        assert (caught.value is failure) is (failure is spoilt)


def _end_savepoint(caller: Connection, failure: Exception) -> None:
    caller.exec_driver_sql("RELEASE SAVEPOINT queue_over_sql_row").close()
    raise failure
