"""Queue: publish, consume, settle, and look at what is there."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from queue_over_sql import store
from queue_over_sql.durations import Duration
from queue_over_sql.errors import QueueError
from queue_over_sql.message import Message, Publication, Published, claim_of
from queue_over_sql.observer import facts_of
from queue_over_sql.queues.admin import (
    QueueStats,
    change_record,
    count_messages,
    read_traceback,
)
from queue_over_sql.queues.archive import Archive
from queue_over_sql.queues.claim import Claimer
from queue_over_sql.queues.decoding import Decoder, as_where
from queue_over_sql.queues.publish import ObservedPublisher, Publisher
from queue_over_sql.queues.recovery import Recovery
from queue_over_sql.queues.selection import LiveSelection
from queue_over_sql.queues.settle import Settlements, as_list, mark_settled
from queue_over_sql.request_reply.reply_queues import ReplyBox
from queue_over_sql.request_reply.request import Requests
from queue_over_sql.settings import check_flag, check_whole

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from sqlalchemy import ColumnElement, Connection, Table

    from queue_over_sql.message import CallersConnection
    from queue_over_sql.queues.context import QueueContext
    from queue_over_sql.request_reply.reply_queues import ReplyQueues
    from queue_over_sql.settings import EffectiveSettings


def name_of(queue: object) -> str:
    """The name of a queue that is given as such or by its name.

    Raises:
        TypeError: it is neither.
    """
    # A member of an enumeration of names has a name of its own; so have threads, files, topics.
    name = queue if isinstance(queue, str) else getattr(queue, "name", None)
    if not isinstance(name, str) or not (name is queue or hasattr(queue, "consume")):
        msg = f"queue must be a Queue or the name of one, not {type(queue).__name__}"
        raise TypeError(msg)
    return str.__str__(name)


class QueueCore:
    """The parts of one queue inside one service, for the verbs of `Queue` and for other features.

    Messages settle themselves through it.
    """

    def __init__(
        self,
        context: QueueContext,
        reply_queues: ReplyQueues,
        publisher: Callable[[QueueContext], Publisher] = Publisher,
    ) -> None:
        self.context = context
        self.publisher = publisher(context)
        verbs: Publisher | ObservedPublisher = self.publisher
        if context.observer is not None:
            verbs = ObservedPublisher(self.publisher, context.name, context.observer)
        self.publish, self.publish_many, self.load = verbs.publish, verbs.publish_many, verbs.load
        self.settlements = settlements = Settlements(context, self.came_back)
        self.recovery = Recovery(context)
        self.decoder = Decoder(context, self, settlements.defer)
        self.claimer = Claimer(context, self.decoder, self.recovery)
        self.reply_box = ReplyBox(context, self.publisher, self)
        self.requests = Requests(context, self.publish, settlements, reply_queues)
        self.ack, self.nack, self.release = settlements.ack, settlements.nack, settlements.release
        self.reject, self.extend = settlements.reject, settlements.extend
        self.reply = self.requests.reply

    def exchange(
        self,
        finished: Message | Sequence[Message],
        count: int,
        lease: Duration | None,
        where: ColumnElement[bool] | None,
    ) -> list[Message]:
        """Ack messages and claim the next ones; see ``Queue.exchange``."""
        messages, settlements = as_list(finished), self.settlements
        if not messages:
            return self.claimer.consume(count, lease, 0.0, where)
        wanted = as_where(where)
        groups = settlements.grouped(messages)
        if sum(len(group.ids) for group in groups) < len(set(map(id, messages))):
            # Some are not ours to ack, so nothing may be claimed: this acks the others and raises.
            settlements.ack(messages)
        settlements.guard(messages)
        began = time.monotonic()
        settled, rows = self.claimer.exchange(
            count, lease, groups, keep=settlements.keeps_finished, where=wanted
        )
        mark_settled(messages)
        if self.context.observer is not None:
            settlements.tell_done(messages, settled)
        settlements.refuse(messages, settled)
        return self.claimer.decoded(rows, began) or self.claimer.consume(count, lease, 0.0, where)

    def take(
        self, count: int, connection: CallersConnection, where: ColumnElement[bool] | None
    ) -> list[Message]:
        """Remove messages inside the caller's transaction; see ``Queue.take``."""
        wanted = as_where(where)

        def act(target: Connection) -> list[Message]:
            # Only what does not fit its kind has to know the time.
            now = store.server_now(target, self.context.sql) if self.context.kinds else 0
            decode = partial(self.decoder.taken, now=now)
            done = self.decoder.done
            return self.claimer.take(target, count, decode=decode, done=done, where=wanted)

        began, observer = time.monotonic(), self.context.observer
        messages = self.context.run_on(connection, act, atomic=True)
        if observer is not None and messages:
            name, seconds = self.context.name, time.monotonic() - began
            observer.claimed(name, facts_of(messages), seconds)
            observer.settled(name, "done", [message.id for message in messages])
        return messages

    def take_columns(self, count: int, connection: Connection) -> list[RecordBatch] | None:
        """As ``take``, but as Arrow columns with payloads as they are stored.

        When the caller's transaction rolls back, ``announce`` must be called.

        Returns:
            Batches without empty ones; None where this queue can only be taken as messages.
        """
        context, settings = self.context, self.context.settings
        if not context.tables.has_payloads or settings.dedup_us is not None or context.kinds:
            return None
        keep = settings.archive == "all"
        return context.run_on(
            connection, lambda target: self.claimer.take_columns(target, count, keep=keep)
        )

    def holds(self, message: Message) -> bool:
        """Whether this consumer may still work on a message, as far as it knows by itself."""
        return self.context.consumer.holds(claim_of(message))

    def release_all(self, consumer_id: str) -> int:
        """Give back, uncounted, all that a consumer of this service still holds."""
        sql = self.context.sql
        return self.context.run(lambda c: store.unclaim_all(c, sql, consumer_id))

    def announce(self) -> None:
        """Wake those in this process who wait for a message, and look fully next."""
        self.came_back(None)

    def came_back(self, available_at: int | None) -> None:
        """Messages came back at this place, or at any: wake who waits, and claim from there."""
        self.claimer.look_fully(available_at)
        self.context.announce()


