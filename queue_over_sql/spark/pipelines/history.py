"""`export_history`: the archives of queues as Parquet files, each finished message once.

An export adds the messages that finished up to a time of the server's clock, its mark. It reads
what finished since the last mark, and compares the ids below it to find messages that were
committed late. One commit of a ``StagedFolder`` makes the files and the marks visible.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as sql

from queue_over_sql.errors import HistoryDiffers
from queue_over_sql.inside.exports import ArchiveHistory, archive_history
from queue_over_sql.spark.databases import label_of, location_of, queues_of, service_at
from queue_over_sql.spark.pipelines.archives import (
    Part,
    archive_parts,
    parts_by_id,
    read_parts,
)
from queue_over_sql.spark.pipelines.files import files_at
from queue_over_sql.spark.pipelines.frames import (
    HISTORY,
    HISTORY_SCHEMA,
    PARTITIONS,
    empty_history,
    utc_date,
)
from queue_over_sql.spark.pipelines.staged import StagedFolder, commit_name
from queue_over_sql.values.durations import MICROSECOND, Duration, to_timedelta

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from queue_over_sql import Queue
    from queue_over_sql.spark.options import Location

    Progress = Callable[[str, int, int], None]

SERIES: Final = "export"
"""The series name of the commits of exports."""

_IDENTITY: Final = ["queue", "id", "finished_at"]
_LOOKS: Final = 10
_PRUNE_BATCH: Final = 5_000
_STEPS: Final = 5


@dataclasses.dataclass(frozen=True)
class ExportReport:
    """The result of an export.

    Attributes:
        path: the folder of the history.
        number: number of this export; None if nothing was new.
        exported: how many messages were added, by queue.
        late: how many of them finished before the last export and were committed after it.
        pruned: how many were removed from the archives, by queue.
        files: how many files were added.
        size: size of these files in bytes.
    """

    path: str
    number: int | None
    exported: Mapping[str, int]
    late: Mapping[str, int]
    pruned: Mapping[str, int]
    files: int
    size: int

    @property
    def messages(self) -> int:
        """How many messages were added."""
        return sum(self.exported.values())


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
    """Export the messages that finished since the last export to Parquet files.

    The files lie in ``queue=<name>/date=<day it finished, UTC>/``. Each finished message is
    exported exactly once, even if an export is killed: all files of an export appear together, with
    the time up to which it went. If a message finished in a transaction that was committed late,
    the next export finds it. At the end the ids in the archives are compared with the written ids.

    Args:
        spark: the session.
        output: the folder of the history, of one database and one exporter at a time.
        url: the database, as in the format's options.
        url_env: instead of ``url``, the environment variable that holds it.
        url_file: instead of ``url``, the file that holds it.
        schema: database schema of the tables.
        table_prefix: prefix of the names of the queues' tables.
        queues: only these queues; default: all.
        prune: afterwards remove the exported messages from the archives. Rows of adopted tables
            stay.
        overlap: search for late messages only this far before the last export. Use it if the
            archives are too large to compare all their ids each time.
        source: a name for the database, instead of its host and name; it must be the same in each
            export.
        progress: a function to call with the current step, its number, and the number of steps.

    Returns:
        The report of the export.

    Raises:
        ValueError: the history belongs to another database, or an argument has an invalid value.
        FileExistsError: another export ran at the same time; this one added nothing.
        QueueNotFound: there is no such queue.
        DatabaseUnavailable: the database cannot be reached.
        HistoryDiffers: the files do not match the archives; nothing was added.
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
    """Read a history as a DataFrame; ``docs/spark-pipelines.md`` lists its columns.

    Raises:
        FileNotFoundError: there is no history.
    """
    files = files_at(spark, path)
    folder = StagedFolder(files)
    if folder.last(SERIES) is None:
        raise FileNotFoundError(
            f"there is no history in {files.root}: use the folder of a history, or create one "
            "with export_history()"
        )
    folder.recover()
    return spark.read.schema(HISTORY_SCHEMA).parquet(files.root)


@dataclasses.dataclass(frozen=True)
class _Stretch:
    """The range of an export in one archive; times are microseconds.

    The last export went up to ``mark``, this one goes up to ``up_to``. The search for late messages
    begins at ``oldest``. None stands for the beginning.
    """

    queue: Queue
    archive: ArchiveHistory
    mark: int | None
    up_to: int
    oldest: int | None


