"""Turning groups on and off: the tables, the settings, and services that are running."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, Integer, inspect, text

from queue_over_sql import (
    DatabaseUnavailable,
    Publication,
    QueueNotFound,
    QueueSchemaMismatch,
    SchemaTooNew,
)
from queue_over_sql.migrations import upgrade
from queue_over_sql.queue import core_of
from queue_over_sql.queues import registry
from queue_over_sql.schema import queue_tables
from tests.contract.queue_state import ARGUMENT_ERRORS
from tests.refusals import refused

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService, TestDatabase

pytestmark = pytest.mark.driver_decides

OF_LIVE = {"group_key", "parked_at", "blocks"}
NONE: tuple[set[str], set[str]] = set(), set()


def columns_of_groups(engine: Engine, queue: str) -> tuple[set[str], set[str]]:
    """Which columns of groups the tables of a queue have: the live one, and the archive."""
    found = inspect(engine)
    tables = f"queue_{queue}", f"queue_{queue}_archive"
    live, archive = ({c["name"] for c in found.get_columns(table)} for table in tables)
    return live & OF_LIVE, archive & OF_LIVE


def record(engine: Engine, name: str, *columns: str) -> tuple[Any, ...]:
    """Columns of a queue's record."""
    query = f"SELECT {', '.join(columns)} FROM queue_over_sql_queues WHERE name = :name"
    with engine.connect() as connection:
        return tuple(connection.execute(text(query), {"name": name}).one())


def check_tables(queue: Queue, engine: Engine) -> None:
    """Fail unless the database has all that groups need."""
    assert columns_of_groups(engine, queue.name) == (OF_LIVE, {"group_key"})
    found, tables = inspect(engine), core_of(queue).context.tables
    assert found.has_table(f"queue_{queue.name}_groups")
    wanted = {index.name for index in tables.live.indexes if "_group_" in str(index.name)}
    assert wanted
    assert wanted <= {index["name"] for index in found.get_indexes(f"queue_{queue.name}")}
    assert tables.grouped
    assert "group_key" == tables.own_columns[-1]
    groups_at, release = record(engine, queue.name, "groups_at", "schema_release")
    assert groups_at is not None
    assert 3 == json.loads(release)["oldest"]


def test_a_queue_with_groups_has_their_tables(service: QueueService, engine: Engine) -> None:
    """Its own columns, indexes and table are in the database; a queue without groups has none."""
    grouped = service.create_queue("orders", group_limit=2, group_order="any")
    plain = service.create_queue("jobs")
    assert (2, "any") == (grouped.settings.group_limit, grouped.settings.group_order)
    assert (None, "fifo") == (plain.settings.group_limit, plain.settings.group_order)
    check_tables(grouped, engine)
    assert columns_of_groups(engine, "jobs") == NONE
    assert not inspect(engine).has_table("queue_jobs_groups")
    assert not core_of(plain).context.tables.grouped
    assert (None,) == record(engine, "jobs", "groups_at")
    service.drop_queue("orders")
    assert not inspect(engine).has_table("queue_orders_groups")


def test_groups_are_turned_on_and_off(service: QueueService, engine: Engine) -> None:
    """What a queue holds stays; it loses its groups only when no message has one."""
    queue = service.create_queue("jobs")
    queue.publish_many(range(3))
    [edits] = record(engine, "jobs", "edit_count")
    _turn_on(service, engine, 1)
    check_tables(queue, engine)
    assert (edits + 1,) == record(engine, "jobs", "edit_count")
    grouped = queue.publish("grouped", group="a").id
    held = queue.consume(4)
    assert [None, None, None, "a"] == [message.group for message in held]
    assert grouped == held[-1].id
    for settle in (held[-1].release, lambda: queue.delete(grouped)):
        with pytest.raises(ValueError, match=r"cannot be turned off.*messages with a group"):
            service.create_queue("jobs", group_limit=None)
        check_tables(queue, engine)
        settle()
    service.create_queue("jobs", group_limit=None)
    assert (None,) == record(engine, "jobs", "groups_at")
    with refused("a", ValueError, match="has no groups"):
        queue.publish("x", group="a")
    queue.ack(held[:3])
    queue.publish("plain")
    assert [None] == [message.group for message in queue.consume(2)]
    _turn_on(service, engine, 3)
    check_tables(queue, engine)


