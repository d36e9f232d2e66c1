"""Rows as messages: inserted by a publish, or enqueued in place."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table, and_, func, inspect, or_, select
from sqlalchemy.orm import Session

from queue_over_sql import (
    AdoptedQueue,
    DatabaseRefused,
    PayloadInvalid,
    Publication,
    PublishOutcome,
)
from tests.contract.existing_tables.users_tables import (
    DAY,
    LONG_AGO,
    ODD_KEY,
    ODD_NAMES,
    REFERENCE,
    Invoice,
    create_invoices,
    create_odd_table,
    own_row,
    statuses,
)
from tests.contract.queue_state import ARGUMENT_ERRORS, ids
from tests.refusals import refused

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import QueueService
    from queue_over_sql.testing.plugin import MakeService


@pytest.fixture
def billing(service: QueueService, engine: Engine) -> AdoptedQueue:
    """An existing table of six rows, none of them a message."""
    create_invoices(engine, 6)
    return service.adopt_queue("billing", Invoice, priorities=2)


def rows_of(engine: Engine) -> int:
    """How many rows the table has."""
    with engine.connect() as connection:
        return int(connection.execute(select(func.count(Invoice.number))).scalar_one())


EVERYTHING = {
    "number": 70,
    "company_id": 7,
    "title": "žuto",
    "total": Decimal("12.34"),
    "ratio": 0.5,
    "paid": True,
    "issued_at": DAY,
    "due_on": date(2026, 3, 4),
    "scan": b"\x00\xff",
    "reference": REFERENCE,
}


@pytest.mark.threads("Python computes it")
def test_a_default_may_look_at_other_values(service: QueueService, engine: Engine) -> None:
    """By the context that SQLAlchemy gives to such defaults."""

    def twice(context: Any) -> int:
        return 2 * int(context.get_current_parameters()["total"])

    metadata = MetaData()
    columns = Column("number", Integer, primary_key=True), Column("total", Integer)
    table = Table("orders", metadata, *columns, Column("twice", Integer, default=twice))
    metadata.create_all(engine)
    orders = service.adopt_queue("orders", table)
    orders.publish({"total": 3})
    [message] = orders.consume()
    assert {"number": 1, "total": 3, "twice": 6} == dict(message.payload)


def test_values_of_every_type_come_back(billing: AdoptedQueue) -> None:
    """Claimed, listed, and from the archive, typed as the user's model says."""
    published = billing.publish(EVERYTHING)
    assert 70 == published.id
    assert PublishOutcome.CREATED == published.outcome
    (message,) = billing.consume()
    (listed,) = billing.messages().list()
    message.ack()
    (finished,) = billing.archive.messages().list()
    for found in (message, listed, finished):
        assert EVERYTHING == own_row(found)
        assert {name: type(value) for name, value in EVERYTHING.items()} == {
            name: type(value) for name, value in own_row(found).items()
        }


@pytest.mark.engines("sqlite")
def test_the_row_is_the_payload_and_read_only(billing: AdoptedQueue) -> None:
    """``message.row`` and ``message.payload`` are one mapping that cannot be changed."""
    billing.publish({"company_id": 1})
    (message,) = billing.consume()
    writable: Any = message.payload
    with pytest.raises(TypeError):
        writable["company_id"] = 2
    assert message.row is message.payload
    assert {} == dict(message.columns)
    assert message.key is None
    assert message.kind is None


def test_omitted_columns_take_their_defaults(
    billing: AdoptedQueue, make_service: MakeService
) -> None:
    """The database's own, those of the user's model, and NULL."""
    billing.publish({"company_id": 1})
    (message,) = billing.consume()
    row = own_row(message)
    assert Decimal("9.50") == row["total"]
    assert row["paid"] is False
    assert row["title"] is None
    assert row["number"] == message.id
    assert message.id > 6
    reflected = make_service().queue("billing")
    with pytest.raises(TypeError, match="paid"):
        reflected.publish({"company_id": 1})
    assert reflected.publish({"company_id": 1, "paid": False}).id > message.id


@pytest.mark.default_on("sqlite", "postgresql")
def test_options_of_a_publication(billing: AdoptedQueue) -> None:
    """Headers, level, delay, instant, attempts and lease, as in any queue."""
    billing.publish({"company_id": 1}, headers={"trace": "x"}, priority=1, max_attempts=9, lease=7)
    later = billing.publish({"company_id": 2}, delay=60)
    past = billing.publish({"company_id": 3}, at=LONG_AGO)
    first, second = billing.consume(9)
    assert [past.id, {"trace": "x"}] == [first.id, second.headers]
    assert LONG_AGO == first.scheduled_at
    assert LONG_AGO == first.available_at
    assert 1 == second.priority
    assert 9 == second.max_attempts
    assert second.claimed_at is not None
    assert second.lease_expires_at == second.claimed_at + timedelta(seconds=7)
    (waiting,) = billing.messages(status="delayed").list()
    assert later.id == waiting.id


