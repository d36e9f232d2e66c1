"""The matching finished messages of a queue, which can be requeued."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy import String, and_, cast, false, or_, update

from queue_over_sql.archive.requeue import requeue
from queue_over_sql.payloads import codec
from queue_over_sql.selection.operations import EditResult, Page, last_id
from queue_over_sql.selection.selection import BATCH, LiveSelection, Selection, rows_of
from queue_over_sql.settings import UNSET
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
        payload: Any = UNSET,
    ) -> EditResult:
        """Move finished messages back to the queue, due now, with the attempt count reset.

        Each is published again with a new id and with its payload, key, headers, priority and
        columns, and is removed from the archive in the same transaction. A transaction moves up to
        500 messages. The header ``previous_error`` holds the reason of the earlier failure, and
        ``requeued_from`` the earlier id. A row of an adopted table is requeued in place.

        Args:
            connection: the caller's own transaction for all of them, which this does not commit.
            progress: a function to call after each transaction, with the number so far.
            payload: another payload for the message, checked as by a publish, and against its kind
                if this service knows that. Exactly one message must match.

        Returns:
            How many were requeued.

        Raises:
            DuplicateKey: a live message has the key of one of them; this transaction changed
                nothing.
            PayloadInvalid: a column of one of them cannot be read, or ``payload`` does not fit;
                this transaction changed nothing.
            PayloadTooLarge: ``payload`` is too large.
            ValueError: ``payload`` was given, and several messages match, or they are rows of an
                adopted table.
        """
        check_function("progress", progress)
        context, settings = self._context, self._context.settings
        encode = None if payload is UNSET else partial(encoded_payload, context, payload=payload)
        if encode is not None and not context.tables.has_payloads:
            msg = (
                f"payload: the messages of queue {context.name!r} are rows of an adopted table. "
                "Change the row, then requeue without payload"
            )
            raise ValueError(msg)
        # A row of an adopted table may finish again before this ends.
        now = context.run(lambda c: server_now(c, context.sql), connection)
        chosen = self._chosen.also(self._table.c.finished_at <= now)
        last = context.run(lambda c: last_id(c, context.sql, chosen), connection)
        done, after = 0, None
        if last is None:
            # A server that only reads says so, because it may know nothing of newer ones.
            # Not a DELETE, because the rows of an adopted table are not ours to delete.
            nothing = update(self._table).where(false()).values(last_error=None)
            context.run(lambda c: c.execute(nothing), connection)
        while last is not None:
            requeueing = requeue.of(
                context.sql,
                chosen,
                Page(BATCH, after),
                up_to=last,
                priorities=settings.priorities,
                forget_keys=settings.dedup_window is not None,
                encode=encode,
            )
            began = time.monotonic()
            ids, after = context.run(requeueing, connection)
            done += len(ids)
            if ids and context.observer is not None:
                seconds = time.monotonic() - began
                context.observer.published(context.name, len(ids), seconds, ids)
            if progress is not None:
                progress(done)
            if after is None:
                break
        return EditResult(done)


def encoded_payload(context: QueueContext, kind: str | None, payload: Any) -> str | bytes:
    """A payload as it is stored, checked against a kind that this service knows.

    Raises:
        PayloadInvalid, PayloadTooLarge: it is not valid.
    """
    settings = context.settings
    if context.kinds is not None and context.kinds.knows(kind):
        _, payload = context.kinds.encode(kind, payload)
    nul = context.tables.features.nul_in_text
    return codec.encode(settings.payload, payload, settings.max_payload_bytes, nul=nul)


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
