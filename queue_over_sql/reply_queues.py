"""The temporary queues of replies: this service's own, those of others, those of the dead."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from queue_over_sql.errors import DatabaseUnavailable, QueueError, QueueNotFound, ServiceClosed
from queue_over_sql.pacing import Pace
from queue_over_sql.restoring import ReaperReport
from queue_over_sql.store import replies as store

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from queue_over_sql.parts import ServiceParts
    from queue_over_sql.queue import Queue

_log = logging.getLogger(__name__)


class ReplyQueues:
    """What one service knows of queues of replies.

    Attributes:
        waited_for: the correlation ids of the requests that wait in this process.
    """

    def __init__(self, parts: ServiceParts) -> None:
        self._parts = parts
        self._own: Queue | None = None
        self._cleaning = Pace(min(1.0, parts.settings.reaper_seconds), ready=True)
        self.waited_for: set[str] = set()

    def own(self) -> Queue:
        """The queue of replies to this consumer; created where it is not there yet.

        Raises:
            DatabaseUnavailable: it could not be created.
            ServiceClosed: the service was stopped.
        """
        # Named by the consumer, so that threads that come here together make the same one.
        consumer_id = self._parts.consumer.identity().consumer_id
        name = _name_for(consumer_id)
        own = self._own
        if own is None or own.name != name:
            own = self._own = self._parts.catalog.create_temporary(name, consumer_id)
        elif self._cleaning.due():
            self._clean(own)
        return own

    def find(self, name: str, connection: Connection | None = None) -> Queue:
        """Open the queue that a reply goes to.

        Args:
            name: of the queue.
            connection: where to look for it, instead of on a connection of the service's own.

        Raises:
            QueueNotFound: it is gone.
            ServiceClosed: the service was stopped.
        """
        self._parts.check_open()
        return self._parts.catalog.get(name, connection)

    def gone(self, name: str) -> None:
        """Forget a queue that was dropped; where it is our own, see whether this consumer lives."""
        self._parts.reopen_queue(name)
        own = self._own
        if own is not None and own.name == name:
            self._own = None
            # If it was taken for dead, the next request shall go under a new identity at once.
            self._parts.consumer.heartbeat()

    def drop_own(self, consumer_id: str) -> None:
        """Drop the queue of replies to this consumer, which ends.

        Where that is not possible now, the reaper of any service will.
        """
        own, self._own = self._own, None
        # In a forked child it may be that of the parent, which goes on.
        if own is not None and own.name == _name_for(consumer_id):
            self._drop(own.name)

    def reap(self) -> ReaperReport:
        """Drop the temporary queues of all consumers that are expired or gone.

        Raises:
            DatabaseUnavailable: it was cut short.
        """
        parts = self._parts
        system, prefix = parts.system(), parts.settings.table_prefix
        dialect = parts.connections.dialect
        names = parts.connections.run(
            lambda connection: store.orphaned_queues(connection, system, dialect, prefix)
        )
        return ReaperReport(dropped=sum(self._drop(name) for name in names))

    def _drop(self, name: str) -> bool:
        """Drop a queue, unless a reply to it is under way; one failure keeps no other from it."""
        try:
            return self._parts.catalog.drop(name, wait=False)
        except (DatabaseUnavailable, ServiceClosed):
            raise
        except QueueError as error:
            _log.warning("The queue of replies %s cannot be dropped: %s", name, error)
            return False

    def _clean(self, own: Queue) -> None:
        """Remove replies that came too late, or whose removal failed."""
        try:
            with self._cleaning.running():
                own.replies.remove_unwanted(self.waited_for)
        except QueueNotFound:
            self.gone(own.name)


def _name_for(consumer_id: str) -> str:
    return f"reply_{consumer_id.replace('-', '')[:16]}"
