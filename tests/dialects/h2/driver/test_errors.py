"""H2 driver: errors are DB-API errors of the right class, with H2's code and SQLSTATE."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jpype
import pytest
import sqlalchemy as sa
from sqlalchemy import exc

from queue_over_sql.dialects.engines import dialect_named
from queue_over_sql.sql.errors import ErrorKind
from sqlalchemy_h2 import dbapi
from sqlalchemy_h2.errors import translate
from tests.dialects.h2.driver.fresh_databases import memory_engine, run_python

pytestmark = pytest.mark.engines("h2")


@pytest.fixture
def engine(engine_name: str) -> Iterator[sa.Engine]:  # noqa: ARG001 - selects H2
    with memory_engine() as engine:
        with engine.begin() as connection:
            connection.exec_driver_sql(
                "CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(3) NOT NULL, n SMALLINT,"
                " CHECK (n > 0))"
            )
            connection.exec_driver_sql("INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2)")
        yield engine


FAILURES: list[tuple[str, type[exc.DBAPIError], int]] = [
    ("INSERT INTO t VALUES (1, 'a', 1)", exc.IntegrityError, 23505),
    ("INSERT INTO t VALUES (3, NULL, 1)", exc.IntegrityError, 23502),
    ("INSERT INTO t VALUES (3, 'a', -1)", exc.IntegrityError, 23513),
    ("INSERT INTO t VALUES (3, 'abcd', 1)", exc.DataError, 22001),
    ("INSERT INTO t VALUES (3, 'a', 70000)", exc.DataError, 22004),
    ("SELECT CAST('x' AS INT)", exc.DataError, 22018),
    ("SELEC 1", exc.ProgrammingError, 42001),
    ("SELECT * FROM missing", exc.ProgrammingError, 42102),
    ("SELECT missing FROM t", exc.ProgrammingError, 42122),
    ("CREATE TABLE t (id INT)", exc.ProgrammingError, 42101),
    ("SELECT ?", exc.ProgrammingError, 90012),
]


def test_error_classes(engine: sa.Engine) -> None:
    """Each kind of failure has its class; the connection is usable after it."""
    with engine.connect() as connection:
        for sql, kind, code in FAILURES:
            try:
                connection.exec_driver_sql(sql)
            except kind as caught:
                original: Any = caught.orig
                found = (original.code, bool(original.sqlstate), caught.connection_invalidated)
            else:
                found = (None, False, False)
            assert (code, True, False) == found, sql
            assert 2 == connection.exec_driver_sql("SELECT count(*) FROM t").scalar(), sql


CLOSING = [
    ('General error: "Transaction 1 is closed [2.2.224/4]"', 50000, ""),
    ('General error: "Transaction 1 has status ROLLED_BACK, not OPEN [2.2.224/103]"', 50000, ""),
    ('IO Exception: "java.io.EOFException"', 90028, "java.io.EOFException"),
    ('IO Exception: "Connection reset"; "lob"', 90031, "java.net.SocketException"),
]


@pytest.mark.parametrize(("text", "code", "cause"), CLOSING)
def test_what_a_server_says_while_it_stops_is_a_disconnect(
    engine: sa.Engine, text: str, code: int, cause: str
) -> None:
    """It closes the database under running statements, and large texts end early."""
    thrown = jpype.JClass("java.sql.SQLException")(text, "HY000", code)
    if cause:
        thrown.initCause(jpype.JClass("java.io.IOException")(jpype.JClass(cause)()))
    error = translate(thrown)
    assert isinstance(error, dbapi.OperationalError)
    assert engine.dialect.is_disconnect(error, None, None)
    assert ErrorKind.DISCONNECT is dialect_named("h2").errors.classify_driver_error(error)


@pytest.mark.parametrize(
    ("text", "code", "kind"),
    [
        ('General error: "File corrupted in chunk 3 [2.2.224/6]"', 50000, ErrorKind.OTHER),
        ('IO Exception: "disk full"', 90031, ErrorKind.OTHER),
        ("The database is open in exclusive mode", 90135, ErrorKind.TRANSIENT),
    ],
)
def test_other_failures_of_the_server_are_none(
    engine: sa.Engine, text: str, code: int, kind: ErrorKind
) -> None:
    """Those of the file stay; the exclusive mode of another session ends."""
    error = translate(jpype.JClass("java.sql.SQLException")(text, "HY000", code))
    assert not engine.dialect.is_disconnect(error, None, None)
    assert kind is dialect_named("h2").errors.classify_driver_error(error)


def test_a_violation_leaves_the_transaction_alive(engine: sa.Engine) -> None:
    """What was written before a constraint violation can still be committed."""
    with engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO t VALUES (3, 'c', 3)")
        with pytest.raises(exc.IntegrityError):
            connection.exec_driver_sql("INSERT INTO t VALUES (3, 'c', 3)")
    with engine.connect() as connection:
        assert 3 == connection.exec_driver_sql("SELECT count(*) FROM t").scalar()


def test_executemany_stops_at_the_first_failure(engine: sa.Engine) -> None:
    """A failing row raises IntegrityError, and no later row is written."""
    rows = [(3, "c", 3), (1, "a", 1), (4, "d", 4)]
    with engine.connect() as connection:
        with pytest.raises(exc.IntegrityError):
            connection.exec_driver_sql("INSERT INTO t VALUES (?, ?, ?)", rows)
        found = connection.exec_driver_sql("SELECT id FROM t ORDER BY id").scalars().all()
    assert [1, 2, 3] == found


def test_lock_timeout(engine: sa.Engine) -> None:
    """A row that stays locked gives OperationalError 50200 after LOCK_TIMEOUT."""
    with engine.connect() as holder, engine.connect() as waiter:
        holder.exec_driver_sql("UPDATE t SET n = 3 WHERE id = 1")
        waiter.exec_driver_sql("SET LOCK_TIMEOUT 50")
        with pytest.raises(exc.OperationalError) as caught:
            waiter.exec_driver_sql("UPDATE t SET n = 4 WHERE id = 1")
    assert 50200 == getattr(caught.value.orig, "code", None)


def test_deadlock(engine: sa.Engine) -> None:
    """Of two transactions that wait for each other one gets OperationalError 40001."""
    codes: list[int] = []
    both = threading.Barrier(2)

    def update(first: int, second: int) -> None:
        with engine.connect() as connection:
            connection.exec_driver_sql("UPDATE t SET n = 5 WHERE id = ?", (first,))
            both.wait(10)
            try:
                connection.exec_driver_sql("UPDATE t SET n = 5 WHERE id = ?", (second,))
            except exc.OperationalError as error:
                codes.append(getattr(error.orig, "code", 0))

    threads = [threading.Thread(target=update, args=pair) for pair in ((1, 2), (2, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [40001] == codes


def test_closed_connections_and_cursors(engine: sa.Engine) -> None:
    """Using what was closed raises InterfaceError; closing twice is fine."""
    pooled = engine.raw_connection()
    connection: Any = pooled.dbapi_connection
    cursor = connection.cursor()
    for closable in (cursor, connection):
        closable.close()
        closable.close()
    for use in (lambda: cursor.execute("SELECT 1"), connection.cursor, connection.commit):
        with pytest.raises(dbapi.InterfaceError, match="closed"):
            use()
    pooled.invalidate()


def test_a_connection_that_another_thread_closed_is_a_disconnect(engine: sa.Engine) -> None:
    """As the watchdog does: it is the connection that failed, and not the statement."""
    with engine.connect() as connection:
        driver: Any = connection.connection.dbapi_connection
        driver.close()
        with pytest.raises(exc.InterfaceError, match="closed") as caught:
            connection.exec_driver_sql("SELECT 1")
        assert caught.value.connection_invalidated


def test_shutdown_counts_as_disconnect(engine_name: str) -> None:  # noqa: ARG001
    """After the database was shut down the pool replaces the lost connection."""
    with memory_engine() as engine:
        with engine.connect() as connection, engine.connect() as other:
            other.exec_driver_sql("SHUTDOWN")
            other.invalidate()
            with pytest.raises(exc.OperationalError) as caught:
                connection.exec_driver_sql("SELECT 1")
            assert caught.value.connection_invalidated
        with engine.connect() as connection:
            assert 1 == connection.exec_driver_sql("SELECT 1").scalar()


def test_file_in_use_by_another_process(engine_name: str, tmp_path: Path) -> None:  # noqa: ARG001
    """A second process without AUTO_SERVER gets OperationalError 90020, at once."""
    url = f"h2+jaydebeapi:///{tmp_path}/db"
    engine = sa.create_engine(url)
    code = """
    try:
        create_engine(sys.argv[1]).connect()
    except exc.OperationalError as error:
        print(error.orig.code)
    """
    with engine.connect():
        assert (0, ["90020"]) == run_python(code, url)
    engine.dispose()
