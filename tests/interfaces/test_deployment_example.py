"""The deployment example does what its text says, run as the containers run it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "deployment"
COMMAND = [sys.executable, "-m", "queue_over_sql"]


@pytest.mark.chaos
def test_every_order_becomes_one_invoice(tmp_path: Path) -> None:
    """Two worker servers and a reaper turn each published order into exactly one invoice."""
    orders = 25
    environment = {**os.environ, "QUEUE_OVER_SQL_URL": f"sqlite:///{tmp_path / 'deployment.db'}"}
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
        deadline = time.monotonic() + 60
        while _stats("invoices", environment)["archived"] < orders:
            assert time.monotonic() < deadline, "the orders were not done in time"
            time.sleep(0.2)
    finally:
        for process in running:
            process.send_signal(signal.SIGTERM)
        exits = [process.wait(timeout=30) for process in running]

    assert orders == len(set(published.stdout.splitlines()))
    assert [0, 0, 0] == exits
    left = _stats("orders", environment)
    assert (0, 0) == (left["ready"], left["claimed"])
    assert orders == _stats("invoices", environment)["archived"]


def _stats(queue: str, environment: dict[str, str]) -> dict[str, int]:
    done = subprocess.run(
        [*COMMAND, "stats", queue, "--json"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    found: dict[str, int] = json.loads(done.stdout.splitlines()[0])
    return found
