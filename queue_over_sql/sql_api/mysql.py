"""The SQL API on MySQL and MariaDB: functions per queue, and procedures that choose among them.

A stored function cannot run dynamic SQL, so each queue has its own functions, and a new queue needs
another installation. ``templates/mysql/queue.sql`` says why functions are needed.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator, Sequence
from functools import partial

from sqlalchemy import bindparam, text
from sqlalchemy.exc import DBAPIError

from queue_over_sql.consumers.registrations import SQL_CLIENTS
from queue_over_sql.errors import QueueError, UnsupportedByEngine
from queue_over_sql.sql_api.installer import (
    CARRIED,
    TEXTS,
    Installed,
    InstallForm,
    QueueShape,
    Routine,
    filled,
    read_template,
)
from queue_over_sql.values.options import GROUP_KEY
from queue_over_sql.values.reasons import CONSUMER_DIED

_log = logging.getLogger(__name__)
_COUNTER = "queue_over_sql_rounds"
_EACH = re.compile(r"<each>(.*?)</each>", re.DOTALL)
_SETTING = re.compile(r"<setting ([\w.]+)>")
_ROUTINE = re.compile(r"<routine (\w+)>")
# Stored with each routine: strict mode, and the standard meaning of quotes and bars.
_SQL_MODE = "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION"
# The server requires a declaration that a replica may repeat the function.
_WANTS_TRUST = {1418, 1419}
_NEEDS_TRUST = (
    "The server writes a binary log, so it does not allow functions that change data. An "
    "administrator can allow them: SET GLOBAL log_bin_trust_function_creators = 1"
)
_LOG_NAMES = ("log_bin", "log_bin_trust_function_creators")
_LOG_SETTINGS = text("SHOW GLOBAL VARIABLES WHERE variable_name IN :names").bindparams(
    bindparam("names", _LOG_NAMES, expanding=True)
)
# MariaDB's error, and MySQL's, which is about creating a user.
_NO_SUCH_ACCOUNT = {1133, 1410}
_INSTALLED = text(
    """
    SELECT routine_type, routine_name, routine_comment FROM information_schema.routines
     WHERE routine_schema = COALESCE(:schema, DATABASE())
       AND (routine_comment LIKE 'queue_over_sql sql-api %' OR routine_name IN :names)
    """
).bindparams(bindparam("names", expanding=True))
_MAY_EXECUTE = text(
    """
    SELECT user, host FROM mysql.procs_priv
     WHERE db = COALESCE(:schema, DATABASE()) AND routine_name = :name AND routine_type = :kind
       AND FIND_IN_SET('Execute', proc_priv)
    """
)
# By payload type: its SQL type, how to read it, its error text, and how to show it.
_CONTENT = {
    "json": ("LONGTEXT <text>", "_payload", "NOT JSON_VALID(_content)", "m.payload"),
    "text": ("LONGTEXT <text>", "_payload", "FALSE", "m.payload"),
    "bytes": (
        "LONGBLOB",
        "FROM_BASE64(_payload)",
        "FALSE",
        "REPLACE(TO_BASE64(m.payload), '\\n', '')",
    ),
}
# MariaDB may report a deadlock as 1020.
_DEADLOCKS = """DECLARE CONTINUE HANDLER FOR 1213, 1020
  BEGIN
    SET _tries = _tries + 1;
    -- 1020 leaves a transaction open.
    IF _alone THEN
      ROLLBACK;
    END IF;
    IF NOT _alone OR _tries > 20 THEN
      RESIGNAL;
    END IF;
    SET _again = TRUE;
  END;"""
_ELEMENT = "JSON_EXTRACT(_array, _path)"


class MySQLForm(InstallForm):
    """Functions and procedures; each statement that changes them commits by itself."""

    clock = "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"

    def routines(self) -> list[Routine]:
        """The public routines come last, after the routines that they call."""
        shared = partial(filled, values=self._values())
        made = read_template("mysql", "inner", lambda text: shared(_with_settings(text)))
        for queue in self.site.queues:
            made += read_template("mysql", "queue", lambda text: shared(self._of(queue, text)))  # noqa: B023 - runs at once
        made += read_template(
            "mysql", "dispatch", lambda text: shared(self._choices(_with_settings(text)))
        )
        return made + read_template("mysql", "public", shared)

    def installed(self, names: Sequence[str]) -> list[Installed]:
        values = {"schema": self.site.schema, "names": tuple(names) or ("",)}
        rows = self.connection.execute(_INSTALLED, values)
        return [Installed(str(row[0]), str(row[1]), "", str(row[2])) for row in rows]

    def install(self, roles: Sequence[str]) -> None:
        """As ``InstallForm.install``, in the SQL mode that the routines need."""
        with self._mode():
            super().install(roles)

    def check_allowed(self) -> None:
        """Each statement commits by itself, so check before the first one is refused halfway.

        Raises:
            UnsupportedByEngine: there is a binary log, and the server does not allow functions.
        """
        settings = {str(row[0]): str(row[1]) for row in self.connection.execute(_LOG_SETTINGS)}
        logs, trusts = (settings.get(name) == "ON" for name in _LOG_NAMES)
        if logs and not trusts:
            raise UnsupportedByEngine(_NEEDS_TRUST)

    def create(self, routine: Routine, found: Installed | None) -> None:
        allowed = [] if found is None or not routine.public else self._may_execute(routine)
        if found is not None and not self.site.dialect.features.replaces_routines:
            self.drop(found)
        try:
            self.run(self._creation(routine, replace=self.site.dialect.features.replaces_routines))
        except DBAPIError as error:
            if error.orig is None or error.orig.args[0] not in _WANTS_TRUST:
                raise
            raise UnsupportedByEngine(_NEEDS_TRUST) from error
        for account in allowed:
            self._grant(routine, account)

    def drop(self, found: Installed) -> None:
        self.run(f"DROP {found.kind} IF EXISTS {self._name(found.name)}")

    def grant(self, routine: Routine, role: str) -> None:
        """Grant EXECUTE only; a role is ``name`` or ``name@host``."""
        name, at, host = role.rpartition("@")
        try:
            self._grant(routine, _account(name, host) if at else _account(role, ""))
        except DBAPIError as error:
            if error.orig is None or error.orig.args[0] not in _NO_SUCH_ACCOUNT:
                raise
            msg = (
                f"The SQL API is installed, but the user or role {role!r} does not exist, so it "
                "got no rights. Name a user with its host, as in app@%."
            )
            raise QueueError(msg) from error

    def counting_from(self, first: int) -> str:
        """An empty table whose AUTO_INCREMENT counts."""
        return (
            f"CREATE TABLE IF NOT EXISTS {self._name(_COUNTER)} "
            f"(id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY) ENGINE=InnoDB AUTO_INCREMENT={first}"
        )

    def drop_counter(self) -> None:
        self.run(f"DROP TABLE IF EXISTS {self._name(_COUNTER)}")

    def script(self, consumer: str) -> str:
        """For the shell, with the delimiter that routines need."""
        parts = [f"SET SESSION sql_mode = '{_SQL_MODE}';", f"{self.counter()};"]
        parts += [f"{consumer};", "DELIMITER //"]
        for routine in self.routines():
            parts.append(f"DROP {routine.kind} IF EXISTS {self._name(routine.name)} //")
            parts.append(f"{self._creation(routine, replace=False)} //")
        return "\n\n".join([*parts, "DELIMITER ;"]) + "\n"

    @contextlib.contextmanager
    def _mode(self) -> Iterator[None]:
        before = self.connection.exec_driver_sql("SELECT @@SESSION.sql_mode").scalar_one()
        # Otherwise granting to an unknown user would create that user.
        kept = [mode for mode in str(before).split(",") if mode == "NO_AUTO_CREATE_USER"]
        self.run(f"SET SESSION sql_mode = '{','.join([_SQL_MODE, *kept])}'")
        try:
            yield
        finally:
            self.run(f"SET SESSION sql_mode = '{before}'")

    def _may_execute(self, routine: Routine) -> list[str]:
        values = {"schema": self.site.schema, "name": routine.name, "kind": routine.kind}
        try:
            rows = self.connection.execute(_MAY_EXECUTE, values).all()
        except DBAPIError as error:
            _log.warning("The grants of %s cannot be read: %s", routine.name, error.orig)
            return []
        return [_account(_as_text(row[0]), _as_text(row[1])) for row in rows]

    def _grant(self, routine: Routine, account: str) -> None:
        self.run(f"GRANT EXECUTE ON {routine.kind} {self._name(routine.name)} TO {account}")

    def _creation(self, routine: Routine, *, replace: bool) -> str:
        verb = "CREATE OR REPLACE" if replace else "CREATE"
        _, _, rest = routine.text.partition(routine.name)
        mark = f"COMMENT '{routine.comment(self.site.prefix)}'"
        rest = re.sub(r"SQL SECURITY \w+", rf"\g<0> {mark}", rest, count=1)
        return f"{verb} {routine.kind} {self._name(routine.name)}{rest}"

    def _values(self) -> dict[str, str]:
        return {
            "deadlocks": _DEADLOCKS,
            "exact": f"CHARACTER SET utf8mb4 COLLATE {self.site.dialect.expressions.collation}",
            "text": "CHARACTER SET utf8mb4",
            "prefix": self.site.prefix,
            **TEXTS,
            "behind_died": str(len(f"{CONSUMER_DIED} and ") + 1),
            "me": SQL_CLIENTS,
            "rounds_json": str(self.site.dialect.features.rounds_json).upper(),
        }

    def _choices(self, template: str) -> str:
        between = "\n    "
        return _EACH.sub(
            lambda line: between.join(self._of(queue, line[1]) for queue in self.site.queues),
            template,
        )

    def _of(self, queue: QueueShape, template: str) -> str:
        base = self.site.prefix + queue.name
        named = _ROUTINE.sub(rf"{base}_sql_\1", _with_settings(template))
        return filled(named, self._values_of(queue))

    def _name(self, name: str) -> str:
        parts = [self.site.schema, name]
        return ".".join(_quoted(part) for part in parts if part is not None)

    def _values_of(self, queue: QueueShape) -> dict[str, str]:
        base = self.site.prefix + queue.name
        own = [_quoted(name) for name in queue.columns]
        kind, decoded, malformed, shown = _CONTENT[queue.payload]
        of_json, grouped = queue.payload == "json", queue.grouped
        return {
            "queue": queue.name,
            "live": _quoted(base),
            "archive": _quoted(f"{base}_archive"),
            "has_groups": str(grouped).upper(),
            "group_column": f", {GROUP_KEY}" if grouped else "",
            "group_value": ", _group" if grouped else "",
            "keys": _quoted(f"{base}_dedup_keys"),
            "claim_index": f"FORCE INDEX ({_quoted(f'{base}_claim_ix')})",
            "carried": ", ".join([CARRIED, "expires_at", *own]),
            "own": "".join(f", m.{name}" for name in own),
            "content": kind,
            "decoded": decoded,
            "malformed": malformed,
            "shown": shown,
            "element": _ELEMENT if of_json else f"JSON_UNQUOTE({_ELEMENT})",
            "not_strings": "FALSE" if of_json else f"JSON_TYPE({_ELEMENT}) <> 'STRING'",
        }


def _with_settings(template: str) -> str:
    """A template with the settings that it reads; JSON null becomes NULL."""
    return _SETTING.sub(r"NULLIF(JSON_UNQUOTE(JSON_EXTRACT(_settings, '$.\1')), 'null')", template)


def _account(name: str, host: str) -> str:
    quoted = "'" + name.replace("'", "''") + "'"
    return quoted + ("@'" + host.replace("'", "''") + "'" if host else "")


def _as_text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
