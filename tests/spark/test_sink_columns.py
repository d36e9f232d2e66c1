"""The columns and values that a queue accepts; errors name others, on the driver if possible."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import types as spark_types
from sqlalchemy import Boolean, Column, Date, DateTime, Float, Integer, Numeric, String

from queue_over_sql import PayloadInvalid, PayloadTooLarge, QueueService
from queue_over_sql.queue import core_of
from queue_over_sql.spark.options import WriteOptions
from queue_over_sql.spark.sink_columns import Encoder, plan_of
from tests.refusals import refused

if TYPE_CHECKING:
    from queue_over_sql import Queue

# Spark reads the text of a schema only where a session is.
pytestmark = [pytest.mark.engines("sqlite"), pytest.mark.usefixtures("spark")]

COLUMNS = (
    Column("amount", Integer, nullable=False),
    Column("city", String(5)),
    Column("share", Float),
    Column("price", Numeric(10, 2)),
    Column("paid", Boolean),
    Column("seen_at", DateTime),
    Column("day", Date),
)


@pytest.fixture
def orders(service: QueueService) -> Queue:
    """A queue with columns of its own."""
    return service.create_queue("orders", priorities=3, max_payload_bytes=100, columns=COLUMNS)


def schema_of(text: str) -> spark_types.StructType:
    """A schema from its DDL."""
    schema = spark_types.StructType.fromDDL(text)
    assert isinstance(schema, spark_types.StructType)
    return schema


def planned(queue: Queue, ddl: str) -> list[str]:
    """The roles of the columns of a schema."""
    return [plan.role for plan in plan_of(schema_of(ddl), core_of(queue).context.tables)]


def encoder(queue: Queue, **types: spark_types.DataType) -> Encoder:
    """An encoder of columns of these types."""
    fields = [spark_types.StructField(name, kind) for name, kind in types.items()]
    plans = plan_of(spark_types.StructType(fields), core_of(queue).context.tables)
    return Encoder(queue, plans)


def encoded(queue: Queue, **columns: tuple[spark_types.DataType, Any]) -> dict[str, Any]:
    """What becomes of the values of columns, as Python's."""
    coder = encoder(queue, **{name: kind for name, (kind, _) in columns.items()})
    arrays = [values for _, values in columns.values()]
    batch = pa.RecordBatch.from_arrays(arrays, list(columns))
    found: dict[str, Any] = coder.encode(batch).to_pydict()
    return found


TEXT = spark_types.StringType()


def test_columns_are_told_by_their_names(queue: Queue) -> None:
    """In any case, as in Spark, and ``value`` is the payload as in Kafka's connector."""
    ddl = "Value STRING, KEY STRING, headers MAP<STRING, STRING>, delay INTERVAL DAY TO SECOND"
    assert ["payload", "key", "headers", "delay"] == planned(queue, ddl)
    assert ["payload", "at", "lease"] == planned(
        queue, "payload BINARY, at TIMESTAMP, lease DOUBLE"
    )


WRONG: list[tuple[str, type[Exception], str]] = [
    ("payload STRING, prioritty INT", ValueError, "the column prioritty: did you mean priority"),
    ("payload STRING, zzz INT", ValueError, "the column zzz: drop it"),
    ("key STRING", ValueError, "no column payload"),
    ("payload STRING, value STRING", ValueError, "payload and value are both used as the payload"),
    ("payload STRUCT<a: INT>", TypeError, "payload must be a string.*to_json"),
    ("payload INT", TypeError, "payload must be a string"),
    ("payload STRING, key INT", TypeError, "key must be a string, not int"),
    ("payload STRING, priority STRING", TypeError, "priority must be a whole number"),
    ("payload STRING, at TIMESTAMP_NTZ", TypeError, "at must be a timestamp with a time zone"),
    ("payload STRING, headers MAP<STRING, INT>", TypeError, "headers must be a map"),
    ("payload STRING, headers ARRAY<STRING>", TypeError, "headers must be a map"),
    ("payload STRING, id BIGINT", ValueError, "does not accept the column id"),
    ("payload STRING, group STRING", ValueError, "column group: queue 'jobs' has no groups"),
]
WRONG_OWN: list[tuple[str, type[Exception], str]] = [
    ("payload STRING", ValueError, "requires values for its column amount"),
    ("payload STRING, amount STRING", TypeError, "amount must be a whole number"),
    ("payload STRING, amount INT, city INT", TypeError, "city must be a string"),
    ("payload STRING, amount INT, day STRING", TypeError, "day must be a date"),
    ("payload STRING, amout INT", ValueError, "did you mean amount"),
]


