"""Callers' connections that are refused: what is done there could not commit with the queue's part.

They are in another database, or they commit each statement.
"""

from __future__ import annotations

import uuid
from contextlib import ExitStack, contextmanager
from itertools import cycle
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from sqlalchemy import URL, Engine, NullPool, create_engine, make_url, text
from sqlalchemy.orm import Session

from queue_over_sql import Message, Publication, Queue, QueueError, QueueService, WrongDatabase
from tests.contract.caller_transactions import OPENERS, Caller, Opener, opened
from tests.contract.queue_state import (
    add_effect,
    counts,
    effect_count,
    effects,
    live_rows,
    payloads,
)
from tests.contract.queues.edits import EDITS, unhold
from tests.waiting import consume_exactly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from queue_over_sql.testing.plugin import MakeService, TestDatabase

    Verb = Callable[[Queue, Message, Caller], object]

# The same check of the same core; tests of the asynchronous face prove that it is reached.
pytestmark = pytest.mark.threads("the callers' engines here are synchronous ones")

VERBS: dict[str, Verb] = {
    "publish": lambda queue, _, caller: queue.publish("x", connection=caller),
    "publish by key": lambda queue, _, caller: queue.publish(
        "x", key="k", on_conflict="replace", connection=caller
    ),
    "publish_many": lambda queue, _, caller: queue.publish_many(
        ["x", Publication("y", key="y")], connection=caller
    ),
    "ack": lambda _, message, caller: message.ack(connection=caller),
    "nack": lambda _, message, caller: message.nack("no", connection=caller),
    "release": lambda _, message, caller: message.release(connection=caller),
    "reject": lambda _, message, caller: message.reject("no", connection=caller),
    "extend": lambda _, message, caller: message.extend(lease=900, connection=caller),
    "batch ack": lambda queue, message, caller: queue.ack([message], connection=caller),
    "batch nack": lambda queue, message, caller: queue.nack([message], connection=caller),
    "take": lambda queue, _, caller: queue.take(5, connection=caller),
    "unhold": lambda queue, _, caller: unhold(queue.messages(), caller),
    **{
        name: lambda queue, _, caller, edit=edit: edit(queue.messages(), caller)  # type: ignore[misc]
        for name, edit in EDITS.items()
    },
}


@pytest.fixture
def beside(
    engine_name: str, database: TestDatabase, servers: Any, tmp_path: Path
) -> Iterator[Engine]:
    """Another database of the same kind, on the same server."""
    assert engine_name == database.engine
    with ExitStack() as stack:
        if engine_name == "sqlite":
            url = f"sqlite:///{tmp_path / 'beside.db'}"
        else:
            server, name = servers.get(engine_name), f"beside_{uuid.uuid4().hex[:12]}"
            url = server.create_database(name)
            stack.callback(server.drop_database, name)
        engine = create_engine(url)
        stack.callback(engine.dispose)
        yield engine


@pytest.fixture
def apart(database: TestDatabase, tmp_path: Path) -> Iterator[Engine]:
    """A database of another kind: a file, or for a file a database in memory."""
    in_memory = database.engine == "sqlite"
    engine = create_engine("sqlite://" if in_memory else f"sqlite:///{tmp_path / 'apart.db'}")
    yield engine
    engine.dispose()


class Scene(NamedTuple):
    """A queue in its database, with messages of every kind, one of them claimed."""

    engine: Engine
    queue: Queue
    message: Message

    def rows(self) -> list[tuple[Any, ...]]:
        """The committed live rows."""
        return live_rows(self.engine, self.queue)


def fill(service: QueueService, engine: Engine) -> Scene:
    """Make the same queue with the same messages in any database."""
    queue = service.create_queue("jobs", priorities=2)
    queue.publish("claimed")
    (message,) = queue.consume()
    queue.publish("ready")
    queue.publish("keyed", key="k")
    queue.publish("held", kind="held")
    queue.messages(kind="held").hold()
    return Scene(engine, queue, message)


@pytest.fixture
def scene(service: QueueService, engine: Engine) -> Scene:
    """The queue of the test's database."""
    return fill(service, engine)


def connect(engine: Engine) -> Caller:
    """The plain way to a caller's transaction."""
    return engine.connect()


