"""One export of archives, step by step; `export_history` says what it promises."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as sql

from queue_over_sql.errors import HistoryDiffers
from queue_over_sql.queue import core_of
from queue_over_sql.queues.archive import ArchiveHistory
from queue_over_sql.spark.pipelines.archives import (
    Part,
    archive_parts,
    parts_by_id,
    read_parts,
)
from queue_over_sql.spark.pipelines.frames import (
    HISTORY,
    HISTORY_SCHEMA,
    PARTITIONS,
    empty_history,
    utc_date,
)
from queue_over_sql.spark.pipelines.staged import StagedFolder, commit_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from queue_over_sql.queue import Queue
    from queue_over_sql.spark.options import Location

    Progress = Callable[[str, int, int], None]

SERIES: Final = "export"
"""What the commits of exports are called."""

_IDENTITY: Final = ["queue", "id", "finished_at"]
_LOOKS: Final = 10
_PRUNE_BATCH: Final = 5_000
_STEPS: Final = 5


@dataclasses.dataclass(frozen=True)
class ExportReport:
    """What an export has done.

    Attributes:
        path: the folder of the history.
        number: which export this was; None where nothing was new.
        exported: how many messages were added, by queue.
        late: those of them that had finished before the last export and were committed after it.
        pruned: how many were removed from the archives, by queue.
        files: how many files were added.
        size: of these, in bytes.
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


@dataclasses.dataclass(frozen=True)
class Stretch:
    """What an export looks at in one archive; instants are microseconds.

    Attributes:
        queue: the queue.
        mark: up to where the last export went; None before the first.
        up_to: up to where this one goes.
        oldest: where the look for late ones begins; None for the beginning.
    """

    queue: Queue
    mark: int | None
    up_to: int
    oldest: int | None

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.queue.name


class Export:
    """One export, step by step.

    Args:
        spark: the session.
        location: the database.
        folder: of the history.
        queues: whose archives.
        overlap: how long before the last export to look for late ones, in microseconds; None for
            all the time before.
        source: what the database is called in the history.
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
        self._stretches: list[Stretch] = []

    def run(self, tell: Progress, *, prune: bool) -> ExportReport:
        """All steps."""
        tell("looking for what is late", 0, _STEPS)
        self.begin()
        late = self.find_late()
        tell("writing what is new", 1, _STEPS)
        staged = self.stage(late)
        tell("comparing files and archives", 2, _STEPS)
        exported = self.verified(staged)
        tell("making it visible", 3, _STEPS)
        report = self.commit(staged, exported, late)
        if prune:
            tell("pruning archives", 4, _STEPS)
            report = dataclasses.replace(report, pruned=self.prune())
        tell("done", _STEPS, _STEPS)
        return report

    def begin(self) -> None:
        """End what a killed export has left, and choose how far this one goes.

        Raises:
            ValueError: the history is one of another database.
        """
        self._folder.recover()
        last = self._folder.last(SERIES)
        if last is not None:
            self._number = last.number + 1
            self._marks = dict(last.facts["marks"])
            if last.facts["source"] != self._source:
                raise ValueError(
                    f"the history in {self._folder.files.root} is one of {last.facts['source']}, "
                    f"not of {self._source}: give each database a folder of its own, or its old "
                    f"name by source={last.facts['source']!r}"
                )
        for queue in self._queues:
            mark, up_to = self._marks.get(queue.name), ArchiveHistory(core_of(queue).context).now()
            oldest = None if mark is None or self._overlap is None else mark - self._overlap
            self._stretches.append(Stretch(queue, mark, up_to, oldest))

    def find_late(self) -> dict[str, list[int]]:
        """The ids of what finished before the last export and is not in the history."""
        parts, firsts = [], []
        for stretch in self._stretches:
            if stretch.mark is None:
                continue
            archive = ArchiveHistory(core_of(stretch.queue).context)
            span = archive.span(stretch.oldest, stretch.mark)
            if span.first is not None:
                parts += archive_parts(stretch.queue, stretch.oldest, stretch.mark)
                firsts.append(span.first)
        if not parts:
            return {}
        known = self._exported(min(firsts))
        return _ids_by_queue(self._identities(parts).join(known, _IDENTITY, "left_anti"))

    def stage(self, late: Mapping[str, Sequence[int]]) -> str:
        """Write what is new to a folder that does not count yet; returns the folder."""
        staged = self._folder.begin(commit_name(SERIES, self._number))
        parts = self._new_parts()
        for stretch in self._stretches:
            parts += parts_by_id(stretch.queue, late.get(stretch.name, ()), stretch.mark)
        self._write(parts, staged)
        return staged

    def verified(self, staged: str) -> dict[str, int]:
        """Compare what was written with the archives, by ids; returns how many there are, by queue.

        What was committed in the meantime is added.

        Raises:
            HistoryDiffers: some are missing still, or there twice; what was written is removed.
        """
        left: dict[str, int] = {}
        for _ in range(_LOOKS):
            missing = self._missing(staged)
            if not missing:
                return self._counted(staged)
            left = {name: len(ids) for name, ids in missing.items()}
            parts = [
                part
                for stretch in self._stretches
                for part in parts_by_id(stretch.queue, missing.get(stretch.name, ()), stretch.up_to)
            ]
            self._write(parts, staged)
        self._folder.files.remove(staged)
        raise HistoryDiffers(
            f"The archives have messages that are not in the files, even after {_LOOKS} looks: "
            f"{left}. Nothing was added to the history; run the export again."
        )

    def commit(
        self, staged: str, exported: Mapping[str, int], late: Mapping[str, Sequence[int]]
    ) -> ExportReport:
        """Let what was written count, with the marks for the next export."""
        root = self._folder.files.root
        if not exported:
            self._folder.files.remove(staged)
            return ExportReport(root, None, {}, {}, {}, 0, 0)
        marks = {stretch.name: stretch.up_to for stretch in self._stretches}
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
        """Remove from the archives what can be read in the history; returns how many, by queue."""
        parts, firsts, up_to = [], [], {}
        for stretch in self._stretches:
            archive = ArchiveHistory(core_of(stretch.queue).context)
            span = archive.span(None, stretch.up_to)
            if span.first is not None and archive.removable:
                parts += archive_parts(stretch.queue, None, stretch.up_to)
                firsts.append(span.first)
                up_to[stretch.name] = (archive, stretch.up_to)
        pruned: dict[str, int] = {}
        if not parts:
            return pruned
        both = self._identities(parts).join(self._exported(min(firsts)), _IDENTITY)
        rows = both.select("queue", "id").orderBy("queue", "id").toLocalIterator()
        for name, ids in _in_batches(rows):
            archive, instant = up_to[name]
            pruned[name] = pruned.get(name, 0) + archive.remove(ids, instant)
        return pruned

    # -- data frames

    def _new_parts(self) -> list[Part]:
        parts: list[Part] = []
        for stretch in self._stretches:
            if (
                ArchiveHistory(core_of(stretch.queue).context)
                .span(stretch.mark, stretch.up_to)
                .messages
            ):
                parts += archive_parts(stretch.queue, stretch.mark, stretch.up_to)
        return parts

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
