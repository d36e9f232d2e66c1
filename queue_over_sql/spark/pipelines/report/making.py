"""`report`: from a history and a database to a folder of tables and a page."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import os
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import functions as sql

from queue_over_sql.spark.databases import location_of
from queue_over_sql.spark.pipelines.files import files_at
from queue_over_sql.spark.pipelines.frames import HOUR
from queue_over_sql.spark.pipelines.report import measures
from queue_over_sql.spark.pipelines.report.columns import Row
from queue_over_sql.spark.pipelines.report.page import Facts, page
from queue_over_sql.spark.pipelines.report.sources import Source, gathered
from queue_over_sql.values.checks import check_whole
from queue_over_sql.values.durations import Duration

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from queue_over_sql.spark.options import Location
    from queue_over_sql.spark.pipelines.files import Files

    Progress = Callable[[str, int, int], None]

_PAGE: Final = "report.html"
_TITLE: Final = "Queue report"
_BINS: Final = 120
_LENGTHS: Final = (60, 300, 900, HOUR, 3 * HOUR, 6 * HOUR, 24 * HOUR, 7 * 24 * HOUR)
_CONSUMERS_SHOWN: Final = 12
# The first characters that make a spreadsheet evaluate a text as a formula.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
_INSTANT: Final = pa.timestamp("us", "UTC")


@dataclasses.dataclass(frozen=True)
class ReportFiles:
    """The files of a report.

    Attributes:
        page: the page.
        tables: the Parquet folder of each table, by name; a CSV file is beside it.
        queues, finished, live: how many queues, finished messages and live messages it covers.
    """

    page: str
    tables: dict[str, str]
    queues: int
    finished: int
    live: int


def report(
    spark: SparkSession,
    output: str | os.PathLike[str],
    *,
    history: str | os.PathLike[str] | None = None,
    url: str | None = None,
    url_env: str | None = None,
    url_file: str | None = None,
    schema: str | None = None,
    table_prefix: str = "queue_",
    queues: Sequence[str] | None = None,
    since: datetime | Duration | None = None,
    title: str = _TITLE,
    top: int = 20,
    progress: Progress | None = None,
) -> ReportFiles:
    """Write a report about queues: throughput, waiting times, run times, retries, failures.

    It reads finished messages from a history of ``export_history``, or from the archives if no
    history is given. It reads live messages from the database, if one is given. It changes nothing.

    Args:
        spark: the session.
        output: the folder to write to; an existing report is replaced.
        history: the folder of the history.
        url: the database, as in the format's options.
        url_env: instead of ``url``, the environment variable that holds it.
        url_file: instead of ``url``, the file that holds it.
        schema: database schema of the tables.
        table_prefix: prefix of the names of the queues' tables.
        queues: only these queues; default: all.
        since: only messages that finished since this time, or in this last period.
        title: title of the page.
        top: how many failure reasons and dead letters to list per queue.
        progress: a function to call with the current step, its number, and the number of steps.

    Returns:
        The files of the report.

    Raises:
        ValueError: neither a history nor a database is given, or an argument has an invalid value.
        FileNotFoundError: there is no history.
        QueueNotFound: there is no such queue.
        DatabaseUnavailable: the database cannot be reached.
    """
    check_whole("top", top)
    location: Location | None = None
    if history is None or any((url, url_env, url_file)):
        location = location_of(url, url_env, url_file, schema, table_prefix)
    steps = itertools.count()

    def say(what: str) -> None:
        if progress is not None:
            # The steps: reading, each table, drawing.
            progress(what, next(steps), len(measures.ORDERS) + 2)

    files = files_at(spark, output)
    with _work_folder(files) as work:
        say("reading live messages")
        source = gathered(spark, location, history, work, queues=queues, since=since)
        found = _tables(measures.measure(source.finished, source.live, top=top), say)
        say("drawing")
        facts = _facts(source, found, title)
        tables = {name: _written(files, name, table) for name, table in found.items()}
        files.write(_PAGE, page(facts).encode())
    say("done")
    return ReportFiles(
        page=f"{files.root}/{_PAGE}",
        tables=tables,
        queues=len(facts.queues),
        finished=sum(row["finished"] for row in facts.queues),
        live=sum(row["live"] for row in facts.queues),
    )


@contextmanager
def _work_folder(files: Files) -> Iterator[str]:
    name = f"_work.{uuid.uuid4().hex[:12]}"
    try:
        yield f"{files.root}/{name}"
    finally:
        files.remove(name)


def _tables(frames: Mapping[str, DataFrame], say: Callable[[str], object]) -> dict[str, pa.Table]:
    tables: dict[str, pa.Table] = {}
    for name, order in measures.ORDERS.items():
        say(f"computing {name.replace('_', ' ')}")
        tables[name] = _computed(frames[name], order)
    return tables


def _facts(source: Source, found: Mapping[str, pa.Table], title: str) -> Facts:
    rows = {name: table.to_pylist() for name, table in found.items() if name != "hourly"}
    shown = Facts(
        title=title,
        source=source.words,
        made_at=source.now,
        queues=rows["queues"],
        failures=rows["failures"],
        dead_letters=rows["dead_letters"],
        lost_claims=_by_cause(rows["lost_claims"]),
        consumers=_busiest(rows["consumers"]),
        known_consumers=source.consumers,
        consumers_of=Counter(row["queue"] for row in rows["consumers"]),
        timeline=[],
        bin_seconds=HOUR,
    )
    seconds = _bin_length(found["hourly"])
    timeline = _timeline(source, found["hourly"], shown.drawn(), seconds)
    return dataclasses.replace(shown, timeline=timeline, bin_seconds=seconds)


def _by_cause(lost: Sequence[Row]) -> list[Row]:
    causes: dict[tuple[str, str], Row] = {}
    for row in lost:
        before = causes.get((row["queue"], row["cause"]))
        total = row["messages"] + (before["messages"] if before else 0)
        # The rows are ordered by hour, so this is the last one so far.
        causes[row["queue"], row["cause"]] = {**row, "messages": total}
    return list(causes.values())


def _busiest(consumers: Sequence[Row]) -> list[Row]:
    seen = Counter[str]()
    found = []
    for row in consumers:
        seen[row["queue"]] += 1
        if seen[row["queue"]] <= _CONSUMERS_SHOWN:
            found.append(row)
    return found


def _bin_length(hourly: pa.Table) -> int:
    hours = hourly["hour"].drop_null()
    if not len(hours):
        return HOUR
    ends = pc.min_max(hours).as_py()
    span = (ends["max"] - ends["min"]).total_seconds() + HOUR
    fitting = [length for length in _LENGTHS if span / length <= _BINS]
    return fitting[0] if fitting else _LENGTHS[-1] * int(span / _LENGTHS[-1] / _BINS + 1)


def _timeline(
    source: Source, hourly: pa.Table, queues: Sequence[str], seconds: int
) -> Sequence[Row]:
    if seconds == HOUR:
        names = pa.array(queues, pa.string())
        rows = hourly.filter(pc.field("queue").isin(names)).to_pylist()
        return [{**row, "bin": row["hour"]} for row in rows]
    drawn = sql.col("queue").isin(list(queues))
    timed = measures.with_durations(source.finished.where(drawn))
    bins = measures.binned(timed, source.live.where(drawn), seconds, "bin")
    found: Sequence[Row] = _computed(bins, ("queue", "bin")).to_pylist()
    return found


# -- tables as files


def _computed(frame: DataFrame, order: Sequence[str]) -> pa.Table:
    """Compute a table in one job, ordered by columns; ``-`` means descending.

    Times are in UTC.
    """
    found = frame.toArrow()
    fields = [
        field.with_type(_INSTANT) if pa.types.is_timestamp(field.type) else field
        for field in found.schema
    ]
    columns = [
        (name.removeprefix("-"), "descending" if name.startswith("-") else "ascending")
        for name in order
    ]
    return found.cast(pa.schema(fields)).sort_by(columns)


def _written(files: Files, name: str, table: pa.Table) -> str:
    """Write a table as Parquet and CSV; returns the folder of the Parquet.

    In the CSV file times are ISO 8601 in UTC. A text that a spreadsheet would run as a formula gets
    an apostrophe before it.
    """
    folder = f"parquet/{name}"
    files.remove(folder)
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    files.write(f"{folder}/{name}.parquet", buffer.getvalue())
    files.write(f"csv/{name}.csv", _as_csv(table).encode())
    return f"{files.root}/{folder}"


def _as_csv(table: pa.Table) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(table.schema.names)
    for batch in table.to_batches():
        for row in batch.to_pylist():
            writer.writerow([_harmless(value) for value in row.values()])
    return text.getvalue()


def _harmless(value: Any) -> Any:
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
