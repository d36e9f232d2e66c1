"""Pause and resume a queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from queue_over_sql.errors import QueueNotFound
from queue_over_sql.queues import registry

if TYPE_CHECKING:
    from queue_over_sql.queues.context import QueueContext

    Progress = Callable[[int], None]


def change_record(context: QueueContext, **values: Any) -> None:
    """Change columns of a queue's record.

    Raises:
        QueueNotFound: the queue was dropped.
    """
    tables = context.tables
    changed = context.run(
        lambda c: registry.change_queue(c, tables.system, tables.prefix, context.name, **values)
    )
    if not changed:
        raise QueueNotFound(context.name)
