"""Claiming: which messages come, in which order, and for how long."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from queue_over_sql import ClaimLost, store
from queue_over_sql.queue import core_of
from tests.contract.queue_state import ARGUMENT_ERRORS, counts, ids, payloads, set_columns
from tests.refusals import refused
from tests.waiting import consume_exactly, wait_until

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import Message, Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService

pytestmark = pytest.mark.driver_decides


same_statements = pytest.mark.threads("the claim is that of the tests on both faces")


def lease_of(message: Message) -> timedelta:
    """How long the claim holds."""
    assert message.lease_expires_at is not None
    assert message.claimed_at is not None
    return message.lease_expires_at - message.claimed_at


def test_messages_come_oldest_first(queue: Queue) -> None:
    """One by one and in batches, the oldest come first; of nothing there is an empty list."""
    assert queue.consume(10) == []
    queue.publish_many(list(range(12)))
    assert payloads(queue.consume()) == [0]
    assert payloads(queue.consume(4)) == [1, 2, 3, 4]
    assert payloads(queue.consume(100)) == list(range(5, 12))
    assert queue.consume() == []
    assert counts(queue) == (0, 12, 0)


@same_statements
def test_order_is_by_due_time_before_id(queue: Queue, engine: Engine) -> None:
    """A message whose due time was moved ahead comes ahead, also within a batch."""
    first, second, third = queue.publish_many(["a", "b", "c"])
    listed = {message.id: message for message in queue.messages().list()}
    assert listed[first.id].available_at == listed[first.id].scheduled_at
    set_columns(engine, queue, third.id, available_at=1_000)
    set_columns(engine, queue, second.id, available_at=2_000)
    assert payloads(queue.consume(3)) == ["c", "b", "a"]


@same_statements
def test_urgent_messages_come_first(service: QueueService) -> None:
    """Priority goes before age; age decides within a priority; what is not due blocks nothing."""
    queue = service.create_queue("levels", priorities=3)
    queue.publish("urgent but later", priority=0, delay=600)
    for number, level in enumerate([2, 1, 0, 1, 0, 2]):
        queue.publish(number, priority=level)
    assert payloads(queue.consume(3)) == [2, 4, 1]
    assert payloads(queue.consume(4)) == [3, 0, 5]


def test_a_claim_is_stamped(service: QueueService, queue: Queue) -> None:
    """The message says who holds it, since when, until when, and for which attempt."""
    queue.publish("x")
    (message,) = queue.consume(lease=60)
    assert service.consumer_id is not None
    assert service.consumer_id == message.consumer_id
    assert timedelta(seconds=60) == lease_of(message)
    message.nack(delay=0)
    (again,) = consume_exactly(queue, 1)
    assert (1, 2) == (message.attempt, again.attempt)


@same_statements
def test_rounds_rise_with_every_claim(queue: Queue) -> None:
    """A batch shares its round; the next claim has a higher one."""
    queue.publish_many(list(range(5)))
    first, second, third = queue.consume(2), queue.consume(2), queue.consume(1)
    rounds = [[message.consumer_round or 0 for message in some] for some in (first, second, third)]
    assert rounds[0][0] == rounds[0][1]
    assert rounds[1][0] == rounds[1][1]
    assert rounds[0][0] < rounds[1][0] < rounds[2][0]


@same_statements
def test_the_closest_lease_wins(service: QueueService) -> None:
    """The consume call's lease goes over the message's, and that over the queue's."""
    queue = service.create_queue("leases", lease=40)
    queue.publish("own", lease=20)
    queue.publish("own", lease=timedelta(seconds=20))
    queue.publish("none")
    claimed = [*queue.consume(), *queue.consume(lease=10), *queue.consume()]
    found = [lease_of(message) for message in claimed]
    assert found == [timedelta(seconds=seconds) for seconds in (20, 10, 40)]


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python refuses it")
def test_a_count_or_a_lease_of_nothing_is_refused(queue: Queue) -> None:
    """Asking for nothing is a mistake of the caller, and a claim must hold for some time."""
    queue.publish("x")
    nothing: list[Any] = [0, -1, "two", None]
    for count in nothing:
        with refused(count, *ARGUMENT_ERRORS):
            queue.consume(count)
    for lease in (0, -5, timedelta(0)):
        with refused(lease, *ARGUMENT_ERRORS):
            queue.consume(lease=lease)
    assert queue.stats().ready == 1


@same_statements
def test_a_held_message_is_not_delivered(queue: Queue, engine: Engine) -> None:
    """A message without a due time is held."""
    held, _ = queue.publish_many(["held", "free"])
    set_columns(engine, queue, held.id, available_at=None)
    assert payloads(queue.consume(2)) == ["free"]
    assert queue.stats().held == 1


@same_statements
def test_a_pause_stops_delivery_everywhere(make_service: MakeService) -> None:
    """A paused queue gives no message, to any service, until resumed; what is in work goes on."""
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


@same_statements
def test_where_chooses_among_the_ready(queue: Queue) -> None:
    """An SQL expression over the queue's table narrows the claim, oldest first."""
    for number, kind in enumerate(["a", "b", "a", "b"]):
        queue.publish(number, kind=kind)
    assert payloads(queue.consume(5, where=queue.table.c.kind == "b")) == [1, 3]
    assert payloads(queue.consume(5)) == [0, 2]


