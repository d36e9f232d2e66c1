"""Publishing: what is stored, when it is due, and at most one live message per key."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from queue_over_sql import Publication
from queue_over_sql.errors import DuplicateKey
from queue_over_sql.testing.contract.state import payloads
from queue_over_sql.testing.waiting import consume_exactly

if TYPE_CHECKING:
    from queue_over_sql import Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService
    from queue_over_sql.values.states import OnConflict


class PublishCases:
    """What every engine guarantees when messages are published."""

    def test_a_published_message_comes_back_as_given(self, queue: Queue) -> None:
        """The consumer gets every option of publish; options that were not given are empty."""
        before = datetime.now(UTC)
        published = queue.publish(
            {"to": "ann"}, key="k1", kind="email", headers={"trace": "t1"}, max_attempts=9
        )
        (message,) = queue.consume()
        assert (published.id, "created") == (message.id, published.outcome)
        assert {"to": "ann"} == message.payload
        assert ("k1", "email", {"trace": "t1"}) == (message.key, message.kind, message.headers)
        assert (0, 1, 9) == (message.priority, message.attempt, message.max_attempts)
        assert abs(message.published_at - before) < timedelta(minutes=1)
        assert message.published_at.utcoffset() == timedelta(0)
        assert message.scheduled_at == message.published_at
        queue.publish("bare")
        (bare,) = queue.consume()
        assert (bare.key, bare.kind, bare.last_error) == (None, None, None)
        assert not bare.headers

    def test_a_delayed_message_is_not_due_yet(self, queue: Queue) -> None:
        """A message with a delay, in seconds or as timedelta, is not delivered at once."""
        delays: list[float | timedelta] = [60, 60.0, timedelta(minutes=1)]
        for delay in delays:
            queue.publish("later", delay=delay)
        assert queue.consume() == []
        assert (0, 3) == (queue.stats().ready, queue.stats().delayed)
        for listed in queue.messages().list():
            assert listed.scheduled_at - listed.published_at == timedelta(minutes=1)

    def test_a_delayed_message_comes_when_due(self, queue: Queue) -> None:
        """Due messages are delivered in the order of their due times."""
        due = datetime.now(UTC) + timedelta(milliseconds=50)
        queue.publish("second", at=due + timedelta(milliseconds=1))
        queue.publish("first", at=due)
        assert payloads(consume_exactly(queue, 2)) == ["first", "second"]
        queue.publish("delayed", delay=0.05)
        assert payloads(consume_exactly(queue, 1)) == ["delayed"]

    def test_publish_many_answers_in_order(self, queue: Queue) -> None:
        """Payloads and Publications can be mixed; results and ids are in the order of the items."""
        first, second = queue.publish(1), queue.publish(2)
        queue.ack(queue.consume(2))
        published = queue.publish_many(["plain", Publication("keyed", key="k"), {"a": 1}])
        assert ["created"] * 3 == [one.outcome for one in published]
        published_ids = [one.id for one in (first, second, *published)]
        assert sorted(set(published_ids)) == published_ids
        messages = queue.consume(10)
        assert [one.id for one in published] == [message.id for message in messages]
        assert payloads(messages) == ["plain", "keyed", {"a": 1}]
        assert [message.key for message in messages] == [None, "k", None]

    def test_a_second_message_of_a_key_is_refused(self, queue: Queue) -> None:
        """DuplicateKey names the message with the key, ready or claimed; nothing changes."""
        first = queue.publish("first", key="k")
        with pytest.raises(DuplicateKey) as caught:
            queue.publish("second", key="k")
        assert first.id == caught.value.id
        assert payloads(queue.consume(2)) == ["first"]
        with pytest.raises(DuplicateKey) as caught:
            queue.publish("second", key="k")
        assert first.id == caught.value.id

    def test_keys_that_only_look_alike_are_different(self, queue: Queue) -> None:
        """Case, accents and spaces count on every engine; no key never equals a key."""
        keys = ["k", "K", "k ", " k", "ḱ", "k\u0301", None, None]
        for key in keys:
            assert queue.publish("x", key=key).outcome == "created", key
        assert [message.key for message in queue.consume(len(keys))] == keys

    def test_skip_keeps_the_first(self, queue: Queue) -> None:
        """Skip returns the existing message; without a conflict all modes create one."""
        for way in ("skip", "replace"):
            assert queue.publish("x", key=way, on_conflict=way).outcome == "created"
        queue.ack(queue.consume(2))
        first = queue.publish("first", key="k")
        second = queue.publish("second", key="k", on_conflict="skip")
        assert (first.id, "skipped") == (second.id, second.outcome)
        assert payloads(queue.consume(2)) == ["first"]

    def test_replace_keeps_the_identity_and_changes_the_content(self, queue: Queue) -> None:
        """Id and publish time stay; the content is replaced and the attempts start again."""
        first = queue.publish("old", key="k", kind="a", headers={"h": 1}, max_attempts=3)
        queue.consume()[0].nack(delay=0)
        before = queue.messages().list()[0]
        second = queue.publish("new", key="k", headers={"h": 2}, on_conflict="replace")
        assert (first.id, "replaced") == (second.id, second.outcome)
        (message,) = consume_exactly(queue, 1)
        assert (first.id, "new", "k") == (message.id, message.payload, message.key)
        assert (None, {"h": 2}, 1) == (message.kind, message.headers, message.attempt)
        assert before.published_at == message.published_at

    def test_a_finished_message_frees_its_key(self, queue: Queue) -> None:
        """Only live messages have their keys; the archive does not keep them taken."""
        first = queue.publish("first", key="k")
        queue.consume()[0].ack()
        second = queue.publish("second", key="k")
        queue.consume()[0].reject("no good")
        third = queue.publish("third", key="k")
        assert ("created", "created") == (second.outcome, third.outcome)
        assert first.id < second.id < third.id

    def test_a_batch_skips_its_own_duplicates(self, queue: Queue) -> None:
        """A key that occurs twice in a batch is skipped like an existing one."""
        there = queue.publish("there", key="there")
        published = queue.publish_many(
            [
                Publication(1, key="a"),
                2,
                Publication(3, key="there"),
                Publication(4, key="a"),
                Publication(5, key="b"),
            ],
            on_conflict="skip",
        )
        assert [one.outcome for one in published] == [
            "created",
            "created",
            "skipped",
            "skipped",
            "created",
        ]
        assert (there.id, published[0].id) == (published[2].id, published[3].id)
        assert payloads(queue.consume(10)) == ["there", 1, 2, 5]

    def test_equal_publishers_at_once_create_one(self, make_service: MakeService) -> None:
        """Of ten publishers of one key, one creates the message and nobody fails."""
        services = [make_service() for _ in range(5)]
        services[0].create_queue("jobs")

        def publish(service: QueueService, on_conflict: OnConflict) -> list[str]:
            queue = service.queue("jobs")
            ways = [on_conflict] * 2
            return [str(queue.publish("x", key=way, on_conflict=way).outcome) for way in ways]

        allowed: dict[OnConflict, set[str]] = {
            "skip": {"skipped"},
            "replace": {"unchanged", "replaced"},
        }
        with ThreadPoolExecutor(len(services)) as pool:
            for way, others in allowed.items():
                answers = pool.map(publish, services, [way] * len(services))
                found = [outcome for some in answers for outcome in some]
                assert found.count("created") == 1, way
                assert set(found) - {"created"} <= others, way
        assert services[0].queue("jobs").stats().ready == 2
