"""Handlers that run longer than their lease."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from queue_over_sql import DatabaseUnavailable
from queue_over_sql.message import lease_ends_at
from queue_over_sql.queue import core_of
from queue_over_sql.values.durations import elapsed_clock
from tests.contract.queue_state import counts
from tests.contract.worker.running_worker import running
from tests.waiting import wait_until

if TYPE_CHECKING:
    from datetime import datetime

    from sqlalchemy import Engine

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
    assert [1] == attempts
    assert (0, 0, 0) == counts(queue)


@pytest.mark.default_on("sqlite", "postgresql")
def test_without_keepalive_a_long_handler_loses_its_message(
    worker: Worker, make_service: MakeService
) -> None:
    """The loss of one claim does not end the worker, and nothing is lost."""
    queue = make_service().create_queue("brief", lease=0.5)
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
    assert [1, 2] == attempts[:2]


@pytest.mark.default_on("sqlite", "postgresql")
def test_what_waits_for_its_handler_keeps_its_lease(make_service: MakeService) -> None:
    """Without lease_keepalive the lease is for the handler, and not for the time before it."""
    with make_service(reaper_interval=0.05):
        service = make_service()
        queue = service.create_queue("jobs", max_attempts=1, lease=0.9, archive="all")
        queue.publish_many(range(8))
        worker = service.worker(concurrency=1, prefetch=8)
        began: list[int] = []

        @worker.handle("jobs", lease_keepalive=False)
        def work(message: Message) -> None:
            began.append(message.payload)
            time.sleep(0.3)

        with running(worker, until_empty=True):
            pass
        assert list(range(8)) == began
        assert 8 == queue.stats().done
        assert 0 == queue.stats().failed


@pytest.mark.engines("sqlite")
@pytest.mark.threads("replaces a method of the synchronous core")
def test_no_handler_begins_after_its_lease(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where leases cannot be renewed, what is too late is released, uncounted, and claimed anew."""
    service = make_service()
    queue = service.create_queue("jobs", max_attempts=20, lease=0.2, archive="all")

    def unavailable(*_: object, **__: object) -> None:
        raise DatabaseUnavailable("the database is gone")

    monkeypatch.setattr(core_of(queue).settlements, "extend", unavailable)
    for form in ({}, {"batch": 2}):
        worker = service.worker(concurrency=1, prefetch=6)
        late: list[float] = []

        def work(given: Any, late: list[float] = late) -> None:
            messages = given if isinstance(given, list) else [given]
            late.extend(elapsed_clock() - lease_ends_at(message) for message in messages)
            time.sleep(0.15)

        worker.handle("jobs", lease_keepalive=False, **form)(work)  # type: ignore[call-overload] # any form
        queue.publish_many(range(6))
        with running(worker, until_empty=True):
            pass
        assert 6 <= len(late)
        assert max(late) < 0, form
    assert 12 == queue.stats().done
    assert 0 == queue.stats().failed


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python decides")
def test_a_lease_that_no_handler_can_meet_uses_up_the_attempts(
    make_service: MakeService, caplog: pytest.LogCaptureFixture
) -> None:
    """Such a message is not claimed again and again, uncounted, by a worker or a stream."""
    service = make_service(reaper_interval=0.3)
    for name in ("worked", "streamed"):
        queue = service.create_queue(name, max_attempts=2)
        queue.publish("brief", lease=1e-6)
        queue.publish("usual")
    worker, handled = service.worker(concurrency=1), list[str]()
    worker.handle("worked")(lambda message: handled.append(message.payload))
    with running(worker):
        wait_until(lambda: 1 == service.queue("worked").stats().failed)
    assert 2 == caplog.text.count("whose lease ended before their handler began")
    for message in service.queue("streamed").stream(wait=1):
        handled.append(message.payload)
        message.ack()
    wait_until(lambda: 1 == service.queue("streamed").stats().failed)
    assert ["usual"] * 2 == handled


@pytest.mark.engines("sqlite")
@pytest.mark.parametrize("lease_us", [1, -1])
def test_a_lease_that_is_over_at_once_does_not_keep_the_worker_busy(
    worker: Worker, make_service: MakeService, engine: Engine, lease_us: int
) -> None:
    """Its renewal leaves time for other messages, also on an event loop."""
    queue = make_service().create_queue("brief")
    handled: list[str] = []

    @worker.handle("brief")
    def work(message: Message) -> None:
        handled.append(message.payload)

    queue.publish("brief", lease=1e-6)
    queue.publish("next")
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE queue_brief SET lease_us = {lease_us} WHERE id = 1"))
    with running(worker):
        wait_until(lambda: "next" in handled, timeout=20)
