"""The caller's own transaction: effects and queue verbs commit together or not at all."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, DateTime, Engine, Numeric, create_engine, make_url, text
from sqlalchemy.orm import Session

from queue_over_sql import (
    ClaimLost,
    DatabaseUnavailable,
    DuplicateKey,
    PayloadInvalid,
    Publication,
    Queue,
    QueueService,
)
from queue_over_sql.testing.contract.settling import TRANSACTION_VERBS
from tests.contract.queue_state import add_effect, counts, ids, payloads
from tests.waiting import consume_exactly

if TYPE_CHECKING:
    from queue_over_sql.testing.plugin import TestDatabase
    from queue_over_sql.values.states import OnConflict

pytestmark = pytest.mark.driver_decides


@pytest.mark.threads("the caller's engine here is a synchronous one")
@pytest.mark.engines("postgresql")
def test_the_callers_connection_may_have_another_driver(database: TestDatabase) -> None:
    """Each verb works there as on the service's own driver, whichever of the two that is.

    Of PostgreSQL: its drivers write parameters each in another form.
    """
    url = make_url(database.url)
    with ExitStack() as stack:
        engines = create_engine(url), create_engine(url.set(drivername="postgresql+pg8000"))
        for engine in engines:
            stack.callback(engine.dispose)
        for number, (own, other) in enumerate((engines, engines[::-1])):
            service = stack.enter_context(QueueService(own))
            columns: list[Column[Any]] = [Column("price", Numeric(10, 2)), Column("sold", DateTime)]
            queue = service.create_queue(f"jobs_{number}", columns=columns, archive="all")
            assert_works_through(queue, other)


def assert_works_through(queue: Queue, engine: Engine) -> None:
    """Publish, settle, edit, send again and take in transactions of this engine."""
    mine: dict[str, Any] = {"price": Decimal("1.50"), "sold": datetime(2020, 1, 2, 3, 4, 5)}  # noqa: DTZ001
    for verb in TRANSACTION_VERBS.values():
        with engine.begin() as caller:
            queue.publish({"100 %": ":x %s $1"}, **mine, connection=caller)
        with engine.begin() as caller:
            verb(queue, queue.consume(), caller)
        with engine.begin() as caller:
            queue.messages().remove(connection=caller)
    with engine.begin() as caller:
        queue.archive.messages().requeue(connection=caller)
        for on_conflict in ("raise", "replace", "skip"):
            queue.publish("k", key="k", on_conflict=on_conflict, connection=caller)
        with pytest.raises(DuplicateKey):
            queue.publish("k", key="k", connection=caller)
        queue.publish_many([Publication("many", columns=mine) for _ in range(3)], connection=caller)
    with engine.begin() as caller:
        queue.messages(payload={"100 %": ":x %s $1"}).reschedule(delay=60, connection=caller)
        taken = queue.take(9, connection=caller)
    assert ["k", "many", "many", "many"] == payloads(taken)
    assert mine == taken[-1].columns
    with engine.begin() as caller:
        caller.execute(text(f"ALTER TABLE {queue.table} ADD CHECK (price > 0)"))
    with engine.connect() as caller, pytest.raises(PayloadInvalid):
        queue.publish("x", columns={"price": 0}, connection=caller)


@pytest.mark.threads("SQLAlchemy refuses")
@pytest.mark.default_on("sqlite", "postgresql")
def test_a_connection_that_is_over_is_refused(
    service: QueueService, effects_engine: Engine
) -> None:
    """Closed, ended, failed or of no database: an error of ours says what to do instead."""
    queue, topic = service.create_queue("jobs"), service.create_topic("events")
    queue.publish("x")
    (message,) = queue.consume()
    closed = effects_engine.connect()
    closed.close()
    with effects_engine.connect() as ended, ended.begin() as transaction:
        transaction.commit()
        with effects_engine.connect() as lost:
            add_effect(lost, 1)
            lost.invalidate()
            for caller, error, text in (
                (closed, ValueError, "Pass an open one"),
                (ended, ValueError, "Pass an open one"),
                (Session(), ValueError, "Pass an open one"),
                (lost, DatabaseUnavailable, "Roll it back"),
            ):
                for operation in (
                    lambda given: queue.publish("y", connection=given),
                    lambda given: topic.publish("y", routing_key="r", connection=given),
                    lambda given: message.ack(connection=given),
                ):
                    with pytest.raises(error, match=text):
                        operation(caller)
    message.ack()
    assert 0 == service.queue("jobs").stats().ready


@pytest.mark.threads("the connection is used as in the tests above")
def test_a_partly_lost_batch_belongs_to_the_caller(queue: Queue, effects_engine: Engine) -> None:
    """The claims still held are settled in the caller's transaction, as it ends."""
    queue.publish_many(["lost", "held"])
    messages = queue.consume(2)
    queue.delete(messages[0].id)
    with effects_engine.connect() as caller:
        for end, expected in ((caller.rollback, (0, 1, 0)), (caller.commit, (0, 0, 0))):
            with pytest.raises(ClaimLost) as caught:
                queue.ack(messages, connection=caller)
            end()
            assert ids(messages[:1]) == ids(caught.value.messages)
            assert expected == counts(queue)


@pytest.mark.threads("the connection is used as in the tests above")
def test_conflicts_are_resolved_in_the_callers_transaction(
    queue: Queue, effects_engine: Engine
) -> None:
    """Skip and replace see what the transaction itself published."""
    ways: dict[OnConflict, str] = {"skip": "first", "replace": "second"}
    for on_conflict, expected in ways.items():
        with effects_engine.connect() as caller:
            first = queue.publish("first", key="k", connection=caller)
            second = queue.publish("second", key="k", on_conflict=on_conflict, connection=caller)
            caller.commit()
        assert first.id == second.id
        messages = consume_exactly(queue, 1)
        assert [expected] == payloads(messages)
        queue.ack(messages)


@pytest.mark.threads("the connection is used as in the tests above")
def test_a_rolled_back_dead_letter_is_still_live(
    service: QueueService, effects_engine: Engine
) -> None:
    """Archive row and live row change in one transaction, the caller's."""
    queue = service.create_queue("strict", max_attempts=1, archive="all")
    queue.publish_many(["a", "b"])
    last, done = queue.consume(2)
    with effects_engine.connect() as caller:
        last.nack("dead", connection=caller)
        done.ack(connection=caller)
        caller.rollback()
    assert (0, 2, 0) == counts(queue)
    with effects_engine.begin() as caller:
        last.nack("dead", connection=caller)
        done.ack(connection=caller)
    assert (0, 0, 2) == counts(queue)