@same_statements
def test_waiting_ends_when_a_message_comes(queue: Queue) -> None:
    """A publish in the same process ends it; without one it ends empty after its time."""
    assert queue.consume(wait=0.01) == []
    assert queue.consume(wait=timedelta(milliseconds=10)) == []
    later = threading.Timer(0.05, queue.publish, args=("hello",))
    later.start()
    try:
        assert payloads(queue.consume(wait=30)) == ["hello"]
    finally:
        later.join()


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


@pytest.mark.default_on("sqlite", "postgresql")
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


@pytest.mark.default_on("sqlite", "postgresql")
@pytest.mark.threads("tasks share a few connections")
def test_a_hundred_waiting_threads_get_a_message_each(queue: Queue) -> None:
    """None of them goes without while others wait for what it could have."""
    started = threading.Barrier(101)

    def take_one() -> list[int]:
        started.wait(30)
        messages = queue.consume(wait=60)
        queue.ack(messages)
        return payloads(messages)

    with ThreadPoolExecutor(100) as pool:
        taken = [pool.submit(take_one) for _ in range(100)]
        started.wait(30)
        queue.publish_many(range(100))
        assert list(range(100)) == sorted(payload for each in taken for payload in each.result())


@same_statements
def test_late_and_back_dated_messages_are_found(queue: Queue, engine: Engine) -> None:
    """A message that appears behind what was claimed last is delivered all the same."""
    late, *_ = queue.publish_many(list(range(8)))
    set_columns(engine, queue, late.id, available_at=None)
    assert payloads(queue.consume(3)) == [1, 2, 3]
    set_columns(engine, queue, late.id, available_at=1_000)
    assert sorted(payloads(consume_exactly(queue, 5))) == [0, 4, 5, 6, 7]


@same_statements
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


LOST: dict[str, Callable[[Queue, Queue], list[Message]]] = {
    "another consumer's": lambda queue, other: [*queue.consume(1), *other.consume(1)],
    "listed": lambda queue, _: [*queue.consume(1), *queue.messages(status="ready").list(limit=1)],
    "claimed before": lambda queue, _: claimed_twice(queue),
}


def claimed_twice(queue: Queue) -> list[Message]:
    """One message by its claim that was given back, and by its present claim."""
    (before,) = queue.consume(1)
    queue.release(before)
    return [before, *consume_exactly(queue, 1)]


def test_an_exchange_that_loses_a_message_claims_none(make_service: MakeService) -> None:
    """What is still held is acked; the others are named, and no message is claimed for nobody."""
    queue, other = (make_service().create_queue("jobs") for _ in range(2))
    for name, finished in LOST.items():
        queue.purge(claimed=True)
        queue.publish_many(list(range(5)))
        messages = finished(queue, other)
        claimed = queue.stats().claimed
        with pytest.raises(ClaimLost) as caught:
            queue.exchange(messages, 2)
        lost = messages[:1] if name == "claimed before" else messages[1:]
        assert lost == caught.value.messages, name
        assert claimed - 1 == queue.stats().claimed, name


@pytest.mark.threads("the claim is that of the tests on both faces")
def test_a_batch_of_two_looks_is_in_order(
    service: QueueService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is restored while a claim runs takes its place in the batch."""
    queue = service.create_queue("levels", priorities=2)
    queue.publish("low", priority=1)
    beside_the_restore(queue, monkeypatch, lambda: queue.publish_many([0, 1, 2]))
    assert [0, 1, 2, "low"] == payloads(queue.consume(9))


@pytest.mark.threads("the claim is that of the tests on both faces")
def test_a_call_hands_out_a_message_once(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when its lease ends while the call looks again; one attempt is spent."""
    queue.publish("x")
    beside_the_restore(queue, monkeypatch, lambda: wait_until(lambda: lease_is_over(queue)))
    (message,) = queue.consume(5, lease=0.001)
    assert 1 == message.attempt
    (listed,) = queue.messages().list()
    assert 1 == listed.attempt


def beside_the_restore(queue: Queue, patch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Do something between the two looks of the queue's next claim."""
    recovery = core_of(queue).recovery
    restore = recovery.restore

    def acting() -> int:
        act()
        return restore() + 1

    patch.setattr(recovery, "restore", acting)
    patch.setattr(recovery.pace, "due", lambda: True)


def lease_is_over(queue: Queue) -> bool:
    """Whether the only message could be restored."""
    context = core_of(queue).context
    now = context.run(lambda connection: store.server_now(connection, context.sql))
    (listed,) = queue.messages().list()
    expires_at = listed.lease_expires_at
    return expires_at is not None and expires_at.timestamp() * 1_000_000 < now


@pytest.mark.engines("sqlite")
def test_a_wait_must_be_a_duration(queue: Queue) -> None:
    """None would mean to wait for ever, or not at all; nobody can tell."""
    for odd in (None, "", False, "1"):
        with pytest.raises(TypeError, match="wait must be seconds"):
            queue.consume(wait=odd)  # type: ignore[arg-type]
