"""Write databases of an earlier release as SQL, one per engine, for the tests of upgrades.

::

    python scripts/migrations/dumps.py                    all engines
    python scripts/migrations/dumps.py sqlite postgresql

It takes the code of that release from the repository. A dump has statements that end with ``;`` at
the end of a line. Run it again only for another earlier release, because dumps must show what that
release wrote.
"""

# ruff: noqa: INP001 - a script, not part of a package

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
from contextlib import ExitStack, closing
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, create_engine, inspect, text

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from queue_over_sql.testing.servers import DEFAULT_ENGINES, obtain_private  # noqa: E402
from tests.contract.migrations import earlier_release  # noqa: E402

FOLDER: Final = ROOT / "tests" / "contract" / "migrations" / "dumps"


def main(engines: list[str]) -> None:
    """Dump a database of each engine."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        code = Path(folder)
        archive = subprocess.check_output(
            ["git", "archive", earlier_release.COMMIT, "queue_over_sql"], cwd=ROOT
        )
        with tarfile.open(fileobj=BytesIO(archive)) as tar:
            tar.extractall(code, filter="data")
        for engine in engines:
            statements = _dump(engine, code)
            file = FOLDER / f"{engine}.sql"
            file.write_text("".join(f"{one.rstrip(';')};\n" for one in statements))
            sys.stderr.write(f"{file.relative_to(ROOT)}: {len(statements)} statements\n")


def _dump(engine: str, code: Path) -> list[str]:
    if engine == "sqlite":
        file = code / "queues.db"
        _fill(f"sqlite:///{file}", code)
        with closing(sqlite3.connect(file)) as connection:
            lines = list(connection.iterdump())
        # The loader begins the transaction.
        return [line for line in lines if line not in {"BEGIN TRANSACTION;", "COMMIT;"}]
    with ExitStack() as stack:
        server = stack.enter_context(obtain_private(engine))
        url = server.create_database("dumped")
        created = _fill(url, code)
        connection = stack.enter_context(create_engine(url).connect())
        if engine == "h2":
            found = connection.exec_driver_sql("SCRIPT NOPASSWORDS NOSETTINGS").scalars().all()
            wanted = [line for line in found if not line.startswith(("CREATE USER", "--"))]
            return [line for line in wanted if not line.startswith("\n--")]
        return [*created, *_rows(connection, engine)]


def _fill(url: str, code: Path) -> list[str]:
    program = earlier_release.__file__ or ""
    told = subprocess.check_output(
        [sys.executable, program, url], env={**os.environ, "PYTHONPATH": str(code)}, cwd=code
    )
    created: list[str] = json.loads(told)
    return created


def _rows(connection: Connection, engine: str) -> list[str]:
    statements, tables = [], sorted(inspect(connection).get_table_names())
    for table in tables:
        columns = [column["name"] for column in inspect(connection).get_columns(table)]
        casts = [f"CAST({name} AS text)" if name == "headers" else name for name in columns]
        if engine != "postgresql":
            casts = columns
        elif "payload" in columns and table not in {"queue_blobs", "queue_blobs_archive"}:
            casts = ["CAST(payload AS text)" if cast == "payload" else cast for cast in casts]
        for row in connection.execute(text(f"SELECT {', '.join(casts)} FROM {table}")):
            values = ", ".join(_literal(value, engine) for value in row)
            statements.append(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({values})")
        if f"{table}_archive" in tables:
            statements += _next_id(connection, table, engine)
    return statements


def _next_id(connection: Connection, table: str, engine: str) -> list[str]:
    either = f"(SELECT id FROM {table} UNION SELECT id FROM {table}_archive)"
    last = connection.execute(text(f"SELECT COALESCE(MAX(id), 0) FROM {either} AS m")).scalar_one()
    if engine == "postgresql":
        return [f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), {last})"]
    return [f"ALTER TABLE {table} AUTO_INCREMENT = {last + 1}"]


def _literal(value: Any, engine: str) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, bytes | memoryview):
        digits = bytes(value).hex()
        return f"'\\x{digits}'" if engine == "postgresql" else f"x'{digits}'"
    written = str(value).replace("'", "''")
    return f"'{written}'" if engine == "postgresql" else "'" + written.replace("\\", "\\\\") + "'"


if __name__ == "__main__":
    main(sys.argv[1:] or list(DEFAULT_ENGINES))
