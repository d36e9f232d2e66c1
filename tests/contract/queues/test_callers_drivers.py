"""Callers' transactions on every driver of the database, through SQLAlchemy and directly."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from decimal import Decimal
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import aiosqlite
import psycopg
import pytest
from sqlalchemy import Column, DateTime, Engine, Numeric, create_engine, make_url
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.util import await_only

from queue_over_sql import DatabaseUnavailable, DuplicateKey, Publication, WrongDatabase
from queue_over_sql.service import parts_of
from tests.contract.queue_state import payloads
from tests.contrib.django import site

if TYPE_CHECKING:
    from pathlib import Path

    from queue_over_sql import Queue, QueueService
    from queue_over_sql.testing.plugin import TestDatabase

pytestmark = pytest.mark.driver_decides


class Caller(NamedTuple):
    """A caller's connection, and how its transactions begin and end."""

    given: Any
    commit: Callable[[], object]
    rollback: Callable[[], object]
    begin: Callable[[], object] = lambda: None
    close: Callable[[], object] = lambda: None


Opener = Callable[[str], Caller]


def arguments(url: str, driver: str) -> dict[str, Any]:
    """What connects a driver to a database, as SQLAlchemy knows it."""
    given = make_url(url)
    named = given.set(drivername=f"{given.get_backend_name()}+{driver}")
    dialect = named.get_dialect()
    kind: Any = dialect.get_async_dialect_cls(named) if dialect.is_async else dialect
    positional, named_ones = kind(dbapi=kind.import_dbapi()).create_connect_args(named)
    named_ones.pop("context", None)
    found: dict[str, Any] = named_ones | ({"database": positional[0]} if positional else {})
    return found


def of_sqlalchemy(driver: str, *, on_loop: bool = False) -> Opener:
    """A ``Connection`` of an engine of that driver."""

    def opened(url: str) -> Caller:
        given = make_url(url)
        named = given.set(drivername=f"{given.get_backend_name()}+{driver}")
        engine: Engine = create_async_engine(named).sync_engine if on_loop else create_engine(named)
        connection = engine.connect()

        def close() -> None:
            connection.close()
            engine.dispose()

        return Caller(connection, connection.commit, connection.rollback, close=close)

    return opened


def of_service(service: QueueService) -> Opener:
    """A ``Connection`` of the engine that the service has."""

    def opened(url: str) -> Caller:
        del url
        connection = parts_of(service).connections.engine.connect()
        return Caller(connection, connection.commit, connection.rollback, close=connection.close)

    return opened


def of_driver(
    connect: Callable[[str], Any], begin: Callable[[Any], object] = lambda _: None
) -> Opener:
    """A connection of the driver's own."""

    def opened(url: str) -> Caller:
        given = connect(url)
        return Caller(given, given.commit, given.rollback, lambda: begin(given), given.close)

    return opened


def of_django(url: str) -> Caller:
    """Django's connection, with a transaction inside of ``atomic()`` alone."""
    from django import db
    from django.utils.connection import ConnectionProxy

    site.set_up()
    place, alias = make_url(url), "of_the_test"
    wanted = {
        "ENGINE": f"django.db.backends.{place.get_backend_name().replace('sqlite', 'sqlite3')}",
        "NAME": place.database,
        "USER": place.username or "",
        "PASSWORD": place.password or "",
        "HOST": place.host or "",
        "PORT": place.port or "",
    }
    handler: Any = db.connections
    handler.settings[alias] = handler.configure_settings({"default": wanted})["default"]
    blocks: list[Any] = []

    def begin() -> None:
        blocks.append(db.transaction.atomic(using=alias))
        blocks[-1].__enter__()

    def close() -> None:
        handler[alias].close()
        del handler[alias], handler.settings[alias]

    return Caller(
        ConnectionProxy(handler, alias),
        lambda: blocks.pop().__exit__(None, None, None),
        lambda: blocks.pop().__exit__(KeyError, KeyError(), None),
        begin,
        close,
    )


