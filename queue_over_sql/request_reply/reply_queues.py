"""Temporary reply queues, in which replies are found by key."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Protocol

from queue_over_sql.errors import (
    DatabaseUnavailable,
    NotPermitted,
    PayloadInvalid,
    QueueError,
    QueueNotFound,
)
from queue_over_sql.message import Publication, Published
from queue_over_sql.publishing.operations import publish
from queue_over_sql.queues.decoding import UNDECODABLE, decoded, undecodable
from queue_over_sql.request_reply import store as replies
from queue_over_sql.selection.operations import delete_message
from queue_over_sql.values.backoff import RateLimit

if TYPE_CHECKING:
    from collections.abc import Container

    from sqlalchemy import Connection

    from queue_over_sql.consumers.consumer import Consumer
    from queue_over_sql.message import Message, Settler
    from queue_over_sql.publishing.new_messages import NewMessage
    from queue_over_sql.publishing.publisher import Publisher
    from queue_over_sql.queues.context import QueueContext
    from queue_over_sql.settings import ServiceSettings


_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class ReplyBox:
    """A reply queue; its messages are settled through ``settler``."""

    context: QueueContext
    publisher: Publisher
    settler: Settler

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.context.name

    def check(self) -> None:
        """Raise ValueError for an adopted table, which cannot hold replies."""
        msg = f"reply_to names {self.context.name!r}, an adopted table, which cannot hold replies"
        self.context.tables.expect_payloads(ValueError(msg))

    def encode(self, publication: Publication) -> NewMessage:
        """Check a reply and encode it; raises as ``Queue.publish`` does."""
        return self.publisher.encode(publication)

    def put(self, connection: Connection, new: NewMessage) -> Published:
        """Publish a reply, unless the request already has one.

        If the queue is gone it raises QueueNotFound, and the transaction is still usable.
        """
        if not replies.keep(connection, self.context.sql):
            raise QueueNotFound(self.context.name)
        return publish(connection, self.context.sql, new, "skip")

    def take(self, correlation_id: str) -> Message | None:
        """Take the reply to a request; None if there is none yet.

        It reads the reply before it removes it, so that a broken connection does not lose the
        reply.

        Raises:
            PayloadInvalid: the reply cannot be read; it stays in the queue.
        """
        context, sql = self.context, self.context.sql
        row = context.run(lambda connection: replies.find_reply(connection, sql, correlation_id))
        if row is None:
            return None
        try:
            message = decoded(context, row._replace(attempt_count=1, listed=True), self.settler)
        except UNDECODABLE as error:
            msg = (
                f"Reply {row.id} in queue {context.name!r} cannot be read: {undecodable(error)}. "
                "The request is handled, and its reply is still there."
            )
            raise PayloadInvalid(msg) from error
        try:
            context.run(lambda connection: delete_message(connection, sql, row.id))
        except (DatabaseUnavailable, QueueNotFound) as error:
            _log.warning(
                "A reply in queue %s could not be removed; a later request removes it: %s",
                context.name,
                error,
            )
        message.settled = True
        return message

    def remove_unwanted(self, wanted: Container[str] | None) -> None:
        """Remove replies that nobody waits for: all except ``wanted``; with None, old ones."""
        sql = self.context.sql
        removed = self.context.run(lambda c: replies.remove_unwanted(c, sql, wanted))
        if removed:
            _log.info("Removed %d late replies from queue %s.", removed, self.context.name)


class ReplyBoxes(Protocol):
    """The reply queues of a service."""

    def create(self, name: str, owner: str) -> ReplyBox: ...  # noqa: D102
    def open(self, name: str, connection: Connection | None) -> ReplyBox: ...  # noqa: D102
    def forget(self, name: str) -> None: ...  # noqa: D102


class ReplyQueues:
    """Finds and creates reply queues for a service.

    Attributes:
        waited_for: the correlation ids of the requests that wait in this process.
    """

    def __init__(self, boxes: ReplyBoxes, consumer: Consumer, settings: ServiceSettings) -> None:
        self._boxes = boxes
        self._consumer = consumer
        self._own: ReplyBox | None = None
        self._shared = settings.reply_queue
        self._cleaning = RateLimit(min(1.0, settings.reaper_seconds), ready=True)
        self.waited_for: set[str] = set()

    def own(self) -> ReplyBox:
        """The reply queue of this service.

        It is the configured one, or a temporary one of this consumer, which is created if needed.

        Raises:
            NotPermitted: the login may not create one.
        """
        if self._shared is not None:
            shared = self._boxes.open(self._shared, None)
            shared.check()
            self._clean(shared, None)
            return shared
        try:
            return self._temporary()
        except NotPermitted as error:
            msg = (
                "request() creates a reply queue for each service, but this login may not create "
                "tables. Nothing was published. Let the owner of the tables create a shared one: "
                "queue-over-sql create replies, and queue-over-sql roles install --reply-queue "
                f"replies. Then create the service with reply_queue='replies'. {error}"
            )
            raise NotPermitted(msg, error.table, error.rights, error.roles) from error

    def _temporary(self) -> ReplyBox:
        # The consumer's id is its name, so that threads at the same moment create the same queue.
        consumer_id = self._consumer.identity().consumer_id
        name = _name_for(consumer_id)
        own = self._own
        if own is None or own.name != name:
            own = self._own = self._boxes.create(name, consumer_id)
        else:
            try:
                self._clean(own, self.waited_for)
            except QueueNotFound:
                self.gone(own.name)
        return own

    def find(self, name: str, connection: Connection | None = None) -> ReplyBox:
        """Open the reply queue of a request, on ``connection`` if it is given."""
        return self._boxes.open(name, connection)

    def gone(self, name: str) -> None:
        """Forget a dropped queue; if it is our own, check whether this consumer is alive."""
        self._boxes.forget(name)
        own = self._own
        if own is not None and own.name == name:
            self._own = None
            # If this consumer was considered dead, the next request must use a new identity at
            # once.
            self._consumer.heartbeat()

    def _clean(self, box: ReplyBox, wanted: Container[str] | None) -> None:
        """Remove late replies, if it is time; QueueNotFound if the queue is gone.

        No request waits for this, so any other error is only logged.
        """
        if not self._cleaning.due():
            return
        try:
            with self._cleaning.running():
                box.remove_unwanted(wanted)
        except QueueNotFound:
            raise
        except QueueError as error:
            _log.warning("Late replies in queue %s could not be removed: %s", box.name, error)


def _name_for(consumer_id: str) -> str:
    return f"reply_{consumer_id.replace('-', '')[:16]}"


def is_for_replies(name: str, owner: str | None) -> bool:
    """Whether a queue is the temporary reply queue of a consumer."""
    return owner is not None and name == _name_for(owner)
