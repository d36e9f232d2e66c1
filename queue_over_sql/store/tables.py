"""Acts that create, change, look at and drop tables; safe beside others who do the same."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy import Column, Executable, Table, inspect, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateColumn, CreateIndex, CreateTable, DropTable

from queue_over_sql.dialects.base import ErrorKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sqlalchemy import Connection, Index

    from queue_over_sql.dialects.base import QueueDialect
    from queue_over_sql.schema import QueueTables

# How often creators that meet in spite of the creation lock look again.
_CREATION_RACES = 20
_RACE_SECONDS = 0.05


def ensure_tables(connection: Connection, tables: Sequence[Table], dialect: QueueDialect) -> None:
    """Create tables, or their newer columns, where they are missing.

    Who may not create needs no right where nothing is missing.
    """
    if not any(_is_missing(connection, table) or missing(connection, table) for table in tables):
        return
    dialect.creation_lock(connection)
    try:
        create_tables(connection, tables, dialect)
        for table in tables:
            add_missing_columns(connection, table, dialect)
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
    statement: Executable,
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


def missing(connection: Connection, table: Table) -> list[Column[Any]]:
    """The columns of a definition that the table in the database lacks."""
    found = inspect(connection).get_columns(table.name, schema=table.schema)
    present = {column["name"] for column in found}
    return [column for column in table.columns if column.name not in present]


def add_missing_columns(connection: Connection, table: Table, dialect: QueueDialect) -> None:
    """Add the columns that a table lacks: an older version made it, or it is somebody else's."""
    format_table = connection.dialect.identifier_preparer.format_table
    for column in missing(connection, table):
        specification = CreateColumn(column).compile(dialect=connection.dialect)
        add = f"ALTER TABLE {format_table(table)} ADD COLUMN {specification}"
        exists = partial(_has_column, connection, column)
        _create(connection, text(add.replace(":", r"\:")), dialect, exists)


def _has_column(connection: Connection, column: Column[Any]) -> bool:
    return column not in missing(connection, column.table)


def _is_missing(connection: Connection, table: Table) -> bool:
    return not _has_table(connection, table)


def _has_table(connection: Connection, table: Table) -> bool:
    return inspect(connection).has_table(table.name, schema=table.schema)


def _has_index(connection: Connection, index: Index) -> bool:
    return index.table is not None and index.name in _indexes(connection, index.table)


def _indexes(connection: Connection, table: Table) -> set[str | None]:
    found = inspect(connection).get_indexes(table.name, schema=table.schema)
    return {index["name"] for index in found}


def drop_tables(connection: Connection, tables: QueueTables) -> None:
    """Drop the tables of a queue."""
    for table in (tables.live, tables.archive, tables.dedup_keys):
        connection.execute(DropTable(table, if_exists=True))


def own_columns(
    connection: Connection, table: str, schema: str | None, names: Iterable[str]
) -> list[Column[Any]]:
    """Reflect the columns of a queue that its creator gave it."""
    found = {column["name"]: column for column in inspect(connection).get_columns(table, schema)}
    return [Column(name, found[name]["type"], nullable=found[name]["nullable"]) for name in names]