def awaited(connect: Callable[[str], Any]) -> Opener:
    """The same for asyncio."""

    def opened(url: str) -> Caller:
        given = await_only(connect(url))

        def close() -> None:
            closed = getattr(given, "ensure_closed", given.close)()
            if closed is not None:
                await_only(closed)

        return Caller(
            given,
            lambda: await_only(given.commit()),
            lambda: await_only(given.rollback()),
            close=close,
        )

    return opened


def postgresql_url(url: str) -> str:
    """As libpq and asyncpg read it."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def psycopg_of(url: str, *, autocommit: bool = False) -> Any:
    rows: Any = psycopg.rows.dict_row
    return psycopg.connect(postgresql_url(url), row_factory=rows, autocommit=autocommit)


def psycopg2_of(url: str) -> Any:
    extras = importlib.import_module("psycopg2.extras")
    return importlib.import_module("psycopg2").connect(
        postgresql_url(url), cursor_factory=extras.RealDictCursor
    )


def pymysql_of(url: str, *, autocommit: bool = False) -> Any:
    import pymysql

    options = arguments(url, "pymysql")
    return pymysql.connect(**options, cursorclass=pymysql.cursors.DictCursor, autocommit=autocommit)


def mysqlclient_of(url: str) -> Any:
    driver, cursors = map(importlib.import_module, ("MySQLdb", "MySQLdb.cursors"))
    return driver.connect(**arguments(url, "mysqldb"), cursorclass=cursors.DictCursor)


def dictionaries_of(driver: str) -> Callable[[str], Any]:
    """Connects aiomysql or asyncmy, for rows as dictionaries."""

    def connect(url: str) -> Any:
        cursors = importlib.import_module(f"{driver}.cursors")
        named = {"aiomysql": "cursorclass", "asyncmy": "cursor_cls"}[driver]
        options = arguments(url, driver) | {named: cursors.DictCursor}
        return importlib.import_module(driver).connect(**options)

    return connect


def sqlite3_of(url: str, isolation_level: Any = "") -> Any:
    import sqlite3

    given = sqlite3.connect(str(make_url(url).database), isolation_level=isolation_level)
    given.row_factory, given.text_factory = sqlite3.Row, bytes
    return given


async def aiosqlite_of(url: str) -> Any:
    given = await aiosqlite.connect(str(make_url(url).database))
    given.row_factory = aiosqlite.Row
    return given


async def psycopg_on_loop(url: str) -> Any:
    rows: Any = psycopg.rows.dict_row
    return await psycopg.AsyncConnection.connect(postgresql_url(url), row_factory=rows)


def of_asyncpg(url: str) -> Caller:
    """Its transactions are objects; this one writes what it is given for JSON as JSON."""

    async def connect() -> Any:
        asyncpg = importlib.import_module("asyncpg")
        pool = await asyncpg.create_pool(postgresql_url(url), min_size=1, max_size=1)
        given = await pool.acquire()
        await given.set_type_codec(
            "json", encoder=json.dumps, decoder=json.loads, schema="pg_catalog"
        )
        return pool, given

    pool, given = await_only(connect())
    current: list[Any] = []

    def begin() -> None:
        current.append(given.transaction())
        await_only(current[-1].start())

    def close() -> None:
        await_only(pool.release(given))
        await_only(pool.close())

    return Caller(
        given,
        lambda: await_only(current.pop().commit()),
        lambda: await_only(current.pop().rollback()),
        begin,
        close,
    )


_MYSQL: dict[str, dict[str, Opener]] = {
    "threads": {
        "pymysql": of_sqlalchemy("pymysql"),
        "pymysql itself": of_driver(pymysql_of),
        "pymysql that begins nothing": of_driver(
            lambda url: pymysql_of(url, autocommit=True), lambda given: given.begin()
        ),
    },
    "asyncio": {
        "aiomysql": of_sqlalchemy("aiomysql", on_loop=True),
        "asyncmy": of_sqlalchemy("asyncmy", on_loop=True),
        "aiomysql itself": awaited(dictionaries_of("aiomysql")),
        "asyncmy itself": awaited(dictionaries_of("asyncmy")),
    },
}
if find_spec("MySQLdb") is not None:
    # No wheel of it is published, so it is tried where the client library is installed.
    _MYSQL["threads"] |= {
        "mysqlclient": of_sqlalchemy("mysqldb"),
        "mysqlclient itself": of_driver(mysqlclient_of),
    }
OPENERS: dict[str, dict[str, dict[str, Opener]]] = {
    "postgresql": {
        "threads": {
            "psycopg": of_sqlalchemy("psycopg"),
            "psycopg2": of_sqlalchemy("psycopg2"),
            "pg8000": of_sqlalchemy("pg8000"),
            "psycopg itself": of_driver(psycopg_of),
            "psycopg that begins nothing": of_driver(
                lambda url: psycopg_of(url, autocommit=True), lambda given: given.execute("BEGIN")
            ),
            "Django": of_django,
            "psycopg2 itself": of_driver(psycopg2_of),
        },
        "asyncio": {
            "psycopg": of_sqlalchemy("psycopg", on_loop=True),
            "asyncpg": of_sqlalchemy("asyncpg", on_loop=True),
            "psycopg itself": awaited(psycopg_on_loop),
            "asyncpg itself": of_asyncpg,
        },
    },
    "mariadb": _MYSQL,
    "mysql": _MYSQL,
    "sqlite": {
        "threads": {
            "pysqlite": of_sqlalchemy("pysqlite"),
            "sqlite3 itself": of_driver(sqlite3_of),
            "sqlite3 that begins nothing": of_driver(
                lambda url: sqlite3_of(url, None), lambda given: given.execute("BEGIN")
            ),
            "Django": of_django,
        },
        "asyncio": {
            "aiosqlite": of_sqlalchemy("aiosqlite", on_loop=True),
            "aiosqlite itself": awaited(aiosqlite_of),
        },
    },
    "h2": {"threads": {"jaydebeapi": of_sqlalchemy("jaydebeapi")}},
}


@contextmanager
def opened(opener: Opener, url: str) -> Iterator[Caller]:
    """A caller's connection with a transaction, closed at the end."""
    with ExitStack() as stack:
        caller = opener(url)
        stack.callback(caller.close)
        yield caller


