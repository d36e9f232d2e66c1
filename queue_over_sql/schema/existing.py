"""Adopted tables: a queue's columns in a table of the user's, whose rows are the messages.

The live messages and the archive are one table. Its columns have the keys that statements know
from every queue (``id`` is the user's primary key, whatever its name), so that most statements
serve both kinds; the others are in ``dialects/statements/adopted.py``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import BigInteger, Column, Integer, MetaData, String, Table

from queue_over_sql.errors import QueueSchemaMismatch, shown
from queue_over_sql.schema.queue_tables import (
    MESSAGE_COLUMNS,
    QueueTables,
    memory_of_keys,
    message_columns_of,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from queue_over_sql.schema.dialect import SqlDialect
    from queue_over_sql.schema.system_tables import SystemTables
    from queue_over_sql.settings import Adoption


NOT_ATTEMPTED: Final = "NOT_ATTEMPTED"
ERROR: Final = "ERROR"
SUCCESS: Final = "SUCCESS"

_ABSENT: Final = ("id", "message_key", "kind", "payload")
ADDED_COLUMNS: Final = (
    "status",
    *[name for name in MESSAGE_COLUMNS if name not in _ABSENT],
    "finished_at",
    "outcome",
)
"""The columns that an adoption adds, by key; their names begin with the column prefix."""

_PREFIX = re.compile(r"[a-z][a-z0-9_]{0,19}\Z")


def check_column_prefix(prefix: object) -> str:
    """Let a column prefix pass.

    Raises:
        ValueError: it is neither empty nor 1 to 20 lower-case letters, digits and underscores.
    """
    if not isinstance(prefix, str) or (prefix and not _PREFIX.match(prefix)):
        msg = (
            "column_prefix must be empty or 1 to 20 lower-case letters, digits and underscores, "
            f"beginning with a letter; it is {shown(prefix)}"
        )
        raise ValueError(msg)
    return str.__str__(prefix)


def added_names(prefix: str) -> dict[str, str]:
    """The names of the columns that an adoption adds, by key."""
    return {key: prefix + key for key in ADDED_COLUMNS}


def clashing(columns: Iterable[Column[Any]], prefix: str) -> list[str]:
    """The columns of a table that an adoption would need the name of; case does not count."""
    taken = set(added_names(prefix).values())
    return sorted(column.name for column in columns if column.name.lower() in taken)


def primary_key_of(table: Table) -> Column[Any]:
    """The one whole-number primary key that a table needs for its rows to be messages.

    Raises:
        QueueSchemaMismatch: it has none, or one of several columns or of another type.
    """
    columns = list(table.primary_key.columns)
    if len(columns) == 1 and isinstance(columns[0].type, Integer):
        return columns[0]
    found = ", ".join(f"{column.name} {column.type}" for column in columns) or "none"
    msg = (
        f"The table {table.fullname!r} cannot be adopted: a message is found by one whole-number "
        f"primary key, and its primary key is: {found}."
    )
    raise QueueSchemaMismatch(msg)


def adopted_tables(
    queue: str,
    prefix: str,
    adoption: Adoption,
    columns: Sequence[Column[Any]],
    *,
    others: Collection[str],
    given: Table | None,
    system: SystemTables,
    dialect: SqlDialect,
) -> QueueTables:
    """Define the tables of a queue that lives in a table of the user's.

    Args:
        queue: the queue's name.
        prefix: the service's table prefix.
        adoption: which table, and how its added columns are named.
        columns: all columns of that table as they were reflected.
        others: names among them that belong to other queues over the same table.
        given: the user's own definition of the table, for its types and defaults.
        system: the shared tables.
        dialect: what this engine does differently.
    """
    ours = set(added_names(adoption.column_prefix).values())
    users = [c for c in columns if c.name.lower() not in ours | set(others)]
    keys = _keys(users, adoption.primary_key)
    better = {} if given is None else {column.name: column for column in given.c}
    own = [
        _users_column(key, column, better.get(column.name, column))
        for key, column in zip(keys, users, strict=True)
    ]
    base, metadata = prefix + queue, MetaData()
    table = Table(
        adoption.table,
        metadata,
        *own,
        *_added(adoption.column_prefix, dialect),
        schema=adoption.schema,
    )
    dialect.add_queue_indexes(table, base, sparse=True)
    memory = memory_of_keys(base, metadata, dialect)
    return QueueTables(
        queue,
        prefix,
        live=table,
        archive=table,
        dedup_keys=memory,
        system=system,
        dialect=dialect,
        own_columns=tuple(keys),
        adoption=adoption,
    )


def _users_column(key: str, found: Column[Any], given: Column[Any]) -> Column[Any]:
    fills_itself = found.server_default is not None
    return Column(
        found.name,
        given.type,
        key=key,
        primary_key=key == "id",
        autoincrement=key == "id" and not fills_itself and given.default is None,
        nullable=found.nullable,
        default=given.default,
        server_default=found.server_default,
    )


def _keys(columns: Sequence[Column[Any]], primary_key: str) -> list[str]:
    taken = {"id", *ADDED_COLUMNS}
    names = {column.name for column in columns}
    keys = []
    for column in columns:
        key = "id" if column.name == primary_key else column.name
        while key in taken and column.name != primary_key:
            key = f"row_{key}"
            if key in names:
                taken.add(key)
        taken.add(key)
        keys.append(key)
    return keys


def _added(prefix: str, dialect: SqlDialect) -> list[Column[Any]]:
    known = {column.name: column for column in message_columns_of("text", dialect)}
    known |= {
        "status": Column("status", String(20)),
        "finished_at": Column("finished_at", BigInteger),
        "outcome": Column("outcome", String(20)),
    }
    return [
        Column(
            prefix + key,
            known[key].type,
            key=key,
            nullable=known[key].server_default is None,
            server_default=known[key].server_default,
        )
        for key in ADDED_COLUMNS
    ]