def test_many_rows_are_all_or_none(billing: AdoptedQueue, engine: Engine) -> None:
    """In order; one that the table refuses takes back the others."""
    many = [Publication({"company_id": n, "title": f"new {n}"}, priority=n % 2) for n in range(3)]
    published = billing.publish_many([*many, {"company_id": 3}])
    expected = [published[index].id for index in (0, 2, 3, 1)]
    assert expected == ids(billing.consume(9))
    with pytest.raises(DatabaseRefused) as refused:
        billing.publish_many([{"company_id": 1}, {"company_id": 2, "title": "new 1"}])
    assert refused.value.__cause__ is not None
    assert 10 == rows_of(engine)


@pytest.mark.engines("sqlite")
def test_load_reports_progress(billing: AdoptedQueue, engine: Engine) -> None:
    """The batches before the one that fails are there, nothing of that one."""
    progress: list[int] = []
    rows = ({"company_id": n} for n in range(5))
    assert 5 == billing.load(rows, batch_size=2, progress=progress.append)
    assert [2, 4, 5] == progress
    assert 5 == billing.stats().ready
    bad: list[dict[str, Any]] = [
        {"company_id": 1},
        {"company_id": 1},
        {"company_id": 1},
        {"company_id": 1, "title": "no 1"},
    ]
    with pytest.raises(DatabaseRefused):
        billing.load(bad, batch_size=2)
    assert 13 == rows_of(engine)


def test_published_in_the_callers_transaction(billing: AdoptedQueue, engine: Engine) -> None:
    """There when it commits, never when it rolls back; a connection and a session will do."""
    with engine.connect() as caller:
        billing.publish({"company_id": 1}, connection=caller)
        billing.publish_many([{"company_id": 1}] * 2, connection=caller)
        billing.enqueue(Invoice.number == 1, connection=caller)
        caller.rollback()
    assert 0 == billing.stats().ready
    with Session(engine) as session:
        published = billing.publish({"company_id": 1}, connection=session)
        assert 2 == billing.enqueue(Invoice.number < 3, connection=session)
        session.commit()
    assert {1, 2, published.id} == set(ids(billing.consume(9)))


NO_ROWS: list[tuple[Any, dict[str, Any]]] = [
    ({"company_id": 1, "colour": "red"}, {}),
    ({"title": "x"}, {}),
    ({"company_id": None}, {}),
    ({"company_id": 1, "status": "SUCCESS"}, {}),
    ({"company_id": 1}, {"priority": 2}),
    ({"company_id": 1}, {"delay": 1, "at": LONG_AGO}),
    ({"company_id": 1}, {"key": "k"}),
    ({"company_id": 1}, {"kind": "k"}),
    ({"company_id": 1}, {"group": "a"}),
    ({"company_id": 1}, {"expires": 60}),
    ({"company_id": 1}, {"on_conflict": "skip"}),
    ({"company_id": 1}, {"title": "x"}),
    ({"company_id": 1}, {"max_attempts": 0}),
    (5, {}),
    ("company_id", {}),
]
SENSELESS: list[dict[str, Any]] = [
    {"priority": 2},
    {"delay": -1},
    {"delay": 1, "at": LONG_AGO},
    {"at": DAY},
    {"where": "number = 1"},
]


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python refuses it")
def test_what_makes_no_message_is_refused(billing: AdoptedQueue, engine: Engine) -> None:
    """Published or enqueued: before anything is written."""
    for payload, options in NO_ROWS:
        with refused((payload, options), *ARGUMENT_ERRORS, PayloadInvalid):
            billing.publish(payload, **options)
    for arguments in SENSELESS:
        with refused(arguments, *ARGUMENT_ERRORS):
            billing.enqueue(**arguments)
    assert 6 == rows_of(engine)
    assert 0 == billing.stats().ready


def test_enqueue_takes_rows_that_never_were(billing: AdoptedQueue, engine: Engine) -> None:
    """Not those that are messages now or have been; with a condition only of those that match."""
    assert 2 == billing.enqueue(or_(Invoice.number == 1, Invoice.number == 2))
    first, second = billing.consume(2)
    first.ack()
    second.reject("no")
    assert 1 == billing.enqueue(and_(Invoice.company_id == 2, Invoice.number < 4), delay=60)
    assert 3 == billing.enqueue()
    assert 0 == billing.enqueue()
    assert {1: "SUCCESS", 2: "ERROR", **dict.fromkeys(range(3, 7), "NOT_ATTEMPTED")} == statuses(
        engine, billing
    )
    assert 3 == billing.stats().ready
    assert 1 == billing.stats().delayed


