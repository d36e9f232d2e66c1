"""``where=``: a condition on the queue's table filters the messages to claim."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, DateTime, Integer, or_

from queue_over_sql import Publication

if TYPE_CHECKING:
    from queue_over_sql import Queue, QueueService

DAYS = [datetime(2026, 1, day) for day in range(1, 7)]  # noqa: DTZ001 - a plain column holds it


@pytest.fixture
def visits(service: QueueService) -> Queue:
    """Six messages with a number and a day of their own."""
    columns: list[Column[Any]] = [Column("n", Integer), Column("day", DateTime)]
    queue = service.create_queue("visits", columns=columns)
    queue.publish_many(
        Publication(n, kind=f"k{n % 2}", columns={"n": n, "day": DAYS[n]}) for n in range(6)
    )
    return queue


def claimed(queue: Queue, condition: object) -> list[object]:
    """The payloads that a condition lets through, given back afterwards."""
    messages = queue.consume(10, where=condition)  # type: ignore[arg-type]
    queue.release(messages)
    return [message.payload for message in messages]


def test_lists_patterns_and_dates(visits: Queue) -> None:
    """IN, LIKE, OR, NULL and typed values work as in any query."""
    columns = visits.table.c
    assert [1, 4] == claimed(visits, columns.n.in_([4, 1]))
    assert [] == claimed(visits, columns.n.in_([]))
    assert [2, 3] == claimed(visits, columns.day.in_([DAYS[2], DAYS[3]]))
    assert [1, 3, 5] == claimed(visits, columns.kind.like("%1"))
    assert [0, 5] == claimed(visits, or_(columns.n == 0, columns.day > DAYS[4]))
    assert [] == claimed(visits, columns.n.is_(None))
    assert [0, 1, 2, 3, 4, 5] == claimed(visits, None)


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python decides")
def test_the_same_condition_object_may_be_used_again(visits: Queue) -> None:
    """It is compiled once and finds what is there each time."""
    wanted = visits.table.c.n < 2
    assert [0, 1] == claimed(visits, wanted)
    visits.ack(visits.consume(1, where=wanted))
    assert [1] == claimed(visits, wanted)


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python decides")
def test_text_is_no_condition(visits: Queue) -> None:
    """SQL as text is refused with a sentence, not passed on."""
    with pytest.raises(TypeError, match="SQLAlchemy condition"):
        claimed(visits, "n = 1")
