"""Upgrade tables while others use them, or list what they lack."""

from __future__ import annotations

import logging
import random
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy.exc import DBAPIError

from queue_over_sql.errors import DatabaseRefused, QueueError, QueueSchemaMismatch, SchemaOutdated
from queue_over_sql.migrations.changes import (
    SchemaChange,
    change_of_queue,
    changes_of_system,
    is_outdated,
    lacking_columns,
    tables_with_new_indexes,
)
from queue_over_sql.queues import registry
from queue_over_sql.queues import tables as ddl
from queue_over_sql.queues.registry import version_of
from queue_over_sql.schema.queue_tables import COLUMNS_OF_GROUPS, SCHEMA_VERSION
from queue_over_sql.schema.system_tables import SystemTables, system_tables
from queue_over_sql.settings import StoredSettings
from queue_over_sql.sql.errors import ErrorKind
from queue_over_sql.sql.operation import Operation
from queue_over_sql.values.durations import duration_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from queue_over_sql.database.connections import Connections
    from queue_over_sql.queues.registry import QueueRecord
    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.settings import ServiceSettings


_log = logging.getLogger(__name__)
T = TypeVar("T")

# How long a table may stay in use before an upgrade gives up: when a service starts or an operator
# waits, and when a queue is opened.
_TIMEOUT: Final = 60.0
_TIMEOUT_AT_OPENING: Final = 10.0
# How long all others can use the table between two tries.
_BETWEEN_TRIES: Final = (0.05, 0.5)

_ALONE: Final = "This engine can lose the database when a table is altered while others work in it."


class _InUse(QueueError):
    """Others used the table for longer than an ALTER may wait, or the database at all."""

    def __init__(
        self,
        why: str = "transactions used its tables",
        advice: str = "Let long transactions end, and try again.",
    ) -> None:
        super().__init__(why)
        self.why, self.advice = why, advice


