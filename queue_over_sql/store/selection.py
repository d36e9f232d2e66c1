"""Acts on messages that nobody claims: look, count, edit, remove, and send again."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, Self

from queue_over_sql.dialects.compiled import CompiledStatement
from queue_over_sql.dialects.rows import read_archive_rows, read_rows
from queue_over_sql.dialects.statements import adopted, archive, selection
from queue_over_sql.dialects.statements.parameters import batches, bucket_of, id_values
from queue_over_sql.errors import PayloadInvalid
from queue_over_sql.headers import PREVIOUS_ERROR, UNFIT_SINCE
from queue_over_sql.message import Unreadable
from queue_over_sql.store import keys, registry
from queue_over_sql.store.administration import server_now
from queue_over_sql.store.new_messages import NewMessage
from queue_over_sql.store.publishing import publish_many

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import ColumnElement, Connection

    from queue_over_sql.dialects.compiled import StatementCache
    from queue_over_sql.message import MessageRow
    from queue_over_sql.schema import QueueTables


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
    page = selection.page(sql.subject, chosen.archived, chosen.conditions, limit, after)
    rows: Sequence[Any] = CompiledStatement(page, connection.dialect).run(connection).all()
    if chosen.archived:
        return read_archive_rows(connection, sql, rows)
    return [row._replace(listed=True) for row in read_rows(connection, sql, rows)]


def count_messages(connection: Connection, sql: StatementCache, chosen: Chosen) -> int:
    """Count messages."""
    counted = selection.count(sql.subject, chosen.archived, chosen.conditions)
    with sql.subject.dialect.scanning(connection):
        return int(connection.execute(counted).scalar_one())


def edit_messages(
    connection: Connection, sql: StatementCache, chosen: Chosen, values: Mapping[str, Any]
) -> Edited:
    """Change live messages that nobody holds, and tell every consumer to look for them."""
    tables: QueueTables = sql.subject
    changed = connection.execute(selection.edit(tables, chosen.conditions, values)).rowcount
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
    earliest = connection.execute(selection.earliest(tables)).all()
    fronts = {int(level): min(int(due), now) - 1 for level, due in earliest}
    front = selection.in_front(tables, fronts, now)
    return edit_messages(connection, sql, chosen, {"available_at": front})


def remove_messages(connection: Connection, sql: StatementCache, chosen: Chosen) -> Edited:
    """Remove messages, live ones only where nobody holds them."""
    tables: QueueTables = sql.subject
    statement = selection.remove(tables, chosen.archived, chosen.conditions)
    removed = connection.execute(statement).rowcount
    return Edited(removed, 0 if chosen.archived else _held_back(connection, tables, chosen))


def last_id(connection: Connection, sql: StatementCache, chosen: Chosen) -> int | None:
    """The id of the newest message; None where there is none."""
    statement = selection.last_id(sql.subject, chosen.archived, chosen.conditions)
    found = connection.execute(statement).scalar()
    return None if found is None else int(found)


def id_after(connection: Connection, sql: StatementCache, chosen: Chosen, skip: int) -> int | None:
    """The id of the message after ``skip`` others; None where there are no more."""
    statement = selection.id_after(sql.subject, chosen.archived, chosen.conditions, skip)
    found = connection.execute(statement).scalar()
    return None if found is None else int(found)


def probe_ids(
    connection: Connection, sql: StatementCache, *, archived: bool, start: int, skip: int
) -> tuple[int | None, int | None]:
    """The id of the first message from ``start`` on, and of the one that comes ``skip`` after it.

    None where there is none. It costs a walk over ``skip`` entries of the primary key.
    """
    values = {"p_from": start, "p_skip": skip}
    found: Sequence[Any] = sql.get(selection.probe, archived).run(connection, values).one()
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
    tables.dialect.lock_for_writing(connection, sql)
    batch = selection.archived_batch(tables, chosen.conditions, up_to, limit)
    found: Sequence[Any] = CompiledStatement(batch, connection.dialect).run(connection).all()
    rows = read_archive_rows(connection, sql, found)
    if tables.adoption is not None:
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
    """Let finished rows of an adopted table be messages again, where they are."""
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
    counted = selection.held_back(tables, chosen.conditions)
    return int(connection.execute(counted).scalar_one())
