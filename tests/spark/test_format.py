"""Spark finds the format by its name alone."""

from __future__ import annotations

from pyspark.sql import SparkSession

import pyspark_queue_over_sql
from queue_over_sql.spark import QueueDataSource


def test_spark_finds_the_format_by_itself(spark: SparkSession) -> None:
    """``register`` is not needed where the package is installed: the lookup goes by modules."""
    assert pyspark_queue_over_sql.DefaultSource is QueueDataSource
    reader = spark.read.format("queue_over_sql")
    assert reader is not None
