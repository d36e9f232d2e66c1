"""The queues of replies, as the catalog keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queue_over_sql.catalog.service_parts import ServiceParts
from queue_over_sql.queue import core_of

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
