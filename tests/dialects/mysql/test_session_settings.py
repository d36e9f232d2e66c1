"""Settings of MySQL's sessions change neither what is stored nor what a caller is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import (
    Column,
    LargeBinary,
    Text,
    create_engine,
    event,
    make_url,
    text,
)

from queue_over_sql import DuplicateKey, PayloadInvalid, Publication, QueueService
from queue_over_sql.service import parts_of
from tests.contract.queue_state import add_effect, counts, effect_count, effects

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection, Engine

    from queue_over_sql import Message, Queue
    from queue_over_sql.testing.plugin import TestDatabase

pytestmark = pytest.mark.engines("mysql", "mariadb")


class Settings:
    """What each new session of an engine gets set."""

    def __init__(self, database: TestDatabase, **options: Any) -> None:
        self.engine: Engine = create_engine(database.url, **options)
        self.statements: list[str] = []
        event.listen(self.engine, "connect", self._apply)

    def _apply(self, raw: Any, _record: object) -> None:
        with raw.cursor() as cursor:
            for statement in self.statements:
                cursor.execute(statement)


@pytest.fixture
def settings(database: TestDatabase) -> Iterator[Settings]:
    """The settings of a user's engine."""
    found = Settings(database)
    yield found
    found.engine.dispose()


@pytest.fixture
def effects_engine(settings: Settings) -> Engine:
    """The user's engine, with a table for effects."""
    effects.create(settings.engine)
    # The settings are for connections that are opened from now on.
    settings.engine.dispose()
    return settings.engine


@pytest.fixture
def stepping(settings: Settings) -> Iterator[Queue]:
    """A queue whose service connects anew after the distance of ids has changed."""
    service = QueueService(settings.engine)
    queue = service.create_queue("jobs")
    queue.publish_many(["before", "the change"])
    queue.purge()
    settings.statements.append("SET SESSION auto_increment_increment = 3")
    parts_of(service).connections.leave()
    yield queue
    service.stop()


def _replicate(engine: Engine, ids: list[int]) -> None:
    """Insert another server's messages, between the ids of this one."""
    with engine.begin() as connection:
        for number in ids:
            connection.execute(
                text(
                    "INSERT INTO queue_jobs (id, payload, priority, published_at, scheduled_at,"
                    " available_at) VALUES (:id, :payload, 0, 1, 1, 1)"
                ),
                {"id": number, "payload": '"theirs"'},
            )


def test_ids_are_those_of_the_session_that_inserts(stepping: Queue, settings: Settings) -> None:
    """Also after a reconnect and beside a replica's rows, so that a cancel hits one's own."""
    ours = stepping.publish_many(["a", "b", "c"])
    _replicate(settings.engine, [one.id + 1 for one in ours])
    found = {message.id: message.payload for message in stepping.messages().list()}
    assert ["a", "b", "c"] == [found[one.id] for one in ours]
    for one in ours:
        assert stepping.cancel(one.id)
    assert ["theirs"] * 3 == [message.payload for message in stepping.messages().list()]


def test_a_refused_batch_takes_back_its_own(stepping: Queue, settings: Settings) -> None:
    """In a caller's transaction, of which nothing else is undone: not another's message."""
    stepping.publish("taken", key="k")
    with settings.engine.begin() as caller:
        (first,) = stepping.publish_many(["earlier"], connection=caller)
        _replicate(settings.engine, [first.id + 4, first.id + 5])
        batch = [Publication(number) for number in range(300)]
        with pytest.raises(DuplicateKey):
            stepping.publish_many([*batch, Publication("x", key="k")], connection=caller)
    left = [message.payload for message in stepping.messages().list()]
    assert ["earlier", "taken", "theirs", "theirs"] == sorted(left)


SENT = "😀 é"


@pytest.mark.parametrize("charset", ["utf8", "latin1"])
def test_our_connections_send_every_character(database: TestDatabase, charset: str) -> None:
    """Whatever charset the URL or the user's engine asks for."""
    url = make_url(database.url).update_query_dict({"charset": charset})
    theirs = create_engine(url)
    for given in (url, theirs):
        service = QueueService(given)
        queue = service.create_queue("jobs")
        queue.publish({"text": SENT}, key=SENT, headers={"h": SENT})
        (message,) = queue.consume()
        assert {"text": SENT} == message.payload
        assert SENT == message.key
        assert {"h": SENT} == message.headers
        message.ack()
        service.stop()
    theirs.dispose()


