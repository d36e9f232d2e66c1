"""Settling: ack, nack, release, reject, extend, exchange, and callers' transactions."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import cycle
from typing import TYPE_CHECKING, Any

import pytest

from queue_over_sql import Message, Publication, Queue
from queue_over_sql.errors import ClaimLost, DuplicateKey
from queue_over_sql.testing.contract.state import (
    OPENERS,
    Caller,
    add_effect,
    archived,
    counts,
    effect_count,
    effects,
    ids,
    live_rows,
    opened,
    payloads,
)
from queue_over_sql.testing.waiting import consume_exactly, wait_until

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import QueueService

LATE = timedelta(minutes=1)
"""The tolerance for a slow machine."""


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


TransactionVerb = Callable[[Queue, list[Message], Caller], object]


TRANSACTION_VERBS: dict[str, TransactionVerb] = {
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


def _state(queue: Queue, engine: Engine) -> Any:
    return live_rows(engine, queue), queue.stats().archived, effect_count(engine)


class SettleCases:
    """What every engine guarantees when messages are settled, alone or in callers' transactions."""

    def test_a_nack_brings_the_message_back_later(self, queue: Queue, engine: Engine) -> None:
        """An explicit delay sets the due time; the reason and time of the failure are stored."""
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

    def test_a_retried_message_goes_behind_the_waiting_ones(self, queue: Queue) -> None:
        """A failed message gets a new due time, so others come first."""
        queue.publish_many(["fails", "waits"])
        queue.consume()[0].nack(delay=0.01)
        wait_until(lambda: queue.stats().ready == 2)
        assert payloads(consume_exactly(queue, 2)) == ["waits", "fails"]

    def test_a_released_message_returns_to_the_head_uncounted(self, queue: Queue) -> None:
        """A released message returns to its old place, and the attempt is not counted."""
        queue.publish_many(["first", "second", "third"])
        first, second = queue.consume(2)
        second.release()
        first.release()
        again = consume_exactly(queue, 3)
        assert payloads(again) == ["first", "second", "third"]
        assert [message.attempt for message in again] == [1, 1, 1]

    def test_a_rejected_message_is_a_dead_letter(self, queue: Queue) -> None:
        """A rejected message is archived at once with the reason, even with attempts left."""
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

    def test_extend_counts_from_now(self, queue: Queue) -> None:
        """By a longer or shorter new length, or by the claim's. It can be acked afterwards."""
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

    def test_a_batch_settles_all(self, queue: Queue, engine: Engine) -> None:
        """Each verb acts on every message of the batch, and on no other."""
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

    def test_a_batch_with_a_lost_claim_settles_the_rest(self, queue: Queue) -> None:
        """ClaimLost names exactly the lost messages; the others are settled."""
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

    def test_a_message_is_settled_once(self, queue: Queue, engine: Engine) -> None:
        """After it is settled, every further verb is refused and changes nothing."""
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

    def test_delete_makes_the_holder_lose(self, queue: Queue) -> None:
        """An operator can delete any message once; its holder then loses the claim."""
        published = queue.publish("x")
        (message,) = queue.consume()
        assert queue.delete(published.id + 1) is False
        assert queue.delete(published.id) is True
        assert queue.delete(published.id) is False
        for verb in MESSAGE_VERBS.values():
            with pytest.raises(ClaimLost):
                verb(message)
        assert counts(queue) == (0, 0, 0)

    def test_exchange_finishes_and_claims(self, service: QueueService) -> None:
        """The finished messages, if any, are acked and the next ones are claimed."""
        queue = service.create_queue("swap", archive="all")
        queue.publish_many(list(range(5)))
        first = queue.exchange([], 2)
        assert payloads(first) == [0, 1]
        second = queue.exchange(first, 2)
        assert payloads(second) == [2, 3]
        assert counts(queue) == (1, 2, 2)
        assert payloads(queue.exchange(second, 5)) == [4]
        assert counts(queue) == (0, 1, 4)

    def test_exchange_with_a_lost_claim_claims_nothing(self, queue: Queue) -> None:
        """Held messages are settled, lost ones are named, and nothing new is claimed."""
        queue.publish_many(list(range(4)))
        batch = queue.consume(2)
        queue.delete(batch[0].id)
        with pytest.raises(ClaimLost) as caught:
            queue.exchange(batch, 2)
        assert [batch[0].id] == ids(caught.value.messages)
        assert counts(queue) == (2, 0, 0)
        assert payloads(queue.consume(2)) == [2, 3]

    @pytest.fixture
    def effects_engine(self, engine: Engine) -> Engine:
        """The user's own engine, with a table for effects."""
        effects.create(engine)
        return engine

    def test_a_publish_follows_the_callers_transaction(
        self, queue: Queue, effects_engine: Engine
    ) -> None:
        """Others see it when the caller commits, not before, and never after a rollback."""
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

    def test_a_settle_follows_the_callers_transaction(
        self, queue: Queue, effects_engine: Engine
    ) -> None:
        """It takes effect when the caller commits; after a rollback the claim is as before."""
        cases = zip(TRANSACTION_VERBS.items(), cycle(OPENERS.values()))
        for number, ((name, verb), opener) in enumerate(cases):
            queue.publish("x")
            messages = queue.consume()
            before = _state(queue, effects_engine)
            with opened(opener, effects_engine) as caller:
                for end in (caller.rollback, caller.commit):
                    assert before == _state(queue, effects_engine), name
                    add_effect(caller, number)
                    verb(queue, messages, caller)
                    assert before == _state(queue, effects_engine), name
                    end()
            assert before[0] != live_rows(effects_engine, queue), name
            assert effect_count(effects_engine) == number + 1
            queue.purge(claimed=True)

    def test_a_duplicate_key_leaves_the_transaction_usable(
        self, queue: Queue, effects_engine: Engine
    ) -> None:
        """After DuplicateKey the caller can continue, and commits everything else."""
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

    def test_a_lost_claim_leaves_the_transaction_usable(
        self, queue: Queue, effects_engine: Engine
    ) -> None:
        """After ClaimLost the caller can continue, and commits everything else."""
        queue.publish_many(["lost", "other"])
        messages = queue.consume()
        queue.delete(messages[0].id)
        with opened(OPENERS["connection"], effects_engine) as caller:
            for number, verb in enumerate(TRANSACTION_VERBS.values()):
                add_effect(caller, number)
                with pytest.raises(ClaimLost) as caught:
                    verb(queue, messages, caller)
                assert ids(messages) == ids(caught.value.messages)
            add_effect(caller, len(TRANSACTION_VERBS))
            caller.commit()
        assert effect_count(effects_engine) == len(TRANSACTION_VERBS) + 1
        assert counts(queue) == (1, 0, 0)
