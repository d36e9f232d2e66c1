"""H2 driver: its cache by SQL text never returns outdated results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import exc

from tests.dialects.h2.driver.fresh_databases import memory_engine

pytestmark = pytest.mark.engines("h2")


@pytest.fixture
def engine(engine_name: str) -> Iterator[sa.Engine]:  # noqa: ARG001 - selects H2
    with memory_engine() as engine:
        run(engine, "CREATE TABLE t (id INT, v VARCHAR)")
        run(engine, "INSERT INTO t VALUES (1, '12'), (2, '34')")
        yield engine


def run(engine: sa.Engine, sql: str) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(sql)


def test_altered_types(engine: sa.Engine) -> None:
    """A kept connection reads the new type after another one altered the column."""
    sql = "SELECT v FROM t WHERE id = ?"
    with engine.connect() as kept, engine.connect() as other:
        for _ in range(2):
            assert "12" == kept.exec_driver_sql(sql, (1,)).scalar()
        changes: dict[str, object] = {"INT": 12, "DOUBLE PRECISION": 12.0, "CLOB": "12.0"}
        for kind, expected in changes.items():
            kept.commit()
            other.exec_driver_sql(f"ALTER TABLE t ALTER COLUMN v {kind}")
            other.commit()
            for _ in range(2):
                found = kept.exec_driver_sql(sql, (1,)).scalar()
                assert expected == found
                assert type(expected) is type(found)


def test_recreated_table(engine: sa.Engine) -> None:
    """A table dropped and created with other types is read by its new types."""
    sql = "SELECT id, v FROM t"
    with engine.connect() as kept:
        assert 2 == len(kept.exec_driver_sql(sql).all())
        kept.commit()
        run(engine, "DROP TABLE t")
        with pytest.raises(exc.ProgrammingError):
            kept.exec_driver_sql(sql)
        run(engine, "CREATE TABLE t (id VARCHAR, v BLOB)")
        run(engine, "INSERT INTO t VALUES ('x', X'00ff')")
        assert [("x", b"\x00\xff")] == [tuple(row) for row in kept.exec_driver_sql(sql)]


def test_star_follows_the_table(engine: sa.Engine) -> None:
    """The columns of SELECT * are those of the moment."""
    with engine.connect() as kept:
        assert ["id", "v"] == list(kept.exec_driver_sql("SELECT * FROM t").keys())
        kept.commit()
        run(engine, "ALTER TABLE t DROP COLUMN id")
        run(engine, "ALTER TABLE t ADD COLUMN w INT BEFORE v")
        result = kept.exec_driver_sql("SELECT * FROM t ORDER BY v")
        assert ["w", "v"] == list(result.keys())
        assert (None, "12") == result.first()


def test_two_cursors_of_one_text(engine: sa.Engine) -> None:
    """Two results of the same text can be read in turns."""
    sql = "SELECT id FROM t ORDER BY id"
    with engine.connect() as connection:
        raw: Any = connection.connection.dbapi_connection
        one, two = raw.cursor(), raw.cursor()
        one.execute(sql)
        assert (1,) == one.fetchone()
        two.execute(sql)
        assert [(1,), (2,)] == two.fetchall()
        assert [(2,)] == one.fetchall()
        two.close()
        one.close()


def test_missing_parameters_are_errors(engine: sa.Engine) -> None:
    """A reused statement never runs with the parameters of the time before."""
    sql = "SELECT id FROM t WHERE id = ? AND v = ?"
    with engine.connect() as connection:
        assert 1 == connection.exec_driver_sql(sql, (1, "12")).scalar()
        for parameters in ((1,), ()):
            with pytest.raises(exc.ProgrammingError, match="90012"):
                connection.exec_driver_sql(sql, parameters)
        assert 2 == connection.exec_driver_sql(sql, (2, "34")).scalar()


def test_unread_results(engine: sa.Engine) -> None:
    """A result closed before its end does not disturb the next run of its text."""
    with engine.connect() as connection:
        for _ in range(3):
            result = connection.exec_driver_sql("SELECT id FROM t ORDER BY id")
            assert (1,) == result.fetchone()
            result.close()


def test_more_texts_than_are_kept(engine: sa.Engine) -> None:
    """Hundreds of different texts work, the first ones again at the end."""
    with engine.connect() as connection:
        for number in [*range(400), *range(5)]:
            sql = f"SELECT {number} AS n{number}"
            assert {f"n{number}": number} == dict(connection.exec_driver_sql(sql).mappings().one())


def test_fetch_sizes(engine: sa.Engine) -> None:
    """fetchone, fetchmany, iteration and fetchall hand out each row once."""
    with engine.connect() as connection:
        raw: Any = connection.connection.dbapi_connection
        cursor = raw.cursor()
        cursor.execute("SELECT x FROM SYSTEM_RANGE(1, 10)")
        assert (1,) == cursor.fetchone()
        assert [(2,), (3,)] == cursor.fetchmany(2)
        assert (4,) == next(iter(cursor))
        assert [(n,) for n in range(5, 11)] == cursor.fetchall()
        assert cursor.fetchone() is None
        assert [] == cursor.fetchmany()
        cursor.execute("DELETE FROM t")
        assert 2 == cursor.rowcount
        assert cursor.description is None
        with pytest.raises(engine.dialect.loaded_dbapi.ProgrammingError):
            cursor.fetchall()
        cursor.close()
