"""Spark Connect: the same format, the same options."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from queue_over_sql import QueueService
from queue_over_sql.testing.plugin import TestDatabase

pytestmark = [pytest.mark.full, pytest.mark.spark]

SCRIPT = Path(__file__).with_name("connect_reader.py")
ROOT = Path(__file__).parents[2]


@pytest.mark.engines("sqlite")
def test_a_queue_is_read_through_spark_connect(
    database: TestDatabase, service: QueueService
) -> None:
    """``session(remote=…)`` starts the server and makes the format known to it."""
    pytest.importorskip("grpc", reason="the extra spark-connect is not installed")
    queue = service.create_queue("orders")
    queue.publish({"n": 1, "text": "žluť 😀"}, key="k1")
    queue.publish({"n": 2}, key="k2")
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        [sys.executable, SCRIPT, database.url],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert 0 == ran.returncode, ran.stderr[-4_000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert "connect" in found["class"]
    assert [["k1", {"n": 1, "text": "žluť 😀"}], ["k2", {"n": 2}]] == found["rows"]
    assert 1 == found["narrow"]
