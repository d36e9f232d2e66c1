"""A queue fed by dead letters: each archived one is published there, in the same transaction."""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy.exc import DBAPIError, NoSuchTableError

from queue_over_sql.archive.statements import select_archived
from queue_over_sql.errors import (
    DatabaseUnavailable,
    QueueError,
    QueueSchemaMismatch,
    ServiceClosed,
    visible,
)
from queue_over_sql.payloads.codec import UnreadableHeaders, decode_headers, encode_read_headers
from queue_over_sql.publishing.new_messages import CONTENT, NewMessage
from queue_over_sql.publishing.operations import publish_many
from queue_over_sql.sql.errors import ErrorKind
from queue_over_sql.statements.operations import rows_by_ids, savepoint
from queue_over_sql.statements.requests import read_archive_rows
from queue_over_sql.values.headers import DEAD_LETTER, RESULT, UNFIT_SINCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from sqlalchemy import Connection

    from queue_over_sql.message import MessageRow
    from queue_over_sql.queues.context import QueueContext
    from queue_over_sql.schema.queue_tables import QueueTables

_log = logging.getLogger(__name__)
_SAVEPOINT: Final = "queue_over_sql_dead_letters"
# These concern the whole transaction. For all else the other queue is to blame.
_OF_ALL: Final = frozenset(
    {
        *(ErrorKind.TRANSIENT, ErrorKind.CANCELLED, ErrorKind.READ_ONLY),
        *(ErrorKind.STALE_PLAN, ErrorKind.DISCONNECT),
    }
)
# These concern the other queue, whatever the dead letters are.
_OF_QUEUE: Final = frozenset({ErrorKind.MISSING_TABLE, ErrorKind.FORBIDDEN})


def check_receiver(name: str, payload: str, receiver: QueueTables, accepted: str) -> None:
    """Refuse a queue that cannot have the dead letters of another one, by the types of both.

    Raises:
        QueueSchemaMismatch: it is an adopted table, or has payloads of another type.
    """
    why = f"it has {accepted!r} payloads, and the dead letters have {payload!r} payloads"
    if not receiver.has_payloads:
        why = "its messages are rows of an adopted table"
    elif payload == accepted:
        return
    msg = f"Queue {receiver.queue!r} cannot be the dead_letter_queue of {name!r}, because {why}."
    raise QueueSchemaMismatch(msg)


def feed(
    open_queue: Callable[[str, Connection], QueueContext],
    context: QueueContext,
    name: str,
    connection: Connection,
    ids: Iterable[int],
) -> None:
    """Publish dead letters that this transaction has archived to the queue of this name.

    What came from another queue's dead letters stays in the archive, so that no message goes round.
    If the other queue cannot have them, they stay there, too, and the log says why.
    """
    sql = context.sql
    found = read_archive_rows(
        connection, sql, rows_by_ids(connection, sql, select_archived, [*ids])
    )
    contents: dict[int, dict[str, Any]] = {}
    kept: dict[str, list[int]] = {}
    for row in sorted(found, key=lambda each: each.id):
        try:
            headers = decode_headers(row.headers)
            if not _is_of_another(headers, context.name):
                contents[row.id] = _content(row, headers, context.name)
        except UnreadableHeaders as error:
            kept.setdefault(str(error), []).append(row.id)
    if contents:
        open_it = partial(open_queue, name, connection)
        for id_, why in _publish(open_it, context, connection, contents).items():
            kept.setdefault(str(why), []).append(id_)
    for reason, refused in kept.items():
        _log.error(
            "Dead letters %s of queue %s stay in its archive, because its dead_letter_queue %s "
            "cannot have them: %s",
            ", ".join(map(str, refused)),
            context.name,
            name,
            visible(reason, keep=""),
            extra={"queue": context.name},
        )


def _publish(
    open_it: Callable[[], QueueContext],
    context: QueueContext,
    connection: Connection,
    contents: Mapping[int, Mapping[str, Any]],
) -> dict[int, BaseException]:
    """Publish copies to the other queue; why it cannot have those that stay, by id."""
    errors, receiver, began = context.dialect.errors, None, time.monotonic()
    try:
        with savepoint(connection, _SAVEPOINT):
            receiver = open_it()
            accepted = receiver.known_settings
            check_receiver(
                context.name, context.known_settings.payload, receiver.tables, accepted.payload
            )
            own = dict.fromkeys(receiver.tables.own_columns)
            messages = [
                NewMessage(None, {**content, **own}, 0, None, expires=accepted.expires_us)
                for content in contents.values()
            ]
            copies = publish_many(connection, receiver.sql, messages, "raise")
            receiver.wakeups.notify_on(connection, receiver.sql)
    except (DatabaseUnavailable, ServiceClosed):
        raise
    except (QueueError, NoSuchTableError) as error:
        return dict.fromkeys(contents, error)
    except (ValueError, RecursionError) as error:
        refused: BaseException = error
    except DBAPIError as error:
        undone = error.orig is None or errors.undoes_transaction(connection, error.orig)
        kind = errors.classify(error)
        if undone or kind in _OF_ALL:
            raise
        refused = error.orig or error
        if receiver is None or kind in _OF_QUEUE:
            return dict.fromkeys(contents, refused)
    else:
        receiver.note_copied([each.id for each in copies], time.monotonic() - began)
        return {}
    if len(contents) == 1:
        return dict.fromkeys(contents, refused)
    # One of them may be to blame.
    ids = [*contents]
    halves = (ids[: len(ids) // 2], ids[len(ids) // 2 :])
    return {
        id_: error
        for half in halves
        for id_, error in _publish(
            open_it, context, connection, {each: contents[each] for each in half}
        ).items()
    }


def _is_of_another(headers: Mapping[str, Any], queue: str) -> bool:
    """Whether a message came from dead letters, but not from this queue's, by hand."""
    origin = headers.get(DEAD_LETTER)
    own = isinstance(origin, dict) and origin.get("queue") == queue
    return DEAD_LETTER in headers and not own


def _content(row: MessageRow, headers: Mapping[str, Any], queue: str) -> dict[str, Any]:
    said = {
        "queue": queue,
        "id": row.id,
        "outcome": row.outcome,
        "reason": row.last_error,
        "attempts": row.attempt_count,
        "key": row.message_key,
    }
    kept = {name: headers[name] for name in headers if name not in {RESULT, UNFIT_SINCE}}
    written = encode_read_headers({**kept, DEAD_LETTER: said})
    return {**CONTENT, "kind": row.kind, "payload": row.payload, "headers": written}
