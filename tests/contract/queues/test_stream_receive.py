"""receive() and stream(): messages one at a time."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from queue_over_sql import DatabaseUnavailable, Publication
from queue_over_sql.message import lease_ends_at
from queue_over_sql.queue import core_of
from queue_over_sql.values.durations import elapsed_clock
from tests.contract.queue_state import counts, payloads
from tests.waiting import consume_exactly, wait_until

if TYPE_CHECKING:
    from queue_over_sql import Message, Queue
    from queue_over_sql.testing.plugin import MakeService


# A stream only claims and settles; test_claim and test_settle do so on every engine.
pytestmark = pytest.mark.engines("sqlite", "postgresql")


class HandlerFailed(Exception):
    """What a handler of a test raises."""


def test_receive_acks_on_a_clean_exit(queue: Queue) -> None:
    """Inside the block the message is claimed, after it gone; of an empty queue it is None."""
    for wait in (0, 0.01):
        with queue.receive(wait=wait) as message:
            assert message is None
    queue.publish("x")
    with queue.receive(lease=60) as message:
        assert message is not None
        assert "x" == message.payload
        assert (0, 1, 0) == counts(queue)
    assert (0, 0, 0) == counts(queue)


def test_receive_nacks_on_an_exception(queue: Queue) -> None:
    """The exception goes on to the caller, and its text is the reason."""
    queue.publish("x")
    with pytest.raises(HandlerFailed), queue.receive():
        raise HandlerFailed("no paper")
    (message,) = consume_exactly(queue, 1)
    assert 2 == message.attempt
    assert message.last_error is not None
    assert "no paper" in message.last_error


def test_receive_waits_for_a_message(queue: Queue) -> None:
    """A message that comes within the wait is received."""
    later = threading.Timer(0.05, queue.publish, args=("late",))
    later.start()
    with queue.receive(wait=30) as message:
        assert message is not None
        assert "late" == message.payload
    later.join()
    assert (0, 0, 0) == counts(queue)


def test_a_stream_gives_all_in_order_and_ends(queue: Queue) -> None:
    """It ends after its wait without a message; what the caller does not ack stays claimed."""
    assert [] == list(queue.stream(wait=0.05))
    queue.publish_many(list(range(7)))
    messages = list(queue.stream(prefetch=3, wait=0.05))
    assert payloads(messages) == list(range(7))
    assert (0, 7, 0) == counts(queue)
    queue.ack(messages)
    assert (0, 0, 0) == counts(queue)


def test_closing_a_stream_releases_what_was_prefetched(queue: Queue) -> None:
    """The message in the caller's hand stays claimed, the others go back uncounted."""
    queue.publish_many(list(range(5)))
    stream = queue.stream(prefetch=5, wait=30)
    in_hand = next(stream)
    stream.close()
    assert (4, 1, 0) == counts(queue)
    in_hand.ack()
    again = consume_exactly(queue, 4)
    assert [(message.payload, message.attempt) for message in again] == [
        (number, 1) for number in range(1, 5)
    ]


def test_an_exception_in_the_loop_of_a_stream_releases_the_rest(queue: Queue) -> None:
    """A stream that is left by an exception does not keep its prefetched messages."""
    queue.publish_many(["a", "b", "c"])

    def loop() -> None:
        for _ in queue.stream(prefetch=3, wait=30):
            raise HandlerFailed

    with pytest.raises(HandlerFailed):
        loop()
    wait_until(lambda: counts(queue) == (2, 1, 0))


def test_a_stream_goes_on_with_what_comes_later(queue: Queue) -> None:
    """A message published while the stream waits is given."""
    queue.publish("first")
    stream = queue.stream(wait=30)
    next(stream).ack()
    later = threading.Timer(0.05, queue.publish, args=("second",))
    later.start()
    message = next(stream)
    later.join()
    stream.close()
    assert "second" == message.payload
    message.ack()


@pytest.mark.default_on("sqlite", "postgresql")
def test_a_stream_keeps_the_leases_of_what_it_has_not_yielded(make_service: MakeService) -> None:
    """They wait for longer than a lease; nobody else gets them, and none is yielded too late."""
    with make_service(reaper_interval=0.05) as other:
        queue = make_service().create_queue("jobs", max_attempts=1)
        queue.publish_many(range(6))
        seen: list[int] = []
        for message in queue.stream(prefetch=6, lease=1.0):
            seen.append(message.payload)
            message.ack()
            # A third of the lease or more passes with each of them.
            time.sleep(0.4)
        assert list(range(6)) == seen
        assert 0 == other.queue("jobs").stats().archived


@pytest.mark.engines("sqlite")
@pytest.mark.threads("replaces a method of the synchronous core")
def test_a_stream_looks_at_one_message_for_each_that_it_yields(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked at all that waited, so a large prefetch made each message slower."""
    looks, holds = 0, queue.holds

    def counted(message: Message) -> bool:
        nonlocal looks
        looks += 1
        return holds(message)

    monkeypatch.setattr(queue, "holds", counted)
    queue.publish_many(range(50))
    for message in queue.stream(prefetch=50):
        message.ack()
    assert looks <= 2 * 50


@pytest.mark.engines("sqlite")
@pytest.mark.threads("replaces a method of the synchronous core")
def test_a_stream_yields_nothing_whose_lease_has_ended(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it cannot renew the leases, the messages come back with a new claim, uncounted."""
    queue = make_service().create_queue("jobs")
    queue.publish_many(range(3))
    stream = queue.stream(prefetch=3, lease=0.1)
    first = next(stream)
    # Else it comes back, too, once its lease has ended.
    assert queue.delete(first.id)

    def unavailable(*_: object, **__: object) -> None:
        raise DatabaseUnavailable("the database is gone")

    monkeypatch.setattr(core_of(queue).settlements, "extend", unavailable)
    wait_until(lambda: lease_ends_at(first) < elapsed_clock())
    second = next(stream)
    assert 1 == second.payload
    assert 1 == second.attempt
    assert first.claimed_at is not None
    assert second.claimed_at is not None
    assert first.claimed_at < second.claimed_at
    stream.close()


@pytest.mark.engines("sqlite")
@pytest.mark.threads("replaces a method of the synchronous core")
def test_a_stream_that_cannot_look_at_an_expiry_keeps_nothing(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends with the error, and all that it has not yielded is released."""
    queue = make_service().create_queue("jobs")
    queue.publish_many([Publication(n, expires=60) for n in range(3)])

    def unavailable(*_: object) -> None:
        raise DatabaseUnavailable("the database is gone")

    monkeypatch.setattr(core_of(queue), "not_expired", unavailable)
    with pytest.raises(DatabaseUnavailable):
        next(queue.stream(prefetch=3))
    assert (3, 0, 0) == counts(queue)
