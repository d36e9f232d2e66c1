"""The Spark session of the benchmarks: two tasks at a time, the same for all variants."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from queue_over_sql.spark import session

CORES: Final = 2
JARS: Final = "QUEUE_OVER_SQL_JDBC_JARS"
"""The variable with the jars of JDBC drivers, separated by commas."""


@contextmanager
def spark_of(name: str, *, jars: str = "", memory: str = "2g") -> Iterator[SparkSession]:
    """A session on this machine, as ``queue_over_sql.spark.session`` sets it up.

    Args:
        name: of the application.
        jars: files for its class path, by commas.
        memory: of the JVM, which also runs the tasks.
    """
    root = str(Path(__file__).parents[2])
    os.environ["PYTHONPATH"] = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory(prefix="queue-over-sql-benchmark-") as scratch:
        settings = {
            "spark.driver.memory": memory,
            "spark.local.dir": scratch,
            # As docs/spark.md recommends.
            "spark.python.unix.domain.socket.enabled": "true",
            "spark.sql.streaming.numRecentProgressUpdates": "1000",
            **({"spark.jars": jars} if jars else {}),
        }
        spark = session(app_name=name, master=f"local[{CORES}]", settings=settings)
        spark.sparkContext.setLogLevel("ERROR")
        try:
            yield spark
        finally:
            spark.stop()
