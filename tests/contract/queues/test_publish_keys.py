"""Message keys: at most one live message for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from queue_over_sql import DuplicateKey, Publication
from tests.contract.queue_state import payloads

if TYPE_CHECKING:
    from queue_over_sql import Queue, QueueService


def test_two_queues_have_keys_of_their_own(service: QueueService) -> None:
    """The key is unique in its queue only."""
    for name in ("a", "b"):
        assert "created" == service.create_queue(name).publish("x", key="k").outcome


def test_replace_by_the_same_content_is_unchanged(queue: Queue) -> None:
    """Equal content changes nothing, unless it gets a new time."""
    first = queue.publish({"a": 1}, key="k", headers={"h": 1})
    same = queue.publish({"a": 1}, key="k", headers={"h": 1}, on_conflict="replace")
    assert first.id == same.id
    assert "unchanged" == same.outcome
    assert 1 == queue.stats().ready
    moved = queue.publish({"a": 1}, key="k", headers={"h": 1}, delay=60, on_conflict="replace")
    assert first.id == moved.id
    assert "replaced" == moved.outcome
    assert 0 == queue.stats().ready
    assert 1 == queue.stats().delayed


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
    assert ["replaced", "created", "replaced", "created"] == [one.outcome for one in published]
    assert there.id == published[0].id
    assert published[1].id == published[2].id
    by_key = {message.key: message.payload for message in queue.consume(10)}
    assert {"there": "new", "a": 2, None: "plain"} == by_key


def test_a_batch_that_conflicts_publishes_nothing(queue: Queue) -> None:
    """DuplicateKey in a batch takes back the whole batch, and has the id of what stays."""
    there = queue.publish("there", key="there")
    for second, taken in (("there", there.id), ("a", None)):
        with pytest.raises(DuplicateKey) as caught:
            queue.publish_many(["plain", Publication(1, key="a"), Publication(2, key=second)])
        assert taken == caught.value.id
    assert ["there"] == payloads(queue.consume(10))


def test_load_refuses_a_taken_key_and_publishes_nothing_of_that_batch(queue: Queue) -> None:
    """The bulk path names the key too, and the batches before it stay."""
    taken = queue.publish("first", key="taken")
    items = [1, 2, Publication(3, key="free"), Publication(4, key="taken")]
    with pytest.raises(DuplicateKey) as caught:
        queue.load(items, batch_size=2)
    assert "taken" == caught.value.key
    assert taken.id == caught.value.id
    assert ["first", 1, 2] == [message.payload for message in queue.consume(10)]
