"""Queue: publish, consume, settle, and look at what is there."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from queue_over_sql import store
from queue_over_sql.administration import QueueAdministration
from queue_over_sql.claiming import Claimer
from queue_over_sql.delivery import Delivery, as_list, as_where, mark_settled
from queue_over_sql.durations import Duration, to_timedelta
from queue_over_sql.errors import QueueError
from queue_over_sql.holding import QueueHolding
from queue_over_sql.message import Message
from queue_over_sql.publications import Publication, Published
from queue_over_sql.publishing import Publisher
from queue_over_sql.replies import QueueReplies
from queue_over_sql.reply_box import ReplyBox
from queue_over_sql.restoring import QueueReaper
from queue_over_sql.rounds import DEFAULT_TIMEOUT, DurableConsumer
from queue_over_sql.settings import check_whole
from queue_over_sql.settling import SettlerOfQueue

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from sqlalchemy import ColumnElement, Connection
    from sqlalchemy.orm import Session

    from queue_over_sql.context import QueueContext
    from queue_over_sql.message import MessageRow


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


class Queue(QueueHolding, QueueReplies, QueueAdministration):
    """One queue. Made by ``QueueService``; may be used from any thread."""

    def __init__(self, context: QueueContext) -> None:
        QueueAdministration.__init__(self, context)
        QueueHolding.__init__(self, SettlerOfQueue(context, self._came_back))
        self.reaper = QueueReaper(context)
        self._claimer = Claimer(context, self.reaper.restore, self.reaper.pace)
        self._publisher = Publisher(context)
        self.replies = ReplyBox(context, self._publisher)
        self._delivery = Delivery(context, self, self._settler.set_aside)

    # -- publish

    def publish(
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
        connection: Connection | Session | None = None,
        **columns: Any,
    ) -> Published:
        """Put a message into the queue; it is durable when this returns.

        Args:
            payload: a JSON value, a ``str`` or ``bytes``, by the queue's payload type.
            key: at most one live message has it.
            kind: name of the payload's type.
            headers: string keys to JSON values, up to 64 KiB.
            priority: 0 is the most urgent; up to the queue's ``priorities`` - 1.
            delay: stays invisible for so long.
            at: stays invisible until then; instead of ``delay``.
            max_attempts: deliveries before it is a dead letter, instead of the queue's.
            lease: how long a claim holds, instead of the queue's.
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
        return self._publisher.publish(publication, on_conflict, connection)

    def publish_many(
        self,
        items: Iterable[Any],
        *,
        on_conflict: str = "raise",
        connection: Connection | Session | None = None,
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
        return self._publisher.publish_many(items, on_conflict, connection)

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
        return self._publisher.load(items, batch_size, progress)

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
        seconds = to_timedelta(wait, "wait", zero=True).total_seconds()
        wanted, deadline = as_where(where), time.monotonic() + seconds
        unreadable: set[int] = set()
        while True:
            left = max(0.0, deadline - time.monotonic())
            rows = self._claimer.wait(count, lease, left, wanted)
            messages = self._delivered(rows)
            # What could not be read was given back on the spot: it must not hide the others, nor
            # keep us here for ever where it comes back at once.
            if messages or unreadable.issuperset(row.id for row in rows):
                return messages
            unreadable.update(row.id for row in rows)

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
        messages = as_list(finished)
        if not messages:
            return self.consume(count, lease=lease, where=where)
        wanted = as_where(where)
        groups = self._settler.grouped(messages)
        if sum(len(group.ids) for group in groups) < len(set(map(id, messages))):
            # Some are not ours to ack, so nothing may be claimed: this acks the others and raises.
            self.ack(messages)
        self._settler.guard(messages)
        settled, rows = self._claimer.exchange(
            count,
            lease,
            groups,
            self._settler.finish,
            keep=self._settler.keeps_finished,
            where=wanted,
        )
        mark_settled(messages)
        self._settler.refuse(messages, settled)
        return self._delivered(rows) or self.consume(count, lease=lease, where=where)

    def take(
        self,
        count: int = 1,
        *,
        connection: Connection | Session,
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
        wanted = as_where(where)

        def act(target: Connection) -> list[MessageRow]:
            # Only what does not fit its kind has to know the time.
            now = store.server_now(target, self._context.sql) if self._context.kinds else 0
            fate = partial(self._delivery.fate, now=now)
            return self._claimer.take(target, count, fate=fate, where=wanted)

        return self._delivery.messages(self._context.run_on(connection, act, atomic=True))

    def __repr__(self) -> str:
        return f"<Queue {self.name}>"

    # -- for the service, its topics and the worker

    def copy_of(self, publication: Publication) -> store.Copy:
        """What this queue gets of a message to a topic, checked and encoded by its own rules.

        Raises:
            PayloadInvalid and the others of ``publish``.
        """
        return store.Copy(self.name, self._context.sql, self._publisher.encode(publication))

    @property
    def context(self) -> QueueContext:
        """What the parts of this queue share."""
        return self._context

    @property
    def publisher(self) -> Publisher:
        """What encodes messages and puts them in."""
        return self._publisher

    def holds(self, message: Message) -> bool:
        """Whether this consumer may still work on a message, as far as it knows by itself."""
        return self._context.consumer.holds(message.claim)

    def announce(self) -> None:
        """Wake those in this process who wait for a message, and look fully next."""
        self._claimer.look_fully()
        self._context.announce()

    def take_columns(self, count: int, connection: Connection) -> list[RecordBatch] | None:
        """As ``take``, but as Arrow columns with payloads as they are stored.

        When the caller's transaction rolls back, ``announce`` must be called.

        Returns:
            Batches without empty ones; None where this queue can only be taken as messages.
        """
        context, settings = self._context, self._context.settings
        if context.tables.adoption is not None or settings.dedup_us is not None or context.kinds:
            return None
        keep = settings.archive == "all"
        return context.run_on(
            connection, lambda target: self._claimer.take_columns(target, count, keep=keep)
        )

    def recall(self) -> int:
        """Give back what was claimed here and never handed out."""
        return self._claimer.recall()

    def durable_consumer(
        self, consumer_id: str, *, owner: str, timeout: Duration | None = DEFAULT_TIMEOUT
    ) -> DurableConsumer:
        """A consumer of this queue that outlives its process, for streaming engines.

        Args:
            consumer_id: its name: 1 to 36 letters, digits, dots, dashes and underscores.
            owner: who this program is, for people: ``host:pid``.
            timeout: how long its claims are kept without a sign of life; None for ever.
        """
        return DurableConsumer(
            self._context,
            self._settler,
            self._came_back,
            consumer_id,
            owner=owner,
            timeout=timeout,
        )

    def release_all(self, consumer_id: str) -> int:
        """Give back, uncounted, all that a consumer of this service still holds."""
        sql = self._context.sql
        return self._context.run(lambda c: store.unclaim_all(c, sql, consumer_id))

    def _delivered(self, rows: Sequence[MessageRow]) -> list[Message]:
        try:
            return self._delivery.messages(rows)
        except BaseException:
            self._claimer.forsake(rows)
            raise

    def _came_back(self, available_at: int | None) -> None:
        self._claimer.look_fully(available_at)
        self._context.announce()
