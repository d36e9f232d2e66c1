"""The report: its numbers, its files, and a page that escapes hostile texts."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from queue_over_sql import QueueService
from queue_over_sql.spark.pipelines.report import ReportFiles, report
from queue_over_sql.testing.plugin import TestDatabase
from queue_over_sql.values.reasons import CONSUMER_DIED, LEASE_EXPIRED
from tests.spark.pipelines.histories import NOON, finished, write_history

# One of each in the default tier, the others in the full one.
pytestmark = pytest.mark.default_on()

HOSTILE = (
    "</title></style><script>alert(1)</script>",
    "\"><img src=http://evil.example.org/x onerror='alert(2)'>",
    "]]>\u202e\u0007 <svg onload=alert(3)> &lt;b&gt;",
    '=HYPERLINK("http://evil.example.org")',
)
TABLES = {"hourly", "queues", "failures", "dead_letters", "lost_claims", "consumers"}


@pytest.fixture(scope="module")
def rows() -> Sequence[dict[str, Any]]:
    """Two hours of one queue, and of another nothing but hostile texts."""
    hour, seconds = timedelta(hours=1), timedelta(seconds=1)
    good = [finished(n, consumer_id=f"worker-{n % 4 == 0}") for n in range(8)]
    slow = finished(8, finished_at=NOON + hour, claimed_at=NOON + hour - 90 * seconds)
    slow["available_at"] = slow["scheduled_at"] = slow["claimed_at"] - 30 * seconds
    again = finished(9, attempt=3, last_error="ValueError: row 17 of 'a.csv'")
    dead = [
        finished(
            n,
            outcome="failed",
            attempt=5,
            last_error=f"out of attempts: ValueError: row {n} of 'b'",
        )
        for n in (10, 11)
    ]
    lost = [
        finished(12, attempt=2, last_error=LEASE_EXPIRED, last_attempt_at=NOON - hour),
        finished(13, outcome="failed", last_error=f"out of attempts: {CONSUMER_DIED}: jobs"),
    ]
    hostile = [
        finished(
            n,
            queue="evil",
            outcome="rejected",
            last_error=text,
            key=text,
            kind=text,
            consumer_id=text[:36],
        )
        for n, text in enumerate(HOSTILE)
    ]
    return [*good, slow, again, *dead, *lost, *hostile]


@pytest.fixture(scope="module")
def made(
    spark: SparkSession, rows: Sequence[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> ReportFiles:
    """A report on a history alone."""
    folder = tmp_path_factory.mktemp("report")
    write_history(spark, folder / "history", rows)
    return report(spark, folder / "made", history=folder / "history", title=HOSTILE[0])


@pytest.mark.default_on("sqlite")
def test_what_happened_per_hour(spark: SparkSession, made: ReportFiles) -> None:
    """Counts, retries and percentiles of each queue and hour are those of its messages."""
    noon, later = NOON, NOON + timedelta(hours=1)
    table = {(row["queue"], row["hour"]): row for row in _rows(spark, made, "hourly")}
    first, second = table["orders", noon], table["orders", later]
    assert (13, 10, 3, 4, 2 + 2 * 4 + 1) == tuple(
        first[name] for name in ("finished", "done", "failed", "retried", "retries")
    )
    assert 1.0 == first["wait_p50"]
    assert 2.0 == first["run_p99"]
    assert 3.0 == first["total_max"]
    assert 1 == second["finished"]
    assert 30.0 == second["wait_p99"]
    assert 90.0 == second["run_p50"]
    # All were published three seconds before noon.
    assert 13 == table["orders", noon - timedelta(hours=1)]["published"]
    assert {"done": 11, "failed": 3, "live": 0, "published": 14} == {
        name: value
        for row in _rows(spark, made, "queues")
        if row["queue"] == "orders"
        for name, value in row.items()
        if name in {"done", "failed", "live", "published"}
    }


def test_why_they_failed(spark: SparkSession, made: ReportFiles) -> None:
    """One reason is one line, with how it ended; the examples keep what is particular."""
    reasons = {r["reason"]: r for r in _rows(spark, made, "failures") if r["queue"] == "orders"}
    same = reasons["ValueError: row <n> of <text>"]
    assert 3 == same["messages"]
    assert 2 == same["dead"]
    assert 1 == same["done_later"]
    assert 0 == same["live"]
    assert "row 9" not in same["newest_error"]
    assert {same["oldest_error"], same["newest_error"]} <= {
        "ValueError: row 17 of 'a.csv'",
        "out of attempts: ValueError: row 10 of 'b'",
        "out of attempts: ValueError: row 11 of 'b'",
    }
    causes = {row["cause"]: row["messages"] for row in _rows(spark, made, "lost_claims")}
    assert {"lease expired": 1, "consumer died": 1} == causes
    letters = [row["id"] for row in _rows(spark, made, "dead_letters") if row["queue"] == "orders"]
    assert [13, 11, 10] == letters


def test_who_did_the_work(spark: SparkSession, made: ReportFiles) -> None:
    """The shares of a queue's consumers are parts of what it finished."""
    shares = {
        row["consumer_id"]: (row["finished"], round(row["share"], 3))
        for row in _rows(spark, made, "consumers")
        if row["queue"] == "orders"
    }
    assert {"worker-False": (6, 0.429), "worker-1": (6, 0.429), "worker-True": (2, 0.143)} == shares