def assert_refused(scene: Scene, elsewhere: Engine, opener: Opener = connect) -> None:
    """By every verb: nothing is done, and the caller's own writes before and after it commit."""
    before = scene.rows()
    effects.create(elsewhere)
    for number, (name, verb) in enumerate(VERBS.items()):
        with opened(opener, elsewhere) as caller:
            add_effect(caller, 2 * number, name)
            with pytest.raises(WrongDatabase) as caught:
                verb(scene.queue, scene.message, caller)
            add_effect(caller, 2 * number + 1, name)
            caller.commit()
        assert isinstance(caught.value, QueueError)
        assert isinstance(caught.value, ValueError)
        assert before == scene.rows(), name
    assert effect_count(elsewhere) == 2 * len(VERBS)


def test_another_database_is_refused(scene: Scene, beside: Engine) -> None:
    """On the same server; the message may still be settled as if nothing had happened."""
    assert_refused(scene, beside, Session)
    scene.message.extend()
    scene.message.ack()
    assert (2, 0, 0) == counts(scene.queue)


@pytest.mark.default_on("sqlite", "postgresql")
def test_a_queue_of_the_same_name_there_is_not_touched(scene: Scene, beside: Engine) -> None:
    """Tables and ids are the same there, so that only looking tells the databases apart."""
    service = QueueService(beside.url, consumer_timeout=5.0)
    try:
        twin = fill(service, beside)
        before = twin.rows()
        assert [row[0] for row in scene.rows()] == [row[0] for row in before]
        assert_refused(scene, beside)
        assert before == twin.rows()
        twin.message.ack()
        scene.message.ack()
    finally:
        service.stop()


@pytest.mark.engines("sqlite", "postgresql", "mysql", "mariadb")
def test_the_database_of_a_drivers_connection_is_named(scene: Scene, beside: Engine) -> None:
    """Such a connection has no URL, so it is asked."""
    pooled = beside.raw_connection()
    given: Any = pooled.driver_connection
    if beside.dialect.name == "sqlite":
        given.execute("BEGIN")
    with pytest.raises(WrongDatabase) as caught:
        scene.queue.publish("x", connection=given)
    pooled.close()
    theirs = str(caught.value).partition("belongs to ")[2].partition(", but")[0]
    assert theirs.endswith(f"/{beside.url.database}")


def test_a_database_of_another_kind_is_refused(scene: Scene, apart: Engine) -> None:
    """Before a statement is sent that it may not even understand."""
    assert_refused(scene, apart)
    scene.message.ack()


@pytest.mark.default_on("sqlite", "postgresql")
def test_it_is_refused_every_time_and_the_right_one_accepted_between(
    queue: Queue, effects_engine: Engine, beside: Engine
) -> None:
    """Nothing that was learnt of one connection is believed of another."""
    for number in range(3):
        with effects_engine.begin() as right, beside.begin() as wrong:
            with pytest.raises(WrongDatabase):
                queue.publish("wrong", connection=wrong)
            queue.publish(number, connection=right)
            with pytest.raises(WrongDatabase):
                queue.publish("wrong", connection=wrong)
            add_effect(right, number)
    assert [0, 1, 2] == payloads(consume_exactly(queue, 3))
    assert 3 == effect_count(effects_engine)


@pytest.mark.default_on("sqlite", "postgresql")
def test_a_connection_that_reaches_the_other_database_later(
    queue: Queue, effects_engine: Engine, beside: Engine
) -> None:
    """Engines that are made and gone again are not mistaken for each other."""
    for number in range(3):
        for url in (effects_engine.url, beside.url):
            with made_engine(url, poolclass=NullPool) as made, made.begin() as caller:
                if url == beside.url:
                    with pytest.raises(WrongDatabase):
                        queue.publish("wrong", connection=caller)
                else:
                    queue.publish(number, connection=caller)
            del made
    assert [0, 1, 2] == payloads(consume_exactly(queue, 3))


MOVES = {
    "mysql": ("CREATE DATABASE IF NOT EXISTS {}", "USE {}", "DROP DATABASE {}"),
    "mariadb": ("CREATE DATABASE IF NOT EXISTS {}", "USE {}", "DROP DATABASE {}"),
    "postgresql": ("CREATE SCHEMA {}", "SET search_path TO {}", "DROP SCHEMA {} CASCADE"),
    "h2": ("CREATE SCHEMA {}", "SET SCHEMA {}", "DROP SCHEMA {} CASCADE"),
}


