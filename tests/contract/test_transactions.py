"""The caller's own transaction: effects and queue verbs commit together or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from queue_over_sql import ClaimLost, DuplicateKey, Message, Publication, Queue
from tests.contract.callers import Caller, Opener, each_opener, opened
from tests.contract.looking import add_effect, counts, effect_count, ids, live_rows, payloads
from tests.contract.waiting import consume_exactly

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import QueueService

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

each_verb = pytest.mark.parametrize("verb", VERBS.values(), ids=list(VERBS))


@each_opener
def test_a_rolled_back_publish_is_never_seen(
    queue: Queue, effects_engine: Engine, opener: Opener
) -> None:
    """Neither during the transaction nor after it."""
    with opened(opener, effects_engine) as caller:
        add_effect(caller, 1)
        queue.publish("one", connection=caller)
        queue.publish_many(["two", Publication("three", key="k")], connection=caller)
        assert queue.stats().ready == 0
        caller.rollback()
    assert queue.consume(5) == []
    assert effect_count(effects_engine) == 0


@each_opener
def test_a_publish_commits_with_the_callers_effects(
    queue: Queue, effects_engine: Engine, opener: Opener
) -> None:
    """It is seen when the caller commits, and not before."""
    with opened(opener, effects_engine) as caller:
        add_effect(caller, 1)
        published = queue.publish("one", connection=caller)
        queue.publish_many(["two", Publication("three", key="k")], connection=caller)
        assert (queue.stats().ready, effect_count(effects_engine)) == (0, 0)
        caller.commit()
    messages = consume_exactly(queue, 3)
    assert payloads(messages) == ["one", "two", "three"]
    assert published.id == messages[0].id
    assert effect_count(effects_engine) == 1


@each_opener
@each_verb
def test_a_rolled_back_settle_leaves_the_message_claimed(
    queue: Queue, effects_engine: Engine, opener: Opener, verb: Verb
) -> None:
    """After the rollback the claim stands as before, and may be settled."""
    queue.publish("x")
    messages = queue.consume()
    before = live_rows(effects_engine, queue)
    with opened(opener, effects_engine) as caller:
        add_effect(caller, 1)
        verb(queue, messages, caller)
        assert before == live_rows(effects_engine, queue)
        caller.rollback()
    assert before == live_rows(effects_engine, queue)
    assert (0, 0) == (queue.stats().archived, effect_count(effects_engine))
    queue.ack(messages)
    assert live_rows(effects_engine, queue) == []


@each_opener
@each_verb
def test_a_settle_commits_with_the_callers_effects(
    queue: Queue, effects_engine: Engine, opener: Opener, verb: Verb
) -> None:
    """The verb acts when the caller commits, and never commits by itself."""
    queue.publish("x")
    messages = queue.consume()
    before = live_rows(effects_engine, queue)
    with opened(opener, effects_engine) as caller:
        verb(queue, messages, caller)
        add_effect(caller, 1)
        assert before == live_rows(effects_engine, queue)
        assert effect_count(effects_engine) == 0
        caller.commit()
    assert before != live_rows(effects_engine, queue)
    assert effect_count(effects_engine) == 1


@each_opener
def test_a_duplicate_key_leaves_the_transaction_usable(
    queue: Queue, effects_engine: Engine, opener: Opener
) -> None:
    """After DuplicateKey the caller goes on and commits what it did before and after."""
    first = queue.publish("first", key="k")
    with opened(opener, effects_engine) as caller:
        add_effect(caller, 1)
        with pytest.raises(DuplicateKey) as caught:
            queue.publish("second", key="k", connection=caller)
        with pytest.raises(DuplicateKey):
            queue.publish_many(["plain", Publication("third", key="k")], connection=caller)
        add_effect(caller, 2)
        queue.publish("other", connection=caller)
        caller.commit()
    assert first.id == caught.value.id
    assert effect_count(effects_engine) == 2
    assert payloads(consume_exactly(queue, 2)) == ["first", "other"]
    assert queue.stats().ready == 0


@each_opener
@each_verb
def test_a_lost_claim_leaves_the_transaction_usable(
    queue: Queue, effects_engine: Engine, opener: Opener, verb: Verb
) -> None:
    """After ClaimLost the caller goes on and commits what it did before and after."""
    queue.publish_many(["lost", "other"])
    messages = queue.consume()
    queue.delete(messages[0].id)
    with opened(opener, effects_engine) as caller:
        add_effect(caller, 1)
        with pytest.raises(ClaimLost) as caught:
            verb(queue, messages, caller)
        add_effect(caller, 2)
        caller.commit()
    assert ids(messages) == ids(caught.value.messages)
    assert effect_count(effects_engine) == 2
    assert counts(queue) == (1, 0, 0)


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "rollback"])
def test_a_partly_lost_batch_belongs_to_the_caller(
    queue: Queue, effects_engine: Engine, commit: bool
) -> None:
    """The claims still held are settled in the caller's transaction, as it ends."""
    queue.publish_many(["lost", "held"])
    messages = queue.consume(2)
    queue.delete(messages[0].id)
    with effects_engine.connect() as caller:
        with pytest.raises(ClaimLost) as caught:
            queue.ack(messages, connection=caller)
        caller.commit() if commit else caller.rollback()
    assert ids(messages[:1]) == ids(caught.value.messages)
    assert counts(queue) == ((0, 0, 0) if commit else (0, 1, 0))


@pytest.mark.parametrize("on_conflict", ["skip", "replace"])
def test_conflicts_are_resolved_in_the_callers_transaction(
    queue: Queue, effects_engine: Engine, on_conflict: str
) -> None:
    """Skip and replace see what the transaction itself published."""
    with effects_engine.connect() as caller:
        first = queue.publish("first", key="k", connection=caller)
        second = queue.publish(
            "second",
            key="k",
            on_conflict=on_conflict,
            connection=caller,
        )
        caller.commit()
    assert first.id == second.id
    expected = {"skip": "first", "replace": "second"}[on_conflict]
    assert payloads(consume_exactly(queue, 1)) == [expected]


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
