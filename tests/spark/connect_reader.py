"""Reads a queue through Spark Connect, and prints what it found; a process of its own.

A Python process has either a session of its own JVM or one of Connect, never both.
"""

from __future__ import annotations

import json
import sys

from queue_over_sql.spark import session


def main(url: str) -> None:
    """Start a Connect server here, and look at the queue ``orders`` through it."""
    spark = session(remote="local[2]", spark_driver_memory="1g")
    frame = spark.read.format("queue_over_sql").options(url=url, queue="orders").load()
    rows = [[row.key, json.loads(row.payload)] for row in frame.orderBy("id").collect()]
    narrow = frame.where("key = 'k2'").select("id").count()
    print(json.dumps({"class": type(spark).__module__, "rows": rows, "narrow": narrow}))  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
