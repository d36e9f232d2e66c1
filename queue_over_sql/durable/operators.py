"""What operators do with durable consumers whose queries have died."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queue_over_sql.durable.consumer import DurableConsumer
from queue_over_sql.errors import ConsumerNotFound, QueueNotFound

if TYPE_CHECKING:
    from queue_over_sql.catalog.service_parts import ServiceParts
    from queue_over_sql.consumers.registered import RegisteredConsumers


class DurableConsumers:
    """The durable consumers of a service; ``QueueService`` has its verbs, and documents them."""

    def __init__(self, parts: ServiceParts, registered: RegisteredConsumers) -> None:
        self._parts = parts
        self._registered = registered

    def release(self, consumer_id: str) -> int:
        """Release its messages and fence its query; see ``QueueService.release_consumer``."""
        return self._consumer(consumer_id).release()

    def drop(self, consumer_id: str) -> int:
        """Release its messages and forget it; see ``QueueService.drop_consumer``."""
        try:
            count = self._consumer(consumer_id).drop()
        except QueueNotFound:
            # Its messages were dropped together with the queue.
            self._registered.forget(consumer_id)
            return 0
        return count

    def _consumer(self, consumer_id: str) -> DurableConsumer:
        self._parts.check_open()
        known = {consumer.consumer_id: consumer for consumer in self._registered.list()}
        found = known.get(consumer_id) if isinstance(consumer_id, str) else None
        if found is None:
            raise ConsumerNotFound(consumer_id)
        if found.queue is None or not found.durable:
            why = "its process releases its messages itself"
            if found.permanent:
                why = "each of its messages comes back when its lease ends"
            msg = f"{consumer_id!r} is not a durable consumer: {why}"
            raise ValueError(msg)
        if found.table_prefix != self._parts.settings.table_prefix:
            msg = (
                f"{consumer_id!r} belongs to the table prefix {found.table_prefix!r}: use that "
                "prefix"
            )
            raise ValueError(msg)
        return DurableConsumer(self._parts.queue(found.queue), consumer_id, owner="")
