"""Durable consumers: they outlive their processes, and their messages can be read again.

A durable consumer claims messages in numbered rounds. It holds the messages of a round until the
round is acknowledged, an operator releases it, or the consumer misses its timeout. So a program
that died can read the same messages again from a new process, as streaming engines require. One
program at a time has the consumer. A program that takes it over gets a new *epoch*, and operations
of older epochs fail.
"""

from __future__ import annotations

import dataclasses
import os
import re
import socket
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeVar

from queue_over_sql.attempts import HELD
from queue_over_sql.attempts import Failure as FailedAttempt
from queue_over_sql.claiming.group_walk import GroupWalk
from queue_over_sql.claiming.operations import oldest_first
from queue_over_sql.consumers import registrations
from queue_over_sql.durable import round_store as store
from queue_over_sql.durable.group_rounds import GroupRounds, by_groups
from queue_over_sql.durable.requests import LAST_ROUND, lease_of_round
from queue_over_sql.durable.round_store import Registration, Round
from queue_over_sql.durable.rounds import Rounds
from queue_over_sql.errors import (
    CheckpointBehind,
    ConsumerFenced,
    ConsumerNotFound,
    ConsumerTaken,
    DatabaseRefused,
    PayloadInvalid,
    RoundsGone,
    UnsupportedByEngine,
)
from queue_over_sql.message import Claim
from queue_over_sql.queue import core_of
from queue_over_sql.queues import registry
from queue_over_sql.settling.failures import reason_of, traceback_of
from queue_over_sql.settling.operations import each_of, retry
from queue_over_sql.sql.operation import Operation
from queue_over_sql.statements.clock import server_now
from queue_over_sql.statements.requests import Disposition, Settlement
from queue_over_sql.values.checks import check_choice, check_whole
from queue_over_sql.values.durations import Duration, instant, to_microseconds
from queue_over_sql.values.limits import CONSUMER_LENGTH, LARGEST, OWNER_LENGTH
from queue_over_sql.values.reasons import not_started_within
from queue_over_sql.values.states import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy import ColumnElement, Connection

    from queue_over_sql.message import MessageRow
    from queue_over_sql.queue import Queue

    Failure = tuple[int, int, str | BaseException | None]


__all__ = ["DEFAULT_TIMEOUT", "AdvanceRequest", "DurableConsumer", "Round"]

T = TypeVar("T")

DEFAULT_TIMEOUT: Final = 7 * 86_400.0
"""How long a durable consumer holds messages without a heartbeat, in seconds."""

_ON_ACK: Final = ("delete", "archive")
_RETRIED: Final = "retried"
# More messages than a queue can have.
_ALL: Final = 2**62
_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{CONSUMER_LENGTH}}}\Z")
# How often a heartbeat is written at most.
_HEARTBEAT_US = 60_000_000
# How often to retry if several programs register the same name at once.
_RACES = 5


def check_consumer_id(consumer_id: object) -> str:
    """Check the name of a durable consumer; raises TypeError or ValueError."""
    if not isinstance(consumer_id, str):
        msg = f"consumer_id must be a str, not {type(consumer_id).__name__}"
        raise TypeError(msg)
    if not _NAME.match(consumer_id):
        msg = (
            f"consumer_id must be 1 to {CONSUMER_LENGTH} letters, digits, dots, dashes and "
            f"underscores, not {consumer_id[:60]!r}"
        )
        raise ValueError(msg)
    return str.__str__(consumer_id)


