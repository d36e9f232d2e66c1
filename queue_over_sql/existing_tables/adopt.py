"""Adopting a table as a queue, and dropping the queue again."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

from sqlalchemy import Table, delete, inspect

from queue_over_sql.errors import DatabaseRefused, QueueError, QueueSchemaMismatch
from queue_over_sql.existing_tables import store as existing_store
from queue_over_sql.queues import registry
from queue_over_sql.schema.existing import (
    added_names,
    adopted_tables,
    check_group_column,
    clashing,
    primary_key_of,
)
from queue_over_sql.settings import (
    Adoption,
    OptionsOfAdopted,
    StoredSettings,
    as_unfinished,
    given_of,
    settings_json,
)
from queue_over_sql.sql.operation import Operation
from queue_over_sql.values.options import GROUP_KEY, names_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection, Dialect

    from queue_over_sql.database.connections import Connections
    from queue_over_sql.queues.registry import QueueRecord
    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.schema.system_tables import SystemTables
    from queue_over_sql.settings import EffectiveSettings, QueueSettings, ServiceSettings
    from queue_over_sql.sql.dialect import QueueDialect


# The age in the statement for those who would have rows pruned.
_OLD_DAYS = 30
_DAY_US = 86_400_000_000


@dataclasses.dataclass(frozen=True)
class GivenTable:
    """The table to adopt: its name, or its definition."""

    name: str
    schema: str | None
    definition: Table | None


def given_table(table: Any) -> GivenTable:
    """Read the argument ``table`` of ``adopt_queue``.

    Raises:
        TypeError: it is not a ``Table``, a mapped class or a name.
    """
    if isinstance(table, str) and table:
        schema, _, name = table.rpartition(".")
        return GivenTable(name, schema or None, None)
    given = table
    if not isinstance(table, Table):
        # Only mapped classes and mappers have a ``local_table``.
        table = getattr(inspect(table, raiseerr=False), "local_table", None)
    if not isinstance(table, Table):
        msg = "table must be an SQLAlchemy Table, a mapped class, or the name of a table"
        # Importing Django only for its type would be slow, and it may not be installed.
        if hasattr(getattr(given, "_meta", None), "db_table"):
            msg += "; for a Django model pass Model._meta.db_table"
        raise TypeError(msg)
    return GivenTable(str(table.name), table.schema, table)


def check_settings(
    stored: StoredSettings, requested: QueueSettings, tables: QueueTables, dialect: Dialect
) -> None:
    """Refuse settings that an adopted table cannot have.

    Raises:
        QueueSchemaMismatch: the queue is an adopted table, and such a setting was requested. Where
            it asked to prune, the text has the statement that its user runs instead.
    """
    adoption = stored.adoption
    changeable = names_of(OptionsOfAdopted)
    refused = [name for name in given_of(requested) if name not in changeable]
    if adoption is None or not refused:
        return
    msg = (
        f"Queue {stored.queue!r} is the adopted table {adoption.where!r}, so it does not accept "
        f"{', '.join(refused)}. It accepts: {', '.join(changeable)}."
    )
    if {"archive_ttl", "archive_limit"}.intersection(refused):
        msg += (
            " Its finished rows are yours, so the library never deletes them. To delete those that "
            f"finished more than {_OLD_DAYS} days ago, run: {_deletion(tables, dialect)}"
        )
    raise QueueSchemaMismatch(msg)


def check_groups(stored: StoredSettings, wanted: EffectiveSettings) -> None:
    """Refuse to turn the groups of an adopted table on or off.

    Raises:
        QueueSchemaMismatch: these settings would.
    """
    adoption = stored.adoption
    if adoption is None or wanted.grouped == (adoption.group is not None):
        return
    msg = (
        f"The groups of queue {stored.queue!r} cannot be turned on or off by group_limit: it is "
        f"the adopted table {adoption.where!r}. Drop the queue, which leaves the table, and adopt "
        "it again with or without group=."
    )
    raise QueueSchemaMismatch(msg)


def with_groups(
    name: str, group: str | None, settings: EffectiveSettings, requested: QueueSettings
) -> EffectiveSettings:
    """The settings of a new adopted queue, whose groups are named by the column ``group``.

    Raises:
        ValueError: there is such a column and no groups, or the other way round.
    """
    if group is None:
        if settings.grouped:
            msg = f"group_limit: name the column with the groups of queue {name!r} with group="
            raise ValueError(msg)
        return settings
    if requested.group_limit is None:
        msg = f"group_limit must be a number, because group={group!r} names groups"
        raise ValueError(msg)
    return settings if settings.grouped else dataclasses.replace(settings, group_limit=1)


def _deletion(tables: QueueTables, dialect: Dialect) -> str:
    old = tables.archive.c.finished_at < tables.expressions.now() - _OLD_DAYS * _DAY_US
    statement = delete(tables.archive).where(*tables.finished_only(), old)
    text = str(statement.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))
    return " ".join(text.split())


class Adopter:
    """Adopts tables for a service."""

    def __init__(self, connections: Connections, settings: ServiceSettings) -> None:
        self._connections = connections
        self._settings = settings
        # The given definitions say more than the database does.
        self._given: dict[str, Table] = {}

    def knows(self, name: str, given: GivenTable) -> bool:
        """Whether an open queue was opened with this definition, if there is one."""
        return given.definition is None or self._given.get(name) is given.definition

    def located(self, given: GivenTable) -> GivenTable:
        """The table that is meant: a point may also be part of a table's name."""
        if given.definition is not None or given.schema is None:
            return given
        whole = f"{given.schema}.{given.name}"
        there = self._connections.run(lambda c: inspect(c).has_table(whole))
        return GivenTable(whole, None, None) if there else given

    def adopt(
        self,
        name: str,
        given: GivenTable,
        prefix: str,
        fresh: EffectiveSettings,
        *,
        system: SystemTables,
        present: QueueRecord | None,
        unlogged: bool,
        group: str | None,
    ) -> EffectiveSettings:
        """Write the record of a queue and add its columns, or complete an interrupted adoption.

        ``present`` is the record as it was found. ``unlogged`` accepts a table that a crash
        empties. ``group`` is the column that names the group of a row. If nothing is missing, this
        only reads: DDL would wait for every transaction that writes to the table, and keep all
        others from writing.

        Returns:
            The settings of a new queue; for an existing queue only ``adoption`` is valid.

        Raises:
            QueueSchemaMismatch: the table cannot be adopted, or not with this name.
            DatabaseRefused: the database refuses the columns; then there is no record either.
        """
        dialect = self._connections.dialect
        found, records = self._look(given.name, given.schema, system)
        if not unlogged:
            self._connections.run(lambda c: _refuse_emptied(c, found, dialect))
        if group is not None:
            check_group_column(found, group)
        adoption = Adoption(given.name, given.schema, prefix, primary_key_of(found).name, group)
        if group is not None:
            _refuse_name_of_group(found, adoption, records)
        settings = dataclasses.replace(fresh, archive="all", adoption=adoption)
        definition = given.definition
        tables = self._define(name, adoption, found, definition, records=records, system=system)

        def complete(connection: Connection) -> bool:
            return existing_store.is_complete(connection, tables, found)

        def do(connection: Connection) -> None:
            with dialect.ddl.creating(connection, self._settings.schema):
                self._record(connection, tables, adoption, settings, definition)
                self._add_columns(connection, tables)

        if present is not None and not _is_unfinished(present):
            _check_same(present, adoption)
        if present is None or _is_unfinished(present) or not self._connections.run(complete):
            try:
                self._connections.run(Operation(do, atomic=True, creates=True))
            except DatabaseRefused:
                # Where DDL commits, the record is there, and maybe some of the columns.
                with contextlib.suppress(QueueError):
                    self._connections.run(
                        Operation(lambda c: self._undo(c, name, system), atomic=True, creates=True)
                    )
                raise
        if definition is not None:
            self._given[name] = definition
        return settings

    def tables(self, name: str, adoption: Adoption, system: SystemTables) -> QueueTables:
        """Define the tables of an adopted queue, as the database has them.

        Raises:
            QueueSchemaMismatch: the table no longer exists.
        """
        found, records = self._look(adoption.table, adoption.schema, system)
        definition = self._given.get(name)
        return self._define(name, adoption, found, definition, records=records, system=system)

    def _look(
        self, table: str, schema: str | None, system: SystemTables
    ) -> tuple[Table, list[QueueRecord]]:
        dialect, run = self._connections.dialect, self._connections.run
        found = run(lambda c: existing_store.reflect(c, table, schema, dialect))
        if flaw := run(lambda c: dialect.ddl.table_flaw(c, found)):
            msg = f"The table {found.fullname!r} cannot be used as a queue: {flaw}."
            raise QueueSchemaMismatch(msg)
        return found, run(lambda c: registry.queue_records(c, system, None))

    def _undo(self, connection: Connection, name: str, system: SystemTables) -> None:
        dialect = self._connections.dialect
        with dialect.ddl.creating(connection, self._settings.schema):
            record = registry.queue_record(connection, system, self._settings.table_prefix, name)
            if record is not None and _is_unfinished(record):
                adoption = StoredSettings.read(name, record.settings).adoption
                self.drop(connection, name, adoption, system)

    def drop(
        self, connection: Connection, name: str, adoption: Adoption | None, system: SystemTables
    ) -> None:
        """Drop the columns and indexes of a queue, then its record, if they exist."""
        if adoption is not None:
            with contextlib.suppress(QueueSchemaMismatch):
                dialect = self._connections.dialect
                found = existing_store.reflect(connection, adoption.table, adoption.schema, dialect)
                tables = self._define(name, adoption, found, None, records=[], system=system)
                # Its limits may have been changed meanwhile.
                tables = tables.bounded_by(limited=True, rated=True)
                existing_store.drop_columns(connection, tables, adoption)
        registry.remove_queue(connection, system, self._settings.table_prefix, name)

    def _define(
        self,
        name: str,
        adoption: Adoption,
        found: Table,
        definition: Table | None,
        *,
        records: Sequence[QueueRecord],
        system: SystemTables,
    ) -> QueueTables:
        return adopted_tables(
            name,
            self._settings.table_prefix,
            adoption,
            list(found.columns),
            others=_columns_of_others(adoption, records),
            given=definition,
            system=system,
            dialect=self._connections.dialect,
        )

    def _record(
        self,
        connection: Connection,
        tables: QueueTables,
        adoption: Adoption,
        settings: EffectiveSettings,
        definition: Table | None,
    ) -> None:
        """Write the record before any column, so that another process can complete the adoption."""
        system = tables.system
        self._forget_unfinished(connection, tables, adoption)
        record = registry.queue_record(connection, system, tables.prefix, tables.queue)
        if record is None:
            names = _clashes(connection, adoption, definition, tables.dialect)
            # Without a creation lock another process may have adopted it meanwhile.
            record = registry.queue_record(connection, system, tables.prefix, tables.queue)
            if record is None:
                records = registry.queue_records(connection, system, None)
                _refuse_second_queue(tables, adoption, records)
                _refuse_clashes(tables, names)
                text = settings_json(settings, {}, self._settings.retry_policies)
                if registry.add_queue(
                    connection,
                    system,
                    tables.dialect,
                    prefix=tables.prefix,
                    name=tables.queue,
                    settings=as_unfinished(text),
                    ruled=tables.has_rules,
                ):
                    return
                record = registry.queue_record(connection, system, tables.prefix, tables.queue)
        if record is not None:
            _check_same(record, adoption)

    def _forget_unfinished(
        self, connection: Connection, tables: QueueTables, wanted: Adoption
    ) -> None:
        """Remove records of this name or this table whose adoption has changed nothing.

        Nobody is at work on them, because this holds the creation lock.
        """
        system, prefix, dialect = tables.system, tables.prefix, tables.dialect
        for record in registry.queue_records(connection, system, prefix):
            with contextlib.suppress(QueueSchemaMismatch):
                stored = StoredSettings.read(record.name, record.settings)
                other, same = stored.adoption, record.name == tables.queue
                if other is None or not stored.unfinished or same == (other == wanted):
                    continue
                if not existing_store.has_added_columns(connection, other, dialect):
                    registry.remove_queue(connection, system, prefix, record.name)

    def _add_columns(self, connection: Connection, tables: QueueTables) -> None:
        system, prefix, name = tables.system, tables.prefix, tables.queue
        record = registry.queue_record(connection, system, prefix, name)
        unfinished = record is not None and _is_unfinished(record)
        if not unfinished and existing_store.is_rebuilt(connection, tables):
            raise QueueSchemaMismatch(_rebuilt(tables))
        existing_store.add_columns(connection, tables)
        if record is not None and unfinished:
            text = StoredSettings.read(name, record.settings).finished()
            registry.change_queue(connection, system, prefix, name, settings=text)


