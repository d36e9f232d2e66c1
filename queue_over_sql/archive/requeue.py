"""Requeue archived messages: publish them again and remove them, in one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from queue_over_sql.archive import statements as archive
from queue_over_sql.archive.statements import begin_anew
from queue_over_sql.attempts import carry_over
from queue_over_sql.errors import DuplicateKey, PayloadInvalid
from queue_over_sql.groups.blocking import by_group, unblock
from queue_over_sql.message import Unreadable
from queue_over_sql.payloads.codec import UnreadableHeaders, decode_headers, encode_read_headers
from queue_over_sql.publishing import deduplication as keys
from queue_over_sql.publishing.new_messages import CONTENT, NewMessage
from queue_over_sql.publishing.operations import publish_many
from queue_over_sql.selection.operations import Criteria, Page, list_ids
from queue_over_sql.sql.compiled import CompiledStatement
from queue_over_sql.sql.operation import operation
from queue_over_sql.statements.operations import change_by_ids
from queue_over_sql.statements.requests import archive_columns, read_archive_rows
from queue_over_sql.values.headers import PREVIOUS_ERROR, REQUEUED_FROM, RESULT, UNFIT_SINCE
from queue_over_sql.values.options import GROUP_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Connection

    from queue_over_sql.message import MessageRow
    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.sql.compiled import StatementCache


@operation(atomic=True, durable=True, repeatable=False, wakes=True)
def requeue(
    connection: Connection,
    sql: StatementCache,
    chosen: Criteria,
    page: Page,
    *,
    up_to: int,
    priorities: int,
    forget_keys: bool,
    encode: Callable[[str | None], str | bytes] | None = None,
) -> tuple[list[int], int | None]:
    """Requeue a page of archived messages under new ids.

    ``up_to`` is the last id, ``priorities`` the present number of levels. With ``forget_keys`` the
    dedup window still has their keys, and this frees them. ``encode`` makes another payload for the
    only one of them, of its kind.

    Returns:
        Their new ids, and the last id of the page; None if it was the last page.

    Raises:
        DuplicateKey: a live message has the key of one of them; none was changed.
        PayloadInvalid: a column of one cannot be read, or the other payload does not fit; none was
            changed.
        ValueError: there are several, and another payload was given.
    """
    tables: QueueTables = sql.subject
    tables.dialect.sessions.lock_for_writing(connection, sql)
    key = tables.archive.c.id
    ids = list_ids(connection, sql, chosen.also(key <= up_to), page)
    last = ids[-1] if len(ids) == page.limit else None
    wanted = select(*archive_columns(tables)).where(key.in_(ids), *chosen.among(tables))
    batch = wanted.order_by(key).with_for_update()
    found: Sequence[Any] = CompiledStatement(batch, connection.dialect).run(connection).all()
    rows = read_archive_rows(connection, sql, found)
    if not rows:
        # Others have removed or requeued them.
        return [], last
    if tables.ends_in_place:
        _begin_anew(connection, sql, rows, priorities)
        return [row.id for row in rows], last
    for row in rows:
        _check_readable(row)
    if encode is not None:
        rows = [_with_payload(rows, encode)]
    # Insert first: if a key is taken this is undone, and nothing else was changed.
    try:
        anew = publish_many(connection, sql, [_again(row, priorities) for row in rows], "raise")
    except DuplicateKey as error:
        raise DuplicateKey(error.queue, error.key, error.id, requeued=True) from None
    change_by_ids(connection, sql, archive.remove_from_archive, [row.id for row in rows])
    carry_over(connection, sql, {row.id: new.id for row, new in zip(rows, anew, strict=True)})
    _unblock(connection, sql, rows)
    if forget_keys:
        keyed = [(row.id, row.message_key) for row in rows]
        keys.forget_messages(connection, sql, keyed)
    return [new.id for new in anew], last


def _unblock(connection: Connection, sql: StatementCache, rows: Sequence[MessageRow]) -> None:
    if not sql.subject.grouped:
        return
    groups = ((row.columns.get(GROUP_KEY), row.id) for row in rows)
    dead = [(group, message_id) for group, message_id in groups if group is not None]
    unblock(connection, sql, by_group(dead))


def _with_payload(
    rows: Sequence[MessageRow], encode: Callable[[str | None], str | bytes]
) -> MessageRow:
    if len(rows) > 1:
        msg = "payload is for exactly one message, but several match. Choose one by its id"
        raise ValueError(msg)
    return rows[0]._replace(payload=encode(rows[0].kind))


def _check_readable(row: MessageRow) -> None:
    for name, value in row.columns.items():
        if isinstance(value, Unreadable):
            why = f"its column {name!r} cannot be read: {value.error!r}"
            raise _unreadable(row, why) from value.error


def _unreadable(row: MessageRow, why: str) -> PayloadInvalid:
    return PayloadInvalid(
        f"Message {row.id} cannot be requeued, because {why}. This transaction changed nothing. "
        "Exclude the message, or correct the value in the archive."
    )


def _begin_anew(
    connection: Connection, sql: StatementCache, rows: Sequence[MessageRow], priorities: int
) -> None:
    groups: dict[tuple[int, str | None], list[int]] = {}
    for row in rows:
        headers = _headers_with(row)
        level = min(row.priority, priorities - 1)
        groups.setdefault((level, headers), []).append(row.id)
    for (level, headers), ids in groups.items():
        values = {"p_priority": level, "p_headers": headers, "p_at": None, "p_delay": 0}
        change_by_ids(connection, sql, begin_anew, ids, values)
    _unblock(connection, sql, rows)


def _again(row: MessageRow, priorities: int) -> NewMessage:
    content = {
        **{name: getattr(row, name) for name in CONTENT},
        "headers": _headers_with(row, requeued_from=row.id),
        "priority": min(row.priority, priorities - 1),
        **row.columns,
    }
    return NewMessage(key=row.message_key, content=content, delay=0, at=None)


def _headers_with(row: MessageRow, requeued_from: int | None = None) -> str | None:
    try:
        present = decode_headers(row.headers)
        for name in (UNFIT_SINCE, RESULT):
            present.pop(name, None)
        if requeued_from is not None:
            present[REQUEUED_FROM] = requeued_from
        if row.last_error is not None:
            present[PREVIOUS_ERROR] = row.last_error
        return encode_read_headers(present)
    except UnreadableHeaders as error:
        raise _unreadable(row, str(error)) from error
