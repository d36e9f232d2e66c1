"""Results as Arrow batches: each engine, each way that its drivers offer, no Spark needed.

MariaDB is read as MySQL is. What only that decides runs on one of them in the default tier.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
import uuid
from collections.abc import Callable
from decimal import Decimal
from operator import methodcaller
from typing import Any, TypeVar
from unittest import mock

import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualTo
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Date,
    DateTime,
    Enum,
    Float,
    Integer,
    LargeBinary,
    Numeric,
    Select,
    SmallInteger,
    String,
    Time,
    Uuid,
    create_engine,
    text,
)

from queue_over_sql import DatabaseRefused, Publication, Queue, QueueService
from queue_over_sql.dialects.mysql import columns as reading_mysql
from queue_over_sql.queue import core_of
from queue_over_sql.spark.columns import MessageColumns, message_columns, read_batches
from queue_over_sql.spark.filters import pushed
from queue_over_sql.spark.options import ColumnOptions
from queue_over_sql.testing.plugin import TestDatabase
from tests.contract.existing_tables.users_tables import ODD_NAMES, create_odd_table

T = TypeVar("T")
# What the faster ways need; without them the driver of the URL reads.
FASTER = ("adbc_driver_postgresql.dbapi", "MySQLdb")
NEWS = "žluťoučký kůň 😀 \u202e % :x $1 ' \" \\ \n\t"


by_driver = pytest.mark.default_on("sqlite", "postgresql", "mysql", "h2")


def each_way(act: Callable[[], T]) -> list[T]:
    """Do it with all drivers that are installed, then with none but that of the URL."""
    with_all = act()
    reading_mysql._mysqlclient.cache_clear()
    with mock.patch.dict(sys.modules, dict.fromkeys(FASTER)):
        return [with_all, act()]


def columns_of(queue: Queue, *, archived: bool = False, **options: str) -> MessageColumns:
    """The columns of a queue under some options."""
    given = ColumnOptions.parse({"url": "unused://", "queue": queue.name, **options})
    return message_columns(queue, given, archived=archived)


def read(
    queue: Queue,
    columns: MessageColumns,
    statement: Select[Any] | None = None,
) -> list[dict[str, Any]]:
    """All rows of a statement, or of the whole table by id: the same in each way."""
    wanted = columns.select().order_by(columns.table.c.id) if statement is None else statement
    fast, plain = each_way(lambda: rows_of(list(read_batches(queue, columns, wanted, 4 << 20))))
    assert fast == plain
    return fast


def rows_of(batches: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    """The rows of batches, one after another."""
    return [row for batch in batches for row in batch.to_pylist()]


def test_messages_come_back_as_they_were_published(queue: Queue) -> None:
    """Text of any script, NULLs, times to the microsecond, headers as a map of texts."""
    before = queue.publish(
        {"news": NEWS}, key="ключ 😀", kind="kind", headers={"n": 1, "text": NEWS, "none": None}
    )
    queue.publish(None)
    [claimed] = queue.consume()
    first, second = read(queue, columns_of(queue))
    assert before.id == first["id"] == claimed.id
    assert {"news": NEWS} == json.loads(first["payload"])
    assert "ключ 😀" == first["key"]
    assert "kind" == first["kind"]
    assert 1 == first["attempt"]
    assert [("n", "1"), ("text", NEWS), ("none", None)] == first["headers"]
    assert claimed.consumer_id == first["consumer_id"]
    assert claimed.consumer_round == first["consumer_round"]
    for name in ("published_at", "scheduled_at", "available_at"):
        assert getattr(claimed, name) == first[name]
    assert "null" == second["payload"]
    empty = ("key", "kind", "headers", "consumer_id", "consumer_round")
    assert [None] * 5 == [second[name] for name in empty]


def test_payloads_that_are_no_json(service: QueueService) -> None:
    """Text stays text; bytes are binary, zero bytes and all."""
    contents: list[Any] = [NEWS, bytes(range(256))]
    for content in contents:
        kind: Any = "text" if isinstance(content, str) else "bytes"
        queue = service.create_queue(f"of_{kind}", payload=kind)
        queue.publish(content)
        assert [content] == [row["payload"] for row in read(queue, columns_of(queue))]


MOMENT = dt.datetime(2026, 2, 3, 4, 5, 6)  # noqa: DTZ001 - the column has no zone either

OWN: dict[str, tuple[Any, Any, Any]] = {
    "whole": (Integer(), -5, -5),
    "large": (BigInteger(), 2**62, 2**62),
    "small": (SmallInteger(), 7, 7),
    "flag": (Boolean(), True, True),
    "words": (String(60), NEWS, NEWS),
    "price": (Numeric(12, 3), Decimal("-12.345"), Decimal("-12.345")),
    "ratio": (Float(), 1.25, 1.25),
    "day": (Date(), dt.date(2026, 2, 28), dt.date(2026, 2, 28)),
    "moment": (DateTime(), MOMENT, MOMENT),
    "raw": (LargeBinary(), b"\x00\xff", b"\x00\xff"),
    "mood": (Enum("glad", "sad", native_enum=False), "sad", "sad"),
}


def test_own_columns_have_the_types_of_their_values(
    service: QueueService, make_service: Any
) -> None:
    """Also for a service that only found the queue, and knows its columns from the database."""
    definitions: list[Column[Any]] = [Column(name, kind) for name, (kind, _, _) in OWN.items()]
    others: list[Column[Any]] = [
        Column("other_id", Uuid()),
        Column("facts", JSON()),
        Column("clock", Time()),
    ]
    queue = service.create_queue("typed", columns=[*definitions, *others])
    values = {name: value for name, (_, value, _) in OWN.items()}
    apart = {"other_id": uuid.UUID(int=5), "facts": {"a": [NEWS]}, "clock": dt.time(1, 2, 3)}
    queue.publish_many([Publication(1, columns=values | apart), Publication(2)])
    for each in (queue, make_service().queue("typed")):
        columns = columns_of(each)
        first, second = read(each, columns)
        assert {name: want for name, (_, _, want) in OWN.items()} == {n: first[n] for n in OWN}
        assert uuid.UUID(int=5) == uuid.UUID(first["other_id"])
        assert {"a": [NEWS]} == json.loads(first["facts"])
        assert first["clock"].startswith("01:02:03")
        assert all(second[name] is None for name in OWN)


@by_driver
def test_the_archive_says_how_messages_ended(service: QueueService) -> None:
    """With the times of the last attempt and the reason."""
    queue = service.create_queue("ended", archive="all")
    queue.publish({"n": 1})
    queue.consume()[0].reject(f"no: {NEWS}")
    [kept] = queue.archive.messages().list()
    [row] = read(queue, columns_of(queue, archived=True))
    assert "rejected" == row["outcome"]
    assert kept.last_error == row["last_error"]
    assert kept.finished_at == row["finished_at"]


@by_driver
def test_values_are_bound(queue: Queue) -> None:
    """Quotes, percent signs, colons and dollars in a value are nothing but a value."""
    keys = ["a'; --", "100%", ":x", "$1", "\\", '"', "%s", "plain"]
    for key in keys:
        queue.publish(1, key=key)
    columns = columns_of(queue, columns="key,id")
    table = columns.table.c
    one = columns.select().where(table.message_key == keys[0], table.id > 0)
    assert [keys[0]] == [row["key"] for row in read(queue, columns, one)]
    some = columns.select().where(table.message_key.in_(keys[:7])).order_by(table.id).limit(100)
    assert keys[:7] == [row["key"] for row in read(queue, columns, some)]
    none = columns.select().where(table.message_key == "nothing")
    assert [] == read(queue, columns, none)


@by_driver
def test_batches_stay_within_their_size(queue: Queue) -> None:
    """However the sizes of messages vary; a single message may be larger than a batch."""
    sizes = [10, 300_000, 20, 150_000, *[2_000] * 600, 900_000, 5]
    queue.publish_many(["x" * size for size in sizes])
    limit = 200_000
    columns = columns_of(queue)
    wanted = columns.select().order_by(columns.table.c.id)
    for batches in each_way(lambda: list(read_batches(queue, columns, wanted, limit))):
        found = rows_of(batches)
        assert [size + 2 for size in sizes] == [len(row["payload"]) for row in found]
        assert all(batch.nbytes <= limit or batch.num_rows == 1 for batch in batches)
        assert len(batches) < 60


@by_driver
def test_a_read_may_end_before_its_result(queue: Queue) -> None:
    """What is left is given up, and the next read is not disturbed by it."""
    queue.publish_many(["x" * 500 for _ in range(600)])
    columns = columns_of(queue)

    def begin() -> None:
        for _ in range(3):
            batches = read_batches(queue, columns, columns.select(), 20_000)
            assert next(batches).num_rows > 0
            batches.close()
        assert 600 == sum(b.num_rows for b in read_batches(queue, columns, columns.select(), 9**9))

    each_way(begin)


@by_driver
def test_a_read_holds_up_no_publisher(queue: Queue) -> None:
    """It takes no lock, on SQLite neither, and does not see what comes in meanwhile twice."""
    queue.publish_many(["x" * 500 for _ in range(600)])
    columns = columns_of(queue)

    def publish_meanwhile() -> None:
        before = queue.messages().count()
        batches = read_batches(queue, columns, columns.select(), 20_000)
        seen = next(batches).num_rows
        queue.publish("meanwhile")
        seen += sum(batch.num_rows for batch in batches)
        assert seen in {before, before + 1}

    each_way(publish_meanwhile)


@by_driver
def test_errors_are_in_our_words(queue: Queue) -> None:
    """No driver's error leaks; the text has no password."""
    columns = columns_of(queue)
    broken = columns.select().where(text("no_such_column = 1"))

    def refused() -> None:
        with pytest.raises(DatabaseRefused, match=r"(?i)no_such_column"):
            list(read_batches(queue, columns, broken, 4 << 20))

    each_way(refused)
    assert [] == read(queue, columns)


