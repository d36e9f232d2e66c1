"""Spark's filters in SQL: they let all rows pass that Spark would let pass, on every engine."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)
from sqlalchemy import Boolean, Column, DateTime, Float, Integer, String

from queue_over_sql import Publication, Queue, QueueService
from queue_over_sql.spark.columns import MessageColumns, message_columns, read_batches
from queue_over_sql.spark.filters import pushed
from queue_over_sql.spark.options import ColumnOptions

KEYS = ["a", "A", "a ", "ab", "a%c", "á", None, None]
NUMBERS = [1, 2, 3, None, 5, 6, None, 8]


@pytest.fixture
def filled(service: QueueService) -> Queue:
    """Eight messages, some without a key or a number."""
    own: list[Column[Any]] = [
        Column("number", Integer()),
        Column("words", String(20)),
        Column("flag", Boolean()),
        Column("ratio", Float()),
        Column("moment", DateTime()),
    ]
    queue = service.create_queue("filled", columns=own)
    queue.publish_many(
        Publication(1, key=key, kind=key, columns={"number": number, "words": key})
        for key, number in zip(KEYS, NUMBERS, strict=True)
    )
    return queue


def columns_of(queue: Queue, style: str = "native") -> MessageColumns:
    given = {"url": "unused://", "queue": queue.name, "schemaStyle": style}
    return message_columns(queue, ColumnOptions.parse(given))


def places(queue: Queue, wanted: Filter) -> tuple[list[int], bool] | None:
    """Which of the eight messages the database lets pass, and whether exactly those."""
    columns = columns_of(queue)
    found = pushed(wanted, columns)
    if found is None:
        return None
    statement = columns.select().where(found.condition).order_by(columns.table.c.id)
    batches = list(read_batches(queue, columns, statement, 1 << 20))
    first = min(message.id for message in queue.messages().list(100))
    return [row["id"] - first for batch in batches for row in batch.to_pylist()], found.exact


EXACT: list[tuple[Filter, list[int] | None]] = [
    (EqualTo(("key",), "a"), [0]),
    (EqualTo(("kind",), "a "), [2]),
    (EqualTo(("Key",), "a"), None),
    (In(("key",), ("a", "á", "zz")), [0, 5]),
    (Not(EqualTo(("key",), "a")), [1, 2, 3, 4, 5]),
    (Not(In(("key",), ("a", "A"))), [2, 3, 4, 5]),
    (IsNull(("key",)), [6, 7]),
    (IsNotNull(("key",)), [0, 1, 2, 3, 4, 5]),
    (Not(IsNull(("key",))), [0, 1, 2, 3, 4, 5]),
    (EqualNullSafe(("key",), None), [6, 7]),
    (EqualNullSafe(("key",), "a"), [0]),
    (Not(EqualNullSafe(("key",), "a")), [1, 2, 3, 4, 5, 6, 7]),
    (EqualTo(("number",), 3), [2]),
    (GreaterThan(("number",), 5), [5, 7]),
    (GreaterThanOrEqual(("number",), 5), [4, 5, 7]),
    (LessThan(("number",), 3), [0, 1]),
    (Not(LessThanOrEqual(("number",), 3)), [4, 5, 7]),
    (IsNull(("number",)), [3, 6]),
    (EqualTo(("priority",), 0), list(range(8))),
    (GreaterThan(("attempt",), 0), []),
]


def test_what_is_exact_is_what_spark_says(filled: Queue) -> None:
    """Case, accents, trailing spaces, percent signs and NULLs count as they do in Spark."""
    for wanted, expected in EXACT:
        found = places(filled, wanted)
        assert (None if expected is None else (expected, True)) == found, wanted


def test_a_prefix_may_not_let_too_little_pass(filled: Queue) -> None:
    """Its percent sign is a character."""
    for prefix in ("a", "a%", "á"):
        found = places(filled, StringStartsWith(("key",), prefix))
        assert found is not None
        assert {n for n, key in enumerate(KEYS) if (key or "").startswith(prefix)} <= set(found[0])
        assert not found[1]
    assert places(filled, Not(StringStartsWith(("key",), "a"))) is None


def test_own_texts_are_compared_once_more_by_spark(filled: Queue) -> None:
    """The collation of a user's column may take ``a`` and ``A`` for one."""
    for wanted in (EqualTo(("words",), "a"), In(("words",), ("a", "x"))):
        found = places(filled, wanted)
        assert found is not None
        passed, exact = found
        assert not exact
        assert 0 in passed
    assert places(filled, Not(EqualTo(("words",), "a"))) is None


def test_times_are_compared_to_the_microsecond(filled: Queue) -> None:
    """As the instants that they are, in whatever zone Spark gives them."""
    moment = filled.messages().list(1)[0].published_at
    here = moment.astimezone(dt.timezone(dt.timedelta(hours=5)))
    assert places(filled, GreaterThan(("published_at",), here)) is not None
    found = places(filled, EqualTo(("published_at",), here))
    assert found is not None
    assert 0 in found[0]
    earlier = moment - dt.timedelta(microseconds=1)
    assert ([], True) == places(filled, LessThanOrEqual(("published_at",), earlier))


LEFT: list[Filter] = [
    StringContains(("key",), "a"),
    EqualTo(("payload",), "1"),
    IsNull(("headers",)),
    GreaterThan(("key",), "a"),
    EqualTo(("flag",), True),  # noqa: FBT003 - what Spark gives
    EqualTo(("ratio",), 0.1),
    EqualTo(("moment",), dt.datetime(2026, 1, 1)),  # noqa: DTZ001 - what Spark gives
    EqualTo(("key",), "a\0"),
    EqualTo(("no_such",), 1),
    EqualTo(("headers", "inner"), "x"),
    In(("key",), ("a", None)),
    In(("number",), tuple(range(1_000))),
]


@pytest.mark.engines("sqlite")
def test_the_rest_is_left_to_spark(filled: Queue) -> None:
    """Whatever a database might see otherwise: order of texts, spellings of times, fractions."""
    assert [] == [wanted for wanted in LEFT if places(filled, wanted) is not None]


@pytest.mark.engines("sqlite")
def test_kafkas_columns_can_be_pushed_where_they_are_stored(filled: Queue) -> None:
    """``offset`` is the id; a key in bytes is Spark's to compare, the topic is a constant."""
    columns = columns_of(filled, "kafka")
    assert pushed(GreaterThan(("offset",), 3), columns) is not None
    assert pushed(EqualTo(("key",), b"a"), columns) is None
    assert pushed(EqualTo(("topic",), "filled"), columns) is None
