"""The caller's own transaction: effects and queue verbs commit together or not at all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime
from decimal import Decimal
from itertools import cycle
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, DateTime, Engine, Numeric, create_engine, make_url, text
from sqlalchemy.orm import Session

from queue_over_sql import (
    ClaimLost,
    DatabaseUnavailable,
    DuplicateKey,
    Message,
    PayloadInvalid,
    Publication,
    Queue,
    QueueService,
)
from tests.contract.caller_transactions import OPENERS, Caller, opened
from tests.contract.queue_state import add_effect, counts, effect_count, ids, live_rows, payloads
from tests.waiting import consume_exactly

if TYPE_CHECKING:
    from queue_over_sql.testing.plugin import TestDatabase

pytestmark = pytest.mark.driver_decides

Verb = Callable[[Queue, list[Message], Caller], object]

VERBS: dict[str, Verb] = {
    "ack": lambda _, messages, caller: messages[0].ack(connection=caller),
    "nack": lambda _, messages, caller: messages[0].nack("no", delay=0, connection=caller),
    "release": lambda _, messages, caller: messages[0].release(connection=caller),
    "reject": lambda _, messages, caller: messages[0].reject("no", connection=caller),
    "extend": lambda _, messages, caller: messages[0].extend(lease=900, connection=caller),
    "batch ack": lambda queue, messages, caller: queue.ack(messages, connection=caller),
    "batch nack": lambda queue, messages, caller: queue.nack(
        messages, error="no", delay=0, connection=caller
    ),
    "batch release": lambda queue, messages, caller: queue.release(messages, connection=caller),
    "batch reject": lambda queue, messages, caller: queue.reject(messages, "no", connection=caller),
    "batch extend": lambda queue, messages, caller: queue.extend(
        messages, lease=900, connection=caller
    ),
}


def state(queue: Queue, engine: Engine) -> Any:
    """All that a settle in the caller's transaction may change."""
    return live_rows(engine, queue), queue.stats().archived, effect_count(engine)


def test_a_publish_follows_the_callers_transaction(queue: Queue, effects_engine: Engine) -> None:
    """It is seen when the caller commits, not before, and never after a rollback."""
    for number, opener in enumerate(OPENERS.values()):
        first_id = 0
        with opened(opener, effects_engine) as caller:
            for end in (caller.rollback, caller.commit):
                add_effect(caller, number)
                first_id = queue.publish("one", connection=caller).id
                queue.publish_many(["two", Publication("three", key="k")], connection=caller)
                assert (queue.stats().ready, effect_count(effects_engine)) == (0, number)
                end()
        messages = consume_exactly(queue, 3)
        assert payloads(messages) == ["one", "two", "three"]
        assert first_id == messages[0].id
        assert effect_count(effects_engine) == number + 1
        queue.ack(messages)


def test_a_settle_follows_the_callers_transaction(queue: Queue, effects_engine: Engine) -> None:
    """It acts when the caller commits; after a rollback the claim stands as before."""
    acts = zip(VERBS.items(), cycle(OPENERS.values()))
    for number, ((name, verb), opener) in enumerate(acts):
        queue.publish("x")
        messages = queue.consume()
        before = state(queue, effects_engine)
        with opened(opener, effects_engine) as caller:
            for end in (caller.rollback, caller.commit):
                assert before == state(queue, effects_engine), name
                add_effect(caller, number)
                verb(queue, messages, caller)
                assert before == state(queue, effects_engine), name
                end()
        assert before[0] != live_rows(effects_engine, queue), name
        assert effect_count(effects_engine) == number + 1
        queue.purge(claimed=True)


def test_a_duplicate_key_leaves_the_transaction_usable(
    queue: Queue, effects_engine: Engine
) -> None:
    """After DuplicateKey the caller goes on and commits what it did before and after."""
    first = queue.publish("first", key="k")
    for number, opener in enumerate(OPENERS.values()):
        with opened(opener, effects_engine) as caller:
            add_effect(caller, 2 * number)
            with pytest.raises(DuplicateKey) as caught:
                queue.publish("second", key="k", connection=caller)
            with pytest.raises(DuplicateKey):
                queue.publish_many(["plain", Publication("third", key="k")], connection=caller)
            add_effect(caller, 2 * number + 1)
            queue.publish("other", connection=caller)
            caller.commit()
        assert first.id == caught.value.id
    assert effect_count(effects_engine) == 4
    assert payloads(consume_exactly(queue, 3)) == ["first", "other", "other"]
    assert queue.stats().ready == 0


def test_a_lost_claim_leaves_the_transaction_usable(queue: Queue, effects_engine: Engine) -> None:
    """After ClaimLost the caller goes on and commits what it did before and after."""
    queue.publish_many(["lost", "other"])
    messages = queue.consume()
    queue.delete(messages[0].id)
    with opened(OPENERS["connection"], effects_engine) as caller:
        for number, verb in enumerate(VERBS.values()):
            add_effect(caller, number)
            with pytest.raises(ClaimLost) as caught:
                verb(queue, messages, caller)
            assert ids(messages) == ids(caught.value.messages)
        add_effect(caller, len(VERBS))
        caller.commit()
    assert effect_count(effects_engine) == len(VERBS) + 1
    assert counts(queue) == (1, 0, 0)


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
    for verb in VERBS.values():
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
        queue.publish("x", price=0, connection=caller)


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
                (closed, ValueError, "Give one that is open"),
                (ended, ValueError, "Give one that is open"),
                (Session(), ValueError, "Give one that is open"),
                (lost, DatabaseUnavailable, "Roll it back"),
            ):
                for act in (
                    lambda given: queue.publish("y", connection=given),
                    lambda given: topic.publish("y", routing_key="r", connection=given),
                    lambda given: message.ack(connection=given),
                ):
                    with pytest.raises(error, match=text):
                        act(caller)
    message.ack()
    assert service.queue("jobs").stats().ready == 0


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
    for on_conflict, expected in {"skip": "first", "replace": "second"}.items():
        with effects_engine.connect() as caller:
            first = queue.publish("first", key="k", connection=caller)
            second = queue.publish("second", key="k", on_conflict=on_conflict, connection=caller)
            caller.commit()
        assert first.id == second.id
        messages = consume_exactly(queue, 1)
        assert payloads(messages) == [expected]
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
    assert counts(queue) == (0, 2, 0)
    with effects_engine.begin() as caller:
        last.nack("dead", connection=caller)
        done.ack(connection=caller)
    assert counts(queue) == (0, 0, 2)
