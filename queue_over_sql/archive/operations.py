"""Count, export and prune archived messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from queue_over_sql.archive import statements as archive
from queue_over_sql.groups.blocking import without_blocking
from queue_over_sql.sql.operation import operation
from queue_over_sql.statements.clock import server_now
from queue_over_sql.statements.operations import change_by_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from queue_over_sql.sql.compiled import StatementCache


_BEFORE_ALL: Final = -1


Place = tuple[int, int]
"""The place of a message in the history: when it finished, in microseconds, and its id."""


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


@operation(atomic=True, durable=True)
def remove_exported(
    connection: Connection, sql: StatementCache, ids: Sequence[int], up_to: int
) -> int:
    """Remove messages that finished by a given time from the archive; returns how many.

    Those that block their groups stay.
    """
    free = without_blocking(connection, sql, ids)
    return change_by_ids(connection, sql, archive.remove_exported, free, {"p_up_to": up_to})


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


@operation(atomic=True)
def prune_archive(
    connection: Connection,
    sql: StatementCache,
    outcome: str,
    between: tuple[int, Place],
    limit: int,
) -> tuple[int, int]:
    """Remove the oldest archived messages of an outcome, from a time up to a place.

    Those that block their groups stay.

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
