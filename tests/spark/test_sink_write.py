"""DataFrames and streams into a queue: all or none, and each batch once."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f
from sqlalchemy import create_engine, inspect

from tests.observability import traced_worker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from queue_over_sql import Queue, QueueService
    from queue_over_sql.testing.plugin import TestDatabase

# Spark's core: the main promises on two engines; the rest in the full tier.
pytestmark = pytest.mark.default_on("sqlite", "postgresql")

# Above what a task sends to the driver instead of staging it.
MANY = 3_000
FILLER = "x" * 200
ROOT = Path(__file__).parents[2]


def messages(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    """Messages with keys and payloads that tell their number."""
    payload = f.to_json(f.struct(f.col("id").alias("n"), f.lit(FILLER).alias("filler")))
    return spark.range(0, count, 1, partitions).select(payload.alias("payload"))


def write(frame: DataFrame, database: TestDatabase, **options: Any) -> None:
    """Write a DataFrame to the queue ``jobs``."""
    writer = frame.write.format("queue_over_sql").option("url", database.url)
    writer.options(queue="jobs", **options).mode("append").save()


def numbers(queue: Queue) -> list[int]:
    """The numbers of all live messages, sorted."""
    found: list[int] = []
    after = 0
    while page := queue.messages().list(limit=1000, after=after):
        found += [message.payload["n"] for message in page]
        after = page[-1].id
    return sorted(found)


def stages(database: TestDatabase) -> list[str]:
    """The stages that were left behind."""
    engine = create_engine(database.url)
    names = inspect(engine).get_table_names()
    engine.dispose()
    return [name for name in names if name.startswith("queue_over_sql_stage_")]


@pytest.mark.parametrize("mode", ["atomic", "task"])
def test_a_data_frame_becomes_messages(
    spark: SparkSession, queue: Queue, database: TestDatabase, mode: str
) -> None:
    """Large parts by way of stages, small ones without, in both modes; nothing is left behind."""
    write(messages(spark, MANY), database, commitMode=mode)
    assert list(range(MANY)) == numbers(queue)
    write(messages(spark, 10, partitions=3), database, commitMode=mode)
    assert MANY + 10 == queue.stats().ready
    assert [] == stages(database)


@pytest.mark.full
def test_options_of_messages_arrive(
    spark: SparkSession, service: QueueService, database: TestDatabase
) -> None:
    """Columns of a DataFrame are the options of a publish."""
    queue = service.create_queue("jobs", priorities=2, group_limit=1)
    rows = [("k1", "1", {"a": "b"}, 1, None, "é "), (None, "2", None, 0, 3600.0, None)]
    schema = "key STRING, value STRING, headers MAP<STRING, STRING>, priority INT, delay DOUBLE"
    schema += ", group STRING"
    write(spark.createDataFrame(rows, schema).coalesce(1), database)
    first, second = queue.messages().list()
    assert "k1" == first.key
    assert 1 == first.payload
    assert {"a": "b"} == first.headers
    assert 1 == first.priority
    assert ["é ", None] == [first.group, second.group]
    assert 3600.0 == (second.scheduled_at - second.published_at).total_seconds()


@pytest.mark.engines("sqlite")
def test_a_trace_goes_on_behind_the_sink(
    spark: SparkSession, queue: Queue, database: TestDatabase
) -> None:
    """The headers of a DataFrame carry it to the process that handles the messages."""
    trace, span = 0xC0FFEE, 0xFACE
    header = f.create_map(f.lit("traceparent"), f.lit(f"00-{trace:032x}-{span:016x}-01"))
    write(messages(spark, 2).withColumn("headers", header), database)
    assert 2 == queue.stats().ready
    worker = [sys.executable, "-m", traced_worker.__name__, database.url, "2"]
    done = subprocess.run(worker, cwd=ROOT, capture_output=True, text=True, check=True)
    handled = [each for each in json.loads(done.stdout) if each["name"] == "process jobs"]
    assert [(trace, span)] * 2 == [(each["trace"], each["parent"]) for each in handled]


@pytest.mark.full
@pytest.mark.engines("sqlite", "postgresql")
def test_taken_keys_are_skipped(spark: SparkSession, queue: Queue, database: TestDatabase) -> None:
    """So a job that loads the same rows again adds nothing."""
    keyed = messages(spark, 50).withColumn("key", f.get_json_object("payload", "$.n"))
    for _ in range(2):
        write(keyed, database, onConflict="skip")
    write(keyed, database, onConflict="skip", commitMode="task")
    assert list(range(50)) == numbers(queue)
    with pytest.raises(PySparkException, match="DuplicateKey"):
        write(keyed, database)
    assert [] == stages(database)


def test_one_bad_row_publishes_nothing(
    spark: SparkSession, queue: Queue, database: TestDatabase
) -> None:
    """A payload that is no JSON is named by its row, and what was staged is dropped."""
    broken = f.when(f.col("id") == MANY - 1, f.lit("{broken")).otherwise(
        f.to_json(f.struct("id", f.lit(FILLER)))
    )
    # One partition: another one might still be at work when the job is given up.
    frame = spark.range(0, MANY, 1, 1).select(broken.alias("payload"))
    with pytest.raises(
        PySparkException, match=f"row {MANY - 1} of its partition is not valid JSON"
    ):
        write(frame, database)
    assert 0 == queue.stats().ready
    assert [] == stages(database)


@pytest.mark.engines("sqlite")
def test_what_cannot_be_is_said_on_the_driver(
    spark: SparkSession, queue: Queue, database: TestDatabase
) -> None:
    """Unknown columns and options by name, and the overwriting of a queue."""
    frame = messages(spark, 1)
    with pytest.raises(PySparkException, match="did you mean priority"):
        write(frame.withColumn("priorty", f.lit(1)), database)
    with pytest.raises(PySparkException, match="did you mean commitMode"):
        write(frame, database, comitMode="task")
    with pytest.raises(PySparkException, match="overwrite"):
        frame.write.format("queue_over_sql").options(url=database.url, queue="jobs").mode(
            "overwrite"
        ).save()
    with pytest.raises(PySparkException, match="QueueNotFound"):
        frame.write.format("queue_over_sql").options(url=database.url, queue="other").mode(
            "append"
        ).save()
    assert 0 == queue.stats().ready


@pytest.mark.full
@pytest.mark.engines("sqlite")
def test_for_each_batch_is_exact_with_its_number(
    spark: SparkSession, queue: Queue, database: TestDatabase
) -> None:
    """The same batch of the same writer is written once, however it is cut into parts."""
    options = {"writerId": "etl", "batchId": "4"}
    write(messages(spark, MANY), database, **options)
    write(messages(spark, MANY, partitions=3), database, **options)
    write(messages(spark, 5), database, writerId="etl", batchId="5")
    assert MANY + 5 == queue.stats().ready
    with pytest.raises(PySparkException, match="requires writerId"):
        write(messages(spark, 1), database, batchId="5")


def stream(
    spark: SparkSession, source: Path, checkpoint: Path, database: TestDatabase, **options: str
) -> None:
    """Run what is there of a folder of JSON lines through to the queue, and return."""
    frame = spark.readStream.schema("n BIGINT, filler STRING").json(str(source))
    payload = f.to_json(f.struct("n", "filler")).alias("payload")
    writer = frame.select(payload).writeStream.format("queue_over_sql")
    writer = writer.options(url=database.url, queue="jobs", **options)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()


def add_file(source: Path, name: str, start: int, count: int) -> None:
    """Put a file of messages into the folder that a stream reads."""
    source.mkdir(exist_ok=True)
    lines = [json.dumps({"n": n, "filler": FILLER}) for n in range(start, start + count)]
    (source / f"{name}.json").write_text("\n".join(lines), encoding="utf-8")


def forget_last_commit(checkpoint: Path) -> None:
    """Make the checkpoint look as if the driver had died before it noted its last batch."""
    last = max(
        (path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()),
        key=lambda path: int(path.name),
    )
    last.unlink()
    for crc in (checkpoint / "commits").glob(".*.crc"):
        crc.unlink()


def test_a_stream_is_written_once(
    spark: SparkSession, queue: Queue, database: TestDatabase, tmp_path: Path
) -> None:
    """A micro-batch that Spark repeats is not published again, even if it is cut otherwise."""
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    for number in range(2):
        add_file(source, f"a{number}", number * MANY // 2, MANY // 2)
    stream(spark, source, checkpoint, database)
    assert list(range(MANY)) == numbers(queue)
    forget_last_commit(checkpoint)
    spark.conf.set("spark.sql.files.maxPartitionBytes", "100k")
    try:
        stream(spark, source, checkpoint, database)
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")
    assert MANY == queue.stats().ready
    add_file(source, "b", MANY, 5)
    stream(spark, source, checkpoint, database)
    assert MANY + 5 == queue.stats().ready
    assert [] == stages(database)


@pytest.mark.full
@pytest.mark.engines("sqlite")
def test_parts_of_a_repeated_batch_are_told_apart_by_their_place(
    spark: SparkSession, queue: Queue, database: TestDatabase, tmp_path: Path
) -> None:
    """With ``commitMode=task`` a repeated batch adds nothing where it is cut as before."""
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    add_file(source, "a", 0, 100)
    stream(spark, source, checkpoint, database, commitMode="task")
    forget_last_commit(checkpoint)
    stream(spark, source, checkpoint, database, commitMode="task")
    assert list(range(100)) == numbers(queue)


@pytest.mark.full
@pytest.mark.engines("sqlite")
def test_another_writer_writes_the_same_batches_anew(
    spark: SparkSession, queue: Queue, database: TestDatabase, tmp_path: Path
) -> None:
    """Without its checkpoint a query is another one, unless ``writerId`` says it is not."""
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    add_file(source, "a", 0, 20)
    for _ in range(2):
        stream(spark, source, checkpoint, database, writerId="same")
        shutil.rmtree(checkpoint)
    assert 20 == queue.stats().ready
    stream(spark, source, checkpoint, database)
    assert 40 == queue.stats().ready
