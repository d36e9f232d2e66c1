"""What the parts of the schedules share: their records, and the queues that they publish to."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from queue_over_sql.adoption import AdoptedQueue
from queue_over_sql.errors import QueueNotFound, QueueSchemaMismatch
from queue_over_sql.payload import is_storable
from queue_over_sql.queue import Queue, name_of
from queue_over_sql.schedules.acts import ScheduledMessages
from queue_over_sql.schedules.definitions import Definition
from queue_over_sql.store import schedules as store
from queue_over_sql.store.schedules import ScheduleRecord, SchedulesOfPrefix

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from queue_over_sql.parts import ServiceParts
    from queue_over_sql.schema import QueueTables

T = TypeVar("T")


class ScheduleAccess:
    """The schedules of one service in its database."""

    def __init__(self, parts: ServiceParts) -> None:
        self._parts = parts

    def scope(self) -> SchedulesOfPrefix:
        """Which schedules are ours.

        Raises:
            ServiceClosed: the service was stopped.
        """
        self._parts.check_open()
        prefix = self._parts.settings.table_prefix
        return SchedulesOfPrefix(self._parts.system(), self._parts.connections.dialect, prefix)

    def stored(self, name: str) -> ScheduleRecord | None:
        """The record of a schedule; None where there is none."""
        if not is_storable(name):
            return None
        scope = self.scope()
        return self.run(lambda connection: store.schedule_record(connection, scope, name))

    def open(self, queue: str | Queue) -> Queue:
        """Open a queue for a schedule.

        Raises:
            QueueNotFound: there is none.
            ValueError: its messages are rows of a table of the user's.
        """
        opened = self._parts.queue(name_of(queue))
        if isinstance(opened, AdoptedQueue):
            msg = (
                f"queue {opened.name!r} is over a table of your own, where each message is a row "
                "that you insert: let the schedule publish to another queue, whose handler does so"
            )
            raise ValueError(msg)  # noqa: TRY004 - the queue is wrong, not an argument's type
        return opened

    def messages(self, stored: ScheduleRecord) -> ScheduledMessages:
        """The messages of a schedule, encoded for its queue.

        Raises:
            As ``open``, and what the queue has against the messages.
        """
        definition = Definition.from_json(stored.name, stored.definition)
        try:
            return ScheduledMessages(self.open(stored.queue), stored.name, definition)
        except (QueueNotFound, QueueSchemaMismatch):
            # It may be there anew, not as this service has opened it.
            self._parts.reopen_queue(stored.queue)
            return ScheduledMessages(self.open(stored.queue), stored.name, definition)

    def tables_of(self, queue: str) -> QueueTables | None:
        """The tables of a queue; None where it was dropped."""
        try:
            return self._parts.queue(queue).context.tables
        except QueueNotFound:
            return None

    def run(self, act: Callable[[Connection], T], *, atomic: bool = False) -> T:
        """Run an act that publishes nothing, as ``Connections.run`` does."""
        return self._parts.connections.run(act, atomic=atomic)
