"""The work of the demo: what Spark computes for each file."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@sql.udf("string")
def content_hash(path: str) -> str:
    """SHA-256 of a file's content."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def transform(messages: DataFrame) -> DataFrame:
    """The files named in the messages, with the hash of their content."""
    file = sql.from_json("payload", "path string, size bigint, modified timestamp")
    files = messages.select("id", file.alias("file"))
    return files.select("id", "file.*", content_hash("file.path").alias("sha256"))
