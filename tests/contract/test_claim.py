"""Claiming: which messages come, in which order, and for how long."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from tests.contract.looking import ARGUMENT_ERRORS, counts, ids, payloads, set_columns
from tests.contract.waiting import consume_exactly, wait_until

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import Message, Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService


def lease_of(message: Message) -> timedelta:
    """How long the claim holds."""
    assert message.lease_expires_at is not None
    assert message.claimed_at is not None
    return message.lease_expires_at - message.claimed_at


def test_an_empty_queue_gives_nothing(queue: Queue) -> None:
    """Nothing there is an empty list."""
    assert queue.consume() == []
    assert queue.consume(10) == []


def test_messages_come_oldest_first(queue: Queue) -> None:
    """One by one and in batches, the oldest come first, and a batch is in order."""
    queue.publish_many(list(range(12)))
    assert payloads(queue.consume()) == [0]
    assert payloads(queue.consume(4)) == [1, 2, 3, 4]
    assert payloads(queue.consume(100)) == list(range(5, 12))
    assert counts(queue) == (0, 12, 0)


def test_order_is_by_due_time_before_id(queue: Queue, engine: Engine) -> None:
    """A message whose due time was moved ahead comes ahead, also within a batch."""
    first, second, third = queue.publish_many(["a", "b", "c"])
    listed = {message.id: message for message in queue.messages().list()}
    assert listed[first.id].available_at == listed[first.id].scheduled_at
    set_columns(engine, queue, third.id, available_at=1_000)
    set_columns(engine, queue, second.id, available_at=2_000)
    assert payloads(queue.consume(3)) == ["c", "b", "a"]


def test_urgent_messages_come_first(service: QueueService) -> None:
    """Priority goes before age; age decides within a priority."""
    queue = service.create_queue("levels", priorities=3)
    for number, level in enumerate([2, 1, 0, 1, 0, 2]):
        queue.publish(number, priority=level)
    assert payloads(queue.consume(3)) == [2, 4, 1]
    assert payloads(queue.consume(3)) == [3, 0, 5]


def test_delayed_urgent_messages_do_not_block_the_rest(service: QueueService) -> None:
    """What is not due is passed over, whatever its level."""
    queue = service.create_queue("levels", priorities=2)
    queue.publish("urgent but later", priority=0, delay=60)
    queue.publish("plain", priority=1)
    assert payloads(queue.consume(2)) == ["plain"]


def test_a_claim_is_stamped(service: QueueService, queue: Queue) -> None:
    """The message says who holds it, since when and until when."""
    queue.publish("x")
    (message,) = queue.consume(lease=60)
    assert service.consumer_id is not None
    assert service.consumer_id == message.consumer_id
    assert timedelta(seconds=60) == lease_of(message)


def test_rounds_rise_with_every_claim(queue: Queue) -> None:
    """A batch shares its round; the next claim has a higher one."""
    queue.publish_many(list(range(5)))
    first, second, third = queue.consume(2), queue.consume(2), queue.consume(1)
    rounds = [[message.consumer_round or 0 for message in some] for some in (first, second, third)]
    assert rounds[0][0] == rounds[0][1]
    assert rounds[1][0] == rounds[1][1]
    assert rounds[0][0] < rounds[1][0] < rounds[2][0]


def test_an_attempt_is_counted_at_the_claim(queue: Queue) -> None:
    """The first delivery is attempt 1, the next after a failure attempt 2."""
    queue.publish("x")
    (first,) = queue.consume()
    first.nack(delay=0)
    (second,) = consume_exactly(queue, 1)
    assert (1, 2) == (first.attempt, second.attempt)


def test_the_closest_lease_wins(service: QueueService) -> None:
    """The consume call's lease goes over the message's, and that over the queue's."""
    queue = service.create_queue("leases", lease=40)
    queue.publish("own", lease=20)
    queue.publish("own", lease=timedelta(seconds=20))
    queue.publish("none")
    claimed = [*queue.consume(), *queue.consume(lease=10), *queue.consume()]
    found = [lease_of(message) for message in claimed]
    assert found == [timedelta(seconds=seconds) for seconds in (20, 10, 40)]


@pytest.mark.parametrize("count", [0, -1, "two", None])
def test_a_count_below_one_is_refused(queue: Queue, count: int) -> None:
    """Asking for nothing is a mistake of the caller."""
    queue.publish("x")
    with pytest.raises(ARGUMENT_ERRORS):
        queue.consume(count)
    assert queue.stats().ready == 1


@pytest.mark.parametrize("lease", [0, -5, timedelta(0)])
def test_a_lease_of_nothing_is_refused(queue: Queue, lease: float) -> None:
    """A claim must hold for some time."""
    queue.publish("x")
    with pytest.raises(ARGUMENT_ERRORS):
        queue.consume(lease=lease)


