"""Messages that nobody started in time become dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Select, func, not_, select

from queue_over_sql.settling.operations import end_each
from queue_over_sql.sql.operation import operation
from queue_over_sql.statements.parameters import among_ids, bucket_of, by_id, id_values, number
from queue_over_sql.statements.requests import Disposition, read_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import ColumnElement, Connection

    from queue_over_sql.message import MessageRow
    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.sql.compiled import StatementCache


def end_of_rows(tables: QueueTables) -> Select[Any]:
    """The last id of the next rows."""
    ids = tables.live.c.id
    some = select(ids).where(ids > number("p_after")).order_by(ids).limit(number("p_count"))
    return select(func.max(some.subquery("next_rows").c.id))


def expired(tables: QueueTables) -> Select[Any]:
    """The messages between two ids that expired; no held ones, which wait for an operator."""
    ids = tables.live.c.id
    between = (ids > number("p_after"), ids <= number("p_up_to"))
    found = select(ids).where(*between, *_is_expired(tables)).order_by(ids)
    return by_id(tables, found, tables.live)


def lock_expired(tables: QueueTables, size: int) -> Select[Any]:
    """Lock and read those of the ids that are still unclaimed and expired."""
    wanted = select(*tables.message_columns(tables.live))
    still = wanted.where(among_ids(tables.live, size), *_is_expired(tables))
    locked = still.with_for_update(skip_locked=tables.features.skip_locked)
    return by_id(tables, locked, tables.live)


def _is_expired(tables: QueueTables) -> list[ColumnElement[bool]]:
    live = tables.live.c
    return [
        live.expires_at <= tables.expressions.now(),
        live.consumer_id.is_(None),
        live.attempt_count == 0,
        not_(tables.is_held()),
    ]


def find_expired(
    connection: Connection, sql: StatementCache, after: int, limit: int
) -> tuple[list[int], int | None]:
    """Look at the next rows after an id.

    Returns:
        The ids of the messages that expired, and the last id that was looked at; None: no rows.
    """
    start = {"p_after": after}
    last = sql.get(end_of_rows).run(connection, start | {"p_count": limit}).scalar()
    if last is None:
        return [], None
    found = sql.get(expired).run(connection, start | {"p_up_to": last}).all()
    return [row[0] for row in found], last


@operation(atomic=True)
def end_expired(
    connection: Connection,
    sql: StatementCache,
    ids: Sequence[int],
    disposition: Callable[[MessageRow], Disposition],
) -> tuple[dict[int, Disposition], dict[int, str]]:
    """End those of the messages that are still unclaimed; how, as ``end_each`` says."""
    sql.subject.dialect.sessions.lock_for_writing(connection, sql)
    found: Any = sql.get(lock_expired, bucket_of(len(ids))).run(connection, id_values(ids)).all()
    return end_each(connection, sql, read_rows(connection, sql, found), disposition)
