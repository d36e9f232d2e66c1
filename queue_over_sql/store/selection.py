"""Statements that read messages without claiming them, and edit those that no consumer holds."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, Self

from sqlalchemy import Select, and_, case, func, select, update

from queue_over_sql.dialects.base import engine_of
from queue_over_sql.dialects.compiled import CompiledStatement
from queue_over_sql.dialects.requests import (
    archive_columns,
    read_archive_rows,
    read_rows,
)
from queue_over_sql.dialects.statements import archive
from queue_over_sql.dialects.statements.archive import begin_anew
from queue_over_sql.dialects.statements.parameters import number
from queue_over_sql.errors import PayloadInvalid
from queue_over_sql.message import (
    PREVIOUS_ERROR,
    REQUEUED_FROM,
    UNFIT_SINCE,
    Status,
    Unreadable,
)
from queue_over_sql.store import keys, registry
from queue_over_sql.store.acts import change_by_ids
from queue_over_sql.store.admin import server_now
from queue_over_sql.store.publish import NewMessage, publish_many

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import ColumnElement, Connection, Table

    from queue_over_sql.dialects.compiled import StatementCache
    from queue_over_sql.message import MessageRow
    from queue_over_sql.schema.queue_tables import QueueTables


def place_of(tables: QueueTables, archived: bool) -> Table:
    """The table of the messages: the queue's or its archive."""
    return tables.archive if archived else tables.live


def extent_of(tables: QueueTables, archived: bool) -> list[ColumnElement[bool]]:
    """The conditions for the rows that are such messages, if not all rows are."""
    return tables.finished_only() if archived else tables.live_only()


def has_status(tables: QueueTables, status: Status) -> ColumnElement[bool]:
    """The condition for live messages of a status."""
    columns, now = tables.live.c, tables.dialect.now()
    unclaimed = columns.consumer_id.is_(None)
    return {
        Status.READY: and_(unclaimed, columns.available_at <= now),
        Status.DELAYED: and_(unclaimed, columns.available_at > now),
        Status.HELD: and_(unclaimed, columns.available_at.is_(None)),
        Status.CLAIMED: tables.dialect.is_claimed(tables.live),
    }[status]


def probe_id(tables: QueueTables, archived: bool) -> Select[Any]:
    """The first id from ``p_from`` on, and the one ``p_skip`` messages after it."""
    table = place_of(tables, archived)
    there = (table.c.id >= number("p_from"), *extent_of(tables, archived))
    first = select(func.min(table.c.id)).where(*there).scalar_subquery()
    later = select(table.c.id).where(*there).order_by(table.c.id)
    return select(first, later.limit(1).offset(number("p_skip")).scalar_subquery())


@dataclasses.dataclass(frozen=True, eq=False)
class Chosen:
    """A choice of messages: those in the queue or its archive that match all conditions."""

    archived: bool
    conditions: Sequence[ColumnElement[bool]]

    def among(self, tables: QueueTables) -> list[ColumnElement[bool]]:
        """All conditions on the rows of the table."""
        return [*extent_of(tables, self.archived), *self.conditions]

    def also(self, condition: ColumnElement[bool]) -> Chosen:
        """The choice with one more condition."""
        return Chosen(self.archived, [*self.conditions, condition])


class EditResult(int):
    """How many messages an edit changed.

    Attributes:
        skipped: how many matching messages stayed unchanged, because a consumer holds them.
    """

    skipped: int

    def __new__(cls, changed: int, skipped: int = 0) -> Self:
        """Make a result of ``changed`` and ``skipped`` messages."""
        edited = super().__new__(cls, changed)
        edited.skipped = skipped
        return edited


