"""Claiming: which messages are claimed, in which order and for how long, and each claim's fence."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from queue_over_sql import Message, Queue
from queue_over_sql.errors import ClaimLost
from queue_over_sql.testing.contract.state import (
    archived,
    counts,
    ids,
    live_rows,
    payloads,
    set_columns,
)
from queue_over_sql.testing.waiting import consume_exactly, wait_until

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import QueueService
    from queue_over_sql.testing.plugin import MakeService

Verb = Callable[[Queue, list[Message]], object]


VERBS: dict[str, Verb] = {
    "ack": lambda _, messages: messages[0].ack(),
    "nack": lambda _, messages: messages[0].nack("too late", delay=0),
    "release": lambda _, messages: messages[0].release(),
    "reject": lambda _, messages: messages[0].reject("too late"),
    "extend": lambda _, messages: messages[0].extend(lease=900),
    "batch ack": lambda queue, messages: queue.ack(messages),
    "batch nack": lambda queue, messages: queue.nack(messages, error="too late", delay=0),
    "batch release": lambda queue, messages: queue.release(messages),
    "batch reject": lambda queue, messages: queue.reject(messages, "too late"),
    "batch extend": lambda queue, messages: queue.extend(messages, lease=900),
    "exchange": lambda queue, messages: queue.exchange(messages, 1),
}


def assert_refused(
    engine: Engine, queue: Queue, messages: list[Message], verbs: Iterable[str] = VERBS
) -> None:
    """Each verb raises ClaimLost for these messages and changes nothing."""
    before, dead = live_rows(engine, queue), len(archived(queue))
    for name in verbs:
        with pytest.raises(ClaimLost) as caught:
            VERBS[name](queue, messages)
        assert ids(messages) == ids(caught.value.messages), name
        assert (before, dead) == (live_rows(engine, queue), len(archived(queue))), name


def unclaimed(engine: Engine, queue: Queue) -> bool:
    """Whether no live row has a claim."""
    return all(row[4] is None for row in live_rows(engine, queue))


def lease_of(message: Message) -> timedelta:
    """The length of the claim's lease."""
    assert message.lease_expires_at is not None
    assert message.claimed_at is not None
    return message.lease_expires_at - message.claimed_at


