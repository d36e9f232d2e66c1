"""`export_history`: the archives of queues as Parquet, each finished message once.

An export adds what finished up to an instant of the server's clock, its mark. Two looks make it
whole: at what finished since the last mark, and at the ids below it, for what was committed late.
What it found becomes visible by one commit of a ``StagedFolder``, which carries the marks as well.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from queue_over_sql.durations import MICROSECOND, Duration, to_timedelta
from queue_over_sql.spark.databases import label_of, location_of, queues_of, service_at
from queue_over_sql.spark.pipelines.exporting import SERIES, Export, ExportReport
from queue_over_sql.spark.pipelines.files import files_at
from queue_over_sql.spark.pipelines.frames import HISTORY_SCHEMA
from queue_over_sql.spark.pipelines.staged import StagedFolder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from queue_over_sql.spark.pipelines.exporting import Progress


def export_history(
    spark: SparkSession,
    output: str | os.PathLike[str],
    *,
    url: str | None = None,
    url_env: str | None = None,
    url_file: str | None = None,
    schema: str | None = None,
    table_prefix: str = "queue_",
    queues: Sequence[str] | None = None,
    prune: bool = False,
    overlap: Duration | None = None,
    source: str | None = None,
    progress: Progress | None = None,
) -> ExportReport:
    """Add what has finished since the last export to a history of Parquet files.

    The files lie in ``queue=<name>/date=<day it finished, UTC>/``. Each finished message is there
    once, whatever was killed when: all files of an export appear together, with the instant up to
    which it went. A message that finished in a transaction that was committed late is found by the
    next export. At the end each archive is compared with what was written, by ids.

    Args:
        spark: the session.
        output: the folder of the history, of one database and one exporter at a time.
        url: the database, as in the format's options.
        url_env: the same by the name of an environment variable.
        url_file: the same by the path of a file.
        schema: database schema of the tables.
        table_prefix: what the names of the queues' tables begin with.
        queues: only these; all without.
        prune: then remove from the archives what is in the history, and nothing else. Rows of
            adopted tables stay.
        overlap: look for late ones only among what finished so long before the last export, where
            the ids of all that the archives keep are too many to be compared each time.
        source: a name for the database, instead of its host and name; another one than at the
            first export is refused.
        progress: called with what is being done, and how many of how many steps are.

    Returns:
        What was done.

    Raises:
        ValueError: the history is one of another database, or an argument has no sensible value.
        FileExistsError: another export was quicker; nothing of this one counts.
        QueueNotFound: there is no such queue.
        DatabaseUnavailable: the database cannot be reached.
        HistoryDiffers: files and archive do not agree; nothing was added.
    """
    location = location_of(url, url_env, url_file, schema, table_prefix)
    service = service_at(location)
    export = Export(
        spark,
        location,
        StagedFolder(files_at(spark, output)),
        queues=queues_of(service, queues),
        overlap=None if overlap is None else to_timedelta(overlap, "overlap") // MICROSECOND,
        source=source or label_of(location),
    )
    return export.run(progress or (lambda _what, _done, _all: None), prune=prune)


def history_of(spark: SparkSession, path: str | os.PathLike[str]) -> DataFrame:
    """A history as a data frame; its columns are those of ``docs/spark-pipelines.md``.

    Raises:
        FileNotFoundError: there is none.
    """
    files = files_at(spark, path)
    folder = StagedFolder(files)
    if folder.last(SERIES) is None:
        raise FileNotFoundError(
            f"there is no history in {files.root}: export_history() begins one, or name its folder"
        )
    folder.recover()
    return spark.read.schema(HISTORY_SCHEMA).parquet(files.root)
