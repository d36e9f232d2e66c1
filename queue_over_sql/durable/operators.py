"""What operators do with consumers whose processes or queries have died."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queue_over_sql.durable.consumer import DurableConsumer
from queue_over_sql.errors import ConsumerNotFound, QueueNotFound
from queue_over_sql.queue import core_of

if TYPE_CHECKING:
    from queue_over_sql.catalog.service_parts import ServiceParts
    from queue_over_sql.consumers.registered import RegisteredConsumers
    from queue_over_sql.consumers.registrations import ConsumerInfo


class LostConsumers:
    """Consumers that are gone; ``QueueService`` has its verbs, and documents them."""

    def __init__(self, parts: ServiceParts, registered: RegisteredConsumers) -> None:
        self._parts = parts
        self._registered = registered

    def release(self, consumer_id: str) -> int:
        """Release its messages and fence it; see ``QueueService.release_consumer``."""
        found = self._found(consumer_id)
        if found.durable or found.permanent:
            return self._durable(found).release()
        if consumer_id == self._parts.consumer.consumer_id:
            msg = f"{consumer_id!r} is this service itself: call stop() to release its messages"
            raise ValueError(msg)
        # From now on it counts as dead, even if its process still runs. What that claims before it
        # notices is given back by the reaper.
        self._registered.forget(consumer_id)
        queues = self._parts.catalog.all(temporary=False)
        return sum(core_of(queue).release_all(consumer_id) for queue in queues)

    def drop(self, consumer_id: str) -> int:
        """Release its messages and forget it; see ``QueueService.drop_consumer``."""
        try:
            count = self._durable(self._found(consumer_id)).drop()
        except QueueNotFound:
            # Its messages were dropped together with the queue.
            self._registered.forget(consumer_id)
            return 0
        return count

    def _found(self, consumer_id: str) -> ConsumerInfo:
        self._parts.check_open()
        known = {consumer.consumer_id: consumer for consumer in self._registered.list()}
        found = known.get(consumer_id) if isinstance(consumer_id, str) else None
        if found is None:
            raise ConsumerNotFound(consumer_id)
        prefix = found.table_prefix
        if (prefix is not None or found.durable) and prefix != self._parts.settings.table_prefix:
            msg = f"{consumer_id!r} belongs to the table prefix {prefix!r}: use that prefix"
            raise ValueError(msg)
        return found

    def _durable(self, found: ConsumerInfo) -> DurableConsumer:
        if found.queue is None or not found.durable:
            why = "its process releases its messages itself"
            if found.permanent:
                why = "each of its messages comes back when its lease ends"
            msg = f"{found.consumer_id!r} is not a durable consumer: {why}"
            raise ValueError(msg)
        return DurableConsumer(self._parts.queue(found.queue), found.consumer_id, owner="")
