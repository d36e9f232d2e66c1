"""``where=``: a condition on the queue's table filters the messages to claim."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, DateTime, Integer, String, or_

from queue_over_sql import Publication

if TYPE_CHECKING:
    from sqlalchemy import Engine

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


@pytest.mark.engines("postgresql", "mysql", "mariadb", "h2")
@pytest.mark.default_on("postgresql", "mariadb")
@pytest.mark.threads("the server decides")
@pytest.mark.parametrize("grouped", [False, True], ids=["plain", "groups"])
def test_a_condition_hides_no_message_from_others(
    service: QueueService, engine: Engine, grouped: bool
) -> None:
    """Who looks past older messages locks none of them: others get the oldest, and the next."""
    settings: dict[str, Any] = {"group_limit": 1} if grouped else {}
    queue = service.create_queue("visits", columns=[Column("region", String(8))], **settings)
    queue.publish_many(
        Publication(
            n, columns={"region": "us" if n >= 50 else "eu"}, group=f"g{n}" if grouped else None
        )
        for n in range(60)
    )
    of_us = queue.table.c.region == "us"
    readers = engine.execution_options(isolation_level="READ COMMITTED")
    with readers.begin() as first, readers.begin() as second:
        assert [50] == [m.payload for m in queue.take(1, connection=first, where=of_us)]
        assert [0, 1, 2] == [each.payload for each in queue.consume(3)]
        assert [51] == [m.payload for m in queue.take(1, connection=second, where=of_us)]
        assert [52, 53] == [each.payload for each in queue.consume(2, where=of_us)]
        assert [54, 55, 56, 57, 58, 59] == [each.payload for each in queue.consume(99, where=of_us)]
