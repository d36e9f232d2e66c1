"""Publishing to a topic in the caller's transaction: all copies commit with it, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Column, Integer, create_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from queue_over_sql import (
    DatabaseRefused,
    DuplicateKey,
    PayloadInvalid,
    PayloadTooLarge,
    QueueService,
    WrongDatabase,
)
from tests.contract.queue_state import add_effect, effect_count
from tests.contract.topics.three_queues import NAMES, contents, three_queues
from tests.refusals import refused

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Connection, Engine

    from queue_over_sql import Topic
    from queue_over_sql.testing.plugin import MakeService


@pytest.fixture
def topic(service: QueueService) -> Topic:
    """A topic with three queues that take everything; ``b`` has three levels."""
    return three_queues(service)


def test_copies_commit_with_the_callers_effects(
    topic: Topic, service: QueueService, effects_engine: Engine
) -> None:
    """Rolled back they never were; all is seen after the commit and nothing before.

    A connection and a session will do, and the publish may come first.
    """
    with effects_engine.connect() as caller:
        topic.publish("one", routing_key="x", connection=caller)
        add_effect(caller, 1)
        topic.publish("two", routing_key="x", connection=caller)
        caller.rollback()
    assert 0 == effect_count(effects_engine)
    assert [[], [], []] == contents(service)
    with Session(effects_engine) as session:
        add_effect(session, 1)
        published = topic.publish("one", routing_key="x", connection=session)
        assert [*NAMES] == [one.queue for one in published]
        assert [[], [], []] == contents(service)
        session.commit()
    assert 1 == effect_count(effects_engine)
    assert [["one"]] * 3 == contents(service)


def test_a_refusal_leaves_the_callers_transaction_usable(
    topic: Topic, service: QueueService, effects_engine: Engine
) -> None:
    """What was done before stays, no copy of the refused message does, and it can go on."""
    service.create_queue("c", max_payload_bytes=50)
    service.queue("c").publish("there", key="k")
    wrong: list[tuple[object, type[Exception]]] = [
        ("new", DuplicateKey),
        ({1: 2}, PayloadInvalid),
        ("x" * 60, PayloadTooLarge),
    ]
    with Session(effects_engine) as session:
        add_effect(session, 1)
        topic.publish("before", routing_key="x", connection=session)
        for payload, error in wrong:
            with refused(payload, error):
                topic.publish(payload, routing_key="x", key="k", connection=session)
            topic.publish("after", routing_key="x", connection=session)
        add_effect(session, 2)
        session.commit()
    assert 2 == effect_count(effects_engine)
    expected = ["before", "after", "after", "after"]
    assert [expected, expected, ["there", *expected]] == contents(service)


@pytest.mark.default_on("sqlite", "postgresql")
def test_a_process_may_begin_with_the_callers_transaction(
    topic: Topic, service: QueueService, make_service: MakeService, engine: Engine
) -> None:
    """Its first publish, in the middle of a transaction, finds all subscriptions."""
    other = make_service()
    fresh = other.topic("events")
    with engine.begin() as caller:
        fresh.publish("one", routing_key="x", connection=caller)
        topic.publish("two", routing_key="x", connection=caller)
    assert [["one", "two"]] * 3 == contents(service)


@pytest.mark.engines("sqlite")
@pytest.mark.threads("the caller's engine is a synchronous one")
def test_a_transaction_elsewhere_is_refused(topic: Topic, tmp_path: Path) -> None:
    """A connection to another database raises before anything is done."""
    elsewhere = create_engine(f"sqlite:///{tmp_path / 'elsewhere.db'}")
    with elsewhere.connect() as caller, pytest.raises(WrongDatabase):
        topic.publish(1, routing_key="x", connection=caller)
    elsewhere.dispose()
    with pytest.raises(TypeError, match="connection"):
        topic.publish(1, routing_key="x", connection=elsewhere)  # type: ignore[arg-type]


@pytest.mark.default_on("sqlite", "postgresql")
@pytest.mark.threads("the caller's engine is a synchronous one")
def test_a_connection_without_a_transaction_is_refused(
    topic: Topic, service: QueueService, engine: Engine
) -> None:
    """What commits each statement could leave some copies without the others."""
    plain = create_engine(engine.url)
    by_default = create_engine(engine.url, isolation_level="AUTOCOMMIT")
    for other in (by_default, plain.execution_options(isolation_level="AUTOCOMMIT")):
        with other.connect() as connection, refused(other, ValueError, match="AUTOCOMMIT"):
            topic.publish("x", routing_key="k", connection=connection)
        other.dispose()
    assert [[], [], []] == contents(service)


@pytest.mark.engines("sqlite")
def test_in_memory_the_callers_transaction_stays_open(engine_name: str) -> None:
    """There all share the caller's one connection, and opening queues must not end its work."""
    assert "sqlite" == engine_name
    shared = create_engine("sqlite://", poolclass=StaticPool)
    maker, service = QueueService(shared), QueueService(shared)
    maker.create_topic("events").subscribe(maker.create_queue("a"))
    maker.topic("events").subscribe(maker.create_queue("b", columns=[Column("n", Integer)]))
    topic = service.topic("events")
    with shared.connect() as caller:
        maker.queue("a").publish("before", connection=caller)
        topic.publish("one", routing_key="x", connection=caller)
        caller.rollback()
    assert [0, 0] == [service.queue(name).messages().count() for name in ("a", "b")]
    topic.publish("two", routing_key="x")
    assert [1, 1] == [service.queue(name).messages().count() for name in ("a", "b")]
    service.stop()
    maker.stop()
    shared.dispose()


