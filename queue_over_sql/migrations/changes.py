"""The changes of each schema version, and which of them a database lacks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import BigInteger, Column, MetaData, String, Table
from sqlalchemy.exc import NoSuchTableError
from sqlalchemy.schema import CreateIndex

from queue_over_sql.errors import QueueSchemaMismatch
from queue_over_sql.queues import registry
from queue_over_sql.queues import tables as ddl
from queue_over_sql.queues.registry import version_of
from queue_over_sql.schema.queue_tables import (
    SCHEMA_VERSION,
    added_columns_of,
    error_fingerprint_of,
)
from queue_over_sql.settings import StoredSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import ClauseElement, Connection
    from sqlalchemy.schema import ExecutableDDLElement

    from queue_over_sql.queues.registry import QueueRecord
    from queue_over_sql.schema.system_tables import SystemTables
    from queue_over_sql.sql.dialect import QueueDialect
    from queue_over_sql.sql.expressions import Expressions


@dataclasses.dataclass(frozen=True)
class SchemaChange:
    """A pending or completed change of tables.

    Attributes:
        queue: name of the queue; None for the tables that all queues share.
        version: the schema version of the queue; None for the shared tables.
        to_version: the schema version after the change; None for the shared tables.
        summary: a description for people.
        statements: the SQL statements, in the order in which to run them.
    """

    queue: str | None
    version: int | None
    to_version: int | None
    summary: str
    statements: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Migration:
    """The step from one schema version to the next.

    It only adds indexes, and columns that may be NULL, so workers of the earlier release keep
    working, and an interrupted step does no harm.

    Attributes:
        version: the version that it leads to.
        summary: what it does.
        columns: new columns, by the name of the queue's table or archive; the indexes of their
            tables are new, too.
    """

    version: int
    summary: str
    columns: Callable[[str, str | None, Expressions], list[Column[Any]]]


def _of_messages(*names: str) -> Callable[[str, str | None, Expressions], list[Column[Any]]]:
    """These columns of ``added_columns_of``, for the table of a queue and for its archive."""

    def columns(base: str, schema: str | None, expressions: Expressions) -> list[Column[Any]]:
        found = []
        for table in (base, f"{base}_archive"):
            wanted = [each for each in added_columns_of(expressions) if each.name in names]
            Table(table, MetaData(), *wanted, schema=schema)
            found += wanted
        return found

    return columns


def _of_errors(base: str, schema: str | None, expressions: Expressions) -> list[Column[Any]]:
    """The fingerprints of errors in a queue's archive, and what their index needs."""
    column = error_fingerprint_of(expressions)
    there = (Column("outcome", String(20)), Column("finished_at", BigInteger))
    archive = Table(f"{base}_archive", MetaData(), *there, column, schema=schema)
    expressions.add_index_of_errors(archive)
    return [column]


MIGRATIONS: Final = (
    Migration(
        2,
        "add the column last_traceback to its table and its archive",
        _of_messages("last_traceback"),
    ),
    Migration(
        3, "add the column expires_at to its table and its archive", _of_messages("expires_at")
    ),
    Migration(4, "add the column error_fingerprint to its archive, with an index", _of_errors),
)
"""All migrations, in order; the last one leads to ``SCHEMA_VERSION``."""


def is_outdated(record: QueueRecord) -> bool:
    """Whether a queue must be upgraded before use; temporary ones are not, since they are dropped.

    Raises:
        SchemaTooNew, QueueSchemaMismatch: as in ``version_of``.
    """
    return version_of(record) < SCHEMA_VERSION and record.owner is None


def lacking_columns(
    connection: Connection,
    record: QueueRecord,
    prefix: str,
    schema: str | None,
    dialect: QueueDialect,
) -> list[Column[Any]]:
    """The columns that a queue's tables lack; none for an adopted table.

    Raises:
        QueueSchemaMismatch: a table no longer exists, or has a user's column with such a name.
    """
    stored = StoredSettings.read(record.name, record.settings)
    if stored.adoption is not None:
        return []
    version, base = version_of(record), prefix + record.name
    steps = [step for step in MIGRATIONS if step.version > version]
    wanted = [
        column for step in steps for column in step.columns(base, schema, dialect.expressions)
    ]
    for column in wanted:
        if column.name in stored.columns:
            msg = (
                f"Queue {record.name!r} has its own column {column.name!r}, but schema version "
                f"{SCHEMA_VERSION} adds a column of this name to every queue. Nothing was "
                "changed. Move the messages to a queue whose column has another name."
            )
            raise QueueSchemaMismatch(msg)
    try:
        return [c for c in wanted if c in ddl.missing(connection, c.table, dialect)]
    except NoSuchTableError as error:
        msg = f"The table {error} of queue {record.name!r} is gone. Restore it, or drop the queue."
        raise QueueSchemaMismatch(msg) from error


def tables_with_new_indexes(
    record: QueueRecord, prefix: str, schema: str | None, dialect: QueueDialect
) -> list[Table]:
    """The tables of a queue with the indexes that later versions added; none of an adopted one."""
    if StoredSettings.read(record.name, record.settings).adoption is not None:
        return []
    version, base = version_of(record), prefix + record.name
    steps = [step for step in MIGRATIONS if step.version > version]
    columns = [c for step in steps for c in step.columns(base, schema, dialect.expressions)]
    return [table for table in {column.table: None for column in columns} if table.indexes]


def change_of_queue(
    connection: Connection,
    record: QueueRecord,
    columns: Sequence[Column[Any]],
    *,
    system: SystemTables,
    prefix: str,
    dialect: QueueDialect,
) -> SchemaChange:
    """The change that adds these missing columns to a queue."""
    version = version_of(record)
    steps = [step.summary for step in MIGRATIONS if step.version > version]
    what = "; ".join(steps) if columns else "only record the new version"
    recorded = registry.record_upgrade(system, prefix, record.name)
    statements = [ddl.additions(connection, column, dialect)[0] for column in columns]
    added = [index for column in columns for index in column.table.indexes]
    statements += [_as_text(connection, CreateIndex(index)) for index in added]
    return SchemaChange(
        record.name,
        version,
        SCHEMA_VERSION,
        f"queue {record.name!r} from version {version} to {SCHEMA_VERSION}: {what}",
        (*statements, _as_text(connection, recorded)),
    )


def changes_of_system(
    connection: Connection, system: SystemTables, dialect: QueueDialect
) -> list[SchemaChange]:
    """The changes of the shared tables, by table."""
    found = []
    for table in system.all:
        if not ddl.has_table(connection, table):
            made: list[ExecutableDDLElement] = [dialect.expressions.create_table(table)]
            made += [CreateIndex(index) for index in table.indexes]
            texts = tuple(_as_text(connection, one) for one in made)
            found.append(SchemaChange(None, None, None, f"create {table.name}", texts))
        elif lacking := ddl.missing(connection, table, dialect):
            names = ", ".join(column.name for column in lacking)
            added = [ddl.additions(connection, column, dialect)[0] for column in lacking]
            what = f"add to {table.name}: {names}"
            found.append(SchemaChange(None, None, None, what, tuple(added)))
    return found


def _as_text(connection: Connection, clause: ClauseElement) -> str:
    literal = {"literal_binds": True}
    return str(clause.compile(dialect=connection.dialect, compile_kwargs=literal)).strip()
