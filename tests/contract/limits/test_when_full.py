"""`when_full`: what a publish does if its group, or the queue, is at its limit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from queue_over_sql import DuplicateKey, GroupFull, Publication, Published, PublishOutcome
from tests.contract.queue_state import payloads

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService

pytestmark = pytest.mark.driver_decides


def grouped(service: QueueService, when_full: str, limit: int = 2, **settings: Any) -> Queue:
    """A queue with groups that have room for so many messages."""
    settings = {"group_limit": limit, "when_full": when_full, **settings}
    return service.create_queue("jobs", **settings)


def all_of(queue: Queue) -> list[Any]:
    """The payloads of what is unfinished, by id."""
    return [each.payload for each in sorted(queue.messages().list(), key=lambda each: each.id)]


def test_a_full_group_refuses(service: QueueService) -> None:
    """Waiting and in hand both count; other groups and messages without one have room."""
    queue = grouped(service, "reject")
    queue.publish(1, group="a")
    queue.publish(2, group="a", delay=3600)
    for _ in range(2):
        with pytest.raises(GroupFull, match="limit of group 'a' of queue 'jobs'") as caught:
            queue.publish(3, group="a")
        assert ("jobs", "a", 2, None) == (
            caught.value.queue,
            caught.value.group,
            caught.value.limit,
            caught.value.place,
        )
        queue.consume()
    queue.publish_many([4, 5, 6])
    queue.publish(7, group="b")
    queue.cancel(queue.messages(status="claimed").list()[0].id)
    queue.publish(8, group="a")
    queue.groups["b"].configure(limit=1)
    with pytest.raises(GroupFull, match="has 1 unfinished"):
        queue.publish(9, group="b")
    service.create_queue("jobs", when_full="wait")
    queue.refresh()
    queue.publish(9, group="b")


def test_a_full_group_refuses_a_batch(service: QueueService, engine: Engine) -> None:
    """It names the item, publishes none, and the caller's transaction goes on."""
    queue = grouped(service, "reject")
    items = [Publication(n, group="ab"[n % 2]) for n in range(4)]
    with engine.begin() as caller:
        queue.publish("kept", connection=caller)
        for key in (None, "k"):
            late = Publication("late", group="a", key=key)
            with pytest.raises(GroupFull, match=r"items\[4\]") as caught:
                queue.publish_many([*items, late], connection=caller)
            assert 4 == caught.value.place
        queue.publish_many(items, connection=caller)
    assert ["kept", 0, 1, 2, 3] == all_of(queue)
    with pytest.raises(GroupFull, match=r"items\[5\]"):
        queue.load([*range(5), Publication("late", group="a")], batch_size=2)
    assert ["kept", 0, 1, 2, 3, 0, 1, 2, 3] == all_of(queue)


def test_a_full_queue_refuses(service: QueueService) -> None:
    """Without groups the limit of the queue counts; a key that is taken is no new message."""
    queue = service.create_queue("jobs", queue_limit=2, when_full="reject")
    first = queue.publish(1, key="k")
    [message] = queue.consume()
    queue.publish(2)
    with pytest.raises(GroupFull, match="The limit of queue 'jobs'"):
        queue.publish(3)
    assert first.id == queue.publish(3, key="k", on_conflict="skip").id
    with pytest.raises(DuplicateKey):
        queue.publish(3, key="k")
    message.ack()
    queue.publish(4)
    assert [2, 4] == all_of(queue)


def test_a_full_group_replaces_the_newest_that_waits(service: QueueService) -> None:
    """Under its id, with its own options; what is in hand stays, and then one is added."""
    queue = grouped(service, "replace", 1)
    first = queue.publish(1, group="a", key="one")
    again = queue.publish(2, group="a", delay=0, key="two")
    assert (first.id, "replaced") == (again.id, again.outcome)
    [message] = queue.consume()
    assert (2, "two") == (message.payload, message.key)
    waiting = queue.publish(3, group="a")
    assert "created" == waiting.outcome
    found = queue.publish_many([Publication(n, group="a") for n in (4, 5)])
    assert [(waiting.id, "replaced")] * 2 == [(each.id, each.outcome) for each in found]
    assert "created" == queue.publish(6, group="b").outcome
    message.ack()
    assert [5, 6] == sorted(payloads(queue.consume(5)))
    queue.publish(7, key="one")


def test_a_full_queue_replaces(service: QueueService) -> None:
    """The newest that waits and is not held, below the limit none."""
    queue = service.create_queue("jobs", queue_limit=3, when_full="replace")
    ids = [queue.publish(n).id for n in range(3)]
    queue.messages(where=queue.table.c.id == ids[2]).hold()
    assert [0] == payloads(queue.consume())
    assert ids[1] == queue.publish("new").id
    assert [0, "new", 2] == all_of(queue)


