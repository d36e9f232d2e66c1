"""Queue: publish, consume, settle, and inspect messages."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, Generic, Never, Unpack

from sqlalchemy.exc import DBAPIError

from queue_over_sql.archive.archive import Archive
from queue_over_sql.archive.errors import Errors
from queue_over_sql.archive.pruning import Pruning
from queue_over_sql.archive.results import Results
from queue_over_sql.archive.selection import encoded_payload
from queue_over_sql.attempts import Attempt, read_attempts
from queue_over_sql.claiming.claimer import Claimer
from queue_over_sql.claiming.operations import unclaim_all
from queue_over_sql.claiming.several import Source
from queue_over_sql.consumers.lease_renewal import KeptMessages
from queue_over_sql.errors import ClaimLost, DatabaseRefused, PayloadInvalid, QueueError
from queue_over_sql.groups.groups import Groups
from queue_over_sql.message import (
    Message,
    Payload,
    Publication,
    Published,
    claim_of,
    claimed_lease_us,
    expiry_of,
    holder_of,
    is_by_token,
    is_expired,
    is_given_back,
    lease_ends_at,
    may_come_in_time,
    may_have_expired,
)
from queue_over_sql.observer import facts_of, log_lost
from queue_over_sql.publishing.column_values import all_columns
from queue_over_sql.publishing.publisher import ObservedPublisher, Publisher
from queue_over_sql.queues.context import once_more
from queue_over_sql.queues.decoding import Decoder, as_where
from queue_over_sql.queues.pause import change_record
from queue_over_sql.queues.purge import purge
from queue_over_sql.queues.stats import QueueStats, count_messages
from queue_over_sql.recovery.recovery import Recovery
from queue_over_sql.request_reply.reply_queues import ReplyBox
from queue_over_sql.request_reply.request import Requests
from queue_over_sql.selection.operations import EditResult, delete_message, edit_content
from queue_over_sql.selection.selection import LiveSelection, condition_of, read_traceback
from queue_over_sql.selection.why import Explanation, explain
from queue_over_sql.settings import UNSET
from queue_over_sql.settling.settlements import Settlements, as_list, mark_settled
from queue_over_sql.settling.tokens import Tokens, texts_of
from queue_over_sql.sql.operation import Operation
from queue_over_sql.statements.clock import server_now
from queue_over_sql.statements.operations import savepoint
from queue_over_sql.statements.requests import Disposition, count_ids
from queue_over_sql.values.checks import check_flag, check_id, check_whole
from queue_over_sql.values.durations import Duration, elapsed_clock, to_timedelta
from queue_over_sql.values.options import (
    PUBLISH_DEFAULTS,
    RequestOptions,
    names_of,
    spelled_out,
)

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from sqlalchemy import ColumnElement, Connection, Table

    from queue_over_sql.consumers.consumer import LastingHolder
    from queue_over_sql.message import CallersConnection
    from queue_over_sql.queues.context import QueueContext
    from queue_over_sql.request_reply.reply_queues import ReplyQueues
    from queue_over_sql.settings import EffectiveSettings
    from queue_over_sql.values.states import LiveStatus, OnConflict


_log = logging.getLogger(__name__)
# How many conditions by fields of payloads are remembered.
_MOST_MATCHING: Final = 100


def name_of(queue: object) -> str:
    """The name of a queue, which is given as a ``Queue`` or by name.

    Raises:
        TypeError: it is neither a queue nor a name.
    """
    # Names may also be enum members, which have a ``name`` of their own.
    name = queue if isinstance(queue, str) else getattr(queue, "name", None)
    if not isinstance(name, str) or not (name is queue or hasattr(queue, "consume")):
        msg = f"queue must be a Queue or the name of one, not {type(queue).__name__}"
        raise TypeError(msg)
    return str.__str__(name)


def hold_length(lease: Duration | None, hold_for: Duration | None) -> timedelta | None:
    """The length of a claim that ends with its lease; None for an ordinary claim."""
    if hold_for is None:
        return None
    if lease is not None:
        msg = "hold_for= is a length of the lease, too: use either lease= or hold_for="
        raise ValueError(msg)
    return to_timedelta(hold_for, "hold_for")


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
        self.pruning = Pruning(context)
        self.errors = Errors(context)
        self.decoder = Decoder(context, self, settlements.defer, settlements.expire)
        self.claimer = Claimer(context, self.decoder, self.recovery)
        # Conditions by fields of the payload, with the ``where`` that they contain.
        self._matching: dict[Any, tuple[Any, ColumnElement[bool]]] = {}
        # The claimers of claims that end with their lease, by their holder.
        self._lasting: dict[str, Claimer] = {}
        self.tokens = Tokens(context, self)
        self.token = self.tokens.of
        self.results = Results(context)
        self.reply_box = ReplyBox(context, self.publisher, self)
        self.requests = Requests(context, self.publish, settlements, reply_queues)
        self.ack, self.nack, self.release = settlements.ack, settlements.nack, settlements.release
        self.reject, self.extend = settlements.reject, settlements.extend
        self.reply = self.requests.reply
        self._kept = KeptMessages(context.consumer.keeper, self)

    def consume(
        self,
        count: int,
        lease: Duration | None,
        wait: Duration,
        where: ColumnElement[bool] | None,
    ) -> list[Message]:
        """Claim for a caller; suspects and the messages of this consumer's workers stay apart."""
        isolation = self.context.consumer.isolation
        apart = isolation if isolation.has_workers else None
        return self.claimer.consume(count, lease, wait, where, apart)

    def matching(
        self, payload: Mapping[str, Any], where: ColumnElement[bool] | None
    ) -> ColumnElement[bool]:
        """The condition for these fields and ``where``, the same object each time."""
        # 1, 1.0 and True are equal, but not in JSON.
        fields = tuple(sorted((path, repr(value)) for path, value in payload.items()))
        known = self._matching.get((fields, id(where)))
        if known is None or known[0] is not where:
            if len(self._matching) >= _MOST_MATCHING:
                self._matching.clear()
            known = where, condition_of(self.context, payload, where)
            self._matching[fields, id(where)] = known
        return known[1]

    @once_more
    def edit(
        self,
        message_id: int,
        payload: Any,
        columns: Mapping[str, Any],
        connection: CallersConnection | None,
    ) -> EditResult:
        """See ``Queue.edit``."""
        context = self.context
        if not context.tables.has_payloads:
            msg = (
                f"the messages of queue {context.name!r} are rows of an adopted table. Change the "
                "row itself"
            )
            raise ValueError(msg)
        encode = None if payload is UNSET else partial(encoded_payload, context, payload=payload)
        values = self.publisher.changed_values(columns)
        if encode is None and not values:
            msg = "give payload or columns"
            raise ValueError(msg)
        editing = edit_content.of(context.sql, message_id, encode, values)
        return context.run(editing, connection)

    @once_more
    def delete(self, message_id: int, connection: CallersConnection | None) -> bool:
        """See ``Queue.delete``."""
        context = self.context
        removal = delete_message.of(context.sql, message_id)
        return context.run(removal._replace(atomic=context.tables.grouped), connection)

    def keep(self, messages: Message | Sequence[Message]) -> AbstractContextManager[None]:
        """See ``Queue.keep``."""
        return self.context.consumer.keeper.keeping(self, as_list(messages))

    def kept(self, claim: Callable[[], list[Message]]) -> list[Message]:
        """Claim messages whose leases are renewed until they are settled."""
        messages = claim()
        if messages:
            try:
                self._kept.add(messages)
            except BaseException:
                # No thread is free: the caller gets none of them.
                with contextlib.suppress(QueueError):
                    self.release(messages)
                raise
        return messages

    def source(
        self, count: int, lease: Duration | None, hold_for: Duration | None, *, keep: bool
    ) -> Source:
        """What claims from several queues need of this one; see ``Queue.consume``."""
        held, claimer = hold_length(lease, hold_for), self.claimer
        claim = partial(self.consume, count, lease, 0.0, None)
        if held is not None:
            claimer = self.lasting()
            claim = partial(claimer.consume, count, held, 0.0, None)
        return Source(self.context, claimer, partial(self.kept, claim) if keep else claim)

    def exchange_apart(
        self,
        finished: Message | Sequence[Message],
        count: int,
        lease: Duration | None,
        where: ColumnElement[bool] | None,
    ) -> list[Message]:
        """As ``exchange``, for a caller; beside a worker first the ack, and then the claim."""
        if not self.context.consumer.isolation.has_workers:
            return self.exchange(finished, count, lease, where)
        self.ack(finished)
        return self.consume(count, lease, 0.0, where)

    def lasting(self) -> Claimer:
        """The claimer of claims that end with their lease and not with this process."""
        return self._claimer_of(self.context.consumer.lasting())

    def lasting_for(self, holder: str, host: str) -> Claimer:
        """As ``lasting``, in the name of others, for whom payloads are not decoded by their kinds.

        Args:
            holder: the consumer id of their claims.
            host: what the list of consumers shows instead of a host.
        """
        return self._claimer_of(self.context.consumer.lasting(holder, host), plain=True)

    def _claimer_of(self, holder: LastingHolder, *, plain: bool = False) -> Claimer:
        known = self._lasting.get(holder.consumer_id)
        if known is None:
            context = self.context.without_kinds() if plain else self.context
            decoder = Decoder(context, self, self.settlements.defer, self.settlements.expire)
            known = Claimer(context, decoder, self.recovery, holder)
        return self._lasting.setdefault(holder.consumer_id, known)

    def exchange(
        self,
        finished: Message | Sequence[Message],
        count: int,
        lease: Duration | None,
        where: ColumnElement[bool] | None,
        most: int | None = None,
    ) -> list[Message]:
        """Ack messages and claim the next ones; see ``Queue.exchange``.

        ``most``: how many messages of one group to claim; None: any number.
        """

        def claim() -> list[Message]:
            return self.claimer.consume(count, lease, 0.0, where, most=most)

        messages, settlements = as_list(finished), self.settlements
        if not messages:
            return claim()
        wanted = as_where(where)
        groups = settlements.grouped(messages)
        if count_ids(groups) < len(messages):
            # Some do not belong to this consumer: ack the others, raise, and claim nothing.
            settlements.ack(messages)
        settlements.guard(messages)
        began, first = elapsed_clock(), set[int]()

        def acked(ids: set[int]) -> None:
            first.update(ids)
            mark_settled(message for message in messages if message.id in ids)

        try:
            settled, rows = self.claimer.exchange(
                count,
                lease,
                groups,
                keep=settlements.keeps_finished,
                where=wanted,
                acked=acked,
                most=most,
            )
        except QueueError as error:
            if first and self.context.observer is not None:
                settlements.report_done([each for each in messages if each.id in first], first)
            row_refused = isinstance(error, DatabaseRefused | PayloadInvalid)
            if not (row_refused and settlements.refuses_row(error)):
                raise
            if left := [message for message in messages if message.id not in first]:
                settlements.ack(left)
            return claim()
        mark_settled(messages)
        if self.context.observer is not None:
            settlements.report_done(messages, settled)
        settlements.refuse(messages, settled)
        return self.claimer.decoded(rows, began) or claim()

    def take(
        self, count: int, connection: CallersConnection, where: ColumnElement[bool] | None
    ) -> list[Message]:
        """See ``Queue.take``."""
        wanted, settlements = as_where(where), self.settlements
        refused, ended = dict[int, str](), dict[int, Disposition]()
        careful = settlements.may_be_refused(keep=settlements.keeps_finished)

        def take(target: Connection) -> list[Message]:
            # Only what does not fit its kind, or expires, has to know the time.
            clock = cache(lambda: server_now(target, self.context.sql))
            decode = partial(self.decoder.taken, clock=clock)
            done = self.decoder.done
            with self.context.dialect.callers.reading_all(target):
                return self.claimer.take(
                    target,
                    count,
                    decode=decode,
                    done=done,
                    where=wanted,
                    refused=refused,
                    ended=ended,
                    careful=careful,
                )

        began, observer = time.monotonic(), self.context.observer
        try:
            messages = self.context.run(Operation(take, atomic=True), connection)
        except (DatabaseRefused, PayloadInvalid) as error:
            settlements.refuses_on(error)
            self.recovery.unreadable.note(error)
            raise
        settlements.log_refused(refused)
        settlements.note_ended(ended)
        if observer is not None and messages:
            name, seconds = self.context.name, time.monotonic() - began
            observer.claimed(name, facts_of(messages), seconds)
            observer.settled(name, "done", [message.id for message in messages])
        return messages

    def take_columns(self, count: int, connection: Connection) -> list[RecordBatch] | None:
        """As ``take``, but as Arrow columns with payloads as they are stored.

        If the caller's transaction rolls back, call ``wake_consumers``.

        Returns:
            Non-empty batches; None if these messages can only be taken with ``take``.
        """
        context, settings = self.context, self.context.settings
        if not context.tables.has_payloads or settings.dedup_us is not None or context.kinds:
            return None
        if context.expiring or settings.expires is not None or context.tables.has_rules:
            return None
        keep = settings.archive == "all"

        def take(target: Connection) -> list[RecordBatch] | None:
            if not self.settlements.may_be_refused(keep=keep):
                return self.claimer.take_columns(target, count, keep=keep)
            try:
                with savepoint(target):
                    return self.claimer.take_columns(target, count, keep=keep)
            except DBAPIError as error:
                # ``take`` holds what the database refuses to finish.
                if context.dialect.errors.refuses_row(error):
                    return None
                raise

        try:
            return context.run(take, connection)
        except (DatabaseRefused, PayloadInvalid) as error:
            self.settlements.refuses_on(error)
            raise

    def not_expired(self, messages: Sequence[Message]) -> list[Message]:
        """Those that may be started now; ends the others, which expired since they were claimed."""
        if not any(map(expiry_of, messages)):
            return list(messages)
        now = elapsed_clock()
        late = [message for message in messages if may_have_expired(message, now)]
        if late:
            context = self.context
            clock = context.run(lambda connection: server_now(connection, context.sql))
            late = [message for message in late if is_expired(message, clock)]
        if not late:
            return list(messages)
        try:
            self.settlements.expire(late)
        except ClaimLost as error:
            log_lost(self.context.name, error)
        return [message for message in messages if message not in late]

    def undisturbed(self, message: Message, waiting: list[Message]) -> list[Message]:
        """Those that may begin after a message; if it came back, those behind it do, too."""
        if not waiting or message.group is None or not is_given_back(message):
            return waiting
        same = [each for each in waiting if each.group == message.group]
        behind = [each for each in same if claim_of(each) == claim_of(message)]
        if not behind or self.claimer.series([message, *behind])[0] is None:
            return waiting
        with contextlib.suppress(ClaimLost):
            # Most often they have come back with it.
            self.settlements.release(behind)
        return [each for each in waiting if each not in behind]

    def holds(self, message: Message) -> bool:
        """Whether this consumer still holds a message, as far as it knows without a query."""
        if is_by_token(message):
            return not message.settled and elapsed_clock() < lease_ends_at(message)
        claim = claim_of(message)
        return claim is not None and self.context.consumer.holds(claim.consumer_id)

    def holds_all(self, messages: Sequence[Message]) -> bool:
        """As ``holds``, of all of them; none was claimed by a token."""
        return all(map(self.context.consumer.holds, set(map(holder_of, messages))))

    def release_all(self, consumer_id: str) -> int:
        """Release all messages of a consumer of this service, without counting the deliveries."""
        sql = self.context.sql
        count = self.context.run(lambda c: unclaim_all(c, sql, consumer_id))
        if count:
            self.wake_consumers()
        return count

    def wake_consumers(self) -> None:
        """Wake this process's waiting consumers; their next claims search the whole queue."""
        self.came_back(None)

    def came_back(self, available_at: int | None) -> None:
        """Note that messages returned to this place in the queue (None: any) and wake consumers."""
        for claimer in (self.claimer, *list(self._lasting.values())):
            claimer.look_fully(available_at)
        self.context.wake_consumers()