def test_wrong_columns_are_refused_by_name(queue: Queue, orders: Queue) -> None:
    """Before anything is written, with the nearest name that there is; own ones by their types."""
    given = [(queue, *row) for row in WRONG] + [(orders, *row) for row in WRONG_OWN]
    for target, ddl, error, text in given:
        with refused(ddl, error, match=text):
            planned(target, ddl)


def test_a_group_is_written_where_there_are_groups(service: QueueService) -> None:
    """By its name, not by that of its column; every text of 0 to 200 characters is one."""
    queue = service.create_queue("grouped", group_limit=1)
    assert ["payload", "group"] == planned(queue, "payload STRING, group STRING")
    values = ["", "a ", None, "x" * 200]
    columns = {"payload": (TEXT, pa.array(["1"] * 4)), "group": (TEXT, pa.array(values))}
    assert values == encoded(queue, **columns)["group_key"]
    with refused("group_key", ValueError, match="does not accept the column group_key"):
        planned(queue, "payload STRING, group_key STRING")
    columns["group"] = (TEXT, pa.array([*values[:3], "x" * 201]))
    with refused("too long", PayloadInvalid, match="Row 3 .* group that is not 0 to 200"):
        encoded(queue, **columns)


def test_own_columns_are_encoded_by_their_types(orders: Queue) -> None:
    """Narrow numbers become wide ones, instants without a zone are in UTC."""
    seen = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    found = encoded(
        orders,
        payload=(TEXT, pa.array(["1"])),
        amount=(spark_types.ByteType(), pa.array([7], pa.int8())),
        share=(spark_types.FloatType(), pa.array([0.5], pa.float32())),
        price=(spark_types.DecimalType(8, 2), pa.array([Decimal("1.25")])),
        paid=(spark_types.BooleanType(), pa.array([True])),
        seen_at=(spark_types.TimestampType(), pa.array([seen], pa.timestamp("us", "UTC"))),
        day=(spark_types.DateType(), pa.array([seen.date()])),
    )
    assert (7, 0.5, Decimal("1.25"), True) == tuple(
        found[name][0] for name in ("amount", "share", "price", "paid")
    )
    assert seen.replace(tzinfo=None) == found["seen_at"][0]
    assert seen.date() == found["day"][0]


def test_delays_and_instants_become_microseconds(queue: Queue) -> None:
    """Seconds as numbers or as an interval."""
    at = datetime(2027, 1, 1, tzinfo=UTC)
    found = encoded(
        queue,
        payload=(TEXT, pa.array(["1", "2", "3"])),
        delay=(spark_types.DoubleType(), pa.array([1.5, None, None])),
        at=(spark_types.TimestampType(), pa.array([None, at, None], pa.timestamp("us", "UTC"))),
        lease=(
            spark_types.DayTimeIntervalType(),
            pa.array([timedelta(minutes=1), None, None], pa.duration("us")),
        ),
    )
    assert [1_500_000, None, None] == found["_delay"]
    assert [None, int(at.timestamp()) * 1_000_000, None] == found["_at"]
    assert [60_000_000, None, None] == found["lease_us"]


def test_headers_come_in_three_forms(queue: Queue) -> None:
    """A map, the text of an object, or Kafka's array; an empty one is none."""
    kafka = spark_types.StructType.fromDDL("key STRING, value BINARY")
    pairs = pa.map_(pa.string(), pa.string())
    forms = {
        "map": (
            spark_types.MapType(TEXT, TEXT),
            pa.array([[("a", "1")], [], None], pairs),
        ),
        "text": (TEXT, pa.array(['{"a":"1"}', "{}", None])),
        "kafka": (
            spark_types.ArrayType(kafka),
            pa.array([[{"key": "a", "value": b"1"}], [], None]),
        ),
    }
    for form in forms.values():
        found = encoded(queue, payload=(TEXT, pa.array(["1"] * 3)), headers=form)
        assert ['{"a":"1"}', None, None] == found["headers"]