def _turn_on(service: QueueService, engine: Engine, limit: int) -> None:
    # On H2 nobody else may be connected.
    engine.dispose()
    service.create_queue("jobs", group_limit=limit)


def test_a_running_service_goes_on_with_groups(
    make_service: MakeService, database: TestDatabase
) -> None:
    """It knew the queue without them; its next claims and publishes are those of a grouped one."""
    first, other = make_service(), make_service()
    queue = first.create_queue("jobs")
    known = other.queue("jobs")
    made = queue.publish_many(range(4))
    # From now on, its claims begin at their mark.
    for one in made[:2]:
        [message] = known.consume()
        assert one.id == message.id
        message.ack()
    if database.engine == "h2":
        other.stop()
    first.create_queue("jobs", group_limit=1)
    if database.engine == "h2":
        other = make_service()
        known = other.queue("jobs")
    queue.publish("x", group="a")
    assert {made[2].id, made[3].id, made[3].id + 1} == {
        message.id for _ in range(2) for message in known.consume(5)
    }
    assert core_of(known).context.tables.grouped
    known.publish("y", group="b")
    assert {"a", "b"} == {message.group for message in queue.messages().list()} - {None}


def test_a_publish_with_a_group_finds_that_there_are_groups(
    make_service: MakeService, database: TestDatabase
) -> None:
    """Though its service has opened the queue before, and has not looked at it since."""
    first = make_service()
    first.create_queue("jobs")
    topic = first.create_topic("shop")
    topic.subscribe("jobs")
    if database.engine == "h2":
        first.create_queue("jobs", group_limit=1)
    other = make_service()
    known, same_topic = other.queue("jobs"), other.topic("shop")
    same_topic.publish("x", routing_key="a")
    first.create_queue("jobs", group_limit=1)
    same_topic.publish("x", routing_key="a", group="g")
    known.publish("y", group="g")
    assert [None, "g", "g"] == [message.group for message in known.messages().list()]


