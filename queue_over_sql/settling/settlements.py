"""Settling: ack, nack, release, reject and extend, each fenced by the claim's stamp."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from queue_over_sql.archive.results import keeps_no_results
from queue_over_sql.attempts import HELD, AttemptLog, Failure
from queue_over_sql.database.callers import commits_itself
from queue_over_sql.errors import (
    ClaimLost,
    DatabaseRefused,
    DatabaseUnavailable,
    NotFinished,
    PayloadInvalid,
    QueueError,
    shown,
    visible,
)
from queue_over_sql.groups import exits
from queue_over_sql.groups.blocking import block, unblock
from queue_over_sql.message import (
    Claim,
    Message,
    claim_of,
    claimed_lease_us,
    expiry_reason,
    id_of,
    is_by_token,
    lease_runs_at,
    note_came_back,
    note_committed,
    note_lease,
    result_of,
)
from queue_over_sql.observer import log_fields
from queue_over_sql.payloads.codec import encode_result
from queue_over_sql.queues import registry
from queue_over_sql.queues.context import once_more
from queue_over_sql.queues.decoding import deferral
from queue_over_sql.retry import ExponentialBackoff, delay_of
from queue_over_sql.settling.failures import reason_of, traceback_of
from queue_over_sql.settling.operations import (
    LONGEST_ERROR,
    archive_messages,
    cancel_message,
    deleted,
    each_of,
    extend,
    finish,
    finish_apart,
    finish_unblocking,
    give_back,
    hold_refused,
    keep_traceback,
    release,
    remove,
    restore,
    retry,
    set_aside,
    stamped,
    still_there,
    updates_at_once,
    with_results,
)
from queue_over_sql.sql.operation import Operation
from queue_over_sql.statements.clock import server_now
from queue_over_sql.statements.operations import carefully
from queue_over_sql.statements.requests import Disposition, Settlement
from queue_over_sql.values.durations import (
    MICROSECOND,
    elapsed_clock,
    instant_to_microseconds,
    to_microseconds,
)
from queue_over_sql.values.states import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy import Connection

    from queue_over_sql.message import CallersConnection
    from queue_over_sql.queues.context import QueueContext
    from queue_over_sql.values.durations import Duration


_log = logging.getLogger(__name__)
# The outcomes of finished messages for observers, and those that are not logged.
_ENDINGS: Final = ("done", "rejected", "expired")
_QUIET: Final = ("done", "released")
# The packages between a worker and the user's code.
_DEAD: Final = {
    "failed": "became a dead letter",
    "rejected": "was rejected",
    "expired": "became a dead letter",
}
_REPEAT: Final = (
    "Roll your transaction back, and repeat it. Then the messages that the database refuses to "
    "finish are held, and all others are settled."
)

CANCELLED = "cancelled by operator"
RELEASED = "released, and the attempt counted"


def _keeps_none(queue: str) -> str:
    return f"{keeps_no_results(queue)} Or ack without result."


class Settlements:
    """Finishes or returns messages that were claimed from one queue."""

    def __init__(self, context: QueueContext, came_back: Callable[[int | None], None]) -> None:
        self._context = context
        self._came_back = came_back
        self.attempts = AttemptLog(context)

    @property
    def keeps_finished(self) -> bool:
        """Whether finished messages go to the archive."""
        return self._context.settings.archive == "all"

    @once_more
    def ack(
        self,
        messages: Message | Sequence[Message],
        connection: CallersConnection | None = None,
        after_commit: list[Callable[[], None]] | None = None,
        *,
        result: Any = None,
    ) -> None:
        """Finish messages; see ``Queue.ack``.

        ``after_commit`` is for a transaction of ours: we call what is added to it after the
        commit. Then observers are notified, and what is held is logged, for which nothing is
        raised.
        """
        messages = as_list(messages)
        given = None if result is None else self._encoded(result)
        context = self._context
        keep, groups = context.settings.archive == "all", self.grouped(messages)
        results = {m.id: kept for m in messages if (kept := given or result_of(m)) is not None}
        if results and not keep:
            _log.warning("Results were not kept. %s", _keeps_none(context.name))
            results.clear()
        keeping = partial(with_results, sql=context.sql, groups=groups, results=results)
        operation, quick = finish(context.sql, groups, keep=keep), None
        if results:
            operation = keeping(operation)
        elif context.tables.grouped and connection is None:
            quick = finish_unblocking(context.sql, groups, keep=keep)
        refused: dict[int, str] = {}

        def apart() -> Operation[set[int]]:
            end = archive_messages if keep else remove
            finish_one = partial(self._finish_apart, end=end, refused=refused)
            each = each_of(context.sql, groups, finish_one)
            return _noting_anew(keeping(each) if results else each, refused)

        self._settle(
            messages,
            operation,
            connection,
            "done",
            again=bool(results),
            quick=quick,
            apart=apart,
            refused=refused,
            after_commit=after_commit,
        )

    def _encoded(self, result: Any) -> str:
        if not self.keeps_finished:
            raise ValueError(_keeps_none(self._context.name))
        return encode_result(result)

    @once_more
    def nack(
        self,
        messages: Message | Sequence[Message],
        error: str | BaseException | None = None,
        delay: Duration | None = None,
        connection: CallersConnection | None = None,
        *,
        traceback: str | None = None,
        exception: type[BaseException] | None = None,
        in_place: bool = False,
        final: bool = False,
    ) -> None:
        """Retry or dead-letter failed messages; see ``Queue.nack``.

        ``traceback`` and ``exception`` belong to an error that is a text. ``in_place``: what is
        retried is due now, at its old place. ``final``: nothing is retried.
        """
        messages = as_list(messages)
        reason = reason_of(error)
        explicit = None if delay is None else to_microseconds(delay, "delay", zero=True)
        explicit = 0 if in_place else explicit
        exception = type(error) if isinstance(error, BaseException) else exception
        delays = {
            m.id: None
            if final
            else self.delay_after(m.attempt, m.max_attempts, reason, explicit, exception)
            for m in messages
        }
        groups = self.grouped(messages, Outcome.FAILED, reason, apart=delays, comes_back=True)
        # Dead letters last: one that blocks its group gives back what the claim holds behind it.
        groups = sorted(groups, key=lambda group: delays[group.ids[0]] is None)
        if isinstance(error, BaseException):
            traceback = traceback_of(error)
        if connection is None:
            self.keep_traceback(messages, traceback)
        sql, refused = self._context.sql, dict[int, str]()

        def fail(target: Connection, settlement: Settlement) -> set[int]:
            wait = delays[settlement.ids[0]]
            if wait is None:
                return self.dead_letter(target, settlement, refused)
            if in_place:
                return restore(target, sql, settlement)
            return retry(target, sql, settlement, wait)

        atomic = None in delays.values() or not updates_at_once(sql, groups)
        atomic = atomic or connection is not None
        operation = each_of(sql, groups, fail, atomic=atomic)
        became = {id_: "failed" if wait is None else "retried" for id_, wait in delays.items()}
        again = 0 in delays.values()
        self._settle(
            messages,
            operation,
            connection,
            became,
            reason,
            refused=refused,
            again=again,
            failures=lambda settled: _failures(
                settled, messages, became, reason, refused=refused, traceback=traceback
            ),
        )
        if again:
            self._came_back(None)

    def keep_traceback(self, messages: Sequence[Message], text: str | None) -> None:
        """Store the traceback of a failure, before its messages are nacked.

        Never raises, because the nack matters more.
        """
        sql, tables = self._context.sql, self._context.tables
        if text is None or "last_traceback" not in tables.live.c:
            return
        keep = partial(keep_traceback, tables=tables, text=text)
        for group in self.grouped(messages):
            try:
                self._context.run(each_of(sql, [group], keep, atomic=bool(group.in_key_order)))
            except QueueError as error:
                _log.debug("A traceback could not be stored: %s", error)

    @once_more
    def release(
        self,
        messages: Message | Sequence[Message],
        connection: CallersConnection | None = None,
        delay: Duration | None = None,
        *,
        count: bool = False,
    ) -> None:
        """Return messages unchanged; see ``Queue.release``."""
        if count:
            self.nack(messages, RELEASED, delay, connection, in_place=delay is None)
            return
        messages = as_list(messages)
        wait = None if delay is None else to_microseconds(delay, "delay", zero=True)
        operation = give_back(self._context.sql, self.grouped(messages, comes_back=True), wait)
        if connection is not None:
            operation = operation._replace(atomic=True)
        self._settle(messages, operation, connection, "released", again=not wait)
        if not wait:
            self._came_back(None)

    @once_more
    def defer(self, message: Message, reason: str) -> None:
        """Defer a message that does not fit its kind here, so that another server may read it.

        Raises:
            ClaimLost, ConsumerExpired: as in ``nack``.
        """
        settings, sql = self._context.settings, self._context.sql
        now = instant_to_microseconds(message.claimed_at or datetime.now(UTC), "claimed_at")
        waits = deferral(message, reason, now, settings.kind_timeout)
        groups = self.grouped([message], Outcome.FAILED, reason, comes_back=True)
        refused = dict[int, str]()

        def defer(target: Connection, settlement: Settlement) -> set[int]:
            if waits is None:
                return self.dead_letter(target, settlement, refused)
            return set_aside(target, sql, settlement, waits)

        operation = each_of(sql, groups, defer)
        became = "failed" if waits is None else "retried"
        self._settle([message], operation, None, {message.id: became}, reason, refused=refused)

    @once_more
    def reject(
        self,
        messages: Message | Sequence[Message],
        reason: str,
        connection: CallersConnection | None = None,
    ) -> None:
        """Dead-letter messages for good; see ``Queue.reject``."""
        messages = as_list(messages)
        kept = reason_of(reason, "reason")
        groups, refused = self.grouped(messages, Outcome.REJECTED, kept), dict[int, str]()
        operation = each_of(self._context.sql, groups, partial(self.dead_letter, refused=refused))
        self._settle(
            messages,
            operation,
            connection,
            "rejected",
            kept,
            refused=refused,
            failures=lambda settled: _failures(
                settled, messages, "rejected", kept, refused=refused
            ),
        )

    @once_more
    def expire(self, messages: Sequence[Message]) -> None:
        """End messages that were claimed after they had expired.

        Raises:
            ClaimLost, ConsumerExpired: as in ``nack``.
        """
        reasons = {message.id: expiry_reason(message) for message in messages}
        for reason in dict.fromkeys(reasons.values()):
            same = [message for message in messages if reasons[message.id] == reason]
            groups, refused = self.grouped(same, Outcome.EXPIRED, reason), dict[int, str]()
            operation = each_of(
                self._context.sql, groups, partial(self.dead_letter, refused=refused)
            )
            self._settle(same, operation, None, "expired", reason, refused=refused)

    def dead_letter(
        self,
        connection: Connection,
        settlement: Settlement,
        refused: dict[int, str] | None = None,
    ) -> set[int]:
        """Archive messages as dead letters, or count them if the queue has no archive.

        Those that the database refuses to end are held and count as settled. They are noted in
        ``refused`` with their reasons; None: they are logged.
        """
        sql, settings = self._context.sql, self._context.settings
        if not settings.blocks_groups or settlement.outcome == Outcome.EXPIRED:
            return self._dead_letter(connection, settlement, refused)
        held = exits.lock_held(connection, sql, settlement.ids, settlement.claim)
        blocked, refusals = block(connection, sql, held), dict[int, str]()
        ended = self._dead_letter(connection, settlement, refusals)
        # What is held now blocks its group by that.
        kept = {group: [id_] for group, id_ in blocked.items() if id_ in refusals}
        unblock(connection, sql, kept)
        limit = self._context.settings.group_limit or 1
        later = exits.later_of_claim(connection, sql, settlement.claim, blocked, limit)
        if later:
            release(connection, sql, Settlement(later, settlement.claim))
        self._note_refused(refusals, refused)
        return ended

    def _dead_letter(
        self, connection: Connection, settlement: Settlement, refused: dict[int, str] | None
    ) -> set[int]:
        sql, tables, settings = self._context.sql, self._context.tables, self._context.settings
        settlement = dataclasses.replace(settlement, dedup_us=settings.dedup_us)
        if settings.archive != "none":
            now = server_now(connection, sql)
            buried = dataclasses.replace(settlement, attempted_at=now)
            ended, held = finish_apart(connection, sql, buried, archive_messages)
            self._note_refused(held, refused)
            if ended and (feed := self._context.feed) is not None:
                feed(connection, ended)
            return ended | set(held)
        gone, held = finish_apart(connection, sql, settlement, remove)
        self._note_refused(held, refused)
        if gone:
            registry.count_discarded(connection, tables, len(gone))
            level = self._level(settlement.outcome, rejected=logging.WARNING)
            for message_id in sorted(gone):
                _log.log(
                    level,
                    "Message %d of queue %s became a dead letter (%s: %s). It was discarded, "
                    "because the queue has archive='none'.",
                    message_id,
                    tables.queue,
                    settlement.outcome,
                    visible(str(settlement.error), keep=""),
                    extra={"queue": tables.queue, "message_id": message_id},
                )
        return gone | set(held)

    def finish_apart(self, connection: Connection, settlement: Settlement, *, keep: bool) -> None:
        """Finish messages; those that the database refuses to finish are held, and logged."""
        end = archive_messages if keep else remove
        self._finish_apart(connection, settlement, end, None)

    def _finish_apart(
        self,
        connection: Connection,
        settlement: Settlement,
        end: Callable[..., set[int]],
        refused: dict[int, str] | None,
    ) -> set[int]:
        sql = self._context.sql
        ended, held = finish_apart(connection, sql, settlement, end)
        self._note_refused(held, refused)
        return ended | set(held)

    def _note_refused(self, held: Mapping[int, str], refused: dict[int, str] | None) -> None:
        if refused is None:
            self.log_refused(held)
        else:
            refused |= held

    def log_refused(self, refused: Mapping[int, str]) -> None:
        """Log the messages that the database refused to finish, with the reasons."""
        name = self._context.name
        for message_id, reason in sorted(refused.items()):
            _log.error(
                "Message %d of queue %s is held, because the database refused to finish it: %s. "
                "Run `queue-over-sql doctor`, and mend what refuses it. Then delete or unhold it.",
                message_id,
                name,
                visible(reason, keep=""),
                extra={"queue": name, "message_id": message_id},
            )

    def refuses_row(self, error: QueueError) -> bool:
        """Whether the database refused one row, so that it may accept others."""
        found = self._context.refuses_row(error)
        if found:
            self._context.was_refused = True
        return found

    def refuses_on(self, error: QueueError) -> None:
        """Tell the way on if the database refused one row in a caller's transaction."""
        if self.refuses_row(error):
            error.add_note(_REPEAT)

    def may_be_refused(self, *, keep: bool) -> bool:
        """Whether finishing in a caller's transaction is worth a savepoint.

        A mere deletion has none until the database has refused one.
        """
        context = self._context
        several = context.tables.may_refuse_end(keep=keep) or context.settings.dedup_us is not None
        return several or context.was_refused

    @once_more
    def cancel(
        self, message_id: int, reason: str | None, connection: CallersConnection | None = None
    ) -> bool:
        """Make a dead letter of a message, even if a consumer holds it; see ``Queue.cancel``."""
        context, settings = self._context, self._context.settings
        text = reason_of(reason, "reason")
        error = CANCELLED if text is None else f"{CANCELLED}: {text}"[:LONGEST_ERROR]
        keep = settings.archive != "none"
        end = Disposition(keep, settings.dedup_us, error, outcome=Outcome.REJECTED)

        refused = dict[int, str]()

        def end_it(connection: Connection) -> bool:
            # It may be repeated.
            refused.clear()
            there = cancel_message(connection, context.sql, message_id, end, refused)
            if there and not refused and (feed := context.feed) is not None:
                feed(connection, [message_id])
            return there

        ending = Operation(end_it, atomic=True, durable=True, counts=True)
        there = context.run(ending, connection)
        self.log_refused(refused)
        if there and not refused:
            fields = {"queue": context.name, "message_id": message_id}
            said = visible(error, keep="")
            _log.info("Message %d of queue %s: %s", message_id, context.name, said, extra=fields)
            if context.observer is not None:
                context.observer.settled(context.name, "rejected", [message_id])
                context.observer.dead_lettered(context.name, [message_id], error)
        return there

    @once_more
    def extend(
        self,
        messages: Message | Sequence[Message],
        lease: Duration | None = None,
        connection: CallersConnection | None = None,
    ) -> None:
        """Renew leases; see ``Queue.extend``."""
        messages = as_list(messages)
        explicit = None if lease is None else to_microseconds(lease, "lease")
        lengths = {m.id: explicit or claimed_lease_us(m) or 0 for m in messages}
        groups = self.grouped(messages, apart=lengths)
        expiries: dict[int, int] = {}
        began = elapsed_clock()

        def renew(target: Connection, settlement: Settlement) -> set[int]:
            sql = self._context.sql
            expires_at = server_now(target, sql) + lengths[settlement.ids[0]]
            extended = extend(target, sql, settlement, expires_at)
            expiries.update(dict.fromkeys(extended, expires_at))
            return extended

        try:
            operation = each_of(self._context.sql, groups, renew)
            self._settle(messages, operation, connection, None)
        finally:
            for message in _newest(messages):
                if message.id in expiries:
                    ends_at = began + lengths[message.id] / 1_000_000
                    note_lease(message, expiries[message.id], ends_at)

    def check_held(self, connection: Connection, message: Message) -> None:
        """Lock a message under the fence until the transaction ends, unless it has no claim.

        Raises:
            ClaimLost, ConsumerExpired: as in ``ack``.
        """
        self.guard([message])
        if claim_of(message) is None:
            return
        sql = self._context.sql
        hold = each_of(sql, self.grouped([message]), partial(hold_refused, sql=sql))
        self.refuse([message], hold.do(connection))

    def grouped(
        self,
        messages: Sequence[Message],
        outcome: str = Outcome.DONE,
        error: str | None = None,
        apart: Mapping[int, Any] | None = None,
        *,
        comes_back: bool = False,
    ) -> list[Settlement]:
        """The messages as settlements: one for each claim that this consumer made.

        Messages with different values in ``apart``, which maps ids, get different settlements.
        ``comes_back``: they are given back, and what is behind them in an ordered group, too.
        """
        groups: dict[tuple[Claim | None, Any], list[int]] = {}
        last, ids = None, list[int]()
        for message in _newest(messages):
            group = claim_of(message), None if apart is None else apart[message.id]
            # Usually one claim made them all.
            if group != last:
                last, ids = group, groups.setdefault(group, [])
            ids.append(id_of(message))
        settings = self._context.settings
        dedup = settings.dedup_us if apart is None else None
        in_order = comes_back and self._context.tables.grouped and settings.group_order == "fifo"
        made, in_key_order = self._context.consumer.made, self._in_key_order(messages)
        return [
            Settlement(
                ids,
                claim,
                outcome,
                error,
                dedup_us=dedup,
                in_order=in_order,
                group_limit=settings.group_limit or 1,
                in_key_order=in_key_order,
            )
            for (claim, _), ids in groups.items()
            if claim is not None and (made(claim) or _has_token(claim, messages))
        ]

    def _in_key_order(self, messages: Sequence[Message]) -> list[int]:
        """The messages with keys, sorted by these, if there are several and the order matters."""
        if len(messages) == 1 or not self._context.tables.features.sorts_locks:
            return []
        keyed = [(message.key, message.id) for message in messages if message.key is not None]
        return [id_ for _, id_ in sorted(keyed)] if len(keyed) > 1 else []

    def guard(self, messages: Sequence[Message]) -> None:
        """Refuse messages of other queues, and claims of a former identity of this consumer.

        Raises:
            ValueError: a message belongs to another queue.
            ConsumerExpired, ServiceClosed: as ``Consumer.check``.
        """
        for message in messages:
            if message.queue != self._context.name:
                msg = f"{message!r} belongs to queue {message.queue!r}, not {self._context.name!r}"
                raise ValueError(msg)
        claims = {
            claim
            for message in messages
            if (claim := claim_of(message)) is not None and not is_by_token(message)
        }
        self._context.consumer.check(messages, claims)

    def refuse(self, messages: Sequence[Message], settled: set[int]) -> None:
        """Raise for the messages that were not settled.

        Raises:
            ClaimLost: some were not settled; it lists them.
        """
        if len(settled) == len(messages):
            # All of them, and none was given with two claims.
            return
        newest = set(map(id, _newest(messages)))
        lost = [m for m in messages if m.id not in settled or id(m) not in newest]
        if lost:
            names = ", ".join(str(message.id) for message in lost[:10])
            more = f" and {len(lost) - 10} more" if len(lost) > 10 else ""  # noqa: PLR2004
            msg = (
                f"Queue {self._context.name!r}: the claim of message {names}{more} is lost (its "
                "lease expired, it was already settled or deleted, or another consumer claimed "
                "it). It was not changed."
            )
            note_came_back(lost)
            raise ClaimLost(msg, lost)

    def _settle(
        self,
        messages: Sequence[Message],
        operation: Operation[set[int]],
        connection: CallersConnection | None,
        outcome: str | Mapping[int, str] | None,
        reason: str | None = None,
        *,
        quick: Operation[set[int]] | None = None,
        apart: Callable[[], Operation[set[int]]] | None = None,
        refused: dict[int, str] | None = None,
        after_commit: list[Callable[[], None]] | None = None,
        again: bool = False,
        failures: Callable[[set[int]], list[Failure]] | None = None,
    ) -> None:
        """Run an operation on claimed messages, and raise if it did not change all of them.

        Args:
            messages: the messages to settle.
            operation: returns the ids of the messages that were still held.
            connection: the caller's own transaction, or None.
            outcome: the outcome for observers, for all messages or by id. With ``done`` and
                ``rejected``, messages that are missing after a lost answer count as settled by this
                operation. None: the messages are not settled yet.
            reason: the reason of a failure.
            quick: what to try before ``operation``, which then gets what is left; not in the
                caller's transaction.
            apart: makes the operation for when the database refuses one of the messages.
            refused: where the operations note messages that the database refused to finish, and
                that are held now, with the reasons.
            after_commit: as in ``ack``.
            again: whether messages can be claimed again when the caller's transaction commits.
            failures: the failed attempts, by which messages were settled.
        """
        context, stays = self._context, outcome is None
        ours = connection is None or after_commit is not None
        if refused is None:
            refused = {}
        elif apart is None:
            operation = _noting_anew(operation, refused)
        ends = outcome in _ENDINGS
        try:
            self.guard(messages)
            if connection is None:
                run = partial(self._settle_here, messages, apart=apart, quick=quick, ends=ends)
                settled = self.attempts.run(operation, run, failures)
            else:
                operation = self.attempts.inside(operation, failures)
                settled = self._settle_on(
                    connection, messages, operation, apart, ends=ends, again=again
                )
            ended = settled.difference(refused) if refused else settled
            held = dict(refused) if ours else {}
            self._report(messages, ended, outcome, reason, held, after_commit=after_commit)
            self.refuse(messages, settled)
        except ClaimLost as error:
            if context.observer is not None and not stays:
                context.observer.claim_lost(context.name, [each.id for each in error.messages])
            # The claim is lost, so nothing more can be done with these messages.
            if not stays:
                mark_settled(messages, back=not ends)
            if refused and not ours:
                error.add_note(str(self._not_finished(messages, refused)))
            raise
        if not stays:
            mark_settled(messages, back=not ends, committed=connection is None)
        if refused and not ours:
            raise self._not_finished(messages, refused)

    def _settle_here(
        self,
        messages: Sequence[Message],
        operation: Operation[set[int]],
        apart: Callable[[], Operation[set[int]]] | None,
        *,
        quick: Operation[set[int]] | None,
        ends: bool,
    ) -> set[int]:
        settled = set[int]()
        try:
            if quick is not None:
                settled = self._run(messages, quick, ends=ends)
            if len(settled) < len(messages):
                settled |= self._run(messages, operation, ends=ends)
        except (DatabaseRefused, PayloadInvalid) as error:
            if apart is None or not self.refuses_row(error):
                raise
            settled |= self._run(messages, apart(), ends=True)
        return settled

    def _settle_on(
        self,
        connection: CallersConnection,
        messages: Sequence[Message],
        operation: Operation[set[int]],
        apart: Callable[[], Operation[set[int]]] | None,
        *,
        ends: bool,
        again: bool,
    ) -> set[int]:
        careful = apart is not None and self.may_be_refused(keep=self.keeps_finished)

        def do(target: Connection) -> set[int]:
            if commits_itself(target):
                return operation.do(target)
            with carefully() if self._context.was_refused else contextlib.nullcontext():
                chosen = apart() if apart is not None and careful else operation
                return chosen.do(target)

        try:
            settled = self._context.run(operation._replace(do=do, wakes=again), connection)
        except (DatabaseRefused, PayloadInvalid) as error:
            self.refuses_on(error)
            raise
        if ends and self._context.tables.ends_in_place:
            settled |= self._deleted_on(connection, messages, settled)
        return settled

    def _not_finished(self, messages: Sequence[Message], refused: Mapping[int, str]) -> NotFinished:
        held = [message for message in _newest(messages) if message.id in refused]
        reasons = "; ".join(f"{each.id}: {refused[each.id]}" for each in held[:10])
        more = f"; and {len(held) - 10} more" if len(held) > 10 else ""  # noqa: PLR2004
        return NotFinished(
            f"Queue {self._context.name!r}: the database refused to finish these messages: "
            f"{reasons}{more}. Your transaction is still usable. If you commit it, these messages "
            "are held, and all others are settled. If you roll it back, all stay as they were. "
            "Run `queue-over-sql doctor`, and mend what refuses them. Then delete or unhold what "
            "is held.",
            held,
            refused,
        )

    def _run(
        self, messages: Sequence[Message], operation: Operation[set[int]], *, ends: bool
    ) -> set[int]:
        run = self._context.run
        try:
            return run(operation)
        except DatabaseUnavailable:
            settled = run(operation._replace(repeatable=True))
            return settled | self._ended_before(messages, settled) if ends else settled

    def _report(
        self,
        messages: Sequence[Message],
        ended: set[int],
        outcome: str | Mapping[int, str] | None,
        reason: str | None,
        held: Mapping[int, str],
        *,
        after_commit: list[Callable[[], None]] | None = None,
    ) -> None:
        if after_commit is not None:
            after_commit.append(partial(self._report, messages, ended, outcome, reason, held))
            return
        if outcome is not None and (outcome not in _QUIET or self._context.observer is not None):
            self._note(messages, ended, outcome, reason)
        if held:
            self.log_refused(held)

    def report_done(self, messages: Sequence[Message], settled: set[int]) -> None:
        """Notify observers which of these messages were acked, and which were lost."""
        self._note(messages, settled, "done", None)
        lost = [message.id for message in messages if message.id not in settled]
        if lost and self._context.observer is not None:
            self._context.observer.claim_lost(self._context.name, lost)

    def _note(
        self,
        messages: Sequence[Message],
        settled: set[int],
        outcome: str | Mapping[int, str],
        reason: str | None,
    ) -> None:
        name, observer = self._context.name, self._context.observer
        ids: dict[str, list[int]] = {}
        for message in _newest(messages):
            if message.id not in settled:
                continue
            became = outcome if isinstance(outcome, str) else outcome[message.id]
            ids.setdefault(became, []).append(message.id)
            if became in _DEAD:
                how, attempt, allowed = _DEAD[became], message.attempt, message.max_attempts
                fields = log_fields(name, [message])
                text = "%r %s at attempt %d of %d: %s"
                said = visible(str(reason), keep="")
                level = self._level(became, rejected=logging.INFO)
                _log.log(level, text, message, how, attempt, allowed, said, extra=fields)
        if observer is not None:
            for became, of in ids.items():
                observer.settled(name, became, of)
                if became in _DEAD:
                    observer.dead_lettered(name, of, reason)

    def note_ended(self, ended: Mapping[int, Disposition]) -> None:
        """Log messages that became dead letters unclaimed, and notify observers of them.

        Some may have been deferred instead.
        """
        name, observer = self._context.name, self._context.observer
        ids: dict[Disposition, list[int]] = {}
        for message_id, end in sorted(ended.items(), key=itemgetter(0)):
            ids.setdefault(end, []).append(message_id)
            if end.aside is None:
                _log.log(
                    self._level(end.outcome, rejected=logging.INFO),
                    "Message %d of queue %s became a dead letter: %s",
                    message_id,
                    name,
                    visible(str(end.error), keep=""),
                    extra={"queue": name, "message_id": message_id},
                )
        if observer is not None:
            for end, of in ids.items():
                observer.settled(name, "retried" if end.aside else str(end.outcome), of)
                if end.aside is None:
                    observer.dead_lettered(name, of, end.error)

    def _level(self, outcome: str, *, rejected: int) -> int:
        """The level at which a dead letter is logged: a caller decides a reject, the rest fails."""
        if outcome == Outcome.REJECTED:
            return rejected
        return self._context.expiry_level if outcome == Outcome.EXPIRED else logging.ERROR

    def _deleted_on(
        self, connection: CallersConnection, messages: Sequence[Message], settled: set[int]
    ) -> set[int]:
        """Messages of an adopted table whose rows the caller's transaction has deleted.

        All others still see these rows with their claim, and cannot change them any more. A row
        that was deleted under another claim, or by another transaction, does not look so.
        """
        missing = [message for message in messages if message.id not in settled]
        if not missing:
            return set()
        context, ids = self._context, [message.id for message in missing]
        gone = context.run(lambda c: deleted(c, context.sql, ids), connection)
        if not gone or not context.connections.has_others:
            return set()
        of_gone = self.grouped([message for message in missing if message.id in gone])
        return context.run(lambda c: {i for each in of_gone for i in stamped(c, context.sql, each)})

    def _ended_before(self, messages: Sequence[Message], settled: set[int]) -> set[int]:
        """Missing messages that only the first try, whose answer was lost, can have ended.

        No other consumer could claim them, because the lease still runs and this consumer is alive.
        """
        missing = [message for message in messages if message.id not in settled]
        if not missing:
            return set()
        sql, run = self._context.sql, self._context.run
        now = run(lambda connection: server_now(connection, sql))
        there = run(lambda c: still_there(c, sql, [message.id for message in missing]))
        self.guard(missing)
        keeps = self._context.consumer.keeps
        return {
            m.id
            for m in missing
            if m.id not in there
            and lease_runs_at(m, now)
            and (claim := claim_of(m)) is not None
            and keeps(claim.consumer_id)
        }

    def delay_after(
        self,
        attempt: int,
        allowed: int,
        reason: str | None,
        explicit: int | None,
        exception: type[BaseException] | None = None,
    ) -> int | None:
        """Microseconds until the next attempt; None if there is none.

        ``explicit`` is the requested delay, which replaces that of the retry policy.
        """
        # Outside of the ``try``, because these errors are not failures of the policy.
        policy = self._context.settings.retry
        if attempt >= allowed:
            return None
        if explicit is not None:
            return explicit
        try:
            delay = delay_of(policy, attempt, reason, exception)
            return None if delay is None else to_microseconds(delay, "next_delay", zero=True)
        except (Exception, SystemExit):  # noqa: BLE001 - a user's policy must not keep a message
            _log.exception(
                "The retry policy of queue %s raised an exception; "
                "ExponentialBackoff() is used instead.",
                self._context.name,
            )
            return ExponentialBackoff().next_delay(attempt, reason) // MICROSECOND


