"""Operations on an adopted table: read it, add and drop the queue's columns, enqueue rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    Column,
    FetchedValue,
    MetaData,
    Table,
    bindparam,
    func,
    inspect,
    select,
    update,
)
from sqlalchemy.exc import NoSuchTableError
from sqlalchemy.schema import DropIndex, DropTable

from queue_over_sql.archive.statements import begun
from queue_over_sql.errors import QueueSchemaMismatch
from queue_over_sql.publishing.operations import all_or_none, check_size
from queue_over_sql.queues import tables as ddl
from queue_over_sql.schema.existing import added_names
from queue_over_sql.sql.compiled import CompiledStatement
from queue_over_sql.sql.ddl import accepting_any_type
from queue_over_sql.sql.driver_calls import pause
from queue_over_sql.sql.operation import operation
from queue_over_sql.statements.parameters import number

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlalchemy import ColumnElement, Connection, Insert
    from sqlalchemy.engine.interfaces import ReflectedColumn

    from queue_over_sql.schema.existing import ExistingTable
    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.settings import Adoption
    from queue_over_sql.sql.compiled import StatementCache
    from queue_over_sql.sql.dialect import QueueDialect


_KEY_LOOKS = 10
_LOOK_SECONDS = 0.05


def reflect(connection: Connection, name: str, schema: str | None, dialect: QueueDialect) -> Table:
    """Read the definition of a user's table, which another process may be adopting.

    Raises:
        QueueSchemaMismatch: it does not exist, or is a view.
    """
    where = name if schema is None else f"{schema}.{name}"
    looks = _KEY_LOOKS if dialect.features.alters_in_view else 0
    try:
        with accepting_any_type():
            found, key, views = ddl.settled(
                connection, lambda: _look(connection, name, schema, looks), dialect
            )
    except NoSuchTableError as error:
        msg = f"There is no table {where!r} in this database."
        raise QueueSchemaMismatch(msg) from error
    except TypeError as error:
        # SQLAlchemy knows the name of the type, and cannot read its arguments.
        msg = (
            f"The table {where!r} cannot be adopted: SQLAlchemy cannot read the type of one of its "
            f"columns ({error}). Move that column to another table."
        )
        raise QueueSchemaMismatch(msg) from error
    if name in views:
        msg = f"{where!r} is a view; only a table can be adopted."
        raise QueueSchemaMismatch(msg)
    # Read only this, because the table may be changing.
    columns = [_reflected(column, primary_key=column["name"] in key) for column in found]
    return Table(name, MetaData(), *columns, schema=schema)


def _look(
    connection: Connection, name: str, schema: str | None, again: int
) -> tuple[list[ReflectedColumn], list[str], list[str]]:
    inspector = inspect(connection)
    found = inspector.get_columns(name, schema)
    key = inspector.get_pk_constraint(name, schema)["constrained_columns"]
    views = inspector.get_view_names(schema)
    if key or name in views or not again:
        return found, key, views
    # A key may only seem to be missing while another process alters the table.
    pause(connection, _LOOK_SECONDS)
    return _look(connection, name, schema, again - 1)


def _reflected(found: ReflectedColumn, *, primary_key: bool) -> Column[Any]:
    fills_itself = found["default"] is not None or "computed" in found or "identity" in found
    kind = found["type"]
    # A domain is its type with conditions, which the database checks.
    while (within := getattr(kind, "data_type", None)) is not None:
        kind = within
    return Column(
        found["name"],
        kind,
        primary_key=primary_key,
        autoincrement=False,
        nullable=found["nullable"],
        server_default=FetchedValue() if fills_itself else None,
    )


def has_added_columns(connection: Connection, adoption: Adoption, dialect: QueueDialect) -> bool:
    """Whether a table has any column of the names that an adoption adds; False without a table."""
    try:
        found = reflect(connection, adoption.table, adoption.schema, dialect)
    except QueueSchemaMismatch:
        return False
    return bool(set(added_names(adoption).values()) & set(found.columns.keys()))


def is_complete(connection: Connection, tables: QueueTables, found: Table) -> bool:
    """Whether a table, which was found like this, has all columns and indexes of its queue."""
    live = tables.live
    if not {live.c[key].name for key in tables.added_columns} <= set(found.columns.keys()):
        return False
    if not all(ddl.has_table(connection, table) for table in tables.only_with_rules):
        return False
    return {index.name for index in live.indexes} <= tables.dialect.ddl.index_names(
        connection, live
    )


def lost_columns(connection: Connection, tables: QueueTables) -> set[str]:
    """The keys of the columns that the queue had added, and that its table no longer has."""
    lacking = ddl.missing(connection, tables.live, tables.dialect)
    return {column.key for column in lacking}.intersection(tables.added_columns)


def is_rebuilt(connection: Connection, tables: QueueTables) -> bool:
    """Whether a table has rows, but none of the columns that its queue had added."""
    if len(lost_columns(connection, tables)) < len(tables.added_columns):
        return False
    return connection.execute(select(tables.live.c.id).limit(1)).first() is not None


def add_columns(connection: Connection, tables: QueueTables) -> None:
    """Add the missing columns and indexes; safe while others do the same."""
    ours = set(tables.added_columns)
    wanted = [column for column in tables.live.columns if column.key in ours]
    ddl.add_missing_columns(connection, tables.live, tables.dialect, wanted)
    ddl.create_indexes(connection, tables.live, tables.dialect)
    ddl.create_tables(connection, tables.only_with_rules, tables.dialect)


def drop_columns(connection: Connection, tables: QueueTables, adoption: Adoption) -> None:
    """Drop the queue's indexes and columns if they exist; the table stays."""
    live = tables.live
    present = tables.dialect.ddl.index_names(connection, live)
    for index in live.indexes:
        if index.name in present:
            connection.execute(DropIndex(index))
    # The computed column first, because it needs others.
    ours = reversed(added_names(adoption).values())
    found = {column["name"] for column in ddl.columns_in(connection, live.name, live.schema)}
    preparer = connection.dialect.identifier_preparer
    names = [preparer.quote(name) for name in ours if name in found]
    if names:
        for statement in tables.dialect.ddl.drop_columns(preparer.format_table(live), names):
            connection.exec_driver_sql(statement).close()
    for table in tables.only_with_rules:
        connection.execute(DropTable(table, if_exists=True))


