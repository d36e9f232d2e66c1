"""What became of a message that was requeued: its header names the earlier one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import String, and_, cast, or_

from queue_over_sql.message import REQUEUED_FROM
from queue_over_sql.queues.selection import rows_of

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Table

    from queue_over_sql.queue import Queue


def requeued_as(queue: Queue, message_id: int) -> int | None:
    """The id of the message that an earlier one was requeued as; None if there is none.

    It reads the headers of all later messages until it finds it.
    """
    if "headers" not in queue.table.c:
        # A table of the user's own, whose rows are requeued in place.
        return None
    live, archived = queue.table, queue.archive.table
    for selection, table in (
        (queue.messages(where=_is_requeued_from(message_id, live)), live),
        (queue.archive.messages(where=_is_requeued_from(message_id, archived)), archived),
    ):
        for row in rows_of(selection, [table.c.id], limit=1, newest_first=True):
            return int(row.id)
    return None


def _is_requeued_from(message_id: int, table: Table) -> ColumnElement[bool]:
    headers = cast(table.c.headers, String)
    # Some databases write JSON in a form of their own.
    forms = (f'%"{REQUEUED_FROM}":{space}{message_id}{end}%' for space in ("", " ") for end in ",}")
    return and_(table.c.id > message_id, or_(*(headers.like(form) for form in forms)))
