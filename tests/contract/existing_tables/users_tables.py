"""A user's own tables, which tests adopt as queues."""

from __future__ import annotations

import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import sqlalchemy
from sqlalchemy import (
    Column,
    DateTime,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    String,
    Table,
    Uuid,
    insert,
    inspect,
    select,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from queue_over_sql.schema.existing import ADDED_COLUMNS

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import Message, Queue

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
DAY = datetime(2026, 2, 3, 4, 5, 6)  # noqa: DTZ001 - a plain column holds it
REFERENCE = uuid.UUID("12345678-1234-5678-1234-567812345678")
# SQLAlchemy before 2.0.55 takes a column of this name for a parameter.
_LIKE_A_PARAMETER = (
    () if sqlalchemy.__version__ in {f"2.0.{release}" for release in range(55)} else ("%(x)s",)
)
ODD_KEY = "the id%"
ODD_NAMES = (
    "first name",
    "a.b",
    "a_b",
    "pct%",
    "%s",
    *_LIKE_A_PARAMETER,
    "x:y",
    ":z",
    "br[0]",
    "p(q)",
    "it's",
    'say "x"',
    "back\\slash",
    "h-i",
    "?",
    "semi;colon",
    "$1",
    "{}",
    "select",
    "Mixed",
    "žuto",
    "priority_1",
    "p_c0",
    "c1",
)
"""What owners call columns, and what drivers and we might take for something else."""


class Base(DeclarativeBase):
    pass


class Invoice(Base):
    """An entity with a key of another name, and one column of each common type."""

    __tablename__ = "invoices"

    number: Mapped[int] = mapped_column(primary_key=True)
    company_id: Mapped[int]
    title: Mapped[str | None] = mapped_column(String(50), unique=True)
    total: Mapped[Decimal] = mapped_column(Numeric(10, 2), server_default="9.50")
    ratio: Mapped[float | None]
    paid: Mapped[bool] = mapped_column(default=False)
    issued_at: Mapped[datetime | None] = mapped_column(DateTime)
    due_on: Mapped[date | None]
    scan: Mapped[bytes | None] = mapped_column(LargeBinary)
    reference: Mapped[uuid.UUID | None] = mapped_column(Uuid)


def create_invoices(engine: Engine, count: int) -> None:
    """Create the table with rows 1 to ``count``, of companies 0, 1, 2, 0, …; none is a message."""
    Base.metadata.create_all(engine)
    if count:
        rows = [{"company_id": n % 3, "title": f"no {n + 1}"} for n in range(count)]
        with engine.begin() as connection:
            connection.execute(insert(Invoice), rows)


def index_names(engine: Engine, table: str = "invoices") -> set[str | None]:
    """The indexes that a table has now, those of constraints left out."""
    found = {index["name"] for index in inspect(engine).get_indexes(table)}
    return {name for name in found if str(name).startswith("queue_")}


def lose_columns(engine: Engine, kept: int = 0) -> None:
    """Leave so many of the queue's columns, as if the user's migration had rebuilt the table."""
    on_table = " ON invoices" if engine.dialect.name in {"mariadb", "mysql"} else ""
    with engine.begin() as connection:
        for index in index_names(engine):
            connection.execute(text(f"DROP INDEX {index}{on_table}"))
        for name in ADDED_COLUMNS[kept:]:
            connection.execute(text(f"ALTER TABLE invoices DROP COLUMN {name}"))


def create_odd_table(engine: Engine) -> Table:
    """Create a table with a column of each odd name, for texts."""
    table = Table(
        "odd pct%s: table?",
        MetaData(),
        Column(ODD_KEY, Integer, primary_key=True),
        *[Column(name, String(20)) for name in ODD_NAMES],
    )
    table.create(engine)
    return table


def state(engine: Engine, queue: Queue, number: int) -> dict[str, Any]:
    """The added columns of one committed row, by their keys."""
    columns = queue.table.c
    wanted = [columns[key] for key in columns.keys() if key in STATE]  # noqa: SIM118
    with engine.connect() as connection:
        row = connection.execute(select(*wanted).where(columns.id == number)).one()
    return dict(zip([column.key for column in wanted], row, strict=True))


STATE = (
    "status",
    "available_at",
    "attempt_count",
    "consumer_id",
    "consumer_round",
    "lease_expires_at",
    "last_attempt_at",
    "last_error",
    "finished_at",
    "outcome",
)


def statuses(engine: Engine, queue: Queue) -> dict[int, str | None]:
    """The status of every row, by primary key."""
    columns = queue.table.c
    with engine.connect() as connection:
        return {row[0]: row[1] for row in connection.execute(select(columns.id, columns.status))}


def own_row(message: Message) -> dict[str, Any]:
    """The row of a message that must have one."""
    assert message.row is not None
    return dict(message.row)
