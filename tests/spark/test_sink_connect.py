"""The sink over Spark Connect, whose session has no context; in its own process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from queue_over_sql import Queue
    from queue_over_sql.testing.plugin import TestDatabase

pytestmark = [pytest.mark.full, pytest.mark.spark, pytest.mark.engines("sqlite")]
ROOT = Path(__file__).parents[2]
SCRIPT = """
import os, sys
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession
from queue_over_sql.spark import QueueDataSource

builder = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.memory", "512m").getOrCreate()
spark.dataSource.register(QueueDataSource)
frame = spark.range(3).selectExpr("cast(id as string) as payload")
frame.write.format("queue_over_sql").options(url=sys.argv[1], queue="jobs").mode("append").save()
spark.stop()
"""


def test_a_connect_session_writes(queue: Queue, database: TestDatabase) -> None:
    """The same format, registered with the session."""
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, database.url],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert 0 == ended.returncode, ended.stderr[-3000:]
    assert [0, 1, 2] == sorted(message.payload for message in queue.consume(5))
