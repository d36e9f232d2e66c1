"""Exceptions that a signal raises in the middle of the driver's work."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from queue_over_sql import QueueService
    from queue_over_sql.testing.plugin import TestDatabase

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
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
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