@pytest.mark.default_on("sqlite", "postgresql")
def test_enqueue_says_when_and_how_urgently(billing: AdoptedQueue) -> None:
    """A delay, an instant and a level."""
    billing.enqueue(Invoice.number == 5, at=LONG_AGO)
    billing.enqueue(Invoice.number == 6, priority=1)
    billing.enqueue(Invoice.number == 4)
    messages = billing.consume(9)
    assert [5, 4, 6] == ids(messages)
    assert LONG_AGO == messages[0].scheduled_at
    assert datetime.now(UTC) - messages[1].published_at < timedelta(minutes=5)


def test_names_like_ours_are_the_users_own(service: QueueService, engine: Engine) -> None:
    """With a prefix a table may have columns that are called as ours are, the key included."""
    table = Table(
        "orders",
        MetaData(),
        Column("order_id", Integer, primary_key=True),
        *[Column(name, String(20)) for name in ("id", "status", "payload", "kind", "outcome")],
        Column("row_status", Integer),
        Column("available_at", Integer),
    )
    table.create(engine)
    queue = service.adopt_queue("orders", table, column_prefix="q_")
    row = {
        "order_id": 5,
        "id": "a",
        "status": "open",
        "payload": "p",
        "kind": "k",
        "outcome": "o",
        "row_status": 3,
        "available_at": 9,
    }
    assert 5 == queue.publish(row).id
    assert [] == queue.consume(where=table.c.available_at == 8)
    (message,) = queue.consume(where=and_(table.c.status == "open", table.c.id == "a"))
    assert row == own_row(message)
    message.ack()
    (finished,) = queue.archive.messages(where=table.c.outcome == "o").list()
    assert row == own_row(finished)
    assert "done" == finished.outcome


def test_any_name_of_a_column_will_do(make_service: MakeService, engine: Engine) -> None:
    """Whatever an owner calls a column or a table, each value goes where it belongs, and back."""
    table = create_odd_table(engine)
    queue = make_service().adopt_queue("orders", table, column_prefix="q_")
    by_name = make_service().adopt_queue("orders", table.name, column_prefix="q_")
    rows: list[dict[str, Any]] = [
        {ODD_KEY: n, **{name: f"{n} {number}" for number, name in enumerate(ODD_NAMES)}}
        for n in range(1, 5)
    ]
    queue.publish(rows[0])
    by_name.publish_many([Publication(rows[1], headers={"a": 1}), {**rows[2]}])
    assert 1 == queue.load([rows[3]])
    for found in (queue.messages().list(), by_name.messages().list()):
        assert rows == [own_row(message) for message in found]
    for name in ODD_NAMES:
        column = table.c[name]
        wanted = and_(column == rows[1][name], table.c[ODD_KEY].in_([1, 2]))
        for selection in (queue.messages(where=wanted), by_name.messages(where=wanted)):
            assert [2] == ids(selection.list()), name
            assert 1 == selection.count(), name
            assert 1 == int(selection.hold()), name
            assert 1 == int(selection.unhold()), name
    # Names that look alike to a driver, in one condition.
    alike = and_(*[table.c[name] == rows[1][name] for name in ODD_NAMES])
    assert [2] == ids(queue.messages(where=alike).list())
    assert [2] == ids(queue.consume(9, where=alike))
    messages = by_name.consume(9)
    assert [rows[0], rows[2], rows[3]] == [own_row(message) for message in messages]
    by_name.ack(messages)
    for name in ODD_NAMES:
        finished = queue.archive.messages(where=table.c[name] == rows[2][name])
        assert [rows[2]] == [own_row(message) for message in finished.list()], name
    assert 1 == queue.archive.messages(where=table.c["?"] == rows[2]["?"]).requeue()
    assert 1 == queue.archive.messages(where=table.c["%s"] == rows[0]["%s"]).remove()
    assert 1 == queue.enqueue(and_(*[table.c[name] == rows[0][name] for name in ODD_NAMES]))
    assert [rows[2], rows[0]] == [own_row(message) for message in queue.consume(9)]
    assert make_service().drop_queue("orders")
    assert {ODD_KEY, *ODD_NAMES} == {
        column["name"] for column in inspect(engine).get_columns(table.name)
    }