@pytest.mark.engines("h2")
@pytest.mark.threads("the database decides")
def test_groups_are_turned_on_again_beside_others(
    service: QueueService, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tables have kept what groups need, so nobody waits to be alone."""
    queue = service.create_queue("jobs", group_limit=1)
    service.create_queue("jobs", group_limit=None)
    with engine.connect() as connection:
        connection.execute(text("SELECT 1"))
        monkeypatch.setattr(upgrade, "_TIMEOUT", 0.0)
        service.create_queue("jobs", group_limit=2)
    check_tables(queue, engine)
    queue.publish(1, group="a")
    assert ["a"] == [message.group for message in queue.consume()]


@pytest.mark.threads("the database decides")
def test_groups_are_turned_on_once(make_service: MakeService, engine: Engine) -> None:
    """Whoever comes second finds them, and its own settings are those that stay."""
    service = make_service()
    service.create_queue("jobs")
    start = threading.Barrier(3)

    def turn_on(limit: int) -> None:
        start.wait()
        service.create_queue("jobs", group_limit=limit)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(turn_on, (1, 2, 3)))
    queue = service.queue("jobs")
    check_tables(queue, engine)
    queue.refresh()
    assert queue.settings.group_limit in {1, 2, 3}


def test_a_change_of_groups_is_an_edit(service: QueueService, engine: Engine) -> None:
    """Claims that know the earlier limit or order find nothing, and read them anew."""
    queue = service.create_queue("jobs", group_limit=1)
    [before] = record(engine, "jobs", "edit_count")
    service.create_queue("jobs", group_limit=4)
    service.create_queue("jobs", group_order="any")
    service.create_queue("jobs", group_order="any", max_attempts=9)
    assert (before + 2,) == record(engine, "jobs", "edit_count")
    assert (4, "any", 9) == (
        queue.settings.group_limit,
        queue.settings.group_order,
        queue.settings.max_attempts,
    )
    wrong: list[Any] = [0, -1, 2**31, "1", 1.5, True]
    for limit in wrong:
        with refused(limit, *ARGUMENT_ERRORS):
            service.create_queue("jobs", group_limit=limit)
    with pytest.raises(ValueError, match="group_order"):
        service.create_queue("jobs", group_order="lifo")  # type: ignore[call-overload]


@pytest.mark.threads("the record decides")
def test_an_earlier_release_refuses_a_queue_with_groups(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would not keep the order. Other queues it opens."""
    service = make_service()
    service.create_queue("orders", group_limit=1)
    service.create_queue("jobs")
    monkeypatch.setattr(registry, "SCHEMA_VERSION", 2)
    earlier = make_service()
    assert "jobs" == earlier.queue("jobs").name
    with pytest.raises(SchemaTooNew, match="orders"):
        earlier.queue("orders")


@pytest.mark.engines("postgresql", "mysql", "mariadb", "h2")
@pytest.mark.threads("the database decides")
def test_tables_in_use_are_left_alone(
    queue: Queue, service: QueueService, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a transaction uses the table, groups are not turned on, and nobody waits behind."""
    monkeypatch.setattr(upgrade, "_TIMEOUT", 0.0)
    queue.publish("x")
    with engine.connect() as connection:
        connection.execute(queue.table.update().values(priority=0))
        with pytest.raises(DatabaseUnavailable, match=r"Not changed: queue 'jobs'"):
            service.create_queue("jobs", group_limit=1)
        connection.rollback()
    assert not core_of(queue).context.settings.grouped
    assert ["x"] == [message.payload for message in queue.consume()]
    engine.dispose()
    service.create_queue("jobs", group_limit=1)
    check_tables(queue, engine)


def test_a_dropped_queue_gets_no_groups(make_service: MakeService) -> None:
    """Nor do the groups of a queue pass on to the one that is created after it."""
    service = make_service()
    queue = service.create_queue("jobs", group_limit=1)
    service.drop_queue("jobs")
    with pytest.raises(QueueNotFound):
        queue.refresh()
    assert not service.create_queue("jobs").settings.grouped


@pytest.mark.threads("Python refuses it")
@pytest.mark.engines("sqlite")
def test_a_column_whose_name_is_reserved_now_stops_only_its_queue(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue of an earlier release may have one; the work on the others goes on."""
    with monkeypatch.context() as earlier:
        earlier.setattr(queue_tables, "_OPTIONS_OF_PUBLISH", set[str]())
        service = make_service()
        for name, column in (("a", "group"), ("b", "region"), ("c", "blocks")):
            service.create_queue(name, columns=[Column(column, Integer)])
    other = make_service()
    assert ["b", "c"] == [queue.name for queue in other.queues()]
    with pytest.raises(QueueSchemaMismatch, match=r"'a' cannot be opened.*'group'"):
        other.queue("a")
    with pytest.raises(ValueError, match="'blocks'"):
        other.create_queue("c", group_limit=1)
    assert not other.queue("c").settings.grouped


# H2 turns them on only while no other service is connected.
@pytest.mark.engines("sqlite", "postgresql", "mysql", "mariadb")
def test_a_batch_of_a_service_that_knew_no_groups(
    service: QueueService, make_service: MakeService
) -> None:
    """It has the groups that it was given, although the first message has none."""
    jobs = service.create_queue("jobs")
    make_service().create_queue("jobs", group_limit=1)
    jobs.publish_many([Publication(1), Publication(2, group="a"), Publication(3, group="a")])
    assert [None, "a", "a"] == [message.group for message in jobs.messages().list()]
