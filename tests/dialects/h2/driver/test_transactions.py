"""H2 driver: transactions begin and end as SQLAlchemy, or plain SQL, requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy import exc

from queue_over_sql.testing.plugin import TestDatabase
from tests.dialects.h2.driver.fresh_databases import memory_url

pytestmark = pytest.mark.engines("h2")


@pytest.fixture(params=["memory", "server"])
def engine(request: pytest.FixtureRequest, database: TestDatabase) -> Iterator[sa.Engine]:
    """An engine with an empty table t, in this process and over TCP."""
    engine = sa.create_engine(database.url if request.param == "server" else memory_url())
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE t (id INT PRIMARY KEY)")
    yield engine
    engine.dispose()


@pytest.fixture
def seen(engine: sa.Engine) -> Callable[[], int]:
    """Counts the rows that another connection sees."""

    def count() -> int:
        with engine.connect() as connection:
            return int(connection.exec_driver_sql("SELECT count(*) FROM t").scalar_one())

    return count


def test_rollback(engine: sa.Engine, seen: Callable[[], int]) -> None:
    """Autocommit is off: nothing is seen before the commit, and nothing after a rollback."""
    with engine.connect() as connection:
        connection.exec_driver_sql("INSERT INTO t VALUES (1)")
        assert 0 == seen()
        connection.rollback()
        connection.exec_driver_sql("INSERT INTO t VALUES (2)")
        connection.commit()
        assert 1 == seen()


def test_returning_a_connection_rolls_back(engine: sa.Engine, seen: Callable[[], int]) -> None:
    """What was not committed is gone when the connection goes back to the pool."""
    with engine.connect() as connection:
        connection.exec_driver_sql("INSERT INTO t VALUES (1)")
    assert 0 == seen()


def test_savepoint(engine: sa.Engine, seen: Callable[[], int]) -> None:
    """A savepoint undoes its own part only."""
    with engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO t VALUES (1)")
        savepoint = connection.begin_nested()
        connection.exec_driver_sql("INSERT INTO t VALUES (2)")
        savepoint.rollback()
    assert 1 == seen()


def test_autocommit_level(engine: sa.Engine, seen: Callable[[], int]) -> None:
    """With AUTOCOMMIT each statement is seen at once; the pooled connection forgets the level."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("INSERT INTO t VALUES (1)")
        assert 1 == seen()
        connection.rollback()
    assert 1 == seen()
    with engine.connect() as connection:
        assert "READ COMMITTED" == connection.get_isolation_level()
        connection.exec_driver_sql("INSERT INTO t VALUES (2)")
    assert 1 == seen()


def test_plain_sql_transactions(engine: sa.Engine, seen: Callable[[], int]) -> None:
    """On an AUTOCOMMIT connection BEGIN opens a transaction that COMMIT or ROLLBACK ends."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        # Autocommit is back after each end.
        for end, rows in (("COMMIT", 2), ("COMMIT", 2), ("ROLLBACK", 0), ("ROLLBACK", 0)):
            connection.exec_driver_sql("DELETE FROM t")
            connection.exec_driver_sql("BEGIN")
            connection.exec_driver_sql("INSERT INTO t VALUES (1)")
            with pytest.raises(exc.IntegrityError):  # does not end the transaction
                connection.exec_driver_sql("INSERT INTO t VALUES (1)")
            connection.exec_driver_sql("INSERT INTO t VALUES (2)")
            assert 0 == seen()
            connection.exec_driver_sql(end)
            assert rows == seen()
            connection.exec_driver_sql("INSERT INTO t VALUES (3)")
            assert rows + 1 == seen()


def test_open_plain_sql_transaction_is_rolled_back(
    engine: sa.Engine, seen: Callable[[], int]
) -> None:
    """A transaction begun by plain SQL and left open does not survive the pool."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("BEGIN")
        connection.exec_driver_sql("INSERT INTO t VALUES (1)")
    assert 0 == seen()


def test_isolation_levels(engine: sa.Engine) -> None:
    """A level that is asked for is the session's level."""
    for level in ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"):
        with engine.connect().execution_options(isolation_level=level) as connection:
            assert level == connection.get_isolation_level()
