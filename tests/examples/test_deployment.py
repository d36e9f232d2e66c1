"""The deployment example works as described, run as its containers run it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from queue_over_sql import QueueService
from tests.waiting import wait_until

EXAMPLE = Path(__file__).parents[2] / "examples" / "deployment"
COMMAND = [sys.executable, "-m", "queue_over_sql"]


@pytest.mark.chaos
@pytest.mark.timeout(400)
def test_every_order_becomes_one_invoice(tmp_path: Path) -> None:
    """Two worker servers and a reaper turn each published order into exactly one invoice."""
    orders = 25
    url = f"sqlite:///{tmp_path / 'deployment.db'}"
    environment = {**os.environ, "QUEUE_OVER_SQL_URL": url}
    published = subprocess.run(
        [sys.executable, "publisher.py", str(orders)],
        cwd=EXAMPLE,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    running = [
        subprocess.Popen([*COMMAND, *arguments], cwd=EXAMPLE, env=environment)
        for arguments in (["worker", "tasks:worker"], ["worker", "tasks:worker"], ["reaper"])
    ]
    try:
        with QueueService(url) as service:
            invoices = service.queue("invoices")
            # This service is registered, too.
            wait_until(lambda: len(service.consumers()) == len(running) + 1, timeout=100)
            wait_until(lambda: invoices.stats().archived == orders, timeout=200)
            left = service.queue("orders").stats()
    finally:
        for process in running:
            process.send_signal(signal.SIGTERM)
        exits = [process.wait(timeout=60) for process in running]

    assert orders == len(set(published.stdout.splitlines()))
    assert [0, 0, 0] == exits
    assert 0 == left.ready
    assert 0 == left.claimed