MINE: dict[str, Any] = {"price": Decimal("1.50"), "sold": datetime(2020, 1, 2, 3, 4, 5)}  # noqa: DTZ001
ODD = {"100 %": ":x %s $1", "text": "a\\'\"\n€ 😀"}


@pytest.fixture
def queue(service: QueueService) -> Queue:
    """A queue with columns of its own, which keeps what is finished."""
    columns: list[Column[Any]] = [Column("price", Numeric(10, 2)), Column("sold", DateTime)]
    return service.create_queue("jobs", columns=columns, archive="all")


def test_every_verb_follows_the_callers_transaction(
    queue: Queue, service: QueueService, database: TestDatabase, face: str
) -> None:
    """A rollback leaves nothing of it, a commit all; also on an engine that the service shares."""
    openers = OPENERS[database.engine][face]
    if face == "threads":
        openers = openers | {"the service's engine": of_service(service)}
    for name, opener in openers.items():
        with opened(opener, database.url) as caller:
            try:
                assert_verbs_work(queue, caller)
            except BaseException as error:
                error.add_note(f"with {name}")
                raise
        queue.purge(claimed=True)
        queue.archive.messages().remove()


def assert_verbs_work(queue: Queue, caller: Caller) -> None:
    """Publish, settle, edit, send again and take."""
    given = caller.given
    for end in (caller.rollback, caller.commit):
        caller.begin()
        queue.publish(ODD, **MINE, connection=given)
        queue.publish("old", key="k", delay=60, connection=given)
        with pytest.raises(DuplicateKey):
            queue.publish("k", key="k", connection=given)
        for on_conflict in ("replace", "skip"):
            queue.publish("k", key="k", on_conflict=on_conflict, connection=given)
        queue.publish_many([Publication(n, columns=MINE) for n in range(3)], connection=given)
        queue.publish_many([[1], {}, "plain"], connection=given)
        assert 0 == queue.stats().live
        end()
    settled = queue.consume(8)
    assert [ODD, "k", 0, 1, 2, [1], {}, "plain"] == payloads(settled)
    assert [MINE, MINE] == [dict(settled[0].columns), dict(settled[4].columns)]
    for end in (caller.rollback, caller.commit):
        caller.begin()
        queue.ack(settled[:2], connection=given)
        settled[2].nack("no", delay=60, connection=given)
        settled[3].release(connection=given)
        settled[4].reject("no", connection=given)
        settled[5].extend(lease=900, connection=given)
        end()
        for message in settled:
            message.settled = False
    stats = queue.stats()
    assert 1 == stats.ready
    assert 1 == stats.delayed
    assert 3 == stats.claimed
    assert 3 == stats.archived
    caller.begin()
    assert 3 == queue.archive.messages().requeue(connection=given)
    taken = queue.take(9, connection=given)
    assert [1, ODD, "k", 2] == payloads(taken)
    assert MINE == dict(taken[1].columns)
    caller.commit()


