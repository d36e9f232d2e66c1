"""Statements that look at messages without claiming them, and edit those that nobody holds."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, Self

from sqlalchemy import Delete, Select, Update, and_, case, func, select, update

from queue_over_sql.dialects.base import engine_of
from queue_over_sql.dialects.compiled import CompiledStatement
from queue_over_sql.dialects.requests import (
    archive_columns,
    read_archive_rows,
    read_rows,
)
from queue_over_sql.dialects.statements import archive
from queue_over_sql.dialects.statements import existing as adopted
from queue_over_sql.dialects.statements.parameters import batches, bucket_of, id_values, number
from queue_over_sql.errors import PayloadInvalid
from queue_over_sql.message import PREVIOUS_ERROR, UNFIT_SINCE, Status, Unreadable
from queue_over_sql.store import keys, registry
from queue_over_sql.store.admin import server_now
from queue_over_sql.store.publish import NewMessage, publish_many

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import ColumnElement, Connection, Table

    from queue_over_sql.dialects.compiled import StatementCache
    from queue_over_sql.message import MessageRow
    from queue_over_sql.schema.queue_tables import QueueTables

    Conditions = Sequence[ColumnElement[bool]]


def place_of(tables: QueueTables, archived: bool) -> Table:
    """Where the messages are: in the queue's table or in its archive."""
    return tables.archive if archived else tables.live


def extent_of(tables: QueueTables, archived: bool) -> list[ColumnElement[bool]]:
    """Which rows there are such messages, where not all are."""
    return tables.finished_only() if archived else tables.live_only()


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


def select_page(
    tables: QueueTables, archived: bool, conditions: Conditions, limit: int, after: int | None
) -> Select[Any]:
    """Read messages by id, from the one after ``after``: along the primary key."""
    table = place_of(tables, archived)
    columns = archive_columns(tables) if archived else tables.message_columns(table)
    beyond = [] if after is None else [table.c.id > after]
    extent = extent_of(tables, archived)
    return select(*columns).where(*extent, *conditions, *beyond).order_by(table.c.id).limit(limit)


def select_count(tables: QueueTables, archived: bool, conditions: Conditions) -> Select[Any]:
    """Count messages."""
    table = place_of(tables, archived)
    extent = extent_of(tables, archived)
    return select(func.count()).select_from(table).where(*extent, *conditions)


def update_chosen(tables: QueueTables, conditions: Conditions, values: Mapping[str, Any]) -> Update:
    """Change messages that nobody holds; looked at again under the row's lock."""
    live = tables.live
    return (
        update(live)
        .where(live.c.consumer_id.is_(None), *tables.live_only(), *conditions)
        .values({**tables.still_live(), **values})
    )


def delete_chosen(tables: QueueTables, archived: bool, conditions: Conditions) -> Delete | Update:
    """Remove messages, live ones only where nobody holds them."""
    table = place_of(tables, archived)
    unclaimed = [] if archived else [table.c.consumer_id.is_(None)]
    return tables.removal(archived=archived).where(*unclaimed, *conditions)


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
        .where(archive.c.id <= up_to, *tables.finished_only(), *conditions)
        .order_by(archive.c.id)
        .limit(limit)
        .with_for_update()
    )


def greatest_id(tables: QueueTables, archived: bool, conditions: Conditions) -> Select[Any]:
    """The id of the newest message."""
    extent = extent_of(tables, archived)
    return select(func.max(place_of(tables, archived).c.id)).where(*extent, *conditions)


def probe_id(tables: QueueTables, archived: bool) -> Select[Any]:
    """The first id from ``p_from`` on, and the one that comes ``p_skip`` after it."""
    table = place_of(tables, archived)
    there = (table.c.id >= number("p_from"), *extent_of(tables, archived))
    first = select(func.min(table.c.id)).where(*there).scalar_subquery()
    later = select(table.c.id).where(*there).order_by(table.c.id)
    return select(first, later.limit(1).offset(number("p_skip")).scalar_subquery())