@pytest.fixture
def moving(engine_name: str, engine: Engine) -> Iterator[tuple[str, str, str]]:
    """Another schema of the server, and the statements that move a session there and back."""
    create, move, drop = MOVES[engine_name]
    there = f"moved_{uuid.uuid4().hex[:12]}"
    if engine_name == "h2":
        there = there.upper()
    home = {"postgresql": "public", "h2": "PUBLIC"}.get(engine_name, engine.url.database)
    with engine.begin() as connection:
        connection.execute(text(create.format(there)))
    yield there, move.format(there), move.format(home)
    with engine.begin() as connection:
        connection.execute(text(drop.format(there)))


@pytest.mark.engines("postgresql", "mysql", "mariadb", "h2")
def test_a_session_that_moves_is_refused_until_it_is_back(
    scene: Scene, engine: Engine, database: TestDatabase, moving: tuple[str, str, str]
) -> None:
    """By ``USE`` or a like statement; the queue of the same name there is not touched."""
    there, move, back = moving
    twin = QueueService(database.url, schema=there)
    other = twin.create_queue("jobs", priorities=2)
    with engine.connect() as caller:
        scene.queue.publish("before", connection=caller)
        caller.execute(text(move))
        for verb in VERBS.values():
            with pytest.raises(WrongDatabase, match="moved"):
                verb(scene.queue, scene.message, caller)
        caller.execute(text(back))
        scene.queue.publish("after", connection=caller)
        caller.commit()
    assert 0 == other.messages().count()
    assert 6 == scene.queue.messages().count()
    twin.stop()
    scene.message.ack()


# ---------------------------------------------------------------- what must not be refused


@contextmanager
def made_engine(url: str | URL, **options: Any) -> Iterator[Engine]:
    """An engine of the user's own for the length of a block."""
    engine = create_engine(url, **options)
    try:
        yield engine
    finally:
        engine.dispose()


def spellings(database: TestDatabase, tmp_path: Path) -> list[str]:
    """Other URLs of the same database."""
    url = make_url(database.url)
    if database.engine == "sqlite":
        link = tmp_path / "link.db"
        link.symlink_to(tmp_path / "queues.db")
        return ["sqlite:///queues.db", f"sqlite:///{link}", f"sqlite:///{tmp_path}/./queues.db"]
    if url.host != "127.0.0.1" or database.engine not in {"postgresql", "h2"}:
        # The accounts of the MySQL family belong to a host.
        return [database.url]
    return [url.set(host="localhost").render_as_string(hide_password=False)]


