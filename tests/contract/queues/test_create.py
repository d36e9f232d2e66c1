"""Creating, finding and dropping queues."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, Integer, insert, inspect, select

from queue_over_sql import (
    DatabaseUnavailable,
    ExponentialBackoff,
    FixedDelay,
    QueueError,
    QueueNotFound,
    QueueSchemaMismatch,
    QueueSettings,
)
from queue_over_sql.database import repetition
from queue_over_sql.database.opened_engine import OpenedEngine
from queue_over_sql.dialects.engines import dialect_named
from queue_over_sql.dialects.postgresql.ddl import _CREATION_LOCK
from queue_over_sql.service import parts_of
from tests.contract.queue_state import ARGUMENT_ERRORS, live_rows, payloads
from tests.refusals import refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection, Engine

    from queue_over_sql import Message, Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService, TestDatabase

in_python = pytest.mark.threads("Python decides it")
CONTRACT_COLUMNS = {
    "id",
    "message_key",
    "kind",
    "payload",
    "headers",
    "priority",
    "published_at",
    "scheduled_at",
    "available_at",
    "attempt_count",
    "max_attempts",
    "lease_us",
    "consumer_id",
    "consumer_round",
    "claimed_at",
    "lease_expires_at",
    "last_attempt_at",
    "last_error",
}


@pytest.mark.engines("postgresql", "mysql", "mariadb")
@pytest.mark.threads("the wait is the database's")
def test_the_waits_of_a_creator_have_one_limit(
    make_service: MakeService, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The turn, a table, a row, and all repetitions; a row alone would be waited for 50 s."""
    service = make_service()
    service.create_queue("old")
    features = parts_of(service).connections.dialect.features
    monkeypatch.setitem(vars(features), "creation_seconds", 2.0)
    monkeypatch.setitem(vars(features), "lock_seconds", 1)
    queues = parts_of(service).system().queues
    with engine.connect() as other, ThreadPoolExecutor(1) as pool:
        row = other.execute(select(queues)).one()._mapping
        other.execute(insert(queues).values({**row, "name": "new"}))
        creating = pool.submit(service.create_queue, "new")
        try:
            assert isinstance(creating.exception(timeout=15), DatabaseUnavailable)
        finally:
            other.rollback()
    assert "new" == service.create_queue("new").name


@in_python
@pytest.mark.engines("sqlite")
def test_a_new_queue_has_the_documented_defaults(queue: Queue) -> None:
    """Settings that nobody gave are the documented ones, durations as timedelta."""
    settings = queue.settings
    assert timedelta(seconds=300) == settings.lease
    assert 5 == settings.max_attempts
    assert settings.retry == ExponentialBackoff()
    assert "json" == settings.payload
    assert 1 == settings.priorities
    assert "failed" == settings.archive
    assert settings.archive_ttl is None
    assert 1_048_576 == settings.max_payload_bytes


def test_a_queue_is_a_table_with_the_documented_columns(queue: Queue, engine: Engine) -> None:
    """Table and archive are in the database under their documented names."""
    found = {column["name"].lower() for column in inspect(engine).get_columns("queue_jobs")}
    assert "queue_jobs" == queue.table.name
    assert found >= CONTRACT_COLUMNS
    assert inspect(engine).has_table("queue_jobs_archive")


def test_creating_again_keeps_the_messages(service: QueueService, engine: Engine) -> None:
    """Creation is idempotent: an existing queue is left as it is."""
    published = service.create_queue("jobs").publish("first")
    again = service.create_queue("jobs")
    assert [published.id] == [row[0] for row in live_rows(engine, again)]


