"""The SQL API on PostgreSQL: functions that find the table of a queue by its name."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from sqlalchemy import Connection, text

from queue_over_sql.consumers.registrations import SQL_CLIENTS
from queue_over_sql.sql_api.installer import (
    CARRIED,
    TEXTS,
    Installed,
    InstallForm,
    InstallSite,
    Routine,
    filled,
    read_template,
)

_COUNTER = "queue_over_sql_rounds"
_INSTALLED = text(
    """
    SELECT p.proname, pg_get_function_identity_arguments(p.oid), obj_description(p.oid, 'pg_proc')
      FROM pg_proc AS p
     WHERE p.pronamespace = CAST(:schema AS regnamespace)
       AND (p.proname = ANY(:names)
            OR obj_description(p.oid, 'pg_proc') LIKE 'queue_over_sql sql-api %')
     ORDER BY p.oid
    """
)
_MAY_EXECUTE = text(
    """
    SELECT DISTINCT quote_ident(pg_get_userbyid(a.grantee))
      FROM pg_proc AS p, aclexplode(p.proacl) AS a
     WHERE p.pronamespace = CAST(:schema AS regnamespace) AND p.proname = :name
       AND a.grantee NOT IN (0, p.proowner) AND a.privilege_type = 'EXECUTE'
    """
)
_SCHEMA_OF = text(
    """
    SELECT quote_ident(n.nspname), quote_literal(n.nspname)
      FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
     WHERE c.oid = CAST(:table AS regclass)
    """
)
_MAY_USE = text("SELECT has_schema_privilege(:role, CAST(:schema AS regnamespace), 'USAGE')")


class PostgreSQLForm(InstallForm):
    """Functions, installed in one transaction; new queues need no installation."""

    # Tokens stay below 2**53, so that every language can hold them as whole numbers.
    clock = "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)"

    def __init__(self, connection: Connection, site: InstallSite) -> None:
        super().__init__(connection, site)
        parts = [self.site.schema, "queue_over_sql_queues"]
        table = ".".join(_quoted(part) for part in parts if part is not None)
        row = self.connection.execute(_SCHEMA_OF, {"table": table}).one()
        self._schema, self._schema_text = str(row[0]), str(row[1])

    def routines(self) -> list[Routine]:
        values = {
            "schema": self._schema,
            "schema_text": self._schema_text,
            "prefix": self.site.prefix,
            "rounds": f"CAST('{self._in_text(_COUNTER)}' AS regclass)",
            "carried": CARRIED,
            **TEXTS,
            "me": SQL_CLIENTS,
        }
        names = ("inner", "public")
        expand = partial(filled, values=values)
        return [each for name in names for each in read_template("postgresql", name, expand)]

    def installed(self, names: Sequence[str]) -> list[Installed]:
        values = {"schema": self._schema, "names": list(names)}
        rows = self.connection.execute(_INSTALLED, values)
        return [Installed("FUNCTION", row[0], f"({row[1]})", row[2] or "") for row in rows]

    def create(self, routine: Routine, found: Installed | None) -> None:
        """``CREATE OR REPLACE``; first drop it if parameters or results have changed."""
        allowed: Sequence[str] = ()
        if found is not None and found.shape != routine.shape:
            allowed = self._may_execute(found)
            self.drop(found)
        for statement in self._statements(routine):
            self.run(statement)
        for role in allowed:
            self.run(f"GRANT EXECUTE ON FUNCTION {self._name(routine)} TO {role}")

    def drop(self, found: Installed) -> None:
        self.run(f"DROP FUNCTION {self._name(found)}")

    def grant(self, routine: Routine, role: str) -> None:
        self.run(f"GRANT EXECUTE ON FUNCTION {self._name(routine)} TO {_quoted(role)}")

    def admit(self, role: str) -> None:
        """Executing a function also needs the right to use its schema."""
        if not self.connection.scalar(_MAY_USE, {"role": role, "schema": self._schema}):
            self.run(f"GRANT USAGE ON SCHEMA {self._schema} TO {_quoted(role)}")

    def counting_from(self, first: int) -> str:
        return f"CREATE SEQUENCE IF NOT EXISTS {self._schema}.{_COUNTER} START WITH {first}"

    def drop_counter(self) -> None:
        self.run(f"DROP SEQUENCE IF EXISTS {self._schema}.{_COUNTER}")

    def script(self, consumer: str) -> str:
        statements = [self.counter(), consumer]
        for routine in self.routines():
            statements += self._statements(routine)
        return "\n\n".join(f"{each};" for each in ["BEGIN", *statements, "COMMIT"]) + "\n"

    def _statements(self, routine: Routine) -> list[str]:
        name = self._name(routine)
        return [
            routine.text,
            f"REVOKE ALL ON FUNCTION {name} FROM PUBLIC",
            f"COMMENT ON FUNCTION {name} IS '{routine.comment(self.site.prefix)}'",
        ]

    def _may_execute(self, found: Installed) -> list[str]:
        values = {"name": found.name, "schema": self._schema}
        return [str(role) for role in self.connection.scalars(_MAY_EXECUTE, values)]

    def _name(self, routine: Routine | Installed) -> str:
        return f"{self._schema}.{routine.name}{routine.parameters}"

    def _in_text(self, name: str) -> str:
        return f"{self._schema}.{name}".replace("'", "''")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
