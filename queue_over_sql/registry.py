"""What all queues of a database share: which queues there are, and who consumes.

Acts on a ``Connection`` like those of ``store``; instants and durations are microseconds.
"""

from __future__ import annotations

import dataclasses
import time
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    Column,
    Table,
    and_,
    bindparam,
    delete,
    insert,
    inspect,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateIndex, CreateTable, DropTable, ExecutableDDLElement

from queue_over_sql.dialects.base import ErrorKind
from queue_over_sql.durations import instant
from queue_over_sql.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sqlalchemy import ColumnElement, Connection, Index

    from queue_over_sql.dialects.base import QueueDialect
    from queue_over_sql.schema import QueueTables, SystemTables

# How often creators that meet in spite of the creation lock look again.
_CREATION_RACES = 20
_RACE_SECONDS = 0.05


@dataclasses.dataclass(frozen=True, slots=True)
class QueueRecord:
    """What the registry knows of a queue."""

    name: str
    settings: str
    paused: bool
    discarded: int


@dataclasses.dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """A running consumer.

    Attributes:
        consumer_id: its identity, the stamp of its claims.
        name: its name for people.
        host, pid: where it runs.
        started_at, heartbeat_at: when it registered, and when it was heard of last.
        expires_at: from when on it counts as dead unless it is heard of again.
    """

    consumer_id: str
    name: str
    host: str
    pid: int
    started_at: datetime
    heartbeat_at: datetime
    expires_at: datetime


# -- tables


def ensure_tables(connection: Connection, tables: Sequence[Table], dialect: QueueDialect) -> None:
    """Create tables where they are missing; who may not create needs no right where none is."""
    inspector = inspect(connection)
    if all(inspector.has_table(table.name, schema=table.schema) for table in tables):
        return
    dialect.creation_lock(connection)
    try:
        create_tables(connection, tables, dialect)
    finally:
        dialect.creation_unlock(connection)


def create_tables(connection: Connection, tables: Iterable[Table], dialect: QueueDialect) -> None:
    """Create tables and their indexes where they are missing; safe beside other creators."""
    for table in tables:
        create = CreateTable(table, if_not_exists=True)
        _create(connection, create, dialect, partial(_has_table, connection, table))
        present = _indexes(connection, table) if not dialect.index_if_not_exists else set()
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            if index.name not in present:
                create_index = CreateIndex(index, if_not_exists=dialect.index_if_not_exists)
                _create(connection, create_index, dialect, partial(_has_index, connection, index))


def _create(
    connection: Connection,
    statement: ExecutableDDLElement,
    dialect: QueueDialect,
    exists: Callable[[], bool],
) -> None:
    """Create something, or see that another creator did: IF NOT EXISTS races with itself."""
    for race in range(_CREATION_RACES):
        try:
            connection.execute(statement)
        except DBAPIError as error:
            kind = dialect.classify(error)
            if kind in (ErrorKind.TRANSIENT, ErrorKind.DISCONNECT) or dialect.aborts_on_error:
                raise
            if kind is ErrorKind.TABLE_EXISTS or exists():
                return
            if race == _CREATION_RACES - 1:
                raise
            time.sleep(_RACE_SECONDS)
        else:
            return


def _has_table(connection: Connection, table: Table) -> bool:
    return inspect(connection).has_table(table.name, schema=table.schema)


def _has_index(connection: Connection, index: Index) -> bool:
    return index.table is not None and index.name in _indexes(connection, index.table)


def _indexes(connection: Connection, table: Table) -> set[str | None]:
    found = inspect(connection).get_indexes(table.name, schema=table.schema)
    return {index["name"] for index in found}


def drop_tables(connection: Connection, tables: QueueTables) -> None:
    """Drop the tables of a queue."""
    for table in (tables.live, tables.archive):
        connection.execute(DropTable(table, if_exists=True))


def own_columns(
    connection: Connection, table: str, schema: str | None, names: Iterable[str]
) -> list[Column[Any]]:
    """Reflect the columns of a queue that its creator gave it."""
    found = {column["name"]: column for column in inspect(connection).get_columns(table, schema)}
    return [Column(name, found[name]["type"], nullable=found[name]["nullable"]) for name in names]


# -- queues


def queue_record(
    connection: Connection, system: SystemTables, prefix: str, name: str
) -> QueueRecord | None:
    """The record of one queue; None where there is none."""
    found = _records(connection, system, _is_queue(system, prefix, name))
    return found[0] if found else None


def queue_records(connection: Connection, system: SystemTables, prefix: str) -> list[QueueRecord]:
    """The records of all queues under a table prefix, by name."""
    return _records(connection, system, system.queues.c.table_prefix == prefix)


