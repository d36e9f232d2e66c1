"""The matching finished messages of a queue, which can be requeued."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sqlalchemy import String, and_, cast, or_

from queue_over_sql.archive.requeue import requeue
from queue_over_sql.selection.operations import EditResult, last_id
from queue_over_sql.selection.selection import BATCH, LiveSelection, Selection, rows_of
from queue_over_sql.statements.clock import server_now
from queue_over_sql.values.checks import (
    check_function,
)
from queue_over_sql.values.headers import REQUEUED_FROM

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Table

    from queue_over_sql.message import CallersConnection
    from queue_over_sql.queues.context import QueueContext

    Progress = Callable[[int], None]


class ArchiveSelection(Selection):
    """The matching finished messages of a queue, which can be requeued."""

    _archived = True

    def requeue(
        self,
        *,
        connection: CallersConnection | None = None,
        progress: Progress | None = None,
    ) -> EditResult:
        """Move finished messages back to the queue, due now, with the attempt count reset.

        Each is published again with a new id and with its payload, key, headers, priority and
        columns, and is removed from the archive in the same transaction. A transaction moves up to
        500 messages. The header ``previous_error`` holds the reason of the earlier failure, and
        ``requeued_from`` the earlier id. A row of an adopted table is requeued in place.

        Args:
            connection: the caller's own transaction for all of them, which this does not commit.
            progress: a function to call after each transaction, with the number so far.

        Returns:
            How many were requeued.

        Raises:
            DuplicateKey: a live message has the key of one of them; this transaction changed
                nothing.
            PayloadInvalid: a column of one of them cannot be read; this transaction changed
                nothing.
        """
        check_function("progress", progress)
        context, settings = self._context, self._context.settings
        # A row of an adopted table may finish again before this ends.
        now = context.run(lambda c: server_now(c, context.sql), connection)
        chosen = self._chosen.also(self._table.c.finished_at <= now)
        last = context.run(lambda c: last_id(c, context.sql, chosen), connection)
        done = 0
        while last is not None:
            requeueing = requeue.of(
                context.sql,
                chosen,
                up_to=last,
                limit=BATCH,
                priorities=settings.priorities,
                forget_keys=settings.dedup_window is not None,
            )
            batch = context.run(requeueing, connection)
            done += batch
            if progress is not None:
                progress(done)
            if batch < BATCH:
                break
        return EditResult(done)


def requeued_as(context: QueueContext, message_id: int) -> int | None:
    """The id of the message that an earlier one was requeued as; None if there is none.

    It reads the headers of all later messages until it finds it.
    """
    if "headers" not in context.tables.live.c:
        # A table of the user's own, whose rows are requeued in place.
        return None
    kinds: Sequence[type[Selection]] = (LiveSelection, ArchiveSelection)
    for kind in kinds:
        table = context.tables.archive if kind is ArchiveSelection else context.tables.live
        selection = kind(context, where=_is_requeued_from(message_id, table))
        for row in rows_of(selection, [table.c.id], limit=1, newest_first=True):
            return int(row.id)
    return None


def _is_requeued_from(message_id: int, table: Table) -> ColumnElement[bool]:
    headers = cast(table.c.headers, String)
    # Some databases write JSON in a form of their own.
    forms = (f'%"{REQUEUED_FROM}":{space}{message_id}{end}%' for space in ("", " ") for end in ",}")
    return and_(table.c.id > message_id, or_(*(headers.like(form) for form in forms)))