@pytest.mark.default_on("sqlite")
def test_the_page_is_safe_and_alone(made: ReportFiles) -> None:
    """Texts of others never become markup, and nothing on the page asks the network."""
    page = Path(made.page).read_text(encoding="utf-8")
    seen = _Seen()
    seen.feed(page)
    assert set() == {"script", "img", "iframe", "object", "link", "form"} & seen.tags
    assert not {name for name in seen.attributes if name.startswith("on")}
    assert all(target.startswith("#") for target in seen.targets)
    assert [] == seen.open
    assert "default-src 'none'" in page
    assert not re.search(r"url\(|@import", page)
    assert "\u202e" not in page
    assert HOSTILE[0] in seen.texts
    assert not re.search(r"[\x00-\x08\x0b-\x1f]", page)


def test_tables_for_spreadsheets(spark: SparkSession, made: ReportFiles) -> None:
    """Each table is a CSV file, too: as many rows, instants with their zone, no formulas."""
    assert TABLES == set(made.tables)
    for name in TABLES:
        with (Path(made.page).parent / "csv" / f"{name}.csv").open(newline="") as file:
            found = list(csv.DictReader(file))
        assert len(_rows(spark, made, name)) == len(found), name
        texts = [text for row in found for text in row.values()]
        assert not [text for text in texts if text.startswith(("=", "+", "@"))]
        if name == "hourly":
            at = datetime.fromisoformat(found[0]["hour"])
            assert timedelta(0) == at.utcoffset()


def test_only_what_is_asked_for(
    spark: SparkSession, rows: Sequence[dict[str, Any]], tmp_path: Path
) -> None:
    """``since`` and ``queues`` leave out the rest; a report is replaced by the next."""
    write_history(spark, tmp_path / "history", rows)
    since = NOON + timedelta(minutes=30)
    history = tmp_path / "history"
    report(spark, tmp_path, history=history)
    made = report(spark, tmp_path, history=history, queues=["orders"], since=since, top=1)
    assert f"the history in the folder {history} " in Path(made.page).read_text()
    assert 1 == made.queues
    assert 1 == made.finished
    assert 0 == made.live
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith("_work")]


@pytest.mark.engines("sqlite", "postgresql")
def test_archives_and_live_messages(
    spark: SparkSession, database: TestDatabase, service: QueueService, tmp_path: Path
) -> None:
    """Without a history a report is about the archives, and about what waits now."""
    queue = service.create_queue("jobs", archive="all", max_attempts=2)
    for number in range(6):
        queue.publish({"n": number})
    queue.publish({}, delay=3600)
    first, second, third, _claimed = queue.consume(4)
    first.ack()
    second.nack(ValueError("bad <b>row</b> 12"), delay=0)
    third.reject("no such customer")
    made = report(spark, tmp_path, url=database.url)
    [row] = _rows(spark, made, "queues")
    counts = ("finished", "done", "rejected", "live", "ready", "delayed", "claimed", "held")
    assert (2, 1, 1, 5, 3, 1, 1, 0) == tuple(row[name] for name in counts)
    assert 2 == made.finished
    assert 5 == made.live
    reasons = {row["reason"]: row["live"] for row in _rows(spark, made, "failures")}
    assert {"no such customer": 0, "ValueError: bad <b>row</b> <n>": 1} == reasons
    page = Path(made.page).read_text()
    assert "&lt;b&gt;row&lt;/b&gt;" in page
    assert f"process {os.getpid()}</bdi>" in page
    assert "the database " in page


@pytest.mark.engines("sqlite")
def test_nothing_to_tell(
    spark: SparkSession, database: TestDatabase, service: QueueService, tmp_path: Path
) -> None:
    """A database without messages, or without queues, gives a page that says so."""
    assert [] == service.queues()
    made = report(spark, tmp_path / "none", url=database.url)
    assert 0 == made.queues
    assert 0 == made.finished
    assert 0 == made.live
    service.create_queue("jobs")
    made = report(spark, tmp_path / "empty", url=database.url)
    assert "There are no messages yet" in Path(made.page).read_text()
    assert (tmp_path / "empty" / "csv" / "hourly.csv").read_text().startswith("queue,hour,")
    with pytest.raises(ValueError, match="exactly one of url"):
        report(spark, tmp_path)


def test_a_history_that_is_missing_is_told_first(spark: SparkSession, tmp_path: Path) -> None:
    """Before the database is read, which takes a while; here it is not even there."""
    url = f"sqlite:///{tmp_path / 'none.db'}"
    with pytest.raises(FileNotFoundError, match="there is no history"):
        report(spark, tmp_path / "report", history=tmp_path / "hst", url=url)


def _rows(spark: SparkSession, made: ReportFiles, name: str) -> list[dict[str, Any]]:
    found = pq.read_table(made.tables[name])
    assert spark.read.parquet(made.tables[name]).count() == found.num_rows
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


class _Seen(HTMLParser):
    """What a browser would see: tags, attributes, targets, texts, and what was left open."""

    VOID = ("meta", "br")

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.targets: list[str] = []
        self.open: list[str] = []
        self.texts: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        self.targets += [value or "" for name, value in attrs if name in {"href", "src"}]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        self.texts.add(data)
