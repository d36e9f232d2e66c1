"""``spark.read`` of a queue and of its archive, on every engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, Integer, Numeric, String, make_url

from queue_over_sql import Publication, QueueService
from queue_over_sql.queue import core_of
from tests.refusals import refused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from queue_over_sql.testing.plugin import TestDatabase

# Spark's core: the main promises on two engines; the rest in the full tier.
pytestmark = pytest.mark.default_on("sqlite", "postgresql")

NEWS = "žluť 😀 % ' \" \\"


def reading(spark: SparkSession, url: str, queue: str = "orders", **options: Any) -> DataFrame:
    """A DataFrame of a queue."""
    given = {"url": url, "queue": queue, **options}
    return spark.read.format("queue_over_sql").options(**given).load()


@pytest.fixture
def orders(service: QueueService) -> QueueService:
    """A queue ``orders`` with three messages, one of them claimed, and one in its archive."""
    own: list[Column[Any]] = [
        Column("company", Integer()),
        Column("region", String(20)),
        Column("sum", Numeric(9, 2)),
    ]
    queue = service.create_queue("orders", archive="all", columns=own)
    queue.publish({"n": 0, "news": NEWS}, key="done", columns={"company": 7})
    queue.ack(queue.consume())
    queue.publish(
        {"n": 1, "news": NEWS},
        key="k1",
        headers={"h": NEWS},
        columns={"company": 1, "region": "eu"},
    )
    queue.publish({"n": 2}, kind="big", columns={"company": 2, "sum": "12.30"})
    queue.publish({"n": 3}, priority=0)
    queue.consume()
    return service


def test_a_look_claims_nothing(
    spark: SparkSession, database: TestDatabase, orders: QueueService
) -> None:
    """Live messages with all their facts, claimed ones among them; the queue is as before."""
    before = orders.queue("orders").stats()
    frame = reading(spark, database.url).orderBy("id")
    first, second, third = frame.collect()
    assert {"n": 1, "news": NEWS} == json.loads(first.payload)
    assert "k1" == first.key
    assert {"h": NEWS} == first.headers
    assert 1 == first.company
    assert "eu" == first.region
    assert 1 == first.attempt
    assert orders.consumer_id == first.consumer_id
    assert "big" == second.kind
    assert second.key is None
    assert 0 == second.attempt
    assert second.consumer_id is None
    assert "12.30" == f"{second.sum:.2f}"
    assert 3 == json.loads(third.payload)["n"]
    after = orders.queue("orders").stats()
    assert before.ready == after.ready
    assert before.claimed == after.claimed


def test_the_archive_is_read_alike(
    spark: SparkSession, database: TestDatabase, orders: QueueService
) -> None:
    """With how and when each message ended, to the microsecond."""
    [kept] = orders.queue("orders").archive.messages().list()
    frame = reading(spark, database.url, table="archive")
    [row] = frame.selectExpr("*", "unix_micros(finished_at) AS ended").collect()
    assert "done" == row.key
    assert "done" == row.outcome
    assert 7 == row.company
    assert kept.finished_at is not None
    assert round(kept.finished_at.timestamp() * 1e6) == row.ended


def test_partitions_cover_all_messages_once(
    spark: SparkSession, database: TestDatabase, service: QueueService
) -> None:
    """However they lie: old ones that wait, a gap, then many."""
    queue = service.create_queue("many")
    queue.publish_many(range(4_000))
    queue.messages(where=queue.table.c.id.between(20, 2_000)).remove()
    frame = reading(spark, database.url, "many", numPartitions=2, columns="id,payload")
    sizes = frame.selectExpr("spark_partition_id() AS part").groupBy("part").count().collect()
    # Halves of the ids would leave nineteen messages to the first partition.
    assert max(row["count"] for row in sizes) < 1_700
    found = sorted(int(row.payload) for row in frame.collect())
    assert [n for n in range(4_000) if not 19 <= n < 2_000] == found


@pytest.mark.full
def test_an_empty_queue_has_its_columns(
    spark: SparkSession, database: TestDatabase, service: QueueService
) -> None:
    """And the same DataFrame finds what comes later."""
    queue = service.create_queue("empty", payload="bytes")
    frame = reading(spark, database.url, "empty")
    assert 0 == frame.count()
    assert "binary" == dict(frame.dtypes)["payload"]
    queue.publish(b"later")
    assert 1 == frame.count()


@pytest.mark.usefixtures("orders")
def test_filters_may_be_the_databases(spark: SparkSession, database: TestDatabase) -> None:
    """With its own option and Spark's setting; the result is that without them."""
    condition = "company <= 2 AND (key = 'k1' OR key IS NULL) AND region = 'eu' AND id > 0"
    plain = [row.id for row in reading(spark, database.url).where(condition).collect()]
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        found = reading(spark, database.url, pushdown=True).where(condition).collect()
        assert plain == [row.id for row in found]
        assert 0 == reading(spark, database.url, pushdown=True).where("id < 0").count()
        assert 3 == reading(spark, database.url, pushdown=True).count()
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert 1 == len(plain)