def list_messages(
    connection: Connection,
    sql: StatementCache,
    chosen: Chosen,
    limit: int,
    after: int | None,
    *,
    newest_first: bool = False,
) -> list[MessageRow]:
    """Read one page of messages along the primary key, starting after the id ``after``."""
    tables: QueueTables = sql.subject
    table = place_of(tables, chosen.archived)
    columns = archive_columns(tables) if chosen.archived else tables.message_columns(table)
    page = CompiledStatement(
        _page(sql, chosen, columns, limit=limit, after=after, newest_first=newest_first),
        connection.dialect,
    )
    with sql.subject.dialect.scanning(connection):
        rows: Sequence[Any] = page.run(connection).all()
    if chosen.archived:
        return read_archive_rows(connection, sql, rows)
    return [row._replace(listed=True) for row in read_rows(connection, sql, rows)]


def list_columns(
    connection: Connection,
    sql: StatementCache,
    chosen: Chosen,
    columns: Sequence[ColumnElement[Any]],
    *,
    limit: int,
    after: int | None,
    newest_first: bool,
) -> Sequence[Any]:
    """Read some columns of one page of messages."""
    page = _page(sql, chosen, columns, limit=limit, after=after, newest_first=newest_first)
    with sql.subject.dialect.scanning(connection):
        return connection.execute(page).all()


def _page(
    sql: StatementCache,
    chosen: Chosen,
    columns: Sequence[ColumnElement[Any]],
    *,
    limit: int,
    after: int | None,
    newest_first: bool,
) -> Select[Any]:
    key = place_of(sql.subject, chosen.archived).c.id
    beyond = [] if after is None else [key < after if newest_first else key > after]
    found = select(*columns).where(*chosen.among(sql.subject), *beyond)
    return found.order_by(key.desc() if newest_first else key).limit(limit)


def count_messages(connection: Connection, sql: StatementCache, chosen: Chosen) -> int:
    """Count messages."""
    table = place_of(sql.subject, chosen.archived)
    counted = select(func.count()).select_from(table).where(*chosen.among(sql.subject))
    with sql.subject.dialect.scanning(connection):
        return int(connection.execute(counted).scalar_one())


def edit_messages(
    connection: Connection, sql: StatementCache, chosen: Chosen, values: Mapping[str, Any]
) -> EditResult:
    """Change live messages that no consumer holds, and let every consumer notice."""
    tables: QueueTables = sql.subject
    live = tables.live
    # The condition is checked again under the row's lock.
    statement = update(live).where(live.c.consumer_id.is_(None), *chosen.among(tables))
    values = {**tables.still_live(), **values}
    changed = connection.execute(statement.values(values)).rowcount
    if changed:
        registry.count_edit(connection, tables)
    return EditResult(changed, _held_back(connection, tables, chosen))


def move_to_front(connection: Connection, sql: StatementCache, chosen: Chosen) -> EditResult:
    """Make messages the next of their levels, in the order of their ids; held ones stay held."""
    tables: QueueTables = sql.subject
    chosen = chosen.also(tables.live.c.available_at.is_not(None))
    # Lock the queue's record first, so that the later of two such edits comes to the front.
    registry.count_edit(connection, tables)
    now, columns = server_now(connection, sql), tables.live.c
    # Consider claimed messages, too, because they may come back to their places.
    due_first = select(columns.priority, func.min(columns.available_at))
    there = due_first.where(columns.available_at.is_not(None)).group_by(columns.priority)
    found = connection.execute(there).all()
    fronts = {int(level): min(int(due), now) - 1 for level, due in found}
    front = case((columns.priority >= 0, now))
    if fronts:
        front = case(fronts, value=columns.priority, else_=now)
    return edit_messages(connection, sql, chosen, {"available_at": front})


def remove_messages(connection: Connection, sql: StatementCache, chosen: Chosen) -> EditResult:
    """Remove messages; live ones only if no consumer holds them."""
    tables: QueueTables = sql.subject
    statement = tables.removal(archived=chosen.archived)
    if not chosen.archived:
        statement = statement.where(tables.live.c.consumer_id.is_(None))
    removed = connection.execute(statement.where(*chosen.conditions)).rowcount
    return EditResult(removed, 0 if chosen.archived else _held_back(connection, tables, chosen))


