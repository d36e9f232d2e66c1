"""The check-up of PostgreSQL."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from sqlalchemy import Connection

from queue_over_sql.sql.checkup import (
    CROWDED,
    DEAD_ROWS,
    KEEPS_ROWS,
    LONG_SECONDS,
    MOST_SHOWN,
    Asking,
    Checkup,
    Section,
    crowded,
    open_for_long,
    settings_during,
)
from queue_over_sql.values.findings import Finding, Level


class PostgreSQLCheckup(Checkup):
    """Settings that lose commits, dead rows, old transactions, broken indexes, rights."""

    # Of a sequence that an account may not read the view shows no value.
    next_id_statement = "SELECT setval(pg_get_serial_sequence('{quoted}', 'id'), {number}, false)"
    ids_query = """
        SELECT left(sequencename, -7), last_value FROM pg_catalog.pg_sequences
        WHERE schemaname = COALESCE(CAST(:schema AS text), current_schema())
          AND right(sequencename, 7) = '_id_seq' AND left(sequencename, -7) IN :names"""

    @property
    def sections(self) -> dict[str, Section]:
        return {
            "settings": self._settings,
            "connections": self._connections,
            "transactions": self._transactions,
            "notifications": self._notifications,
            "bloat": self._bloat,
            "tables": self._unlogged,
            "indexes": self._indexes,
            "rights": self._rights,
        }

    @contextlib.contextmanager
    def bounded(self, connection: Connection, seconds: float) -> Iterator[None]:
        """In a transaction, so that no setting stays in a session that a pooler shares."""
        limit = max(1, int(seconds * 1000))
        limits = [f"SET LOCAL {name} = {limit}" for name in ("statement_timeout", "lock_timeout")]
        # Compiling a hundred small counts may take longer than running them.
        with settings_during(
            connection, ["BEGIN READ ONLY", *limits, "SET LOCAL jit = off"], ["ROLLBACK"]
        ):
            yield

    def _settings(self, ask: Asking) -> Iterator[Finding]:
        names = ("fsync", "full_page_writes", "synchronous_commit", "autovacuum", "TimeZone")
        row = ask.rows("SELECT " + ", ".join(f"current_setting('{name}')" for name in names))[0]
        fsync, pages, commit, vacuum, zone = row
        if "off" in (fsync, pages):
            said = f"fsync is {fsync}, full_page_writes is {pages}"
            advice = "Turn both on. Otherwise a crash of the host may destroy the whole database."
            yield Finding(Level.ERROR, "settings", said, advice)
        if commit == "off":
            advice = (
                "Turn it on for this database or login. Otherwise a crash loses the last messages."
            )
            yield Finding(Level.WARNING, "settings", "synchronous_commit is off", advice)
        if vacuum == "off":
            advice = "Turn it on. Otherwise the queues' tables grow, and claims become slower."
            yield Finding(Level.ERROR, "settings", "autovacuum is off", advice)
        said = f"synchronous_commit is {commit}, autovacuum is {vacuum}, the time zone is {zone}"
        yield Finding(Level.OK, "settings", said)

    def _connections(self, ask: Asking) -> Iterator[Finding]:
        used = ask.value("SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'client%'")
        yield crowded(used, int(ask.value("SELECT current_setting('max_connections')")))

    def _transactions(self, ask: Asking) -> Iterator[Finding]:
        yield from self._old(
            ask,
            "SELECT 'process ' || pid || ' (' || concat_ws(', ', usename, application_name, state)"
            " || ')', EXTRACT(EPOCH FROM clock_timestamp() - xact_start) AS seconds"
            " FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND xact_start IS NOT NULL",
            f"{KEEPS_ROWS} SELECT pg_terminate_backend(pid) ends it.",
        )
        yield from self._old(
            ask,
            "SELECT 'prepared transaction ' || gid,"
            " EXTRACT(EPOCH FROM clock_timestamp() - prepared) AS seconds"
            " FROM pg_prepared_xacts WHERE database = current_database()",
            f"{KEEPS_ROWS} COMMIT PREPARED or ROLLBACK PREPARED ends it.",
        )

    def _notifications(self, ask: Asking) -> Iterator[Finding]:
        used = float(ask.value("SELECT pg_notification_queue_usage()"))
        if used < CROWDED:
            return
        # Only sessions that listen hold the queue, but a session sees its own channels alone.
        holder = ask.value(
            "SELECT 'process ' || pid || ' (' || concat_ws(', ', datname, usename,"
            " application_name, state) || ')' FROM pg_stat_activity"
            " WHERE pid <> pg_backend_pid() AND xact_start IS NOT NULL"
            " ORDER BY query NOT ILIKE 'listen%', xact_start LIMIT 1"
        )
        by = "a session that listens and has an open transaction"
        holder = by if holder is None else f"probably {holder}"
        said = (
            f"the server's queue of notifications is {used:.0%} full, held by {holder}; consumers"
            " only poll"
        )
        advice = (
            "End that transaction, for example with SELECT pg_terminate_backend(pid). When the"
            " queue is full, each transaction of other programs with NOTIFY fails at its commit."
        )
        yield Finding(Level.WARNING, "notifications", said, advice)

    def _old(self, ask: Asking, statement: str, advice: str) -> Iterator[Finding]:
        found = ask.rows(
            f"SELECT * FROM ({statement}) AS t WHERE seconds >= :least"
            f" ORDER BY seconds DESC LIMIT {MOST_SHOWN}",
            least=LONG_SECONDS,
        )
        for who, seconds in found:
            yield open_for_long(who, float(seconds), advice)

    def _bloat(self, ask: Asking) -> Iterator[Finding]:
        found = ask.rows(
            "SELECT relname, n_dead_tup, n_live_tup, last_autovacuum AT TIME ZONE 'UTC'"
            " FROM pg_stat_all_tables"
            " WHERE schemaname = coalesce(:schema, current_schema()) AND relname = ANY(:names)"
            " AND n_dead_tup >= :least AND n_dead_tup > n_live_tup"
            f" ORDER BY n_dead_tup DESC LIMIT {MOST_SHOWN}",
            schema=ask.schema,
            names=[table.name for table in ask.tables],
            least=DEAD_ROWS,
        )
        for name, dead, live, vacuumed in found:
            when = "never" if vacuumed is None else f"at {vacuumed:%Y-%m-%d %H:%M:%S} UTC"
            said = f"table {name} has {dead:,} dead rows and {live:,} live ones; autovacuum: {when}"
            advice = f"End old transactions first; then run VACUUM {name}."
            yield Finding(Level.WARNING, "bloat", said, advice)

    def _unlogged(self, ask: Asking) -> Iterator[Finding]:
        for table in ask.tables:
            name = ask.written(table)
            query = "SELECT relpersistence = 'u' FROM pg_class WHERE oid = to_regclass(:name)"
            if ask.value(query, name=name):
                said = f"table {name} is UNLOGGED: a crash of the server empties it"
                advice = f"Run ALTER TABLE {name} SET LOGGED."
                yield Finding(Level.WARNING, "tables", said, advice)

    def _indexes(self, ask: Asking) -> Iterator[Finding]:
        found = ask.rows(
            "SELECT i.relname FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid"
            " JOIN pg_class t ON t.oid = x.indrelid JOIN pg_namespace n ON n.oid = t.relnamespace"
            " WHERE NOT x.indisvalid AND n.nspname = coalesce(:schema, current_schema())"
            " AND t.relname = ANY(:names)",
            schema=ask.schema,
            names=[table.name for table in ask.tables],
        )
        for (name,) in found:
            advice = f"Run REINDEX INDEX CONCURRENTLY {name}."
            said = f"index {name} is invalid: its creation was interrupted"
            yield Finding(Level.WARNING, "indexes", said, advice)

    def _rights(self, ask: Asking) -> Iterator[Finding]:
        rights = ("SELECT", "INSERT", "UPDATE", "DELETE")
        wanted = ", ".join(f"has_table_privilege(:name, '{right}')" for right in rights)
        wanted += ", row_security_active(CAST(:name AS text))"
        who = ask.value("SELECT current_user")
        lacking: dict[str, list[str]] = {}
        secured: list[str] = []
        for table in ask.tables:
            *row, hidden = ask.rows(f"SELECT {wanted}", name=ask.written(table))[0]
            lacking[table.name] = [r for r, has in zip(rights, row, strict=True) if not has]
            if hidden:
                secured.append(table.name)
        yield from rights_found(who, lacking)
        for name in secured:
            said = f"row-level security decides which rows of {name} {who} sees"
            advice = "It never delivers a message that it does not see. Let a policy show it all."
            yield Finding(Level.WARNING, "rights", said, advice)


def rights_found(who: str, lacking: dict[str, list[str]]) -> Iterator[Finding]:
    """The rights that a login lacks, by table."""
    found = {name: rights for name, rights in lacking.items() if rights}
    # All queues share ten tables.
    for name, rights in list(found.items())[: 2 * MOST_SHOWN]:
        said = f"{who} lacks {', '.join(rights)} on {name}"
        advice = (
            "Grant the rights that it needs. Only a login that publishes and consumes needs "
            "all four."
        )
        yield Finding(Level.WARNING, "rights", said, advice)
    if not found:
        yield Finding(Level.OK, "rights", f"{who} may read and write all tables")
