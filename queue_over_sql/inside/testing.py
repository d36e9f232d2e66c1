"""The door for helpers of tests.

Stability: as ``queue_over_sql.inside``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from queue_over_sql.consumers.consumer import host_name
from queue_over_sql.inside.operations import opened
from queue_over_sql.queue import core_of
from queue_over_sql.schema.system_tables import system_tables
from queue_over_sql.service import parts_of
from queue_over_sql.sql.expressions import Expressions
from queue_over_sql.sql.features import Features

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import ColumnElement

    from queue_over_sql.service import QueueService

__all__ = ["declare_dead", "host_name", "replace_clock", "system_table_names"]


def declare_dead(service: QueueService) -> None:
    """Declare all consumers dead whose heartbeat is overdue, as a reaper of this service does."""
    parts_of(service).consumer.deaths.declare()


def replace_clock(service: QueueService, now: Callable[[], ColumnElement[int]]) -> None:
    """Let a service take another expression for the clock of its database, for tests.

    Heartbeats keep the clock before, because other processes share it.
    """
    expressions = parts_of(service).connections.dialect.expressions
    vars(expressions)["heartbeat_now"] = expressions.now
    vars(expressions)["now"] = now
    for queue in opened(service):
        core_of(queue).context.sql.forget()


def system_table_names() -> frozenset[str]:
    """The names of the tables that all queues share, on any engine."""
    return frozenset(table.name for table in system_tables(Expressions(Features()), None).all)