def test_an_engine_of_ones_own_is_accepted(
    queue: Queue,
    effects_engine: Engine,
    database: TestDatabase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same database under the same URL, and under another spelling of it."""
    monkeypatch.chdir(tmp_path)
    wanted = [database.url, *spellings(database, tmp_path)]
    for number, url in enumerate(wanted):
        with made_engine(url) as own, own.begin() as caller:
            add_effect(caller, number)
            queue.publish(number, connection=caller)
    assert list(range(len(wanted))) == payloads(consume_exactly(queue, len(wanted)))
    assert len(wanted) == effect_count(effects_engine)


SESSIONS: dict[str, dict[str, Any]] = {
    "postgresql": {"options": "-c TimeZone=Asia/Tokyo -c DateStyle=German"},
    "mariadb": {"init_command": "SET time_zone = '+09:00'", "read_timeout": 60},
    "mysql": {"init_command": "SET time_zone = '+09:00'", "read_timeout": 60},
    "sqlite": {"isolation_level": "IMMEDIATE"},
    "h2": {},
}


def test_a_session_with_settings_of_its_own_is_accepted(
    queue: Queue, effects_engine: Engine, database: TestDatabase
) -> None:
    """Time zone, formats and isolation of the caller's do not make another database."""
    with made_engine(database.url, connect_args=SESSIONS[database.engine]) as own:
        serializable = own.execution_options(isolation_level="SERIALIZABLE")
        for number, caller in enumerate((own, serializable)):
            with caller.begin() as connection:
                add_effect(connection, number)
                queue.publish(number, connection=connection)
    assert [0, 1] == payloads(consume_exactly(queue, 2))
    assert 2 == effect_count(effects_engine)


@pytest.mark.default_on("sqlite", "postgresql")
def test_a_service_on_an_engine_accepts_its_connections(
    make_service: MakeService, effects_engine: Engine, beside: Engine
) -> None:
    """A service that was given an engine works in its transactions, and not in those of another."""
    make_service().create_queue("jobs")
    service = QueueService(effects_engine)
    try:
        queue = service.queue("jobs")
        for number, opener in enumerate(OPENERS.values()):
            with opened(opener, effects_engine) as caller:
                add_effect(caller, number)
                queue.publish(number, connection=caller)
                caller.commit()
        with beside.connect() as caller, pytest.raises(WrongDatabase):
            queue.publish("y", connection=caller)
        assert [0, 1] == payloads(consume_exactly(queue, 2))
    finally:
        service.stop()
    assert 2 == effect_count(effects_engine)


@pytest.mark.engines("sqlite")
def test_a_database_in_memory_belongs_to_its_engine(engine_name: str) -> None:
    """Two databases in memory have one URL and are two."""
    assert "sqlite" == engine_name
    with made_engine("sqlite://") as mine, made_engine("sqlite://") as other:
        service = QueueService(mine)
        queue = service.create_queue("jobs")
        with mine.begin() as caller:
            queue.publish("x", connection=caller)
        with mine.execution_options(logging_token="web").begin() as caller:
            queue.publish("y", connection=caller)
        with other.begin() as caller, pytest.raises(WrongDatabase):
            queue.publish("z", connection=caller)
        assert ["x", "y"] == payloads(queue.consume(3))
        service.stop()


@pytest.mark.empty_database
@pytest.mark.engines("postgresql")
def test_another_schema_of_the_same_database_is_another_place(
    queue: Queue, database: TestDatabase, engine: Engine
) -> None:
    """A session that looks elsewhere first would write into the tables of another tenant."""
    with engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA tenant"))
    path = "-c search_path=tenant,public"
    tenant = create_engine(database.url, connect_args={"options": path})
    with tenant.begin() as caller:
        queue.publish("seen in public", connection=caller)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE tenant.queue_jobs (LIKE public.queue_jobs)"))
    tenant.dispose()
    with tenant.begin() as caller, pytest.raises(WrongDatabase):
        queue.publish("into the wrong one", connection=caller)
    tenant.dispose()


# -- a connection that commits each statement

ALL_OR_NONE: dict[str, Verb] = {
    "publish_many": lambda queue, _, caller: queue.publish_many(["x", "y"], connection=caller),
    "replace": lambda queue, _, caller: queue.publish(
        "x", key="k", on_conflict="replace", connection=caller
    ),
    "take": lambda queue, _, caller: queue.take(connection=caller),
    "nack": lambda _, message, caller: message.nack("no", connection=caller),
    "reject": lambda _, message, caller: message.reject("no", connection=caller),
    "release": lambda _, message, caller: message.release(connection=caller),
    "hold": lambda queue, _, caller: queue.messages().hold(connection=caller),
}


@pytest.fixture
def kept(service: QueueService) -> Queue:
    """A queue that archives all, with a message to claim, and one to replace."""
    queue = service.create_queue("jobs", archive="all")
    queue.publish_many(["first", Publication("second", key="k")])
    return queue


def test_what_is_all_or_none_is_refused(kept: Queue, engine: Engine) -> None:
    """It says what to do instead; nothing was changed, and the claim still holds."""
    [claimed] = kept.consume(1)
    before = counts(kept)
    committing = engine.execution_options(isolation_level="AUTOCOMMIT")
    for verb, opener in zip(ALL_OR_NONE.values(), cycle(OPENERS.values())):
        refused = pytest.raises(ValueError, match=r"AUTOCOMMIT.*transaction")
        with opened(opener, committing) as caller, refused:
            verb(kept, claimed, caller)
    assert before == counts(kept)
    claimed.ack()


def test_one_statement_needs_no_transaction(queue: Queue, engine: Engine) -> None:
    """A message is published by one, and there at once."""
    committing = engine.execution_options(isolation_level="AUTOCOMMIT")
    for number, opener in enumerate(OPENERS.values(), start=1):
        with opened(opener, committing) as caller:
            queue.publish("one", connection=caller)
            assert number == queue.stats().ready


@pytest.mark.engines("sqlite")
@pytest.mark.threads("a session of the ORM, which both faces ask alike")
def test_a_session_with_a_database_for_each_class_is_named(queue: Queue, engine: Engine) -> None:
    """The error says which connection of it to pass, and that one works."""

    class Order:
        pass

    with Session(binds={Order: engine}) as session:
        with pytest.raises(ValueError, match=r"binds=.*bind_arguments"):
            queue.publish(1, connection=session)
        with session.connection(bind_arguments={"bind": engine}) as connection:
            queue.publish(2, connection=connection)
            session.commit()
    assert 1 == queue.stats().ready