class Export:
    """One export, step by step.

    It searches for late messages ``overlap`` microseconds before the last export; None: in all the
    time before. ``source`` is the name of the database in the history.
    """

    def __init__(
        self,
        spark: SparkSession,
        location: Location,
        folder: StagedFolder,
        *,
        queues: Sequence[Queue],
        overlap: int | None,
        source: str,
    ) -> None:
        self._spark = spark
        self._location = location
        self._folder = folder
        self._queues = queues
        self._overlap = overlap
        self._source = source
        self._number = 1
        self._marks: dict[str, int] = {}
        self._stretches: list[_Stretch] = []

    def run(self, progress: Progress, *, prune: bool) -> ExportReport:
        """All steps."""
        progress("searching for late messages", 0, _STEPS)
        self.begin()
        late = self.find_late()
        progress("writing new messages", 1, _STEPS)
        staged = self.stage(late)
        progress("comparing files and archives", 2, _STEPS)
        exported = self.verified(staged)
        progress("publishing the files", 3, _STEPS)
        report = self.commit(staged, exported, late)
        if prune:
            progress("pruning archives", 4, _STEPS)
            report = dataclasses.replace(report, pruned=self.prune())
        progress("done", _STEPS, _STEPS)
        return report

    def begin(self) -> None:
        """Finish what a killed export left, and choose the end of this one.

        Raises ValueError for a history of another database.
        """
        self._folder.recover()
        last = self._folder.last(SERIES)
        if last is not None:
            self._number = last.number + 1
            self._marks = dict(last.facts["marks"])
            if last.facts["source"] != self._source:
                raise ValueError(
                    f"the history in {self._folder.files.root} belongs to "
                    f"{last.facts['source']!r}, not to {self._source!r}: use another folder. If "
                    "both names mean the same database, pass "
                    f"source={last.facts['source']!r}"
                )
        for queue in self._queues:
            archive, mark = archive_history(queue), self._marks.get(queue.name)
            oldest = None if mark is None or self._overlap is None else mark - self._overlap
            self._stretches.append(_Stretch(queue, archive, mark, archive.now(), oldest))

    def find_late(self) -> dict[str, list[int]]:
        """The ids of messages that finished before the last export and are not in the history."""
        parts, firsts = [], []
        for stretch in self._stretches:
            if stretch.mark is None:
                continue
            span = stretch.archive.span(stretch.oldest, stretch.mark)
            if span.first is not None:
                parts += archive_parts(stretch.queue, stretch.oldest, stretch.mark)
                firsts.append(span.first)
        if not parts:
            return {}
        known = self._exported(min(firsts))
        return _ids_by_queue(self._identities(parts).join(known, _IDENTITY, "left_anti"))

    def stage(self, late: Mapping[str, Sequence[int]]) -> str:
        """Write the new messages to a folder that does not count yet; returns the folder."""
        staged = self._folder.begin(commit_name(SERIES, self._number))
        late_parts = self._parts_by_id(late, lambda stretch: stretch.mark)
        self._write([*self._new_parts(), *late_parts], staged)
        return staged

    def verified(self, staged: str) -> dict[str, int]:
        """Compare the written ids with the archives; returns how many messages there are, by queue.

        It adds messages that were committed meanwhile. If some are still missing or occur twice, it
        removes the written files and raises ``HistoryDiffers``.
        """
        left: dict[str, int] = {}
        for _ in range(_LOOKS):
            missing = self._missing(staged)
            if not missing:
                return self._counted(staged)
            left = {name: len(ids) for name, ids in missing.items()}
            self._write(self._parts_by_id(missing, lambda stretch: stretch.up_to), staged)
        self._folder.files.remove(staged)
        raise HistoryDiffers(
            f"After {_LOOKS} attempts the export still lacks archived messages: {left}. "
            "Nothing was added to the history. Run the export again."
        )

    def commit(
        self, staged: str, exported: Mapping[str, int], late: Mapping[str, Sequence[int]]
    ) -> ExportReport:
        """Make the written files count, with the marks for the next export."""
        root = self._folder.files.root
        if not exported:
            self._folder.files.remove(staged)
            return ExportReport(root, None, {}, {}, {}, 0, 0)
        marks = {stretch.queue.name: stretch.up_to for stretch in self._stretches}
        late_counts = {name: len(ids) for name, ids in late.items()}
        facts = {
            "source": self._source,
            "marks": {**self._marks, **marks},
            "exported": dict(exported),
            "late": late_counts,
        }
        done = self._folder.commit(commit_name(SERIES, self._number), staged, facts)
        return ExportReport(
            root, self._number, exported, late_counts, {}, len(done.files), done.size
        )

    def prune(self) -> dict[str, int]:
        """Remove messages from the archives that are in the history; returns how many, by queue."""
        parts, firsts, chosen = [], [], {}
        for stretch in self._stretches:
            span = stretch.archive.span(None, stretch.up_to)
            if span.first is not None and stretch.archive.removable:
                parts += archive_parts(stretch.queue, None, stretch.up_to)
                firsts.append(span.first)
                chosen[stretch.queue.name] = stretch
        pruned: dict[str, int] = {}
        if not parts:
            return pruned
        both = self._identities(parts).join(self._exported(min(firsts)), _IDENTITY)
        rows = both.select("queue", "id").orderBy("queue", "id").toLocalIterator()
        for name, ids in _in_batches(rows):
            removed = chosen[name].archive.remove(ids, chosen[name].up_to)
            pruned[name] = pruned.get(name, 0) + removed
        return pruned

    # -- DataFrames

    def _new_parts(self) -> list[Part]:
        return [
            part
            for stretch in self._stretches
            if stretch.archive.span(stretch.mark, stretch.up_to).messages
            for part in archive_parts(stretch.queue, stretch.mark, stretch.up_to)
        ]

    def _parts_by_id(
        self, ids: Mapping[str, Sequence[int]], up_to: Callable[[_Stretch], int | None]
    ) -> list[Part]:
        return [
            part
            for stretch in self._stretches
            for part in parts_by_id(stretch.queue, ids.get(stretch.queue.name, ()), up_to(stretch))
        ]

    def _identities(self, parts: Sequence[Part]) -> DataFrame:
        return read_parts(self._spark, self._location, parts, _IDENTITY)

    def _exported(self, first: int) -> DataFrame:
        if self._folder.last(SERIES) is None:
            return empty_history(self._spark).select(*_IDENTITY)
        since = utc_date(sql.timestamp_micros(sql.lit(first)))
        return self._read("").where(sql.col("date") >= since).select(*_IDENTITY)

    def _missing(self, staged: str) -> dict[str, list[int]]:
        parts = self._new_parts()
        if not parts:
            return {}
        written = self._read(staged).select(*_IDENTITY)
        return _ids_by_queue(self._identities(parts).join(written, _IDENTITY, "left_anti"))

    def _counted(self, staged: str) -> dict[str, int]:
        counted = (
            self._read(staged)
            .groupBy("queue")
            .agg(
                sql.count("*").alias("messages"),
                sql.count_distinct(*_IDENTITY).alias("different"),
            )
            .collect()
        )
        twice = [row["queue"] for row in counted if row["messages"] != row["different"]]
        if twice:
            self._folder.files.remove(staged)
            raise HistoryDiffers(
                f"Messages of {', '.join(sorted(twice))} were written twice. Nothing was added to "
                "the history; run the export again."
            )
        return {row["queue"]: row["messages"] for row in counted}

    def _write(self, parts: Sequence[Part], staged: str) -> None:
        if parts:
            columns = [name for name in HISTORY if name != "date"]
            rows = read_parts(self._spark, self._location, parts, columns)
            rows = rows.withColumn("date", utc_date("finished_at"))
            place = self._folder.place_of(staged)
            rows.write.mode("append").partitionBy(*PARTITIONS).parquet(place)

    def _read(self, folder: str) -> DataFrame:
        files = self._folder.files
        if folder and not files.data_files(folder):
            return empty_history(self._spark)
        place = self._folder.place_of(folder) if folder else files.root
        return self._spark.read.schema(HISTORY_SCHEMA).parquet(place)


def _ids_by_queue(frame: DataFrame) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for row in frame.select("queue", "id").toLocalIterator():
        found.setdefault(row["queue"], []).append(row["id"])
    return found


def _in_batches(rows: Iterator[Any]) -> Iterator[tuple[str, list[int]]]:
    for name, group in groupby(rows, key=itemgetter("queue")):
        while ids := [row["id"] for row in islice(group, _PRUNE_BATCH)]:
            yield name, ids
