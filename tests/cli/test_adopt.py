"""The command `adopt`: turn an existing table into a queue from the command line alone."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

import pytest
from sqlalchemy import (
    Column,
    DateTime,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    String,
    Table,
    create_engine,
    insert,
    inspect,
)

from queue_over_sql import QueueService
from queue_over_sql.testing.plugin import TestDatabase
from tests.cli.command_line import run, succeed

# What the library does with each engine's tables, tests/contract/existing_tables tells.
pytestmark = pytest.mark.default_on("sqlite", "postgresql")

orders = Table(
    "orders",
    MetaData(),
    Column("number", Integer, primary_key=True),
    Column("customer", String(50), nullable=False),
    Column("total", Numeric(10, 2)),
    Column("placed_at", DateTime),
    Column("scan", LargeBinary),
)


def create_orders(url: str, count: int) -> None:
    """A table of orders, of customers c0, c1, c2, c0 and so on."""
    engine = create_engine(url)
    orders.metadata.create_all(engine)
    placed = datetime(2026, 1, 2, 3, 4, 5)  # noqa: DTZ001 - a plain column holds it
    rows = [
        {"customer": f"c{n % 3}", "total": Decimal("1.50"), "placed_at": placed, "scan": b"\0\1"}
        for n in range(count)
    ]
    if rows:
        with engine.begin() as connection:
            connection.execute(insert(orders), rows)
    engine.dispose()


def columns(url: str) -> set[str]:
    """The columns that the table has now."""
    engine = create_engine(url)
    try:
        return {column["name"] for column in inspect(engine).get_columns("orders")}
    finally:
        engine.dispose()


def test_adopt_enqueue_consume_drop(database: TestDatabase) -> None:
    """The life of an existing table as a queue, by commands alone, on every engine."""
    create_orders(database.url, 4)
    before = columns(database.url)
    adopted = succeed("adopt", "billing", "orders", "--max-attempts", "3", url=database.url)
    assert "Queue billing uses the table orders.\n" == adopted.out
    again = succeed("adopt", "billing", "orders", "--enqueue", "--json", url=database.url)
    assert 4 == again.record["enqueued"]
    assert 3 == again.record["max_attempts"]
    consumed = succeed("consume", "billing", "--count", "1", "--json", url=database.url).record
    assert 1 == consumed["id"]
    assert 1 == consumed["payload"]["number"]
    assert "1.50" == consumed["payload"]["total"]
    assert "2026-01-02T03:04:05" == consumed["payload"]["placed_at"]
    assert "AAE=" == consumed["payload"]["scan"]
    peeked = succeed("peek", "billing", "--json", url=database.url).records
    assert [2, 3, 4] == [message["payload"]["number"] for message in peeked]
    finished = succeed("peek", "billing", "--archive", "--json", url=database.url).record
    assert 1 == finished["id"]
    assert "done" == finished["outcome"]
    succeed("drop", "billing", "--yes", url=database.url)
    assert before == columns(database.url)


def test_where_is_any_condition_of_sql(sqlite_url: str) -> None:
    """Colons and quotes are the condition's own; rows that are messages stay as they are."""
    create_orders(sqlite_url, 6)
    where = "customer = 'c1' AND strftime('%H:%M', placed_at) = '03:04' AND 'a :b' = 'a :b'"
    first = succeed("adopt", "billing", "orders", "--where", where, "--json", url=sqlite_url)
    assert 2 == first.record["enqueued"]
    rest = succeed("adopt", "billing", "orders", "--enqueue", url=sqlite_url)
    assert "Enqueued 4 rows" in rest.out


def test_many_rows_are_enqueued_in_batches(sqlite_url: str) -> None:
    """More than one transaction's worth, each row once."""
    create_orders(sqlite_url, 12_001)
    where = "number <> 7"
    ended = succeed("adopt", "billing", "orders", "--where", where, "--json", url=sqlite_url)
    assert 12_000 == ended.record["enqueued"]
    assert 12_000 == succeed("stats", "billing", "--json", url=sqlite_url).record["ready"]


def test_rows_are_published_and_shown(sqlite_url: str) -> None:
    """A row is published as JSON; peek shows it in one line."""
    create_orders(sqlite_url, 0)
    succeed("adopt", "billing", "orders", url=sqlite_url)
    succeed("publish", "billing", '{"customer": "ada"}', url=sqlite_url)
    assert '"customer":"ada"' in succeed("peek", "billing", url=sqlite_url).out
    assert '"customer":"ada"' in succeed("consume", "billing", url=sqlite_url).out


def test_what_cannot_be_adopted_is_explained(sqlite_url: str) -> None:
    """The exit code tells wrong usage from what failed, the text says what is wrong."""
    create_orders(sqlite_url, 1)
    succeed("create", "jobs", url=sqlite_url)
    wrong = {
        ("billing", "missing"): (1, "no table 'missing'"),
        ("x" * 256, "orders"): (1, "255"),
        ("billing", "orders", "--column-prefix", "Q-"): (2, "--column-prefix"),
        ("billing", "orders", "--where", "colour = 1"): (1, "colour"),
        ("billing", "orders", "--priorities", "0"): (2, "--priorities"),
        ("jobs", "orders"): (1, "ordinary"),
    }
    for arguments, (exit_code, words) in wrong.items():
        ended = run("adopt", *arguments, url=sqlite_url)
        told = (ended.exit_code, ended.out, words in ended.err)
        assert (exit_code, "", True) == told, arguments


def test_a_failed_row_has_no_traceback_but_says_where_it_is(sqlite_url: str) -> None:
    """`show` names the log; other commands take the id of a row, too."""
    create_orders(sqlite_url, 1)
    succeed("adopt", "orders", "orders", "--enqueue", url=sqlite_url)
    with QueueService(sqlite_url) as service:
        service.queue("orders").consume()[0].nack(ValueError("no such customer"))
    shown = succeed("show", "orders", "1", url=sqlite_url)
    assert "ValueError: no such customer" in shown.out
    assert "see the log of the worker" in shown.err
    succeed("edit", "orders", "1", "--hold", "--yes", url=sqlite_url)
    succeed("cancel", "orders", "1", "--yes", url=sqlite_url)
    succeed("requeue", "orders", "1", "--yes", url=sqlite_url)
    assert 1 == succeed("stats", "orders", "--json", url=sqlite_url).record["ready"]
