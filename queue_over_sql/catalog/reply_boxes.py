"""The queues of replies, as the catalog keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queue_over_sql.catalog.service_parts import ServiceParts
from queue_over_sql.queue import core_of
from queue_over_sql.request_reply import store as replies

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from queue_over_sql.request_reply.reply_queues import ReplyBox


class ReplyBoxesOfCatalog:
    """The queues of a service as ``ReplyBoxes``: as the targets of replies."""

    def __init__(self, parts: ServiceParts) -> None:
        self._parts = parts

    def create(self, name: str, owner: str) -> ReplyBox:
        """Create the queue of a consumer's replies, or open it where it exists."""
        return core_of(self._parts.catalog.create_temporary(name, owner)).reply_box

    def open(self, name: str, connection: Connection | None) -> ReplyBox:
        """Open a queue."""
        return core_of(self._parts.queue(name, connection)).reply_box

    def forget(self, name: str) -> None:
        """Forget a queue, so that the next call that needs it opens it again."""
        self._parts.catalog.forget(name)

    def drop(self, name: str) -> bool:
        """Drop a queue unless a transaction is sending a reply to it."""
        return self._parts.catalog.drop(name, wait=False)

    def orphaned(self) -> list[str]:
        """The names of the temporary queues of consumers that are expired or gone."""
        system, prefix = self._parts.system(), self._parts.settings.table_prefix
        connections = self._parts.connections
        return connections.run(lambda c: replies.orphaned_queues(c, system, prefix))
