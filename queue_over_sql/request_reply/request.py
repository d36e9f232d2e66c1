"""Request and reply: publish a request, reply to it, and wait for the reply."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from queue_over_sql.errors import (
    DatabaseUnavailable,
    NotPermitted,
    QueueError,
    QueueNotFound,
    ReplyQueueGone,
    RequestTimeout,
)
from queue_over_sql.message import Message, Publication, Published
from queue_over_sql.publishing.publisher import notify_published, refuse_options, with_headers
from queue_over_sql.request_reply import store as replies
from queue_over_sql.sql.operation import Operation
from queue_over_sql.values.backoff import OutageLog, poll_pauses
from queue_over_sql.values.durations import Duration, duration_text, to_timedelta
from queue_over_sql.values.headers import CORRELATION_ID, REPLY_TO

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from queue_over_sql.message import CallersConnection
    from queue_over_sql.queues.context import QueueContext
    from queue_over_sql.request_reply.reply_queues import ReplyBox, ReplyQueues
    from queue_over_sql.settling.settlements import Settlements


_log = logging.getLogger(__name__)

FIRST_LOOK, LAST_LOOK = 0.01, 0.1
"""Shortest and longest pause in seconds between two polls for a reply."""

_UNANSWERABLE = {
    "connection": "no consumer sees the request before that transaction commits",
    "delay": "an invisible message cannot be answered before the timeout",
    "at": "an invisible message cannot be answered before the timeout",
    "on_conflict": "a skipped or replaced request would never get a reply",
}


class Requests:
    """Sends the requests and replies of one queue."""

    def __init__(
        self,
        context: QueueContext,
        publish: Callable[[Publication, str, None], Published],
        settlements: Settlements,
        reply_queues: ReplyQueues,
    ) -> None:
        self._context = context
        self._publish = publish
        self._settlements = settlements
        self._reply_queues = reply_queues

    def request(self, publication: Publication, timeout: Duration) -> Message:
        """Publish a message and wait for the reply; see ``Queue.request``."""
        seconds = to_timedelta(timeout, "timeout").total_seconds()
        refuse_options("request", publication.columns, _UNANSWERABLE)
        own_headers = _as_headers(publication.headers)
        inbox, correlation_id = self._reply_queues.own(), str(uuid.uuid4())
        headers = {**own_headers, REPLY_TO: inbox.name, CORRELATION_ID: correlation_id}
        asking = dataclasses.replace(publication, headers=headers)
        with self._waiting_for(correlation_id):
            published = self._publish(asking, "raise", None)
            request = Request(
                self._context, self._reply_queues, published.id, correlation_id, seconds
            )
            return request.reply(inbox)

    def reply(
        self, message: Message, reply: Publication, connection: CallersConnection | None
    ) -> Published:
        """Answer a request that was claimed or taken from this queue; see ``Message.reply``."""
        headers = _reply_headers(message, reply.headers)
        publication = dataclasses.replace(reply, key=message.correlation_id, headers=headers)
        box = self._box(message, connection)
        observer = self._context.observer
        if observer is None:
            return self._reply(message, box, publication, connection)
        began, name = time.monotonic(), str(message.reply_to)
        if box.context.tables.temporary:
            # Every requester has its own queue, so as labels of metrics there would be too many.
            name = "(replies)"
        with observer.publishing(name, 1) as headers:
            publication = with_headers(publication, headers)
            published = self._reply(message, box, publication, connection)
            notify_published(observer, name, [published], time.monotonic() - began)
        return published

    def _reply(
        self,
        message: Message,
        box: ReplyBox,
        publication: Publication,
        connection: CallersConnection | None,
    ) -> Published:
        with self._reporting_gone(message):
            new = box.encode(publication)

        def put(target: Connection) -> Published:
            self._settlements.check_held(target, message)
            return box.put(target, new)

        replying = Operation(
            put, atomic=True, durable=True, repeatable=False, wakes=connection is None
        )
        with self._reporting_gone(message):
            return self._context.run(replying, connection)

    def _box(self, message: Message, connection: CallersConnection | None) -> ReplyBox:
        context, name = self._context, message.reply_to
        if name is None:
            msg = f"{message!r} is not a request: it has no header reply_to"
            raise ValueError(msg)

        def look(target: Connection) -> ReplyBox:
            context.dialect.sessions.lock_for_writing(target, context.sql)
            return self._reply_queues.find(name, target)

        with self._reporting_gone(message):
            if connection is not None:
                box = context.run(look, connection)
            else:
                box = self._reply_queues.find(name)
        box.check()
        return box

    @contextlib.contextmanager
    def _waiting_for(self, correlation_id: str) -> Iterator[None]:
        waited_for = self._reply_queues.waited_for
        waited_for.add(correlation_id)
        try:
            yield
        finally:
            waited_for.discard(correlation_id)

    @contextlib.contextmanager
    def _reporting_gone(self, message: Message) -> Iterator[None]:
        """Tell the replier that the queue of replies is gone, and not the queue of the request."""
        try:
            yield
        except QueueNotFound as error:
            name = str(message.reply_to)
            if error.queue != name:
                raise
            self._reply_queues.gone(name)
            text = (
                f"The reply to {message!r} was not published, because the reply queue {name!r} is "
                "dropped: the requester has stopped or is considered dead. No process waits for "
                "the reply. Ack the message if its work is done."
            )
            raise ReplyQueueGone(name, text) from error


@dataclasses.dataclass(frozen=True)
class Request:
    """A published request that waits for its reply.

    Args:
        context: the context of the request's queue.
        reply_queues: the reply queues of the service.
        message_id: id of the request.
        correlation_id: correlation id of the reply.
        seconds: how long to wait.
    """

    context: QueueContext
    reply_queues: ReplyQueues
    message_id: int
    correlation_id: str
    seconds: float

    def reply(self, inbox: ReplyBox) -> Message:
        """Wait for the reply.

        Raises:
            RequestTimeout, ReplyQueueGone, PayloadInvalid, DatabaseUnavailable, ServiceClosed: as
                in ``Queue.request``.
        """
        try:
            reply = self._wait(inbox) or self._give_up(inbox)
        except QueueNotFound as error:
            raise self._gone(inbox.name) from error
        except QueueError:
            raise
        except BaseException:
            # The requester was interrupted and no longer waits.
            with contextlib.suppress(QueueError):
                self._withdraw()
            raise
        return reply

    def _wait(self, inbox: ReplyBox) -> Message | None:
        deadline, pauses = time.monotonic() + self.seconds, poll_pauses(FIRST_LOOK, LAST_LOOK)
        outage = OutageLog("A request")
        arrivals = self.context.arrivals
        while True:
            seen = arrivals.count
            try:
                reply = inbox.take(self.correlation_id)
                outage.ended()
            except DatabaseUnavailable as error:
                # The request is published, and giving up now would lose its reply.
                if time.monotonic() >= deadline:
                    raise
                outage.began(error)
                reply = None
            left = deadline - time.monotonic()
            if reply is not None or left <= 0:
                return reply
            self.context.wakeups.await_next_poll(seen, pauses, left)

    def _give_up(self, inbox: ReplyBox) -> Message:
        """Withdraw the request, or take the reply that came at the last moment.

        Raises:
            RequestTimeout: there is none.
        """
        withdrawn = self._withdraw()
        reply = None if withdrawn else inbox.take(self.correlation_id)
        if reply is not None:
            return reply
        raise RequestTimeout(
            self.context.name,
            self.correlation_id,
            self.message_id,
            duration_text(self.seconds),
            withdrawn=withdrawn,
            gone=not withdrawn and self._is_gone(),
        )

    def _withdraw(self) -> bool:
        sql = self.context.sql
        try:
            return self.context.run(replies.withdraw.of(sql, self.message_id, self.correlation_id))
        except QueueNotFound:
            # The queue was dropped together with the request.
            return True
        except NotPermitted as error:
            _log.debug("Request %d could not be withdrawn: %s", self.message_id, error)
            return False

    def _is_gone(self) -> bool:
        """Whether a request that was not withdrawn has left the queue."""
        context = self.context
        try:
            return not context.run(
                lambda c: replies.is_there(c, context.sql, self.message_id, self.correlation_id)
            )
        except QueueNotFound:
            return True
        except NotPermitted:
            return False

    def _gone(self, name: str) -> ReplyQueueGone:
        self.reply_queues.gone(name)
        if self._withdraw():
            fate = "The request was withdrawn before a consumer claimed it."
        elif self._is_gone():
            fate = "The request is no longer in the queue."
        else:
            fate = "The request may still be handled."
        return ReplyQueueGone(
            name,
            f"The reply queue {name!r} was dropped, by hand or because this consumer was "
            f"considered dead, so no reply to message {self.message_id} of queue "
            f"{self.context.name!r} can arrive. {fate}",
        )


def _as_headers(headers: Any) -> Mapping[str, Any]:
    if headers is not None and not isinstance(headers, Mapping):
        msg = f"headers must be a mapping of names to JSON values, not {type(headers).__name__}"
        raise TypeError(msg)
    return headers or {}


def _reply_headers(message: Message, headers: Any) -> dict[str, Any]:
    own = dict(_as_headers(headers))
    if message.correlation_id is not None:
        own[CORRELATION_ID] = message.correlation_id
    return own
