"""A worker with running handlers in its own process, on threads or on an event loop."""

from __future__ import annotations

import signal

from queue_over_sql import Queue
from queue_over_sql.testing.plugin import MakeService, TestDatabase
from tests.chaos.processes import Crew, Process
from tests.chaos.roles import worker
from tests.waiting import eventually

TOKENS = [f"task-{number:02}" for number in range(20)]


def publish_tasks(make_service: MakeService) -> Queue:
    """Twenty messages in a fresh queue."""
    queue = make_service().create_queue("jobs")
    queue.publish_many([{"token": token} for token in TOKENS])
    return queue


def start_worker(
    crew: Crew, database: TestDatabase, seconds: float, *, asynchronous: bool = False
) -> Process:
    """A worker of two that has begun its first two messages and prefetched more."""
    process = crew.spawn(
        worker.Arguments(
            database.url,
            str(crew.journals),
            concurrency=2,
            prefetch=10,
            seconds=seconds,
            consumer_timeout=6.0,
            asynchronous=asynchronous,
        )
    )
    process.expect("ready")
    eventually(lambda: len(crew.account().tokens("started")) == 2, "two handlers at work")
    return process


def drain(crew: Crew, process: Process, queue: Queue, number: signal.Signals) -> None:
    """Ask it to stop: what it had begun is finished, and all else is untouched and free."""
    process.send(number)
    process.expect("drained")
    assert 0 == process.join()
    account = crew.account()
    finished = sorted(account.tokens("finished"))
    assert sorted(account.tokens("started")) == finished
    assert 2 <= len(finished) < len(TOKENS)
    assert 0 == queue.stats().claimed
    rest = queue.consume(len(TOKENS))
    assert [t for t in TOKENS if t not in finished] == [m.payload["token"] for m in rest]
    assert {1} == {message.attempt for message in rest}
