"""Groups that a dead letter blocks, because the queue has ``block_on_failure``.

Whoever removes that dead letter from the archive by hand unblocks its group. Jobs that remove
what is old spare it: what is not dealt with must not start the messages behind it.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from sqlalchemy import Select, Update, and_, exists, literal_column, not_, select, update

from queue_over_sql.groups.exits import wake
from queue_over_sql.groups.operations import know, room
from queue_over_sql.groups.statements import among_groups, group_values, rows_of_groups
from queue_over_sql.queues import registry
from queue_over_sql.sql.operation import operation
from queue_over_sql.statements.operations import rows_by_ids
from queue_over_sql.statements.parameters import among_ids, id_values, number

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlalchemy import ColumnElement, Connection

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


def is_blocking(tables: QueueTables) -> ColumnElement[bool]:
    """The condition for archived messages that block their groups."""
    rows = rows_of_groups(tables)
    one: ColumnElement[int] = literal_column("1")
    found = select(one).where(_blocks(tables)).correlate(tables.archive)
    return exists(found.select_from(rows))


def blocking(tables: QueueTables, *conditions: ColumnElement[bool]) -> Select[Any]:
    """The archived messages that meet conditions and block their groups: group and id."""
    archive, rows = tables.archive, rows_of_groups(tables)
    both = archive.join(rows, _blocks(tables))
    return select(rows.c.group_key, archive.c.id).select_from(both).where(*conditions)


def blocking_of_ids(tables: QueueTables, size: int) -> Select[Any]:
    """Those of the ids in the archive that block their groups: group and id."""
    return blocking(tables, among_ids(tables.archive, size), *tables.finished_only())


def _blocks(tables: QueueTables) -> ColumnElement[bool]:
    rows = rows_of_groups(tables).c
    same = rows.blocked_by == tables.archive.c.id
    return and_(rows.group_key == tables.archived_group(), same)


def blocked_by_nothing(tables: QueueTables) -> Select[Any]:
    """At most ``p_count`` groups whose dead letter is gone: group and its id."""
    archive, rows = tables.archive, rows_of_groups(tables)
    one: ColumnElement[int] = literal_column("1")
    same = archive.c.id == rows.c.blocked_by
    there = select(one).where(same, *tables.finished_only())
    gone = not_(exists(there.select_from(archive).correlate(rows)))
    found = select(rows.c.group_key, rows.c.blocked_by)
    return found.where(rows.c.blocked_by.is_not(None), gone).limit(number("p_count"))


def find_blocked_by_nothing(
    connection: Connection, sql: StatementCache, most: int
) -> list[tuple[str, int]]:
    """Groups that a dead letter blocks which is not in the archive any more, with its id."""
    with sql.subject.dialect.sessions.scanning(connection):
        rows = sql.get(blocked_by_nothing).run(connection, {"p_count": most}).all()
    return sorted((row[0], int(row[1])) for row in rows)


@operation(atomic=True, wakes=True)
def unblock_all(
    connection: Connection, sql: StatementCache, gone: Sequence[tuple[str, int]]
) -> int:
    """Unblock groups whose dead letters, with these ids, are gone; returns how many it was."""
    sql.subject.dialect.sessions.lock_for_writing(connection, sql)
    return unblock(connection, sql, by_group(gone))


def by_group(dead: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """Dead letters by their groups, as ``unblock`` wants them."""
    found: dict[str, list[int]] = defaultdict(list)
    for group, message_id in dead:
        found[group].append(message_id)
    return found


def without_blocking(
    connection: Connection, sql: StatementCache, ids: Sequence[int]
) -> Sequence[int]:
    """Those of the archived messages that do not block their groups."""
    if not sql.subject.grouped:
        return ids
    spared = {row[1] for row in rows_by_ids(connection, sql, blocking_of_ids, ids)}
    return [id_ for id_ in ids if id_ not in spared]


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
    if freed:
        limit, fair = registry.shares_of_groups(connection, sql.subject)
        wake(connection, sql, room(connection, sql, freed, limit=limit, fair=fair))
    return len(freed)