def test_a_key_that_is_in_work_or_came_back_in_a_full_queue(service: QueueService) -> None:
    """What is replaced gets the key of one in work; one that came back keeps its key taken."""
    settings: dict[str, Any] = {"unique": "waiting", "queue_limit": 2, "when_full": "replace"}
    queue = service.create_queue("jobs", **settings)
    queue.publish(1, key="a")
    [first] = queue.consume()
    other = queue.publish(2, key="b")
    assert Published(other.id, PublishOutcome.REPLACED) == queue.publish(3, key="a")
    first.release()
    queue.delete(other.id)
    queue.publish(4)
    with pytest.raises(DuplicateKey) as caught:
        queue.publish(5, key="a")
    assert first.id == caught.value.id
    assert [1, 4] == all_of(queue)


def test_publishers_at_the_same_time(service: QueueService, make_service: MakeService) -> None:
    """They do not wait for each other; what is refused is not there, what is accepted is."""
    queue = grouped(service, "reject", 5)
    publishers = [make_service().queue("jobs") for _ in range(4)]

    def publish(number: int) -> list[int]:
        made = []
        for _ in range(10):
            try:
                made.append(publishers[number].publish(number, group="a").id)
            except GroupFull:
                continue
        return made

    with ThreadPoolExecutor() as pool:
        made = [each for found in pool.map(publish, range(4)) for each in found]
    assert 5 <= len(made) <= 5 + len(publishers)
    assert sorted(made) == sorted(each.id for each in queue.messages().list())


def test_a_topic_and_a_schedule_meet_a_full_queue(service: QueueService) -> None:
    """The topic refuses the message, as with a taken key; who runs a schedule by hand is told."""
    queue = service.create_queue("jobs", queue_limit=1, when_full="reject")
    service.create_topic("events").subscribe(queue)
    service.topic("events").publish(1, routing_key="a")
    with pytest.raises(GroupFull):
        service.topic("events").publish(2, routing_key="a")
    service.schedules.add("tick", queue, 3, every=3600)
    with pytest.raises(GroupFull, match="leaves no room"):
        service.schedules.run("tick")
    assert [1] == all_of(queue)


# -- the largest length of a queue


def test_a_queue_of_the_largest_length_refuses(service: QueueService, engine: Engine) -> None:
    """Whatever the state and the group of its messages, and whichever ids are free between them."""
    queue = service.create_queue("jobs", max_length=4, group_limit=1)
    assert (4, "reject") == (queue.settings.max_length, queue.settings.when_full)
    first = queue.publish(0, group="a")
    queue.publish_many([1, 2], on_conflict="raise")
    queue.publish(3, delay=3600)
    for item in (4, Publication(4, group="a"), Publication(4, group="b", key="k")):
        with pytest.raises(GroupFull, match=r"The limit of queue 'jobs'.*has 4 unfinished"):
            queue.publish_many([item])
    [message] = queue.consume()
    assert first.id == message.id
    with pytest.raises(GroupFull), engine.begin() as caller:
        queue.publish(4, connection=caller)
    # Now ids are free between the oldest and the newest.
    queue.delete(queue.messages(status="ready").list()[0].id)
    with pytest.raises(GroupFull, match=r"items\[1\]"):
        queue.publish_many([4, 5])
    queue.publish(4, group="a")
    message.ack()
    queue.load([5])
    assert [2, 3, 4, 5] == all_of(queue)
    service.create_queue("jobs", max_length=None)
    queue.refresh()
    assert "wait" == queue.settings.when_full
    queue.publish_many([Publication(n, group="a") for n in range(3)])


def test_a_queue_of_the_largest_length_replaces(service: QueueService) -> None:
    """The newest that waits; if all are in hand, the message is added."""
    queue = service.create_queue("jobs", max_length=2, when_full="replace")
    ids = [each.id for each in queue.publish_many([0, 1])]
    assert (ids[1], "replaced") == (queue.publish(2).id, "replaced")
    assert [0, 2] == payloads(queue.consume(2))
    assert "created" == queue.publish(3).outcome


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python refuses it")
def test_a_largest_length_that_does_not_fit(service: QueueService) -> None:
    """It leaves nothing to wait for, and replaces no message of another group."""
    for settings in (
        {"max_length": 0},
        {"max_length": 5, "when_full": "wait"},
        {"max_length": 5, "when_full": "replace", "group_limit": 1},
    ):
        with pytest.raises(ValueError, match="max_length"):
            service.create_queue("jobs", **settings)
