"""Loading: each row becomes a message once; invalid rows are stored separately with reasons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import Column, Integer

from queue_over_sql import Queue, QueueService
from queue_over_sql.queue import core_of
from queue_over_sql.spark.pipelines.load import LoadProgress, load
from queue_over_sql.testing.plugin import MakeService, TestDatabase
from tests.refusals import refused

# One of each in the default tier, the others in the full one.
pytestmark = pytest.mark.default_on()

ENGINES = pytest.mark.engines("sqlite", "postgresql")


def lines(path: Path, rows: list[Any]) -> str:
    """A file of JSON lines; a text stands there as it is."""
    path.write_text(
        "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)
    )
    return str(path)


def payloads(queue: Queue) -> list[Any]:
    """What the queue holds, in order of the payloads' text."""
    return sorted((m.payload for m in queue.messages().list(1000)), key=json.dumps)


@ENGINES
def test_a_second_run_publishes_only_what_is_new(
    spark: SparkSession, database: TestDatabase, queue: Queue, tmp_path: Path
) -> None:
    """With keys the account of the second run has what was there as skipped, the rest as new."""
    rows = [{"path": f"/f{number}", "size": number} for number in range(300)]
    source = lines(tmp_path / "files.json", rows)
    first = load(spark, source, "jobs", url=database.url, columns={"key": "path"})
    more = lines(tmp_path / "more.json", [*rows, {"path": "/new", "size": 1}])
    second = load(spark, more, "jobs", url=database.url, columns={"key": "path"})

    assert 300 == first.read
    assert 300 == first.published
    assert 0 == first.skipped
    assert 0 == first.rejected
    assert 0 == first.unkeyed
    assert 0 == second.unkeyed
    assert 301 == second.read
    assert 1 == second.published
    assert 300 == second.skipped
    assert 0 == second.rejected
    assert 301 == queue.stats().ready
    assert {"path": "/f7", "size": 7} == queue.messages(key="/f7").list()[0].payload


@pytest.mark.engines("sqlite")
def test_messages_without_a_key_are_counted(
    spark: SparkSession, database: TestDatabase, queue: Queue, tmp_path: Path
) -> None:
    """A key that is NULL is none: a second run publishes that row again."""
    source = lines(tmp_path / "files.json", [{"path": "/a"}, {"path": None}])
    reports = [
        load(spark, source, "jobs", url=database.url, columns={"key": "path"}) for _ in range(2)
    ]
    found = [(each.published, each.skipped, each.unkeyed) for each in reports]
    assert [(2, 0, 1), (1, 1, 1)] == found
    assert 3 == queue.stats().ready


@ENGINES
@pytest.mark.default_on("sqlite")
def test_rows_that_can_be_no_message_are_kept_apart_with_the_reason(
    spark: SparkSession, database: TestDatabase, queue: Queue, tmp_path: Path
) -> None:
    """Each kind of fault is found by row; all others are published; nothing is lost."""
    rows: list[Any] = [{"id": number, "body": '{"n": 1}', "name": "k"} for number in range(20)]
    for row in rows:
        row["name"] = f"k{row['id']}"
    rows[3]["body"] = "{broken"
    rows[5]["body"] = None
    rows[11]["name"] = "x" * 201
    rows[12]["name"] = ""
    source = lines(tmp_path / "rows.json", [*rows, '{"id": 99, "body'])
    report = load(
        spark,
        source,
        "jobs",
        url=database.url,
        columns={"payload": "body", "key": "name"},
        rejected=str(tmp_path / "rejected"),
    )

    refused = spark.read.parquet(str(tmp_path / "rejected")).collect()
    reasons = {row["id"]: row["reason"] for row in refused}
    assert 21 == report.read
    assert 16 == report.published
    assert 0 == report.skipped
    assert 5 == report.rejected
    assert {3, 5, 11, 12, None} == set(reasons)
    assert "not valid JSON" in reasons[3]
    assert "has no payload" == reasons[5]
    assert "1 to 200 characters" in reasons[11]
    assert "1 to 200 characters" in reasons[12]
    assert "the record cannot be read" == reasons[None]
    assert 16 == queue.stats().ready


@pytest.mark.engines("sqlite")
def test_without_a_place_for_them_such_rows_end_the_load(
    spark: SparkSession, database: TestDatabase, queue: Queue, tmp_path: Path
) -> None:
    """The error says how many and why, and nothing was published."""
    source = lines(tmp_path / "rows.json", [{"payload": "1"}, {"payload": "{"}])
    with pytest.raises(ValueError, match=r"1 of 2 rows .* not valid JSON.*rejected="):
        load(spark, source, "jobs", url=database.url)
    assert 0 == queue.stats().live


