"""Message keys: at most one live message for each."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from queue_over_sql import DuplicateKey, Publication
from tests.contract.queue_state import payloads
from tests.waiting import consume_exactly

if TYPE_CHECKING:
    from queue_over_sql import Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService


def test_a_second_message_of_a_key_is_refused(queue: Queue) -> None:
    """DuplicateKey names the message that has the key, ready or in work; nothing changes."""
    first = queue.publish("first", key="k")
    with pytest.raises(DuplicateKey) as caught:
        queue.publish("second", key="k")
    assert first.id == caught.value.id
    assert payloads(queue.consume(2)) == ["first"]
    with pytest.raises(DuplicateKey) as caught:
        queue.publish("second", key="k")
    assert first.id == caught.value.id


def test_keys_that_only_look_alike_are_different(queue: Queue) -> None:
    """Case, accents and blanks count, on every engine; and no key is not a key."""
    keys = ["k", "K", "k ", " k", "ḱ", "k\u0301", None, None]
    for key in keys:
        assert queue.publish("x", key=key).outcome == "created", key
    assert [message.key for message in queue.consume(len(keys))] == keys


def test_two_queues_have_keys_of_their_own(service: QueueService) -> None:
    """The key is unique in its queue only."""
    for name in ("a", "b"):
        assert service.create_queue(name).publish("x", key="k").outcome == "created"


def test_skip_keeps_the_first(queue: Queue) -> None:
    """Skip answers with the message that is there; without a conflict all ways create."""
    for way in ("skip", "replace"):
        assert queue.publish("x", key=way, on_conflict=way).outcome == "created"
    queue.ack(queue.consume(2))
    first = queue.publish("first", key="k")
    second = queue.publish("second", key="k", on_conflict="skip")
    assert (first.id, "skipped") == (second.id, second.outcome)
    assert payloads(queue.consume(2)) == ["first"]


def test_replace_keeps_the_identity_and_changes_the_content(queue: Queue) -> None:
    """Id and publish time stay; the content is all new, and the attempts start over."""
    first = queue.publish("old", key="k", kind="a", headers={"h": 1}, max_attempts=3)
    queue.consume()[0].nack(delay=0)
    before = queue.messages().list()[0]
    second = queue.publish("new", key="k", headers={"h": 2}, on_conflict="replace")
    assert (first.id, "replaced") == (second.id, second.outcome)
    (message,) = consume_exactly(queue, 1)
    assert (first.id, "new", "k") == (message.id, message.payload, message.key)
    assert (None, {"h": 2}, 1) == (message.kind, message.headers, message.attempt)
    assert before.published_at == message.published_at


def test_replace_by_the_same_content_is_unchanged(queue: Queue) -> None:
    """Equal content changes nothing, unless it gets a new time."""
    first = queue.publish({"a": 1}, key="k", headers={"h": 1})
    same = queue.publish({"a": 1}, key="k", headers={"h": 1}, on_conflict="replace")
    assert (first.id, "unchanged") == (same.id, same.outcome)
    assert queue.stats().ready == 1
    moved = queue.publish({"a": 1}, key="k", headers={"h": 1}, delay=60, on_conflict="replace")
    assert (first.id, "replaced") == (moved.id, moved.outcome)
    assert (0, 1) == (queue.stats().ready, queue.stats().delayed)


def test_a_finished_message_frees_its_key(queue: Queue) -> None:
    """Only live messages hold a key; the archive holds none."""
    first = queue.publish("first", key="k")
    queue.consume()[0].ack()
    second = queue.publish("second", key="k")
    queue.consume()[0].reject("no good")
    third = queue.publish("third", key="k")
    assert ("created", "created") == (second.outcome, third.outcome)
    assert first.id < second.id < third.id


def test_a_batch_skips_its_own_duplicates(queue: Queue) -> None:
    """Keys met twice in one batch are skipped like keys that were there before."""
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


def test_a_batch_replaces_in_order(queue: Queue) -> None:
    """The last content of a key wins, and each answer says what happened to it."""
    there = queue.publish("old", key="there")
    published = queue.publish_many(
        [
            Publication("new", key="there"),
            Publication(1, key="a"),
            Publication(2, key="a"),
            "plain",
        ],
        on_conflict="replace",
    )
    assert [one.outcome for one in published] == ["replaced", "created", "replaced", "created"]
    assert there.id == published[0].id
    assert published[1].id == published[2].id
    by_key = {message.key: message.payload for message in queue.consume(10)}
    assert by_key == {"there": "new", "a": 2, None: "plain"}


def test_a_batch_that_conflicts_publishes_nothing(queue: Queue) -> None:
    """DuplicateKey in a batch takes back the whole batch."""
    queue.publish("there", key="there")
    for second in ("there", "a"):
        with pytest.raises(DuplicateKey):
            queue.publish_many(["plain", Publication(1, key="a"), Publication(2, key=second)])
    assert payloads(queue.consume(10)) == ["there"]


def test_equal_publishers_at_once_create_one(make_service: MakeService) -> None:
    """Ten publishers of one key: one creates, nobody fails."""
    services = [make_service() for _ in range(5)]
    services[0].create_queue("jobs")

    def publish(service: QueueService, on_conflict: str) -> list[str]:
        queue = service.queue("jobs")
        ways = [on_conflict] * 2
        return [str(queue.publish("x", key=way, on_conflict=way).outcome) for way in ways]

    allowed = {"skip": {"skipped"}, "replace": {"unchanged", "replaced"}}
    with ThreadPoolExecutor(len(services)) as pool:
        for way, others in allowed.items():
            answers = pool.map(publish, services, [way] * len(services))
            found = [outcome for some in answers for outcome in some]
            assert found.count("created") == 1, way
            assert set(found) - {"created"} <= others, way
    assert services[0].queue("jobs").stats().ready == 2


def test_load_refuses_a_taken_key_and_publishes_nothing_of_that_batch(queue: Queue) -> None:
    """The bulk path names the key too, and the batches before it stay."""
    taken = queue.publish("first", key="taken")
    items = [1, 2, Publication(3, key="free"), Publication(4, key="taken")]
    with pytest.raises(DuplicateKey) as caught:
        queue.load(items, batch_size=2)
    assert ("taken", taken.id) == (caught.value.key, caught.value.id)
    assert ["first", 1, 2] == [message.payload for message in queue.consume(10)]