@in_python
@pytest.mark.engines("sqlite")
def test_explicit_settings_are_applied_and_unset_ones_kept(make_service: MakeService) -> None:
    """The last deployment wins for what it says, and says nothing of the rest."""
    make_service().create_queue("jobs", lease=10, max_attempts=2, retry=FixedDelay(3))
    again = make_service().create_queue("jobs", max_attempts=7)
    for queue in (again, make_service().queue("jobs")):
        assert timedelta(seconds=10) == queue.settings.lease
        assert 7 == queue.settings.max_attempts
        assert queue.settings.retry == FixedDelay(3)


@in_python
@pytest.mark.engines("sqlite")
def test_create_queues_boots_several_and_keeps_what_is_unset(service: QueueService) -> None:
    """One call creates all queues of a server, by the same rules as one queue."""
    service.create_queue("emails", lease=timedelta(seconds=20))
    service.create_queues(
        {"emails": QueueSettings(max_attempts=3), "reports": QueueSettings(priorities=2)}
    )
    emails, reports = service.queue("emails").settings, service.queue("reports").settings
    assert timedelta(seconds=20) == emails.lease
    assert 3 == emails.max_attempts
    assert timedelta(seconds=300) == reports.lease
    assert 2 == reports.priorities


@in_python
@pytest.mark.engines("sqlite")
def test_another_payload_type_is_a_mismatch(service: QueueService) -> None:
    """A queue's payload type cannot change, and the error names both."""
    service.create_queue("jobs", payload="json")
    with pytest.raises(QueueSchemaMismatch, match=r"(?s)json.*bytes|bytes.*json"):
        service.create_queue("jobs", payload="bytes")
    assert "json" == service.queue("jobs").settings.payload


def test_lowering_priorities_below_existing_messages_is_refused(service: QueueService) -> None:
    """No message may fall out of the levels that a claim walks."""
    queue = service.create_queue("jobs", priorities=3)
    queue.publish("least urgent", priority=2)
    with pytest.raises((QueueError, ValueError)):
        service.create_queue("jobs", priorities=2)
    assert ["least urgent"] == [message.payload for message in queue.consume(5)]


@in_python
@pytest.mark.engines("sqlite")
def test_settings_that_cannot_work_are_refused(service: QueueService) -> None:
    """Nonsense, and a misspelt setting, is refused before anything is created."""
    nonsense: list[dict[str, Any]] = [
        {"max_attempts": 0},
        {"lease": 0},
        {"lease": -1},
        {"priorities": 0},
        {"payload": "xml"},
        {"archive": "some"},
        {"leese": 3},
    ]
    for settings in nonsense:
        with refused(settings, *ARGUMENT_ERRORS):
            service.create_queue("jobs", **settings)
    assert [] == service.queues()


def test_every_queue_gets_its_own_indexes(service: QueueService, engine: Engine) -> None:
    """Index names carry the queue's name, so the second queue has as many as the first."""
    service.create_queues({"alpha": QueueSettings(), "beta": QueueSettings()})
    found = {
        name: inspect(engine).get_indexes(service.queue(name).table.name)
        for name in ("alpha", "beta")
    }
    assert len(found["alpha"]) == len(found["beta"]) >= 1
    for name, indexes in found.items():
        assert all(name in str(index["name"]).lower() for index in indexes)


@pytest.mark.empty_database
def test_many_threads_may_create_the_same_queues(make_service: MakeService) -> None:
    """Servers that boot at once all succeed."""
    services = [make_service() for _ in range(6)]

    def boot(service: QueueService) -> str:
        service.create_queues({"one": QueueSettings(), "two": QueueSettings()})
        return str(service.queue("two").publish("up").outcome)

    with ThreadPoolExecutor(len(services)) as pool:
        assert list(pool.map(boot, services)) == ["created"] * len(services)
    assert services[0].queue("two").stats().ready == len(services)


@in_python
@pytest.mark.engines("sqlite")
def test_queues_lists_all_and_queue_finds_one(make_service: MakeService) -> None:
    """Another service sees the queues that the first one created."""
    make_service().create_queues({"b": QueueSettings(), "a": QueueSettings(lease=9)})
    other = make_service()
    assert ["a", "b"] == sorted(queue.name for queue in other.queues())
    assert timedelta(seconds=9) == other.queue("a").settings.lease


