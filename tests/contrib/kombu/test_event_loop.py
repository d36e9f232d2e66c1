"""The transport in kombu's event loop, as Celery's worker with prefork children uses it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import kombu
import pytest
from kombu.asynchronous import Hub

from queue_over_sql import DatabaseUnavailable, Message
from tests.contrib.kombu.broker import connect

if TYPE_CHECKING:
    from queue_over_sql.testing.plugin import TestDatabase

JOBS = kombu.Queue("jobs", kombu.Exchange("jobs"), routing_key="jobs")


@pytest.fixture
def hub() -> Iterator[Any]:
    """An event loop."""
    loop = Hub()
    yield loop
    loop.close()


def run(hub: Any, until: Any, seconds: float = 10.0) -> None:
    """Run the loop until something is so."""
    ends = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < ends, "nothing came in the event loop"
        hub.run_once()


def pipes_open() -> int:
    """How many ends of pipes this process has open."""
    count = 0
    for file in Path("/proc/self/fd").iterdir():
        # The folder itself was open while it was read.
        with suppress(FileNotFoundError):
            count += str(file.readlink()).startswith("pipe:")
    return count


@pytest.mark.default_on("sqlite")
def test_an_event_loop_delivers_what_arrives(database: TestDatabase, hub: Any) -> None:
    """Messages of before and of later, also beyond the prefetch count after an ack in the loop."""
    got: list[Any] = []
    with connect(database.url) as connection, connect(database.url) as other:
        assert connection.transport.implements.asynchronous
        producer = other.Producer(exchange=JOBS.exchange, routing_key="jobs")
        for number in range(3):
            producer.publish({"n": number}, declare=[JOBS])
        connection.register_with_event_loop(hub)
        with connection.Consumer(JOBS, on_message=got.append, prefetch_count=2):
            run(hub, lambda: len(got) == 2)
            for _ in range(3):
                hub.run_once()
            assert [0, 1] == [message.payload["n"] for message in got]
            # Called in the loop, as Celery acks.
            hub.call_soon(got[0].ack)
            run(hub, lambda: len(got) == 3)
            for message in got[1:]:
                hub.call_soon(message.ack)
            later = threading.Timer(0.2, producer.publish, [{"n": 3}])
            later.start()
            run(hub, lambda: len(got) == 4)
            later.join()
            got[3].ack()
    assert [0, 1, 2, 3] == [message.payload["n"] for message in got]


@pytest.mark.engines("sqlite")
def test_an_event_loop_is_told_that_a_message_was_not_settled(
    database: TestDatabase, hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Celery only logs it; what the loop raises lets it connect again."""
    got: list[Any] = []
    with connect(database.url) as connection:
        connection.Producer().publish(1, routing_key="jobs", declare=[kombu.Queue("jobs")])
        connection.register_with_event_loop(hub)
        with connection.Consumer(kombu.Queue("jobs"), on_message=got.append, prefetch_count=1):
            run(hub, partial(bool, got))
            with monkeypatch.context() as patch:
                patch.setattr(Message, "ack", Mock(side_effect=DatabaseUnavailable("no answer")))
                got[0].ack_log_error(Mock(), DatabaseUnavailable)
            with pytest.raises(connection.connection_errors, match="no answer"):
                run(hub, bool)


@pytest.mark.engines("sqlite")
def test_a_closed_connection_leaves_nothing_in_the_event_loop(
    database: TestDatabase, hub: Any
) -> None:
    """Its pipe is closed, its thread ends; a child of a fork changes nothing of them."""
    hub.run_once()
    with connect(database.url) as kept:
        kept.default_channel.queue_declare("jobs")
        left: list[tuple[int, int]] = []
        for _ in range(3):
            got: list[Any] = []
            connection = connect(database.url)
            connection.connect()
            connection.register_with_event_loop(hub)
            child = os.fork()
            if child == 0:
                try:
                    connection.release()
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
            with connection.Consumer(kombu.Queue("jobs"), on_message=got.append, no_ack=True):
                connection.Producer().publish({}, exchange="", routing_key="jobs")
                run(hub, partial(bool, got))
            connection.release()
            for thread in threading.enumerate():
                if thread.name == "queue-over-sql-bell":
                    thread.join(10)
                    assert not thread.is_alive()
            # The first one started the service's own threads.
            left.append((threading.active_count(), pipes_open()))
    assert left[0] == left[-1]