@operation(atomic=True, durable=True, repeatable=False, wakes=True)
def publish_rows(
    connection: Connection,
    sql: StatementCache,
    rows: Iterable[tuple[tuple[str, ...], Mapping[str, Any]]],
) -> list[int]:
    """Insert rows as messages, all or none; returns their primary keys.

    A row is the keys of its given columns, as the others get the table's defaults, and the bind
    parameters of the statement.
    """
    with all_or_none(connection, sql):
        return [_insert(connection, sql, names, values) for names, values in rows]


def insert_row(tables: QueueTables, names: tuple[str, ...]) -> Insert:
    """The INSERT of a row as a message; ``names`` are the keys of its given columns."""
    live = tables.live
    given = {
        name: bindparam(tables.parameters[name], None, type_=live.c[name].type)
        for name in (*names, "headers", "priority", "max_attempts", "lease_us")
    }
    statement = tables.expressions.insert(live).values(given | begun(tables))
    return (
        statement.returning(live.c.id) if tables.features.insert_returning else statement.inline()
    )


def _insert(
    connection: Connection, sql: StatementCache, names: tuple[str, ...], values: Mapping[str, Any]
) -> int:
    check_size(sql, values.values())
    result = sql.get(insert_row, names).run(connection, values)
    if not sql.subject.features.insert_returning:
        given = values.get(sql.subject.parameters["id"])
        return int(result.lastrowid if given is None else given)
    row_id = result.scalar_one()
    if row_id is None:
        key = sql.subject.live.c.id.name
        msg = f"the table of queue {sql.subject.queue!r} requires a value for its column {key}"
        raise TypeError(msg)
    return int(row_id)


@operation(durable=True, repeatable=False, wakes=True)
def enqueue(
    connection: Connection,
    sql: StatementCache,
    conditions: Sequence[ColumnElement[bool]],
    values: Mapping[str, Any],
) -> int:
    """Make messages of rows that were never enqueued; returns how many."""
    tables: ExistingTable = sql.subject
    first = begun(tables) | {"priority": number("p_priority"), "attempt_count": 0}
    statement = update(tables.live).where(tables.never_enqueued(), *conditions).values(first)
    return CompiledStatement(statement, connection.dialect).run(connection, values).rowcount


def count_new(
    connection: Connection, sql: StatementCache, conditions: Sequence[ColumnElement[bool]]
) -> int:
    """How many rows were never enqueued."""
    tables: ExistingTable = sql.subject
    counted = select(func.count()).select_from(tables.live)
    statement = counted.where(tables.never_enqueued(), *conditions)
    return int(CompiledStatement(statement, connection.dialect).run(connection).scalar_one())


def last_of_next(
    connection: Connection,
    sql: StatementCache,
    conditions: Sequence[ColumnElement[bool]],
    after: int,
    count: int,
) -> int | None:
    """The primary key of the last of the next ``count`` rows that were never enqueued.

    It starts after the primary key ``after``. None if there are no more.
    """
    tables: ExistingTable = sql.subject
    key = tables.live.c.id
    new = select(key.label("id")).where(
        tables.never_enqueued(), key > number("p_after"), *conditions
    )
    batch = new.order_by(key).limit(number("p_count")).subquery()
    statement = CompiledStatement(select(func.max(batch.c.id)), connection.dialect)
    found = statement.run(connection, {"p_after": after, "p_count": count}).scalar()
    return None if found is None else int(found)