def core_of(queue: Queue) -> QueueCore:
    """The parts of a queue, for the other modules of this package."""
    return queue._core  # noqa: SLF001 - this is the one way to them


class Queue:
    """One queue. Made by ``QueueService``; may be used from any thread."""

    def __init__(self, core: QueueCore) -> None:
        self._core = core

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._core.context.name

    @property
    def table(self) -> Table:
        """The SQLAlchemy ``Table`` of the live messages, for conditions and queries."""
        return self._core.context.tables.live

    @property
    def temporary(self) -> bool:
        """Whether it is a queue of replies, which is dropped with the consumer that it serves."""
        return self._core.context.tables.temporary

    @property
    def settings(self) -> EffectiveSettings:
        """The settings in force; durations are ``timedelta``.

        Raises:
            QueueNotFound: the queue was dropped.
        """
        return self._core.context.settings

    # -- publish

    def publish(  # noqa: D417 - Publication describes its options
        self,
        payload: Any,
        *,
        key: str | None = None,
        kind: str | None = None,
        headers: Mapping[str, Any] | None = None,
        priority: int = 0,
        delay: Duration | None = None,
        at: datetime | None = None,
        max_attempts: int | None = None,
        lease: Duration | None = None,
        on_conflict: str = "raise",
        connection: CallersConnection | None = None,
        **columns: Any,
    ) -> Published:
        """Put a message into the queue; it is durable when this returns.

        Args:
            payload: a JSON value, a ``str`` or ``bytes``, by the queue's payload type.
            key, kind, headers, priority, delay, at, max_attempts, lease: see ``Publication``.
            on_conflict: what to do when the key is taken: ``"raise"``, ``"skip"`` the new one,
                or ``"replace"`` the content of the live one, whose holder then loses it. Where
                the key is only kept by the ``dedup_window``, both leave out the new one.
            connection: the caller's own transaction: published when it commits, never when it
                rolls back. It is not committed here.
            columns: values of the queue's own columns.

        Returns:
            The id, and whether it was created, skipped, replaced or unchanged.

        Raises:
            DuplicateKey: the key is taken and ``on_conflict`` is ``"raise"``.
            PayloadInvalid, PayloadTooLarge: nothing was published.
            WrongDatabase: ``connection`` leads to another database.
            DatabaseUnavailable: when the connection broke, whether it was published is unknown.
            TypeError, ValueError: an option has no sensible value.
        """
        publication = Publication(
            payload,
            key=key,
            kind=kind,
            headers=headers,
            priority=priority,
            delay=delay,
            at=at,
            max_attempts=max_attempts,
            lease=lease,
            columns=columns,
        )
        return self._core.publish(publication, on_conflict, connection)

    def publish_many(
        self,
        items: Iterable[Any],
        *,
        on_conflict: str = "raise",
        connection: CallersConnection | None = None,
    ) -> list[Published]:
        """Publish many messages in one transaction: all or none, in their order.

        Args:
            items: payloads, or ``Publication`` objects for those with options.
            on_conflict: as in ``publish``, for each of them.
            connection: the caller's own transaction; it is not committed here.

        Returns:
            One result per item, in order.

        Raises:
            DuplicateKey and the others of ``publish``: nothing was published.
        """
        return self._core.publish_many(items, on_conflict, connection)

    def load(
        self,
        items: Iterable[Any],
        *,
        batch_size: int = 10_000,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Publish a large number of messages by the engine's fastest path.

        Args:
            items: payloads or ``Publication`` objects; read one batch at a time.
            batch_size: messages per transaction.
            progress: called after each batch with the number published so far.

        Returns:
            How many were published.

        Raises:
            DuplicateKey and the others of ``publish``: the batches before were published, nothing
                of the one that failed.
        """
        return self._core.load(items, batch_size, progress)

    # -- consume

    def consume(
        self,
        count: int = 1,
        *,
        lease: Duration | None = None,
        wait: Duration = 0.0,
        where: ColumnElement[bool] | None = None,
    ) -> list[Message]:
        """Claim messages: nobody else gets them until they are given back or the lease ends.

        Args:
            count: at most so many.
            lease: how long the claim holds, instead of the message's or the queue's.
            wait: how long to wait for a first one.
            where: only messages that match this SQLAlchemy condition on ``table``. Keep the
                expression and pass the same object again: its statement is compiled once.

        Returns:
            Up to ``count`` messages, oldest first; none when there are none.

        Raises:
            QueueNotFound, DatabaseUnavailable, ServiceClosed: as their names say.
        """
        return self._core.claimer.consume(count, lease, wait, where)

    @contextlib.contextmanager
    def receive(
        self, *, wait: Duration = 0.0, lease: Duration | None = None
    ) -> Iterator[Message | None]:
        """Claim one message for a ``with`` block: ack at its end, nack when it raises.

        A message that the block settled itself is left alone.

        Yields:
            The message, or None when there was none in time.
        """
        messages = self.consume(1, lease=lease, wait=wait)
        if not messages:
            yield None
            return
        message = messages[0]
        try:
            yield message
        except BaseException as error:
            # Even if it was settled: that may have been rolled back, and the fence refuses if not.
            with contextlib.suppress(QueueError):
                message.nack(error)
            raise
        if not message.settled:
            message.ack()

    def stream(
        self, *, prefetch: int = 1, wait: Duration | None = 0.0, lease: Duration | None = None
    ) -> Generator[Message, None, None]:
        """Claim messages one after another; the caller settles each.

        Args:
            prefetch: how many to claim at once; those not yet yielded are released at the end.
            wait: ends after so long without a message; None never ends.
            lease: how long each claim holds.
        """
        prefetch = check_whole("prefetch", prefetch)
        waiting: list[Message] = []
        try:
            while True:
                patience = 3600.0 if wait is None else wait
                waiting = self.consume(prefetch, lease=lease, wait=patience)
                if not waiting and wait is not None:
                    return
                while waiting and self.holds(waiting[0]):
                    yield waiting.pop(0)
        finally:
            if waiting:
                with contextlib.suppress(QueueError):
                    self.release(waiting)

    def exchange(
        self,
        finished: Message | Sequence[Message],
        count: int = 1,
        *,
        lease: Duration | None = None,
        where: ColumnElement[bool] | None = None,
    ) -> list[Message]:
        """Ack finished messages and claim the next ones in one transaction.

        Args:
            finished: messages to ack; may be empty.
            count: how many to claim.
            lease: as in ``consume``.
            where: as in ``consume``.

        Raises:
            ClaimLost: some of ``finished`` were lost; the others were acked, nothing was claimed.
        """
        return self._core.exchange(finished, count, lease, where)

    def take(
        self,
        count: int = 1,
        *,
        connection: CallersConnection,
        where: ColumnElement[bool] | None = None,
    ) -> list[Message]:
        """Remove the oldest messages inside the caller's transaction.

        When it commits they are done; when it rolls back, or the process dies, they were never
        taken and no attempt was counted. Their rows stay locked meanwhile, so keep it short.

        Args:
            count: at most so many.
            connection: the caller's own transaction.
            where: as in ``consume``.

        Returns:
            The messages, oldest first; they need no ack.
        """
        return self._core.take(count, connection, where)

    def holds(self, message: Message) -> bool:
        """Whether this consumer may still work on a message, as far as it knows by itself."""
        return self._core.holds(message)

    # -- settle

    def ack(
        self,
        messages: Message | Sequence[Message],
        *,
        connection: CallersConnection | None = None,
    ) -> None:
        """Finish messages: they are removed, or archived where finished ones are kept.

        Args:
            messages: one or several, of any claims.
            connection: the caller's own transaction; it is not committed here.

        Raises:
            ClaimLost: names those that this claim does not hold any more; all others were acked.
            ConsumerExpired: this consumer missed its heartbeat; nothing was changed.
        """
        self._core.settlements.ack(messages, connection)

    def nack(
        self,
        messages: Message | Sequence[Message],
        *,
        error: str | BaseException | None = None,
        delay: Duration | None = None,
        connection: CallersConnection | None = None,
    ) -> None:
        """Report failures: each message is retried later, or a dead letter when out of attempts.

        Args:
            messages: one or several.
            error: the reason.
            delay: instead of what the retry policy says, its end included.
            connection: the caller's own transaction; it is not committed here.

        Raises:
            ClaimLost, ConsumerExpired: as in ``ack``.
        """
        self._core.settlements.nack(messages, error, delay, connection)

    def release(
        self,
        messages: Message | Sequence[Message],
        *,
        connection: CallersConnection | None = None,
        delay: Duration | None = None,
    ) -> None:
        """Give messages back untouched; this delivery is not counted.

        Args:
            messages: one or several.
            connection: the caller's own transaction; it is not committed here.
            delay: how long they are kept back. They are due after that. None: they are due at once,
                at their old places.

        Raises:
            ClaimLost, ConsumerExpired: as in ``ack``.
        """
        self._core.settlements.release(messages, connection, delay)

    def reject(
        self,
        messages: Message | Sequence[Message],
        reason: str,
        *,
        connection: CallersConnection | None = None,
    ) -> None:
        """End messages as dead letters, never to be delivered again.

        Args:
            messages: one or several.
            reason: kept in the archive as ``last_error``.
            connection: the caller's own transaction; it is not committed here.

        Raises:
            ClaimLost, ConsumerExpired: as in ``ack``.
        """
        self._core.settlements.reject(messages, reason, connection)

    def extend(
        self,
        messages: Message | Sequence[Message],
        lease: Duration | None = None,
        *,
        connection: CallersConnection | None = None,
    ) -> None:
        """Renew leases, counted from now.

        Args:
            messages: one or several.
            lease: the new length; None for that of each claim.
            connection: the caller's own transaction; it is not committed here.

        Raises:
            ClaimLost, ConsumerExpired: as in ``ack``.
        """
        self._core.settlements.extend(messages, lease, connection)

    # -- ask and answer

    def request(  # noqa: D417 - Publication describes its options
        self,
        /,  # else `self` might be one of the columns, and no proxy could have these types
        payload: Any,
        *,
        timeout: Duration,
        key: str | None = None,
        kind: str | None = None,
        headers: Mapping[str, Any] | None = None,
        priority: int = 0,
        max_attempts: int | None = None,
        lease: Duration | None = None,
        **columns: Any,
    ) -> Message:
        """Publish a message and wait for the reply that its consumer gives.

        May be called from many threads at once. The replies come by a temporary queue, which is
        made at the first request and dropped when the service stops.

        Args:
            payload: as in ``publish``.
            timeout: how long to wait for the reply.
            key, kind, headers, priority, max_attempts, lease: see ``Publication``; the headers
                ``reply_to`` and ``correlation_id`` are set here.
            columns: values of the queue's own columns.

        Returns:
            The reply, with its payload, kind and headers; it needs no ack.

        Raises:
            RequestTimeout: no reply came in time; ``withdrawn`` tells whether the request was
                taken back before anybody had begun with it.
            ReplyQueueGone: no reply can come any more, because this consumer was taken for dead.
            DuplicateKey, PayloadInvalid, PayloadTooLarge: nothing was published.
            DatabaseUnavailable: whether it was published, or is done, is unknown.
            TypeError, ValueError: an option has no sensible value, or has no place here.
        """
        publication = Publication(
            payload,
            key=key,
            kind=kind,
            headers=headers,
            priority=priority,
            max_attempts=max_attempts,
            lease=lease,
            columns=columns,
        )
        return self._core.requests.request(publication, timeout)

    def reply(
        self,
        message: Message,
        payload: Any,
        *,
        kind: str | None = None,
        headers: Mapping[str, Any] | None = None,
        connection: CallersConnection | None = None,
    ) -> Published:
        """Answer a request that was claimed or taken from this queue; see ``Message.reply``."""
        reply = Publication(payload, kind=kind, headers=headers)
        return self._core.reply(message, reply, connection)

    # -- look and administer

    def messages(
        self,
        *,
        status: str | None = None,
        key: str | None = None,
        kind: str | None = None,
        payload: Mapping[str, Any] | None = None,
        where: ColumnElement[bool] | None = None,
    ) -> LiveSelection:
        """Select live messages without claiming them.

        Args:
            status: ``ready``, ``delayed``, ``claimed`` or ``held``.
            key: the key of one message.
            kind: the name of their payload's type.
            payload: fields of a JSON payload that must be equal: paths such as ``address.city`` or
                ``items.0.sku`` to text, numbers, True, False or None.
            where: any SQLAlchemy condition on ``table``.

        Raises:
            ValueError: there is no such status, or no such path.
            UnsupportedByEngine: this database cannot look into JSON.
        """
        return LiveSelection(
            self._core.context, status=status, key=key, kind=kind, payload=payload, where=where
        )

    @property
    def archive(self) -> Archive:
        """The finished messages that are kept."""
        return Archive(self._core.context)

    def stats(self) -> QueueStats:
        """Count what is there now, by status and outcome; all of it at one moment."""
        return count_messages(self._core.context)

    def delete(self, message_id: int) -> bool:
        """Remove a message; a consumer that holds it loses it. False where there is none."""
        message_id = check_whole("message_id", message_id, 0)
        sql = self._core.context.sql
        return self._core.context.run(
            lambda c: store.delete_message(c, sql, message_id), durable=True
        )

    def cancel(self, message_id: int, reason: str | None = None) -> bool:
        """End a message as a dead letter, as ``reject`` does, even if a consumer holds it.

        Its holder can settle it no more. A worker sees that at its next renewal of leases, at most
        10 s later: ``message.cancelled`` turns true, and on an event loop the handler is cancelled.

        Args:
            message_id: of the message.
            reason: follows ``cancelled by operator`` in ``last_error``.

        Returns:
            Whether there was such a live message.

        Raises:
            DatabaseUnavailable: when the connection broke, whether it was cancelled is unknown.
        """
        message_id = check_whole("message_id", message_id, 0)
        return self._core.settlements.cancel(message_id, reason)

    def last_traceback(self, message_id: int) -> str | None:
        """Where the last failure of a message happened, live or archived.

        It is kept of exceptions: of a worker's handler, of a ``with`` block of ``receive``, and of
        those given to ``nack(error=…)``, but not in a transaction of the caller's; the last 20,000
        characters of each.

        Args:
            message_id: of the message.

        Returns:
            The traceback; None where there is no such message, or it has none.
        """
        return read_traceback(self._core.context, check_whole("message_id", message_id, 0))

    def purge(self, *, claimed: bool = False) -> int:
        """Remove ready, delayed and held messages; the archive stays.

        Args:
            claimed: remove claimed ones too; their holders lose them.

        Returns:
            How many were removed.
        """
        check_flag("claimed", claimed)
        sql = self._core.context.sql
        return self._core.context.run(
            lambda connection: store.purge(connection, sql, with_claimed=claimed), durable=True
        )

    def pause(self) -> None:
        """Stop handing out messages, everywhere and at once; what is claimed may be settled."""
        change_record(self._core.context, paused_at=self._core.context.tables.dialect.now())

    def resume(self) -> None:
        """Hand out messages again."""
        change_record(self._core.context, paused_at=None)
        self._core.context.announce()

    def refresh(self) -> None:
        """Read the settings again now."""
        self._core.context.refresh()

    def __repr__(self) -> str:
        return f"<Queue {self.name}>"
