"""Messages as they are stored: listed, given back and pruned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from queue_over_sql.archive import selection as archived_lists
from queue_over_sql.errors import QueueError
from queue_over_sql.queue import core_of
from queue_over_sql.selection import selection as lists

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import ColumnElement, Row

    from queue_over_sql.archive.errors import ErrorGroup
    from queue_over_sql.message import CallersConnection, Message, Publication
    from queue_over_sql.queue import Queue
    from queue_over_sql.selection.selection import Selection


def rows(
    selection: Selection,
    columns: Sequence[ColumnElement[Any]],
    *,
    limit: int,
    after: int | None = None,
    newest_first: bool = False,
) -> Sequence[Row[Any]]:
    """Read columns of selected messages instead of the messages, by id.

    Args:
        selection: which messages.
        columns: what to read of the queue's or the archive's table.
        limit: at most so many.
        after: those after this id.
        newest_first: the latest ids first.
    """
    return lists.rows_of(selection, columns, limit=limit, after=after, newest_first=newest_first)


def page(
    selection: Selection, connection: CallersConnection | None, limit: int, after: int | None = None
) -> Sequence[Message]:
    """A page of selected messages by id, as a transaction sees them that has not committed."""
    return selection.list(limit, after, connection=connection)


def pages(selection: Selection, size: int) -> Iterator[Sequence[Message]]:
    """All selected messages by id, with plain payloads even if the queue has kinds."""
    return lists.plain_pages(selection, size)


def is_refused(queue: Queue, publication: Publication) -> bool:
    """Whether the queue refuses a publication without asking the database."""
    try:
        core_of(queue).publisher.encode(publication)
    except (QueueError, ValueError, TypeError):
        return True
    return False


def check_payload(queue: Queue, kind: str | None, payload: Any) -> None:
    """Check a payload as a publish does, and against its kind if this service knows that.

    Raises:
        PayloadInvalid, PayloadTooLarge: it is not valid.
    """
    archived_lists.encoded_payload(core_of(queue).context, kind, payload)


def requeued_as(queue: Queue, message_id: int) -> int | None:
    """The id of the message that an archived one was requeued as; None if there is none."""
    return archived_lists.requeued_as(core_of(queue).context, message_id)


def errors(queue: Queue, *, limit: int = 1_000, newest: int = 10_000) -> Sequence[ErrorGroup]:
    """The errors of a queue's dead letters, the one that came last first.

    Of each outcome the newest dead letters are counted: ``newest`` of them.
    """
    return core_of(queue).errors.list(limit, newest)


def last_error_at(queue: Queue) -> int | None:
    """When the last dead letter ended, in microseconds; 0 if there is none.

    None for an adopted table, where only reading its dead letters tells it.
    """
    return core_of(queue).errors.last_at()


def errors_left_out(queue: Queue) -> bool:
    """Whether a queue has dead letters whose errors are not grouped yet, so that they are left out.

    The reaper goes on with them; those of an adopted table stay so.
    """
    return core_of(queue).errors.leave_out()


def having_error(queue: Queue, fingerprint: str, *, mark: int | None = 0) -> ColumnElement[bool]:
    """The condition for the dead letters with the error of this fingerprint.

    It first writes up to ``mark`` of the fingerprints that are missing. None: all of them, so that
    no dead letter is left out, which may take minutes.
    """
    return core_of(queue).errors.having(fingerprint, mark=mark)


def restore(queue: Queue) -> int:
    """Give back now what consumers held that are dead; returns how many messages."""
    return core_of(queue).recovery.restore()


def prune(queue: Queue) -> int:
    """Remove from the archive what is too old or too much, one portion; returns how many."""
    return core_of(queue).pruning.prune().pruned
