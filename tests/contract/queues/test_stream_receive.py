"""receive() and stream(): messages one at a time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from tests.contract.queue_state import counts, payloads
from tests.waiting import consume_exactly, wait_until

if TYPE_CHECKING:
    from queue_over_sql import Queue


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
        assert message.payload == "x"
        assert counts(queue) == (0, 1, 0)
    assert counts(queue) == (0, 0, 0)


def test_receive_nacks_on_an_exception(queue: Queue) -> None:
    """The exception goes on to the caller, and its text is the reason."""
    queue.publish("x")
    with pytest.raises(HandlerFailed), queue.receive():
        raise HandlerFailed("no paper")
    (message,) = consume_exactly(queue, 1)
    assert message.attempt == 2
    assert message.last_error is not None
    assert "no paper" in message.last_error


def test_receive_waits_for_a_message(queue: Queue) -> None:
    """A message that comes within the wait is received."""
    later = threading.Timer(0.05, queue.publish, args=("late",))
    later.start()
    with queue.receive(wait=30) as message:
        assert message is not None
        assert message.payload == "late"
    later.join()
    assert counts(queue) == (0, 0, 0)


def test_a_stream_gives_all_in_order_and_ends(queue: Queue) -> None:
    """It ends after its wait without a message; what the caller does not ack stays claimed."""
    assert list(queue.stream(wait=0.05)) == []
    queue.publish_many(list(range(7)))
    messages = list(queue.stream(prefetch=3, wait=0.05))
    assert payloads(messages) == list(range(7))
    assert counts(queue) == (0, 7, 0)
    queue.ack(messages)
    assert counts(queue) == (0, 0, 0)


def test_closing_a_stream_releases_what_was_prefetched(queue: Queue) -> None:
    """The message in the caller's hand stays claimed, the others go back uncounted."""
    queue.publish_many(list(range(5)))
    stream = queue.stream(prefetch=5, wait=30)
    in_hand = next(stream)
    stream.close()
    assert counts(queue) == (4, 1, 0)
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
    assert message.payload == "second"
    message.ack()