def _records(
    connection: Connection, system: SystemTables, condition: ColumnElement[bool]
) -> list[QueueRecord]:
    columns = system.queues.c
    rows = connection.execute(
        select(columns.name, columns.settings, columns.paused_at, columns.discarded_count)
        .where(condition)
        .order_by(columns.name)
    )
    return [QueueRecord(row[0], row[1], row[2] is not None, int(row[3])) for row in rows]


def add_queue(
    connection: Connection, system: SystemTables, dialect: QueueDialect, record: dict[str, str]
) -> bool:
    """Write the record of a new queue; False where another creator was first.

    Args:
        connection: where.
        system: the shared tables.
        dialect: for the clock.
        record: ``table_prefix``, ``name`` and ``settings``.
    """
    values = {**record, "schema_version": SCHEMA_VERSION, "created_at": dialect.now()}
    try:
        connection.execute(insert(system.queues).values(values))
    except DBAPIError as error:
        if dialect.classify(error) is ErrorKind.DUPLICATE and not dialect.aborts_on_error:
            return False
        raise
    return True


def change_queue(
    connection: Connection, system: SystemTables, prefix: str, name: str, **values: Any
) -> bool:
    """Change columns of a queue's record; False where there is none."""
    statement = update(system.queues).where(_is_queue(system, prefix, name)).values(values)
    return connection.execute(statement).rowcount > 0


def count_discarded(
    connection: Connection, system: SystemTables, prefix: str, name: str, count: int
) -> None:
    """Count messages that ended without a trace, because the queue keeps no archive."""
    discarded = system.queues.c.discarded_count
    change_queue(connection, system, prefix, name, discarded_count=discarded + count)


def remove_queue(connection: Connection, system: SystemTables, prefix: str, name: str) -> bool:
    """Remove the record of a queue; False where there is none."""
    statement = delete(system.queues).where(_is_queue(system, prefix, name))
    return connection.execute(statement).rowcount > 0


def _is_queue(system: SystemTables, prefix: str, name: str) -> ColumnElement[bool]:
    return and_(system.queues.c.table_prefix == prefix, system.queues.c.name == name)


# -- consumers


def register_consumer(
    connection: Connection,
    system: SystemTables,
    dialect: QueueDialect,
    consumer: dict[str, Any],
    timeout: int,
) -> None:
    """Write the row of a consumer, alive for ``timeout`` from now.

    Args:
        connection: where.
        system: the shared tables.
        dialect: for the clock.
        consumer: ``consumer_id``, ``name``, ``host`` and ``pid``.
        timeout: in microseconds.
    """
    now = dialect.now()
    times = {"started_at": now, "heartbeat_at": now, "expires_at": now + timeout}
    connection.execute(insert(system.consumers).values({**consumer, **times}))


def renew_consumer(
    connection: Connection,
    system: SystemTables,
    dialect: QueueDialect,
    consumer_id: str,
    timeout: int,
) -> bool:
    """Renew a heartbeat; False where the consumer has expired, which cannot be undone."""
    consumers, now = system.consumers, dialect.now()
    statement = (
        update(consumers)
        .where(consumers.c.consumer_id == bindparam("p_consumer"), consumers.c.expires_at > now)
        .values(heartbeat_at=now, expires_at=now + timeout)
    )
    return connection.execute(statement, {"p_consumer": consumer_id}).rowcount > 0


def remove_consumer(connection: Connection, system: SystemTables, consumer_id: str) -> None:
    """Remove the row of a consumer."""
    consumers = system.consumers
    connection.execute(delete(consumers).where(consumers.c.consumer_id == consumer_id))


def expired_consumers(
    connection: Connection, system: SystemTables, dialect: QueueDialect
) -> list[str]:
    """The ids of consumers whose heartbeat stopped."""
    consumers = system.consumers
    expired = select(consumers.c.consumer_id).where(consumers.c.expires_at <= dialect.now())
    return [row[0] for row in connection.execute(expired)]


def consumers(connection: Connection, system: SystemTables) -> list[ConsumerInfo]:
    """All consumers that are registered, the oldest first."""
    columns = system.consumers.c
    rows = connection.execute(
        select(
            columns.consumer_id,
            columns.name,
            columns.host,
            columns.pid,
            columns.started_at,
            columns.heartbeat_at,
            columns.expires_at,
        ).order_by(columns.started_at, columns.consumer_id)
    )
    return [
        ConsumerInfo(row[0], row[1], row[2], row[3], *(instant(int(value)) for value in row[4:]))
        for row in rows
    ]
