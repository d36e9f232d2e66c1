"""A queue's own columns: domain data beside the payload."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Boolean, Column, Float, Integer, String

from queue_over_sql import Publication, QueueError, QueueSchemaMismatch
from tests.contract.looking import ARGUMENT_ERRORS, archived, payloads

if TYPE_CHECKING:
    from queue_over_sql import Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService


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


def test_load_takes_own_columns(tenants: Queue) -> None:
    """The bulk path stores them too."""
    tenants.load([Publication(n, columns={"tenant": n % 2}) for n in range(3)])
    assert [message.columns["tenant"] for message in tenants.consume(3)] == [0, 1, 0]


def test_own_columns_choose_messages(tenants: Queue) -> None:
    """They are columns of the table, for where."""
    tenants.load([Publication(n, columns={"tenant": n % 2}) for n in range(4)])
    assert payloads(tenants.consume(5, where=tenants.table.c.tenant == 1)) == [1, 3]


def test_another_service_knows_the_columns(make_service: MakeService) -> None:
    """A server that only opens the queue reads and writes them."""
    make_service().create_queue("tenants", columns=own_columns())
    queue = make_service().queue("tenants")
    queue.publish("x", region="south")
    (message,) = queue.consume()
    assert dict(message.columns) == {"tenant": None, "region": "south"}


def test_the_archive_keeps_own_columns(tenants: Queue) -> None:
    """A dead letter has the same facts as the live message."""
    tenants.publish("x", tenant=7)
    tenants.consume()[0].reject("bad")
    (dead,) = archived(tenants)
    assert dict(dead.columns) == {"tenant": 7, "region": None}


def test_unknown_columns_are_refused(tenants: Queue) -> None:
    """A column that the queue does not have is the caller's mistake."""
    with pytest.raises(ARGUMENT_ERRORS):
        tenants.publish("x", country="none")
    with pytest.raises(ARGUMENT_ERRORS):
        tenants.publish_many([Publication("x", columns={"country": "none"})])
    assert tenants.stats().ready == 0


@pytest.mark.parametrize("columns", [[], [Column("tenant", Integer)]], ids=["none", "fewer"])
def test_another_column_set_is_a_mismatch(
    make_service: MakeService, columns: list[Column[int]]
) -> None:
    """Creating again with the same columns is fine, with others refused."""
    make_service().create_queue("tenants", columns=own_columns())
    make_service().create_queue("tenants", columns=own_columns())
    with pytest.raises(QueueSchemaMismatch):
        make_service().create_queue("tenants", columns=columns)


@pytest.mark.parametrize("name", ["id", "payload", "consumer_id"])
def test_columns_named_like_the_contracts_are_refused(service: QueueService, name: str) -> None:
    """A queue's own column cannot take the place of a documented one."""
    with pytest.raises((*ARGUMENT_ERRORS, QueueError)):
        service.create_queue("tenants", columns=[Column(name, Integer)])
    assert service.queues() == []


@pytest.mark.parametrize("key", [{"unique": True}, {"primary_key": True}])
def test_a_column_that_is_a_key_is_refused(service: QueueService, key: dict[str, Any]) -> None:
    """It would not be one in the queue's table, which nobody would notice."""
    with pytest.raises(ValueError, match="tenant"):
        service.create_queue("jobs", columns=[Column("tenant", Integer, **key)])
    assert [] == service.queues()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (Integer, "abc"),
        (Integer, 1.5),
        (Integer, True),
        (Integer, 10**30),
        (Boolean, 2),
        (Float, "1"),
        (String(5), "123456"),
        (String(5), 5),
    ],
)
def test_a_value_of_another_type_is_refused(service: QueueService, column: Any, value: Any) -> None:
    """On every engine alike, naming the column; SQLite would keep it."""
    queue = service.create_queue("jobs", columns=[Column("tenant", column)])
    with pytest.raises((TypeError, ValueError), match="tenant"):
        queue.publish("a", tenant=value)
    assert 0 == queue.messages().count()
