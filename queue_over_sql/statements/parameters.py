"""Bind parameters, and the fence that most statements share.

Names of parameters begin with ``p_``, because SQLAlchemy reserves column names in INSERT and
UPDATE. A statement over ids is compiled for the next power of two and padded with the last id, so
that a few texts serve every batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    String,
    and_,
    bindparam,
    case,
    literal_column,
    update,
)

from queue_over_sql.schema.queue_tables import MOST_ATTEMPTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import FromClause, Select, Table, Update

    from queue_over_sql.schema.queue_tables import QueueTables


T = TypeVar("T")
MAX_IDS = 512
"""The largest number of ids in one statement; larger batches need several statements."""

CLAIM_CLEARED: dict[str, Any] = dict.fromkeys(
    ("consumer_id", "consumer_round", "claimed_at", "lease_expires_at")
)
"""The values of an unclaimed message."""

NEW_LIFE: dict[str, Any] = {
    "attempt_count": 0,
    "last_attempt_at": None,
    "last_error": None,
    "last_traceback": None,
}
"""The values of a message that starts again."""


def uncounted(tables: QueueTables) -> dict[str, Any]:
    """The values of a message that was given back without counting the attempt."""
    return CLAIM_CLEARED | {"attempt_count": tables.live.c.attempt_count - 1}


def next_attempt(rows: FromClause) -> ColumnElement[int]:
    """The number of a message's next attempt.

    What somebody wrote into the row must not overflow: the database would refuse the whole claim.
    """
    count = rows.c.attempt_count
    # The sum is a number on SQLite, even if another client stored a text, which is larger than any.
    return case((count + 0 >= literal_column(str(MOST_ATTEMPTS)), count), else_=count + 1)


def number(name: str) -> ColumnElement[Any]:
    """A BIGINT parameter, with its type, because an engine cannot guess the type of NULL."""
    return bindparam(name, None, type_=BigInteger())


def words(name: str, length: int | None = None) -> ColumnElement[Any]:
    """A text parameter."""
    return bindparam(name, None, type_=String(length))


def reason(tables: QueueTables) -> ColumnElement[Any]:
    """The parameter ``p_error``: the text of a failure."""
    return bindparam("p_error", None, type_=tables.expressions.reason_type())


def bucket_of(count: int) -> int:
    """The number of ids to compile for: the next power of two."""
    return 1 << (count - 1).bit_length()


def batches(ids: Sequence[T]) -> Iterator[Sequence[T]]:
    """Split ids, or values for them, into batches for one statement each."""
    for start in range(0, len(ids), MAX_IDS):
        yield ids[start : start + MAX_IDS]


def id_values(ids: Sequence[int]) -> dict[str, int]:
    """The bind parameters for ids, padded to their bucket."""
    padding = bucket_of(len(ids)) - len(ids)
    filled = [*ids, *[ids[-1]] * padding]
    return {f"p_id_{index}": value for index, value in enumerate(filled)}


def among_ids(table: Table, size: int) -> ColumnElement[bool]:
    """The condition that the row's id is one of ``size`` parameters."""
    ids = id_parameters(size)
    return table.c.id.in_(ids) if size > 1 else table.c.id == ids[0]


def id_parameters(size: int) -> list[ColumnElement[Any]]:
    """The parameters that ``id_values`` fills."""
    return [number(f"p_id_{index}") for index in range(size)]


def fence(
    tables: QueueTables, size: int, consumer: str = "p_consumer", consumer_round: str = "p_round"
) -> ColumnElement[bool]:
    """The fence: only the holder of the claim can change a claimed message."""
    return and_(among_ids(tables.live, size), stamped_by(tables, consumer, consumer_round))


def stamped_by(
    tables: QueueTables, consumer: str = "p_consumer", consumer_round: str = "p_round"
) -> ColumnElement[bool]:
    """The condition for the messages of one claim."""
    live = tables.live
    return and_(
        live.c.consumer_id == words(consumer),
        live.c.consumer_round == number(consumer_round),
    )


def by_id(tables: QueueTables, statement: Select[Any], rows: FromClause) -> Select[Any]:
    """Let the engine find ``rows`` by their primary key, however few there seem to be."""
    hint = tables.expressions.id_index_hint()
    return statement if hint is None else statement.with_hint(rows, hint)


def by_holder(tables: QueueTables, statement: Select[Any]) -> Select[Any]:
    """Let the engine find live messages by the consumer that holds them, however many wait."""
    hint = tables.expressions.rounds_index_hint(tables.base_name)
    return statement if hint is None else statement.with_hint(tables.live, hint)


def update_by_id(tables: QueueTables) -> Update:
    """An UPDATE of live messages that are named by id."""
    hint = tables.expressions.id_index_hint()
    statement = update(tables.live)
    return statement if hint is None else statement.with_hint(hint)
