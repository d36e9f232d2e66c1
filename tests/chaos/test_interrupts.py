"""Exceptions of a signal handler in the middle of the driver's work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from queue_over_sql import FixedDelay, QueueSettings
from tests.chaos.roles import waiter
from tests.waiting import eventually

if TYPE_CHECKING:
    from queue_over_sql import QueueService
    from queue_over_sql.testing.plugin import TestDatabase
    from tests.chaos.processes import Crew

# H2's driver is Java: no handler of a Python signal runs inside it.
pytestmark = [
    pytest.mark.chaos,
    pytest.mark.engines("sqlite", "postgresql", "mariadb"),
    pytest.mark.default_on("sqlite", "postgresql"),
]


def test_a_timeout_inside_an_act_leaves_no_lock_and_no_broken_connection(
    service: QueueService, database: TestDatabase
) -> None:
    """Alarms hit publishes, claims and releases; then that process and others go on at once."""
    queue = service.create_queue("jobs")
    command = [sys.executable, "-m", "tests.chaos.roles.alarmed", database.url]
    # Alarms that hit a destructor are reported there; nobody reads that.
    # An alarm that hits what measures coverage ends that process.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("COVERAGE")}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as child:
        try:
            assert child.stdout is not None
            line = child.stdout.readline()
            queue.publish("other")
        finally:
            child.kill()
    told = json.loads(line)
    assert told["interrupted"] > 0
    # A publish whose answer was cut off may be there or not; each that was answered is.
    assert queue.stats().live >= told["published"] + 2


def test_who_is_interrupted_while_it_waits_ends_by_that_and_takes_no_message_along(
    service: QueueService, database: TestDatabase, crew: Crew
) -> None:
    """Ctrl-C in a waiting verb is KeyboardInterrupt, and what comes just then is free at once.

    What nobody waits for any more, as the question of a request, is withdrawn.
    """
    # Where the block of receive() has begun, its message is nacked.
    settings = QueueSettings(retry=FixedDelay(0))
    queues = service.create_queues(dict.fromkeys(waiter.VERBS, settings))
    waiting = {verb: crew.spawn(waiter.Arguments(database.url, verb)) for verb in queues}
    for process in waiting.values():
        process.expect("waiting")
    eventually(lambda: queues["request"].stats().ready == 1, "the question is asked")
    eventually(lambda: len(service.consumers()) == len(waiting), "all have looked")
    for verb, process in waiting.items():
        queues[verb].publish("just now")
        process.send(signal.SIGINT)
    for verb, process in waiting.items():
        assert -signal.SIGINT == process.join(), process.complaint(verb)
        assert "KeyboardInterrupt" in process.errors(), verb
        stats = queues[verb].stats()
        assert 0 == stats.claimed, verb
        assert 1 == stats.ready, verb
    assert [] == service.consumers()
