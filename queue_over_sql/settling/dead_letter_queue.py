"""A queue fed by dead letters: each archived one is published there, in the same transaction."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy.exc import DBAPIError

from queue_over_sql.archive.statements import select_archived
from queue_over_sql.errors import (
    DatabaseUnavailable,
    QueueError,
    QueueSchemaMismatch,
    ServiceClosed,
    visible,
)
from queue_over_sql.payloads.codec import decode_headers
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

    What came from a queue's dead letters stays in the archive, so that no message goes round. If
    the other queue cannot have them, they stay there, too, and the log says why.
    """
    sql = context.sql
    found = read_archive_rows(
        connection, sql, rows_by_ids(connection, sql, select_archived, [*ids])
    )
    read = [(row, decode_headers(row.headers)) for row in found]
    news = [(row, headers) for row, headers in read if DEAD_LETTER not in headers]
    if not news:
        return
    try:
        receiver = open_queue(name, connection)
        check_receiver(
            context.name,
            context.known_settings.payload,
            receiver.tables,
            receiver.known_settings.payload,
        )
        expires = receiver.known_settings.expires_us
        own = dict.fromkeys(receiver.tables.own_columns)
        messages = [
            NewMessage(
                None, {**_content(row, headers, context.name), **own}, 0, None, expires=expires
            )
            for row, headers in sorted(news, key=lambda each: each[0].id)
        ]
        with savepoint(connection, _SAVEPOINT):
            publish_many(connection, receiver.sql, messages, "raise")
        receiver.wakeups.notify_on(connection, receiver.sql)
    except (DatabaseUnavailable, ServiceClosed):
        raise
    except QueueError as error:
        _note(context.name, name, error)
    except DBAPIError as error:
        errors = context.dialect.errors
        undone = error.orig is None or errors.undoes_transaction(connection, error.orig)
        if undone or errors.classify(error) in _OF_ALL:
            raise
        _note(context.name, name, error.orig or error)


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
    written = json.dumps({**kept, DEAD_LETTER: said}, ensure_ascii=False, separators=(",", ":"))
    return {**CONTENT, "kind": row.kind, "payload": row.payload, "headers": written}


def _note(queue: str, other: str, error: BaseException) -> None:
    _log.error(
        "Dead letters of queue %s stay in its archive, because its dead_letter_queue %s cannot "
        "have them: %s",
        queue,
        other,
        visible(str(error), keep=""),
        extra={"queue": queue},
    )
