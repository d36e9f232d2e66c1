"""A queue's own columns: domain data beside the payload."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Boolean, Column, Float, Integer, String

from queue_over_sql import Publication, QueueError, QueueSchemaMismatch
from tests.contract.looking import ARGUMENT_ERRORS, archived, payloads
from tests.contract.refusing import refused

if TYPE_CHECKING:
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
    tenants.publish("a", tenant=7, region="north")
    tenants.publish_many([Publication("b", columns={"tenant": 8}), "c"])
    assert [dict(message.columns) for message in tenants.consume(3)] == [
        {"tenant": 7, "region": "north"},
        {"tenant": 8, "region": None},
        {"tenant": None, "region": None},
    ]


def test_own_columns_choose_messages(tenants: Queue) -> None:
    """They are columns of the table, for where; the bulk path stores them too."""
    tenants.load([Publication(n, columns={"tenant": n % 2}) for n in range(4)])
    assert payloads(tenants.consume(5, where=tenants.table.c.tenant == 1)) == [1, 3]


def test_another_service_knows_the_columns(make_service: MakeService) -> None:
    """A server that only opens the queue reads and writes them."""
    make_service().create_queue("tenants", columns=own_columns())
    queue = make_service().queue("tenants")
    queue.publish("x", region="south")
    (message,) = queue.consume()
    assert dict(message.columns) == {"tenant": None, "region": "south"}


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


def test_the_archive_keeps_own_columns(tenants: Queue) -> None:
    """A dead letter has the same facts as the live message."""
    tenants.publish("x", tenant=7)
    tenants.consume()[0].reject("bad")
    (dead,) = archived(tenants)
    assert dict(dead.columns) == {"tenant": 7, "region": None}


@in_python
@pytest.mark.engines("sqlite")
def test_unknown_columns_are_refused(tenants: Queue) -> None:
    """A column that the queue does not have is the caller's mistake."""
    with pytest.raises(ARGUMENT_ERRORS):
        tenants.publish("x", country="none")
    with pytest.raises(ARGUMENT_ERRORS):
        tenants.publish_many([Publication("x", columns={"country": "none"})])
    assert tenants.stats().ready == 0


def test_another_column_set_is_a_mismatch(make_service: MakeService) -> None:
    """Creating again with the same columns is fine, with others refused."""
    make_service().create_queue("tenants", columns=own_columns())
    make_service().create_queue("tenants", columns=own_columns())
    create = make_service().create_queue
    assert refused(QueueSchemaMismatch, create, "tenants", columns=[])
    assert refused(QueueSchemaMismatch, create, "tenants", columns=[Column("tenant", Integer)])


@in_python
@pytest.mark.engines("sqlite")
def test_an_impossible_column_is_refused(service: QueueService) -> None:
    """It cannot take the place of a documented one, nor be a key, which nobody would notice."""
    create = partial(service.create_queue, "tenants")
    errors = (*ARGUMENT_ERRORS, QueueError)
    for name in ("id", "payload", "consumer_id"):
        assert refused(errors, create, columns=[Column(name, Integer)]), name
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
