"""Acts on an archive: prune it, count a period, and remove exported messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from queue_over_sql.dialects.statements import archive
from queue_over_sql.store.acts import change_by_ids
from queue_over_sql.store.admin import server_now

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from queue_over_sql.dialects.compiled import StatementCache


_BEFORE_ALL: Final = -1


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


Place = tuple[int, int]
"""The place of a message in the history: when it finished, in microseconds, and its id."""


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
    connection: Connection, sql: StatementCache, outcome: str, up_to: Place, limit: int
) -> int:
    """Remove the oldest archived messages of an outcome, up to a place; returns how many."""
    values = {"p_outcome": outcome, "p_at": up_to[0], "p_id_0": up_to[1], "p_count": limit}
    ids = [row[0] for row in sql.get(archive.old_in_archive).run(connection, values)]
    return change_by_ids(connection, sql, archive.remove_from_archive, ids)
