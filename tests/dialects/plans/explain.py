"""Get a plan from each engine, the rows that it reads, and table sizes that affect plans."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy.exc import DBAPIError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from sqlalchemy import Connection

    from tests.dialects.traffic import Sent

EXPLAIN: Final[Mapping[str, str]] = {
    "sqlite": "EXPLAIN QUERY PLAN ",
    "postgresql": "EXPLAIN ",
    "mariadb": "EXPLAIN FORMAT=JSON ",
    "mysql": "EXPLAIN FORMAT=JSON ",
    "h2": "EXPLAIN ",
}
"""What stands before a statement whose plan is asked for, by engine."""

_ANALYZE: Final[Mapping[str, str]] = {
    "postgresql": "ANALYZE {}",
    "mariadb": "ANALYZE TABLE {}",
    "mysql": "ANALYZE TABLE {}",
}
# MySQL also says where it does not sort.
_SORTS: Final = re.compile(r"FILESORT(?!\": false)|TEMP B-TREE FOR ORDER|SORT KEY", re.IGNORECASE)
_NO_SUCH_VARIABLE: Final = 1193
_EXPLAINABLE: Final = {"SELECT", "UPDATE", "DELETE", "INSERT", "WITH"}


def explain_by_tables(connection: Connection, engine: str) -> None:
    """Let a session explain changes too, and name what it reads of each table.

    The newer form of MySQL's JSON, the default since 9.5, says neither. Before 8.3 there is no
    other form than the one that is asked for here.
    """
    if engine != "mysql":
        return
    try:
        connection.exec_driver_sql("SET SESSION explain_json_format_version = 1").close()
    except DBAPIError as error:
        if error.orig is None or error.orig.args[0] != _NO_SUCH_VARIABLE:
            raise


def sorts(plan: str) -> bool:
    """Whether the plan has a step that sorts."""
    return bool(_SORTS.search(plan))


def analyze(connection: Connection, engine: str, *tables: str) -> None:
    """Let an engine count what is in some tables, and commit."""
    statement = _ANALYZE.get(engine, "ANALYZE").format(", ".join(tables))
    connection.exec_driver_sql(statement).close()
    connection.commit()


def analyze_once(connection: Connection, engine: str, *tables: str) -> None:
    """As ``analyze``, so that the same rows give the same plans on PostgreSQL.

    It counts all rows, because a sample may decide which of two plans is the cheaper one. And the
    server does not count again meanwhile.
    """
    if engine == "postgresql":
        connection.exec_driver_sql("SET LOCAL default_statistics_target = 1000").close()
        for table in tables:
            off = f"ALTER TABLE {table} SET (autovacuum_enabled = off)"
            connection.exec_driver_sql(off).close()
    analyze(connection, engine, *tables)


@dataclasses.dataclass(frozen=True)
class Plan:
    """What an engine says that it will do for one statement.

    Attributes:
        statement: the statement.
        text: the plan as the engine words it.
        reads: what of which table it reads: ``jobs.claim`` is a search in the claim index of the
            table of the queue ``jobs``, ``jobs.id`` one in its primary key, ``jobs.claim*`` all of
            the index, ``jobs*`` the whole table.
        sorts: whether rows are sorted.
    """

    statement: str
    text: str
    reads: frozenset[str]
    sorts: bool

    def __str__(self) -> str:
        return f"{self.statement}\n{self.text}\n{sorted(self.reads)}"


def plans(connection: Connection, engine: str, sent: Iterable[Sent]) -> Iterator[Plan]:
    """The plans of all statements that have one.

    On PostgreSQL there are two of each: with the values at hand, and the one that the server may
    keep for a prepared statement, whatever its values.
    """
    explain_by_tables(connection, engine)
    raw: Any = connection.connection.dbapi_connection
    for statement in sent:
        # What only takes SQLite's lock for writing reads nothing, whatever its plan says.
        if statement.verb not in _EXPLAINABLE or "WHERE 1 = 0" in statement.text:
            continue
        cursor = _cursor(raw, statement)
        try:
            explained = EXPLAIN[engine] + statement.without_settings
            if statement.parameters:
                cursor.execute(explained, statement.parameters)
            else:
                cursor.execute(explained)
            yield _plan(engine, statement.text, cursor.fetchall())
            if engine == "postgresql":
                cursor.execute(_generic(cursor, statement))
                yield _plan(engine, "GENERIC: " + statement.text, cursor.fetchall())
        finally:
            cursor.close()
            raw.rollback()


def _cursor(raw: Any, sent: Sent) -> Any:
    """A cursor that takes parameters as they were sent; psycopg has one of its own for $1."""
    if re.search(r"\$1\b", sent.text) and isinstance(sent.parameters, list | tuple):
        from psycopg import RawCursor

        return RawCursor(raw)
    return raw.cursor()


def _generic(cursor: Any, sent: Sent) -> str:
    """Prepare a statement, and say what explains its plan for any values."""
    from psycopg import sql

    text, values = sent.text, sent.parameters or []
    if isinstance(values, dict):
        names = list(dict.fromkeys(re.findall(r"%\(([^)]+)\)s", text)))
        numbers = {name: f"${number}" for number, name in enumerate(names, 1)}
        text = re.sub(r"%\(([^)]+)\)s", lambda found: numbers[found[1]], text)
        text, values = text.replace("%%", "%"), [values[name] for name in names]
    cursor.execute("SET LOCAL plan_cache_mode = force_generic_plan")
    cursor.execute("DEALLOCATE ALL")
    cursor.execute(f"PREPARE hot AS {text}".encode())
    shown = ", ".join(sql.Literal(value).as_string(cursor) for value in values)
    return "EXPLAIN EXECUTE hot" + (f"({shown})" if shown else "")


def _plan(engine: str, statement: str, rows: Iterable[Iterable[Any]]) -> Plan:
    text = "\n".join(" ".join(map(str, row)) for row in rows)
    reads = frozenset(_READERS[engine](text))
    return Plan(statement, text, reads, sorts(text))


def _name(table: str, index: str | None = None, *, whole: bool = False) -> str:
    """The short name of what is read."""
    table, shared = re.subn(r"^queue_over_sql_", "", table.lower())
    table = re.sub(r"^queue_", "", table)
    star = "*" if whole else ""
    if index is None:
        return f"{table}{star}"
    index = index.lower()
    automatic = index.startswith("sqlite_autoindex")
    if re.search(r"^primary|_pkey$", index) or (automatic and shared):
        short = "id"
    elif automatic or "_key_uq" in index:
        short = "key"
    else:
        short = re.sub(r"^.*_(\w+?)_ix$", r"\1", index)
    return f"{table}.{short}{star}"


def _read_by_sqlite(text: str) -> Iterator[str]:
    for how, table, index in re.findall(
        r"\b(SEARCH|SCAN) (\w+)(?: USING (?:(?:COVERING )?INDEX (\w+)|INTEGER PRIMARY KEY))?", text
    ):
        scanned = how == "SCAN"
        if not index and not scanned:
            yield _name(table, "primary")
        elif table not in {"CONSTANT", "SUBQUERY"}:
            yield _name(table, index or None, whole=scanned)


def _read_by_postgresql(text: str) -> Iterator[str]:
    for table in re.findall(r"Seq Scan on (\w+)", text):
        yield _name(table, whole=True)
    scans = r"Index (?:Only )?Scan (?:Backward )?using (\w+) on (\w+).*\n\s+(Index Cond)?"
    for index, table, entered in re.findall(scans, text):
        yield _name(table, index, whole=not entered)
    bitmaps = r"Bitmap Heap Scan on (\w+)(?:.*\n)+?.*?Bitmap Index Scan on (\w+)"
    for table, index in re.findall(bitmaps, text):
        yield _name(table, index)


def _read_by_mariadb(text: str) -> Iterator[str]:
    for node in _nodes(json.loads(text)):
        table, how = node.get("table_name"), node.get("access_type")
        # Where MySQL inserts, it reads nothing.
        if table and how and not table.startswith("<") and not node.get("insert"):
            yield _name(table, node.get("key"), whole=how.lower() in {"all", "index"})


def _nodes(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
        node = list(node.values())
    if isinstance(node, list):
        for each in node:
            yield from _nodes(each)


def _read_by_h2(text: str) -> Iterator[str]:
    # The first or last entry of an index of the column, whichever index the plan names.
    if text.endswith("/* direct lookup */"):
        return
    for table in re.findall(r"/\* PUBLIC\.(\w+)\.tableScan", text):
        yield _name(table, whole=True)
    # Without quotes in what it says of a query inside another.
    ways = r'"?PUBLIC"?\."?(\w+)"?[^*/]*?/\* PUBLIC\.(\w+)(:?)(?!\w|\.)'
    for table, index, entered in re.findall(ways, text):
        yield _name(table, index, whole=not entered)


_READERS: Final[Mapping[str, Callable[[str], Iterator[str]]]] = {
    "sqlite": _read_by_sqlite,
    "postgresql": _read_by_postgresql,
    "mariadb": _read_by_mariadb,
    "mysql": _read_by_mariadb,
    "h2": _read_by_h2,
}