class Upgrader:
    """Checks the versions of a service's tables, and upgrades or refuses them."""

    def __init__(
        self,
        connections: Connections,
        settings: ServiceSettings,
        upgraded: Callable[[SystemTables], object],
    ) -> None:
        self._connections = connections
        self._settings = settings
        # Told after tables were added or altered.
        self._upgraded = upgraded

    def is_outdated(self, record: QueueRecord) -> bool:
        """Whether a queue must be upgraded before it is used.

        Raises:
            SchemaTooNew: this release cannot use it.
            QueueSchemaMismatch: its record has no valid version.
        """
        return is_outdated(record)

    def prepare_system(self, system: SystemTables) -> None:
        """Create the shared tables, or add their newer columns, where they are missing.

        If nothing is missing, this needs no right to create tables and sends no further statement.

        Raises:
            SchemaTooNew: something is missing, and a newer release created the other tables.
            SchemaOutdated: something is missing, and this service may not change tables.
        """
        dialect = self._connections.dialect
        if self._run(lambda c: ddl.incomplete(c, system.all, dialect)):
            self._complete(system)

    def start(self, system: SystemTables) -> None:
        """Upgrade all queues of the service that need it.

        Raises:
            SchemaTooNew: this release cannot use the version of one.
            SchemaOutdated: one needs it, and this service may not or cannot change tables.
            DatabaseUnavailable: the tables of one stayed in use.
        """
        prefix = self._settings.table_prefix
        records = self._run(lambda c: registry.queue_records(c, system, prefix))
        outdated = [record for record in records if _is_usable(record) and is_outdated(record)]
        if outdated and not self._settings.auto_migrate:
            self._refuse()
            return
        done = False
        for record in outdated:
            try:
                done |= self._upgrade(system, record.name, _TIMEOUT)
            except QueueSchemaMismatch as error:
                # As with a missing table, this must not stop the work on the others.
                _log.warning("Queue %s cannot be upgraded: %s", record.name, error)
        if done:
            self._upgraded(system)

    def upgrade(self, system: SystemTables, record: QueueRecord, *, wait: bool = True) -> None:
        """Upgrade one queue that is being opened; without ``wait`` try only once.

        Raises:
            SchemaOutdated, DatabaseUnavailable: as in ``start``.
            QueueSchemaMismatch: one of its tables no longer exists.
        """
        if not self._settings.auto_migrate:
            self._refuse()
            return
        if self._upgrade(system, record.name, _TIMEOUT_AT_OPENING if wait else 0.0):
            self._upgraded(system)

    def pending(self) -> list[SchemaChange]:
        """The pending changes, in order; it changes nothing."""
        dialect, prefix = self._connections.dialect, self._settings.table_prefix
        system = system_tables(dialect.expressions, self._settings.schema)

        def look(connection: Connection) -> list[SchemaChange]:
            changes = changes_of_system(connection, system, dialect)
            records = self._records(connection, system, prefix)
            outdated = [one for one in records if _is_usable(one) and is_outdated(one)]
            for record in outdated:
                changes += self._changes_of(connection, system, record)
            return changes

        return self._run(look)

    def apply(self) -> list[SchemaChange]:
        """Make the pending changes, even with ``auto_migrate=False``; returns them.

        Raises:
            SchemaTooNew, SchemaOutdated, DatabaseUnavailable: as in ``start``.
        """
        done = self.pending()
        system = system_tables(self._connections.dialect.expressions, self._settings.schema)
        if any(change.queue is None for change in done):
            self._complete(system, requested=True)
        queues = [change.queue for change in done if change.queue is not None]
        if sum(self._upgrade(system, queue, _TIMEOUT) for queue in queues):
            self._upgraded(system)
        return done

    def add_groups(
        self,
        system: SystemTables,
        tables: QueueTables,
        record: Callable[[Connection], object],
    ) -> bool:
        """Add what groups need to the tables of a queue, and record it; ``tables`` have groups.

        Returns:
            Whether this did it; otherwise another process was quicker.

        Raises:
            DatabaseUnavailable: the tables stayed in use, or on H2 others were connected.
            DatabaseRefused: this login may not alter the tables.
        """

        def lacks(connection: Connection) -> bool:
            found = registry.queue_record(connection, system, tables.prefix, tables.queue)
            if found is None:
                return False
            return not StoredSettings.read(found.name, found.settings).grouped

        alters = partial(self._alters_for_groups, tables=tables)

        def do(connection: Connection) -> bool:
            dialect = self._connections.dialect
            with dialect.ddl.creating(connection, self._settings.schema):
                if not lacks(connection):
                    return False
                if alters(connection):
                    self._alter_for_groups(connection, tables)
                ddl.create_tables(connection, tables.only_with_rules, dialect)
                record(connection)
                return True

        what = f"queue {tables.queue!r}"
        done = self._until_timeout(what, _TIMEOUT, do, lacks, done="changed", alters=alters)
        if done:
            self._upgraded(system)
        return bool(done)

    def _alters_for_groups(self, connection: Connection, tables: QueueTables) -> bool:
        # A queue that had groups before has kept all that they need.
        dialect = self._connections.dialect
        if ddl.incomplete(connection, [tables.live, tables.archive], dialect):
            return True
        names = {str(index.name) for index in tables.live.indexes}
        return not names <= dialect.ddl.index_names(connection, tables.live)

    def _alter_for_groups(self, connection: Connection, tables: QueueTables) -> None:
        dialect = self._connections.dialect
        for table in (tables.live, tables.archive):
            lacking = ddl.missing(connection, table, dialect)
            for column in [each for each in lacking if each.name in COLUMNS_OF_GROUPS]:
                self._add(connection, column)
        with dialect.ddl.waiting_briefly(connection):
            _check_alone(self._others(connection))
            ddl.create_indexes(connection, tables.live, dialect)

    # -- the shared tables

    def _complete(self, system: SystemTables, *, requested: bool = False) -> None:
        for record in self._run(lambda c: self._records(c, system, None)):
            if _is_usable(record):
                version_of(record)
        if not (requested or self._settings.auto_migrate):
            self._refuse()
        dialect = self._connections.dialect
        absent = self._run(lambda c: [t for t in system.all if not ddl.has_table(c, t)])
        if absent:
            try:
                self._connections.run(ddl.ensure_tables.of(absent, dialect))
            except DatabaseRefused as error:
                if system.queues in absent:
                    # There are no tables of any release.
                    raise
                raise self._unable("the shared tables", error) from error

        def lacks(connection: Connection) -> bool:
            return bool(ddl.incomplete(connection, system.all, dialect))

        if self._run(lacks):
            do = partial(self._add_missing, system=system)
            self._until_timeout("the shared tables", _TIMEOUT, do, lacks)
        if system.queues not in absent:
            self._upgraded(system)

    def _add_missing(self, connection: Connection, system: SystemTables) -> None:
        dialect = self._connections.dialect
        with dialect.ddl.creating(connection, self._settings.schema):
            # Look again under the lock, because its former holder may have done everything.
            for table in system.all:
                for column in ddl.missing(connection, table, dialect):
                    self._add(connection, column)

    def _records(
        self, connection: Connection, system: SystemTables, prefix: str | None
    ) -> list[QueueRecord]:
        if not ddl.has_table(connection, system.queues):
            return []
        lacking = ddl.missing(connection, system.queues, self._connections.dialect)
        names = {column.name for column in lacking}
        return registry.queue_records(connection, system, prefix, lacking=names)

    # -- the tables of a queue

    def _upgrade(self, system: SystemTables, name: str, timeout: float) -> bool:
        def do(connection: Connection) -> bool:
            return self._upgrade_locked(connection, system, name, brief=not timeout)

        def lacks(connection: Connection) -> bool:
            prefix = self._settings.table_prefix
            record = registry.queue_record(connection, system, prefix, name)
            return record is not None and is_outdated(record)

        done = bool(self._until_timeout(f"queue {name!r}", timeout, do, lacks))
        if done:
            _log.info("Upgraded queue %s to schema version %d.", name, SCHEMA_VERSION)
        return done

    def _upgrade_locked(
        self, connection: Connection, system: SystemTables, name: str, *, brief: bool
    ) -> bool:
        dialect, prefix = self._connections.dialect, self._settings.table_prefix
        schema = self._settings.schema
        with dialect.ddl.creating(connection, schema, brief=brief):
            # Another process may have upgraded or dropped it meanwhile, or was killed halfway.
            record = registry.queue_record(connection, system, prefix, name)
            if record is None or not is_outdated(record):
                return False
            for column in lacking_columns(connection, record, prefix, schema, dialect):
                self._add(connection, column)
            for table in tables_with_new_indexes(record, prefix, schema, dialect):
                with dialect.ddl.waiting_briefly(connection):
                    _check_alone(self._others(connection))
                    ddl.create_indexes(connection, table, dialect)
            connection.execute(registry.record_upgrade(system, prefix, name))
            return True

    def _add(self, connection: Connection, column: Any) -> None:
        dialect = self._connections.dialect
        with dialect.ddl.waiting_briefly(connection):
            # Again: now nobody else can come.
            _check_alone(self._others(connection))
            ddl.add_column_in_use(connection, column, dialect)

    def _others(self, connection: Connection) -> int | None:
        dialect = self._connections.dialect
        return dialect.ddl.count_others(connection) if dialect.features.alters_alone else 0

    def _rest(self, took: float) -> None:
        self._leave()
        rest = random.uniform(*_BETWEEN_TRIES)  # noqa: S311 - spreads them, guards nothing
        if self._connections.dialect.features.alters_alone:
            # However slow the machine is, several who wait to be alone seldom look at once.
            rest += random.uniform(0.0, 8 * took)  # noqa: S311 - likewise
        self._connections.runtime.sleep(rest)

    def _leave(self) -> None:
        # Idle connections of this service are others to those who wait to be alone.
        if self._connections.dialect.features.alters_alone:
            self._connections.leave()

    def _until_timeout(
        self,
        what: str,
        timeout: float,
        do: Callable[[Connection], T],
        lacks: Callable[[Connection], bool],
        *,
        done: str = "upgraded",
        alters: Callable[[Connection], bool] = lambda _: True,
    ) -> T | None:
        deadline = time.monotonic() + timeout
        self._leave()
        while True:
            began = time.monotonic()
            try:
                others = self._run(self._others)
                if others != 0 and self._run(alters):
                    # One of them may have done it, and be at work now.
                    if not self._run(lacks):
                        return None
                    _check_alone(others)
                changing = Operation(lambda c: self._or_in_use(c, do), atomic=True)
                return self._connections.run(changing)
            except _InUse as busy:
                if time.monotonic() > deadline:
                    lasted = f" for {duration_text(timeout)}" if timeout else ""
                    msg = (
                        f"Not {done}: {what} of {self._connections.where}, because {busy.why}"
                        f"{lasted}. Workers continue as before. {busy.advice}"
                    )
                    raise ddl.TablesInUse(msg) from busy.__cause__
            except DatabaseRefused as error:
                raise self._unable(what, error) from error
            self._rest(time.monotonic() - began)

    def _or_in_use(self, connection: Connection, do: Callable[[Connection], T]) -> T:
        try:
            return do(connection)
        except DBAPIError as error:
            # An immediate retry would keep everybody else from the table.
            if self._connections.dialect.errors.classify(error) is ErrorKind.TRANSIENT:
                raise _InUse from error
            raise

    # -- refusals

    def _refuse(self) -> None:
        # Another process may have done it meanwhile.
        if changes := self.pending():
            why = "The tables are from an earlier release, and this service has auto_migrate=False."
            raise _outdated(why, changes)

    def _changes_of(
        self, connection: Connection, system: SystemTables, record: QueueRecord
    ) -> list[SchemaChange]:
        dialect, prefix = self._connections.dialect, self._settings.table_prefix
        try:
            columns = lacking_columns(connection, record, prefix, self._settings.schema, dialect)
        except QueueSchemaMismatch as error:
            _log.warning("Queue %s cannot be upgraded: %s", record.name, error)
            return []
        change = change_of_queue(
            connection, record, columns, system=system, prefix=prefix, dialect=dialect
        )
        return [change]

    def _unable(self, what: str, error: DatabaseRefused) -> QueueError:
        try:
            changes = self.pending()
        except QueueError:
            return error
        if not changes:
            return error
        return _outdated(f"Not upgraded: {what}. {error}", changes)

    def _run(self, do: Callable[[Connection], T]) -> T:
        return self._connections.run(do)


