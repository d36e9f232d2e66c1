"""A queue's own columns: domain data beside the payload."""

from __future__ import annotations

import enum
import json
import math
import uuid
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import (
    ARRAY,
    CHAR,
    JSON,
    BigInteger,
    Boolean,
    Column,
    Date,
    DateTime,
    Double,
    Enum,
    Float,
    Integer,
    Interval,
    LargeBinary,
    Numeric,
    SmallInteger,
    String,
    Text,
    Time,
    TypeDecorator,
    Unicode,
    Uuid,
    text,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import CompileError
from sqlalchemy.types import NullType

from queue_over_sql import (
    DatabaseRefused,
    PayloadInvalid,
    Publication,
    QueueError,
    QueueSchemaMismatch,
)
from queue_over_sql.queue import core_of
from tests.contract.queue_state import ARGUMENT_ERRORS, archived, payloads
from tests.refusals import refused

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService
in_python = pytest.mark.threads("Python refuses it")


def own_columns() -> list[Column[int] | Column[str]]:
    """New column objects, as every server makes its own."""
    return [Column("tenant", Integer), Column("region", String(20))]


@pytest.fixture
def tenants(service: QueueService) -> Queue:
    """A queue with columns of its own."""
    return service.create_queue("tenants", columns=own_columns())


def test_values_of_own_columns_come_back(tenants: Queue) -> None:
    """Given by name to publish, or in a Publication; not given is NULL."""
    tenants.publish("a", columns={"tenant": 7, "region": "north"})
    tenants.publish_many([Publication("b", columns={"tenant": 8}), "c"])
    assert [
        {"tenant": 7, "region": "north"},
        {"tenant": 8, "region": None},
        {"tenant": None, "region": None},
    ] == [dict(message.columns) for message in tenants.consume(3)]


def test_own_columns_choose_messages(tenants: Queue) -> None:
    """They are columns of the table, for where; the bulk path stores them too."""
    tenants.load([Publication(n, columns={"tenant": n % 2}) for n in range(4)])
    assert [1, 3] == payloads(tenants.consume(5, where=tenants.table.c.tenant == 1))


def test_another_service_knows_the_columns(make_service: MakeService) -> None:
    """A server that only opens the queue reads and writes them."""
    make_service().create_queue("tenants", columns=own_columns())
    queue = make_service().queue("tenants")
    queue.publish("x", columns={"region": "south"})
    (message,) = queue.consume()
    assert {"tenant": None, "region": "south"} == dict(message.columns)


class Loud(TypeDecorator[str]):
    """A type of an application's own: what is read is in capitals."""

    impl = String(20)
    cache_ok = True

    def process_result_value(self, value: str | None, dialect: Any) -> str | None:
        """Capitals."""
        del dialect
        return None if value is None else value.upper()


TYPED: dict[str, tuple[Any, Any]] = {
    "b": (Boolean(), True),
    "u": (Uuid(), uuid.UUID(int=5)),
    "f": (Float(53), 1.25),
    "double": (Double(), 1e-7),
    "price": (Numeric(12, 3), Decimal("1.250")),
    "ratio": (Numeric(12, 3, asdecimal=False), 1.25),
    "t": (Text(), "žuto"),
    "s": (String(20), "s"),
    "n": (SmallInteger(), 5),
    "day": (Date(), date(2026, 3, 4)),
    "moment": (DateTime(), datetime(2026, 3, 4, 5, 6, 7)),  # noqa: DTZ001 - the column has no zone
    "clock": (Time(), time(1, 2, 3)),
    "span": (Interval(), timedelta(hours=1)),
    "raw": (LargeBinary(), b"\x00\xff"),
    "mood": (Enum("glad", "sad", native_enum=False), "sad"),
    "j": (JSON(), {"a": [1, "ž"]}),
}


def test_declared_types_outlive_a_restart(make_service: MakeService, engine: Engine) -> None:
    """By whichever service: one that declares the columns again, and one that only opens it."""

    def columns() -> list[Column[Any]]:
        return [Column(name, kind) for name, (kind, _) in TYPED.items()]

    def record() -> Any:
        with engine.connect() as connection:
            return connection.exec_driver_sql("SELECT settings FROM queue_over_sql_queues").scalar()

    values = {name: value for name, (_, value) in TYPED.items()}
    first = make_service().create_queue("typed", columns=columns())
    before = record()
    again = make_service().create_queue("typed", columns=columns())
    assert before == record()
    only_opened = make_service().queue("typed")
    changed = make_service().create_queue("typed", max_attempts=9)
    for queue in (first, again, only_opened, changed):
        queue.publish(1, **values)
        for name, value in values.items():
            if name != "j":
                assert 1 == queue.messages(where=queue.table.c[name] == value).count(), name
        (message,) = queue.consume()
        assert values == dict(message.columns)
        assert list(map(type, values.values())) == list(map(type, message.columns.values()))
        message.ack()


def test_types_of_an_applications_own_are_those_of_who_declares_them(
    make_service: MakeService, engine: Engine
) -> None:
    """Nobody else knows them; a record that says only their SQL is that of an earlier version."""
    service = make_service()
    service.create_queue("typed", columns=[Column("loud", Loud()), Column("b", Boolean())])
    with engine.begin() as connection:
        [(text_of_record,)] = connection.execute(text("SELECT settings FROM queue_over_sql_queues"))
        settings = json.loads(text_of_record)
        settings["columns"]["b"] = settings["columns"]["b"]["sql"]
        change = text("UPDATE queue_over_sql_queues SET settings = :old")
        connection.execute(change, {"old": json.dumps(settings)})
    opened = make_service()
    plain = opened.queue("typed")
    declared = opened.create_queue(
        "typed", columns=[Column("loud", Loud()), Column("b", Boolean())]
    )
    declared.publish(1, columns={"loud": "who", "b": True})
    assert declared.table is opened.queue("typed").table
    assert [("who", True), ("WHO", True)] == [
        (found.columns["loud"], bool(found.columns["b"]))
        for queue in (plain, declared)
        for found in queue.messages().list()
    ]
    assert True is make_service().queue("typed").messages().list()[0].columns["b"]


def test_names_like_those_of_statements_will_do(service: QueueService) -> None:
    """Reserved words, and what parameters of many rows might be called; not given is NULL."""
    names = ("order", "select", "payload_0", "kind_1", "p_c0", "c1", "c1_0", "a", "a_1")
    queue = service.create_queue("odd", columns=[Column(name, String(20)) for name in names])
    rows: list[dict[str, Any]]
    rows = [{name: f"{name} {number}" for name in names} for number in range(3)]
    queue.publish(0, kind="k0", **rows[0])
    queue.publish_many([Publication(n, kind=f"k{n}", columns=rows[n]) for n in (1, 2)])
    queue.publish_many([Publication(n, kind=f"k{n}") for n in (3, 4)])
    queue.load([Publication(n, kind=f"k{n}", columns={"a": rows[n]["a"]}) for n in range(2)])
    queue.publish("x", key="key", **rows[0])
    queue.publish("y", key="key", on_conflict="replace", **rows[1])
    found = queue.consume(9)
    nothing = dict.fromkeys(names)
    loaded = [nothing | {"a": row["a"]} for row in rows[:2]]
    expected = [*rows, nothing, nothing, *loaded, rows[1]]
    assert expected == [dict(message.columns) for message in found]
    assert ["k0", "k1", "k2", "k3", "k4", "k0", "k1", None] == [m.kind for m in found]


def test_an_emoji_is_one_character_but_on_h2(service: QueueService, engine: Engine) -> None:
    """H2 counts two and the error says so; keys and kinds have room for as many everywhere."""
    queue = service.create_queue("short", columns=[Column("face", String(10))])
    full = "😀" * (5 if engine.dialect.name == "h2" else 10)
    queue.publish("x", key="😀" * 200, kind="😀" * 100, columns={"face": full})
    counts = "UTF-16" if engine.dialect.name == "h2" else "10 characters, not 11"
    with pytest.raises(ValueError, match=counts):
        queue.publish("x", columns={"face": full + "😀"})
    (message,) = queue.consume()
    assert full == message.columns["face"]
    assert "😀" * 200 == message.key
    assert "😀" * 100 == message.kind


def test_the_archive_keeps_own_columns(tenants: Queue) -> None:
    """A dead letter has the same facts as the live message."""
    tenants.publish("x", columns={"tenant": 7})
    tenants.consume()[0].reject("bad")
    (dead,) = archived(tenants)
    assert {"tenant": 7, "region": None} == dict(dead.columns)


@in_python
@pytest.mark.engines("sqlite")
def test_unknown_columns_are_refused(tenants: Queue) -> None:
    """A column that the queue does not have is the caller's mistake."""
    mine: dict[str, Any] = {"tenant": 7}
    wrong: Any = 0
    with pytest.raises(ARGUMENT_ERRORS):
        tenants.publish("x", columns={"country": "none"})
    with pytest.raises(TypeError, match="given twice"):
        tenants.publish("x", columns=mine, **mine)
    mistyped: list[dict[str, Any]] = [{"conn": 1}, {"dealy": 1}, {"on_conflic": "skip"}]
    for given, meant in zip(mistyped, ("connection", "delay", "on_conflict"), strict=True):
        with pytest.raises(TypeError, match=f"no column .*Did you mean the option {meant}"):
            tenants.publish("x", **given)
    with pytest.raises(TypeError, match="must be a mapping"):
        tenants.publish("x", columns=wrong)
    with pytest.raises(ARGUMENT_ERRORS):
        tenants.publish_many([Publication("x", columns={"country": "none"})])
    assert 0 == tenants.stats().ready
    tenants.publish("x", **mine)
    assert 7 == tenants.consume()[0].columns["tenant"]


def test_another_column_set_is_a_mismatch(make_service: MakeService) -> None:
    """Creating again with the same columns is fine, with others refused."""
    make_service().create_queue("tenants", columns=own_columns())
    make_service().create_queue("tenants", columns=own_columns())
    service = make_service()
    others: list[list[Column[Any]]] = [[], [Column("tenant", Integer)]]
    for columns in others:
        with refused(columns, QueueSchemaMismatch):
            service.create_queue("tenants", columns=columns)


@in_python
@pytest.mark.engines("sqlite")
def test_an_impossible_column_is_refused(service: QueueService) -> None:
    """It cannot take the place of a documented one, nor be a key, which nobody would notice."""
    create = partial(service.create_queue, "tenants")
    for name in ("id", "payload", "consumer_id"):
        with refused(name, *ARGUMENT_ERRORS, QueueError):
            create(columns=[Column(name, Integer)])
    keys = (Column("tenant", Integer, unique=True), Column("tenant", Integer, primary_key=True))
    for key in keys:
        with pytest.raises(ValueError, match="tenant"):
            create(columns=[key])
    assert [] == service.queues()


@in_python
@pytest.mark.engines("sqlite")
def test_a_value_of_another_type_is_refused(service: QueueService) -> None:
    """On every engine alike, naming the column; SQLite would keep it."""
    wrong: dict[Column[Any], list[Any]] = {
        Column("whole", Integer): ["abc", 1.5, True, 10**30],
        Column("truth", Boolean): [2],
        Column("number", Float): ["1"],
        Column("short", String(5)): ["123456", 5],
    }
    queue = service.create_queue("jobs", columns=list(wrong))
    for column, values in wrong.items():
        for value in values:
            with pytest.raises((TypeError, ValueError), match=column.name):
                queue.publish("a", **{column.name: value})
    assert 0 == queue.messages().count()


class Hue(enum.Enum):
    """What a column may hold."""

    RED = "r"
    BLUE = "b"


WRONG: list[tuple[Any, list[Any]]] = [
    (DateTime(), ["infinity", "2026-13-01", 0, False, date(2026, 1, 1), timedelta(1)]),
    (Date(), ["infinity", 0, False, 20260101]),
    (Time(), ["24:00", 1.5, "", timedelta(1)]),
    (Interval(), [1, "1 day"]),
    (LargeBinary(), [2**31 - 1, True, "text", [1]]),
    (Numeric(10, 2), ["one", b"abc", True, [1]]),
    (Uuid(), ["x", 1]),
    (Enum("x", "y", native_enum=False), ["z", 1, "X"]),
    (Enum(Hue, native_enum=False), ["r", 1]),
]
"""Values that some driver would take, and store as something else or where nothing reads it."""


@in_python
def test_a_value_that_its_type_does_not_hold_is_refused(service: QueueService) -> None:
    """With an error that names the column; SQLite stands for all, since no database is asked."""
    names = [f"c{number}" for number in range(len(WRONG))]
    columns = [Column(name, kind) for name, (kind, _) in zip(names, WRONG, strict=True)]
    queue = service.create_queue("typed", columns=columns)
    for name, (_, values) in zip(names, WRONG, strict=True):
        for value in values:
            try:
                queue.publish(1, **{name: value})
            except TypeError as error:
                assert repr(name) in str(error), value  # noqa: PT017 - the value is told
            else:
                pytest.fail(f"{columns[int(name[1:])].type!r} took {value!r}")
    texts = ["2026-01-02T03:04:05", "2026-01-02", "03:04:05", "12.30", str(uuid.UUID(int=1))]
    places = ["c0", "c1", "c2", "c5", "c6"]
    given: dict[str, Any] = dict(zip(places, texts, strict=True))
    queue.publish(1, **given)
    [read] = queue.consume()
    assert texts == [read.columns[place].isoformat() for place in places[:3]] + [
        str(read.columns[place]) for place in places[3:]
    ]
    queue.publish(2, columns={"c7": "x", "c8": Hue.RED})
    queue.publish(3, columns={"c8": "BLUE"})
    assert [Hue.RED, Hue.BLUE] == [message.columns["c8"] for message in queue.consume(3)]


BEYOND: list[tuple[Any, list[Any], list[Any]]] = [
    (SmallInteger(), [2**15 - 1, -(2**15)], [2**15, -(2**15) - 1]),
    (Integer(), [2**31 - 1, -(2**31)], [2**31, 10**5_000]),
    (BigInteger(), [2**63 - 1, -(2**63)], [2**63]),
    (Numeric(10, 2), [Decimal("99999999.99"), 0.5], [Decimal("99999999.995"), 1e300, 10**8]),
    (Numeric(4), [9999], [10**4, Decimal("9999.5")]),
    (Numeric(6, 2), [], [math.inf, Decimal("Infinity"), Decimal("sNaN")]),
    (Float(24), [3e38], [1e39]),
    (Float(53), [1e308, 5], [10**400, Decimal("1e400")]),
    (Unicode(3), ["abc"], ["abcd"]),
    (CHAR(3), ["abc"], ["abcd"]),
]
"""Types, values that they hold, and values that they do not."""


def test_a_value_beyond_its_column_is_refused(service: QueueService) -> None:
    """On every engine alike, with its column's name, and before the database is asked."""
    names = [f"c{number}" for number in range(len(BEYOND))]
    columns = [Column(name, kind) for name, (kind, *_) in zip(names, BEYOND, strict=True)]
    queue = service.create_queue("typed", columns=columns)
    for name, (kind, held, beyond) in zip(names, BEYOND, strict=True):
        for value in held:
            queue.publish(1, **{name: value})
            (message,) = queue.consume()
            found = message.columns[name]
            same = value == found or math.isclose(value, found, rel_tol=1e-6)
            assert same, (kind, value, found)
            message.ack()
        for value in beyond:
            with refused(value, ValueError, match=f"column '{name}'"):
                queue.publish(1, **{name: value})
    assert 0 == queue.stats().live


HOLDS = {
    "sqlite": ("inf -inf", "inf -inf"),
    "postgresql": ("inf -inf nan", "inf -inf nan"),
    "h2": ("inf -inf nan", ""),
    "mysql": ("", ""),
    "mariadb": ("", ""),
}
"""What floats and exact numbers hold besides finite ones, by engine."""


def test_what_is_no_finite_number_is_kept_or_refused(service: QueueService, engine: Engine) -> None:
    """Never changed: SQLite has NULL for NaN, and MySQL's driver sends none of them."""
    queue = service.create_queue("odd", columns=[Column("f", Float), Column("n", Numeric)])
    values: list[Any] = [math.nan, math.inf, -math.inf, Decimal("nan"), Decimal("inf")]
    for name, held in zip("fn", HOLDS[engine.dialect.name], strict=True):
        for value in values:
            if str(float(value)) not in held.split():
                with refused(value, ValueError, match=f"column '{name}' requires a finite"):
                    queue.publish(1, **{name: value})
                continue
            queue.publish(1, **{name: value})
            (message,) = queue.consume()
            assert str(float(value)) == str(float(message.columns[name])), (name, value)
            message.ack()


class Count(int, enum.Enum):
    """A number of an enumeration, whose text is its name."""

    ONE = 1


class Name(str, enum.Enum):  # noqa: UP042 - its str() is its name
    """A text of an enumeration."""

    WHO = "who"


class Real(float):
    """A number that says something else of itself, as those of NumPy do."""

    def __repr__(self) -> str:
        return "Real"

    __str__ = __repr__


class Moment(datetime):
    """An instant of a library's own."""


class Raw(bytes):
    """Bytes that say something else of themselves."""

    def __bytes__(self) -> bytes:
        return b"else"


def test_values_of_subclasses_are_stored_as_what_they_are(service: QueueService) -> None:
    """Drivers go by the very type, or by the text that a value has for people."""
    given: dict[str, tuple[Any, Any, Any]] = {
        "i": (Integer(), Count.ONE, 1),
        "s": (String(9), Name.WHO, "who"),
        "f": (Double(), Real(0.5), 0.5),
        "n": (Numeric(5, 1), Real(0.5), Decimal("0.5")),
        "d": (DateTime(), Moment(2026, 1, 2, 3, 4, 5), datetime(2026, 1, 2, 3, 4, 5)),  # noqa: DTZ001
        "b": (LargeBinary(), Raw(b"raw"), b"raw"),
        "a": (LargeBinary(), bytearray(b"raw"), b"raw"),
    }
    queue = service.create_queue("odd", columns=[Column(n, each[0]) for n, each in given.items()])
    values = {name: value for name, (_, value, _) in given.items()}
    queue.publish(1, **values)
    queue.publish_many([Publication(2, columns=values)])
    queue.load([Publication(3, columns=values)])
    wanted = {name: back for name, (_, _, back) in given.items()}
    assert [wanted] * 3 == [dict(message.columns) for message in queue.consume(3)]


def test_a_type_that_the_database_lacks_is_refused_by_name(
    service: QueueService, engine: Engine
) -> None:
    """With the column's name, for a text without a length, an array, and no type at all."""
    lacking: dict[str, Any] = {"typeless": NullType(), "several": ARRAY(Integer), "endless": String}
    if engine.dialect.name == "postgresql":
        lacking["several"] = Enum("a", "b")
    if engine.dialect.name not in ("mysql", "mariadb"):
        del lacking["endless"]
    for name, kind in lacking.items():
        with pytest.raises(ValueError, match=f"columns: '{name}' has a type") as caught:
            service.create_queue("typed", columns=[Column(name, kind)])
        assert isinstance(caught.value.__cause__, CompileError)
        assert "http" not in str(caught.value)
    assert [] == service.queues()


def test_a_value_that_cannot_be_read_stops_only_its_own_message(
    service: QueueService, engine: Engine
) -> None:
    """Another client wrote it. The others are delivered, and the bad one becomes a dead letter."""
    hue = Enum("red", "blue", native_enum=False, create_constraint=False, length=10)
    queue = service.create_queue("bad", columns=[Column("hue", hue)], max_attempts=1)
    queue.publish_many([Publication(number, columns={"hue": "red"}) for number in range(3)])
    with engine.begin() as connection:
        connection.execute(text("UPDATE queue_bad SET hue = 'green' WHERE id = 2"))
    assert 3 == len(queue.messages().list())
    assert [0, 2] == payloads(queue.consume(3))
    [dead] = queue.archive.messages().list()
    assert "'hue' cannot be read" in str(dead.last_error)


# By engine: own columns, and what another client writes into the rows, one change a row.
BEYOND_PYTHON: dict[str, tuple[dict[str, Any], list[str]]] = {
    "postgresql": (
        {"due": DateTime(timezone=True), "day": Date(), "hour": Time(), "doc": JSON()}
        | {"days": postgresql.ARRAY(Date()), "span": postgresql.TSTZRANGE()},
        [
            "due = 'infinity'",
            "day = '4713-01-01 BC'",
            "day = '99999-01-01'",
            "hour = '24:00'",
            "days = '{2026-01-02, infinity}'",
            "span = '[2026-01-02, infinity]'",
            f"doc = '{{\"n\": {'1' * 5_000}}}'",
        ],
    ),
    "h2": (
        {"due": DateTime(timezone=True), "since": Date()},
        [
            "since = DATE '99999-01-01'",
            "due = TIMESTAMP WITH TIME ZONE '99999-01-01 00:00:00+00'",
            r"message_key = STRINGDECODE('\uD800')",
        ],
    ),
    "sqlite": (
        {"tag": String(20), "due": DateTime()},
        [f"{name} = CAST(X'7bff7d' AS TEXT)" for name in ("tag", "due")]
        + [f"{name} = CAST(X'7bff7d' AS TEXT)" for name in ("payload", "headers")]
        + [f"{name} = CAST(X'7bff7d' AS TEXT)" for name in ("kind", "message_key")],
    ),
}


@pytest.mark.driver_decides
@pytest.mark.engines(*BEYOND_PYTHON)
def test_a_value_that_python_has_not_stops_only_its_own_message(
    service: QueueService, engine: Engine
) -> None:
    """Another client wrote it, and its driver refuses to read it: as a column or in one."""
    columns, changes = BEYOND_PYTHON[engine.dialect.name]
    queue = service.create_queue(
        "odd", columns=[Column(name, kind) for name, kind in columns.items()], max_attempts=1
    )
    keyed = [Publication(n, key=f"k{n}", kind="k", headers={"n": n}) for n in range(2)]
    bad = [Publication(n, key=f"bad{n}", kind="k", headers={"n": n}) for n, _ in enumerate(changes)]

    def publish() -> None:
        queue.publish_many([keyed[0], *bad, keyed[1]])
        first = min(message.id for message in queue.messages().list())
        with engine.begin() as connection:
            if engine.dialect.name == "sqlite":
                # As whoever writes the file by other means than SQLite's own.
                connection.exec_driver_sql("PRAGMA ignore_check_constraints = ON")
            for row, change in enumerate(changes, first + 1):
                connection.execute(text(f"UPDATE queue_odd SET {change} WHERE id = {row}"))

    publish()
    listed = queue.messages().list()
    assert len(changes) + 2 == len(listed)
    assert "bad0" == listed[1].key
    assert [0, 1] == payloads(queue.consume(len(changes) + 2))
    dead = queue.archive.messages().list()
    assert [listed[row].id for row in range(1, len(changes) + 1)] == [each.id for each in dead]
    assert all("its column" in str(message.last_error) for message in dead)
    assert len(changes) == queue.stats().failed
    queue.purge(claimed=True)
    queue.archive.messages().remove()
    publish()
    with engine.begin() as caller:
        assert [0, 1] == payloads(queue.take(len(changes) + 2, connection=caller))
    assert len(changes) == queue.stats().failed


@pytest.mark.engines("postgresql")
def test_a_time_that_python_has_not_is_not_requeued(service: QueueService, engine: Engine) -> None:
    """It would only fail again; the error names the column."""
    queue = service.create_queue("times", columns=[Column("due", DateTime())], max_attempts=1)
    queue.publish(1)
    with engine.begin() as connection:
        connection.execute(text("UPDATE queue_times SET due = 'infinity'"))
    assert [] == queue.consume()
    with pytest.raises(PayloadInvalid, match="'due' cannot be read"):
        queue.archive.messages().requeue()
    assert 1 == queue.stats().failed


@pytest.mark.engines("sqlite")
def test_an_earlier_error_that_is_not_utf_8_is_delivered(
    service: QueueService, engine: Engine
) -> None:
    """It is written with escapes; only bytes of the content make a message unreadable."""
    queue = service.create_queue("odd")
    queue.publish(1)
    with engine.begin() as connection:
        connection.execute(text("UPDATE queue_odd SET last_error = CAST(X'7bff7d' AS TEXT)"))
    [message] = queue.consume()
    assert "{\\xff}" == message.last_error


@pytest.mark.driver_decides
def test_a_renamed_column_puts_no_message_on_hold(tenants: Queue, engine: Engine) -> None:
    """Claims fail until it has its name again; the reaper leaves the messages alone, too."""
    tenants.publish_many([1, 2, 3])
    rename = "ALTER TABLE queue_tenants RENAME COLUMN {} TO {}"
    with engine.begin() as connection:
        connection.execute(text(rename.format("tenant", "customer")))
    with pytest.raises(DatabaseRefused):
        tenants.consume(2)
    unreadable = core_of(tenants).recovery.unreadable
    assert 0 == sum(report.repaired for report in unreadable.hold_all())
    with engine.begin() as connection:
        connection.execute(text(rename.format("customer", "tenant")))
    assert [1, 2, 3] == payloads(tenants.consume(9))
