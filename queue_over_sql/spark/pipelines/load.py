"""Load: publish files or a table of any database to a queue, also in several databases.

The input is read and checked once, and kept by Spark. Rows that cannot become messages are written
to a separate folder. The sink publishes the others, database by database, each as a whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, functions
from pyspark.sql.types import DecimalType, IntegralType, StringType, StructField, StructType

from queue_over_sql import inside
from queue_over_sql.errors import QueueError
from queue_over_sql.inside.columns import BatchName, StagedPublisher
from queue_over_sql.inside.databases import check_table_prefix
from queue_over_sql.spark.databases import location_of, options_of, queue_at
from queue_over_sql.spark.options import Location, labels_of
from queue_over_sql.spark.sink_columns import PAYLOAD, Encoder, plan_of
from queue_over_sql.values.checks import check_choice
from queue_over_sql.values.json_text import check_json_text

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

    from queue_over_sql import Queue
    from queue_over_sql.spark.sink_columns import ColumnPlan

_SHOWN: Final = 3
# The column with the original row of the input, and the column with the reason why it cannot become
# a message.
_ROW: Final = "__row"
_REASON: Final = "reason"
_CORRUPT: Final = "_corrupt_record"
# The checks name a row by its place, which has no meaning after the rows are separated.
_PLACE: Final = re.compile(
    r"^Row \d+ of its partition:? ?|, after row \d+,"
    r"| of row \d+ of its partition| of this partition"
)
_BY_ENDING: Final = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".orc": "orc",
}
_PACKED: Final = (".gz", ".bz2", ".zst", ".lz4", ".snappy")
_USUAL: Final = {"csv": {"header": "true"}}


@dataclasses.dataclass(frozen=True)
class LoadProgress:
    """The progress of a load.

    Attributes:
        doing: the current step, for people.
        messages: messages published so far.
    """

    doing: str
    messages: int


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """The result of a load.

    Attributes:
        read: rows of the input: ``published + skipped + rejected``.
        published: created messages, and replaced ones with ``on_conflict="replace"``.
        skipped: rows whose key was already live, or occurred earlier in the input.
        rejected: rows that cannot become messages.
        seconds: duration in seconds.
        databases: published messages by database, if there are several.
        unkeyed: published messages without a key, which a second run would publish again.
    """

    read: int
    published: int
    skipped: int
    rejected: int
    seconds: float
    databases: Mapping[str, int] = dataclasses.field(default_factory=dict)
    unkeyed: int = 0


def load(
    spark: SparkSession,
    source: str | Sequence[str] | DataFrame,
    queue: str,
    *,
    url: str | None = None,
    urls: Sequence[str] | Mapping[str, str] | None = None,
    url_env: str | None = None,
    url_file: str | None = None,
    schema: str | None = None,
    table_prefix: str = "queue_",
    format: str | None = None,  # noqa: A002 - Spark's word for it
    options: Mapping[str, str] | None = None,
    columns: Mapping[str, str] | None = None,
    on_conflict: str = "skip",
    rejected: str | None = None,
    rejected_format: str = "parquet",
    progress: Callable[[LoadProgress], object] | None = None,
) -> LoadReport:
    """Publish the rows of files, of a table, or of a DataFrame as messages.

    If messages have keys, a second run publishes nothing twice: it skips keys that are live or
    within the queue's ``dedup_window``. A NULL is no key. Each database gets its messages in one
    transaction.

    Args:
        spark: the session.
        source: one or several paths, the name of a table (with ``format="jdbc"``), or a DataFrame.
        queue: name of an existing queue, in each of the databases.
        url: an SQLAlchemy URL.
        url_env: instead of ``url``, the environment variable that holds it, here and on the
            executors.
        url_file: instead of ``url``, the file that holds it.
        urls: several databases, as a list or as a mapping of names to URLs. Messages are
            distributed by a hash of the key, or of the payload if there is no key.
        schema: database schema of the tables.
        table_prefix: prefix of the names of the queues' tables.
        format: ``parquet``, ``csv`` (with a header unless ``options`` say otherwise), ``json``,
            ``jdbc`` or another of Spark's; by the ending of the path.
        options: options of Spark's reader.
        columns: the sources of the message fields: ``payload``, ``key``, ``kind``, ``headers``,
            ``priority``, ``delay``, ``at``, ``lease``, ``max_attempts`` and columns of the queue's
            own, each a Spark SQL expression over the input. A key may be a whole number. Default:
            the input columns with these names. Without a payload, all input columns become one
            JSON object.
        on_conflict: ``"skip"``, ``"replace"`` or ``"raise"`` if a key is taken.
        rejected: folder for rows that cannot become messages, with a column ``reason``.
        rejected_format: ``"parquet"`` or ``"json"``.
        progress: a function to call at each step.

    Returns:
        The report of the load.

    Raises:
        ValueError, TypeError: an argument or a column is invalid, or rows cannot become messages
            and ``rejected`` is not given; nothing was published.
        DuplicateKey: with ``on_conflict="raise"``; databases before this one were loaded.
        QueueNotFound, DatabaseUnavailable: the queue does not exist, or the database cannot be
            reached.
    """
    check_choice("on_conflict", on_conflict, ("skip", "replace", "raise"))
    check_choice("rejected_format", rejected_format, ("parquet", "json"))
    places = _places(url, urls, url_env, url_file, schema, table_prefix)
    began, report = time.monotonic(), progress if progress is not None else lambda _: None
    report(LoadProgress("Reading", 0))
    queues = {label: queue_at(place, queue) for label, place in places.items()}
    first = next(iter(queues.values()))
    messages = _messages_of(_read_source(spark, source, format, options), first, columns)
    messages = _with_texts_as_keys(messages)
    fields = messages.drop(_ROW).schema
    plans = [plan_of(fields, inside.tables(each)) for each in queues.values()]
    sources = {plan.role: _quoted(plan.source) for plan in plans[0]}
    with _kept(_checked(messages, next(iter(places.values())), queue)) as checked:
        report(LoadProgress("Checking", 0))
        read, bad, unkeyed = _counted(checked, sources)
        if bad:
            report(LoadProgress("Writing rejected rows", 0))
            _reject(checked, bad, read, rejected, rejected_format)
        good = checked.where(f"{_REASON} IS NULL").drop(_REASON, _ROW)
        share = _share(sources, len(places))
        published = _published(good, share, queues, places, on_conflict, report)
    total = sum(published.values())
    return LoadReport(
        read=read,
        published=total,
        skipped=read - bad - total,
        rejected=bad,
        seconds=time.monotonic() - began,
        databases=published if len(published) > 1 else {},
        unkeyed=unkeyed,
    )


def _published(  # noqa: PLR0917 - as the function has them
    messages: DataFrame,
    share: Column | None,
    queues: Mapping[str, Queue],
    places: Mapping[str, Location],
    on_conflict: str,
    report: Callable[[LoadProgress], object],
) -> dict[str, int]:
    done: dict[str, int] = {}
    batch = BatchName(f"load-{uuid.uuid4().hex}", 0)
    account = {"writerId": batch.writer_id, "batchId": str(batch.batch_id)}
    for index, (label, place) in enumerate(places.items()):
        where = f" to {label}" if label else ""
        report(LoadProgress(f"Publishing{where}", sum(done.values())))
        part = messages if share is None else messages.where(share == index)
        options = {**options_of(place), "queue": queues[label].name, "onConflict": on_conflict}
        writer = part.write.format("queue_over_sql").options(**options, **account)
        writer.mode("append").save()
        done[label] = _count(queues[label], batch)
        report(LoadProgress(f"Published{where}", sum(done.values())))
    return done


def _count(queue: Queue, batch: BatchName) -> int:
    publisher = StagedPublisher(queue)
    count = publisher.published_count(batch)
    publisher.forget(batch)
    return count or 0


def _share(sources: Mapping[str, str], count: int) -> Column | None:
    if count == 1:
        return None
    payload = sources[PAYLOAD]
    hashed = functions.xxhash64(functions.coalesce(sources.get("key", payload), payload))
    return functions.pmod(hashed, functions.lit(count))


def _checked(messages: DataFrame, place: Location, queue: str) -> DataFrame:
    schema = StructType([*messages.schema.fields, StructField(_REASON, StringType())])
    return messages.mapInArrow(_Checker(place, queue, messages.drop(_ROW).schema), schema)


@contextlib.contextmanager
def _kept(frame: DataFrame) -> Iterator[DataFrame]:
    kept = frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield kept
    finally:
        kept.unpersist()


def _counted(checked: DataFrame, sources: Mapping[str, str]) -> tuple[int, int, int]:
    key = sources.get("key", "NULL")
    row = checked.selectExpr(
        "count(*) AS rows",
        f"count({_REASON}) AS bad",
        f"count_if({_REASON} IS NULL AND {key} IS NULL) AS unkeyed",
    ).first()
    return (0, 0, 0) if row is None else (row["rows"], row["bad"], row["unkeyed"])


def _reject(checked: DataFrame, bad: int, read: int, folder: str | None, form: str) -> None:
    refused = checked.where(f"{_REASON} IS NOT NULL").select(f"{_ROW}.*", _REASON)
    if folder is not None:
        refused.write.format(form).mode("append").save(folder)
        return
    examples = [row[_REASON] for row in refused.select(_REASON).distinct().limit(_SHOWN).collect()]
    msg = (
        f"{bad} of {read} rows cannot become messages, so nothing was published: "
        f"{'; '.join(examples)}. To load the others, give a folder for these rows with rejected=."
    )
    raise ValueError(msg)


def _places(  # noqa: PLR0917 - as the function has them
    url: str | None,
    urls: Sequence[str] | Mapping[str, str] | None,
    url_env: str | None,
    url_file: str | None,
    schema: str | None,
    table_prefix: str,
) -> dict[str, Location]:
    if not urls:
        return {"": location_of(url, url_env, url_file, schema, table_prefix)}
    if url or url_env or url_file:
        msg = "use only urls, or one of url, url_env and url_file"
        raise ValueError(msg)
    base = Location(schema=schema, table_prefix=check_table_prefix(table_prefix))
    named = urls if isinstance(urls, Mapping) else labels_of(urls)
    if len(named) == 1:
        return {"": dataclasses.replace(base, url=next(iter(named.values())))}
    return {label: dataclasses.replace(base, url=each) for label, each in named.items()}


# -- reading


def _read_source(
    spark: SparkSession,
    source: str | Sequence[str] | DataFrame,
    form: str | None,
    options: Mapping[str, str] | None,
) -> DataFrame:
    if isinstance(source, DataFrame):
        return source
    paths = [source] if isinstance(source, str) else list(source)
    if not paths or not all(isinstance(path, str) for path in paths):
        msg = "source must be a path, a list of paths, the name of a table, or a DataFrame"
        raise TypeError(msg)
    chosen = form or _format_of(paths[0])
    given = {**_USUAL.get(chosen, {}), **(options or {})}
    if chosen != "jdbc":
        return spark.read.format(chosen).options(**given).load(paths)
    if "url" not in {name.lower() for name in given}:
        msg = "format jdbc needs the option url, such as jdbc:postgresql://host/database"
        raise ValueError(msg)
    return spark.read.format(chosen).options(**{"dbtable": paths[0], **given}).load()


def _format_of(path: str) -> str:
    name = PurePosixPath(path.rstrip("/")).name.lower()
    for ending in _PACKED:
        name = name.removesuffix(ending)
    found = _BY_ENDING.get(PurePosixPath(name).suffix)
    if found is None:
        msg = (
            f"the format of {path} is not clear from its name: set format=, such as "
            f"{', '.join(sorted(set(_BY_ENDING.values())))} or jdbc"
        )
        raise ValueError(msg)
    return found


# -- checking: with the sink's own checks, row by row after a failure


def _messages_of(rows: DataFrame, queue: Queue, columns: Mapping[str, str] | None) -> DataFrame:
    names = {name.lower() for name in rows.columns}
    whole = functions.struct(*[functions.col(_quoted(name)) for name in rows.columns]).alias(_ROW)
    if columns is None and names & {PAYLOAD, "value"}:
        fields = [functions.col(_quoted(name)) for name in rows.columns if name != _CORRUPT]
        return rows.select(*fields, whole)
    given = dict(columns or {})
    fields = [functions.expr(text).alias(name) for name, text in given.items()]
    if not {name.lower() for name in given} & {PAYLOAD, "value"}:
        if PAYLOAD in names and columns is not None:
            fields.append(functions.col(PAYLOAD))
        else:
            fields.append(_everything(rows, queue))
    return rows.select(*fields, whole)


def _with_texts_as_keys(messages: DataFrame) -> DataFrame:
    """Whole numbers as keys have one text; other numbers have several."""
    for field in messages.schema.fields:
        kind = field.dataType
        whole = isinstance(kind, IntegralType) or (
            isinstance(kind, DecimalType) and kind.scale == 0
        )
        if field.name.lower() == "key" and whole:
            return messages.withColumn(field.name, functions.col(field.name).cast("string"))
    return messages


def _everything(rows: DataFrame, queue: Queue) -> Any:
    payload = inside.known_settings(queue).payload
    if payload != "json":
        msg = (
            f"queue {queue.name!r} has {payload} payloads, not JSON: set the payload column with "
            "columns="
        )
        raise ValueError(msg)
    names = [functions.col(_quoted(name)) for name in rows.columns if name != _CORRUPT]
    content = functions.struct(*names)
    return functions.to_json(content, {"ignoreNullFields": "false"}).alias(PAYLOAD)


class _Checker:
    """Adds the reason to each row, by the rules of one queue; pickled to the executors."""

    def __init__(self, place: Location, queue: str, schema: StructType) -> None:
        self._place = place
        self._queue = queue
        self._schema = schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        queue = queue_at(self._place, self._queue)
        search = _Search(queue, plan_of(self._schema, inside.tables(queue)))
        for batch in batches:
            reasons: list[str | None] = [None] * batch.num_rows
            search.look(batch.select(self._schema.names), 0, reasons)
            for index in _unread(batch):
                reasons[index] = "the record cannot be read"
            yield batch.append_column(_REASON, pa.array(reasons, pa.string()))


class _Search:
    """Finds the rows of batches that cannot become messages."""

    def __init__(self, queue: Queue, plans: tuple[ColumnPlan, ...]) -> None:
        self._queue = queue
        self._plans = plans
        # Checks that the database would make during the write must come first.
        is_json = queue.settings.payload == "json"
        self._reads_json = is_json and inside.engine(queue).checks_json
        self._payload = next(p.source for p in plans if p.role == PAYLOAD)

    def look(self, batch: pa.RecordBatch, offset: int, reasons: list[str | None]) -> None:
        """Record the reasons of rows; split a failing batch in halves."""
        if batch.num_rows == 0:
            return
        reason = self._fault(batch)
        if reason is None:
            return
        if batch.num_rows == 1:
            reasons[offset] = reason
            return
        half = batch.num_rows // 2
        self.look(batch.slice(0, half), offset, reasons)
        self.look(batch.slice(half), offset + half, reasons)

    def _fault(self, batch: pa.RecordBatch) -> str | None:
        try:
            Encoder(self._queue, self._plans).encode(batch)
            if self._reads_json:
                for payload in batch.column(self._payload).cast("string").to_pylist():
                    check_json_text(payload, "payload")
        except (QueueError, TypeError, ValueError) as error:
            return _PLACE.sub("", str(error)).strip().rstrip(".")
        return None


def _unread(batch: pa.RecordBatch) -> list[int]:
    rows = batch.column(_ROW)
    names = [rows.type.field(index).name for index in range(rows.type.num_fields)]
    if _CORRUPT not in names:
        return []
    texts = rows.field(_CORRUPT).to_pylist()
    return [index for index, text in enumerate(texts) if text is not None]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
