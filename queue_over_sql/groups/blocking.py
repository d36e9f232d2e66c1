"""Groups that a dead letter blocks, because the queue has ``block_on_failure``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Update, update

from queue_over_sql.groups.exits import wake
from queue_over_sql.groups.operations import know
from queue_over_sql.groups.statements import among_groups, group_values, rows_of_groups
from queue_over_sql.statements.parameters import id_values, number

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sqlalchemy import Connection

    from queue_over_sql.groups.exits import Held
    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.sql.compiled import StatementCache


def set_blocked(tables: QueueTables) -> Update:
    """Note on a group the dead letter that blocks it, unless there is one."""
    rows = rows_of_groups(tables)
    free = (among_groups(rows, 1), rows.c.blocked_by.is_(None))
    return update(rows).where(*free).values(blocked_by=number("p_id_0"))


def clear_blocked(tables: QueueTables) -> Update:
    """Forget that a message blocks a group, if it is this one."""
    rows = rows_of_groups(tables)
    blocked = (among_groups(rows, 1), rows.c.blocked_by == number("p_id_0"))
    return update(rows).where(*blocked).values(blocked_by=None)


def block(connection: Connection, sql: StatementCache, dying: Iterable[Held]) -> dict[str, int]:
    """Let messages block their groups; returns the first one of each group.

    In a transaction, before they end: so the group's row is locked before the messages behind,
    as everywhere.

    Args:
        connection: with a transaction.
        sql: the queue's statements.
        dying: messages that this transaction has locked, and makes dead letters.
    """
    first: dict[str, int] = {}
    for each in sorted(dying):
        if each.group is not None:
            first.setdefault(each.group, each.id)
    if first:
        know(connection, sql, sorted(first))
    for group in sorted(first):
        values = group_values([group], 1) | id_values([first[group]])
        sql.get(set_blocked).run(connection, values)
    return first


def unblock(connection: Connection, sql: StatementCache, dead: Mapping[str, Iterable[int]]) -> int:
    """Let groups go on that one of these messages blocks; returns how many it was.

    In a transaction, in which these are no dead letters any more.
    """
    freed: list[str] = []
    for group in sorted(dead):
        for message_id in dead[group]:
            values = group_values([group], 1) | id_values([message_id])
            if sql.get(clear_blocked).run(connection, values).rowcount:
                freed.append(group)
    wake(connection, sql, freed)
    return len(freed)
