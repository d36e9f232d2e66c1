"""Create, change, read and drop tables, safe while others do the same."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Column, Executable, Table, insert, inspect
from sqlalchemy.exc import DBAPIError, NoSuchTableError
from sqlalchemy.schema import CreateColumn, CreateIndex, DropTable

from queue_over_sql.errors import DatabaseUnavailable, QueueSchemaMismatch
from queue_over_sql.sql.ddl import accepting_any_type
from queue_over_sql.sql.driver_calls import pause
from queue_over_sql.sql.errors import ErrorKind
from queue_over_sql.sql.operation import operation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from sqlalchemy import Connection, Index
    from sqlalchemy.engine.interfaces import ReflectedColumn
    from sqlalchemy.types import TypeEngine

    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.sql.dialect import QueueDialect


class TablesInUse(DatabaseUnavailable):
    """Other transactions kept using tables that were to be changed; nothing was changed."""


def insert_unless_there(
    connection: Connection, dialect: QueueDialect, table: Table, values: Mapping[str, Any]
) -> bool:
    """Insert a row; False if its key exists.

    After False the transaction may have failed, and must be started again.
    """
    try:
        connection.execute(insert(table).values(dict(values)))
    except DBAPIError as error:
        if dialect.errors.classify(error) is ErrorKind.DUPLICATE:
            return False
        raise
    return True


# How often to look again if two creators meet in spite of the creation lock.
_CREATION_RACES = 20
_RACE_SECONDS = 0.05
T = TypeVar("T")


@operation(atomic=True, creates=True)
def ensure_tables(connection: Connection, tables: Sequence[Table], dialect: QueueDialect) -> None:
    """Create tables, or add their newer columns, where they are missing.

    If nothing is missing, no right to create tables is needed.
    """
    if not incomplete(connection, tables, dialect):
        return
    with dialect.ddl.creating(connection, tables[0].schema):
        # Look again under the lock, because its former holder may have created everything.
        for table in incomplete(connection, tables, dialect):
            create_tables(connection, [table], dialect, complete=True)


def create_tables(
    connection: Connection,
    tables: Iterable[Table],
    dialect: QueueDialect,
    *,
    complete: bool = False,
) -> None:
    """Create missing tables and their indexes; safe beside other creators.

    ``complete``: also add missing columns, before the indexes that need them. Where DDL commits,
    this is always done, because an earlier release may have left a table incomplete.
    """
    for table in tables:
        create = dialect.expressions.create_table(table, if_not_exists=True)
        _create(connection, create, dialect, partial(has_table, connection, table))
        if complete or dialect.features.ddl_commits:
            add_missing_columns(connection, table, dialect)
        create_indexes(connection, table, dialect)


def create_indexes(connection: Connection, table: Table, dialect: QueueDialect) -> None:
    """Create missing indexes of a table; safe beside other creators."""
    present = (
        set()
        if dialect.features.index_if_not_exists
        else dialect.ddl.index_names(connection, table)
    )
    for index in sorted(table.indexes, key=lambda index: str(index.name)):
        if index.name not in present:
            create_index = CreateIndex(index, if_not_exists=dialect.features.index_if_not_exists)
            _create(
                connection, create_index, dialect, partial(_has_index, connection, index, dialect)
            )


def _create(
    connection: Connection,
    statement: Executable,
    dialect: QueueDialect,
    exists: Callable[[], bool],
) -> None:
    """Create something unless another creator does; IF NOT EXISTS alone can fail in a race."""
    for race in range(_CREATION_RACES):
        try:
            connection.execute(statement)
        except DBAPIError as error:
            if _fails_for_good(error, dialect):
                raise
            if dialect.errors.classify(error) is ErrorKind.TABLE_EXISTS or exists():
                return
            if race == _CREATION_RACES - 1:
                raise
            pause(connection, _RACE_SECONDS)
        else:
            return


def settled(connection: Connection, look: Callable[[], T], dialect: QueueDialect) -> T:
    """Look at a table until it is visible, because another creator may be altering it.

    Raises:
        NoSuchTableError: it does not exist.
    """
    for _ in range(_CREATION_RACES if dialect.features.alters_in_view else 0):
        try:
            return look()
        except NoSuchTableError:
            pass
        except DBAPIError as error:
            if dialect.errors.classify(error) is ErrorKind.DISCONNECT:
                raise
        pause(connection, _RACE_SECONDS)
    return look()


def columns_in(connection: Connection, name: str, schema: str | None) -> list[ReflectedColumn]:
    """The columns that a table has in the database; raises as the inspector does."""
    with accepting_any_type():
        return inspect(connection).get_columns(name, schema)


def missing(connection: Connection, table: Table, dialect: QueueDialect) -> list[Column[Any]]:
    """The defined columns that the table in the database lacks."""
    name, schema = table.name, table.schema
    found = settled(connection, lambda: columns_in(connection, name, schema), dialect)
    present = {column["name"] for column in found}
    return [column for column in table.columns if column.name not in present]


def add_missing_columns(
    connection: Connection,
    table: Table,
    dialect: QueueDialect,
    wanted: Sequence[Column[Any]] | None = None,
) -> None:
    """Add missing columns to a table that an older version or the user created.

    Safe beside others who do the same: after a lost race it checks again what is missing.
    """
    sa_dialect = connection.dialect
    name = sa_dialect.identifier_preparer.format_table(table)
    for race in range(_CREATION_RACES):
        lacking = missing(connection, table, dialect)
        if wanted is not None:
            # The user dropped other missing columns of this table on purpose.
            lacking = [column for column in lacking if column in wanted]
        columns = [str(CreateColumn(column).compile(dialect=sa_dialect)) for column in lacking]
        try:
            for statement in dialect.ddl.add_columns(name, columns) if columns else ():
                connection.exec_driver_sql(statement).close()
        except DBAPIError as error:
            if race == _CREATION_RACES - 1 or _fails_for_good(error, dialect):
                raise
            pause(connection, _RACE_SECONDS)
        else:
            return


def _fails_for_good(error: DBAPIError, dialect: QueueDialect) -> bool:
    lost = (ErrorKind.TRANSIENT, ErrorKind.CANCELLED, ErrorKind.DISCONNECT, ErrorKind.FORBIDDEN)
    return dialect.errors.classify(error) in lost or dialect.features.aborts_on_error


def add_column_in_use(connection: Connection, column: Column[Any], dialect: QueueDialect) -> None:
    """Add a column to a table that others use, in the first way that the server supports.

    Call it in a transaction with the creation lock and ``dialect.ddl.waiting_briefly``.
    """
    *ways, last = additions(connection, column, dialect)
    for way in ways:
        try:
            connection.exec_driver_sql(way).close()
        except DBAPIError as error:
            if dialect.errors.classify(error) is not ErrorKind.OTHER:
                raise
        else:
            return
    connection.exec_driver_sql(last).close()


def additions(connection: Connection, column: Column[Any], dialect: QueueDialect) -> list[str]:
    """Alternative statements that add a column to its table, the best first."""
    sa_dialect = connection.dialect
    name = sa_dialect.identifier_preparer.format_table(column.table)
    return dialect.ddl.add_column_in_use(
        name, str(CreateColumn(column).compile(dialect=sa_dialect))
    )


def incomplete(
    connection: Connection, tables: Sequence[Table], dialect: QueueDialect
) -> list[Table]:
    """The tables of one schema that do not exist or lack a column, found by one statement."""
    present = dialect.ddl.present_columns(connection, tables)
    return [t for t in tables if not present.get(t.name, set()) >= set(t.columns.keys())]


def has_table(connection: Connection, table: Table) -> bool:
    """Whether the table exists."""
    return inspect(connection).has_table(table.name, schema=table.schema)


def _has_index(connection: Connection, index: Index, dialect: QueueDialect) -> bool:
    table = index.table
    with contextlib.suppress(NoSuchTableError, DBAPIError):
        return table is not None and index.name in dialect.ddl.index_names(connection, table)
    return False


def wait_until_unused(connection: Connection, tables: QueueTables, dialect: QueueDialect) -> None:
    """Wait for transactions that use the tables of a queue, before they are dropped."""
    for table in _of_queue(tables):
        if has_table(connection, table):
            dialect.ddl.wait_until_unused(connection, table)


def drop_tables(connection: Connection, tables: QueueTables) -> None:
    """Drop the tables of a queue."""
    for table in _of_queue(tables):
        connection.execute(DropTable(table, if_exists=True))


def _of_queue(tables: QueueTables) -> Sequence[Table]:
    return [tables.live, tables.archive, tables.dedup_keys, *tables.only_with_rules]


def own_columns(
    connection: Connection,
    table: str,
    schema: str | None,
    names: Iterable[str],
    types: Mapping[str, TypeEngine[Any]],
) -> list[Column[Any]]:
    """Reflect the queue's own columns; ``types`` are the known types.

    Raises:
        QueueSchemaMismatch: one no longer exists.
    """
    found = {column["name"]: column for column in inspect(connection).get_columns(table, schema)}
    gone = [name for name in names if name not in found]
    if gone:
        msg = (
            f"The table {table!r} has lost its column {', '.join(gone)}. Restore the column, or "
            "drop the queue."
        )
        raise QueueSchemaMismatch(msg)
    return [
        Column(name, types.get(name, found[name]["type"]), nullable=found[name]["nullable"])
        for name in names
    ]
