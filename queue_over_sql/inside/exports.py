"""The door for who copies all messages of a queue or its archive.

Stability: as ``queue_over_sql.inside``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from queue_over_sql.archive.archive import ArchiveHistory
from queue_over_sql.queue import core_of
from queue_over_sql.selection import operations as choices

if TYPE_CHECKING:
    from queue_over_sql.queue import Queue

__all__ = ["ArchiveHistory", "archive_history", "last_id", "probe_ids"]


def last_id(queue: Queue, *, archived: bool) -> int | None:
    """The highest id of the live or archived messages; None if there are none."""
    context = core_of(queue).context
    chosen = choices.Criteria(archived, ())
    return context.run(lambda connection: choices.last_id(connection, context.sql, chosen))


def probe_ids(
    queue: Queue, start: int, skip: int, *, archived: bool
) -> tuple[int | None, int | None]:
    """The id of the first message from an id on, and of the one so many messages after it."""
    context = core_of(queue).context
    return context.run(
        lambda c: choices.probe_ids(c, context.sql, archived=archived, start=start, skip=skip)
    )


def archive_history(queue: Queue) -> ArchiveHistory:
    """The archive as the source of an export that never misses a message."""
    return ArchiveHistory(core_of(queue).context)