@pytest.mark.empty_database
def test_an_unknown_queue_is_not_found(service: QueueService) -> None:
    """Asking for a queue never creates it, even on an empty database."""
    with pytest.raises(QueueNotFound):
        service.queue("jobs")
    assert [] == service.queues()


def test_a_dropped_queue_is_gone_with_its_messages(service: QueueService, engine: Engine) -> None:
    """Dropping says whether there was one; the name is free; other queues keep what they have."""
    service.create_queue("jobs").publish("lost on purpose")
    service.create_queue("jobs_more").publish("stays")
    assert service.drop_queue("jobs") is True
    assert service.drop_queue("jobs") is False
    assert not inspect(engine).has_table("queue_jobs")
    with pytest.raises(QueueNotFound):
        service.queue("jobs")
    again = service.create_queue("jobs", payload="bytes")
    assert 0 == again.stats().ready
    assert ["stays"] == [message.payload for message in service.queue("jobs_more").consume()]


def test_verbs_on_a_dropped_queue_say_so(make_service: MakeService) -> None:
    """A queue that another server dropped gives an error, never an empty answer."""
    queue = make_service().create_queue("jobs")
    make_service().drop_queue("jobs")
    with pytest.raises(QueueError):
        queue.publish("nowhere to go")
    with pytest.raises(QueueError):
        queue.consume()


@pytest.mark.default_on("sqlite", "postgresql")
def test_verbs_on_a_queue_that_was_made_anew_say_so(
    make_service: MakeService, engine: Engine
) -> None:
    """Whoever still has it open in its former form is told, and told what to do."""
    queue = make_service().create_queue("jobs", columns=[Column("tenant", Integer)])
    other = make_service()
    queue.publish("x", columns={"tenant": 1})
    queue.consume()
    other.drop_queue("jobs")
    other.create_queue("jobs", payload="bytes")
    verbs: dict[str, Callable[..., object]] = {
        "publish": lambda: queue.publish("y", columns={"tenant": 2}),
        "publish with connection": lambda mine: queue.publish(
            "y", columns={"tenant": 2}, connection=mine
        ),
        "consume": queue.consume,
        "take with connection": lambda mine: queue.take(connection=mine),
        "list": lambda: queue.messages().list(),
    }
    for name, verb in verbs.items():
        with engine.connect() as mine, refused(name, QueueSchemaMismatch, match="created again"):
            verb(*([mine] if "connection" in name else []))


@pytest.mark.default_on("sqlite", "postgresql")
@in_python
def test_verbs_find_a_queue_that_came_again_with_other_limits(make_service: MakeService) -> None:
    """Another process dropped and created it; each verb finds the new tables in the first call."""
    late, other = make_service(reaper_interval=3600), make_service()
    verbs: dict[str, Callable[[Queue, Message], object]] = {
        "publish": lambda queue, _: queue.publish(1).outcome,
        "publish_many": lambda queue, _: len(queue.publish_many([1, 2])),
        "load": lambda queue, _: queue.load([1, 2]),
        "consume": lambda queue, _: payloads(queue.consume(2)),
        "list": lambda queue, _: payloads(queue.messages().list()),
        "count": lambda queue, _: queue.messages().count(),
        "remove": lambda queue, _: queue.messages().remove(),
        "edit": lambda queue, _: queue.edit(1, payload="edited"),
        "delete": lambda queue, _: queue.delete(1),
        "cancel": lambda queue, _: queue.cancel(1),
        "stats": lambda queue, _: queue.stats().ready,
        "why": lambda queue, _: queue.why(1).message_id,
        "groups": lambda queue, _: len(queue.groups.list()),
        "publish in a group": lambda queue, _: queue.publish(1, group="g"),
        "ack": lambda queue, message: queue.ack(message),
        "nack": lambda queue, message: queue.nack(message),
        "reject": lambda queue, message: queue.reject(message, "unfit"),
        "extend": lambda queue, message: queue.extend(message),
        "exchange": lambda queue, message: queue.exchange(message),
    }
    found: dict[str, object] = {}
    for name, verb in verbs.items():
        other.create_queue("jobs", group_rate="1000/s", queue_limit=5)
        queue = late.queue("jobs")
        queue.refresh()
        queue.publish("before")
        [message] = queue.consume()
        other.drop_queue("jobs")
        other.create_queue("jobs").publish("there")
        try:
            found[name] = verb(queue, message)
        except (QueueError, ValueError) as error:
            found[name] = type(error).__name__
        other.drop_queue("jobs")
    assert {
        "publish": "created",
        "publish_many": 2,
        "load": 2,
        "consume": ["there"],
        "list": ["there"],
        "count": 1,
        "remove": 1,
        "edit": 1,
        "delete": True,
        "cancel": True,
        "stats": 1,
        "why": 1,
        "groups": "ValueError",
        "publish in a group": "ValueError",
        "ack": "ClaimLost",
        "nack": "ClaimLost",
        "reject": "ClaimLost",
        "extend": "ClaimLost",
        "exchange": "ClaimLost",
    } == found


