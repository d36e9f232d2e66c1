"""Message keys: at most one live message for each."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from queue_over_sql import DuplicateKey, Publication
from tests.contract.looking import payloads
from tests.contract.waiting import consume_exactly

if TYPE_CHECKING:
    from queue_over_sql import Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService


def test_a_second_message_of_a_key_is_refused(queue: Queue) -> None:
    """DuplicateKey names the message that has the key; nothing changes."""
    first = queue.publish("first", key="k")
    with pytest.raises(DuplicateKey) as caught:
        queue.publish("second", key="k")
    assert first.id == caught.value.id
    assert payloads(queue.consume(2)) == ["first"]


def test_messages_without_a_key_never_conflict(queue: Queue) -> None:
    """No key is not a key."""
    queue.publish_many(["same", "same"])
    queue.publish("same")
    assert queue.stats().ready == 3


@pytest.mark.parametrize("other", ["K", "k ", " k", "ḱ", "k\u0301"], ids=ascii)
def test_keys_that_only_look_alike_are_different(queue: Queue, other: str) -> None:
    """Case, accents and trailing blanks count, on every engine."""
    queue.publish("one", key="k")
    assert queue.publish("two", key=other).outcome == "created"
    assert [message.key for message in queue.consume(2)] == ["k", other]


def test_two_queues_have_keys_of_their_own(service: QueueService) -> None:
    """The key is unique in its queue only."""
    for name in ("a", "b"):
        assert service.create_queue(name).publish("x", key="k").outcome == "created"


def test_skip_keeps_the_first(queue: Queue) -> None:
    """Skip answers with the message that is there."""
    first = queue.publish("first", key="k")
    second = queue.publish("second", key="k", on_conflict="skip")
    assert (first.id, "skipped") == (second.id, second.outcome)
    assert payloads(queue.consume(2)) == ["first"]


def test_skip_of_a_free_key_creates(queue: Queue) -> None:
    """Without a conflict the choice does not matter."""
    assert queue.publish("x", key="a", on_conflict="skip").outcome == "created"
    assert queue.publish("x", key="b", on_conflict="replace").outcome == "created"


def test_replace_keeps_the_identity_and_changes_the_content(queue: Queue) -> None:
    """Id and publish time stay; payload, kind, headers and options are the new ones."""
    first = queue.publish("old", key="k", kind="a", headers={"h": 1}, max_attempts=3)
    before = queue.messages().list()[0]
    second = queue.publish("new", key="k", headers={"h": 2}, on_conflict="replace")
    assert (first.id, "replaced") == (second.id, second.outcome)
    (message,) = queue.consume(2)
    assert (first.id, "new", "k") == (message.id, message.payload, message.key)
    assert (None, {"h": 2}) == (message.kind, message.headers)
    assert before.published_at == message.published_at


def test_replace_sets_the_attempts_to_zero(queue: Queue) -> None:
    """A replaced message starts over."""
    queue.publish("old", key="k")
    queue.consume()[0].nack(delay=0)
    queue.publish("new", key="k", on_conflict="replace")
    (message,) = consume_exactly(queue, 1)
    assert ("new", 1) == (message.payload, message.attempt)


def test_replace_by_the_same_content_is_unchanged(queue: Queue) -> None:
    """Equal content without a new time changes nothing."""
    first = queue.publish({"a": 1}, key="k", headers={"h": 1})
    same = queue.publish({"a": 1}, key="k", headers={"h": 1}, on_conflict="replace")
    assert (first.id, "unchanged") == (same.id, same.outcome)
    assert queue.stats().ready == 1


def test_a_new_time_is_a_change(queue: Queue) -> None:
    """With a delay the same content is replaced, and due at the new time."""
    queue.publish("x", key="k")
    moved = queue.publish("x", key="k", delay=60, on_conflict="replace")
    assert moved.outcome == "replaced"
    assert (0, 1) == (queue.stats().ready, queue.stats().delayed)


@pytest.mark.parametrize("verb", ["ack", "reject"])
def test_a_finished_message_frees_its_key(queue: Queue, verb: str) -> None:
    """Only live messages hold a key; the archive holds none."""
    first = queue.publish("first", key="k")
    (message,) = queue.consume()
    if verb == "ack":
        message.ack()
    else:
        message.reject("no good")
    second = queue.publish("second", key="k")
    assert ("created", True) == (second.outcome, second.id > first.id)


def test_a_claimed_message_still_holds_its_key(queue: Queue) -> None:
    """A message in work is live."""
    first = queue.publish("first", key="k")
    queue.consume()
    with pytest.raises(DuplicateKey) as caught:
        queue.publish("second", key="k")
    assert first.id == caught.value.id


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


@pytest.mark.parametrize("second", ["there", "a"])
def test_a_batch_that_conflicts_publishes_nothing(queue: Queue, second: str) -> None:
    """DuplicateKey in a batch takes back the whole batch."""
    queue.publish("there", key="there")
    with pytest.raises(DuplicateKey):
        queue.publish_many(["plain", Publication(1, key="a"), Publication(2, key=second)])
    assert payloads(queue.consume(10)) == ["there"]


@pytest.mark.parametrize("on_conflict", ["skip", "replace"])
def test_equal_publishers_at_once_create_one(make_service: MakeService, on_conflict: str) -> None:
    """Ten publishers of one key: one creates, nobody fails."""
    services = [make_service() for _ in range(5)]
    services[0].create_queue("jobs")

    def publish(service: QueueService) -> list[str]:
        queue = service.queue("jobs")
        return [str(queue.publish("x", key="k", on_conflict=on_conflict).outcome) for _ in range(2)]

    with ThreadPoolExecutor(len(services)) as pool:
        found = [outcome for some in pool.map(publish, services) for outcome in some]
    assert found.count("created") == 1
    allowed = {"skip": {"skipped"}, "replace": {"unchanged", "replaced"}}[on_conflict]
    assert set(found) - {"created"} <= allowed
    assert services[0].queue("jobs").stats().ready == 1


def test_load_refuses_a_taken_key_and_publishes_nothing_of_that_batch(queue: Queue) -> None:
    """The bulk path names the key too, and the batches before it stay."""
    taken = queue.publish("first", key="taken")
    items = [1, 2, Publication(3, key="free"), Publication(4, key="taken")]
    with pytest.raises(DuplicateKey) as caught:
        queue.load(items, batch_size=2)
    assert ("taken", taken.id) == (caught.value.key, caught.value.id)
    assert ["first", 1, 2] == [message.payload for message in queue.consume(10)]
