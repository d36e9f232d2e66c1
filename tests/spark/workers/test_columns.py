"""The columns for Arrow handlers are the same for claimed and taken messages."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import Boolean, Column, DateTime, Float, Integer, Numeric, String

from queue_over_sql import Publication, Queue, QueueService
from queue_over_sql.arrow.rows import batch_of, schema_of
from queue_over_sql.message import row_of
from queue_over_sql.queue import core_of

TEXTS = [
    "",
    "plain",
    'quo"ted',
    "comma, and\nline\r\nbreak",
    "NULL",
    "\\.",
    "ünï😀",
    " x ",
    "\\x41",
]


def taken(queue: Queue, service: QueueService, count: int) -> pa.RecordBatch | None:
    """Take as a worker does; the transaction commits."""
    with service._parts.connections.transaction() as connection:
        found = core_of(queue).take_columns(count, connection)
    return None if found is None else pa.concat_batches(found)


def as_rows(queue: Queue) -> pa.RecordBatch:
    """All messages, read as rows."""
    rows = [row_of(message) for message in queue.messages().list(1000)]
    return batch_of(core_of(queue).context.tables, [row._replace(attempt_count=1) for row in rows])


@pytest.mark.engines("postgresql")
@pytest.mark.parametrize("payload", ["json", "text"])
def test_what_is_taken_as_columns_is_what_rows_say(service: QueueService, payload: Any) -> None:
    """Empty texts, NULL, quotes, line breaks, headers and own columns come through."""
    queue = service.create_queue(
        "jobs",
        payload=payload,
        columns=[Column("note", String(50)), Column("size", Integer), Column("ok", Boolean)],
    )
    queue.publish_many(
        [
            Publication(
                given,
                key=None if not given else f"k{given}",
                kind=None if number % 2 else "Kind",
                headers={"a": given, "b": number} if number % 3 else None,
                columns={"note": given, "size": number, "ok": number % 2 == 0 or None},
            )
            for number, given in enumerate(TEXTS)
        ]
    )
    expected = as_rows(queue)
    batch = taken(queue, service, 100)
    assert batch is not None
    assert schema_of(core_of(queue).context.tables) == batch.schema
    assert expected.to_pylist() == batch.to_pylist()
    assert 0 == queue.stats().live


@pytest.mark.engines("postgresql")
def test_types_that_csv_does_not_keep_go_by_rows(service: QueueService) -> None:
    """Bytes, instants and decimals: no columns are taken, and nothing is removed."""
    plain = service.create_queue("jobs", payload="bytes")
    plain.publish(b"\x00\xff")
    own = service.create_queue(
        "own", columns=[Column("due", DateTime(timezone=True)), Column("price", Numeric(10, 2))]
    )
    due = dt.datetime(2030, 1, 2, 3, 4, 5, 678, dt.UTC)
    own.publish({"n": 1}, columns={"due": due, "price": Decimal("12.50")})
    assert taken(plain, service, 5) is None
    assert taken(own, service, 5) is None
    found = as_rows(own).select(["due", "price"]).to_pylist()
    assert [{"due": due, "price": Decimal("12.50")}] == found
    assert 1 == plain.stats().live
    assert 1 == own.stats().live


@pytest.mark.engines("postgresql")
def test_taking_keeps_order_levels_pauses_and_edits(service: QueueService) -> None:
    """Oldest first within a level, urgent first, nothing of a paused queue, edits at once."""
    queue = service.create_queue("jobs", priorities=2, columns=[Column("x", Float)])
    queue.publish_many(
        [Publication({"n": n}, priority=n % 2, columns={"x": n / 3}) for n in range(40)]
    )
    first = taken(queue, service, 25)
    assert first is not None
    order = [(row["priority"], row["available_at"], row["id"]) for row in first.to_pylist()]
    assert sorted(order) == order
    assert [0] * 20 + [1] * 5 == [row["priority"] for row in first.to_pylist()]

    queue.pause()
    assert 0 == taken_count(queue, service)
    queue.resume()
    last = queue.messages().list(100)[-1]
    queue.messages(where=queue.table.c.id == last.id).prioritize(front=True)
    batch = taken(queue, service, 1)
    assert batch is not None
    assert [last.id] == batch.column("id").to_pylist()


def taken_count(queue: Queue, service: QueueService) -> int:
    """How many can be taken."""
    with service._parts.connections.transaction() as connection:
        return sum(batch.num_rows for batch in core_of(queue).take_columns(10, connection) or [])


@pytest.mark.engines("postgresql")
def test_a_roll_back_leaves_everything_in_its_place(service: QueueService) -> None:
    """What was taken and rolled back is taken next, by anybody, uncounted."""
    queue = service.create_queue("jobs", archive="all")
    ids = [p.id for p in queue.publish_many([{"n": n} for n in range(5)])]
    with service._parts.connections.transaction() as connection:
        found = core_of(queue).take_columns(3, connection)
        assert found is not None
        assert ids[:3] == found[0].column("id").to_pylist()
        connection.rollback()
    core_of(queue).wake_consumers()
    assert 5 == queue.stats().ready
    assert 0 == queue.stats().done
    assert [(number, 1) for number in ids] == [(m.id, m.attempt) for m in queue.consume(10)]
