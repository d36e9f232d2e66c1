"""Which rows of its table are a queue's messages: all of them, or on an adopted table some.

A row of an adopted table is a live message while it is due at some time, or begun and not finished
(then it is held); it is a finished one when it is due no more and has ended; else it is no message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Delete, Update, and_, case, delete, or_, update

from queue_over_sql.schema.existing import ADDED_COLUMNS, ERROR, NOT_ATTEMPTED

if TYPE_CHECKING:
    from sqlalchemy import Table

    from queue_over_sql.schema.queue_tables import QueueTables


def live_only(tables: QueueTables) -> list[ColumnElement[bool]]:
    """What tells the live messages among the rows of ``tables.live``."""
    return [] if tables.adoption is None else [_is_live(tables.live)]


def finished_only(tables: QueueTables) -> list[ColumnElement[bool]]:
    """What tells the finished messages among the rows of ``tables.archive``."""
    return [] if tables.adoption is None else [_is_finished(tables.archive)]


def never_enqueued(tables: QueueTables) -> ColumnElement[bool]:
    """The row of an adopted table is no message."""
    columns = tables.live.c
    return and_(
        columns.status.is_(None), columns.available_at.is_(None), columns.finished_at.is_(None)
    )


def removal(tables: QueueTables, *, finished: bool = False) -> Delete | Update:
    """Remove live messages, or finished ones; a row of the user's only leaves the queue."""
    table = tables.archive if finished else tables.live
    if tables.adoption is None:
        return delete(table)
    extent = finished_only(tables) if finished else live_only(tables)
    nothing = {key: None if table.c[key].nullable else 0 for key in ADDED_COLUMNS}
    return update(table).where(*extent).values(nothing)


def still_live(tables: QueueTables) -> dict[str, Any]:
    """What an edit writes besides, so that a live message stays one even where it is held.

    The owner of a row may have sent it by setting ``available_at`` alone.
    """
    if tables.adoption is None:
        return {}
    columns = tables.live.c
    begun = and_(columns.status.is_not(None), columns.finished_at.is_(None))
    status = case((begun, columns.status), else_=NOT_ATTEMPTED)
    return {"status": status, "finished_at": None, "outcome": None}


def after_failure(tables: QueueTables) -> dict[str, Any]:
    """What a message shows besides after a failed attempt."""
    return {} if tables.adoption is None else {"status": ERROR}


def _is_live(table: Table) -> ColumnElement[bool]:
    columns = table.c
    begun = and_(columns.status.is_not(None), columns.finished_at.is_(None))
    return or_(columns.available_at.is_not(None), begun)


def _is_finished(table: Table) -> ColumnElement[bool]:
    columns = table.c
    return and_(
        columns.available_at.is_(None),
        columns.finished_at.is_not(None),
        columns.consumer_id.is_(None),
    )
