"""Signals to a running worker: the first one drains, the second one stops."""

from __future__ import annotations

import signal

import pytest

from queue_over_sql import Queue
from queue_over_sql.testing.plugin import MakeService, TestDatabase
from tests.chaos.processes import Crew, Process
from tests.chaos.roles import worker
from tests.chaos.waiting import eventually

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(60)]

TOKENS = [f"task-{number:02}" for number in range(20)]


def start_worker(crew: Crew, database: TestDatabase, seconds: float) -> Process:
    """A worker of two threads that has begun its first two messages and prefetched more."""
    process = crew.spawn(
        worker.Arguments(
            database.url,
            str(crew.journals),
            concurrency=2,
            batch=10,
            seconds=seconds,
            consumer_timeout=3.0,
        )
    )
    process.expect("ready")
    eventually(lambda: len(crew.account().tokens("started")) == 2, "two handlers at work")
    return process


def publish_tasks(make_service: MakeService) -> Queue:
    """Twenty messages in a fresh queue."""
    queue = make_service().create_queue("jobs")
    queue.publish_many([{"token": token} for token in TOKENS])
    return queue


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_drains(
    number: signal.Signals,
    make_service: MakeService,
    database: TestDatabase,
    crew: Crew,
) -> None:
    """What was begun is finished and acknowledged; what was only fetched is untouched and free."""
    queue = publish_tasks(make_service)
    process = start_worker(crew, database, seconds=1.5)
    process.send(number)
    process.expect("drained")
    assert process.join() == 0

    account = crew.account()
    finished = sorted(account.tokens("finished"))
    assert sorted(account.tokens("started")) == finished
    assert 2 <= len(finished) < len(TOKENS)
    assert 0 == queue.stats().claimed
    rest = queue.consume(len(TOKENS))
    assert [t for t in TOKENS if t not in finished] == [m.payload["token"] for m in rest]
    assert {1} == {message.attempt for message in rest}


def test_the_second_signal_stops_at_once(
    make_service: MakeService,
    database: TestDatabase,
    crew: Crew,
) -> None:
    """A handler that would run for an hour is left behind; every message comes back."""
    queue = publish_tasks(make_service)
    process = start_worker(crew, database, seconds=3600)
    process.send(signal.SIGTERM)
    with pytest.raises(AssertionError, match="still running"):
        process.join(within=1.0)
    process.send(signal.SIGTERM)
    process.join(within=20)

    assert [] == crew.account().tokens("finished")
    with make_service(reaper_interval=0.2):
        eventually(lambda: queue.stats().ready == len(TOKENS), "all messages are back")
    assert TOKENS == [message.payload["token"] for message in queue.consume(len(TOKENS))]
