"""`export_history`: each finished message is exported once, whenever it was committed."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import Column, Integer, create_engine

from queue_over_sql import QueueService
from queue_over_sql.errors import HistoryDiffers
from queue_over_sql.queue import Queue
from queue_over_sql.selection.selection import plain_pages
from queue_over_sql.spark.pipelines.archives import Part
from queue_over_sql.spark.pipelines.history import Export, ExportReport, export_history, history_of
from queue_over_sql.testing.plugin import TestDatabase

# One of each in the default tier, the others in the full one.
pytestmark = pytest.mark.default_on()

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class RunExport(Protocol):
    """Exports the test's database to the folder ``history``."""

    def __call__(self, **options: Any) -> ExportReport: ...


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the history."""
    return tmp_path / "history"


@pytest.fixture
def export(spark: SparkSession, database: TestDatabase, folder: Path) -> RunExport:
    """Export the test's database."""

    def run(**options: Any) -> ExportReport:
        return export_history(spark, folder, url=database.url, **options)

    return run


def test_each_finished_message_once(
    spark: SparkSession, service: QueueService, export: RunExport, folder: Path
) -> None:
    """Two queues, three exports: all that finished since, with its facts, and nothing again."""
    orders = service.create_queue("orders", archive="all", columns=[Column("amount", Integer)])
    blobs = service.create_queue("blobs", archive="all", payload="bytes")
    _finish(orders, 30, amount=7)
    _finish(blobs, 5, payload=b"\x00\xff")
    first = export()
    assert 1 == first.number
    assert {"orders": 30, "blobs": 5} == dict(first.exported)
    _finish(orders, 4, amount=8)
    second = export()
    assert 2 == second.number
    assert {"orders": 4} == dict(second.exported)
    assert {} == dict(second.late)
    assert export().number is None
    assert 0 == export().messages
    assert _in_archive(orders) | _in_archive(blobs) == _in_history(spark, folder)
    # Who knows nothing of commits sees the same.
    plain = spark.read.parquet(str(folder))
    assert 39 == plain.count()
    [row] = plain.where("queue = 'orders' and columns like '%8%'").limit(1).collect()
    assert {"n": row["id"] - 31} == json.loads(row["payload"])
    assert 1 == row["attempt"]
    assert row["date"] == row["finished_at"].astimezone(UTC).date()
    assert b"\x00\xff" == plain.where("queue = 'blobs'").first()["payload_bytes"]  # type: ignore[index]


@pytest.mark.engines("postgresql", "mariadb")
def test_what_is_committed_late_is_not_lost(
    spark: SparkSession, database: TestDatabase, queue_kept: Queue, export: RunExport, folder: Path
) -> None:
    """An ack in a transaction that outlasts an export is in the next, and is called late."""
    _finish(queue_kept, 3)
    queue_kept.publish({"n": "late"})
    [message] = queue_kept.consume(1)
    engine = create_engine(database.url)
    with engine.begin() as connection:
        queue_kept.ack(message, connection=connection)
        assert {"jobs": 3} == dict(export().exported)
    report = export()
    assert {"jobs": 1} == dict(report.exported)
    assert {"jobs": 1} == dict(report.late)
    assert _in_archive(queue_kept) == _in_history(spark, folder)
    assert 0 == export().messages
    engine.dispose()


