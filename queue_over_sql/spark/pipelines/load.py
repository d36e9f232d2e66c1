"""Load: files or a table of any database become messages of a queue, or of one in many databases.

The input is read and checked once and kept by Spark; then rows that can be no message are written
to a place of their own, and the rest is published by the sink, database by database, each as a
whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from queue_over_sql.durable import stage_store as stages
from queue_over_sql.durable.stage_store import BatchName
from queue_over_sql.queue import core_of
from queue_over_sql.schema.queue_tables import check_table_prefix
from queue_over_sql.settings import check_choice
from queue_over_sql.spark.databases import location_of, options_of, queue_at
from queue_over_sql.spark.options import Location, labels_of
from queue_over_sql.spark.pipelines.checking import REASON, ROW, Checker, messages_of
from queue_over_sql.spark.pipelines.sources import read_source
from queue_over_sql.spark.sink_columns import plan_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from queue_over_sql.queue import Queue

_SHOWN: Final = 3


@dataclasses.dataclass(frozen=True)
class LoadProgress:
    """How far a load is.

    Attributes:
        doing: what is being done, for people.
        messages: published so far.
    """

    doing: str
    messages: int


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """What a load did.

    Attributes:
        read: rows of the input; ``published + skipped + rejected`` of them.
        published: new messages, and with ``on_conflict="replace"`` those with new content.
        skipped: rows whose key was live already, or stood before in the input.
        rejected: rows that can be no message.
        seconds: how long it took.
        databases: published messages by database, where there are several.
        unkeyed: published messages without a key, which a second run publishes again.
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

    A second run publishes nothing twice where messages have keys: a key that is live, or that the
    queue's ``dedup_window`` remembers, is skipped. A key that is NULL is none. What one database
    gets is published as a whole.

    Args:
        spark: the session.
        source: a path or several, with ``format="jdbc"`` the name of a table, or a DataFrame.
        queue: name of a queue that exists, in each of the databases.
        url: an SQLAlchemy URL.
        url_env: instead of it the environment variable that holds it, here and on the executors.
        url_file: the same for a file.
        urls: several databases, as a list, or by their names. Messages are spread over them by a
            hash of their keys, without a key of their payloads.
        schema: database schema of the tables.
        table_prefix: what the names of the queues' tables begin with.
        format: ``parquet``, ``csv`` (with a header unless ``options`` say otherwise), ``json``,
            ``jdbc`` or another of Spark's; by the ending of the path.
        options: of Spark's reader.
        columns: where the fields of a message come from: ``payload``, ``key``, ``kind``,
            ``headers``, ``priority``, ``delay``, ``at``, ``lease``, ``max_attempts`` and columns of
            the queue's own, each an expression of Spark SQL over the input. Without it the input
            has these columns; where it has no payload, all its columns become one JSON object.
        on_conflict: ``"skip"``, ``"replace"`` or ``"raise"`` where a key is taken.
        rejected: folder for rows that can be no message, with a column ``reason``.
        rejected_format: ``"parquet"`` or ``"json"``.
        progress: called when something new is being done.

    Returns:
        The account.

    Raises:
        ValueError, TypeError: an argument or a column is wrong, or there are rows that can be no
            message and no ``rejected`` to put them; nothing was published.
        DuplicateKey: with ``on_conflict="raise"``; databases before this one were loaded.
        QueueNotFound, DatabaseUnavailable: as their names say.
    """
    check_choice("on_conflict", on_conflict, ("skip", "replace", "raise"))
    check_choice("rejected_format", rejected_format, ("parquet", "json"))
    places = _places(url, urls, url_env, url_file, schema, table_prefix)
    began, tell = time.monotonic(), progress if progress is not None else lambda _: None
    tell(LoadProgress("Reading", 0))
    queues = {label: queue_at(place, queue) for label, place in places.items()}
    first = next(iter(queues.values()))
    messages = messages_of(read_source(spark, source, format, options), first, columns)
    _check_columns(messages.drop(ROW).schema, queues)
    with _kept(_checked(messages, next(iter(places.values())), queue)) as checked:
        tell(LoadProgress("Checking", 0))
        read, bad, unkeyed = _counted(checked)
        if bad:
            tell(LoadProgress("Writing rejected rows", 0))
            _reject(checked, bad, read, rejected, rejected_format)
        good = checked.where(f"{REASON} IS NULL").drop(REASON, ROW)
        loading = _Loading(queues, places, on_conflict, tell)
        published = loading.publish(good)
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


class _Loading:
    """Publishes checked messages, database by database."""

    def __init__(
        self,
        queues: Mapping[str, Queue],
        places: Mapping[str, Location],
        on_conflict: str,
        tell: Callable[[LoadProgress], object],
    ) -> None:
        self._queues = queues
        self._places = places
        self._on_conflict = on_conflict
        self._tell = tell
        self._batch = BatchName(f"load-{uuid.uuid4().hex}", 0)

    def publish(self, messages: DataFrame) -> dict[str, int]:
        """How many each database got."""
        done: dict[str, int] = {}
        share = _share(messages, len(self._places))
        for index, (label, place) in enumerate(self._places.items()):
            where = f" to {label}" if label else ""
            self._tell(LoadProgress(f"Publishing{where}", sum(done.values())))
            part = messages if share is None else messages.where(share == index)
            self._write(part, place, self._queues[label].name)
            done[label] = self._count(self._queues[label])
            self._tell(LoadProgress(f"Published{where}", sum(done.values())))
        return done

    def _write(self, messages: DataFrame, place: Location, queue: str) -> None:
        options = {
            **options_of(place),
            "queue": queue,
            "onConflict": self._on_conflict,
            "writerId": self._batch.writer_id,
            "batchId": str(self._batch.batch_id),
        }
        messages.write.format("queue_over_sql").options(**options).mode("append").save()

    def _count(self, queue: Queue) -> int:
        tables, context = core_of(queue).context.tables, core_of(queue).context
        count = context.run(lambda c: stages.committed_count(c, tables, self._batch))
        context.run(lambda c: stages.forget_commit(c, tables, self._batch))
        return count or 0


def _share(messages: DataFrame, count: int) -> Column | None:
    from pyspark.sql import functions

    if count == 1:
        return None
    named = "key" if "key" in messages.columns else "payload"
    hashed = functions.xxhash64(functions.coalesce(named, "payload"))
    return functions.pmod(hashed, functions.lit(count))


def _checked(messages: DataFrame, place: Location, queue: str) -> DataFrame:
    from pyspark.sql.types import StringType, StructField, StructType

    schema = StructType([*messages.schema.fields, StructField(REASON, StringType())])
    return messages.mapInArrow(Checker(place, queue, messages.drop(ROW).schema), schema)


@contextlib.contextmanager
def _kept(frame: DataFrame) -> Iterator[DataFrame]:
    from pyspark import StorageLevel

    kept = frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield kept
    finally:
        kept.unpersist()


def _counted(checked: DataFrame) -> tuple[int, int, int]:
    key = "key" if "key" in checked.columns else "NULL"
    row = checked.selectExpr(
        "count(*) AS rows",
        f"count({REASON}) AS bad",
        f"count_if({REASON} IS NULL AND {key} IS NULL) AS unkeyed",
    ).first()
    return (0, 0, 0) if row is None else (row["rows"], row["bad"], row["unkeyed"])


def _reject(checked: DataFrame, bad: int, read: int, folder: str | None, form: str) -> None:
    refused = checked.where(f"{REASON} IS NOT NULL").select(f"{ROW}.*", REASON)
    if folder is not None:
        refused.write.format(form).mode("append").save(folder)
        return
    examples = [row[REASON] for row in refused.select(REASON).distinct().limit(_SHOWN).collect()]
    msg = (
        f"{bad} of {read} rows can be no message, and nothing was published: "
        f"{'; '.join(examples)}. Name a folder for them by rejected= to load the others."
    )
    raise ValueError(msg)


def _check_columns(schema: StructType, queues: Mapping[str, Queue]) -> None:
    for queue in queues.values():
        plan_of(schema, core_of(queue).context.tables)


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
        msg = "name the databases by urls alone, or one by url, url_env or url_file"
        raise ValueError(msg)
    base = Location(schema=schema, table_prefix=check_table_prefix(table_prefix))
    named = urls if isinstance(urls, Mapping) else labels_of(urls)
    if len(named) == 1:
        return {"": dataclasses.replace(base, url=next(iter(named.values())))}
    return {label: dataclasses.replace(base, url=each) for label, each in named.items()}
