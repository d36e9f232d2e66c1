"""Statements that look at messages without claiming them, and edit those that nobody holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    Delete,
    Select,
    Update,
    and_,
    case,
    func,
    select,
    update,
)

from queue_over_sql.dialects.rows import archive_columns, message_columns
from queue_over_sql.dialects.statements.extent import (
    finished_only,
    live_only,
    removal,
    still_live,
)
from queue_over_sql.dialects.statements.parameters import number
from queue_over_sql.message import Status

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import ColumnElement, Table

    from queue_over_sql.schema import QueueTables

    Conditions = Sequence[ColumnElement[bool]]


def place(tables: QueueTables, archived: bool) -> Table:
    """Where the messages are: in the queue's table or in its archive."""
    return tables.archive if archived else tables.live


def extent_of(tables: QueueTables, archived: bool) -> list[ColumnElement[bool]]:
    """Which rows there are such messages, where not all are."""
    return finished_only(tables) if archived else live_only(tables)


def due_first(tables: QueueTables) -> ColumnElement[Any]:
    """When a message was first due; a row that its owner sent by hand may not say."""
    scheduled_at = tables.live.c.scheduled_at
    if tables.adoption is None:
        return scheduled_at
    due: ColumnElement[Any] = func.coalesce(scheduled_at, tables.dialect.now())
    return due


def has_status(tables: QueueTables, status: Status) -> ColumnElement[bool]:
    """Where a live message stands."""
    columns, now = tables.live.c, tables.dialect.now()
    unclaimed = columns.consumer_id.is_(None)
    return {
        Status.READY: and_(unclaimed, columns.available_at <= now),
        Status.DELAYED: and_(unclaimed, columns.available_at > now),
        Status.HELD: and_(unclaimed, columns.available_at.is_(None)),
        Status.CLAIMED: columns.consumer_id.is_not(None),
    }[status]


def page(
    tables: QueueTables, archived: bool, conditions: Conditions, limit: int, after: int | None
) -> Select[Any]:
    """Read messages by id, from the one after ``after``: along the primary key."""
    table = place(tables, archived)
    columns = archive_columns(tables) if archived else message_columns(tables, table)
    beyond = [] if after is None else [table.c.id > after]
    extent = extent_of(tables, archived)
    return select(*columns).where(*extent, *conditions, *beyond).order_by(table.c.id).limit(limit)


def count(tables: QueueTables, archived: bool, conditions: Conditions) -> Select[Any]:
    """Count messages."""
    table = place(tables, archived)
    extent = extent_of(tables, archived)
    return select(func.count()).select_from(table).where(*extent, *conditions)


def edit(tables: QueueTables, conditions: Conditions, values: Mapping[str, Any]) -> Update:
    """Change messages that nobody holds; looked at again under the row's lock."""
    live = tables.live
    return (
        update(live)
        .where(live.c.consumer_id.is_(None), *live_only(tables), *conditions)
        .values({**still_live(tables), **values})
    )


def remove(tables: QueueTables, archived: bool, conditions: Conditions) -> Delete | Update:
    """Remove messages, live ones only where nobody holds them."""
    table = place(tables, archived)
    unclaimed = [] if archived else [table.c.consumer_id.is_(None)]
    return removal(tables, finished=archived).where(*unclaimed, *conditions)


def held_back(tables: QueueTables, conditions: Conditions) -> Select[Any]:
    """Count the messages that an edit passed over, because a consumer holds them."""
    live = tables.live
    held = live.c.consumer_id.is_not(None)
    return select(func.count()).select_from(live).where(held, *conditions)


def earliest(tables: QueueTables) -> Select[Any]:
    """When the first message of each level is due; one that is claimed may come back there."""
    live = tables.live
    return (
        select(live.c.priority, func.min(live.c.available_at))
        .where(live.c.available_at.is_not(None))
        .group_by(live.c.priority)
    )


def in_front(tables: QueueTables, fronts: Mapping[int, int], otherwise: int) -> ColumnElement[Any]:
    """The instant just before all others of a message's own level."""
    if not fronts:
        return case((tables.live.c.priority >= 0, otherwise))
    return case(fronts, value=tables.live.c.priority, else_=otherwise)


def archived_batch(
    tables: QueueTables, conditions: Conditions, up_to: int, limit: int
) -> Select[Any]:
    """Read and lock the next archived messages, by id."""
    archive = tables.archive
    return (
        select(*archive_columns(tables))
        .where(archive.c.id <= up_to, *finished_only(tables), *conditions)
        .order_by(archive.c.id)
        .limit(limit)
        .with_for_update()
    )


def last_id(tables: QueueTables, archived: bool, conditions: Conditions) -> Select[Any]:
    """The id of the newest message."""
    extent = extent_of(tables, archived)
    return select(func.max(place(tables, archived).c.id)).where(*extent, *conditions)


def probe(tables: QueueTables, archived: bool) -> Select[Any]:
    """The first id from ``p_from`` on, and the one that comes ``p_skip`` after it."""
    table = place(tables, archived)
    there = (table.c.id >= number("p_from"), *extent_of(tables, archived))
    first = select(func.min(table.c.id)).where(*there).scalar_subquery()
    later = select(table.c.id).where(*there).order_by(table.c.id)
    return select(first, later.limit(1).offset(number("p_skip")).scalar_subquery())


def id_after(tables: QueueTables, archived: bool, conditions: Conditions, skip: int) -> Select[Any]:
    """The id of the message after ``skip`` others: where a batch ends."""
    table = place(tables, archived)
    wanted = [*extent_of(tables, archived), *conditions]
    return select(table.c.id).where(*wanted).order_by(table.c.id).offset(skip).limit(1)
