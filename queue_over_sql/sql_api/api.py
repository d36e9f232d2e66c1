"""Install, uninstall and print the SQL API."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from sqlalchemy import Connection

from queue_over_sql.catalog.service_parts import ServiceParts
from queue_over_sql.consumers import registrations
from queue_over_sql.errors import QueueSchemaMismatch, UnsupportedByEngine
from queue_over_sql.queue import core_of
from queue_over_sql.queues import registry
from queue_over_sql.settings import StoredSettings
from queue_over_sql.sql.operation import Operation
from queue_over_sql.sql_api.installer import InstallForm, InstallSite, QueueShape
from queue_over_sql.sql_api.mysql import MySQLForm
from queue_over_sql.sql_api.postgresql import PostgreSQLForm
from queue_over_sql.values.options import GROUP_KEY

_log = logging.getLogger(__name__)
_FORMS: Final[dict[str | None, type[InstallForm]]] = {"plpgsql": PostgreSQLForm, "psm": MySQLForm}
_CONSUMER: Final = {
    "consumer_id": registrations.SQL_CLIENTS,
    "name": registrations.SQL_CLIENTS,
    "host": "any SQL client",
    "pid": 0,
}
T = TypeVar("T")


class SqlApi:
    """Database functions and procedures with which any SQL client can use the queues.

    PostgreSQL, MySQL and MariaDB. A schema can hold the API for one table prefix.
    """

    def __init__(self, parts: ServiceParts) -> None:
        self._parts = parts

    def install(self, roles: Sequence[str] = ()) -> None:
        """Install it, or upgrade it; safe to repeat, and to call from several servers at once.

        On MySQL and MariaDB it serves the existing queues: install it again after you create or
        drop a queue.

        Args:
            roles: the database roles or users that may execute it; they need no other right. On
                MySQL and MariaDB name a user with its host, as in ``app@%``.

        Raises:
            UnsupportedByEngine: this engine has no suitable stored routines, or does not allow
                them.
            QueueError: the names are taken by other routines or for another table prefix, or a role
                does not exist.
            DatabaseRefused: the login lacks a right.
        """

        def do(connection: Connection, form: InstallForm) -> None:
            system = self._parts.system()
            registrations.register_for_good(connection, system, form.site.dialect, _CONSUMER)
            form.install(roles)

        self._run(do)

    def uninstall(self) -> bool:
        """Remove it, and release the messages of SQL clients; False if it was not installed."""

        def dropped(connection: Connection, form: InstallForm) -> tuple[bool, bool]:
            del connection
            return form.uninstall(), form.serves_others()

        there, others = self._run(dropped)
        if others:
            return there
        # No client can claim any more, so this releases all their messages.
        for queue in self._parts.catalog.all():
            count = core_of(queue).release_all(registrations.SQL_CLIENTS)
            if count:
                _log.info("Released %d messages of SQL clients in %s.", count, queue.name)

        def forgotten(connection: Connection, form: InstallForm) -> None:
            form.drop_counter()
            registrations.remove(connection, self._parts.system(), registrations.SQL_CLIENTS)

        self._run(forgotten)
        return there

    def script(self) -> str:
        """Return the statements that ``install`` would run, as a script for psql or mysql.

        Raises:
            UnsupportedByEngine: as in ``install``.
        """

        def do(connection: Connection, form: InstallForm) -> str:
            system, dialect = self._parts.system(), form.site.dialect
            consumer = registrations.registration_for_good(
                connection, system, dialect.expressions, _CONSUMER
            )
            return form.script(consumer)

        return self._run(do)

    def _run(self, do: Callable[[Connection, InstallForm], T]) -> T:
        self._parts.check_open()
        connections = self._parts.connections
        dialect = connections.dialect
        form = _FORMS.get(dialect.features.routines)
        if form is None:
            msg = (
                f"{connections.where} does not support the SQL API, which is available on "
                "PostgreSQL, MySQL and MariaDB. Use the library or the command line."
            )
            raise UnsupportedByEngine(msg)
        # Create missing tables before the lock is taken.
        self._parts.system()

        def locked(connection: Connection) -> T:
            with dialect.ddl.creating(connection, self._parts.settings.schema):
                return do(connection, form(connection, self._site(connection)))

        return connections.run(Operation(locked, atomic=True))

    def _site(self, connection: Connection) -> InstallSite:
        settings, dialect = self._parts.settings, self._parts.connections.dialect
        records = registry.queue_records(connection, self._parts.system(), settings.table_prefix)
        queues = []
        for record in records:
            try:
                stored = StoredSettings.read(record.name, record.settings)
            except QueueSchemaMismatch as error:
                _log.warning("The SQL API does not serve queue %s: %s", record.name, error)
                continue
            if record.owner is None and stored.adoption is None:
                grouped = stored.grouped
                columns = (*stored.columns, *([GROUP_KEY] if grouped else ()))
                payload = stored.data["payload"]
                queues.append(QueueShape(record.name, payload, columns, grouped))
        return InstallSite(dialect, settings.schema, settings.table_prefix, queues)
