"""Signals to a running worker: the first one drains, the second one stops."""

from __future__ import annotations

import signal

import pytest

from queue_over_sql.testing.plugin import MakeService, TestDatabase
from tests.chaos.processes import Crew
from tests.chaos.waiting import eventually
from tests.chaos.working import TOKENS, drain, publish_tasks, start_worker

pytestmark = [pytest.mark.chaos, pytest.mark.default_on("sqlite"), pytest.mark.timeout(90)]


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
    drain(crew, process, queue, number)


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
