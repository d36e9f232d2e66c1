"""Consumers of a nearly empty queue do not wait for rows that others have locked.

The servers would look for a few ids by reading the whole table, because it seems to be short.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, event

from queue_over_sql import QueueService
from queue_over_sql.errors import DatabaseUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Engine

    from queue_over_sql import Message, Queue
    from queue_over_sql.testing.plugin import TestDatabase

pytestmark = pytest.mark.engines("mysql", "mariadb")
COUNT = 50


@pytest.fixture
def impatient(database: TestDatabase) -> Iterator[Engine]:
    """An engine whose statements wait for a lock for a second, which is the least."""
    engine = create_engine(database.url)

    @event.listens_for(engine, "connect")
    def hurry(raw: Any, _record: object) -> None:
        with raw.cursor() as cursor:
            cursor.execute("SET SESSION innodb_lock_wait_timeout = 1")

    yield engine
    engine.dispose()


def _take(queue: Queue, engine: Engine) -> None:
    with engine.begin() as caller:
        assert COUNT == len(queue.take(COUNT, connection=caller))


def _consume(queue: Queue, engine: Engine) -> None:
    del engine
    assert COUNT == len(queue.consume(COUNT))


def _release(queue: Queue, engine: Engine) -> None:
    messages: list[Message] = queue.consume(COUNT)
    with engine.begin() as caller:
        queue.release(messages, connection=caller)


def _ack(queue: Queue, engine: Engine) -> None:
    messages: list[Message] = queue.consume(COUNT)
    with engine.begin() as caller:
        queue.ack(messages, connection=caller)


def _nobody_waits(engine: Engine, operation: Callable[[Queue, Engine], None]) -> None:
    with QueueService(engine) as service:
        queue = service.create_queue("jobs")
        queue.publish_many(list(range(COUNT + 1)))
        with engine.begin() as other:
            assert 1 == len(queue.take(connection=other))
            operation(queue, engine)


@pytest.mark.parametrize("operation", [_take, _consume, _release])
def test_nobody_waits_for_messages_of_others(
    impatient: Engine, operation: Callable[[Queue, Engine], None]
) -> None:
    """The oldest message is locked by another consumer's transaction, which has not ended."""
    _nobody_waits(impatient, operation)


@pytest.mark.engines("mysql")
def test_an_ack_waits_for_nobody(impatient: Engine) -> None:
    """MariaDB's DELETE … RETURNING takes no hint."""
    _nobody_waits(impatient, _ack)


def test_a_caller_who_meets_a_lock_learns_to_repeat(impatient: Engine) -> None:
    """The server has ended the statement or, after a deadlock, the transaction."""
    with QueueService(impatient) as service:
        queue = service.create_queue("jobs")
        queue.publish("one")
        (message,) = queue.consume()
        with impatient.begin() as other, impatient.begin() as caller:
            queue.ack(message, connection=other)
            with pytest.raises(DatabaseUnavailable, match="Roll your transaction back and repeat"):
                queue.ack(message, connection=caller)
            caller.rollback()
