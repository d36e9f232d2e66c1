"""Settling: ack, nack, release, reject, extend, exchange and delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from queue_over_sql import ClaimLost, FixedDelay
from queue_over_sql.testing.contract.settling import BATCH_VERBS, MESSAGE_VERBS
from tests.contract.caller_transactions import OPENERS, opened
from tests.contract.queue_state import archived, live_rows, payloads
from tests.waiting import consume_exactly

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import Queue, QueueService

pytestmark = pytest.mark.driver_decides


same_statements = pytest.mark.threads("the batch verbs send these statements on both faces")


@pytest.mark.engines("sqlite")
@pytest.mark.threads("no statement is sent")
def test_a_batch_of_nothing_is_nothing(queue: Queue) -> None:
    """An empty batch is no error."""
    for verb in BATCH_VERBS.values():
        verb(queue, [])


@pytest.mark.engines("sqlite")
@pytest.mark.threads("no statement is sent")
def test_a_listed_message_has_no_claim(queue: Queue, engine: Engine) -> None:
    """Looking at a message gives no right to change it, claimed or not."""
    queue.publish_many(["ready", "claimed"])
    queue.consume()
    before = live_rows(engine, queue)
    for message in queue.messages().list():
        for verb in MESSAGE_VERBS.values():
            with pytest.raises(ClaimLost):
                verb(message)
    assert before == live_rows(engine, queue)


def test_a_counted_release_keeps_the_place(service: QueueService, engine: Engine) -> None:
    """It comes first again and shows its attempts; the last one makes it a dead letter.

    In the caller's transaction, too, and only if that commits.
    """
    queue = service.create_queue("counted", max_attempts=3, retry=FixedDelay(60), group_limit=1)
    queue.publish_many(["first", "second"])
    (message,) = consume_exactly(queue, 1)
    message.release(count=True)
    (message,) = consume_exactly(queue, 1)
    assert ("first", 2) == (message.payload, message.attempt)
    with opened(OPENERS["connection"], engine) as caller:
        message.release(caller, count=True)
        caller.rollback()
    assert 1 == queue.messages(status="claimed").count()
    with opened(OPENERS["connection"], engine) as caller:
        queue.release(message, connection=caller, count=True)
        caller.commit()
    first, second = consume_exactly(queue, 2)
    assert ("first", 3, "second") == (first.payload, first.attempt, second.payload)
    queue.release([first, second], count=True)
    (dead,) = archived(queue)
    assert ("first", "failed", 3) == (dead.payload, dead.outcome, dead.attempt)
    (second,) = consume_exactly(queue, 1)
    assert ("second", 2) == (second.payload, second.attempt)


def test_verbs_by_id_and_token_follow_the_callers_transaction(
    service: QueueService, engine: Engine
) -> None:
    """They see what it has not committed, and do nothing if it rolls back."""
    queue = service.create_queue("callers", archive="all")
    removed, cancelled, held = (queue.publish(name).id for name in ("a", "b", "c"))
    (claimed,) = queue.consume(1, where=queue.table.c.id == held)
    token = claimed.token
    for commits in (False, True):
        with opened(OPENERS["connection"], engine) as caller:
            queue.publish("new", connection=caller)
            assert 4 == queue.messages().count(connection=caller)
            assert queue.delete(removed, connection=caller)
            assert not queue.delete(removed, connection=caller)
            assert queue.cancel(cancelled, "no", connection=caller)
            assert not queue.cancel(cancelled, connection=caller)
            queue.held(token, connection=caller).ack(caller)
            with pytest.raises(ClaimLost):
                queue.held(token, connection=caller)
            assert [] == queue.held_many([token], connection=caller)
            assert ["new"] == payloads(queue.messages().list(connection=caller))
            first = queue.messages().first(connection=caller)
            assert first is not None
            assert "new" == first.payload
            assert 2 == queue.archive.messages().count(connection=caller)
            if commits:
                caller.commit()
            else:
                caller.rollback()
                assert ["a", "b", "c"] == payloads(queue.messages().list())
    assert ["new"] == payloads(queue.messages().list())
    assert ["b", "c"] == payloads(queue.archive.messages().list())