def test_a_callers_connection_that_cannot_is_refused(
    service: QueueService, database: TestDatabase
) -> None:
    """Whether it was opened with another charset or was changed since; nothing is published."""
    queue = service.create_queue("jobs")
    url = make_url(database.url).update_query_dict({"charset": "latin1"})
    opened, changed = create_engine(url), create_engine(database.url)
    with opened.begin() as caller, pytest.raises(ValueError, match="utf8mb4"):
        queue.publish(SENT, connection=caller)
    with changed.begin() as caller:
        queue.publish(SENT, connection=caller)
        caller.execute(text("SET NAMES latin1"))
        with pytest.raises(ValueError, match="utf8mb4"):
            queue.publish(SENT, connection=caller)
    assert [SENT] == [message.payload for message in queue.messages().list()]
    opened.dispose()
    changed.dispose()


def test_nothing_is_cut_in_a_session_that_is_not_strict(
    settings: Settings, effects_engine: Engine
) -> None:
    """By our sessions, a caller's and a handler's; their own statements stay as they were."""
    settings.statements.append("SET SESSION sql_mode = ''")
    service = QueueService(settings.engine)
    columns: list[Column[Any]] = [Column("note", Text), Column("raw", LargeBinary(255))]
    queue = service.create_queue("jobs", columns=columns, max_attempts=1)
    long: list[dict[str, Any]] = [{"note": "x" * 70_000}, {"raw": b"x" * 300}]
    for number, values in enumerate(long):
        with pytest.raises(PayloadInvalid):
            queue.publish(1, **values)
        with settings.engine.begin() as caller:
            with pytest.raises(PayloadInvalid):
                queue.publish(2, connection=caller, **values)
            assert "" == caller.scalar(text("SELECT @@SESSION.sql_mode"))
            add_effect(caller, number)
    worker = service.worker(concurrency=1)
    queue.publish(3)
    modes = []

    @worker.handle("jobs", transactional=True)
    def work(message: Message, connection: Connection) -> None:
        modes.append(connection.scalar(text("SELECT @@SESSION.sql_mode")))
        worker.stop()
        queue.publish(message.payload, connection=connection, **long[0])

    worker.run()
    service.stop()
    after = QueueService(settings.engine).queue("jobs")
    assert [""] == modes
    assert (0, 0, 1) == counts(after)
    assert 2 == effect_count(effects_engine)


def test_safe_updates_refuse_nothing_of_ours(settings: Settings) -> None:
    """A login with ``sql_safe_updates`` may empty a queue, its archive and a selection."""
    settings.statements.append("SET SESSION sql_safe_updates = 1")
    service = QueueService(settings.engine)
    queue = service.create_queue("jobs", archive="all")
    queue.publish_many(range(4))
    queue.ack(queue.consume(2))
    assert 2 == queue.archive.messages().remove()
    queue.consume()
    assert 2 == queue.purge(claimed=True)
    queue.publish_many(range(2))
    with settings.engine.begin() as caller:
        assert 2 == queue.messages().remove(connection=caller)
        assert 1 == caller.scalar(text("SELECT @@SESSION.sql_safe_updates"))
    service.stop()


def test_limits_of_a_session_hide_no_row_of_ours(settings: Settings) -> None:
    """A limit of rows, or of what a SELECT may examine, leaves no subscriber or message out."""
    limits = "sql_select_limit = 1, sql_big_selects = 0, max_join_size = 2"
    settings.statements.append(f"SET SESSION {limits}")
    service = QueueService(settings.engine)
    topic = service.create_topic("events")
    for name in ("a", "b", "c"):
        service.create_queue(name, archive="all")
        topic.subscribe(name)
    topic.publish(1, routing_key="x")
    with settings.engine.begin() as caller:
        topic.publish(2, routing_key="x", connection=caller)
        assert 1 == caller.scalar(text("SELECT @@SESSION.sql_select_limit"))
        assert 0 == caller.scalar(text("SELECT @@SESSION.sql_big_selects"))
    for name in ("a", "b", "c"):
        queue = service.queue(name)
        assert (2, 0, 0) == counts(queue)
        claimed = queue.consume(2)
        assert [1, 2] == [message.payload for message in claimed]
        claimed[0].ack()
        claimed[1].reject("no")
        assert 2 == queue.stats().archived
    service.stop()


