"""Handlers that run longer than their lease."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.contract.queue_state import counts
from tests.contract.worker.running_worker import running
from tests.waiting import wait_until

if TYPE_CHECKING:
    from datetime import datetime

    from queue_over_sql import Message
    from queue_over_sql.testing.plugin import MakeService
    from queue_over_sql.worker.worker import Worker


@pytest.mark.default_on("sqlite", "postgresql")
def test_a_handler_longer_than_its_lease_keeps_its_message(
    worker: Worker, make_service: MakeService
) -> None:
    """The lease is renewed while the handler runs, so nobody else gets the message."""
    queue = make_service().create_queue("brief", lease=3)
    attempts: list[int] = []

    def lease_end() -> datetime | None:
        return queue.messages().list()[0].lease_expires_at

    @worker.handle("brief", lease_keepalive=True)
    def work(message: Message) -> None:
        attempts.append(message.attempt)
        first_end = message.lease_expires_at
        wait_until(lambda: lease_end() != first_end, timeout=30)

    queue.publish("long work")
    with running(worker):
        wait_until(lambda: attempts and queue.messages().count() == 0, timeout=30)
    assert attempts == [1]
    assert counts(queue) == (0, 0, 0)


@pytest.mark.default_on("sqlite", "postgresql")
def test_without_keepalive_a_long_handler_loses_its_message(
    worker: Worker, make_service: MakeService
) -> None:
    """The loss of one claim does not end the worker, and nothing is lost."""
    queue = make_service().create_queue("brief", lease=0.05)
    attempts: list[int] = []

    @worker.handle("brief", lease_keepalive=False)
    def work(message: Message) -> None:
        attempts.append(message.attempt)
        if attempts == [1]:
            wait_until(lambda: attempts != [1], timeout=30)

    queue.publish("long work")
    with running(worker):
        wait_until(lambda: len(attempts) >= 2 and queue.messages().count() == 0, timeout=30)
        queue.publish("next")
        wait_until(lambda: len(attempts) >= 3 and queue.messages().count() == 0, timeout=30)
    assert attempts[:2] == [1, 2]
