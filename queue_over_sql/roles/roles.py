"""Roles: print or run the statements that create the roles."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final, TypeVar

from sqlalchemy import BindParameter, Connection, bindparam, inspect, text
from sqlalchemy.exc import DBAPIError

from queue_over_sql.catalog.service_parts import ServiceParts
from queue_over_sql.errors import NotPermitted, QueueError, QueueNotFound, QueueSchemaMismatch
from queue_over_sql.migrations.changes import is_outdated
from queue_over_sql.queues import registry
from queue_over_sql.roles.grants import (
    PUBLISHER,
    ROLES,
    ROUTINES,
    SYSTEM_PREFIX,
    VIEWER,
    WEB_TABLES,
    Place,
    regrants,
    statements,
    tables_of,
)
from queue_over_sql.schema.system_tables import SystemTables
from queue_over_sql.settings import StoredSettings
from queue_over_sql.sql.errors import ErrorKind
from queue_over_sql.sql.operation import Operation
from queue_over_sql.values.options import DEFAULT_PREFIX

_log = logging.getLogger(__name__)
T = TypeVar("T")
# With the role's name it has 32 characters, the limit of MySQL.
_PREFIX = re.compile(r"[a-z][a-z0-9_]{0,21}_\Z")
_SCHEMA = text("SELECT current_schema()")
_NAMES: BindParameter[Any] = bindparam("names", tuple(ROUTINES), expanding=True)
_ROUTINES: Final = {
    "plpgsql": text(
        """
        SELECT p.proname, 'FUNCTION ' || CAST(p.oid AS regprocedure)
          FROM pg_proc AS p
         WHERE p.proname IN :names AND p.pronamespace = CAST(quote_ident(:schema) AS regnamespace)
           AND obj_description(p.oid, 'pg_proc') LIKE :mark ORDER BY p.oid
        """
    ).bindparams(_NAMES),
    "psm": text(
        """
        SELECT routine_name, CONCAT(routine_type, ' `', routine_schema, '`.', routine_name)
          FROM information_schema.routines
         WHERE routine_name IN :names AND routine_schema = COALESCE(:schema, DATABASE())
           AND routine_comment LIKE :mark ORDER BY routine_name
        """
    ).bindparams(_NAMES),
}
_HOLDERS: Final = {
    "plpgsql": text(
        """
        SELECT grantee, table_name, privilege_type FROM information_schema.table_privileges
         WHERE table_schema = COALESCE(CAST(:schema AS text), current_schema())
           AND privilege_type IN ('SELECT', 'DELETE')
        """
    ),
    "psm": text(
        """
        SELECT grantee, table_name, privilege_type FROM information_schema.table_privileges
         WHERE table_schema = COALESCE(:schema, DATABASE())
           AND privilege_type IN ('SELECT', 'DELETE')
        """
    ),
}
_GIVEN = text(
    """
    SELECT 'role ' || rolname FROM pg_roles WHERE rolname IN :roles
    UNION ALL SELECT concat_ws(' ', grantee, privilege_type, table_schema, table_name)
      FROM information_schema.table_privileges WHERE grantee IN :roles
    UNION ALL SELECT concat_ws(' ', grantee, privilege_type, table_schema, table_name, column_name)
      FROM information_schema.column_privileges AS own
     WHERE grantee IN :roles AND privilege_type IN ('UPDATE', 'SELECT')
       AND NOT EXISTS (
           SELECT 1 FROM information_schema.table_privileges AS whole
            WHERE (whole.grantee, whole.privilege_type) = (own.grantee, own.privilege_type)
              AND (whole.table_schema, whole.table_name) = (own.table_schema, own.table_name))
    UNION ALL SELECT concat_ws(' ', grantee, privilege_type, object_schema, object_name)
      FROM information_schema.usage_privileges WHERE grantee IN :roles
    UNION ALL SELECT concat_ws(' ', grantee, privilege_type, routine_schema, specific_name)
      FROM information_schema.routine_privileges WHERE grantee IN :roles
    """
).bindparams(bindparam("roles", expanding=True))


@dataclasses.dataclass(frozen=True)
class RolesInstalled:
    """The result of an installation of roles.

    Attributes:
        roles: the names of the roles.
        statements: the statements that were run.
        changes: how many roles and rights are new; 0 if nothing was missing.
    """

    roles: tuple[str, ...]
    statements: tuple[str, ...]
    changes: int


class Roles:
    """Database roles for publishers, consumers, operators and viewers.

    PostgreSQL, MySQL and MariaDB. They cover the shared tables and those of queues, except
    temporary queues and adopted tables.
    """

    def __init__(self, parts: ServiceParts, system: SystemTables | None = None) -> None:
        self._parts = parts
        self._system = system

    def statements(
        self,
        queues: Collection[str] | None = None,
        *,
        reply_queues: Collection[str] = (),
        prefix: str = DEFAULT_PREFIX,
    ) -> list[str]:
        """Return the statements that ``install`` would run.

        Args:
            queues: the queues that the roles may use; default: all existing queues whose tables
                need no upgrade.
            reply_queues: the queues of ``QueueService(reply_queue=…)``, in addition to ``queues``:
                publishers consume replies from them, and consumers publish replies to them.
            prefix: prefix of the names of the roles.

        Raises:
            QueueNotFound: one of the queues does not exist.
            QueueSchemaMismatch: one of the queues is an adopted table, or its tables need an
                upgrade.
            UnsupportedByEngine: this engine has no such roles.
            ValueError: the prefix is not valid.
        """
        prefix = check_prefix(prefix)
        return self._run(lambda c: statements(self._place(c, queues, reply_queues), prefix))

    def install(
        self,
        queues: Collection[str] | None = None,
        *,
        reply_queues: Collection[str] = (),
        prefix: str = DEFAULT_PREFIX,
    ) -> RolesInstalled:
        """Create the roles and grant them their rights; safe to repeat.

        Run it again after you create a queue, give one a ``dedup_window``, groups or limits, or
        make the first token. It never revokes a right.

        Args:
            queues: the queues that the roles may use; default: all existing queues.
            reply_queues: as for ``statements``.
            prefix: prefix of the names of the roles.

        Raises:
            QueueNotFound, QueueSchemaMismatch, UnsupportedByEngine, ValueError: as for
                ``statements``.
            NotPermitted: this login may not create the roles, which do not exist yet, or not grant
                rights. The error has the statements for an administrator.
        """
        names = tuple(check_prefix(prefix) + role for role in ROLES)

        def do(connection: Connection) -> RolesInstalled:
            wanted = statements(self._place(connection, queues, reply_queues), prefix)
            before = self._given(connection, names)
            self._create_and_grant(connection, names, wanted)
            changes = len(self._given(connection, names) - before)
            return RolesInstalled(names, tuple(wanted), changes)

        return self._run(do)

    def _keep(self) -> None:
        """Grant the installed roles their rights on what an upgrade has added.

        It never raises: the upgrade is done. If this login may not grant, the log says what to run.
        """
        dialect, prefixes = self._parts.connections.dialect, list[str]()
        if dialect.features.routines not in _HOLDERS:
            return

        def do(connection: Connection) -> None:
            options = {"no_parameters": True}
            with dialect.ddl.creating(connection, self._parts.settings.schema):
                for prefix, queues, replies in self._installed(connection):
                    prefixes.append(prefix)
                    place = self._place(connection, queues, replies)
                    for statement in regrants(place, prefix):
                        connection.exec_driver_sql(statement, execution_options=options).close()

        try:
            self._parts.connections.run(Operation(do, atomic=True))
        except QueueError as error:
            if prefixes:
                _log.warning(
                    "The upgrade could not grant the roles their rights on what it added, so "
                    "logins may lack a right. As the owner of the tables run: queue-over-sql roles "
                    "install --prefix %s (with the --queue and --reply-queue of the first time). "
                    "%s",
                    prefixes[-1],
                    error,
                )
            else:
                _log.debug("The roles could not be looked up: %s", error)
        else:
            for prefix in dict.fromkeys(prefixes):
                _log.info("The roles %s… have their rights on what the upgrade added.", prefix)

    def _installed(self, connection: Connection) -> Iterator[tuple[str, list[str], list[str]]]:
        """The prefixes of the installed roles, each with its queues and those of replies."""
        settings, dialect = self._parts.settings, self._parts.connections.dialect
        values = {"schema": settings.schema}
        given = {
            (_name_of(row[0]), _plain(row[1]), _plain(row[2]))
            for row in connection.execute(_HOLDERS[str(dialect.features.routines)], values)
        }
        shared = f"{SYSTEM_PREFIX}queues"
        readers = {name for name, table, right in given if (table, right) == (shared, "SELECT")}
        prefixes = {name.removesuffix(VIEWER) for name in readers if name.endswith(VIEWER)}
        own = self._upgraded(connection) if prefixes else []
        for prefix in sorted(prefixes):
            if not (_PREFIX.match(prefix) and readers >= {prefix + role for role in ROLES}):
                continue
            of = {name: settings.table_prefix + name for name in own}
            chosen = [q for q in own if (prefix + VIEWER, of[q], "SELECT") in given]
            replies = [q for q in own if (prefix + PUBLISHER, of[q], "DELETE") in given]
            yield prefix, [q for q in chosen if q not in replies], replies

    def _upgraded(self, connection: Connection) -> list[str]:
        """The queues whose tables have all columns; others follow after their own upgrade."""
        own, old = self._chosen(connection, None), set[str]()
        prefix = self._parts.settings.table_prefix
        for record in registry.queue_records(connection, self._tables(), prefix):
            try:
                outdated = is_outdated(record)
            except QueueError:
                outdated = True
            if outdated:
                old.add(record.name)
        return [name for name in own if name not in old]

    def _tables(self) -> SystemTables:
        return self._parts.system() if self._system is None else self._system

    def _create_and_grant(
        self, connection: Connection, names: Sequence[str], wanted: Sequence[str]
    ) -> None:
        dialect, options = self._parts.connections.dialect, {"no_parameters": True}
        refused = False
        for place, statement in enumerate(wanted):
            creates = place < len(names)
            try:
                connection.exec_driver_sql(statement, execution_options=options).close()
            except DBAPIError as error:
                refused |= creates and dialect.errors.classify(error) is ErrorKind.FORBIDDEN
                if not refused:
                    raise
                # MySQL and MariaDB refuse this even for a role that exists.
                if creates and not dialect.features.aborts_on_error:
                    continue
                raise NotPermitted(_for_an_administrator(names)) from error

    def _run(self, do: Callable[[Connection], T]) -> T:
        self._parts.check_open()
        self._parts.system()
        return self._parts.connections.run(Operation(do, atomic=True))

    def _place(
        self, connection: Connection, queues: Collection[str] | None, reply_queues: Collection[str]
    ) -> Place:
        settings, routines = self._parts.settings, self._parts.connections.dialect.features.routines
        if routines not in _ROUTINES:
            return Place(routines, settings.schema, ())
        prefix = settings.table_prefix
        if queues is None:
            chosen = self._upgraded(connection)
            if left := sorted({*self._chosen(connection, None)}.difference(chosen)):
                _log.warning(
                    "The roles do not cover these queues yet, because an earlier release made "
                    "their tables: %s. Run queue-over-sql migrate, then roles install again.",
                    ", ".join(left),
                )
        else:
            chosen = self._chosen(connection, queues)
        answering = self._chosen(connection, reply_queues)
        found = inspect(connection)
        every = list(dict.fromkeys([*chosen, *answering]))
        remembering, grouped, limited = (
            [name for name in every if found.has_table(prefix + name + end, schema=settings.schema)]
            for end in ("_dedup_keys", "_groups", "_limits")
        )
        records = registry.queue_records(connection, self._tables(), prefix)
        for record in records:
            if record.name in every and is_outdated(record):
                msg = (
                    f"An earlier release made the tables of queue {record.name!r}, so they lack "
                    "columns that the roles need. Run queue-over-sql migrate first."
                )
                raise QueueSchemaMismatch(msg)
        waiting = [
            record.name
            for record in records
            if record.name in chosen
            and StoredSettings.read(record.name, record.settings).data.get("unique") == "waiting"
        ]
        web = [t for t in WEB_TABLES if found.has_table(SYSTEM_PREFIX + t, schema=settings.schema)]
        schema = settings.schema
        if schema is None and routines == "plpgsql":
            schema = connection.execute(_SCHEMA).scalar_one()
        values = {"schema": schema, "mark": f"queue_over_sql sql-api {prefix} %"}
        callables = connection.execute(_ROUTINES[routines], values).all()
        return Place(
            routines,
            schema,
            tables_of(
                prefix,
                chosen,
                answering,
                remembering,
                web,
                grouped=grouped,
                limited=limited,
                waiting=waiting,
            ),
            [(str(row[0]), str(row[1])) for row in callables],
        )

    def _chosen(self, connection: Connection, queues: Collection[str] | None) -> list[str]:
        system, prefix = self._tables(), self._parts.settings.table_prefix
        records = registry.queue_records(connection, system, prefix)
        there = {record.name: record for record in records if record.owner is None}
        own = []
        for name in there if queues is None else queues:
            if name not in there:
                raise QueueNotFound(name)
            try:
                adopted = StoredSettings.read(name, there[name].settings).adoption is not None
            except QueueSchemaMismatch:
                adopted = True
            if not adopted:
                own.append(name)
            elif queues is not None:
                msg = (
                    f"Queue {name!r} is an adopted table, or cannot be read, so the roles do not "
                    "cover it: grant rights on that table yourself."
                )
                raise QueueSchemaMismatch(msg)
        return own

    def _given(self, connection: Connection, roles: Sequence[str]) -> set[str]:
        if self._parts.connections.dialect.features.routines == "plpgsql":
            return set(connection.scalars(_GIVEN, {"roles": list(roles)}))
        given: set[str] = set()
        for role in roles:
            try:
                rows = connection.exec_driver_sql(f"SHOW GRANTS FOR {role}").scalars().all()
            except DBAPIError:
                # It does not exist, or this login may not see it.
                continue
            given |= {right for row in rows for right in _single_rights(str(row))}
        return given


def keep_rights(parts: ServiceParts, system: SystemTables) -> None:
    """Grant installed roles their rights on what an upgrade has added; never raises."""
    Roles(parts, system)._keep()  # noqa: SLF001 - not a verb of users


def _plain(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _name_of(grantee: Any) -> str:
    # MySQL and MariaDB write 'name'@'host'.
    return _plain(grantee).partition("'@'")[0].strip("'")


def _for_an_administrator(names: Sequence[str]) -> str:
    script = " ".join(f"CREATE ROLE {name};" for name in names)
    return (
        "This login may not create roles, so no right was granted. Let an administrator of the "
        f"database run this once: {script} Then run roles install again. On MySQL and MariaDB this "
        "login also needs the right to grant: GRANT ALL ON its database … WITH GRANT OPTION."
    )


def _single_rights(grants: str) -> list[str]:
    # A row of SHOW GRANTS has all rights on a table; make one text for each right.
    rights, _, rest = grants.removeprefix("GRANT ").partition(" ON ")
    return [f"{right} {rest}" for right in re.split(r", (?![^(]*\))", rights)]


def check_prefix(prefix: object) -> str:
    """Check a prefix of roles.

    Raises:
        ValueError: it is not valid.
    """
    if not isinstance(prefix, str) or not _PREFIX.match(prefix):
        msg = (
            "prefix must be up to 23 lower-case letters, digits and underscores, begin with a "
            f"letter and end with an underscore, not {prefix!r}"
        )
        raise ValueError(msg)
    return prefix


def rights_for(
    routines: str | None,
    *,
    schema: str | None,
    table_prefix: str,
    queues: Sequence[str],
    reply_queues: Sequence[str],
    prefix: str,
) -> list[str]:
    """As ``Roles.statements``, without a database.

    It leaves out the tables of a ``dedup_window`` and of the dashboard, which may not exist.

    Raises:
        UnsupportedByEngine, ValueError: as ``Roles.statements``.
    """
    place = Place(routines, schema, tables_of(table_prefix, queues, reply_queues))
    return statements(place, check_prefix(prefix))
