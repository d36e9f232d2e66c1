"""Settling: ack, nack, release, reject, extend, exchange and delete."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from queue_over_sql import ClaimLost
from tests.contract.looking import archived, counts, ids, live_rows, payloads
from tests.contract.waiting import consume_exactly, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

    from queue_over_sql import Message, Queue, QueueService

BATCH_VERBS: dict[str, Callable[[Queue, list[Message]], object]] = {
    "ack": lambda queue, messages: queue.ack(messages),
    "nack": lambda queue, messages: queue.nack(messages, delay=0),
    "release": lambda queue, messages: queue.release(messages),
    "reject": lambda queue, messages: queue.reject(messages, "bad"),
    "extend": lambda queue, messages: queue.extend(messages, lease=900),
}
MESSAGE_VERBS: dict[str, Callable[[Message], object]] = {
    "ack": lambda message: message.ack(),
    "nack": lambda message: message.nack(),
    "release": lambda message: message.release(),
    "reject": lambda message: message.reject("bad"),
    "extend": lambda message: message.extend(),
}


def test_an_acked_message_is_gone(queue: Queue) -> None:
    """Finished messages leave no trace in a queue that archives failures only."""
    queue.publish("x")
    queue.consume()[0].ack()
    assert counts(queue) == (0, 0, 0)


def test_a_nack_brings_the_message_back_later(queue: Queue, engine: Engine) -> None:
    """An explicit delay says when; reason and time of the failure are kept."""
    queue.publish("x")
    queue.consume()[0].nack("mail server down", delay=60)
    stats = queue.stats()
    assert (0, 1, 0) == (stats.ready, stats.delayed, stats.claimed)
    (message,) = queue.messages().list()
    assert message.last_error is not None
    assert "mail server down" in message.last_error
    assert message.available_at is not None
    assert message.available_at > message.scheduled_at + timedelta(seconds=59)
    assert live_rows(engine, queue)[0][-1] is not None


def test_a_nack_takes_an_exception_as_reason(queue: Queue) -> None:
    """The text of the exception is in the reason."""
    queue.publish("x")
    queue.consume()[0].nack(RuntimeError("boom at 17"), delay=0)
    (message,) = consume_exactly(queue, 1)
    assert message.last_error is not None
    assert "boom at 17" in message.last_error


def test_a_retried_message_goes_behind_the_waiting_ones(queue: Queue) -> None:
    """A failure gives a new due time, so others come first."""
    queue.publish_many(["fails", "waits"])
    queue.consume()[0].nack(delay=0.01)
    wait_until(lambda: queue.stats().ready == 2)
    assert payloads(consume_exactly(queue, 2)) == ["waits", "fails"]


def test_a_released_message_returns_to_the_head_uncounted(queue: Queue) -> None:
    """Given back untouched: the old place, and the attempt not counted."""
    queue.publish_many(["first", "second", "third"])
    first, second = queue.consume(2)
    second.release()
    first.release()
    again = consume_exactly(queue, 3)
    assert payloads(again) == ["first", "second", "third"]
    assert [message.attempt for message in again] == [1, 1, 1]


def test_a_rejected_message_is_a_dead_letter(queue: Queue) -> None:
    """Rejected means archived at once with the reason, whatever attempts are left."""
    queue.publish({"a": 1}, key="k", kind="t", headers={"h": 1})
    queue.consume()[0].reject("cannot parse")
    (dead,) = archived(queue)
    assert counts(queue) == (0, 0, 1)
    assert dead.outcome == "rejected"
    assert dead.last_error is not None
    assert "cannot parse" in dead.last_error
    assert dead.finished_at is not None
    assert abs(dead.finished_at - datetime.now(UTC)) < timedelta(minutes=1)
    assert ({"a": 1}, "k", "t", {"h": 1}) == (dead.payload, dead.key, dead.kind, dead.headers)
    assert dead.attempt == 1


def test_extend_counts_from_now(queue: Queue) -> None:
    """A new length replaces the claim's, and the object's expiry follows."""
    queue.publish("x")
    (message,) = queue.consume(lease=30)
    before = message.lease_expires_at
    message.extend(lease=90)
    assert before is not None
    assert message.lease_expires_at is not None
    assert message.lease_expires_at - before >= timedelta(seconds=60)
    assert message.lease_expires_at - before < timedelta(seconds=80)
    message.ack()


def test_extend_without_a_length_uses_the_claims(queue: Queue) -> None:
    """The length that the claim was made with, counted from now."""
    queue.publish("x")
    (message,) = queue.consume(lease=30)
    before = message.lease_expires_at
    message.extend()
    assert before is not None
    assert message.lease_expires_at is not None
    assert timedelta(0) <= message.lease_expires_at - before < timedelta(seconds=20)


def test_extend_may_shorten(queue: Queue) -> None:
    """A shorter lease than before is allowed: it counts from now."""
    queue.publish("x")
    (message,) = queue.consume(lease=300)
    before = message.lease_expires_at
    message.extend(lease=timedelta(seconds=5))
    assert before is not None
    assert message.lease_expires_at is not None
    assert message.lease_expires_at < before


@pytest.mark.parametrize("verb", BATCH_VERBS)
def test_a_batch_settles_all(queue: Queue, engine: Engine, verb: str) -> None:
    """Each batch verb acts on every message of the batch, and on no other."""
    queue.publish_many(list(range(4)))
    batch, others = queue.consume(3), queue.consume(1)
    before = live_rows(engine, queue)
    BATCH_VERBS[verb](queue, batch)
    after = live_rows(engine, queue)
    assert before[3] == after[-1]
    assert set(before[:3]).isdisjoint(after)
    others[0].ack()


@pytest.mark.parametrize("verb", BATCH_VERBS)
def test_a_batch_with_a_lost_claim_settles_the_rest(queue: Queue, verb: str) -> None:
    """ClaimLost names exactly the lost messages; the claims still held are settled."""
    queue.publish_many(list(range(4)))
    batch = queue.consume(4)
    lost = [batch[1], batch[3]]
    for message in lost:
        assert queue.delete(message.id) is True
    with pytest.raises(ClaimLost) as caught:
        BATCH_VERBS[verb](queue, batch)
    assert sorted(ids(lost)) == sorted(ids(caught.value.messages))
    stats = queue.stats()
    live, dead = stats.ready + stats.delayed, stats.archived
    expected = {"ack": (0, 0, 0), "reject": (0, 0, 2), "extend": (0, 2, 0)}
    assert expected.get(verb, (2, 0, 0)) == (live, stats.claimed, dead)


@pytest.mark.parametrize("verb", BATCH_VERBS)
def test_a_batch_of_nothing_is_nothing(queue: Queue, verb: str) -> None:
    """An empty batch is no error."""
    BATCH_VERBS[verb](queue, [])


@pytest.mark.parametrize("first", ["ack", "nack", "release", "reject"])
@pytest.mark.parametrize("second", MESSAGE_VERBS)
def test_a_message_is_settled_once(queue: Queue, engine: Engine, first: str, second: str) -> None:
    """After it is settled every further verb is refused, and changes nothing."""
    queue.publish("x")
    (message,) = queue.consume()
    MESSAGE_VERBS[first](message)
    before, dead = live_rows(engine, queue), queue.stats().archived
    with pytest.raises(ClaimLost) as caught:
        MESSAGE_VERBS[second](message)
    assert [message.id] == ids(caught.value.messages)
    assert (before, dead) == (live_rows(engine, queue), queue.stats().archived)


def test_extend_does_not_settle(queue: Queue) -> None:
    """An extended claim may be extended and settled again."""
    queue.publish("x")
    (message,) = queue.consume()
    message.extend()
    message.extend()
    message.ack()
    assert counts(queue) == (0, 0, 0)


@pytest.mark.parametrize("verb", MESSAGE_VERBS)
def test_delete_makes_the_holder_lose(queue: Queue, verb: str) -> None:
    """An operator may delete any message; its holder then has no claim."""
    published = queue.publish("x")
    (message,) = queue.consume()
    assert queue.delete(published.id) is True
    with pytest.raises(ClaimLost):
        MESSAGE_VERBS[verb](message)
    assert counts(queue) == (0, 0, 0)


def test_delete_says_whether_there_was_one(queue: Queue) -> None:
    """A message that is not there cannot be deleted."""
    published = queue.publish("x")
    assert queue.delete(published.id + 1) is False
    assert queue.delete(published.id) is True
    assert queue.delete(published.id) is False


@pytest.mark.parametrize("verb", MESSAGE_VERBS)
def test_a_listed_message_has_no_claim(queue: Queue, engine: Engine, verb: str) -> None:
    """Looking at a message gives no right to change it, claimed or not."""
    queue.publish_many(["ready", "claimed"])
    queue.consume()
    before = live_rows(engine, queue)
    for message in queue.messages().list():
        with pytest.raises(ClaimLost):
            MESSAGE_VERBS[verb](message)
    assert before == live_rows(engine, queue)


def test_exchange_finishes_and_claims(service: QueueService) -> None:
    """The finished are acked and the next are claimed."""
    queue = service.create_queue("swap", archive="all")
    queue.publish_many(list(range(5)))
    first = queue.consume(2)
    second = queue.exchange(first, 2)
    assert payloads(second) == [2, 3]
    assert counts(queue) == (1, 2, 2)
    assert payloads(queue.exchange(second, 5)) == [4]
    assert counts(queue) == (0, 1, 4)


def test_exchange_of_nothing_only_claims(queue: Queue) -> None:
    """Without finished messages it is a consume."""
    queue.publish_many(["a", "b"])
    assert payloads(queue.exchange([], 1)) == ["a"]


def test_exchange_with_a_lost_claim_claims_nothing(queue: Queue) -> None:
    """The held are settled, the lost are named, and nothing new is taken."""
    queue.publish_many(list(range(4)))
    batch = queue.consume(2)
    queue.delete(batch[0].id)
    with pytest.raises(ClaimLost) as caught:
        queue.exchange(batch, 2)
    assert [batch[0].id] == ids(caught.value.messages)
    assert counts(queue) == (2, 0, 0)
    assert payloads(queue.consume(2)) == [2, 3]