def test_a_held_message_is_not_delivered(queue: Queue, engine: Engine) -> None:
    """A message without a due time is held."""
    held, _ = queue.publish_many(["held", "free"])
    set_columns(engine, queue, held.id, available_at=None)
    assert payloads(queue.consume(2)) == ["free"]
    assert queue.stats().held == 1


def test_a_pause_stops_delivery_everywhere(make_service: MakeService) -> None:
    """A paused queue takes messages and gives none, to any service, until resumed."""
    here, there = make_service().create_queue("jobs"), make_service().queue("jobs")
    here.publish("before")
    there.consume()[0].release()
    here.pause()
    here.publish("during")
    assert (here.consume(5), there.consume(5)) == ([], [])
    assert there.stats().ready == 2
    there.resume()
    assert payloads(consume_exactly(here, 2)) == ["before", "during"]


def test_a_claim_outlives_the_pause(queue: Queue) -> None:
    """What is in work may be finished while paused."""
    queue.publish("x")
    (message,) = queue.consume()
    queue.pause()
    message.ack()
    assert counts(queue) == (0, 0, 0)


def test_where_chooses_among_the_ready(queue: Queue) -> None:
    """An SQL expression over the queue's table narrows the claim, oldest first."""
    for number, kind in enumerate(["a", "b", "a", "b"]):
        queue.publish(number, kind=kind)
    assert payloads(queue.consume(5, where=queue.table.c.kind == "b")) == [1, 3]
    assert payloads(queue.consume(5)) == [0, 2]


def test_waiting_ends_when_a_message_comes(queue: Queue) -> None:
    """A publish in the same process ends the wait of a consumer."""
    later = threading.Timer(0.2, queue.publish, args=("hello",))
    later.start()
    try:
        assert payloads(queue.consume(wait=5)) == ["hello"]
    finally:
        later.join()


def test_waiting_ends_empty_after_its_time(queue: Queue) -> None:
    """Without a message the wait gives an empty list."""
    assert queue.consume(wait=0.1) == []
    assert queue.consume(wait=timedelta(milliseconds=100)) == []


def test_two_services_never_share_a_message(make_service: MakeService) -> None:
    """Every message goes to exactly one of several consumers."""
    services = [make_service() for _ in range(3)]
    services[0].create_queue("jobs").publish_many(list(range(90)))

    def drain(service: QueueService) -> list[int]:
        queue, mine = service.queue("jobs"), list[int]()
        while batch := queue.consume(7):
            mine.extend(ids(batch))
        return mine

    with ThreadPoolExecutor(3) as pool:
        taken = [one for some in pool.map(drain, services) for one in some]
    taken += ids(services[0].queue("jobs").consume(90))
    assert (90, 90) == (len(taken), len(set(taken)))


def test_threads_of_one_service_never_share_a_message(queue: Queue) -> None:
    """Eight threads on one service: nothing twice, nothing lost, each ack counts once."""
    queue.publish_many(list(range(160)))

    def drain(_: int) -> list[int]:
        mine: list[int] = []
        while batch := queue.consume(3):
            mine.extend(ids(batch))
            queue.ack(batch)
        return mine

    with ThreadPoolExecutor(8) as pool:
        taken = [one for some in pool.map(drain, range(8)) for one in some]
    rest = queue.consume(160)
    taken += ids(rest)
    assert (160, 160) == (len(taken), len(set(taken)))
    queue.ack(rest)
    assert counts(queue) == (0, 0, 0)


def test_late_and_back_dated_messages_are_found(queue: Queue, engine: Engine) -> None:
    """A message that appears behind what was claimed last is delivered all the same."""
    late, *_ = queue.publish_many(list(range(8)))
    set_columns(engine, queue, late.id, available_at=None)
    assert payloads(queue.consume(3)) == [1, 2, 3]
    set_columns(engine, queue, late.id, available_at=1_000)
    assert sorted(payloads(consume_exactly(queue, 5))) == [0, 4, 5, 6, 7]


def test_a_back_dated_message_is_found_under_load(queue: Queue, engine: Engine) -> None:
    """With a backlog that never ends, a message behind the claims does not wait for its end."""
    behind, *_ = queue.publish_many(list(range(20)))
    set_columns(engine, queue, behind.id, available_at=None)
    queue.ack(queue.consume(3))
    set_columns(engine, queue, behind.id, available_at=1_000)

    def found() -> bool:
        queue.publish("more")
        claimed = queue.consume()
        queue.ack(claimed)
        return ids(claimed) == [behind.id]

    wait_until(found, step=0)
    assert queue.stats().ready > 1
