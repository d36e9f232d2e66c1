"""Leases that are renewed in the background, without a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select

from tests.refusals import refused
from tests.waiting import consume_exactly, wait_until

if TYPE_CHECKING:
    from datetime import datetime

    from sqlalchemy import Engine

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


@pytest.mark.engines("postgresql")
def test_a_locked_message_does_not_end_the_leases_of_others(
    service: QueueService, engine: Engine
) -> None:
    """Whether they come before it or after it, and although one statement renews them all."""
    queue = service.create_queue("jobs", lease=2)
    queue.publish_many([1, 2, 3])
    first, locked, last = (each.id for each in queue.consume(3, keep=True))
    ids = queue.table.c.id

    def ends() -> list[datetime | None]:
        found = {each.id: each.lease_expires_at for each in queue.messages().list()}
        return [found[first], found[last]]

    with engine.connect() as other:
        assert other.execute(select(ids).where(ids == locked).with_for_update()).all()
        for _ in range(3):
            before = ends()
            wait_until(lambda: all(map(lambda a, b: a != b, before, ends())), timeout=20)  # noqa: B023 - runs at once
        other.rollback()
    assert [1, 1] == [each.attempt for each in queue.messages().list() if each.id != locked]
