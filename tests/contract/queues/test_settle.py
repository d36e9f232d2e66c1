"""Settling: ack, nack, release, reject, extend, exchange and delete."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from queue_over_sql import ClaimLost
from tests.contract.queue_state import archived, counts, ids, live_rows, payloads
from tests.waiting import consume_exactly, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

    from queue_over_sql import Message, Queue, QueueService

pytestmark = pytest.mark.driver_decides

LATE = timedelta(minutes=1)
"""How late a slow machine may be."""

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
same_statements = pytest.mark.threads("the batch verbs send these statements on both faces")


@same_statements
def test_a_nack_brings_the_message_back_later(queue: Queue, engine: Engine) -> None:
    """An explicit delay says when; reason and time of the failure are kept."""
    queue.publish("x")
    queue.consume()[0].nack(RuntimeError("mail server down"), delay=60)
    stats = queue.stats()
    assert (0, 1, 0) == (stats.ready, stats.delayed, stats.claimed)
    (message,) = queue.messages().list()
    assert message.last_error is not None
    assert "mail server down" in message.last_error
    assert message.available_at is not None
    assert message.available_at > message.scheduled_at + timedelta(seconds=59)
    assert live_rows(engine, queue)[0][-1] is not None


@same_statements
def test_a_retried_message_goes_behind_the_waiting_ones(queue: Queue) -> None:
    """A failure gives a new due time, so others come first."""
    queue.publish_many(["fails", "waits"])
    queue.consume()[0].nack(delay=0.01)
    wait_until(lambda: queue.stats().ready == 2)
    assert payloads(consume_exactly(queue, 2)) == ["waits", "fails"]


@same_statements
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


@same_statements
def test_extend_counts_from_now(queue: Queue) -> None:
    """By a new length, longer or shorter, or by the claim's; an ack may follow, which removes."""
    queue.publish("x")
    (message,) = queue.consume(lease=300)
    claimed_at, expiries = message.claimed_at, []
    for lease in (900, timedelta(minutes=1), None):
        message.extend(lease=lease)
        expiries.append(message.lease_expires_at)
    assert claimed_at is not None
    for seconds, expires_at in zip((900, 60, 300), expiries, strict=True):
        assert expires_at is not None
        assert timedelta(0) <= expires_at - claimed_at - timedelta(seconds=seconds) < LATE
    message.ack()
    assert counts(queue) == (0, 0, 0)


def test_a_batch_settles_all(queue: Queue, engine: Engine) -> None:
    """Each batch verb acts on every message of the batch, and on no other."""
    for name, verb in BATCH_VERBS.items():
        queue.publish_many(list(range(4)))
        batch, others = queue.consume(3), queue.consume(1)
        before = live_rows(engine, queue)
        verb(queue, batch)
        after = live_rows(engine, queue)
        assert before[3] == after[-1], name
        assert set(before[:3]).isdisjoint(after), name
        others[0].ack()
        queue.purge(claimed=True)


def test_a_batch_with_a_lost_claim_settles_the_rest(queue: Queue) -> None:
    """ClaimLost names exactly the lost messages; the claims still held are settled."""
    expected = {"ack": (0, 0, 0), "reject": (0, 0, 2), "extend": (0, 2, 0)}
    for name, verb in BATCH_VERBS.items():
        queue.publish_many(list(range(4)))
        batch, dead = queue.consume(4), queue.stats().archived
        lost = [batch[1], batch[3]]
        for message in lost:
            assert queue.delete(message.id) is True
        with pytest.raises(ClaimLost) as caught:
            verb(queue, batch)
        assert sorted(ids(lost)) == sorted(ids(caught.value.messages)), name
        stats = queue.stats()
        found = (stats.ready + stats.delayed, stats.claimed, stats.archived - dead)
        assert expected.get(name, (2, 0, 0)) == found, name
        queue.purge(claimed=True)


@pytest.mark.engines("sqlite")
@pytest.mark.threads("no statement is sent")
def test_a_batch_of_nothing_is_nothing(queue: Queue) -> None:
    """An empty batch is no error."""
    for verb in BATCH_VERBS.values():
        verb(queue, [])


@same_statements
def test_a_message_is_settled_once(queue: Queue, engine: Engine) -> None:
    """After it is settled every further verb is refused, and changes nothing."""
    for first in ("ack", "nack", "release", "reject"):
        queue.publish("x")
        (message,) = queue.consume()
        MESSAGE_VERBS[first](message)
        before, dead = live_rows(engine, queue), queue.stats().archived
        for second, verb in MESSAGE_VERBS.items():
            with pytest.raises(ClaimLost) as caught:
                verb(message)
            assert [message.id] == ids(caught.value.messages), (first, second)
        assert (before, dead) == (live_rows(engine, queue), queue.stats().archived), first
        queue.purge()


@same_statements
def test_delete_makes_the_holder_lose(queue: Queue) -> None:
    """An operator may delete any message, once; its holder then has no claim."""
    published = queue.publish("x")
    (message,) = queue.consume()
    assert queue.delete(published.id + 1) is False
    assert queue.delete(published.id) is True
    assert queue.delete(published.id) is False
    for verb in MESSAGE_VERBS.values():
        with pytest.raises(ClaimLost):
            verb(message)
    assert counts(queue) == (0, 0, 0)


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


def test_exchange_finishes_and_claims(service: QueueService) -> None:
    """The finished, if there are any, are acked and the next are claimed."""
    queue = service.create_queue("swap", archive="all")
    queue.publish_many(list(range(5)))
    first = queue.exchange([], 2)
    assert payloads(first) == [0, 1]
    second = queue.exchange(first, 2)
    assert payloads(second) == [2, 3]
    assert counts(queue) == (1, 2, 2)
    assert payloads(queue.exchange(second, 5)) == [4]
    assert counts(queue) == (0, 1, 4)


@same_statements
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