BEGIN_NOTHING = {
    "psycopg that begins nothing",
    "pymysql that begins nothing",
    "sqlite3 that begins nothing",
    "asyncpg itself",
    "Django",
}


@pytest.mark.engines("sqlite", "postgresql")
def test_what_can_be_no_transaction_of_the_callers(
    queue: Queue, database: TestDatabase, face: str, tmp_path: Path
) -> None:
    """It is refused before anything is written; the error says what to do."""
    elsewhere = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    for name, opener in OPENERS[database.engine][face].items():
        with opened(opener, database.url) as caller:
            if name in BEGIN_NOTHING:
                with pytest.raises(ValueError, match=r"AUTOCOMMIT.*transaction"):
                    queue.publish_many(["x", "y"], connection=caller.given)
        if name.endswith("itself"):
            with pytest.raises(ValueError, match="Pass an open one"):
                queue.publish("x", connection=caller.given)
    for opener in OPENERS["sqlite"][face].values():
        with opened(opener, elsewhere) as caller:
            caller.begin()
            with pytest.raises(WrongDatabase, match=r"belongs to sqlite.*elsewhere\.db, but"):
                queue.publish("x", connection=caller.given)
            caller.rollback()
    for wrong in (1, queue, create_engine("sqlite://")):
        with pytest.raises(TypeError, match="connection must have your transaction"):
            queue.publish("x", connection=wrong)  # type: ignore[arg-type]
    assert 0 == queue.stats().live


@pytest.mark.threads("Django's transactions are of threads")
@pytest.mark.engines("sqlite")
def test_an_atomic_block_that_failed_takes_nothing_more(
    queue: Queue, database: TestDatabase
) -> None:
    """Django would let no query of its own through; so do we."""
    from django.db import transaction

    with opened(of_django, database.url) as caller:
        caller.begin()
        with pytest.raises(KeyError), transaction.atomic(using="of_the_test", savepoint=False):
            raise KeyError
        with pytest.raises(DatabaseUnavailable, match="has already failed"):
            queue.publish("x", connection=caller.given)
        caller.rollback()
    assert 0 == queue.stats().live


@pytest.mark.engines("postgresql")
def test_a_commit_wakes_those_who_wait(queue: Queue, database: TestDatabase, face: str) -> None:
    """Whichever driver sends it, the notification goes out with the caller's commit."""
    with psycopg.connect(postgresql_url(database.url), autocommit=True) as listening:
        listening.execute("LISTEN queue_over_sql")
        for name, opener in OPENERS["postgresql"][face].items():
            with opened(opener, database.url) as caller:
                caller.begin()
                queue.publish("x", connection=caller.given)
                caller.commit()
            heard = [each.payload for each in listening.notifies(timeout=30, stop_after=1)]
            assert [queue.table.fullname] == heard, name
            # So soon after one notification there is no other.
            time.sleep(0.02)


@pytest.mark.threads("the same core")
@pytest.mark.engines("sqlite")
def test_a_driver_of_the_other_kind_is_refused(queue: Queue, database: TestDatabase) -> None:
    """The error names what can take it."""
    with pytest.raises(TypeError, match="use AsyncQueueService"):
        queue.publish("x", connection=aiosqlite.connect(str(make_url(database.url).database)))