WRONG_VALUES: list[tuple[str, spark_types.DataType, Any, str]] = [
    ("payload", TEXT, None, "Row 1 .* has no payload"),
    ("payload", TEXT, "{x", "row 1 .* is not valid JSON"),
    ("payload", TEXT, "NaN", "row 1 .* is not valid JSON"),
    ("payload", TEXT, "[" * 5_000 + "]" * 5_000, "nested too deeply"),
    ("key", TEXT, "", "Row 1 .* key that is not 1 to 200"),
    ("key", TEXT, "k" * 201, "Row 1 .* key"),
    ("key", TEXT, "a\0b", "Row 1 .* key"),
    ("kind", TEXT, "k" * 101, "Row 1 .* kind that is not 1 to 100"),
    ("priority", spark_types.IntegerType(), 1, "Row 1 .* priority that is not 0 to 0"),
    ("delay", spark_types.DoubleType(), -1.0, "Row 1 .* delay"),
    ("delay", spark_types.DoubleType(), float("nan"), "Row 1 .* delay"),
    ("lease", spark_types.IntegerType(), 0, "Row 1 .* lease"),
    ("max_attempts", spark_types.IntegerType(), 0, "Row 1 .* max_attempts"),
    ("headers", TEXT, "[1]", "Row 1 .*must be a JSON object"),
    ("headers", TEXT, "{", "Row 1 .*not valid JSON"),
]


def test_wrong_values_are_refused_with_their_row(queue: Queue) -> None:
    """The rules of ``publish`` hold for each row; the first that breaks one is named."""
    good: dict[str, Any] = {"payload": "1", "key": "k", "kind": "k", "headers": "{}"}
    for name, kind, value, text in WRONG_VALUES:
        columns: dict[str, tuple[spark_types.DataType, Any]] = {
            "payload": (TEXT, pa.array(["1", "2"])),
            name: (kind, pa.array([good.get(name), value])),
        }
        with refused((name, value), PayloadInvalid, match=text):
            encoded(queue, **columns)


def test_both_a_delay_and_an_instant_are_refused(queue: Queue) -> None:
    """In one row, as in ``publish``."""
    at = pa.array([datetime(2027, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC"))
    with pytest.raises(PayloadInvalid, match=r"Row 0 .* delay and at"):
        encoded(
            queue,
            payload=(TEXT, pa.array(["1"])),
            delay=(spark_types.IntegerType(), pa.array([1])),
            at=(spark_types.TimestampType(), at),
        )


def test_values_of_own_columns_are_checked(orders: Queue) -> None:
    """A payload by its bytes in UTF-8, a text by its length, which SQLite would keep, and NULLs."""
    amount: tuple[spark_types.DataType, Any] = (spark_types.IntegerType(), pa.array([1]))
    one: tuple[spark_types.DataType, Any] = (TEXT, pa.array(["1"]))
    encoded(orders, payload=(TEXT, pa.array(['"' + "é" * 49 + '"'])), amount=amount)
    with pytest.raises(PayloadTooLarge, match="102 bytes"):
        encoded(orders, payload=(TEXT, pa.array([f'"{"é" * 50}"'])), amount=amount)
    with pytest.raises(PayloadInvalid, match="more than 5 characters in column city"):
        encoded(orders, payload=one, amount=amount, city=(TEXT, pa.array(["Zürich"])))
    with pytest.raises(PayloadInvalid, match=r"Row 1 .* no value for column amount"):
        encoded(
            orders,
            payload=(TEXT, pa.array(["1", "2"])),
            amount=(spark_types.IntegerType(), pa.array([1, None])),
        )


def test_bytes_that_are_no_text_are_refused(queue: Queue) -> None:
    """A binary payload of a queue of JSON has to be UTF-8."""
    binary = spark_types.BinaryType()
    assert ['"é"'] == encoded(queue, payload=(binary, pa.array(['"é"'.encode()])))["payload"]
    with pytest.raises(PayloadInvalid, match="not valid UTF-8"):
        encoded(queue, payload=(binary, pa.array([b"\xff"])))


WRONG_OPTIONS: list[tuple[str, str, str]] = [
    ("commitMode", "both", "commitMode"),
    ("onConflict", "merge", "onConflict"),
    ("comitMode", "task", "did you mean commitMode"),
    ("writerId", "w" * 101, "writerId"),
    ("batchId", "-1", "batchId"),
    ("stageTtl", "soon", "stageTtl"),
]


def test_wrong_options_are_refused() -> None:
    """By the name as it was written."""
    for name, value, text in WRONG_OPTIONS:
        with refused((name, value), ValueError, match=text):
            WriteOptions.parse({"url": "sqlite://", "queue": "q", name: value})