def unfinished(name: str, adoption: Adoption) -> str:
    """The error for a queue whose adoption was interrupted."""
    return (
        f"Queue {name!r} is not ready: the adoption of the table {adoption.where!r} was "
        "interrupted. Call adopt_queue (or: queue-over-sql adopt) again to complete it, or "
        "drop_queue (queue-over-sql drop) to undo it."
    )


def _refuse_emptied(connection: Connection, found: Table, dialect: QueueDialect) -> None:
    if dialect.ddl.is_emptied_by_crash(connection, found):
        msg = (
            f"The table {found.fullname!r} is UNLOGGED: a crash of the server empties it, and its "
            f"messages are lost. Nothing was changed. Run ALTER TABLE {found.fullname} SET LOGGED, "
            "or accept this with unlogged=True (queue-over-sql adopt --unlogged)."
        )
        raise QueueSchemaMismatch(msg)


def _is_unfinished(record: QueueRecord) -> bool:
    return StoredSettings.read(record.name, record.settings).unfinished


def _rebuilt(tables: QueueTables) -> str:
    # With empty columns a bare enqueue() would take the finished rows, too.
    return (
        f"The table {tables.live.fullname!r} has lost all columns of its queue {tables.queue!r}: a "
        "migration has probably rebuilt it without them. So it is not known any more which rows "
        "were finished. Nothing was changed. Restore the columns from a backup. Or drop the queue, "
        "which leaves the table, adopt the table again, and enqueue chosen rows with where=."
    )


