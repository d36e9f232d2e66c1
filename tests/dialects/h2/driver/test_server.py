"""H2 driver: an H2 server over TCP, other users, and what happens when it dies."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import make_url

from queue_over_sql.testing.plugin import TestDatabase, TestServer
from sqlalchemy_h2.dbapi import DurabilityWarning
from tests.chaos.proxy import Proxy

# Users and settings stay in a database.
pytestmark = [pytest.mark.engines("h2"), pytest.mark.empty_database]


@pytest.fixture
def admin(database: TestDatabase) -> Iterator[sa.Engine]:
    """The administrator, who has made the user app with the password secret."""
    engine = sa.create_engine(database.url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE t (id INT)")
        connection.exec_driver_sql("CREATE USER app PASSWORD 'secret'")
        connection.exec_driver_sql("GRANT SELECT, INSERT, DELETE ON SCHEMA public TO app")
    yield engine
    engine.dispose()


def app_engine(database: TestDatabase) -> sa.Engine:
    url = make_url(database.url).set(username="app", password="secret")
    return sa.create_engine(url)


def setting(engine: sa.Engine, name: str) -> str:
    sql = "SELECT SETTING_VALUE FROM INFORMATION_SCHEMA.SETTINGS WHERE SETTING_NAME = ?"
    with engine.connect() as connection:
        (value,) = set(connection.exec_driver_sql(sql, (name,)).scalars())
    return str(value)


def test_defaults_reach_the_server(admin: sa.Engine) -> None:
    """Commits are written at once, and locks are waited for ten seconds."""
    assert "0" == setting(admin, "WRITE_DELAY")
    with admin.connect() as connection:
        assert 10_000 == connection.exec_driver_sql("SELECT LOCK_TIMEOUT()").scalar()


def test_user_without_admin_rights(admin: sa.Engine, database: TestDatabase) -> None:
    """Another user works without a warning where an administrator has set WRITE_DELAY to 0."""
    assert "0" == setting(admin, "WRITE_DELAY")
    app = app_engine(database)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with app.begin() as connection:
            connection.exec_driver_sql("INSERT INTO t VALUES (1)")
    with app.connect() as connection:
        assert 10_000 == connection.exec_driver_sql("SELECT LOCK_TIMEOUT()").scalar()
    app.dispose()


def test_delayed_commits_are_told(admin: sa.Engine, database: TestDatabase) -> None:
    """A user who can not make commits durable is warned once, with what to do."""
    with admin.begin() as connection:
        connection.exec_driver_sql("SET WRITE_DELAY 500")
    app = app_engine(database)
    with pytest.warns(DurabilityWarning, match="500 ms late.*SET WRITE_DELAY 0"):
        app.connect().close()
    app.dispose()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        app.connect().close()
    app.dispose()


def test_wrong_password(database: TestDatabase) -> None:
    """A refused login is OperationalError 28000."""
    engine = sa.create_engine(make_url(database.url).set(password="wrong"))
    sa.create_engine(database.url).connect().close()
    with pytest.raises(exc.OperationalError) as caught:
        engine.connect()
    assert 28000 == getattr(caught.value.orig, "code", None)


def test_failed_connections_leave_no_sockets() -> None:
    """A load balancer without a server accepts connections and ends them."""
    nobody = Proxy("h2+jaydebeapi://sa:@127.0.0.1:1/./x")
    engine = sa.create_engine(nobody.url, poolclass=sa.pool.NullPool)
    files = Path("/proc/self/fd")
    with pytest.raises(exc.OperationalError):
        engine.connect()
    before = len(list(files.iterdir()))
    for _ in range(60):
        with pytest.raises(exc.OperationalError):
            engine.connect()
    assert len(list(files.iterdir())) < before + 45


@pytest.mark.chaos
def test_server_dies(server: TestServer) -> None:
    """A killed server invalidates the pool; no committed row is gone after its restart."""
    engine = sa.create_engine(server.url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE t (id INT)")
        connection.exec_driver_sql("INSERT INTO t VALUES (1)")
    with engine.connect() as connection:
        assert 1 == connection.exec_driver_sql("SELECT count(*) FROM t").scalar()
        server.kill()
        with pytest.raises(exc.OperationalError) as caught:
            connection.exec_driver_sql("SELECT count(*) FROM t")
        assert caught.value.connection_invalidated
    with pytest.raises(exc.OperationalError):
        engine.connect()
    server.start()
    with engine.connect() as connection:
        assert 1 == connection.exec_driver_sql("SELECT count(*) FROM t").scalar()
    engine.dispose()


@pytest.mark.chaos
def test_server_dies_before_a_large_text_is_read(server: TestServer) -> None:
    """The server sends it when it is read. H2 calls that a failed input, but it is a disconnect."""
    engine = sa.create_engine(server.url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE t (content CLOB)")
        connection.exec_driver_sql("INSERT INTO t VALUES (REPEAT('x', 100000))")
    with engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT content FROM t")
        server.kill()
        with pytest.raises(exc.OperationalError) as caught:
            found.one()
        assert caught.value.connection_invalidated
    engine.dispose()