@pytest.mark.engines("sqlite")
def test_a_key_may_be_a_whole_number(
    spark: SparkSession, make_service: MakeService, database: TestDatabase, tmp_path: Path
) -> None:
    """It has one text; a fraction has several, and is refused by the name of its column."""
    queue = make_service().create_queue("jobs")
    path = tmp_path / "in.json"
    path.write_text('{"n": 1, "share": 0.5}\n{"n": 9007199254740993, "share": 0.25}\n')
    with pytest.raises(TypeError, match="column key must be"):
        load(spark, str(path), "jobs", url=database.url, columns={"key": "share"})
    for published in (2, 0):
        report = load(spark, str(path), "jobs", url=database.url, columns={"key": "n"})
        assert published == report.published
        assert 2 - published == report.skipped
    assert ["1", "9007199254740993"] == [message.key for message in queue.messages().list()]


@ENGINES
def test_fields_of_the_message_come_from_expressions(
    spark: SparkSession, make_service: MakeService, database: TestDatabase, tmp_path: Path
) -> None:
    """Key, kind, priority, headers and own columns, of a CSV file with a header."""
    queue = make_service().create_queue("jobs", priorities=3, columns=[Column("size", Integer)])
    path = tmp_path / "in.csv"
    path.write_text("name,bytes,urgent\na,10,yes\nb,20,no\n")
    report = load(
        spark,
        str(path),
        "jobs",
        url=database.url,
        columns={
            "payload": "to_json(struct(name))",
            "key": "concat('k-', name)",
            "kind": "'File'",
            "priority": "if(urgent = 'yes', 0, 2)",
            "headers": "map('source', 'csv')",
            "size": "cast(bytes AS int)",
        },
    )

    found = {m.key: m for m in queue.messages().list()}
    assert 2 == report.published
    assert {"name": "a"} == found["k-a"].payload
    assert 0 == found["k-a"].priority
    assert 2 == found["k-b"].priority
    assert "File" == found["k-a"].kind
    assert {"source": "csv"} == found["k-a"].headers
    assert {"size": 20} == found["k-b"].columns


@pytest.mark.engines("sqlite")
def test_several_databases_share_by_key_and_keep_their_shares(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Each message goes to one database, the same one in a second run, where it is skipped."""
    urls = {name: f"sqlite:///{tmp_path / name}.db" for name in ("one", "two", "three")}
    for url in urls.values():
        service = QueueService(url)
        service.create_queue("jobs")
        service.stop()
    source = lines(tmp_path / "rows.json", [{"id": f"id-{n}"} for n in range(300)])
    told: list[LoadProgress] = []
    runs = [
        load(spark, source, "jobs", urls=urls, columns={"key": "id"}, progress=told.append)
        for _ in range(2)
    ]

    keys: list[str | None] = []
    for name, url in urls.items():
        service = QueueService(url)
        found = [m.key for m in service.queue("jobs").messages().list(1000)]
        assert runs[0].databases[name] == len(found)
        assert len(found) > 50
        keys += found
        service.stop()
    assert sorted(f"id-{n}" for n in range(300)) == sorted(str(key) for key in keys)
    assert 300 == runs[0].published
    assert 0 == runs[1].published
    assert 300 == runs[1].skipped
    assert "Publishing to three" in [state.doing for state in told]


@pytest.mark.engines("sqlite")
def test_several_databases_share_by_the_key_of_any_spelling(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A key stays in its database whatever its payload is, which may be called value."""
    urls = [f"sqlite:///{tmp_path / name}.db" for name in ("one", "two")]
    for url in urls:
        with QueueService(url) as service:
            service.create_queue("jobs")
    for published in (100, 0):
        rows = [{"KEY": f"id-{n}", "value": f"[{n}, {published}]"} for n in range(100)]
        source = lines(tmp_path / f"{published}.json", rows)
        report = load(spark, source, "jobs", urls=urls)
        assert published == report.published
        assert 100 - published == report.skipped
        assert 0 == report.unkeyed


@pytest.mark.engines("sqlite")
def test_keys_that_stand_twice_in_the_input_are_published_once(
    spark: SparkSession, database: TestDatabase, queue: Queue, tmp_path: Path
) -> None:
    """The account has the others as skipped."""
    source = lines(tmp_path / "rows.json", [{"id": n % 10} for n in range(40)])
    report = load(spark, source, "jobs", url=database.url, columns={"key": "cast(id AS string)"})
    assert 40 == report.read
    assert 10 == report.published
    assert 30 == report.skipped
    assert [{"id": n} for n in range(10)] == payloads(queue)


@pytest.mark.engines("sqlite")
def test_wrong_arguments_are_named(spark: SparkSession, queue: Queue, tmp_path: Path) -> None:
    """A column, a format and a database that are wrong are said before anything is published."""
    lines(tmp_path / "rows.json", [{"id": 1}])
    url = core_of(queue).context.connections.engine.url.render_as_string(hide_password=False)
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("rows.json", {"url": url, "columns": {"prority": "id"}}, "did you mean priority"),
        ("rows", {"url": url}, "format="),
        ("t", {"url": url, "format": "jdbc"}, "option url"),
        ("rows.json", {"urls": []}, "exactly one of url"),
        ("rows.json", {"url": url, "on_conflict": "ignore"}, "on_conflict must be one of"),
    ]
    for source, arguments, said in wrong:
        with refused(arguments, ValueError, TypeError, match=said):
            load(spark, str(tmp_path / source), "jobs", **arguments)
    assert 0 == queue.stats().live