def _adoptions(records: Sequence[QueueRecord]) -> dict[str, Adoption | None]:
    found = {}
    for record in records:
        with contextlib.suppress(QueueSchemaMismatch):
            found[record.name] = StoredSettings.read(record.name, record.settings).adoption
    return found


def _columns_of_others(adoption: Adoption, records: Sequence[QueueRecord]) -> set[str]:
    return {
        name.lower()
        for other in _adoptions(records).values()
        if other is not None and other.where == adoption.where and other != adoption
        for name in added_names(other).values()
    }


def _clashes(
    connection: Connection, adoption: Adoption, definition: Table | None, dialect: QueueDialect
) -> list[str]:
    found = existing_store.reflect(connection, adoption.table, adoption.schema, dialect)
    columns = [*found.columns, *(definition.columns if definition is not None else ())]
    return sorted(set(clashing(columns, adoption)))


def _refuse_name_of_group(found: Table, adoption: Adoption, records: Sequence[QueueRecord]) -> None:
    """Refuse a column that the queue adds, or that has the name of the group of a message."""
    ours, group = added_names(adoption), str(adoption.group)
    names = {column.name.lower() for column in found.columns}
    taken = names & {GROUP_KEY} - {ours[GROUP_KEY], *_columns_of_others(adoption, records)}
    if taken or group.lower() in ours.values():
        named = GROUP_KEY if taken else group
        msg = (
            f"The table {found.fullname!r} cannot be adopted with group={adoption.group!r}: its "
            f"column {named!r} has the name of one that the queue needs. Rename the column. "
            "Nothing was changed."
        )
        raise QueueSchemaMismatch(msg)