@pytest.mark.engines("postgresql")
def test_a_read_after_a_lost_connection(queue: Queue) -> None:
    """A kept connection that the server has ended meanwhile is replaced."""
    queue.publish(1)
    columns = columns_of(queue)
    end_others = text(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )

    def read_after_loss() -> list[dict[str, Any]]:
        list(read_batches(queue, columns, columns.select(), 4 << 20))
        with core_of(queue).context.connections.reading() as connection:
            connection.execute(end_others).close()
        return rows_of(list(read_batches(queue, columns, columns.select(), 4 << 20)))

    fast, plain = each_way(read_after_loss)
    assert ["1"] == [row["payload"] for row in fast]
    assert fast == plain


@pytest.mark.engines("postgresql")
def test_an_old_adbc_is_not_used(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It would silently find no rows by a bound value."""
    adbc = pytest.importorskip("adbc_driver_postgresql")
    monkeypatch.setattr(adbc, "__version__", "1.10.0")
    queue.publish(1)
    columns = columns_of(queue)
    wanted = columns.select().where(columns.table.c.id >= 1)
    [row] = rows_of(list(read_batches(queue, columns, wanted, 4 << 20)))
    assert "1" == row["payload"]
    assert "1.10.0 is older than 1.11, so psycopg is used" in caplog.text


@pytest.mark.engines("sqlite")
def test_a_value_that_does_not_fit_names_its_column(service: QueueService) -> None:
    """SQLite keeps whatever it is given."""
    queue = service.create_queue("loose", columns=[Column("day", Date())])
    queue.publish(1)
    table = queue.table
    core_of(queue).context.run(
        lambda connection: connection.execute(text(f"UPDATE {table.name} SET day = 'some day'"))
    )
    with pytest.raises(ValueError, match=r"column day holds a value that is not a date32"):
        read(queue, columns_of(queue))


@pytest.mark.engines("sqlite", "mysql", "mariadb", "postgresql")
def test_what_spark_cannot_hold_is_not_changed(
    service: QueueService, database: TestDatabase
) -> None:
    """A text or 5 is no boolean, NaN no decimal: the error names the column, others are read."""
    wrong = {"sqlite": "'f'", "postgresql": "'NaN'"}.get(database.engine, "5")
    kind: Any = Numeric(9, 2) if database.engine == "postgresql" else Boolean()
    queue = service.create_queue("loose", columns=[Column("odd", kind)])
    queue.publish(1)
    table = queue.table
    core_of(queue).context.run(
        lambda connection: connection.execute(text(f"UPDATE {table.name} SET odd = {wrong}"))
    )
    with pytest.raises(ValueError, match=r"column odd holds a value.* option columns"):
        read(queue, columns_of(queue))
    assert ["1"] == [row["payload"] for row in read(queue, columns_of(queue, columns="payload"))]


@by_driver
def test_kafkas_columns_are_those_of_its_connector(queue: Queue) -> None:
    """Key and value as bytes, headers as a list of names and bytes, the rest as it must be."""
    published = queue.publish({"a": NEWS}, key="k", headers={"h": "é", "none": None})
    columns = columns_of(queue, schemaStyle="kafka")
    assert (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,headers:array<struct<key:string,value:binary>>>"
        == columns.struct.simpleString()
    )
    [row] = read(queue, columns)
    assert (b"k", "jobs", 0, published.id, 0) == tuple(
        row[name] for name in ("key", "topic", "partition", "offset", "timestampType")
    )
    assert {"a": NEWS} == json.loads(row["value"])
    headers = [{"key": "h", "value": "é".encode()}, {"key": "none", "value": None}]
    assert headers == row["headers"]


@pytest.mark.engines("sqlite")
def test_columns_may_be_chosen(queue: Queue) -> None:
    """In the order that the user names them, in any case; what is constant may be all."""
    queue.publish({"a": 1}, key="k")
    assert ["payload", "id"] == columns_of(queue, columns="Payload, ID").schema.names
    assert "headers" not in columns_of(queue, includeHeaders="false").schema.names
    constant = columns_of(queue, columns="topic", schemaStyle="kafka")
    assert [{"topic": "jobs"}] == read(queue, constant)
    with pytest.raises(ValueError, match=r"no column payloud: did you mean payload\?"):
        columns_of(queue, columns="id,payloud")
    with pytest.raises(ValueError, match="contains id twice"):
        columns_of(queue, columns="id,ID")


@pytest.mark.engines("sqlite")
def test_a_name_that_is_taken_gets_a_prefix(service: QueueService) -> None:
    """Spark tells names apart without their case, and a message has an ``attempt`` itself."""
    queue = service.create_queue("named", columns=[Column("attempt", Integer())])
    queue.publish(1, columns={"attempt": 7})
    [row] = read(queue, columns_of(queue))
    assert 0 == row["attempt"]
    assert 7 == row["row_attempt"]


@pytest.fixture
def adopted(service: QueueService) -> Queue:
    """A queue over a table of the user's with two rows, one of them a message."""
    queue = service.create_queue("outline")
    connections = core_of(queue).context.connections
    for statement in (
        "CREATE TABLE orders (nr INTEGER NOT NULL PRIMARY KEY, status VARCHAR(20), kind INTEGER)",
        "INSERT INTO orders VALUES (1, 'new', 10)",
        "INSERT INTO orders VALUES (2, 'old', 20)",
    ):
        connections.run(methodcaller("exec_driver_sql", statement))
    found = service.adopt_queue("orders", "orders", column_prefix="q_")
    found.enqueue(found.table.c.id == 2)
    return found


@by_driver
def test_rows_of_an_existing_table_are_their_own_payload(adopted: Queue) -> None:
    """Their columns stand where key, kind and payload would be."""
    columns = columns_of(adopted)
    assert "payload" not in columns.schema.names
    wanted = columns.select().where(columns.table.c.available_at.is_not(None))
    [row] = read(adopted, columns, wanted)
    assert 2 == row["id"]
    assert 20 == row["kind"]
    assert 0 == row["attempt"]
    assert "old" == row.get("status", row.get("row_status"))
    with pytest.raises(ValueError, match=r"schemaStyle.*use native"):
        columns_of(adopted, schemaStyle="kafka")


@by_driver
def test_columns_of_any_name_are_read_and_filtered(
    service: QueueService, database: TestDatabase
) -> None:
    """Whatever the owner of a table calls them; filters on all of them in one statement."""
    engine = create_engine(database.url)
    create_odd_table(engine)
    engine.dispose()
    queue = service.adopt_queue("odd", "odd pct%s: table?", column_prefix="q_")
    row = {name: f"value {number}" for number, name in enumerate(ODD_NAMES)}
    queue.publish_many([row, dict.fromkeys(ODD_NAMES, "another")])
    columns = columns_of(queue)
    first, _ = read(queue, columns)
    assert row == {name: first[name] for name in ODD_NAMES}
    wanted = [pushed(EqualTo((name,), value), columns) for name, value in row.items()]
    conditions = [found.condition for found in wanted if found is not None]
    assert len(ODD_NAMES) == len(conditions)
    found = read(queue, columns, columns.select().where(*conditions))
    assert [first["id"]] == [each["id"] for each in found]
