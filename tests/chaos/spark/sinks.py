"""The content of a sink, read without Spark and without the product."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from tests.chaos.account import live_tokens


def parquet_tokens(folder: Path) -> list[str]:
    """The messages in the files that the sink's log names; files of killed tasks are not in it."""
    return [
        str(json.loads(payload)["token"])
        for path in sorted(_logged(folder / "_spark_metadata"))
        for payload in pq.read_table(path, columns=["payload"])["payload"].to_pylist()
    ]


def _logged(log: Path) -> set[Path]:
    """The data files of a file sink's log: one file of JSON lines for each batch."""
    return {Path(path) for entry in log.iterdir() for path in _paths(entry)}


def _paths(entry: Path) -> Iterator[str]:
    if entry.name.startswith("."):
        return
    for line in entry.read_text().splitlines():
        if line.startswith("{"):
            yield json.loads(line)["path"].removeprefix("file://")


def batch_tokens(folder: Path) -> list[str]:
    """The messages that foreachBatch has kept."""
    with closing(sqlite3.connect(folder / "batches.db")) as database:
        rows = database.execute("SELECT payload FROM batches").fetchall()
    return [str(json.loads(payload)["token"]) for (payload,) in rows]


def queue_tokens(url: str, queue: str) -> list[str]:
    """The messages that were published to a queue."""
    engine = create_engine(url, poolclass=NullPool)
    try:
        return live_tokens(engine, queue)
    finally:
        engine.dispose()
