"""Claiming: which messages are claimed, in which order, and for how long."""

from __future__ import annotations

import dataclasses
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from queue_over_sql import ClaimLost, Publication
from queue_over_sql.queue import core_of
from queue_over_sql.statements.clock import server_now
from tests.contract.queue_state import ARGUMENT_ERRORS, counts, ids, payloads, set_columns
from tests.refusals import refused
from tests.waiting import consume_exactly, wait_until

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import Message, Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService

pytestmark = pytest.mark.driver_decides


same_statements = pytest.mark.threads("the claim is that of the tests on both faces")


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
    assert 1 == queue.stats().ready


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python forgets it")
def test_a_claim_that_was_not_delivered_is_forgotten_with_its_queue(
    service: QueueService, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """Else each heartbeat asks for it, for as long as the process lives."""
    queue.publish("x")
    claimer = core_of(queue).claimer
    claimer.abandon(claimer.claim(1, None))
    service.drop_queue(queue.name)
    with caplog.at_level("INFO"):
        core_of(queue).context.consumer.heartbeat()
    assert not claimer._unanswered
    assert "later" not in caplog.text


@dataclasses.dataclass
class Order:
    """A kind of messages: Ctrl-C comes while the second one is decoded."""

    number: int

    def __post_init__(self) -> None:
        if self.number == 2:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.engines("sqlite", "postgresql")
@pytest.mark.threads("only threads are interrupted by signals")
def test_an_interrupted_claim_comes_back_with_a_heartbeat(make_service: MakeService) -> None:
    """A service that was not started has no reaper, and may never claim again."""
    make_service().create_queue("jobs").publish_many(
        [Publication({"number": number}, kind="Order") for number in (1, 2)]
    )
    queue = make_service(consumer_timeout=3).create_queue("jobs", kinds=[Order])
    with pytest.raises(KeyboardInterrupt):
        queue.consume(2)
    wait_until(lambda: (2, 0) == (queue.stats().ready, queue.stats().claimed), timeout=60)
    [first] = queue.consume(1)
    assert 1 == first.attempt
    assert Order(1) == first.payload
    first.ack()


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
    assert 160 == len(taken)
    assert 160 == len(set(taken))
    queue.ack(rest)
    assert (0, 0, 0) == counts(queue)


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
    restore = recovery.restore_in_turn

    def acting() -> tuple[int, bool]:
        act()
        return restore()[0] + 1, True

    patch.setattr(recovery, "restore_in_turn", acting)
    patch.setattr(recovery.pace, "due", lambda: True)


def lease_is_over(queue: Queue) -> bool:
    """Whether the only message could be restored."""
    context = core_of(queue).context
    now = context.run(lambda connection: server_now(connection, context.sql))
    (listed,) = queue.messages().list()
    expires_at = listed.lease_expires_at
    return expires_at is not None and expires_at.timestamp() * 1_000_000 < now


@pytest.mark.engines("sqlite")
def test_a_wait_must_be_a_duration(queue: Queue) -> None:
    """None would mean to wait for ever, or not at all; nobody can tell."""
    for odd in (None, "", False, "soon"):
        with pytest.raises((TypeError, ValueError), match=r"wait( must be seconds|: .* duration)"):
            queue.consume(wait=odd)  # type: ignore[arg-type]