@pytest.mark.full
@pytest.mark.usefixtures("orders")
def test_a_job_for_kafkas_connector_needs_another_format_name_only(
    spark: SparkSession, database: TestDatabase
) -> None:
    """``subscribe``, the columns, and how they are used."""
    options = {"url": database.url, "subscribe": "orders", "schemaStyle": "kafka"}
    frame = spark.read.format("queue_over_sql").options(**options).load()
    chosen = frame.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)", "topic", "offset")
    first = chosen.orderBy("offset").first()
    assert first is not None
    assert "k1" == first.key
    assert "orders" == first.topic
    assert 1 == json.loads(first.value)["n"]


@pytest.mark.full
@pytest.mark.engines("sqlite")
def test_the_rows_of_an_existing_table(
    spark: SparkSession, database: TestDatabase, service: QueueService
) -> None:
    """Those that are messages, live or finished, with the columns that their owner gave them."""
    core_of(service.create_queue("outline")).context.connections.run(
        lambda c: c.exec_driver_sql("CREATE TABLE jobs (nr INTEGER PRIMARY KEY, city VARCHAR(9))")
    )
    queue = service.adopt_queue("jobs", "jobs", column_prefix="q_")
    for city in ("Brno", "Praha", "Plzeň"):
        queue.publish({"city": city})
    queue.ack(queue.consume())
    live = reading(spark, database.url, "jobs", numPartitions=2)
    assert ["Plzeň", "Praha"] == sorted(row.city for row in live.collect())
    done = reading(spark, database.url, "jobs", table="archive")
    assert [("Brno", "done")] == [(row.city, row.outcome) for row in done.collect()]


# -- secrets and errors, the same on every engine


@pytest.mark.engines("postgresql")
def test_a_password_is_in_no_plan_and_no_error(
    spark: SparkSession, database: TestDatabase, orders: QueueService, tmp_path: Path
) -> None:
    """Neither where the URL holds it nor where a file does."""
    secret = "s3cr3t-of-the-test"
    url = make_url(database.url).set(password=secret).render_as_string(hide_password=False)
    frame = reading(spark, url)
    plan = frame._jdf.queryExecution().toString()
    assert secret not in plan
    assert 3 == frame.count()
    place = tmp_path / "url"
    place.write_text(f"{url}\n")
    options = {"urlFile": str(place), "queue": "orders"}
    assert 3 == spark.read.format("queue_over_sql").options(**options).load().count()
    nowhere = make_url(url).set(port=1).render_as_string(hide_password=False)
    with pytest.raises(Exception, match="DatabaseUnavailable") as caught:
        reading(spark, nowhere)
    assert secret not in str(caught.value)
    lost = reading(spark, url, columns="id")
    orders.drop_queue("orders")
    with pytest.raises(Exception, match="QueueNotFound") as caught:
        lost.count()
    assert secret not in str(caught.value)


@pytest.mark.usefixtures("orders")
@pytest.mark.engines("sqlite")
def test_wrong_options_are_said_in_plain_words(spark: SparkSession, database: TestDatabase) -> None:
    """The text of the error in Spark is ours."""
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"queue": "odrers"}, "QueueNotFound"),
        ({"numPartition": 2}, "unknown option numpartition: did you mean numPartitions"),
        ({"table": "dead"}, "option table must be one of 'live', 'archive'"),
        ({"columns": "id,payloads"}, "no column payloads: did you mean payload"),
    ]
    for options, message in wrong:
        with refused(options, Exception, match=message):
            reading(spark, database.url, **options).count()


@pytest.mark.full
@pytest.mark.usefixtures("orders")
@pytest.mark.engines("sqlite")
def test_a_schema_of_the_users_is_refused(spark: SparkSession, database: TestDatabase) -> None:
    """The columns are known; they are chosen by an option."""
    reader = spark.read.format("queue_over_sql").options(url=database.url, queue="orders")
    with pytest.raises(Exception, match=r"leave out \.schema"):
        reader.schema("id bigint, payload string").load().count()


@pytest.mark.full
@pytest.mark.usefixtures("orders")
@pytest.mark.engines("sqlite")
def test_a_table_can_be_made_of_it_in_sql(spark: SparkSession, database: TestDatabase) -> None:
    """As of any other format."""
    spark.sql(
        "CREATE TEMPORARY VIEW waiting USING queue_over_sql "
        f"OPTIONS (url '{database.url}', queue 'orders')"
    )
    [row] = spark.sql("SELECT count(*) AS n FROM waiting WHERE region = 'eu'").collect()
    spark.catalog.dropTempView("waiting")
    assert 1 == row.n


@pytest.mark.full
def test_publications_with_options_are_seen(
    spark: SparkSession, database: TestDatabase, service: QueueService
) -> None:
    """A delayed one is there with its time; a second look finds what came meanwhile."""
    queue = service.create_queue("later", priorities=3)
    queue.publish_many([Publication("x", delay=3_600, priority=2)])
    frame = reading(spark, database.url, "later")
    [row] = frame.where("available_at > published_at").collect()
    assert 2 == row.priority
    queue.publish("y")
    assert 2 == frame.count()