def _noting_anew(operation: Operation[set[int]], refused: dict[int, str]) -> Operation[set[int]]:
    """The operation, which may run again after a deadlock, and notes what its last run refused."""

    def do(connection: Connection) -> set[int]:
        refused.clear()
        return operation.do(connection)

    return operation._replace(do=do)


def as_list(messages: Message | Sequence[Message]) -> list[Message]:
    """One message or several, without duplicates.

    Raises:
        TypeError: an item is not a message.
    """
    if isinstance(messages, Message):
        return [messages]
    if not isinstance(messages, Iterable):
        msg = f"messages must be a Message or several, not {type(messages).__name__}"
        raise TypeError(msg)
    given = list(messages)
    for item in given:
        if not isinstance(item, Message):
            msg = f"messages must be Message objects from consume(), not {shown(item)}"
            raise TypeError(msg)
    return list(dict.fromkeys(given))


def mark_settled(
    messages: Iterable[Message], *, back: bool = False, committed: bool = False
) -> None:
    """Mark the messages as settled through one of their verbs.

    ``back``: they were given back. ``committed``: nothing can undo it.
    """
    if back:
        note_came_back(messages)
    if committed:
        note_committed(messages)
    for message in messages:
        message.settled = True


def _failures(
    settled: set[int],
    messages: Sequence[Message],
    outcome: str | Mapping[int, str],
    reason: str | None,
    *,
    refused: Mapping[int, str],
    traceback: str | None = None,
) -> list[Failure]:
    """The failed attempts of those of the messages that were settled."""
    found = list[Failure]()
    for message in _newest(messages):
        claim = claim_of(message)
        if message.id not in settled or claim is None:
            continue
        began, held = message.claimed_at, message.id in refused
        became = outcome if isinstance(outcome, str) else outcome[message.id]
        found.append(
            Failure(
                message.id,
                message.attempt,
                claim.consumer_id,
                None if began is None else instant_to_microseconds(began, "claimed_at"),
                HELD if held else became,
                refused[message.id] if held else reason,
                traceback,
            )
        )
    return found


def _has_token(claim: Claim, messages: Sequence[Message]) -> bool:
    return any(is_by_token(message) and claim_of(message) == claim for message in messages)


def _newest(messages: Sequence[Message]) -> list[Message]:
    """Each message once, with its latest claim, in the order in which all code locks rows.

    If a message was claimed twice, the earlier claim is lost.
    """
    if len(messages) == 1:
        return list(messages)
    if len(set(map(id_of, messages))) == len(messages):
        return sorted(messages, key=id_of)
    newest: dict[int, Message] = {}
    for message in sorted(messages, key=lambda m: (m.id, m.consumer_round or 0)):
        newest[message.id] = message
    return list(newest.values())
