"""A queue as one that replies go to: they are put in once each, found by their key, taken."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING

from queue_over_sql import store
from queue_over_sql.errors import DatabaseUnavailable, QueueNotFound
from queue_over_sql.publications import Publication, Published
from queue_over_sql.store import replies

if TYPE_CHECKING:
    from collections.abc import Container

    from sqlalchemy import Connection

    from queue_over_sql.context import QueueContext
    from queue_over_sql.message import Message, Settler
    from queue_over_sql.publishing import Publisher
    from queue_over_sql.store import NewMessage

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class ReplyBox:
    """A queue as one that replies go to.

    Args:
        context: of that queue.
        publisher: of that queue.
    """

    context: QueueContext
    publisher: Publisher

    def check(self) -> None:
        """Refuse a queue that can hold no replies.

        Raises:
            ValueError: its messages are rows of a table of the user's.
        """
        if self.context.tables.adoption is not None:
            msg = (
                f"reply_to names {self.context.name!r}, a queue over a table of your own: its "
                "rows cannot be replies"
            )
            raise ValueError(msg)

    def encode(self, publication: Publication) -> NewMessage:
        """Check a reply and encode it; errors as in ``Queue.publish``."""
        return self.publisher.encode(publication)

    def put(self, connection: Connection, new: NewMessage) -> Published:
        """Put a reply in, unless there is one to the same request already.

        Raises:
            QueueNotFound: the queue is gone; the transaction can go on.
        """
        if not replies.keep(connection, self.context.sql):
            raise QueueNotFound(self.context.name)
        return store.publish(connection, self.context.sql, new, "skip")

    def take(self, correlation_id: str, settler: Settler) -> Message | None:
        """Take the reply to a request; None where there is none yet.

        Read first and then removed: where the answer to the removal is lost with the connection,
        the reply is not.

        Raises:
            QueueNotFound: the queue is gone.
            DatabaseUnavailable: as its name says.
        """
        context, sql = self.context, self.context.sql
        row = context.run(lambda connection: replies.find_reply(connection, sql, correlation_id))
        if row is None:
            return None
        try:
            context.run(lambda connection: store.delete_message(connection, sql, row.id))
        except (DatabaseUnavailable, QueueNotFound) as error:
            _log.warning("A reply in queue %s is left to later requests: %s", context.name, error)
        message = context.message(row._replace(attempt_count=1, listed=True), settler)
        message.settled = True
        return message

    def remove_unwanted(self, wanted: Container[str]) -> None:
        """Remove replies that nobody waits for.

        Raises:
            QueueNotFound: the queue is gone.
        """
        sql = self.context.sql
        removed = self.context.run(lambda c: replies.remove_unwanted(c, sql, wanted))
        if removed:
            _log.info("Removed %d late replies from queue %s.", removed, self.context.name)
