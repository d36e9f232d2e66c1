"""Statements for operators and on archives, and the database's clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Delete,
    Select,
    Update,
    and_,
    case,
    func,
    literal_column,
    select,
    true,
)

from queue_over_sql.dialects.statements import archive
from queue_over_sql.dialects.statements.parameters import number
from queue_over_sql.store.acts import change_by_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from queue_over_sql.dialects.compiled import StatementCache
    from queue_over_sql.schema.queue_tables import QueueTables
_BEFORE_ALL: Final = -1
Place = tuple[int, int]
"""The place of a message in the history: when it finished, in microseconds, and its id."""


def select_clock(tables: QueueTables, *others: str) -> Select[Any]:
    """Read the database's clock, and ``others``, which are SQL."""
    columns: list[ColumnElement[Any]] = [literal_column(other) for other in others]
    return select(tables.dialect.now().label("now"), *columns)


def delete_by_id(tables: QueueTables) -> Delete | Update:
    """Remove one message, even if a consumer holds it."""
    return tables.removal().where(tables.live.c.id == number("p_id_0"))


def delete_unclaimed(tables: QueueTables, with_claimed: bool) -> Delete | Update:
    """Remove all messages, or only those that no consumer holds."""
    statement = tables.removal()
    return statement if with_claimed else statement.where(tables.live.c.consumer_id.is_(None))


def select_counts(tables: QueueTables) -> Select[Any]:
    """Count all messages in one statement, so that all counts are of one moment.

    It returns one row per outcome in the archive, or one row without an outcome. Each row has the
    live messages by status, the age of the oldest ready one, the outcome and its count.
    """
    live, archived = _live_counts(tables).subquery("l"), _archive_counts(tables).subquery("a")
    return select(*live.c, *archived.c).select_from(live.outerjoin(archived, true()))


def _live_counts(tables: QueueTables) -> Select[Any]:
    live, now = tables.live, tables.dialect.now()
    unclaimed = live.c.consumer_id.is_(None)
    ready = and_(unclaimed, live.c.available_at <= now)
    return select(
        _count_if(ready).label("ready"),
        _count_if(and_(unclaimed, live.c.available_at > now)).label("delayed"),
        _count_if(live.c.consumer_id.is_not(None)).label("claimed"),
        _count_if(and_(unclaimed, live.c.available_at.is_(None))).label("held"),
        (now - _min_if(live.c.available_at, and_(ready, *subtractable(live.c)))).label("age"),
    ).where(*tables.live_only())


def _archive_counts(tables: QueueTables) -> Select[Any]:
    outcome = tables.archive.c.outcome
    return (
        select(outcome.label("outcome"), func.count().label("ended"))
        .where(*tables.finished_only())
        .group_by(outcome)
    )


def subtractable(columns: Any, name: str = "available_at") -> list[ColumnElement[bool]]:
    """The instant can be subtracted from the present without an overflow."""
    return [columns[name] >= literal_column(str(-(2**62)))]


def greatest_priority(tables: QueueTables) -> Select[Any]:
    """The highest priority number in use."""
    return select(func.max(tables.live.c.priority)).where(*tables.live_only())


def _count_if(condition: ColumnElement[bool]) -> ColumnElement[Any]:
    return func.count(case((condition, literal_column("1"))))


def _min_if(value: ColumnElement[Any], condition: ColumnElement[bool]) -> ColumnElement[Any]:
    return func.min(case((condition, value)))


def server_now(connection: Connection, sql: StatementCache) -> int:
    """The database's clock in microseconds since the epoch."""
    return int(sql.get(select_clock).run(connection).scalar_one())


def delete_message(connection: Connection, sql: StatementCache, message_id: int) -> bool:
    """Remove one message, even if a consumer holds it; False if it does not exist."""
    statement = sql.get(delete_by_id)
    return statement.run(connection, {"p_id_0": message_id}).rowcount > 0


def purge(connection: Connection, sql: StatementCache, *, with_claimed: bool) -> int:
    """Remove all messages, or only those that no consumer holds; returns how many."""
    with sql.subject.dialect.scanning(connection):
        return sql.get(delete_unclaimed, with_claimed).run(connection).rowcount


def counts(
    connection: Connection, sql: StatementCache
) -> tuple[tuple[int, int, int, int, int], dict[str, int]]:
    """Count all messages at one moment.

    Returns:
        Ready, delayed, claimed, held, and the age of the oldest ready message in microseconds;
        archived messages by outcome.
    """
    with sql.subject.dialect.scanning(connection):
        rows: Sequence[Any] = sql.get(select_counts).run(connection).all()
    ready, delayed, claimed, held, age = (int(value or 0) for value in rows[0][:5])
    ended = {row[5]: int(row[6]) for row in rows if row[5] is not None}
    return (ready, delayed, claimed, held, max(age, 0)), ended


def highest_priority(connection: Connection, sql: StatementCache) -> int:
    """The highest priority number in use; 0 in an empty queue."""
    return sql.get(greatest_priority).run(connection).scalar() or 0


class Span(NamedTuple):
    """The messages of a period in an archive.

    Attributes:
        messages: how many messages.
        first: when the first of them finished, in microseconds; None if there are none.
    """

    messages: int
    first: int | None


def archive_span(
    connection: Connection, sql: StatementCache, after: int | None, up_to: int
) -> Span:
    """Count the messages that finished after one time and up to another; in microseconds."""
    values = {"p_after": _BEFORE_ALL if after is None else after, "p_up_to": up_to}
    row: Any = sql.get(archive.span).run(connection, values).one()
    return Span(int(row[0]), None if row[1] is None else int(row[1]))


def remove_exported(
    connection: Connection, sql: StatementCache, ids: Sequence[int], up_to: int
) -> int:
    """Remove messages that finished by a given time from the archive; returns how many."""
    return change_by_ids(connection, sql, archive.remove_exported, ids, {"p_up_to": up_to})


def last_to_prune(
    connection: Connection,
    sql: StatementCache,
    outcome: str,
    *,
    ttl: int | None,
    keep: int | None,
) -> Place | None:
    """The place up to which archived messages of an outcome are too old or too many.

    They are kept for ``ttl`` microseconds, and at most ``keep`` of them; None means no limit.
    """
    places: list[Place] = []
    if ttl is not None:
        places.append((server_now(connection, sql) - ttl, 0))
    if keep is not None:
        values = {"p_outcome": outcome, "p_keep": keep}
        rows: Sequence[Any] = sql.get(archive.newest_to_go).run(connection, values).all()
        places += [(int(row[0]), int(row[1])) for row in rows]
    return max(places, default=None)


def prune_archive(
    connection: Connection,
    sql: StatementCache,
    outcome: str,
    between: tuple[int, Place],
    limit: int,
) -> tuple[int, int]:
    """Remove the oldest archived messages of an outcome, from a time up to a place.

    Returns:
        How many were removed, and when the last of them finished. The next batch can start there,
        so that it does not read past what this one removed.
    """
    since, (at, message_id) = between
    values = {"p_outcome": outcome, "p_since": since, "p_count": limit}
    values |= {"p_at": at, "p_id_0": message_id}
    old: Sequence[Any] = sql.get(archive.old_in_archive).run(connection, values).all()
    removed = change_by_ids(connection, sql, archive.remove_from_archive, [row[0] for row in old])
    return removed, int(old[-1][1]) if old else since
