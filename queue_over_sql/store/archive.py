"""Acts of an export of archives: how much there is, and removing what was exported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from queue_over_sql.dialects.statements import archive
from queue_over_sql.dialects.statements.parameters import batches, bucket_of, id_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from queue_over_sql.dialects.compiled import StatementCache


_BEFORE_ALL: Final = -1


class Span(NamedTuple):
    """What an archive has of some stretch of time.

    Attributes:
        messages: how many messages.
        first: when the first of them finished, in microseconds; None without one.
    """

    messages: int
    first: int | None


def archive_span(
    connection: Connection, sql: StatementCache, after: int | None, up_to: int
) -> Span:
    """Look at what finished after an instant, up to and with another; in microseconds."""
    values = {"p_after": _BEFORE_ALL if after is None else after, "p_up_to": up_to}
    row: Any = sql.get(archive.span).run(connection, values).one()
    return Span(int(row[0]), None if row[1] is None else int(row[1]))


def remove_exported(
    connection: Connection, sql: StatementCache, ids: Sequence[int], up_to: int
) -> int:
    """Remove messages that had finished by an instant from the archive; returns how many."""
    removed = 0
    for batch in batches(ids):
        statement = sql.get(archive.remove_exported, bucket_of(len(batch)))
        removed += statement.run(connection, id_values(batch) | {"p_up_to": up_to}).rowcount
    return removed