def core_of(queue: Queue) -> QueueCore:
    """The parts of a queue, for the other modules of this package."""
    return queue._core  # noqa: SLF001 - this is the one way to them


class Queue(Generic[Payload]):
    """A queue. ``QueueService`` creates it; it may be used from any thread.

    ``Queue[Order]`` has payloads of type ``Order``, for type checkers; ``Queue`` has any.
    """

    def __init__(self, core: QueueCore) -> None:
        self._core = core

    @property
    def name(self) -> str:
        """The queue's name, as it is in the names of its tables."""
        return self._core.context.name

    @property
    def title(self) -> str:
        """What it was called when it was created, in up to 255 characters; most often ``name``."""
        tables = self._core.context.tables
        return tables.queue if tables.title is None else tables.title

    @property
    def table(self) -> Table:
        """The SQLAlchemy ``Table`` of the live messages, for conditions and queries."""
        return self._core.context.tables.live

    @property
    def temporary(self) -> bool:
        """Whether it is dropped together with its consumer, as the queues of replies are."""
        return self._core.context.tables.temporary

    @property
    def settings(self) -> EffectiveSettings:
        """The current settings; durations are ``timedelta``.

        Raises:
            QueueNotFound: the queue was dropped.
        """
        return self._core.context.settings

    # -- publish

    # It names its options, unlike the other ways to publish, because people look here first.
    def publish(  # noqa: D417 - Publication describes its options
        self,
        payload: Payload,
        *,
        key: str | None = None,
        kind: str | None = None,
        group: str | None = None,
        headers: Mapping[str, Any] | None = None,
        priority: int = 0,
        delay: Duration | None = None,
        at: datetime | None = None,
        max_attempts: int | None = None,
        lease: Duration | None = None,
        expires: Duration | None = None,
        on_conflict: OnConflict = "raise",
        connection: CallersConnection | None = None,
        columns: Mapping[str, Any] | None = None,
        **own: Never,
    ) -> Published:
        """Publish a message; it is durable when this returns.

        Args:
            payload: a JSON value, a ``str`` or ``bytes``, by the queue's payload type.
            key, …, expires: the options of the message, see ``Publication``.
            on_conflict: what to do if the key is taken: ``"raise"``; ``"skip"`` the new message; or
                ``"replace"`` the content of the live message, whose holder then loses its claim. If
                only the ``dedup_window`` still keeps the key, ``"replace"`` skips, too.
            connection: the caller's own transaction, which this does not commit: the message is
                published when the caller commits it.
            columns: values of the queue's own columns, by name.
            own: these values as keyword arguments, ``price=3``. They work, but type checkers refuse
                them, because they cannot tell ``dealy=3`` from a column.

        Returns:
            The message's id, and whether it was created, skipped, replaced or unchanged.

        Raises:
            DuplicateKey: the key is taken and ``on_conflict`` is ``"raise"``.
            GroupFull: there is no room for it, and ``when_full`` is ``"reject"``.
            PayloadInvalid, PayloadTooLarge: nothing was published.
            WrongDatabase: ``connection`` belongs to another database.
            DatabaseUnavailable: if the connection broke, it is unknown whether the message was
                published.
            TypeError, ValueError: an option has an invalid value, or ``on_conflict`` has no key.
        """
        publication = Publication(
            payload,
            key=key,
            kind=kind,
            group=group,
            headers=headers,
            priority=priority,
            delay=delay,
            at=at,
            max_attempts=max_attempts,
            lease=lease,
            expires=expires,
            columns=all_columns(columns, own),
        )
        return self._core.publish(publication, on_conflict, connection)

    def publish_many(
        self,
        items: Iterable[Payload | Publication[Payload]],
        *,
        on_conflict: OnConflict = "raise",
        connection: CallersConnection | None = None,
    ) -> list[Published]:
        """Publish many messages in one transaction: all or none, in the given order.

        Args:
            items: payloads, or ``Publication`` objects for those with options.
            on_conflict: as in ``publish``, for each of them.
            connection: the caller's own transaction, which this does not commit.

        Returns:
            One result per item, in order.

        Raises:
            DuplicateKey and the other errors of ``publish``: nothing was published. An error about
                one of several items names it, as in ``items[3]``.
        """
        return self._core.publish_many(items, on_conflict, connection)

    def load(
        self,
        items: Iterable[Payload | Publication[Payload]],
        *,
        batch_size: int = 10_000,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Publish a large number of messages, in the engine's fastest way.

        Args:
            items: payloads or ``Publication`` objects; read one batch at a time.
            batch_size: messages per transaction.
            progress: called after each batch with the number published so far.

        Returns:
            How many were published.

        Raises:
            DuplicateKey and the other errors of ``publish``: earlier batches were published, and
            nothing of the failed batch.
        """
        return self._core.load(items, batch_size, progress)

    # -- consume

    def consume(
        self,
        count: int = 1,
        *,
        lease: Duration | None = None,
        hold_for: Duration | None = None,
        keep: bool = False,
        wait: Duration = 0.0,
        where: ColumnElement[bool] | None = None,
        payload: Mapping[str, Any] | None = None,
    ) -> list[Message[Payload]]:
        """Claim messages: no other consumer gets them until they are released or the lease ends.

        Args:
            count: the maximum number of messages.
            lease: length of the lease, instead of the message's or the queue's.
            hold_for: length of a lease that nothing but its end takes away: neither ``stop()`` nor
                the death of this process gives these messages back. Any process settles them by
                their ``token``. Instead of ``lease``.
            keep: renew the leases in the background until each message is settled through its
                object, its claim is lost, or this service stops or its process dies.
            wait: how long to wait for the first message.
            where: only messages that match this SQLAlchemy condition on ``table``. Pass the same
                expression object each time, so that its statement is compiled only once.
            payload: only messages with these fields of the JSON payload, as in ``messages``. It
                reads the payloads of all messages that come first.

        Returns:
            Up to ``count`` messages, oldest first.

        Raises:
            QueueNotFound, DatabaseUnavailable, ServiceClosed: nothing was claimed.
            ValueError: both ``lease`` and ``hold_for`` were given, or a path is not valid.
            UnsupportedByEngine: this database cannot search in JSON.
        """
        if payload:
            where = self._core.matching(payload, where)
        held = hold_length(lease, hold_for)
        claim = partial(self._core.consume, count, lease, wait, where)
        if held is not None:
            claim = partial(self._core.lasting().consume, count, held, wait, where)
        return self._core.kept(claim) if check_flag("keep", keep) else claim()

    @contextlib.contextmanager
    def receive(
        self,
        *,
        wait: Duration = 0.0,
        lease: Duration | None = None,
        hold_for: Duration | None = None,
    ) -> Iterator[Message[Payload] | None]:
        """Claim one message for a ``with`` block: ack at its end, nack if it raises.

        If the block settles the message itself, nothing more is done. The arguments are those of
        ``consume``.

        Yields:
            The message, or None if none arrived in time.
        """
        messages = self.consume(1, lease=lease, hold_for=hold_for, wait=wait)
        if not messages:
            yield None
            return
        message = messages[0]
        try:
            yield message
        except BaseException as error:
            # Try it even if the block settled it, since that may have been rolled back. The fence
            # refuses what is settled.
            with contextlib.suppress(QueueError):
                message.nack(error)
            raise
        if not message.settled:
            message.ack()

    def stream(
        self,
        *,
        prefetch: int = 1,
        wait: Duration | None = 0.0,
        lease: Duration | None = None,
        hold_for: Duration | None = None,
    ) -> Generator[Message[Payload], None, None]:
        """Yield messages one after another; the caller settles each of them.

        Args:
            prefetch: how many to claim at once. The leases of those not yet yielded are renewed
                when you ask for the next one. They are released at the end.
            wait: the stream ends if no message arrives for this long; None: it never ends.
            lease: length of each lease.
            hold_for: as in ``consume``.
        """
        prefetch = check_whole("prefetch", prefetch)
        waiting: list[Message[Payload]] = []
        try:
            while True:
                longest = 3600.0 if wait is None else wait
                waiting = self.consume(prefetch, lease=lease, hold_for=hold_for, wait=longest)
                if not waiting and wait is not None:
                    return
                look_at = _renew_at(waiting)
                while waiting:
                    if elapsed_clock() >= look_at or not self.holds(waiting[0]):
                        waiting = self._still_held(waiting)
                        look_at = _renew_at(waiting)
                    if waiting:
                        in_time = self._core.not_expired(waiting[:1])
                        message = waiting.pop(0)
                        yield from in_time
                        waiting = self._core.undisturbed(message, waiting)
        finally:
            if waiting:
                with contextlib.suppress(QueueError):
                    self.release(waiting)

    def _still_held(self, waiting: list[Message[Payload]]) -> list[Message[Payload]]:
        """Those that may be yielded; renews their leases once a third of them has passed."""
        held = [message for message in waiting if self.holds(message)]
        if elapsed_clock() >= _renew_at(held):
            try:
                self.extend(held)
            except ClaimLost as error:
                log_lost(self.name, error)
                held = [message for message in held if message not in error.messages]
            except QueueError as error:
                _log.warning("Queue %s: leases could not be renewed: %s", self.name, error)
        late = [message for message in held if elapsed_clock() >= lease_ends_at(message)]
        if late:
            with contextlib.suppress(QueueError):
                self.release([message for message in late if may_come_in_time(message)])
        return [message for message in held if message not in late]

    def exchange(
        self,
        finished: Message | Sequence[Message],
        count: int = 1,
        *,
        lease: Duration | None = None,
        where: ColumnElement[bool] | None = None,
    ) -> list[Message[Payload]]:
        """Ack finished messages and claim the next ones in one transaction.

        Args:
            finished: messages to ack; may be empty.
            count: the maximum number of messages to claim.
            lease: as in ``consume``.
            where: as in ``consume``.

        Raises:
            ClaimLost: the claims of some of ``finished`` are lost; all others were acked, and
                nothing was claimed.
        """
        return self._core.exchange_apart(finished, count, lease, where)

    def take(
        self,
        count: int = 1,
        *,
        connection: CallersConnection,
        where: ColumnElement[bool] | None = None,
    ) -> list[Message[Payload]]:
        """Remove the oldest messages inside the caller's transaction.

        If the transaction commits, they are finished. If it rolls back or the process dies, they
        stay in the queue and no attempt is counted. Keep the transaction short, because it locks
        their rows.

        Args:
            count: the maximum number of messages.
            connection: the caller's own transaction.
            where: as in ``consume``.

        Returns:
            The messages, oldest first; you need not ack them. What the database refuses to finish
            is not among them: it is held with the reason, if the transaction commits.
        """
        return self._core.take(count, connection, where)

    def holds(self, message: Message) -> bool:
        """Whether this consumer still holds a message, as far as it knows without a query."""
        return self._core.holds(message)

    def held(self, token: str, *, connection: CallersConnection | None = None) -> Message[Payload]:
        """The message that a claim holds, by the claim's token, in any process.

        Its verbs are fenced by that claim: if several processes settle one, one of them does, and
        the others get ``ClaimLost``. Attempts, dead letters, archive and observers are as usual.
        If its claimer is an ordinary consumer, the claim also ends when that is stopped or dead.

        Args:
            token: the claim's ``message.token``.
            connection: the caller's own transaction, in which the message is read. Give it also to
                the verb that settles the message.

        Raises:
            ClaimLost: the claim no longer holds the message, or its consumer is gone.
            InvalidToken: it is no token of this queue: it was changed, or is another queue's.
        """
        found = self._core.tokens.held([token], connection=connection).get(token)
        if found is None:
            raise self._core.tokens.lost(token)
        return found

    def held_many(
        self, tokens: Sequence[str], *, connection: CallersConnection | None = None
    ) -> list[Message[Payload]]:
        """As ``held``, for many tokens at once; without those whose claims are lost.

        Args:
            tokens: the tokens of claims. Each message's ``token`` says which of them it is for.
            connection: as in ``held``.

        Raises:
            InvalidToken: one is no token of this queue.
        """
        return list(self._core.tokens.held(texts_of(tokens), connection=connection).values())

    # -- settle

    def ack(
        self,
        messages: Message | Sequence[Message],
        *,
        connection: CallersConnection | None = None,
        result: Any = None,
    ) -> None:
        """Finish messages: they are removed, or archived if the queue keeps finished messages.

        Args:
            messages: one or several, from any claims.
            connection: the caller's own transaction, which this does not commit.
            result: a JSON value of up to 64 KiB, which is kept with the archived message: anybody
                reads it with ``result``. The queue needs ``archive="all"``.

        Raises:
            PayloadInvalid, PayloadTooLarge, ValueError: the result cannot be kept; nothing was
                changed.
            ClaimLost: lists the messages whose claim is lost; all others were acked.
            ConsumerExpired: this consumer missed its heartbeat; nothing was changed.
            NotFinished: with ``connection``, lists the messages that the database refused to
                finish. If you commit, they are held and all others are acked. Without
                ``connection`` they are held, too, which is only logged.
            DatabaseRefused: with ``connection``, the database refused to delete a message for the
                first time. Roll back and repeat: then ``NotFinished`` lists what it refuses.
        """
        self._core.settlements.ack(messages, connection, result=result)

    def nack(
        self,
        messages: Message | Sequence[Message],
        *,
        error: str | BaseException | None = None,
        delay: Duration | None = None,
        connection: CallersConnection | None = None,
    ) -> None:
        """Report failures: retry each message later, or dead-letter it if out of attempts.

        Args:
            messages: one or several.
            error: the reason.
            delay: when to retry, instead of the retry policy; even if the policy would give up.
            connection: the caller's own transaction, which this does not commit.

        Raises:
            ClaimLost, ConsumerExpired, NotFinished: as in ``ack``.
        """
        self._core.settlements.nack(messages, error, delay, connection)

    def release(
        self,
        messages: Message | Sequence[Message],
        *,
        connection: CallersConnection | None = None,
        delay: Duration | None = None,
        count: bool = False,
    ) -> None:
        """Return messages to the queue unchanged; the delivery is not counted.

        Args:
            messages: one or several.
            connection: the caller's own transaction, which this does not commit.
            delay: when they are due again. None: they are due now, at their old places.
            count: count the delivery as a failed attempt. Messages whose last attempt it was become
                dead letters.

        Raises:
            ClaimLost, ConsumerExpired: as in ``ack``; with ``count`` also ``NotFinished``.
        """
        counted = check_flag("count", count)
        self._core.settlements.release(messages, connection, delay, count=counted)

    def reject(
        self,
        messages: Message | Sequence[Message],
        reason: str,
        *,
        connection: CallersConnection | None = None,
    ) -> None:
        """Make dead letters of messages: they are not delivered again.

        Args:
            messages: one or several.
            reason: stored in the archive as ``last_error``.
            connection: the caller's own transaction, which this does not commit.

        Raises:
            ClaimLost, ConsumerExpired, NotFinished: as in ``ack``.
        """
        self._core.settlements.reject(messages, reason, connection)

    def extend(
        self,
        messages: Message | Sequence[Message],
        lease: Duration | None = None,
        *,
        connection: CallersConnection | None = None,
    ) -> None:
        """Renew leases; the new length counts from now.

        Args:
            messages: one or several.
            lease: the new length; None: that of each claim.
            connection: the caller's own transaction, which this does not commit.

        Raises:
            ClaimLost, ConsumerExpired: as in ``ack``.
        """
        self._core.settlements.extend(messages, lease, connection)

    def result(self, message_id: int, *, wait: Duration = 0.0) -> Any:
        """The result of a finished message; None if it was acked without one.

        It is there as long as the archive keeps the message.

        Args:
            message_id: id of the message, as ``publish`` returned it.
            wait: how long to wait until the message is finished.

        Raises:
            ResultTimeout: the message was not finished in time.
            NoResult: it has no result and gets none: it became a dead letter, the queue does not
                have it, or the queue does not keep finished messages.
        """
        return self._core.results.result(check_id("message_id", message_id), wait)

    def keep(self, messages: Message | Sequence[Message]) -> AbstractContextManager[None]:
        """Renew the leases of claimed messages while a ``with`` block runs, however long it takes.

        A message whose claim is lost meanwhile shows ``cancelled``.

        Args:
            messages: one or several.
        """
        return self._core.keep(messages)

    # -- ask and answer

    @spelled_out(RequestOptions, PUBLISH_DEFAULTS)
    def request(
        self,
        /,  # so that a column may be named `self`, and proxies can have these types
        payload: Payload,
        *,
        timeout: Duration,
        **options: Unpack[RequestOptions],
    ) -> Message:
        """Publish a message and wait for its consumer's reply.

        Many threads may call this at once. Replies arrive in a temporary queue, which is created at
        the first request and dropped when the service stops.

        Args:
            payload: as in ``publish``.
            timeout: how long to wait for the reply.
            options: those of ``Publication``, without ``delay`` and ``at``; the queue's own columns
                as in ``publish``. This sets the headers ``reply_to`` and ``correlation_id``.

        Returns:
            The reply, with its payload, kind and headers; you need not ack it.

        Raises:
            RequestTimeout: no reply arrived in time; ``withdrawn`` says whether the request was
                removed before a consumer claimed it.
            ReplyQueueGone: no reply can arrive, because this consumer is considered dead.
            DuplicateKey, GroupFull, PayloadTooLarge: nothing was published.
            PayloadInvalid: nothing was published, or the reply cannot be read and stays.
            DatabaseUnavailable: it is unknown whether the request was published or handled.
            TypeError, ValueError: an option has an invalid value, or is not possible for a request.
        """
        given, names = dict[str, Any](options), names_of(RequestOptions)
        own = {name: given.pop(name) for name in list(given) if name not in names}
        given["columns"] = all_columns(given.get("columns"), own)
        publication = Publication(payload, **given)
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
        """Reply to a request that was claimed or taken from this queue; see ``Message.reply``."""
        reply = Publication(payload, kind=kind, headers=headers)
        return self._core.reply(message, reply, connection)

    # -- look and administer

    def messages(
        self,
        *,
        status: LiveStatus | None = None,
        key: str | None = None,
        kind: str | None = None,
        group: str | None = None,
        payload: Mapping[str, Any] | None = None,
        where: ColumnElement[bool] | None = None,
    ) -> LiveSelection:
        """Select live messages without claiming them.

        Args:
            status: ``ready``, ``delayed``, ``claimed`` or ``held``.
            key: only the message with this key.
            kind: only messages of this kind.
            group: only messages of this group.
            payload: fields of the JSON payload that must be equal: a mapping of paths, such as
                ``address.city`` or ``items.0.sku``, to text, numbers, True, False or None.
            where: any SQLAlchemy condition on ``table``.

        Raises:
            ValueError: the status or a path is not valid, or the queue has no groups.
            UnsupportedByEngine: this database cannot search in JSON.
        """
        return LiveSelection(
            self._core.context,
            status=status,
            key=key,
            kind=kind,
            group=group,
            payload=payload,
            where=where,
        )

    @property
    def archive(self) -> Archive:
        """The archive, which holds finished messages."""
        return Archive(self._core.context)

    @property
    def groups(self) -> Groups:
        """The groups of its messages, by name, if it has a ``group_limit``."""
        return Groups(self._core.context)

    def stats(self) -> QueueStats:
        """Count the messages by status and outcome, all at one moment."""
        return count_messages(self._core.context)

    def edit(
        self,
        message_id: int,
        *,
        payload: Any = UNSET,
        columns: Mapping[str, Any] | None = None,
        connection: CallersConnection | None = None,
    ) -> EditResult:
        """Change the payload or own columns of a live message that no consumer holds.

        A message that was deferred because it did not fit its kind is due now with a new payload.

        Args:
            message_id: id of the message.
            payload: the new payload, checked as by a publish, and against the message's kind if
                this service knows that.
            columns: new values of some of the queue's own columns, by name.
            connection: the caller's own transaction, which this does not commit.

        Returns:
            1 if it was changed, else 0; then ``skipped`` is 1 if a consumer holds it.

        Raises:
            PayloadInvalid, PayloadTooLarge: the payload is not valid; nothing was changed.
            TypeError, ValueError: a column is not valid, nothing is to be changed, or the messages
                are rows of an adopted table.
        """
        message_id = check_id("message_id", message_id)
        return self._core.edit(message_id, payload, columns or {}, connection)

    def delete(self, message_id: int, *, connection: CallersConnection | None = None) -> bool:
        """Remove a message, even if a consumer holds it; False if it does not exist.

        Args:
            message_id: id of the message.
            connection: the caller's own transaction, which this does not commit.

        Raises:
            DatabaseUnavailable: if the connection broke, it may be unknown whether the message was
                removed.
        """
        return self._core.delete(check_id("message_id", message_id), connection)

    def cancel(
        self,
        message_id: int,
        reason: str | None = None,
        *,
        connection: CallersConnection | None = None,
    ) -> bool:
        """Make a dead letter of a message, as ``reject`` does, even if a consumer holds it.

        Its holder can no longer settle it. A worker notices at its next lease renewal, at most 10 s
        later: it sets ``message.cancelled``, and on an event loop it cancels the handler.

        If the database refuses to finish the message, it is held with the reason, so that no
        consumer gets it.

        Args:
            message_id: id of the message.
            reason: added to ``cancelled by operator`` in ``last_error``.
            connection: the caller's own transaction, which this does not commit.

        Returns:
            Whether the live message existed.

        Raises:
            DatabaseUnavailable: if the connection broke, it may be unknown whether the message was
                cancelled.
        """
        message_id = check_id("message_id", message_id)
        return self._core.settlements.cancel(message_id, reason, connection)

    def why(self, message_id: int) -> Explanation:
        """Why a message does not run: exactly one reason, and what to do about it.

        It changes nothing, and reads few rows: of the ready messages that come before this one it
        counts at most 10,000. All times are those of the database's clock.

        Args:
            message_id: id of the message, live or archived. If the queue has no such message, that
                is the reason.
        """
        return explain(self._core.context, check_id("message_id", message_id))

    def last_traceback(self, message_id: int) -> str | None:
        """The traceback of the last failure of a message, live or archived.

        It is stored for exceptions of a worker's handler, of a ``with`` block of ``receive``, and
        for those given to ``nack(error=…)`` without ``connection=``. It begins with your code, and
        has at most its last 20,000 characters. Adopted tables store none.

        Args:
            message_id: id of the message.

        Returns:
            The traceback; None if the message does not exist or has none.
        """
        return read_traceback(self._core.context, check_id("message_id", message_id))

    def attempts(self, message_id: int) -> list[Attempt]:
        """The failed attempts of a message, live or archived, the oldest first.

        The last 20 are kept, as long as the message or its archived row is there. An attempt that
        succeeded has no entry, nor has one that was released. The SQL API and durable consumers
        write none.

        Args:
            message_id: id of the message.
        """
        return read_attempts(self._core.context, check_id("message_id", message_id))

    def purge(self, *, claimed: bool = False) -> int:
        """Remove ready, delayed and held messages, but not the archive.

        Args:
            claimed: also remove claimed messages; their holders lose them.

        Returns:
            How many messages were removed.

        Raises:
            DatabaseUnavailable: if the connection broke, it may be unknown how many were removed.
        """
        check_flag("claimed", claimed)
        sql = self._core.context.sql
        count = self._core.context.run(purge.of(sql, with_claimed=claimed))
        # What others parked meanwhile may wait for a message that was removed.
        for _ in self._core.recovery.repaired_groups():
            pass
        self._core.recovery.forget_attempts()
        return count

    def pause(self) -> None:
        """Stop delivering messages to all consumers; claimed messages can still be settled."""
        change_record(self._core.context, paused_at=self._core.context.tables.expressions.now())

    def resume(self) -> None:
        """Deliver messages again."""
        change_record(self._core.context, paused_at=None)
        self._core.context.wake_consumers()

    def refresh(self) -> None:
        """Reload the settings now."""
        self._core.context.refresh()

    def __repr__(self) -> str:
        return f"<Queue {self.name}>"


def _renew_at(messages: Iterable[Message]) -> float:
    """When a third of the first lease has passed, on ``elapsed_clock``."""
    lengths = ((message, (claimed_lease_us(message) or 0) / 1_000_000) for message in messages)
    return min((lease_ends_at(m) - length * 2 / 3 for m, length in lengths), default=math.inf)