def _refuse_clashes(tables: QueueTables, names: list[str]) -> None:
    if names:
        msg = (
            f"The table {tables.live.fullname!r} cannot be adopted as queue {tables.queue!r}: the "
            f"queue adds columns, and the table already has: {', '.join(names)}. Use a "
            "column_prefix, such as column_prefix='queue_'. Nothing was changed."
        )
        raise QueueSchemaMismatch(msg)


def _refuse_second_queue(
    tables: QueueTables, wanted: Adoption, records: Sequence[QueueRecord]
) -> None:
    """Check the records, because another adoption may not have added its columns yet."""
    for other, adoption in _adoptions(records).items():
        if adoption is not None and adoption.columns == wanted.columns:
            msg = (
                f"The table {tables.live.fullname!r} cannot be adopted as queue {tables.queue!r}: "
                f"queue {other!r} already uses it with the same column_prefix. Use another "
                "column_prefix. Nothing was changed."
            )
            raise QueueSchemaMismatch(msg)


def _check_same(record: QueueRecord, wanted: Adoption) -> None:
    present = StoredSettings.read(record.name, record.settings).adoption
    if present == wanted:
        return
    if present is None:
        has = "is an ordinary queue"
    else:
        has = f"already uses the table {present.where!r} with {_chosen(present)}"
    msg = (
        f"Queue {record.name!r} {has}, so it cannot adopt the table {wanted.where!r} with "
        f"{_chosen(wanted)}. Use another name, or drop the queue first."
    )
    raise QueueSchemaMismatch(msg)


def _chosen(adoption: Adoption) -> str:
    group = "" if adoption.group is None else f" and group={adoption.group!r}"
    return f"column_prefix={adoption.column_prefix!r}{group}"