@dataclasses.dataclass(frozen=True, slots=True)
class AdvanceRequest:
    """What ``DurableConsumer.advance`` shall open: how many messages in all and per round.

    None means: no limit, or due at the time of the claim. ``due_by`` is in microseconds. With
    ``executor``, the reader of a round claims it by ``claim_round``.
    """

    max_messages: int | None
    messages_per_round: int
    up_to_id: int | None = None
    due_by: int | None = None
    executor: bool = False

    def __post_init__(self) -> None:
        check_whole("messages_per_round", self.messages_per_round)
        for name, least in (("max_messages", 1), ("up_to_id", 0), ("due_by", -LARGEST)):
            value = getattr(self, name)
            if value is not None:
                check_whole(name, value, least)

    @property
    def whole(self) -> Round:
        """All of it as one round."""
        limit = _ALL if self.max_messages is None else self.max_messages
        return Round(0, limit, self.up_to_id, self.due_by)

    def rounds(self, start: int, count: int) -> list[Round]:
        """The rounds for ``count`` messages, of about the same size."""
        parts = -(-count // self.messages_per_round)
        sizes = [(count + part) // parts for part in range(parts)]
        return [
            Round(start + 1 + index, size, self.up_to_id, self.due_by)
            for index, size in enumerate(reversed(sizes))
        ]


class DurableConsumer:
    """A named consumer of one queue whose claims outlive its process; see the module.

    Every operation may be repeated if the answer to its commit was lost. Each raises
    ``ConsumerFenced`` if another program took over the consumer, and ``RoundsGone`` if its rounds
    were released. Rounds have numbers; ``start`` is the number before the first round of a range.

    Args:
        queue: the queue that it reads.
        consumer_id: its name: 1 to 36 letters, digits, dots, dashes and underscores.
        owner: this program, for people: ``host:pid``.
        timeout: how long it holds messages without a heartbeat, which ``advance`` sends; None:
            forever.
    """

    def __init__(
        self,
        queue: Queue,
        consumer_id: str,
        *,
        owner: str,
        timeout: Duration | None = DEFAULT_TIMEOUT,
    ) -> None:
        core = core_of(queue)
        self.consumer_id = check_consumer_id(consumer_id)
        self._context = core.context
        self._settlements = core.settlements
        self._came_back = core.came_back
        self._owner = owner[:OWNER_LENGTH]
        self._timeout_us = None if timeout is None else to_microseconds(timeout, "timeout")
        self._taken: Registration | None = None
        # What the present operation has ended, because it had expired.

    # -- registration

    @property
    def epoch(self) -> int:
        """The epoch of this program."""
        return self._mine.epoch

    @property
    def registered_at(self) -> int:
        """When the consumer was registered, in microseconds; a checkpoint must store it.

        After a drop or expiry it registers again, and its rounds start again at 1. Only this time
        tells the rounds of two registrations apart.
        """
        return self._mine.started_at

    def check_registration(self, registered_at: int) -> None:
        """Raise ``RoundsGone`` if a checkpoint belongs to another registration of the consumer."""
        if registered_at != self.registered_at:
            self._gone(
                f"the checkpoint belongs to its registration of {_moment(registered_at)}, but it "
                f"was registered again at {_moment(self.registered_at)}, and its rounds restarted "
                "at 1."
            )

    def take_over(self) -> int:
        """Take over the consumer, or register it if it is new.

        Returns the last acknowledged round; later rounds are outstanding and may be read again.
        Raises ``ConsumerTaken`` if the name belongs to a consumer of another queue or kind.
        """
        if self.consumer_id == registrations.SQL_CLIENTS:
            msg = f"{self.consumer_id!r} is the consumer of SQL clients; use another name"
            raise ConsumerTaken(msg)
        for _ in range(_RACES):
            taken = self._write(self._take_over)
            if taken is not None:
                self._taken = taken
                return taken.acked_round
        msg = f"Another process is registering durable consumer {self.consumer_id!r} now; try again"
        raise ConsumerTaken(msg)

    @property
    def renewal_seconds(self) -> float:
        """How often an idle program must call ``renew``."""
        return self._renewal_us / 1_000_000

    def renew(self) -> None:
        """Send a heartbeat, as ``advance`` does, while a batch takes long."""

        def do(connection: Connection) -> None:
            self._renew_if_due(connection, self._locked(connection, self.epoch))

        self._write(do)

    def state(self) -> Registration:
        """The present state of the consumer, whichever program has it."""
        found = self._context.run(self._registered)
        if found is None:
            self._gone("it is not registered.")
        return found

    def outstanding(self) -> int:
        """Count the messages that are claimed and not acknowledged."""

        def do(connection: Connection) -> int:
            found = self._registered(connection)
            if found is None:
                return 0
            span = (self.consumer_id, found.acked_round, found.claimed_round)
            return store.count_rounds(connection, self._context.sql, *span)

        return self._context.run(do)

    def release(self) -> int:
        """Give back all outstanding messages, uncounted, and fence the present program.

        Returns how many messages; raises ``ConsumerNotFound``.
        """

        def do(connection: Connection, found: Registration) -> None:
            done, fenced = found.claimed_round, found.epoch + 1
            self._change(connection, epoch=fenced, acked_round=done, owner=None)

        return self._give_back(do)

    def drop(self) -> int:
        """Do as ``release``, and delete the registration."""

        def do(connection: Connection, _: Registration) -> None:
            registrations.remove(connection, self._context.tables.system, self.consumer_id)

        return self._give_back(do)

    # -- rounds

    @property
    def claims_apart(self) -> bool:
        """Whether it is faster here if readers claim their rounds (``AdvanceRequest.executor``)."""
        # Readers would claim empty rounds while groups wait, or while a limit is reached.
        ruled = self._context.tables.has_rules
        return self._context.dialect.strategy(Rounds).claims_apart and not ruled

    def target(self) -> tuple[int, int]:
        """The largest id and the database's clock now, as limits for messages that exist now."""
        sql = self._context.sql
        return self._context.run(lambda c: (store.last_id(c, sql), server_now(c, sql)))

    def backlog(self, limit: int | None = None) -> int:
        """Count the messages that could be claimed now, up to ``limit``; it reads them."""
        whole = AdvanceRequest(limit, 1).whole
        return self._context.run(lambda connection: self._count(connection, whole))

    def advance(self, start: int, request: AdvanceRequest, *, on_ack: str | None = None) -> int:
        """Acknowledge rounds up to ``start``, and open the next ones.

        Args:
            start: the last round whose messages are finished.
            request: what to open.
            on_ack: ``"delete"`` or ``"archive"``, instead of the queue's setting.

        Returns:
            The last opened round; ``start`` if there is nothing to claim. Rounds after ``start``
            that are open but not acknowledged are returned unchanged.

        Raises:
            CheckpointBehind: rounds after ``start`` are acknowledged already.
            RoundsGone: the consumer was released, or never opened round ``start``.
            UnsupportedByEngine: ``request.executor`` is not supported by this engine.
        """
        start = _round("start", start)
        _check_on_ack(on_ack)
        if request.executor and not self.claims_apart:
            msg = (
                "This database does not support executor=True: it claims rounds when they are "
                "opened."
            )
            raise UnsupportedByEngine(msg)
        ended: dict[int, Disposition] = {}

        def opening(connection: Connection, *, apart: bool) -> int:
            # It may run again.
            ended.clear()
            return self._advance(connection, start, request, on_ack, ended, apart=apart)

        # Where all that it claimed had expired, there may be more behind.
        while not self._context.run(lambda connection: self._is_idle(connection, start, request)):
            end = self._ending(opening)
            self.note_ended(ended)
            if end > start or not ended:
                return end
        return start

    def ack(self, end: int, *, on_ack: str | None = None) -> None:
        """Acknowledge all rounds up to ``end``; repeated calls do nothing."""
        end = _round("end", end)
        _check_on_ack(on_ack)

        def do(connection: Connection, *, apart: bool) -> None:
            found = self._locked(connection, self.epoch, end)
            self._ack(connection, found, end, on_ack, apart=apart)

        self._ending(do)

    def rounds(self, start: int, end: int, *, missing_ok: bool = False) -> list[Round]:
        """The rounds after ``start`` up to ``end``, as they were opened.

        Raises ``RoundsGone`` if some do not exist, unless ``missing_ok``.
        """
        start, end = _round("start", start), _round("end", end)

        def do(connection: Connection) -> list[Round]:
            self._locked(connection, self.epoch, 0 if missing_ok else end, shared=True)
            return store.rounds_between(
                connection, self._context.tables, self.consumer_id, start, end
            )

        found = self._write(do)
        if missing_ok:
            return found
        if [each.consumer_round for each in found] != list(range(start + 1, end + 1)):
            self._gone(f"some of its rounds {start + 1} to {end} do not exist.")
        return found

    def claim_round(
        self,
        connection: Connection,
        wanted: Round,
        epoch: int,
        ended: dict[int, Disposition] | None = None,
    ) -> int:
        """Claim one round, unless it is already claimed; its messages never change after that.

        Args:
            connection: in its own transaction at READ COMMITTED, which must be committed before the
                messages are delivered: ``inside.run(…, atomic=True)`` does this.
            wanted: the round.
            epoch: of the program that this works for.
            ended: gets the messages that had expired, by id, for ``note_ended`` after the commit.

        Returns:
            How many messages were claimed for the round.
        """
        ended = {} if ended is None else ended
        ended.clear()
        number, tables = wanted.consumer_round, self._context.tables
        self._locked(connection, epoch, number, shared=True)
        if store.win_seal(connection, tables, self.consumer_id, number):
            count = self._claim(connection, wanted, ended)
            store.seal(connection, tables, self.consumer_id, number, count)
            return count
        found = store.rounds_between(connection, tables, self.consumer_id, number - 1, number)
        if not found:
            self._gone(f"its round {number} does not exist.")
        return found[0].claimed_count or 0

    def note_ended(self, ended: Mapping[int, Disposition]) -> None:
        """Log messages that had expired when they were claimed, and notify observers of them."""
        self._settlements.note_ended(ended)

    def count_round(self, connection: Connection, consumer_round: int) -> int:
        """Count the messages that a round claimed and still holds."""
        sql, before = self._context.sql, consumer_round - 1
        return store.count_rounds(connection, sql, self.consumer_id, before, consumer_round)

    def stamped(self, consumer_round: int) -> list[ColumnElement[bool]]:
        """The conditions for the messages of a round, along the index on leases."""
        live = self._context.tables.live.c
        return [
            live.consumer_id == self.consumer_id,
            live.consumer_round == consumer_round,
            live.lease_expires_at == lease_of_round(consumer_round),
        ]

    def read_round(self, connection: Connection, consumer_round: int) -> list[MessageRow]:
        """Read the messages that a round claimed and still holds, oldest first."""
        sql = self._context.sql
        rows = store.read_round(connection, sql, self.consumer_id, consumer_round)
        return by_groups(rows) if sql.subject.grouped else oldest_first(rows)

    def recover(self, start: int) -> int:
        """Continue from what exists, for a checkpoint at ``start``; returns the new start.

        Missing rounds are skipped. Outstanding rounds that the checkpoint cannot know are given
        back, uncounted.
        """
        start = _round("start", start)

        def do(connection: Connection) -> int:
            found = self._locked(connection, self.epoch)
            if start <= found.claimed_round:
                return max(start, found.acked_round)
            self._unclaim(connection, found)
            self._change(connection, claimed_round=start, acked_round=start)
            return start

        return self._write(do)

    def nack(
        self,
        failures: Sequence[Failure],
        *,
        delay: Duration | None = None,
        epoch: int | None = None,
    ) -> set[int]:
        """Retry or dead-letter failed messages of outstanding rounds, as ``Queue.nack`` does.

        Args:
            failures: id, round and reason of each message.
            delay: until the next attempt, instead of the queue's retry policy.
            epoch: of the program that this works for; default: the own one after ``take_over``.

        Returns:
            The ids that their rounds still held; other messages were not changed.
        """
        wait = None if delay is None else to_microseconds(delay, "delay", zero=True)
        if epoch is None and self._taken is not None:
            epoch = self.epoch
        groups: dict[tuple[int, _Reason], list[int]] = {}
        for message_id, consumer_round, error in sorted(failures, key=lambda each: each[:2]):
            groups.setdefault((consumer_round, _reason(error)), []).append(message_id)
        refused: dict[int, str] = {}

        def do(connection: Connection) -> list[FailedAttempt]:
            refused.clear()
            if epoch is not None:
                self._locked(connection, epoch, shared=True)
            failed: list[_Failed] = []
            for (consumer_round, reason), ids in groups.items():
                stamp = Claim(self.consumer_id, consumer_round)
                settlement = Settlement(ids, stamp, Outcome.FAILED, reason.text)
                failed += self._failed(connection, settlement, wait, reason)
            self._nack(connection, failed, refused)
            return [told for each in failed for told in each.told(refused)]

        nacking = Operation(do, atomic=True, durable=True)
        failed = self._settlements.attempts.run(nacking, self._context.run, list)
        self._note_failed(failed)
        self._settlements.log_refused(refused)
        if failed:
            self._came_back(None)
        return {each.message_id for each in failed}

    def _note_failed(self, failed: Sequence[FailedAttempt]) -> None:
        dead = {each.message_id: each.error for each in failed if each.outcome == Outcome.FAILED}
        self._settlements.note_ended(
            {id_: Disposition(keep=True, error=error) for id_, error in dead.items()}
        )
        retried = [each.message_id for each in failed if each.outcome == _RETRIED]
        if retried and (observer := self._context.observer) is not None:
            observer.settled(self._context.name, _RETRIED, retried)

    # -- the registration

    @property
    def _mine(self) -> Registration:
        if self._taken is None:
            msg = "call take_over() first"
            raise RuntimeError(msg)
        return self._taken

    def _write(self, do: Callable[[Connection], T]) -> T:
        # A round in a checkpoint must still exist after a power failure.
        return self._context.run(Operation(do, atomic=True, durable=True))

    def _ending(self, do: Callable[..., T]) -> T:
        """Run an operation that ends messages, and hold those that the database refuses to end."""
        try:
            return self._write(partial(do, apart=False))
        except (DatabaseRefused, PayloadInvalid) as error:
            if not self._settlements.refuses_row(error):
                raise
            return self._write(partial(do, apart=True))

    def _registered(self, connection: Connection) -> Registration | None:
        found = store.registration(connection, self._context.tables, self.consumer_id)
        return found if found is not None and self._is_mine(found) else None

    def _locked(
        self, connection: Connection, epoch: int, up_to: int = 0, *, shared: bool = False
    ) -> Registration:
        found = store.lock(connection, self._context.tables, self.consumer_id, shared=shared)
        return self._checked(found, epoch, up_to)

    def _checked(self, found: Registration | None, epoch: int, up_to: int) -> Registration:
        if found is None or not self._is_mine(found):
            self._gone("it is no longer registered.")
        if found.epoch != epoch:
            raise ConsumerFenced(self.consumer_id, epoch, found.epoch, found.owner)
        if found.expired:
            self._gone("it had no heartbeat for its timeout.")
        if up_to > found.claimed_round:
            last = found.claimed_round
            self._gone(f"round {up_to} was never opened; the last opened round is {last}.")
        return found

    def _is_mine(self, found: Registration) -> bool:
        tables = self._context.tables
        theirs = (found.durable, found.table_prefix, found.queue)
        return theirs == (True, tables.prefix, tables.queue)

    def _gone(self, what: str) -> NoReturn:
        raise RoundsGone(self.consumer_id, what)

    def _change(self, connection: Connection, **values: Any) -> None:
        store.change(connection, self._context.tables, self.consumer_id, values)

    def _life(self) -> dict[str, Any]:
        expressions = self._context.dialect.expressions
        return {
            "heartbeat_at": expressions.heartbeat_now(),
            "expires_at": store.expiry(expressions, self._timeout_us),
        }

    @property
    def _renewal_us(self) -> int:
        timeout = self._timeout_us
        return _HEARTBEAT_US if timeout is None else min(_HEARTBEAT_US, timeout // 3)

    def _renewal_is_due(self, found: Registration) -> bool:
        return found.now - found.heartbeat_at >= self._renewal_us

    def _renew_if_due(self, connection: Connection, found: Registration) -> None:
        if self._renewal_is_due(found):
            self._change(connection, **self._life())

    def _take_over(self, connection: Connection) -> Registration | None:
        tables, name = self._context.tables, self.consumer_id
        me = {"owner": self._owner, "host": socket.gethostname()[:255], "pid": os.getpid()}
        found = store.lock(connection, tables, name)
        if found is None:
            values = {"consumer_id": name, "name": name, **me, **self._life()}
            added = store.add(connection, tables, values)
            return store.lock(connection, tables, name) if added else None
        if not self._is_mine(found):
            raise self._another(found)
        anew: dict[str, Any] = {}
        if found.expired:
            # Its messages count as released, so an old checkpoint must fail.
            self._unclaim(connection, found)
            now = self._context.dialect.expressions.now()
            anew = {"claimed_round": 0, "acked_round": 0, "started_at": now}
        self._change(connection, epoch=found.epoch + 1, **me, **anew, **self._life())
        return store.lock(connection, tables, name)

    def _another(self, found: Registration) -> ConsumerTaken:
        whose = "It is not a durable consumer."
        if found.durable:
            whose = (
                f"That consumer reads queue {found.queue!r} (table prefix {found.table_prefix!r}), "
                f"not queue {self._context.name!r}."
            )
        return ConsumerTaken(
            f"The name {self.consumer_id!r} is taken. {whose} Give each query its own consumerId, "
            "or drop the old consumer first (queue-over-sql consumer drop)."
        )

    def _unclaim(self, connection: Connection, found: Registration) -> int:
        span = (self.consumer_id, found.acked_round, found.claimed_round)
        count = store.unclaim_rounds(connection, self._context.sql, *span)
        store.forget_rounds(connection, self._context.tables, self.consumer_id)
        return count

    def _give_back(self, then: Callable[[Connection, Registration], None]) -> int:
        def do(connection: Connection) -> int:
            found = store.lock(connection, self._context.tables, self.consumer_id)
            if found is None or not self._is_mine(found):
                raise ConsumerNotFound(self.consumer_id)
            count = self._unclaim(connection, found)
            then(connection, found)
            return count

        count = self._write(do)
        if count:
            self._came_back(None)
        return count

    # -- operations on rounds

    def _is_idle(self, connection: Connection, start: int, request: AdvanceRequest) -> bool:
        found = self._checked(self._registered(connection), self.epoch, start)
        if not start == found.acked_round == found.claimed_round or self._renewal_is_due(found):
            return False
        return not self._count(connection, dataclasses.replace(request.whole, message_limit=1))

    def _advance(
        self,
        connection: Connection,
        start: int,
        request: AdvanceRequest,
        on_ack: str | None,
        ended: dict[int, Disposition],
        *,
        apart: bool,
    ) -> int:
        found = self._locked(connection, self.epoch, start)
        if start < found.acked_round:
            raise CheckpointBehind(self.consumer_id, start, found.acked_round)
        self._ack(connection, found, start, on_ack, apart=apart)
        self._renew_if_due(connection, found)
        if found.claimed_round > start:
            return found.claimed_round
        return self._open(connection, start, request, ended)

    def _ack(
        self,
        connection: Connection,
        found: Registration,
        end: int,
        on_ack: str | None,
        *,
        apart: bool,
    ) -> None:
        if end <= found.acked_round:
            return
        settings, name = self._context.settings, self.consumer_id
        keep = settings.archive == "all" if on_ack is None else on_ack == "archive"
        span, dedup_us = (name, found.acked_round, end), settings.dedup_us
        if apart:
            self._finish_apart(connection, span, keep=keep)
        else:
            store.finish_rounds(connection, self._context.sql, span, keep=keep, dedup_us=dedup_us)
        store.forget_rounds(connection, self._context.tables, name, end)
        self._change(connection, acked_round=end)

    def _finish_apart(
        self, connection: Connection, span: tuple[str, int, int], *, keep: bool
    ) -> None:
        dedup_us = self._context.settings.dedup_us
        for number, ids in store.held_in_rounds(connection, self._context.sql, span).items():
            stamp = Claim(self.consumer_id, number)
            settlement = Settlement(ids, stamp, Outcome.DONE, None, dedup_us=dedup_us)
            self._settlements.finish_apart(connection, settlement, keep=keep)

    def _open(
        self,
        connection: Connection,
        start: int,
        request: AdvanceRequest,
        ended: dict[int, Disposition],
    ) -> int:
        """Open the next rounds; returns the last one. ``ended`` gets what had expired."""
        count = self._count(connection, request.whole)
        opened: list[Round] = []
        for each in request.rounds(start, count) if count else ():
            claimed = None if request.executor else self._claim(connection, each, ended)
            if claimed == 0:
                break
            opened.append(dataclasses.replace(each, claimed_count=claimed))
        store.open_rounds(connection, self._context.tables, self.consumer_id, opened)
        return opened[-1].consumer_round if opened else start

    def _claim(self, connection: Connection, wanted: Round, ended: dict[int, Disposition]) -> int:
        """Claim a round; returns how many messages it has. ``ended`` gets what had expired."""
        priorities, sql = self._context.settings.priorities, self._context.sql
        groups = None
        if sql.subject.grouped:
            walk = GroupWalk(self._context)
            groups = GroupRounds(walk.rules, walk.create_rows)
        count = store.claim_round(
            connection, sql, self.consumer_id, wanted, priorities, groups=groups
        )
        if not count or not self._context.tables.may_expire:
            return count
        return count - self._expire(connection, wanted.consumer_round, ended)

    def _expire(self, connection: Connection, number: int, ended: dict[int, Disposition]) -> int:
        """End the messages of a round that had expired when it was claimed; returns how many."""
        sql, stamp, count = self._context.sql, Claim(self.consumer_id, number), 0
        if not registry.is_expiring(connection, sql):
            return 0
        for waited, ids in store.expired_of_round(
            connection, sql, self.consumer_id, number
        ).items():
            end = Settlement(ids, stamp, Outcome.EXPIRED, not_started_within(waited))
            refused: dict[int, str] = {}
            gone = self._settlements.dead_letter(connection, end, refused)
            self._settlements.log_refused(refused)
            told = Disposition(keep=True, error=end.error, outcome=Outcome.EXPIRED)
            ended |= dict.fromkeys(gone - refused.keys(), told)
            count += len(gone)
        return count

    def _count(self, connection: Connection, wanted: Round) -> int:
        priorities, sql = self._context.settings.priorities, self._context.sql
        return store.count_eligible(connection, sql, wanted, priorities)

    def _failed(
        self, connection: Connection, failed: Settlement, delay: int | None, reason: _Reason
    ) -> list[_Failed]:
        """Those that the round still holds, by how long they wait."""
        sql, settings = self._context.sql, self._context.settings
        held = store.held_attempts(connection, sql, failed.claim, failed.ids, settings.max_attempts)
        waits: dict[int | None, list[FailedAttempt]] = {}
        for message_id, (attempt, allowed, claimed_at) in held.items():
            wait = self._settlements.delay_after(
                attempt, allowed, reason.text, delay, reason.exception
            )
            became = Outcome.FAILED.value if wait is None else _RETRIED
            waits.setdefault(wait, []).append(
                FailedAttempt(
                    message_id,
                    attempt,
                    self.consumer_id,
                    claimed_at,
                    became,
                    reason.text,
                    reason.traceback,
                )
            )
        in_order = sql.subject.grouped and settings.group_order == "fifo"
        limit = settings.group_limit or 1
        failed = dataclasses.replace(failed, in_order=in_order, group_limit=limit)
        return [
            _Failed(dataclasses.replace(failed, ids=[each.message_id for each in some]), wait, some)
            for wait, some in waits.items()
        ]

    def _nack(
        self, connection: Connection, failed: Sequence[_Failed], refused: dict[int, str]
    ) -> None:
        sql = self._context.sql
        # All at once, and dead letters last: each gives back what the round holds behind it.
        failed = sorted(failed, key=lambda each: each.wait is None)
        waits = {each.settlement.ids[0]: each.wait for each in failed}

        def fail(target: Connection, settlement: Settlement) -> set[int]:
            wait = waits[settlement.ids[0]]
            if wait is None:
                return self._settlements.dead_letter(target, settlement, refused)
            return retry(target, sql, settlement, wait)

        each_of(sql, [each.settlement for each in failed], fail).do(connection)


class _Reason(NamedTuple):
    text: str | None
    exception: type[BaseException] | None
    traceback: str | None


def _reason(error: str | BaseException | None) -> _Reason:
    if isinstance(error, BaseException):
        return _Reason(reason_of(error), type(error), traceback_of(error))
    return _Reason(reason_of(error), None, None)


class _Failed(NamedTuple):
    """Messages of a round that failed alike.

    Attributes:
        wait: how long they wait; None: they are dead letters.
        attempts: what is told of each.
    """

    settlement: Settlement
    wait: int | None
    attempts: Sequence[FailedAttempt]

    def told(self, refused: Mapping[int, str]) -> list[FailedAttempt]:
        """What became of them; ``refused`` ones are held."""
        return [
            each
            if (why := refused.get(each.message_id)) is None
            else each._replace(outcome=HELD, error=why)
            for each in self.attempts
        ]


def _round(name: str, value: int) -> int:
    return check_whole(name, value, 0, LAST_ROUND)


def _check_on_ack(on_ack: str | None) -> None:
    if on_ack is not None:
        check_choice("on_ack", on_ack, _ON_ACK)


def _moment(microseconds: int) -> str:
    return instant(microseconds).isoformat(timespec="milliseconds")