class ClaimCases:
    """What every engine guarantees when messages are claimed."""

    def test_messages_come_oldest_first(self, queue: Queue) -> None:
        """The oldest messages come first, one by one and in batches; an empty queue gives []."""
        assert queue.consume(10) == []
        queue.publish_many(list(range(12)))
        assert payloads(queue.consume()) == [0]
        assert payloads(queue.consume(4)) == [1, 2, 3, 4]
        assert payloads(queue.consume(100)) == list(range(5, 12))
        assert queue.consume() == []
        assert counts(queue) == (0, 12, 0)

    def test_order_is_by_due_time_before_id(self, queue: Queue, engine: Engine) -> None:
        """A message whose due time was moved forward comes earlier, also within a batch."""
        first, second, third = queue.publish_many(["a", "b", "c"])
        listed = {message.id: message for message in queue.messages().list()}
        assert listed[first.id].available_at == listed[first.id].scheduled_at
        set_columns(engine, queue, third.id, available_at=1_000)
        set_columns(engine, queue, second.id, available_at=2_000)
        assert payloads(queue.consume(3)) == ["c", "b", "a"]

    def test_urgent_messages_come_first(self, service: QueueService) -> None:
        """Priority comes before age. Messages that are not due block nothing."""
        queue = service.create_queue("levels", priorities=3)
        queue.publish("urgent but later", priority=0, delay=600)
        for number, level in enumerate([2, 1, 0, 1, 0, 2]):
            queue.publish(number, priority=level)
        assert payloads(queue.consume(3)) == [2, 4, 1]
        assert payloads(queue.consume(4)) == [3, 0, 5]

    def test_a_claim_is_stamped(self, service: QueueService, queue: Queue) -> None:
        """The message has its holder, the times of claim and lease, and its attempt."""
        queue.publish("x")
        (message,) = queue.consume(lease=60)
        assert service.consumer_id is not None
        assert service.consumer_id == message.consumer_id
        assert timedelta(seconds=60) == lease_of(message)
        message.nack(delay=0)
        (again,) = consume_exactly(queue, 1)
        assert (1, 2) == (message.attempt, again.attempt)

    def test_rounds_rise_with_every_claim(self, queue: Queue) -> None:
        """A batch has one round; the next claim has a higher one."""
        queue.publish_many(list(range(5)))
        first, second, third = queue.consume(2), queue.consume(2), queue.consume(1)
        rounds = [
            [message.consumer_round or 0 for message in some] for some in (first, second, third)
        ]
        assert rounds[0][0] == rounds[0][1]
        assert rounds[1][0] == rounds[1][1]
        assert rounds[0][0] < rounds[1][0] < rounds[2][0]

    def test_the_closest_lease_wins(self, service: QueueService) -> None:
        """The lease given to consume replaces the message's, which replaces the queue's."""
        queue = service.create_queue("leases", lease=40)
        queue.publish("own", lease=20)
        queue.publish("own", lease=timedelta(seconds=20))
        queue.publish("none")
        claimed = [*queue.consume(), *queue.consume(lease=10), *queue.consume()]
        found = [lease_of(message) for message in claimed]
        assert found == [timedelta(seconds=seconds) for seconds in (20, 10, 40)]

    def test_a_held_message_is_not_delivered(self, queue: Queue, engine: Engine) -> None:
        """A message without a due time is held and not delivered."""
        held, _ = queue.publish_many(["held", "free"])
        set_columns(engine, queue, held.id, available_at=None)
        assert payloads(queue.consume(2)) == ["free"]
        assert queue.stats().held == 1

    def test_a_pause_stops_delivery_everywhere(self, make_service: MakeService) -> None:
        """A paused queue gives no service a message until resumed; claimed ones continue."""
        here, there = make_service().create_queue("jobs"), make_service().queue("jobs")
        here.publish_many(["in work", "before"])
        in_work, before = there.consume(2)
        before.release()
        here.pause()
        in_work.ack()
        here.publish("during")
        assert (here.consume(5), there.consume(5)) == ([], [])
        assert there.stats().ready == 2
        there.resume()
        assert payloads(consume_exactly(here, 2)) == ["before", "during"]

    def test_where_chooses_among_the_ready(self, queue: Queue) -> None:
        """An SQL expression on the queue's table filters the claim, oldest first."""
        for number, kind in enumerate(["a", "b", "a", "b"]):
            queue.publish(number, kind=kind)
        assert payloads(queue.consume(5, where=queue.table.c.kind == "b")) == [1, 3]
        assert payloads(queue.consume(5)) == [0, 2]

    def test_waiting_ends_when_a_message_comes(self, queue: Queue) -> None:
        """A publish in the same process ends the wait; otherwise the time limit does."""
        assert queue.consume(wait=0.01) == []
        assert queue.consume(wait=timedelta(milliseconds=10)) == []
        later = threading.Timer(0.05, queue.publish, args=("hello",))
        later.start()
        try:
            assert payloads(queue.consume(wait=30)) == ["hello"]
        finally:
            later.join()

    def test_two_services_never_share_a_message(self, make_service: MakeService) -> None:
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

    def test_late_and_back_dated_messages_are_found(self, queue: Queue, engine: Engine) -> None:
        """A message that appears before the last claimed one is delivered, too."""
        late, *_ = queue.publish_many(list(range(8)))
        set_columns(engine, queue, late.id, available_at=None)
        assert payloads(queue.consume(3)) == [1, 2, 3]
        set_columns(engine, queue, late.id, available_at=1_000)
        assert sorted(payloads(consume_exactly(queue, 5))) == [0, 4, 5, 6, 7]

    def test_a_zombie_changes_nothing_after_another_claimed(
        self, make_service: MakeService, engine: Engine
    ) -> None:
        """A's lease expires and B claims: A is refused, and B's ack works."""
        a = make_service().create_queue("jobs")
        b = make_service(reaper_interval=0.05).queue("jobs")
        a.publish("x")
        zombie = a.consume(lease=0.05)
        holder = consume_exactly(b, 1)
        assert ids(zombie) == ids(holder)
        assert holder[0].attempt == 2
        assert_refused(engine, a, zombie)
        holder[0].ack()
        assert live_rows(engine, b) == []

    def test_a_zombie_changes_nothing_after_it_was_restored(
        self, make_service: MakeService, engine: Engine
    ) -> None:
        """A's lease expires and a reaper recovers it: A is refused, even without another claim."""
        a = make_service().create_queue("jobs")
        a.publish("x")
        zombie = a.consume(lease=0.05)
        with make_service(reaper_interval=0.05) as reaper:
            wait_until(lambda: unclaimed(engine, a))
            assert_refused(engine, a, zombie)
            assert ids(consume_exactly(reaper.queue("jobs"), 1)) == ids(zombie)

    def test_an_older_claim_of_the_same_consumer_is_no_claim(
        self, queue: Queue, engine: Engine
    ) -> None:
        """The round tells two claims of one consumer apart."""
        queue.publish("x")
        old = queue.consume()
        queue.release(old)
        new = consume_exactly(queue, 1)
        assert (old[0].id, old[0].consumer_id) == (new[0].id, new[0].consumer_id)
        assert_refused(engine, queue, old)
        new[0].ack()
        assert live_rows(engine, queue) == []

    def test_a_service_cannot_settle_the_message_of_another(
        self, make_service: MakeService, engine: Engine
    ) -> None:
        """A service cannot settle a message that another service claimed."""
        a = make_service().create_queue("jobs")
        b = make_service().queue("jobs")
        a.publish_many(["for a", "for b"])
        of_a, of_b = a.consume(), b.consume()
        of_a_queue = [name for name in VERBS if " " in name or name == "exchange"]
        assert_refused(engine, a, of_b, of_a_queue)
        a.ack(of_a)
        b.ack(of_b)
        assert live_rows(engine, a) == []

    def test_a_mixed_batch_settles_only_the_own(
        self, make_service: MakeService, engine: Engine
    ) -> None:
        """A batch with valid and expired claims settles the valid ones and names the others."""
        a = make_service().create_queue("jobs")
        b = make_service(reaper_interval=0.05).queue("jobs")
        a.publish_many(["quick", "slow"])
        held = a.consume(lease=60)
        zombie = a.consume(lease=0.05)
        taken = consume_exactly(b, 1)
        with pytest.raises(ClaimLost) as caught:
            a.ack([*zombie, *held])
        assert ids(zombie) == ids(caught.value.messages)
        assert ids(taken) == [row[0] for row in live_rows(engine, b)]
        b.ack(taken)
