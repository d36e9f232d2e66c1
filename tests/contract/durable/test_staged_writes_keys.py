"""Stages: what becomes of messages whose keys are taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from queue_over_sql import DuplicateKey, QueueService
from queue_over_sql.durable.staged_writes import InMemoryBatch, StagedPublisher
from queue_over_sql.queue import core_of
from tests.contract.durable.staged_batches import BATCH, batch_of, stage_names, staged

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import Queue

pytestmark = pytest.mark.threads("only Spark's processes write stages, which have no event loop")


def test_a_taken_key_is_refused_and_nothing_published(queue: Queue, engine: Engine) -> None:
    """As ``publish`` does by default; the batch may be written again."""
    publisher = StagedPublisher(core_of(queue).context)
    taken = queue.publish("first", key="b")
    stages = [staged(publisher, message_key=["a", None, "b"], payload=["1", "2", "3"])]
    with pytest.raises(DuplicateKey) as caught:
        publisher.publish(BATCH, stages)
    assert ("b", taken.id) == (caught.value.key, caught.value.id)
    assert 1 == queue.stats().ready
    assert not publisher.is_published(BATCH)
    publisher.discard(stages)
    assert [] == stage_names(engine)


def test_a_key_that_is_given_twice_is_refused(queue: Queue) -> None:
    """Across the stages of a batch as within one."""
    publisher = StagedPublisher(core_of(queue).context)
    stages = [
        staged(publisher, message_key=["a", "b"], payload=["1", "2"]),
        staged(publisher, message_key=["c", "a"], payload=["3", "4"]),
    ]
    with pytest.raises(DuplicateKey, match="Two messages of one batch") as caught:
        publisher.publish(BATCH, stages)
    assert ("a", None) == (caught.value.key, caught.value.id)
    assert 0 == queue.stats().ready


def test_taken_keys_are_skipped(queue: Queue) -> None:
    """The live one stays, and of several new ones the first counts."""
    publisher = StagedPublisher(core_of(queue).context, on_conflict="skip")
    queue.publish("old", key="b")
    stages = [
        staged(publisher, message_key=["a", "b", "a", None], payload=["1", "2", "3", "4"]),
        staged(publisher, message_key=["c", "a", None], payload=["5", "6", "7"]),
    ]
    published = publisher.publish(BATCH, stages)
    assert (4, 0, 3) == (published.created, published.replaced, published.left_out)
    found = {(message.key, message.payload) for message in queue.consume(10)}
    assert {("b", "old"), ("a", 1), (None, 4), ("c", 5), (None, 7)} == found


def test_live_messages_are_replaced(queue: Queue) -> None:
    """Content and time are new, the id stays; the last of several new ones counts."""
    publisher = StagedPublisher(core_of(queue).context, on_conflict="replace")
    old = queue.publish("old", key="b", headers={"h": 1}, max_attempts=2)
    same = queue.publish("same", key="s")
    [held] = [m for m in queue.consume(2) if m.key == "s"]
    given: dict[str, list[Any]] = {
        "message_key": ["a", "b", "a", "b", None, "s"],
        "payload": ["1", "2", "3", '"Old"', "5", '"same"'],
    }
    published = publisher.publish(BATCH, [staged(publisher, **given)])
    assert (2, 1, 3) == (published.created, published.replaced, published.left_out)
    listed = {message.key: message for message in queue.messages().list()}
    assert (old.id, "Old", {}, 0) == (
        listed["b"].id,
        listed["b"].payload,
        listed["b"].headers,
        listed["b"].attempt,
    )
    assert (3, same.id, 4) == (listed["a"].payload, listed["s"].id, len(listed))
    # Nothing about it changed, so its holder keeps it.
    held.ack()


def test_a_replace_by_case_alone_is_a_change(service: QueueService) -> None:
    """Texts are compared by their characters, whatever the database's collation says."""
    queue = service.create_queue("notes", payload="text")
    publisher = StagedPublisher(core_of(queue).context, on_conflict="replace")
    queue.publish("note", key="n")
    batch = batch_of(message_key=["n"], payload=["NOTE"])
    stage = publisher.stage(BATCH, ["message_key", "payload"], [[batch]])
    assert 1 == publisher.publish(BATCH, [stage]).replaced
    assert ["NOTE"] == [message.payload for message in queue.consume(5)]


@pytest.mark.default_on("sqlite", "postgresql")
def test_a_replace_may_delay(queue: Queue) -> None:
    """A delay makes the same content due at another instant."""
    publisher = StagedPublisher(core_of(queue).context, on_conflict="replace")
    queue.publish("x", key="k")
    given: dict[str, list[Any]] = {
        "message_key": ["k"],
        "payload": ['"x"'],
        "_delay": [3_600_000_000],
    }
    assert 1 == publisher.publish(BATCH, [staged(publisher, **given)]).replaced
    assert (0, 1) == (queue.stats().ready, queue.stats().delayed)


@pytest.mark.engines("sqlite")
def test_keys_in_hand_are_looked_after_too(queue: Queue) -> None:
    """Small keyed parts go by way of a stage."""
    publisher = StagedPublisher(core_of(queue).context, on_conflict="skip")
    queue.publish("old", key="a")
    batch = batch_of(message_key=["a", "b"], payload=["1", "2"])
    published = publisher.publish(
        BATCH, [], in_memory=InMemoryBatch(["message_key", "payload"], [batch])
    )
    assert (1, 1) == (published.created, published.left_out)


def test_keys_of_finished_messages_count_within_the_window(service: QueueService) -> None:
    """A ``dedup_window`` holds for batches as it does for single messages."""
    for on_conflict in ("skip", "replace", "raise"):
        queue = service.create_queue(f"{on_conflict}_once", dedup_window=600)
        publisher = StagedPublisher(core_of(queue).context, on_conflict=on_conflict)
        done = queue.publish("done", key="d")
        queue.ack(queue.consume())
        stage = staged(publisher, message_key=["d", "n", None], payload=["1", "2", "3"])
        if on_conflict == "raise":
            with pytest.raises(DuplicateKey, match="dedup_window") as caught:
                publisher.publish(BATCH, [stage])
            assert ("d", done.id) == (caught.value.key, caught.value.id)
            assert 0 == queue.stats().ready
            continue
        published = publisher.publish(BATCH, [stage])
        assert (on_conflict, 2, 0, 1) == (
            on_conflict,
            published.created,
            published.replaced,
            published.left_out,
        )
        assert {2, 3} == {message.payload for message in queue.consume(5)}