@pytest.mark.engines("postgresql")
def test_what_is_committed_during_the_export_is_added(
    database: TestDatabase,
    queue_kept: Queue,
    export: RunExport,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The comparison at the end finds an ack that was committed after the reading."""
    _finish(queue_kept, 3)
    queue_kept.publish({"n": "late"})
    [message] = queue_kept.consume(1)
    engine = create_engine(database.url)
    connection = engine.connect()
    queue_kept.ack(message, connection=connection)
    _after(monkeypatch, "stage", connection.commit)
    report = export()
    assert {"jobs": 4} == dict(report.exported)
    assert {} == dict(report.late)
    connection.close()
    engine.dispose()


@pytest.mark.default_on("sqlite")
@pytest.mark.engines("sqlite")
def test_pruning_takes_exactly_what_was_exported(
    spark: SparkSession,
    queue_kept: Queue,
    export: RunExport,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of an export before and of this one; what finished in between stays, and comes next."""
    _finish(queue_kept, 3)
    export()
    _finish(queue_kept, 2)
    before = _in_archive(queue_kept)
    _after(monkeypatch, "commit", lambda: _finish(queue_kept, 2))
    report = export(prune=True)
    monkeypatch.undo()
    assert {"jobs": 2} == dict(report.exported)
    assert {"jobs": 5} == dict(report.pruned)
    left = _in_archive(queue_kept)
    assert 2 == len(left)
    assert set() == left & before
    last = export(prune=True)
    assert {"jobs": 2} == dict(last.exported)
    assert {"jobs": 2} == dict(last.pruned)
    assert set() == _in_archive(queue_kept)
    assert before | left == _in_history(spark, folder)


@pytest.mark.engines("sqlite")
def test_a_queue_made_anew_has_its_own_history(
    spark: SparkSession, service: QueueService, export: RunExport, folder: Path
) -> None:
    """Ids begin again when a queue is dropped and created: both lives are in the history."""
    queue = service.create_queue("jobs", archive="all")
    _finish(queue, 3)
    export()
    service.drop_queue("jobs")
    _finish(service.create_queue("jobs", archive="all"), 2)
    assert {"jobs": 2} == dict(export().exported)
    assert 5 == len(_in_history(spark, folder))


@pytest.mark.engines("sqlite")
def test_the_slower_of_two_exports_gives_way(
    spark: SparkSession,
    queue_kept: Queue,
    export: RunExport,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another export commits between the reading and the commit of this one, which then fails."""
    _finish(queue_kept, 3)
    others: list[ExportReport] = []
    whole = Export.verified

    def overtaken(self: Export, staged: str) -> dict[str, int]:
        found = whole(self, staged)
        if not others:
            others.append(ExportReport("", None, {}, {}, {}, 0, 0))
            others.append(export())
        return found

    monkeypatch.setattr(Export, "verified", overtaken)
    with pytest.raises(FileExistsError):
        export()
    assert {"jobs": 3} == dict(others[1].exported)
    assert _in_archive(queue_kept) == _in_history(spark, folder)
    assert 0 == export().messages
    assert [] == list((folder / "_staging").iterdir())


@pytest.mark.engines("sqlite")
def test_files_with_a_message_twice_never_count(
    queue_kept: Queue, export: RunExport, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are checked before they count; then the next export begins anew."""
    _finish(queue_kept, 3)
    whole = Export._write

    def twice(self: Export, parts: list[Part], staged: str) -> None:
        whole(self, [*parts, *parts], staged)

    monkeypatch.setattr(Export, "_write", twice)
    with pytest.raises(HistoryDiffers, match="jobs"):
        export()
    monkeypatch.undo()
    assert not list(folder.rglob("*.parquet"))
    assert {"jobs": 3} == dict(export().exported)


@pytest.mark.engines("sqlite")
def test_a_history_belongs_to_one_database(
    queue_kept: Queue, export: RunExport, folder: Path
) -> None:
    """Another database is refused, since its ids mean other messages."""
    _finish(queue_kept, 1)
    export(source="shop")
    with pytest.raises(ValueError, match="belongs to 'shop', not to 'other'"):
        export(source="other")
    assert folder.exists()


@pytest.mark.engines("sqlite")
def test_without_anything_there_is_no_history(
    spark: SparkSession, queue_kept: Queue, export: RunExport, folder: Path
) -> None:
    """An export of empty archives adds nothing, and reading says that there is no history."""
    assert export(prune=True).number is None
    assert {} == dict(export().exported)
    with pytest.raises(FileNotFoundError, match="no history"):
        history_of(spark, folder)
    assert 0 == queue_kept.stats().archived


@pytest.fixture
def queue_kept(service: QueueService) -> Queue:
    """The queue ``jobs``, which keeps what is finished."""
    return service.create_queue("jobs", archive="all")


def _after(monkeypatch: pytest.MonkeyPatch, step: str, operation: Callable[[], object]) -> None:
    """Let something happen right after a step of the export."""
    whole = getattr(Export, step)

    def stepped(self: Export, *arguments: Any) -> Any:
        found = whole(self, *arguments)
        operation()
        return found

    monkeypatch.setattr(Export, step, stepped)


def _finish(queue: Queue, count: int, payload: Any = None, **columns: Any) -> None:
    for number in range(count):
        queue.publish({"n": number} if payload is None else payload, **columns)
    messages = queue.consume(count)
    assert count == len(messages)
    queue.ack(messages)


def _in_archive(queue: Queue) -> set[tuple[str, int, int]]:
    pages = plain_pages(queue.archive.messages(), 1_000)
    return {(queue.name, m.id, _microseconds(m.finished_at)) for page in pages for m in page}


def _microseconds(at: datetime | None) -> int:
    assert at is not None
    return (at - EPOCH) // timedelta(microseconds=1)


def _in_history(spark: SparkSession, folder: Path) -> set[tuple[str, int, int]]:
    rows = history_of(spark, folder).selectExpr("queue", "id", "unix_micros(finished_at)")
    found = [(row[0], row[1], row[2]) for row in rows.collect()]
    assert len(found) == len(set(found)), "a message is there twice"
    return set(found)
