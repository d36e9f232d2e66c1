"""H2 driver: values come back unchanged, as plain Python types."""

from __future__ import annotations

import datetime as dt
import enum
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DataError, ProgrammingError

from tests.dialects.h2.driver.fresh_databases import memory_engine

pytestmark = pytest.mark.engines("h2")

EAST = dt.timezone(dt.timedelta(hours=5, minutes=45))


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@pytest.fixture
def engine(engine_name: str) -> Iterator[sa.Engine]:  # noqa: ARG001 - selects H2
    with memory_engine() as engine:
        yield engine


VALUES: list[tuple[Any, Any]] = [
    (sa.BigInteger, 2**63 - 1),
    (sa.BigInteger, -(2**63)),
    (sa.BigInteger, 0),
    (sa.Integer, -(2**31)),
    (sa.SmallInteger, 2**15 - 1),
    (sa.Boolean, True),
    (sa.Boolean, False),
    (sa.Double, 0.1),
    (sa.Double, 0.0),
    (sa.Numeric(30, 10), Decimal("12345678901234567890.0123456789")),
    (sa.Numeric, Decimal("1.5")),
    (sa.String(20), "grün 😀"),
    (sa.String(20), "nul \0 inside"),
    (sa.String(20), ""),
    (sa.Text, "😀\0" * 3),
    (sa.LargeBinary, b"\x00\xff\x80"),
    (sa.LargeBinary, b""),
    (sa.DateTime, dt.datetime(2024, 3, 31, 2, 30, 0, 5)),  # noqa: DTZ001 - skipped by daylight saving
    (sa.DateTime, dt.datetime(1, 1, 1, 0, 0, 0, 5_000)),  # noqa: DTZ001
    (sa.DateTime(timezone=True), dt.datetime(2024, 1, 2, 3, 4, 5, 678_900, EAST)),
    (sa.DateTime(timezone=True), dt.datetime(2024, 1, 2, tzinfo=dt.UTC)),
    (sa.Date, dt.date(1582, 10, 10)),
    (sa.Time, dt.time(23, 59, 59, 999_999)),
    (sa.Time(timezone=True), dt.time(1, 2, 3, tzinfo=EAST)),
    (sa.Uuid, uuid.UUID("12345678-1234-5678-1234-567812345678")),
    (sa.JSON, {"a": [1, "😀", None]}),
    (sa.JSON, "a text"),
]


def test_round_trip(engine: sa.Engine) -> None:
    """A value of each type comes back equal and of exactly its Python type."""
    for number, (kind, value) in enumerate(VALUES):
        table = sa.Table(f"t{number}", sa.MetaData(), sa.Column("v", kind))
        with engine.begin() as connection:
            table.create(connection)
            connection.execute(table.insert(), {"v": value})
            found = connection.execute(sa.select(table.c.v)).scalar_one()
        assert value == found, kind
        assert type(value) is type(found), kind


def test_none_is_null(engine: sa.Engine) -> None:
    """None becomes NULL in every type, and NULL comes back as None."""
    kinds = [sa.JSON(none_as_null=True) if kind is sa.JSON else kind for kind, _ in VALUES]
    columns = [sa.Column(f"v{number}", kind) for number, kind in enumerate(kinds)]
    table = sa.Table("t", sa.MetaData(), *columns)
    with engine.begin() as connection:
        table.create(connection)
        connection.execute(table.insert(), {column.name: None for column in columns})
        nulls = [column.is_(sa.null()) for column in columns]
        assert {None} == set(connection.execute(sa.select(table)).one())
        assert {True} == set(connection.execute(sa.select(*nulls)).one())


def test_large_values(engine: sa.Engine) -> None:
    """Text and bytes past H2's limit of a VARCHAR (1 MiB) arrive whole."""
    table = sa.Table(
        "t", sa.MetaData(), sa.Column("text", sa.Text), sa.Column("bytes", sa.LargeBinary)
    )
    size = 2 << 20
    text, data = "é" * size, b"\x00\x01\xfe\xff" * (size // 4)
    with engine.begin() as connection:
        table.create(connection)
        connection.execute(table.insert(), {"text": text, "bytes": data})
        assert (text, data) == connection.execute(sa.select(table)).one()


def test_enum_members_bind_as_plain_values(engine: sa.Engine) -> None:
    """Subclasses of str and int reach H2 as what they are, not by their names."""
    with engine.connect() as connection:
        row = connection.exec_driver_sql(
            "SELECT CAST(? AS VARCHAR), CAST(? AS INT), CAST(? AS BLOB)",
            (Colour.RED, Level.HIGH, memoryview(b"x")),
        ).one()
    assert ("red", 3, b"x") == tuple(row)


def test_integers_past_64_bits(engine: sa.Engine) -> None:
    """An integer that no BIGINT holds is bound exactly."""
    with engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT CAST(? AS NUMERIC(40))", (10**30,)).scalar()
    assert Decimal(10**30) == found


def test_arrays_and_aggregates_are_python_values(engine: sa.Engine) -> None:
    """No Java object leaks from an array, an aggregate or an interval."""
    sql = "SELECT ARRAY[1, NULL], ARRAY['a'], ARRAY[TRUE, FALSE], COUNT(*), INTERVAL '1' DAY"
    with engine.connect() as connection:
        row = connection.exec_driver_sql(sql).one()
    assert ([1, None], ["a"], [True, False], 1, "INTERVAL '1' DAY") == tuple(row)
    assert [int, str, bool] == [type(row[0][0]), type(row[1][0]), type(row[2][0])]


def test_values_that_h2_cannot_hold(engine: sa.Engine) -> None:
    """A lone surrogate and a NUMERIC that is no number raise DataError."""
    for value in ("\ud800", Decimal("NaN")):
        with engine.connect() as connection, pytest.raises(DataError):
            connection.exec_driver_sql("SELECT CAST(? AS VARCHAR)", (value,))


def test_unknown_parameter_types(engine: sa.Engine) -> None:
    """A parameter of an unknown class raises ProgrammingError with its position."""
    with engine.connect() as connection, pytest.raises(ProgrammingError, match="parameter 2"):
        connection.exec_driver_sql("SELECT ?, ?", (1, object()))
