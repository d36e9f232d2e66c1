"""Temporary queues: they end with their service, or when no consumer uses them any more."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from queue_over_sql import QueueNotFound, QueueSchemaMismatch
from queue_over_sql.catalog.catalog import Catalog
from queue_over_sql.claiming.claimer import Claimer
from queue_over_sql.durable.consumer import DurableConsumer
from queue_over_sql.service import parts_of
from tests.contract.queue_state import payloads
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection, Engine

    from queue_over_sql import QueueService
    from queue_over_sql.queues.registry import QueueRecord
    from queue_over_sql.testing.plugin import MakeService

HOUR_US = 3_600_000_000


def kill(service: QueueService, engine: Engine) -> None:
    """Let the consumer of a service seem long dead."""
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE queue_over_sql_consumers SET expires_at = 1 WHERE consumer_id = :id"),
            {"id": service.consumer_id},
        )


def facts(engine: Engine, column: str) -> set[Any]:
    """What the records of all queues say."""
    with engine.connect() as connection:
        found = connection.execute(text(f"SELECT {column} FROM queue_over_sql_queues"))
        return set(found.scalars())


@contextlib.contextmanager
def locked(engine: Engine, name: str) -> Iterator[None]:
    """Lock the record of a queue in another transaction."""
    record = text("SELECT name FROM queue_over_sql_queues WHERE name = :name FOR UPDATE")
    with engine.begin() as connection:
        connection.execute(record, {"name": name})
        yield


def put_back(engine: Engine, name: str, hours: float) -> None:
    """Let the last use of a queue be longer ago."""
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE queue_over_sql_queues SET used_at = used_at - :us WHERE name = :name"),
            {"us": round(hours * HOUR_US), "name": name},
        )


def test_a_temporary_queue_ends_with_its_service(
    make_service: MakeService, service: QueueService
) -> None:
    """Until then all may use it; then its tables and its subscriptions are gone."""
    topic = service.create_topic("events")
    owner = make_service()
    box = owner.create_queue("box", temporary=True, archive="all")
    assert box.temporary
    topic.subscribe("box", "worker.#")
    assert ["box"] == [one.queue for one in topic.publish("x", routing_key="worker.1")]
    assert ["x"] == payloads(box.consume())
    assert [] == service.queues()
    assert ["box"] == [queue.name for queue in service.queues(temporary=True)]
    assert 0 == service.reap().dropped
    owner.stop()
    with pytest.raises(QueueNotFound):
        service.queue("box").stats()
    assert [] == topic.publish("y", routing_key="worker.1")
    # Nothing of it is left that a new one would find.
    again = service.create_queue("box")
    assert not again.temporary
    assert (0, 0) == (again.stats().claimed, again.archive.messages().count())


def test_a_dead_services_temporary_queues_are_dropped(
    make_service: MakeService, service: QueueService, engine: Engine
) -> None:
    """Any reaper does it; until then it serves them as all queues."""
    topic = service.create_topic("events")
    owner, other = make_service(consumer_timeout=60), make_service(consumer_timeout=60)
    topic.subscribe(owner.create_queue("box", temporary=True))
    topic.publish("x", routing_key="all")
    assert 1 == len(other.queue("box").consume())
    kill(other, engine)
    report = service.reap()
    assert (1, 1, 0) == (report.restored, report.consumers, report.dropped)
    kill(owner, engine)
    # Its process may live.
    assert 0 == service.reap().dropped

    def gone_by_a_new_reaper() -> bool:
        # As a job that a timer starts: none remembers what the former one saw. It looks by itself,
        # too, so the report may not count the queue.
        with make_service(consumer_timeout=0.5) as reaper:
            reaper.reap()
        return "box" not in facts(engine, "name")

    eventually(gone_by_a_new_reaper, "it is dropped", every=0.2)
    assert [] == topic.publish("y", routing_key="all")
    with pytest.raises(QueueNotFound):
        make_service().queue("box")


def test_a_temporary_queue_is_taken_over(
    make_service: MakeService, service: QueueService, engine: Engine
) -> None:
    """A restarted program creates it before the dead one's is dropped, and keeps its messages."""
    former, now = make_service(consumer_timeout=60), make_service()
    former.create_queue("box", temporary=True).publish("x")
    kill(former, engine)
    box = now.create_queue("box", temporary=True)
    assert 0 == service.reap().dropped
    assert ["x"] == payloads(box.consume())
    now.stop()
    with pytest.raises(QueueNotFound):
        service.queue("box").stats()
    service.create_queue("jobs")
    with pytest.raises(QueueSchemaMismatch, match="is not temporary"):
        service.create_queue("jobs", temporary=True)


