"""Leases that are renewed in the background, without a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.refusals import refused
from tests.waiting import consume_exactly, wait_until

if TYPE_CHECKING:
    from datetime import datetime

    from queue_over_sql import Queue, QueueService

pytestmark = [pytest.mark.default_on("sqlite"), pytest.mark.driver_decides]


def lease_ends(queue: Queue) -> list[datetime | None]:
    """When the leases of the messages in hand end, by id."""
    found = sorted(queue.messages(status="claimed").list(), key=lambda message: message.id)
    return [message.lease_expires_at for message in found]


def test_kept_messages_are_held_until_they_are_settled(service: QueueService) -> None:
    """However often their leases would have ended; then nothing is renewed any more."""
    queue = service.create_queue("jobs", lease=2)
    queue.publish_many([1, 2, 3])
    first = queue.consume(keep=True)[0]
    [second] = service.consume([queue], keep=True, hold_for=2)
    for _ in range(2):
        before = lease_ends(queue)
        wait_until(lambda: all(map(lambda a, b: a != b, before, lease_ends(queue))), timeout=30)  # noqa: B023 - runs at once
    first.ack()
    second.nack("failed", delay=3600)
    [third] = queue.consume(lease=60, keep=True)
    assert (1, 3) == (third.attempt, third.payload)
    with refused("yes", TypeError):
        queue.consume(keep="yes")  # type: ignore[arg-type]


def test_messages_are_kept_for_a_block(service: QueueService) -> None:
    """After it they are given back when their lease ends."""
    queue = service.create_queue("jobs", lease=1)
    queue.publish("x")
    messages: list[Any] = queue.consume()
    with queue.keep(messages):
        before = lease_ends(queue)
        wait_until(lambda: before != lease_ends(queue), timeout=30)
        assert [] == queue.consume()
    [again] = consume_exactly(queue, 1)
    assert 2 == again.attempt
    with queue.keep(again):
        again.ack()
    assert 0 == queue.messages().count()
