"""Bind parameters, and the fence that most statements share.

Names of parameters begin with ``p_`` because SQLAlchemy keeps those of the columns to itself in
INSERT and UPDATE. A statement over ids is compiled for the next power of two and padded with its
last id, so that a handful of texts serves every batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import BigInteger, ColumnElement, String, and_, bindparam

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Table

    from queue_over_sql.schema.queue_tables import QueueTables

T = TypeVar("T")
MAX_IDS = 512
"""How many ids one statement names at most; larger batches take several statements."""

CLAIM_CLEARED: dict[str, Any] = dict.fromkeys(
    ("consumer_id", "consumer_round", "claimed_at", "lease_expires_at")
)
"""The values of a message that nobody holds."""

NEW_LIFE: dict[str, Any] = {
    "attempt_count": 0,
    "last_attempt_at": None,
    "last_error": None,
    "last_traceback": None,
}
"""The values of a message that begins anew."""


def uncounted(tables: QueueTables) -> dict[str, Any]:
    """The values of a message that was given back without an attempt."""
    return CLAIM_CLEARED | {"attempt_count": tables.live.c.attempt_count - 1}


def number(name: str) -> ColumnElement[Any]:
    """A BIGINT parameter: typed, because an engine cannot guess the type of a bare NULL."""
    return bindparam(name, None, type_=BigInteger())


def words(name: str, length: int | None = None) -> ColumnElement[Any]:
    """A text parameter."""
    return bindparam(name, None, type_=String(length))


def bucket_of(count: int) -> int:
    """The number of ids to compile for: the next power of two."""
    return 1 << (count - 1).bit_length()


def batches(ids: Sequence[T]) -> Iterator[Sequence[T]]:
    """Cut ids, or what goes with them, into what one statement takes."""
    for start in range(0, len(ids), MAX_IDS):
        yield ids[start : start + MAX_IDS]


def id_values(ids: Sequence[int]) -> dict[str, int]:
    """Bind ids to the parameters of their bucket."""
    padding = bucket_of(len(ids)) - len(ids)
    filled = [*ids, *[ids[-1]] * padding]
    return {f"p_id_{index}": value for index, value in enumerate(filled)}


def among_ids(table: Table, size: int) -> ColumnElement[bool]:
    """The row's id is one of ``size`` parameters."""
    if size == 1:
        return table.c.id == number("p_id_0")
    return table.c.id.in_([number(f"p_id_{index}") for index in range(size)])


def fence(
    tables: QueueTables, size: int, consumer: str = "p_consumer", consumer_round: str = "p_round"
) -> ColumnElement[bool]:
    """The rule of promise 3: only the holder of the claim changes a claimed message."""
    live = tables.live
    return and_(
        among_ids(live, size),
        live.c.consumer_id == words(consumer),
        live.c.consumer_round == number(consumer_round),
    )
