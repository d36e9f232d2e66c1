"""Statements about topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Select, and_, select

from queue_over_sql.dialects.statements.parameters import words

if TYPE_CHECKING:
    from queue_over_sql.system import SystemTables


def subscriptions(system: SystemTables) -> Select[Any]:
    """The subscriptions of a topic, by the primary keys of both tables.

    One row of NULLs where it has none, and no row where there is no such topic.
    """
    topics, bound = system.topics, system.subscriptions
    of_topic = and_(
        bound.c.table_prefix == topics.c.table_prefix,
        bound.c.topic == topics.c.name,
    )
    return (
        select(bound.c.queue, bound.c.pattern, bound.c.filter, bound.c.created_at)
        .select_from(topics.outerjoin(bound, of_topic))
        .where(topics.c.table_prefix == words("p_prefix"), topics.c.name == words("p_topic"))
    )