def test_a_queue_that_nobody_uses_is_dropped(
    make_service: MakeService, service: QueueService, engine: Engine
) -> None:
    """So long after the last consumer that asked for its messages, whatever is published to it."""
    events = service.create_queue("events", unused_for=3600)
    service.create_queue("jobs")
    put_back(engine, "events", 1.05)
    assert 0 == service.reap().dropped
    # Who creates it again uses it.
    put_back(engine, "events", 0.1)
    service.create_queue("events", unused_for=3600)
    assert 0 == service.reap().dropped
    user = make_service()
    user.queue("events").consume()
    put_back(engine, "events", 9)
    assert 0 == service.reap().dropped
    user.stop()
    events.publish("x")
    assert 0 == service.reap().dropped
    put_back(engine, "events", 9)
    assert 1 == service.reap().dropped
    assert ["jobs"] == [queue.name for queue in service.queues()]
    kept = service.create_queue("events", unused_for=3600)
    service.create_queue("events", unused_for=None)
    put_back(engine, "events", 9)
    assert 0 == service.reap().dropped
    assert kept.settings.unused_for is None


@pytest.mark.engines("sqlite")
def test_a_refused_change_lets_a_queue_end(service: QueueService, engine: Engine) -> None:
    """Who keeps a queue for good, but has another type of payloads, changes nothing."""
    service.create_queue("box", unused_for=3600)
    with pytest.raises(QueueSchemaMismatch):
        service.create_queue("box", unused_for=None, payload="bytes")
    with pytest.raises(QueueNotFound, match="missing"):
        service.create_queue("box", unused_for=None, dead_letter_queue="missing")
    assert None not in facts(engine, "used_at")
    for _ in range(2):
        service.create_queue("box", unused_for=None)
        assert {None} == facts(engine, "used_at")


def test_a_living_service_keeps_its_queues(
    make_service: MakeService, service: QueueService, engine: Engine
) -> None:
    """It was declared dead for a missed heartbeat, registers anew, and goes on with its queues."""
    owner, patient = make_service(), make_service(consumer_timeout=0.5)
    owner.create_queue("box", temporary=True).publish("x")
    owner.create_queue("other", temporary=True)
    former = owner.consumer_id
    assert former is not None
    service.release_consumer(former)
    assert 0 == patient.reap().dropped
    assert None not in facts(engine, "orphaned_at")
    # It notices that by its heartbeat.
    parts_of(owner).consumer.identity().renew(float("-inf"))
    owner.reap()
    assert owner.consumer_id not in {former, None}
    assert {owner.consumer_id} == facts(engine, "owner_id")
    assert {None} == facts(engine, "orphaned_at")
    # An earlier release forgets to clear this, and then the next death has no time to pass.
    with engine.begin() as connection:
        connection.execute(text("UPDATE queue_over_sql_queues SET orphaned_at = 1"))
    assert 0 == patient.reap().dropped
    assert {None} == facts(engine, "orphaned_at")
    assert ["x"] == payloads(owner.queue("box").consume())
    owner.stop()
    assert [] == service.queues(temporary=True)


@pytest.mark.parametrize("how", ["take", "hold", "elsewhere"])
def test_a_queue_is_in_use_without_a_registered_claim(
    service: QueueService, make_service: MakeService, engine: Engine, how: str
) -> None:
    """By a transaction that takes, a claim that ends with its lease, or who holds a message."""
    make_service().create_queue("events", unused_for=3600)
    user = make_service().queue("events")
    user.publish_many(["x", "y"])
    put_back(engine, "events", 9)
    if how == "take":
        with engine.begin() as connection:
            assert ["x"] == [message.payload for message in user.take(connection=connection)]
        assert 0 == service.reap().dropped
    else:
        (message,) = user.consume(hold_for=3600)
        if how == "elsewhere":
            # As who claims by SQL.
            put_back(engine, "events", 9)
            assert 0 == service.reap().dropped
        message.ack()
        assert 0 == service.reap().dropped
    assert user.messages().count()
    put_back(engine, "events", 9)
    assert 1 == service.reap().dropped