@pytest.mark.engines("mariadb")
def test_an_empty_text_is_no_null(settings: Settings) -> None:
    """Also in a session where '' means NULL, which cannot claim a message then."""
    settings.statements.append("SET SESSION sql_mode = 'EMPTY_STRING_IS_NULL'")
    service = QueueService(settings.engine)
    columns: list[Column[Any]] = [Column("note", Text)]
    queue = service.create_queue("jobs", columns=columns)
    empty: dict[str, Any] = {"note": ""}
    queue.publish(1, **empty)
    with settings.engine.begin() as caller:
        queue.publish(2, connection=caller, **empty)
        assert "EMPTY_STRING_IS_NULL" == caller.scalar(text("SELECT @@SESSION.sql_mode"))
    claimed = queue.consume(2)
    assert [("", 1), ("", 2)] == [(message.columns["note"], message.payload) for message in claimed]
    queue.ack(claimed)
    service.stop()


@pytest.mark.parametrize("completion", ["RELEASE", "CHAIN"])
def test_a_commit_ends_only_its_transaction(
    settings: Settings, effects_engine: Engine, database: TestDatabase, completion: str
) -> None:
    """It neither closes the session, nor begins a transaction that a publish would belong to."""
    settings.statements.append(f"SET SESSION completion_type = '{completion}'")
    service = QueueService(settings.engine)
    queue = service.create_queue("jobs")
    with QueueService(database.url) as others:
        for _ in range(2):
            queue.publish_many([1, 2])
            queue.publish(3)
            assert (3, 0, 0) == counts(others.queue("jobs"))
            claimed = queue.exchange(queue.consume(1), 1)
            queue.ack(claimed)
            worker = service.worker()

            @worker.handle("jobs", transactional=True)
            def handle(message: Message, connection: Connection) -> None:
                add_effect(connection, message.id)

            worker.run(until_empty=True)
            assert (0, 0, 0) == counts(others.queue("jobs"))
        assert 2 == effect_count(effects_engine)
    service.stop()


def test_names_without_quotes_are_read(settings: Settings) -> None:
    """A session that shows tables without quotes may adopt one."""
    settings.statements.append("SET SESSION sql_quote_show_create = 0")
    with settings.engine.begin() as caller:
        caller.exec_driver_sql("CREATE TABLE own (id BIGINT PRIMARY KEY AUTO_INCREMENT, n INT)")
    service = QueueService(settings.engine)
    service.create_queue("jobs", columns=[Column("note", Text)])
    queue = service.adopt_queue("own", "own")
    queue.publish({"n": 7})
    assert [7] == [message.payload["n"] for message in queue.consume()]
    service.stop()


def test_handlers_transactions_lock_no_gaps(service: QueueService, engine_name: str) -> None:
    """They run at READ COMMITTED, also on a connection that a session has given back."""
    name = "tx_isolation" if engine_name == "mariadb" else "transaction_isolation"
    queue = service.create_queue("jobs")
    parts_of(service).connections.leave()
    worker = service.worker(concurrency=1)
    levels = []

    @worker.handle("jobs", transactional=True)
    def work(message: Message, connection: Connection) -> None:
        levels.append(connection.scalar(text(f"SELECT @@SESSION.{name}")))
        if message.payload == 2:
            worker.stop()

    queue.publish_many([1, 2])
    worker.run()
    assert ["READ-COMMITTED"] * 2 == levels


def test_texts_are_texts_where_the_driver_gives_bytes(database: TestDatabase) -> None:
    """A URL or an engine with ``use_unicode=False`` is served; its own connection is refused."""
    url = make_url(database.url)
    in_bytes = create_engine(url, connect_args={"use_unicode": False})
    for given in (url.update_query_dict({"use_unicode": "0"}), in_bytes):
        with QueueService(given) as service:
            queue = service.create_queue("jobs")
            queue.publish("😀", key="ké")
            [message] = queue.consume()
            assert "😀" == message.payload
            assert "ké" == message.key
            with (
                in_bytes.begin() as own,
                pytest.raises(ValueError, match="without use_unicode=False"),
            ):
                queue.publish("x", connection=own)
            message.ack()
    in_bytes.dispose()
