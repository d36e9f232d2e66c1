"""Which kinds of messages a consumer knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import insert, select

from queue_over_sql.sql.operation import operation

if TYPE_CHECKING:
    from collections.abc import Collection

    from sqlalchemy import Connection

    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.sql.compiled import StatementCache


ANY_KIND = ""
"""Stored for a consumer without kinds, which reads every message as plain JSON."""


@operation(atomic=True)
def declare_kinds(
    connection: Connection, sql: StatementCache, consumer_id: str, names: Collection[str]
) -> None:
    """Store which kinds of a queue a consumer knows; those already stored stay.

    An empty ``names`` stands for all kinds.
    """
    tables: QueueTables = sql.subject
    kinds = tables.system.kinds
    known = {"consumer_id": consumer_id, "table_prefix": tables.prefix, "queue": tables.queue}
    declared = select(kinds.c.kind).where(*[kinds.c[name] == known[name] for name in known])
    noted = set(connection.execute(declared).scalars())
    if missing := sorted(set(names or (ANY_KIND,)) - noted):
        connection.execute(insert(kinds).values([known | {"kind": name} for name in missing]))
