"""Rows of a user's table in groups, which one of the user's own columns names."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import (
    Column,
    DateTime,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    Uuid,
    insert,
    inspect,
    select,
    text,
    update,
)

from queue_over_sql import FixedDelay, QueueSchemaMismatch, Reason, Status
from queue_over_sql.observability import Level, diagnose
from tests.contract.existing_tables.users_tables import own_row, statuses
from tests.contract.queue_state import ids
from tests.waiting import consume_exactly, eventually

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Engine

    from queue_over_sql import AdoptedQueue, Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService

ORDERS = Table(
    "orders",
    MetaData(),
    Column("number", Integer, primary_key=True),
    Column("customer", String(50)),
    Column("company", Integer),
    Column("reference", Uuid),
    Column("note", Text),
    Column("placed_at", DateTime),
)
COMPUTED = {"parked_at", "blocks", "group_key"}


def create_orders(engine: Engine, customers: Sequence[str | None] = ()) -> None:
    """A table with one order of each of these customers."""
    ORDERS.create(engine)
    if customers:
        with engine.begin() as connection:
            connection.execute(insert(ORDERS), [{"customer": name} for name in customers])


def columns(engine: Engine) -> set[str]:
    """The columns that the table has now."""
    return {column["name"] for column in inspect(engine).get_columns("orders")}


def parked(engine: Engine, queue: Queue) -> list[int]:
    """The rows that wait out of the claim index."""
    c = queue.table.c
    with engine.connect() as connection:
        return [*connection.execute(select(c.id).where(c.parked_at.is_not(None))).scalars()]


def park_all(engine: Engine, queue: Queue, ids: Sequence[int]) -> None:
    """Claim so often that what is blocked is parked: these rows."""

    def look() -> bool:
        assert [] == queue.consume(10)
        return parked(engine, queue) == ids

    eventually(look, f"{ids} are parked")


def test_rows_of_a_group_run_one_after_the_other(make_service: MakeService, engine: Engine) -> None:
    """In the order of the primary key; names differ by bytes; finished rows hold nobody up."""
    create_orders(engine, ["a", "b", "a", "A", None, "a ", "a"])
    orders = make_service().adopt_queue("orders", ORDERS, group="customer", retry=FixedDelay(0))
    other: Any = make_service().queue("orders")
    assert 7 == orders.enqueue()
    [first] = orders.consume()
    assert (1, "a") == (first.id, first.group)
    rest = other.consume(10)
    assert {(2, "b"), (4, "A"), (5, None), (6, "a ")} == {(each.id, each.group) for each in rest}
    park_all(engine, other, [3, 7])
    assert 2 == orders.stats().ready
    for message in rest:
        message.ack()
    first.nack("again")
    [again] = consume_exactly(other, 1)
    assert 1 == again.id
    assert {"number", "customer", "company", "reference", "note", "placed_at"} == set(
        own_row(again)
    )
    again.ack()
    assert {
        **dict.fromkeys((1, 2, 4, 5, 6), "SUCCESS"),
        3: "NOT_ATTEMPTED",
        7: "NOT_ATTEMPTED",
    } == (statuses(engine, orders))
    finished = orders.archive.messages(where=orders.archive.table.c.id == 1).first()
    assert finished is not None
    assert "a" == finished.group
    # The group has finished rows now, and the next ones are found all the same.
    behind = other.consume(10)
    assert [3, 7] == ids(behind)
    for message in behind:
        message.ack()
    assert 5 == orders.archive.messages(where=orders.archive.table.c.id < 6).requeue()
    assert {1, 2, 3, 4, 5} == set(ids(other.consume(10)))


@pytest.mark.driver_decides
def test_a_parked_row_is_a_live_message(service: QueueService, engine: Engine) -> None:
    """Also one that its owner enqueued by SQL, after it had finished: it is never lost."""
    create_orders(engine, ["a"] * 4)
    orders = service.adopt_queue("orders", ORDERS, group="customer")
    c = orders.table.c
    orders.enqueue(ORDERS.c.number == 4)
    [done] = orders.consume()
    done.ack()
    with engine.begin() as connection:
        connection.execute(update(orders.table).values(available_at=0))
    [first] = consume_exactly(orders, 1)
    assert 1 == first.id
    park_all(engine, orders, [2, 3, 4])
    assert (3, 1, 0) == (orders.stats().ready, orders.stats().claimed, orders.stats().done)
    assert 0 == orders.count_new()
    assert 0 == orders.enqueue()
    assert [2, 3, 4] == [each.id for each in orders.messages(status=Status.READY).list()]
    assert Reason.GROUP_HEAD is orders.why(4).reason
    assert 1 == orders.messages(where=c.id == 3).hold()
    first.ack()
    [second] = orders.consume()
    assert 2 == second.id
    second.ack()
    park_all(engine, orders, [4])
    assert 1 == orders.messages(where=c.id == 3).unhold()
    assert [3, 4] == [message.id for _ in range(2) for message in _acked(orders)]
    assert [] == orders.consume()


@pytest.mark.driver_decides
def test_a_parked_row_that_was_cancelled_is_over(service: QueueService, engine: Engine) -> None:
    """The end of the one before it brings only the next one."""
    create_orders(engine, ["a"] * 3)
    orders = service.adopt_queue("orders", ORDERS, group="customer")
    orders.enqueue()
    [first] = consume_exactly(orders, 1)
    park_all(engine, orders, [2, 3])
    assert orders.cancel(2, "no")
    assert [2] == [each.id for each in orders.archive.messages().list()]
    first.ack()
    assert [3] == [message.id for message in _acked(orders)]
    assert [] == orders.consume()


def _acked(queue: Queue) -> list[Any]:
    found = consume_exactly(queue, 1)
    for message in found:
        message.ack()
    return found


@pytest.mark.parametrize("column", ["company", "reference", "note"])
def test_groups_of_other_types(make_service: MakeService, engine: Engine, column: str) -> None:
    """Whole numbers, UUIDs and long texts name groups, by what is their text."""
    create_orders(engine)
    one, two = {
        "company": (17, -18),
        "reference": (uuid.UUID(int=17), uuid.UUID(int=18)),
        "note": ("ä" * 300, "b"),
    }[column]
    orders = make_service().adopt_queue("orders", ORDERS, group=column)
    assert 4 == len(orders.publish_many([{column: value} for value in (one, two, one, None)]))
    other: Any = make_service().queue("orders")
    found = orders.consume(1)
    assert [1] == ids(found)
    assert {2, 4} == set(ids(other.consume(10)))
    name = found[0].group
    assert name is not None
    assert ({"company": "17", "note": "ä" * 200}.get(column) or name) == name
    assert one == own_row(found[0])[column]
    assert (1, 1) == (orders.groups[name].info().claimed, orders.groups[name].info().waiting)
    orders.groups[name].configure(limit=2)
    assert [3] == ids(other.consume(10))


@pytest.mark.driver_decides
def test_a_dead_row_blocks_its_group(service: QueueService, engine: Engine) -> None:
    """Until it is requeued, in place: then it is the first of its group again."""
    create_orders(engine, ["a", "a"])
    orders = service.adopt_queue(
        "orders", ORDERS, group="customer", max_attempts=1, block_on_failure=True
    )
    orders.enqueue()
    [first] = orders.consume()
    first.nack("no")
    park_all(engine, orders, [2])
    assert 1 == orders.groups["a"].info().blocked_by
    assert 1 == orders.archive.messages().requeue()
    assert None is orders.groups["a"].info().blocked_by
    assert [1, 2] == [each.id for _ in range(2) for each in _acked(orders)]


@pytest.mark.driver_decides
def test_a_limit_without_order(make_service: MakeService, engine: Engine) -> None:
    """The settings of groups are those of any queue, and change while it runs."""
    create_orders(engine, ["a"] * 6)
    orders = make_service().adopt_queue(
        "orders", ORDERS, group="customer", group_limit=2, group_order="any"
    )
    orders.enqueue()
    held = orders.consume(10)
    assert [1, 2] == ids(held)
    park_all(engine, orders, [3, 4, 5, 6])
    other = make_service()
    other.adopt_queue("orders", ORDERS, group="customer", group_limit=3)
    [third] = consume_exactly(other.queue("orders"), 1)
    held[0].ack()
    assert 1 == len(consume_exactly(other.queue("orders"), 1))
    with engine.begin() as connection:
        assert [] == orders.take(10, connection=connection)
    held[1].ack()
    with engine.begin() as connection:
        assert 1 == len(orders.take(10, connection=connection))
    third.ack()


@pytest.mark.driver_decides
def test_rates_and_limits(make_service: MakeService, engine: Engine) -> None:
    """Those of groups and of the whole queue hold as in any queue, and change while it runs."""
    create_orders(engine, ["a"] * 4 + ["b"] * 4)
    service, changing = make_service(), make_service()
    rules: dict[str, Any] = {"group": "customer", "group_rate": "1/h burst 2", "queue_limit": 3}
    orders = service.adopt_queue("orders", ORDERS, **rules)
    orders.enqueue()
    hand = orders.consume(10)
    assert [1, 2, 5] == ids(hand)
    assert [] == orders.consume(10)
    hand[0].ack()
    assert [6] == ids(orders.consume(10))
    assert [] == orders.consume(10)
    orders.ack([hand[1], hand[2]])
    assert Reason.GROUP_RATE is orders.why(3).reason
    changing.adopt_queue("orders", ORDERS, **rules | {"group_rate": None})
    with engine.begin() as connection:
        assert 2 == len(orders.take(10, connection=connection))
        assert [] == orders.take(10, connection=connection)
    changing.adopt_queue("orders", ORDERS, group="customer", queue_limit=None, queue_rate="1/h")
    assert 1 == len(orders.consume(10))
    assert [] == orders.consume(10)
    changing.adopt_queue("orders", ORDERS, group="customer", queue_rate=None)
    assert 1 == len(orders.consume(10))
    assert service.drop_queue("orders")
    assert not inspect(engine).has_table("queue_orders_limits")


@pytest.mark.driver_decides
def test_fair_shares(service: QueueService, engine: Engine) -> None:
    """A group with few rows need not wait for all rows of a large one."""
    create_orders(engine, ["a"] * 30 + ["b", "b"])
    orders = service.adopt_queue("orders", ORDERS, group="customer", group_fair=True)
    orders.enqueue()
    found = orders.consume(4)
    assert ["a", "a", "b", "b"] == sorted(str(each.group) for each in found)
    orders.ack(found)
    assert 28 == len(orders.consume(40))


@pytest.mark.driver_decides
def test_the_reaper_mends_what_an_owner_deleted(service: QueueService, engine: Engine) -> None:
    """A deleted first row holds up its group only until the reaper has looked, and it says so."""
    create_orders(engine, ["a", "a", "b", "b"])
    orders = service.adopt_queue("orders", ORDERS, group="customer")
    orders.enqueue()
    assert [1, 3] == sorted(each.id for _ in range(2) for each in orders.consume(1))
    park_all(engine, orders, [2, 4])
    with engine.begin() as connection:
        connection.execute(ORDERS.delete().where(ORDERS.c.number.in_([1, 3])))
    report = service.reap()
    assert 2 == report.repaired
    assert {2, 4} == set(ids(orders.consume(10)))


@pytest.mark.threads("the doctor uses none")
def test_what_was_cut_off_is_completed_and_dropped(
    make_service: MakeService, engine: Engine
) -> None:
    """The next adoption adds what lacks; a drop leaves the table as it was."""
    create_orders(engine, ["a"])
    before = columns(engine)
    service = make_service()
    queue = service.adopt_queue("orders", ORDERS, column_prefix="q_", group="customer")
    assert {f"q_{name}" for name in COMPUTED} <= columns(engine)
    groups = "queue_orders_groups"
    assert inspect(engine).has_table(groups)
    with engine.begin() as connection:
        connection.execute(text(f"DROP TABLE {groups}"))
    again = make_service()
    queue = again.adopt_queue("orders", ORDERS, column_prefix="q_", group="customer")
    assert 1 == queue.enqueue()
    assert "a" == queue.consume()[0].group
    beside = again.adopt_queue("beside", ORDERS, group="company")
    third = again.adopt_queue("third", ORDERS, column_prefix="t_", group="customer")
    for queue in (beside, third):
        queue.publish({"company": 7, "customer": "c"})
    assert ["7", "c"] == [queue.consume()[0].group for queue in (beside, third)]
    for name in ("beside", "third"):
        assert again.drop_queue(name)
    found = [each for each in diagnose(again) if each.about in {"tables", "indexes"}]
    assert {Level.OK} == {each.level for each in found}
    assert again.drop_queue("orders")
    assert before == columns(engine)
    assert not inspect(engine).has_table(groups)


def test_what_cannot_name_groups_is_refused(make_service: MakeService, engine: Engine) -> None:
    """The text says what can, and nothing was changed."""
    create_orders(engine)
    service = make_service()
    before = columns(engine)

    def adopt(**options: Any) -> AdoptedQueue:
        return service.adopt_queue("orders", ORDERS, **options)

    with pytest.raises(QueueSchemaMismatch, match="no column 'client', which group= names"):
        adopt(group="client")
    with pytest.raises(QueueSchemaMismatch, match="cannot name groups, because its type is"):
        adopt(group="placed_at")
    with pytest.raises(TypeError, match="group must be the name of a column"):
        adopt(group=7)
    with pytest.raises(
        ValueError, match="name the column with the groups of queue 'orders' with group="
    ):
        adopt(group_limit=3)
    with pytest.raises(ValueError, match="group_limit must be a number, because group='customer'"):
        adopt(group="customer", group_limit=None)
    assert before == columns(engine)
    orders = adopt(group="customer")
    with pytest.raises(
        QueueSchemaMismatch, match=r"already uses the table 'orders'.* and group='customer'"
    ):
        adopt(group="company")
    with pytest.raises(QueueSchemaMismatch, match="with the same column_prefix"):
        service.adopt_queue("other", ORDERS, group="company")
    with pytest.raises(QueueSchemaMismatch, match="cannot be turned on or off by group_limit"):
        service.create_queue("orders", group_limit=None)
    with pytest.raises(QueueSchemaMismatch, match="does not accept when_full"):
        service.create_queue("orders", when_full="reject")
    with pytest.raises(ValueError, match=r"group is not possible.*put it into the payload"):
        orders.publish({"customer": "a"}, group="a")
    with pytest.raises(TypeError, match="has no column group_key"):
        orders.publish({"group_key": "a"})
    plain = service.adopt_queue("plain", ORDERS, column_prefix="p_")
    with pytest.raises(QueueSchemaMismatch, match="cannot be turned on or off by group_limit"):
        service.create_queue("plain", group_limit=2)
    orders.publish({"customer": "a"})
    assert "a" == orders.consume()[0].group
    assert [] == plain.consume()


@pytest.mark.default_on("sqlite")
def test_a_column_called_group_key_stands_in_the_way(service: QueueService, engine: Engine) -> None:
    """Where messages are read, that is the name of the group."""
    table = Table(
        "orders",
        MetaData(),
        Column("number", Integer, primary_key=True),
        Column("group_key", String(20)),
    )
    table.create(engine)
    for prefix in ("", "q_"):
        with pytest.raises(QueueSchemaMismatch, match="Rename the column"):
            service.adopt_queue("orders", table, column_prefix=prefix, group="group_key")
    service.adopt_queue("orders", table, column_prefix="q_").publish({"group_key": "a"})