def _check_alone(others: int | None) -> None:
    if others is None:
        raise DatabaseRefused(
            f"{_ALONE} Only an administrator can see whether others are connected: upgrade with "
            "an administrator's login."
        )
    if others:
        one = "another connection to the database was open"
        raise _InUse(
            one if others == 1 else f"{others} other connections to the database were open",
            f"{_ALONE} First stop the other processes that use the database. Then try again.",
        )


def _outdated(why: str, changes: list[SchemaChange]) -> SchemaOutdated:
    statements = [statement for change in changes for statement in change.statements]
    return SchemaOutdated(why, [change.summary for change in changes], statements)


def _is_usable(record: QueueRecord) -> bool:
    # An invalid version raises an error when the queue is opened.
    try:
        version_of(record)
    except QueueSchemaMismatch:
        return False
    return True


class Migrations:
    """Upgrades the tables of a service's queues; ``service.migrations``."""

    def __init__(self, upgrader: Upgrader, check_open: Callable[[], None]) -> None:
        self._upgrader = upgrader
        self._check_open = check_open

    def pending(self) -> list[SchemaChange]:
        """List the changes that this release needs, without making them.

        They include all queues with the service's table prefix.

        Returns:
            The changes in the order in which to make them; an empty list if the tables are up to
            date.

        Raises:
            SchemaTooNew: a newer release created the tables of a queue.
            DatabaseUnavailable: the database cannot be reached.
        """
        self._check_open()
        return self._upgrader.pending()

    def apply(self) -> list[SchemaChange]:
        """Make the changes; safe to repeat, while workers run, and from several processes at once.

        On H2 it waits until no other connection to the database is open. A service does this when
        it starts or opens a queue, unless it has ``auto_migrate=False``. This method works in both
        cases.

        Returns:
            The changes; another process may have made some of them at the same time.

        Raises:
            SchemaTooNew: as in ``pending``; nothing was changed.
            SchemaOutdated: this login may not alter the tables.
            DatabaseUnavailable: other transactions used a table for a minute, or others were
                connected to H2.
        """
        self._check_open()
        return self._upgrader.apply()