@pytest.mark.default_on("sqlite", "postgresql", "mysql", "mariadb")  # H2 waits for 10 s
@pytest.mark.threads("the wait is the database's")
def test_a_drop_does_not_wait_for_ever(
    make_service: MakeService,
    engine: Engine,
    database: TestDatabase,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A transaction that uses the queue keeps it whole; afterwards it can be dropped."""
    monkeypatch.setattr(repetition, "CONFLICT_SECONDS", 0.1)
    features = dialect_named(database.engine).features
    monkeypatch.setitem(vars(features), "lock_seconds", 1)
    service, other = make_service(), make_service()
    queue = service.create_queue("jobs", archive="all", dedup_window=60)
    columns = inspect(engine).get_columns("queue_jobs_dedup_keys")
    with engine.connect() as user:
        queue.publish("held", connection=user)
        with pytest.raises(DatabaseUnavailable, match="locked"):
            service.drop_queue("jobs")
    other.create_queue("more")
    assert len(columns) == len(inspect(engine).get_columns("queue_jobs_dedup_keys"))
    queue.publish("kept")
    assert ["kept"] == payloads(other.queue("jobs").consume())
    assert other.drop_queue("jobs")


@pytest.mark.engines("postgresql")
@pytest.mark.threads("the wait is the database's")
def test_a_creator_does_not_wait_for_ever(
    service: QueueService, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time limit counts from the wait for another creator on, who may never end."""
    features = parts_of(service).connections.dialect.features
    monkeypatch.setitem(vars(features), "creation_seconds", 0.5)
    with ThreadPoolExecutor(1) as pool, engine.connect() as stuck:
        stuck.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_CREATION_LOCK})")
        late = pool.submit(service.create_queue, "jobs")
        try:
            with pytest.raises(DatabaseUnavailable, match="locked"):
                late.result(20)
        finally:
            stuck.rollback()
    assert "jobs" == service.create_queue("jobs").name


@pytest.mark.empty_database
@pytest.mark.threads("there a cancellation ends the connection, which this does by hand")
def test_an_interrupted_creator_says_why(engine: Engine) -> None:
    """That its connection is broken, too, is no news to whoever pressed Ctrl-C."""
    with engine.connect() as connection:
        dialect = OpenedEngine(connection.engine, dialect_named).dialect_of(connection)
        connection.rollback()
        with pytest.raises(KeyboardInterrupt), dialect.ddl.creating(connection, None):
            interrupt(connection)


def interrupt(connection: Connection) -> None:
    """What a signal in the middle of a statement does."""
    connection.invalidate()
    raise KeyboardInterrupt