@pytest.mark.engines("postgresql", "mysql", "mariadb", "h2")
@pytest.mark.threads("the lock is the database's, whoever waits")
def test_a_locked_record_keeps_nobody_from_claiming(
    make_service: MakeService, service: QueueService, engine: Engine
) -> None:
    """A service registers anew while others have locked its temporary queue's record.

    It claims, and keeps the queue with its next heartbeat.
    """
    owner = make_service()
    owner.create_queue("jobs").publish("x")
    owner.create_queue("box", temporary=True)
    former = owner.consumer_id
    assert former is not None
    service.release_consumer(former)
    parts_of(owner).consumer.identity().renew(float("-inf"))
    with locked(engine, "box"):
        assert ["x"] == payloads(owner.queue("jobs").consume())
        assert former in facts(engine, "owner_id")
    parts_of(owner).consumer.heartbeat()
    assert {None, owner.consumer_id} == facts(engine, "owner_id")


@pytest.mark.threads("what a registration says does not depend on who reads it")
def test_a_durable_consumer_uses_its_queue(service: QueueService, engine: Engine) -> None:
    """As long as it is registered, also while its query rests."""
    events = service.create_queue("events", unused_for=3600)
    DurableConsumer(events, "stream", owner="test").take_over()
    for dropped in (0, 1):
        put_back(engine, "events", 9)
        assert dropped == service.reap().dropped
        if not dropped:
            service.drop_consumer("stream")


@pytest.mark.engines("postgresql")
@pytest.mark.threads("the transaction is the caller's")
def test_a_transaction_goes_on_without_its_note(
    service: QueueService, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where only the caller's connection can note the use, a refusal must not abort it.

    So it is with an engine of which we know little.
    """
    service.create_queue("events", unused_for=3600).publish("x")
    monkeypatch.setattr(Claimer, "_may_run_beside", property(lambda _: False))
    with refused_notes(engine), engine.begin() as connection:
        taken = service.queue("events").take(connection=connection)
        connection.execute(text("SELECT 1"))
    assert ["x"] == payloads(taken)
    assert 0 == service.queue("events").messages().count()


@contextlib.contextmanager
def refused_notes(engine: Engine) -> Iterator[None]:
    """Let the database refuse to note uses, as it refuses a role that lacks the right."""
    with engine.begin() as connection:
        connection.execute(text("UPDATE queue_over_sql_queues SET used_at = 1"))
        connection.execute(
            text("ALTER TABLE queue_over_sql_queues ADD CONSTRAINT no_notes CHECK (used_at < 2)")
        )
    try:
        yield
    finally:
        with engine.begin() as connection:
            connection.execute(text("ALTER TABLE queue_over_sql_queues DROP CONSTRAINT no_notes"))


@pytest.mark.threads("what the database holds does not depend on who asks it")
@pytest.mark.parametrize("how", [{"temporary": True}, {"unused_for": 3600}, {"unused_for": None}])
def test_who_creates_a_queue_that_ends_meanwhile_gets_another(
    make_service: MakeService,
    service: QueueService,
    monkeypatch: pytest.MonkeyPatch,
    how: dict[str, Any],
) -> None:
    """A reaper drops it after its record was read, so it is created again."""
    options: dict[str, Any] = {"unused_for": 3600, **how}
    make_service().create_queue("box", **options).publish("x")
    creator, read, reapers = make_service(), Catalog._record_named, [service]

    def and_dropped(
        catalog: Catalog, name: str, on: Connection | None = None
    ) -> QueueRecord | None:
        record = read(catalog, name, on)
        if reapers and record is not None:
            assert reapers.pop().drop_queue("box")
        return record

    monkeypatch.setattr(Catalog, "_record_named", and_dropped)
    box = creator.create_queue("box", **how)
    assert how.get("temporary", False) is box.temporary
    box.publish("y")
    assert ["y"] == payloads(box.consume())
