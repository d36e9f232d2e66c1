"""Lists that have messages which the database cannot read, such as after damage to its files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from queue_over_sql.errors import DatabaseRefused, NotPermitted, PayloadInvalid
from queue_over_sql.message import Unreadable
from queue_over_sql.queues.decoding import WORDS
from queue_over_sql.selection.operations import list_columns, place_of
from queue_over_sql.statements.requests import (
    archive_columns,
    listed_columns,
    read_archive_rows,
    read_listed_rows,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import ColumnElement

    from queue_over_sql.message import MessageRow
    from queue_over_sql.queues.context import QueueContext
    from queue_over_sql.selection.operations import Criteria, Page


def can_be_unreadable(error: BaseException) -> bool:
    """Whether a row that the database cannot read may be behind an error."""
    if isinstance(error, NotPermitted):
        return False
    # A driver raises the last one if it cannot decode a text.
    return isinstance(error, DatabaseRefused | PayloadInvalid | UnicodeError)


def list_apart(context: QueueContext, chosen: Criteria, page: Page) -> list[MessageRow]:
    """Read one page row by row; of a row that cannot be read, what can be read of it."""
    sql, tables = context.sql, context.tables
    table = place_of(tables, chosen.archived)
    columns = archive_columns(tables) if chosen.archived else listed_columns(tables)
    ids = context.run(lambda c: list_columns(c, sql, chosen, page, [table.c.id]))

    def values(message_id: int, wanted: Sequence[ColumnElement[Any]]) -> Sequence[Any] | None:
        of_one = select(*wanted).where(table.c.id == message_id)
        return context.run(lambda c: c.execute(of_one).first())

    def value(message_id: int, column: ColumnElement[Any]) -> Any:
        try:
            found = values(message_id, [column])
        except Exception as error:
            if not can_be_unreadable(error):
                raise
            return Unreadable(error) if column.name in WORDS else None
        return None if found is None else found[0]

    found: list[Sequence[Any]] = []
    for (message_id,) in ids:
        try:
            row = values(message_id, columns)
        except Exception as error:
            if not can_be_unreadable(error):
                raise
            row = [value(message_id, column) for column in columns]
        if row is not None and row[0] is not None:
            found.append(row)
    read = read_archive_rows if chosen.archived else read_listed_rows
    return context.run(lambda c: read(c, sql, found))