def id_at(tables: QueueTables, archived: bool, conditions: Conditions, skip: int) -> Select[Any]:
    """The id of the message after ``skip`` others: where a batch ends."""
    table = place_of(tables, archived)
    wanted = [*extent_of(tables, archived), *conditions]
    return select(table.c.id).where(*wanted).order_by(table.c.id).offset(skip).limit(1)


@dataclasses.dataclass(frozen=True, eq=False)
class Chosen:
    """Which messages are meant: those in the queue or in its archive that match all conditions."""

    archived: bool
    conditions: Sequence[ColumnElement[bool]]

    def also(self, condition: ColumnElement[bool]) -> Chosen:
        """Only those of them that match another condition, too."""
        return Chosen(self.archived, [*self.conditions, condition])


class Edited(int):
    """How many messages an edit changed.

    Attributes:
        skipped: matching messages that were left alone, because a consumer holds them.
    """

    skipped: int

    def __new__(cls, changed: int, skipped: int = 0) -> Self:
        """Count ``changed`` messages and remember the others."""
        edited = super().__new__(cls, changed)
        edited.skipped = skipped
        return edited


def list_messages(
    connection: Connection, sql: StatementCache, chosen: Chosen, limit: int, after: int | None
) -> list[MessageRow]:
    """Read one page of messages, by id."""
    page = select_page(sql.subject, chosen.archived, chosen.conditions, limit, after)
    rows: Sequence[Any] = CompiledStatement(page, connection.dialect).run(connection).all()
    if chosen.archived:
        return read_archive_rows(connection, sql, rows)
    return [row._replace(listed=True) for row in read_rows(connection, sql, rows)]


def count_messages(connection: Connection, sql: StatementCache, chosen: Chosen) -> int:
    """Count messages."""
    counted = select_count(sql.subject, chosen.archived, chosen.conditions)
    with sql.subject.dialect.scanning(connection):
        return int(connection.execute(counted).scalar_one())


def edit_messages(
    connection: Connection, sql: StatementCache, chosen: Chosen, values: Mapping[str, Any]
) -> Edited:
    """Change live messages that nobody holds, and tell every consumer to look for them."""
    tables: QueueTables = sql.subject
    changed = connection.execute(update_chosen(tables, chosen.conditions, values)).rowcount
    if changed:
        registry.count_edit(connection, tables.system, tables.prefix, tables.queue)
    return Edited(changed, _held_back(connection, tables, chosen))


def move_to_front(connection: Connection, sql: StatementCache, chosen: Chosen) -> Edited:
    """Let messages be the next of their levels, in the order of their ids; held ones stay held."""
    tables: QueueTables = sql.subject
    chosen = chosen.also(tables.live.c.available_at.is_not(None))
    # First the lock on the queue's record: of two such edits the later one comes to the front.
    registry.count_edit(connection, tables.system, tables.prefix, tables.queue)
    now = server_now(connection, sql)
    found = connection.execute(earliest(tables)).all()
    fronts = {int(level): min(int(due), now) - 1 for level, due in found}
    front = in_front(tables, fronts, now)
    return edit_messages(connection, sql, chosen, {"available_at": front})


def remove_messages(connection: Connection, sql: StatementCache, chosen: Chosen) -> Edited:
    """Remove messages, live ones only where nobody holds them."""
    tables: QueueTables = sql.subject
    statement = delete_chosen(tables, chosen.archived, chosen.conditions)
    removed = connection.execute(statement).rowcount
    return Edited(removed, 0 if chosen.archived else _held_back(connection, tables, chosen))


def last_id(connection: Connection, sql: StatementCache, chosen: Chosen) -> int | None:
    """The id of the newest message; None where there is none."""
    statement = greatest_id(sql.subject, chosen.archived, chosen.conditions)
    found = connection.execute(statement).scalar()
    return None if found is None else int(found)


def id_after(connection: Connection, sql: StatementCache, chosen: Chosen, skip: int) -> int | None:
    """The id of the message after ``skip`` others; None where there are no more."""
    statement = id_at(sql.subject, chosen.archived, chosen.conditions, skip)
    found = connection.execute(statement).scalar()
    return None if found is None else int(found)


