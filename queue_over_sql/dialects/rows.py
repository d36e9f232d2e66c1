"""From the rows of a result to ``MessageRow``, the same on every engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, ColumnElement, func, literal_column, null

from queue_over_sql.message import MessageRow, Unreadable
from queue_over_sql.schema import ARCHIVE_COLUMNS, MESSAGE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sqlalchemy import Connection, Table

    from queue_over_sql.dialects.compiled import StatementCache
    from queue_over_sql.dialects.requests import ClaimRequest
    from queue_over_sql.schema import QueueTables

    Converters = Sequence[Callable[[Any], Any] | None]

_CORE = len(MESSAGE_COLUMNS)
_ATTEMPT = MESSAGE_COLUMNS.index("attempt_count")
_STAMP = slice(MESSAGE_COLUMNS.index("consumer_id"), MESSAGE_COLUMNS.index("last_attempt_at"))
_LEASE = MESSAGE_COLUMNS.index("lease_us")
_READ_AS_TEXT = {"payload", "headers"}
_EPOCH: ColumnElement[int] = literal_column("0", BigInteger())


def message_columns(tables: QueueTables, table: Table) -> list[ColumnElement[Any]]:
    """What a select of messages names, in the order that ``read_row`` expects."""
    if tables.adoption is not None:
        return _columns_of_adopted(tables, table)
    core = [
        tables.dialect.read_payload(table.c[name]).label(name)
        if name in _READ_AS_TEXT
        else table.c[name]
        for name in MESSAGE_COLUMNS
    ]
    return [*core, *[table.c[name] for name in tables.own_columns]]


def _columns_of_adopted(tables: QueueTables, table: Table) -> list[ColumnElement[Any]]:
    """The same of a table of the user's: labels keep equal names apart, defaults fill up rows.

    A row is a message as well when its owner did no more than to set ``available_at``.
    """
    columns = table.c
    special: dict[str, ColumnElement[Any]] = {
        "message_key": null(),
        "kind": null(),
        "payload": null(),
        "headers": tables.dialect.read_payload(columns.headers),
        "published_at": func.coalesce(columns.published_at, columns.available_at, _EPOCH),
        "scheduled_at": func.coalesce(columns.scheduled_at, columns.available_at, _EPOCH),
    }
    core = [
        (special[name] if name in special else columns[name]).label(f"m_{name}")
        for name in MESSAGE_COLUMNS
    ]
    own = [columns[key].label(f"row_{index}") for index, key in enumerate(tables.own_columns)]
    return [*core, *own]


def archive_columns(tables: QueueTables) -> list[ColumnElement[Any]]:
    """The same for the archive, with when and how each message ended at the end."""
    archive = tables.archive
    return [*message_columns(tables, archive), *[archive.c[name] for name in ARCHIVE_COLUMNS]]


def read_rows(
    connection: Connection, sql: StatementCache, rows: Iterable[Sequence[Any]]
) -> list[MessageRow]:
    """Read rows selected on a connection as ``message_columns`` names them."""
    tables: QueueTables = sql.subject
    if not tables.own_columns:
        return [_message_row(row, _NO_COLUMNS) for row in rows]
    converters = sql.own_converters(connection.dialect)
    return [_message_row(row, _own_values(tables, row, converters)) for row in rows]


def read_archive_rows(
    connection: Connection, sql: StatementCache, rows: Iterable[Sequence[Any]]
) -> list[MessageRow]:
    """Read rows selected on a connection as ``archive_columns`` names them."""
    converters = sql.own_converters(connection.dialect)
    return [
        _message_row(row, _own_values(sql.subject, row, converters))._replace(
            finished_at=row[-2], outcome=row[-1], listed=True
        )
        for row in rows
    ]


def stamped_row(
    connection: Connection,
    sql: StatementCache,
    row: Sequence[Any],
    request: ClaimRequest,
    now: int,
) -> MessageRow:
    """A row that was read before it was marked, as it is after."""
    values = list(row[:_CORE])
    values[_ATTEMPT] += 1
    lease = request.lease_us or values[_LEASE] or request.queue_lease_us
    values[_STAMP] = (request.consumer_id, request.consumer_round, now, now + lease)
    return _message_row(
        values, _own_values(sql.subject, row, sql.own_converters(connection.dialect))
    )


_NO_COLUMNS: dict[str, Any] = {}
_NOT_ARCHIVED = (None, None, False)


def _message_row(values: Sequence[Any], columns: dict[str, Any]) -> MessageRow:
    return MessageRow._make((*values[:_CORE], columns, *_NOT_ARCHIVED))


def _own_values(tables: QueueTables, row: Sequence[Any], converters: Converters) -> dict[str, Any]:
    values = list(zip(tables.own_names, converters, row[_CORE:], strict=False))
    try:
        return {name: value if to is None else to(value) for name, to, value in values}
    except Exception:  # noqa: BLE001 - types raise what they like
        # The message is told of when it is its turn; it must not stop those beside it.
        return {name: value if to is None else _read(to, value) for name, to, value in values}


def _read(convert: Callable[[Any], Any], value: Any) -> Any:
    try:
        return convert(value)
    except Exception as error:  # noqa: BLE001 - likewise
        return Unreadable(error)
