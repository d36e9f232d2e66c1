"""One Spark session for all tests of a process, because its start is slow; and streams."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from queue_over_sql.testing.plugin import TestDatabase
from tests.spark.stream.micro_batches import Stream

ROOT = Path(__file__).parents[2]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what runs on the session; the rest of this folder only needs Spark's Python package."""
    for item in items:
        if not item.path.is_relative_to(Path(__file__).parent):
            continue
        # Spark's Python workers keep a service for each database that they have seen.
        item.add_marker(pytest.mark.empty_database)
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with two cores."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Python workers import the tree under test.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    scratch = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2]")
        .appName("tests")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.local.dir", str(scratch / "local"))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def stream(database: TestDatabase) -> Stream:
    """Queries on the queue `jobs` under the consumer id `reports`, which never wait."""
    return Stream(
        {"url": database.url, "queue": "jobs", "consumerId": "reports", "pollInterval": "1ms"}
    )
