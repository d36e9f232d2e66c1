"""The temporary queues of replies: put in once, found by key, dropped with their consumer."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Protocol

from queue_over_sql import store
from queue_over_sql.backoff import RateLimit
from queue_over_sql.errors import (
    DatabaseUnavailable,
    NotPermitted,
    QueueError,
    QueueNotFound,
    ServiceClosed,
)
from queue_over_sql.message import Publication, Published
from queue_over_sql.observer import ReaperReport
from queue_over_sql.queues.decoding import decoded
from queue_over_sql.request_reply import store as replies

if TYPE_CHECKING:
    from collections.abc import Container

    from sqlalchemy import Connection

    from queue_over_sql.consumer import Consumer
    from queue_over_sql.message import Message, Settler
    from queue_over_sql.queues.context import QueueContext
    from queue_over_sql.queues.publish import Publisher
    from queue_over_sql.settings import ServiceSettings
    from queue_over_sql.store import NewMessage


_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class ReplyBox:
    """A queue as one that replies go to; its messages settle themselves through ``settler``."""

    context: QueueContext
    publisher: Publisher
    settler: Settler

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.context.name

    def check(self) -> None:
        """Raise ValueError for a queue over a table of the user's, which can hold no replies."""
        if not self.context.tables.has_payloads:
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

        Where the queue is gone it raises QueueNotFound, and the transaction can go on.
        """
        if not replies.keep(connection, self.context.sql):
            raise QueueNotFound(self.context.name)
        return store.publish(connection, self.context.sql, new, "skip")

    def take(self, correlation_id: str) -> Message | None:
        """Take the reply to a request; None where there is none yet.

        Read first and then removed: where the answer to the removal is lost with the connection,
        the reply is not.
        """
        context, sql = self.context, self.context.sql
        row = context.run(lambda connection: replies.find_reply(connection, sql, correlation_id))
        if row is None:
            return None
        try:
            context.run(lambda connection: store.delete_message(connection, sql, row.id))
        except (DatabaseUnavailable, QueueNotFound) as error:
            _log.warning("A reply in queue %s is left to later requests: %s", context.name, error)
        message = decoded(context, row._replace(attempt_count=1, listed=True), self.settler)
        message.settled = True
        return message

    def remove_unwanted(self, wanted: Container[str] | None) -> None:
        """Remove replies that nobody waits for: all but those to ``wanted``, or None: old ones."""
        sql = self.context.sql
        removed = self.context.run(lambda c: replies.remove_unwanted(c, sql, wanted))
        if removed:
            _log.info("Removed %d late replies from queue %s.", removed, self.context.name)


class ReplyBoxes(Protocol):
    """The queues of a service, as those that replies go to."""

    def create(self, name: str, owner: str) -> ReplyBox: ...  # noqa: D102
    def open(self, name: str, connection: Connection | None) -> ReplyBox: ...  # noqa: D102
    def forget(self, name: str) -> None: ...  # noqa: D102
    def drop(self, name: str) -> bool: ...  # noqa: D102
    def orphaned(self) -> list[str]: ...  # noqa: D102


class ReplyQueues:
    """What one service knows of queues of replies.

    Attributes:
        waited_for: the correlation ids of the requests that wait in this process.
    """

    def __init__(self, boxes: ReplyBoxes, consumer: Consumer, settings: ServiceSettings) -> None:
        self._boxes = boxes
        self._consumer = consumer
        self._own: ReplyBox | None = None
        self._shared = settings.reply_queue
        self._stuck: set[str] = set()
        self._cleaning = RateLimit(min(1.0, settings.reaper_seconds), ready=True)
        self.waited_for: set[str] = set()

    def own(self) -> ReplyBox:
        """The queue that replies to this service go to.

        It is the one that the service was told of, or this consumer's own, which is created where
        it is not there yet.

        Raises:
            NotPermitted: the login may create none.
        """
        if self._shared is not None:
            shared = self._boxes.open(self._shared, None)
            shared.check()
            if self._cleaning.due():
                with self._cleaning.running():
                    shared.remove_unwanted(None)
            return shared
        try:
            return self._temporary()
        except NotPermitted as error:
            msg = (
                "request() makes a queue of replies for each service that asks, and this login may "
                "not. Nothing was published. Let the owner of the tables make one for all: "
                "queue-over-sql create replies, and queue-over-sql roles install --reply-queue "
                f"replies. Then ask with QueueService(..., reply_queue='replies'). {error}"
            )
            raise NotPermitted(msg, error.table, error.rights, error.roles) from error

    def _temporary(self) -> ReplyBox:
        # Named by the consumer, so that threads that come here together make the same one.
        consumer_id = self._consumer.identity().consumer_id
        name = _name_for(consumer_id)
        own = self._own
        if own is None or own.name != name:
            own = self._own = self._boxes.create(name, consumer_id)
        elif self._cleaning.due():
            self._clean(own)
        return own

    def find(self, name: str, connection: Connection | None = None) -> ReplyBox:
        """Open the queue that a reply goes to, looked for on ``connection`` where one is given."""
        return self._boxes.open(name, connection)

    def gone(self, name: str) -> None:
        """Forget a queue that was dropped; where it is our own, see whether this consumer lives."""
        self._boxes.forget(name)
        own = self._own
        if own is not None and own.name == name:
            self._own = None
            # If it was taken for dead, the next request shall go under a new identity at once.
            self._consumer.heartbeat()

    def drop_own(self, consumer_id: str) -> None:
        """Drop the queue of replies to this consumer, which ends.

        Where that is not possible now, the reaper of any service will.
        """
        own, self._own = self._own, None
        # In a forked child it may be that of the parent, which goes on.
        if own is not None and own.name == _name_for(consumer_id):
            self._drop(own.name)

    def reap(self) -> ReaperReport:
        """Drop the temporary queues of all consumers that are expired or gone."""
        return ReaperReport(dropped=sum(self._drop(name) for name in self._boxes.orphaned()))

    def _drop(self, name: str) -> bool:
        try:
            return self._boxes.drop(name)
        except (DatabaseUnavailable, ServiceClosed):
            raise
        except QueueError as error:
            if name not in self._stuck:
                self._stuck.add(name)
                _log.warning("The queue of replies %s cannot be dropped: %s", name, error)
            return False

    def _clean(self, own: ReplyBox) -> None:
        try:
            with self._cleaning.running():
                own.remove_unwanted(self.waited_for)
        except QueueNotFound:
            self.gone(own.name)


def _name_for(consumer_id: str) -> str:
    return f"reply_{consumer_id.replace('-', '')[:16]}"