def test_what_the_database_refuses_is_told(
    topic: Topic, service: QueueService, engine: Engine
) -> None:
    """A unique index of the user's own: DatabaseRefused, and no copy anywhere."""
    with engine.begin() as connection:
        table = service.queue("c").table.name
        connection.exec_driver_sql(f"CREATE UNIQUE INDEX one_kind ON {table} (kind)")
    topic.publish("one", routing_key="x", kind="k")
    with pytest.raises(DatabaseRefused):
        topic.publish("two", routing_key="x", kind="k")
    assert [["one"]] * 3 == contents(service)
    with engine.connect() as caller:
        topic.publish("three", routing_key="x", connection=caller)
        with pytest.raises(DatabaseRefused):
            topic.publish("four", routing_key="x", kind="k", connection=caller)
        caller.commit()
    assert [["one", "three"]] * 3 == contents(service)


def test_what_was_replaced_before_a_refusal_is_as_it_was(
    topic: Topic, service: QueueService, engine: Engine
) -> None:
    """In the caller's transaction nothing of the refused message stays, in any form."""
    topic.publish("old", routing_key="x", key="k", kind="first")
    with engine.begin() as connection:
        table = service.queue("c").table.name
        connection.exec_driver_sql(f"CREATE UNIQUE INDEX one_kind ON {table} (kind)")
    service.queue("c").publish("other", kind="second")

    def replace(payload: str, kind: str, caller: Connection) -> list[str]:
        published = topic.publish(
            payload,
            routing_key="x",
            key="k",
            kind=kind,
            on_conflict="replace",
            connection=caller,
        )
        return [str(one.outcome) for one in published]

    with engine.connect() as caller:
        with pytest.raises(DatabaseRefused):
            replace("new", "second", caller)
        assert ["replaced"] * 3 == replace("newer", "third", caller)
        caller.rollback()
        with pytest.raises(DatabaseRefused):
            replace("new", "second", caller)
        caller.commit()
    assert [["old"], ["old"], ["old", "other"]] == contents(service)


@pytest.mark.engines("sqlite", "postgresql", "mysql", "mariadb")
@pytest.mark.threads("the answer is the database's")
@pytest.mark.parametrize("known", ["nobody", "others"])
def test_a_transaction_that_only_reads_is_no_topic_without_subscribers(
    service: QueueService, engine: Engine, known: str
) -> None:
    """An old server may not know the newer subscriptions, so nobody is told that there are none."""
    topic = service.create_topic("events")
    if known == "others":
        topic.subscribe(service.create_queue("a"), "other")
    begin, end = {
        "sqlite": ("PRAGMA query_only = 1", "PRAGMA query_only = 0"),
        "postgresql": ("SET TRANSACTION READ ONLY", None),
    }.get(engine.dialect.name, ("START TRANSACTION READ ONLY", None))
    with engine.connect() as connection:
        connection.exec_driver_sql(begin).close()
        with pytest.raises(DatabaseRefused, match=r"begin one that may write|readonly"):
            topic.publish("x", routing_key="all", connection=connection)
        connection.rollback()
        if end is not None:
            connection.exec_driver_sql(end).close()
    assert [] == topic.publish("x", routing_key="all")
