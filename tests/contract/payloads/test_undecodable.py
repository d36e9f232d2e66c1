"""A payload that cannot be decoded is not lost, and keeps nothing else from being delivered.

Another client wrote it: on engines whose JSON is checked by the database it cannot come to be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import update

from queue_over_sql import FixedDelay

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import Queue, QueueService

pytestmark = pytest.mark.engines("sqlite", "h2")


@pytest.fixture
def spoilt(service: QueueService, engine: Engine) -> Queue:
    """Three messages, the second of which holds no JSON."""
    queue = service.create_queue("spoilt", max_attempts=1)
    ids = [published.id for published in queue.publish_many(["a", "b", "c"])]
    table = queue.table
    with engine.begin() as connection:
        connection.execute(update(table).where(table.c.id == ids[1]).values(payload="{no json"))
    return queue


def test_consume_delivers_the_rest_and_dead_letters_it(spoilt: Queue) -> None:
    """It runs out of attempts like any message that cannot be handled."""
    assert ["a", "c"] == [message.payload for message in spoilt.consume(3)]
    buried = spoilt.archive.messages(status="failed").first()
    assert buried is not None
    assert "{no json" == buried.payload
    assert "JSON" in (buried.last_error or "")


def test_take_dead_letters_it_in_the_callers_transaction(spoilt: Queue, engine: Engine) -> None:
    """The commit that ends the others moves it to the archive; a rollback leaves it."""
    with engine.connect() as connection:
        assert ["a", "c"] == [m.payload for m in spoilt.take(3, connection=connection)]
        connection.rollback()
    assert 3 == spoilt.stats().ready
    with engine.begin() as connection:
        assert ["a", "c"] == [m.payload for m in spoilt.take(3, connection=connection)]
    assert 0 == spoilt.stats().live
    assert 1 == spoilt.stats().failed


def test_one_at_a_time_it_hides_none(spoilt: Queue) -> None:
    """The claim that met it goes on to the next message; an operator sees what is stored."""
    assert ["a", "{no json", "c"] == [message.payload for message in spoilt.messages().list()]
    assert ["a", "c"] == [spoilt.consume()[0].payload for _ in range(2)]


def test_one_that_comes_back_at_once_keeps_nobody(service: QueueService, engine: Engine) -> None:
    """A queue that holds nothing else is empty to its consumer, however many attempts are left."""
    queue = service.create_queue("jobs", max_attempts=10_000, retry=FixedDelay(0))
    queue.publish("a")
    with engine.begin() as connection:
        connection.execute(update(queue.table).values(payload="{no json"))
    assert [] == queue.consume()
    assert 1 == queue.stats().ready