def probe_ids(
    connection: Connection, sql: StatementCache, *, archived: bool, start: int, skip: int
) -> tuple[int | None, int | None]:
    """The id of the first message from ``start`` on, and of the one that comes ``skip`` after it.

    None where there is none. It costs a walk over ``skip`` entries of the primary key.
    """
    values = {"p_from": start, "p_skip": skip}
    found: Sequence[Any] = sql.get(probe_id, archived).run(connection, values).one()
    return found[0], found[1]


def requeue(
    connection: Connection,
    sql: StatementCache,
    chosen: Chosen,
    *,
    up_to: int,
    limit: int,
    priorities: int,
    forget_keys: bool,
) -> int:
    """Give archived messages a new life under new ids; returns how many.

    Args:
        connection: where.
        sql: the queue's statements.
        chosen: the archived messages.
        up_to: only those up to this id.
        limit: at most so many.
        priorities: how many levels the queue has now.
        forget_keys: whether their keys are remembered, and have to be given free.

    Raises:
        DuplicateKey: a live message has the key of one of them; none was changed.
        PayloadInvalid: an own column of one cannot be read; none was changed.
    """
    tables: QueueTables = sql.subject
    engine_of(tables).lock_for_writing(connection, sql)
    batch = archived_batch(tables, chosen.conditions, up_to, limit)
    found: Sequence[Any] = CompiledStatement(batch, connection.dialect).run(connection).all()
    rows = read_archive_rows(connection, sql, found)
    if tables.ends_in_place:
        return _begin_anew(connection, sql, rows, priorities)
    for row in rows:
        _check_readable(row)
    # First the new lives: where a key is taken they are undone, and nothing else has happened.
    publish_many(connection, sql, [_again(row, priorities) for row in rows], "raise")
    ids = [row.id for row in rows]
    for part in batches(ids):
        size, values = bucket_of(len(part)), id_values(part)
        sql.get(archive.remove_from_archive, size).run(connection, values)
    if forget_keys:
        keyed = [(row.id, row.message_key) for row in rows]
        keys.forget_messages(connection, sql, keyed)
    return len(rows)


def _check_readable(row: MessageRow) -> None:
    for name, value in row.columns.items():
        if isinstance(value, Unreadable):
            msg = (
                f"Message {row.id} cannot be given a new life, because its column {name!r} cannot "
                f"be read here: {value.error!r}. Nothing of its batch was changed: leave it out, "
                "or change the value in the archive."
            )
            raise PayloadInvalid(msg) from value.error


def _begin_anew(
    connection: Connection, sql: StatementCache, rows: Sequence[MessageRow], priorities: int
) -> int:
    groups: dict[tuple[int, str | None], list[int]] = {}
    for row in rows:
        headers = _headers_with(row.headers, row.last_error)
        level = min(row.priority, priorities - 1)
        groups.setdefault((level, headers), []).append(row.id)
    for (level, headers), ids in groups.items():
        values = {"p_priority": level, "p_headers": headers, "p_at": None, "p_delay": 0}
        for batch in batches(ids):
            anew = sql.get(adopted.begin_anew, bucket_of(len(batch)))
            anew.run(connection, values | id_values(batch))
    return len(rows)


def _again(row: MessageRow, priorities: int) -> NewMessage:
    content = {
        "kind": row.kind,
        "payload": row.payload,
        "headers": _headers_with(row.headers, row.last_error),
        "priority": min(row.priority, priorities - 1),
        "max_attempts": row.max_attempts,
        "lease_us": row.lease_us,
        **row.columns,
    }
    return NewMessage(key=row.message_key, content=content, delay=0, at=None)


def _headers_with(headers: str | None, error: str | None) -> str | None:
    present: dict[str, Any] = {} if headers is None else json.loads(headers)
    present.pop(UNFIT_SINCE, None)
    if error is not None:
        present[PREVIOUS_ERROR] = error
    return json.dumps(present, ensure_ascii=False, separators=(",", ":")) if present else None


def _held_back(connection: Connection, tables: QueueTables, chosen: Chosen) -> int:
    counted = held_back(tables, chosen.conditions)
    return int(connection.execute(counted).scalar_one())
