"""Turning groups on and off: the tables, the settings, and services that are running."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import inspect

from queue_over_sql.queue import core_of

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import QueueService

OF_LIVE = {"group_key", "parked_at", "blocks"}


def test_a_queue_with_groups_has_their_tables(service: QueueService, engine: Engine) -> None:
    """Its own columns, indexes and table are in the database; a queue without groups has none."""
    grouped = service.create_queue("orders", group_limit=1)
    plain = service.create_queue("jobs")
    assert 1 == grouped.settings.group_limit
    assert "fifo" == grouped.settings.group_order
    assert (OF_LIVE, OF_LIVE & {"group_key"}) == _columns_of_groups(engine, "orders")
    assert (set(), set()) == _columns_of_groups(engine, "jobs")
    found = inspect(engine)
    assert found.has_table("queue_orders_groups")
    assert not found.has_table("queue_jobs_groups")
    tables = core_of(grouped).context.tables
    wanted = {index.name for index in tables.live.indexes if "_group_" in str(index.name)}
    there = {index["name"] for index in found.get_indexes("queue_orders")}
    assert wanted
    assert wanted <= there
    assert tables.grouped
    assert not core_of(plain).context.tables.grouped
    assert ("group_key",) == tables.own_columns


def _columns_of_groups(engine: Engine, queue: str) -> tuple[set[str], set[str]]:
    found = inspect(engine)
    tables = f"queue_{queue}", f"queue_{queue}_archive"
    live, archive = ({c["name"] for c in found.get_columns(table)} for table in tables)
    return live & OF_LIVE, archive & OF_LIVE