def last_id(connection: Connection, sql: StatementCache, chosen: Chosen) -> int | None:
    """The id of the newest message; None if there is none."""
    table = place_of(sql.subject, chosen.archived)
    statement = select(func.max(table.c.id)).where(*chosen.among(sql.subject))
    found = connection.execute(statement).scalar()
    return None if found is None else int(found)


def id_after(connection: Connection, sql: StatementCache, chosen: Chosen, skip: int) -> int | None:
    """The id of the message after ``skip`` others; None if there are no more."""
    key = place_of(sql.subject, chosen.archived).c.id
    wanted = select(key).where(*chosen.among(sql.subject)).order_by(key)
    found = connection.execute(wanted.offset(skip).limit(1)).scalar()
    return None if found is None else int(found)


def probe_ids(
    connection: Connection, sql: StatementCache, *, archived: bool, start: int, skip: int
) -> tuple[int | None, int | None]:
    """The id of the first message from ``start`` on, and of the one ``skip`` messages later.

    None if there is none. It reads ``skip`` entries of the primary key.
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
    """Requeue archived messages under new ids; returns how many.

    ``up_to`` is the last id, ``priorities`` the present number of levels. With ``forget_keys`` the
    dedup window still has their keys, and this frees them.

    Raises:
        DuplicateKey: a live message has the key of one of them; none was changed.
        PayloadInvalid: a column of one cannot be read; none was changed.
    """
    tables: QueueTables = sql.subject
    engine_of(tables).lock_for_writing(connection, sql)
    key = tables.archive.c.id
    wanted = select(*archive_columns(tables)).where(key <= up_to, *chosen.among(tables))
    batch = wanted.order_by(key).limit(limit).with_for_update()
    found: Sequence[Any] = CompiledStatement(batch, connection.dialect).run(connection).all()
    rows = read_archive_rows(connection, sql, found)
    if tables.ends_in_place:
        return _begin_anew(connection, sql, rows, priorities)
    for row in rows:
        _check_readable(row)
    # Insert first: if a key is taken this is undone, and nothing else was changed.
    publish_many(connection, sql, [_again(row, priorities) for row in rows], "raise")
    change_by_ids(connection, sql, archive.remove_from_archive, [row.id for row in rows])
    if forget_keys:
        keyed = [(row.id, row.message_key) for row in rows]
        keys.forget_messages(connection, sql, keyed)
    return len(rows)


def _check_readable(row: MessageRow) -> None:
    for name, value in row.columns.items():
        if isinstance(value, Unreadable):
            msg = (
                f"Message {row.id} cannot be requeued, because its column {name!r} cannot be "
                f"read: {value.error!r}. This transaction changed nothing. Exclude the message, "
                "or correct the value in the archive."
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
        change_by_ids(connection, sql, begin_anew, ids, values)
    return len(rows)


def _again(row: MessageRow, priorities: int) -> NewMessage:
    content = {
        "kind": row.kind,
        "payload": row.payload,
        "headers": _headers_with(row.headers, row.last_error, row.id),
        "priority": min(row.priority, priorities - 1),
        "max_attempts": row.max_attempts,
        "lease_us": row.lease_us,
        **row.columns,
    }
    return NewMessage(key=row.message_key, content=content, delay=0, at=None)


def _headers_with(headers: str | None, error: str | None, id_: int | None = None) -> str | None:
    present: dict[str, Any] = {} if headers is None else json.loads(headers)
    present.pop(UNFIT_SINCE, None)
    if id_ is not None:
        present[REQUEUED_FROM] = id_
    if error is not None:
        present[PREVIOUS_ERROR] = error
    return json.dumps(present, ensure_ascii=False, separators=(",", ":")) if present else None


def _held_back(connection: Connection, tables: QueueTables, chosen: Chosen) -> int:
    live = tables.live
    held = (live.c.consumer_id.is_not(None), *chosen.conditions)
    counted = select(func.count()).select_from(live).where(*held)
    return int(connection.execute(counted).scalar_one())
