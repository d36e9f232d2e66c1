"""Durable consumers: they outlive their processes, and what they claimed can be read again.

A durable consumer claims in numbered rounds. What a round stamped stays its own until the round
is acknowledged, released by an operator, or the consumer was not heard of for its timeout; so a
program that died may read the same messages once more, whatever process it is by now. That is
what a streaming engine asks of its source. One program at a time has the consumer: who takes it
over gets a new *epoch*, and every act of another epoch is refused.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from queue_over_sql import store
from queue_over_sql.dialects.requests import LAST_ROUND
from queue_over_sql.durable import round_store as acts
from queue_over_sql.durable.registration import (
    DEFAULT_TIMEOUT,
    DurableRegistration,
    RoundState,
)
from queue_over_sql.durable.round_store import Registration, Round
from queue_over_sql.durations import Duration, to_microseconds
from queue_over_sql.errors import CheckpointBehind, UnsupportedByEngine
from queue_over_sql.message import Claim, Outcome
from queue_over_sql.queue import core_of
from queue_over_sql.queues.settle import reason_of
from queue_over_sql.settings import LARGEST, check_choice, check_whole
from queue_over_sql.store import Settlement

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Connection

    from queue_over_sql.message import MessageRow
    from queue_over_sql.queue import Queue
    from queue_over_sql.queues.context import QueueContext
    from queue_over_sql.queues.settle import Settlements

    Failure = tuple[int, int, str | BaseException | None]


__all__ = ["DEFAULT_TIMEOUT", "ON_ACK", "DurableConsumer", "Round", "RoundState", "Want"]

ON_ACK: Final = ("delete", "archive")
"""What may become of acknowledged messages, instead of what the queue's ``archive`` says."""

# As many messages as there may be.
_ALL: Final = 2**62


@dataclasses.dataclass(frozen=True, slots=True)
class Want:
    """What ``DurableConsumer.advance`` is to open.

    Attributes:
        max_messages: in all rounds together at most so many; None for all that are due.
        messages_per_round: in each round at most so many.
        up_to_id: none with a larger id; None for all.
        due_by: none that are due later, in microseconds; None for all that are due at the claim.
        executor: leave it to whoever reads a round to claim it with ``claim_round``.
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
        """As many rounds of about the same size as so many messages need."""
        parts = -(-count // self.messages_per_round)
        sizes = [(count + part) // parts for part in range(parts)]
        return [
            Round(start + 1 + index, size, self.up_to_id, self.due_by)
            for index, size in enumerate(reversed(sizes))
        ]


class DurableConsumer(DurableRegistration):
    """A named consumer of one queue whose claims outlive its process; see the module.

    Every act is one transaction and may be repeated when its commit got no answer.

    Args:
        context: of the queue.
        settler: of the queue, for what failed.
        came_back: told that messages are there again.
        consumer_id: 1 to 36 of ``A-Z a-z 0-9 . _ -``.
        owner: who this program is, for people: ``host:pid``.
        timeout: how long its claims are kept without a sign of life, which ``advance`` gives;
            None for ever.

    Raises:
        TypeError, ValueError: an argument has no sensible value.
    """

    def __init__(
        self,
        context: QueueContext,
        settler: Settlements,
        came_back: Callable[[int | None], None],
        consumer_id: str,
        *,
        owner: str,
        timeout: Duration | None = DEFAULT_TIMEOUT,
    ) -> None:
        super().__init__(context, came_back, consumer_id, owner=owner, timeout=timeout)
        self._settler = settler

    @property
    def claims_apart(self) -> bool:
        """Whether rounds are claimed fastest by those who read them (``Want.executor``)."""
        return self._context.dialect.rounds.claims_apart

    def target(self) -> tuple[int, int]:
        """The largest id and the database's clock now: bounds of what is there already."""
        sql = self._context.sql
        return self._run(lambda c: (acts.last_id(c, sql), store.server_now(c, sql)))

    def backlog(self, limit: int | None = None) -> int:
        """Count the messages that could be claimed now, up to ``limit``: it reads them."""
        whole = Want(limit, 1).whole
        return self._run(lambda connection: self._count(connection, whole))

    # -- rounds

    def advance(self, start: int, want: Want, *, on_ack: str | None = None) -> int:
        """Acknowledge what lies up to ``start``, and open the next rounds.

        Args:
            start: the last round whose messages are done.
            want: what to open.
            on_ack: ``"delete"`` or ``"archive"``, instead of what the queue says.

        Returns:
            The last opened round: ``start`` where there is nothing to claim. Rounds beyond
            ``start`` that were opened before and never acknowledged come back as they are.

        Raises:
            ConsumerFenced: another program has the consumer.
            CheckpointBehind: rounds after ``start`` are acknowledged already.
            RoundsGone: the consumer was given up, or never opened round ``start``.
            UnsupportedByEngine: ``want.executor`` on an engine where rounds are not claimed apart.
        """
        start = _round("start", start)
        _check_on_ack(on_ack)
        if want.executor and not self.claims_apart:
            msg = "This database claims rounds where they are opened: leave out executor."
            raise UnsupportedByEngine(msg)
        if self._run(lambda connection: self._is_idle(connection, start, want)):
            return start
        return self._run(lambda c: self._advance(c, start, want, on_ack), atomic=True)

    def ack(self, end: int, *, on_ack: str | None = None) -> None:
        """Acknowledge all rounds up to ``end``; again does nothing.

        Raises:
            ConsumerFenced, RoundsGone: as in ``advance``.
        """
        end = _round("end", end)
        _check_on_ack(on_ack)

        def act(connection: Connection) -> None:
            self._ack(connection, self._locked(connection, self.epoch, end), end, on_ack)

        self._run(act, atomic=True)

    def rounds(self, start: int, end: int, *, missing_ok: bool = False) -> list[Round]:
        """The rounds after ``start`` up to ``end``, as they were opened.

        Args:
            start: the round before the first of them.
            end: the last of them.
            missing_ok: return those that are there.

        Raises:
            ConsumerFenced: another program has the consumer.
            RoundsGone: the consumer was given up; or not all of them are there, unless
                ``missing_ok``.
        """
        start, end = _round("start", start), _round("end", end)

        def act(connection: Connection) -> list[Round]:
            self._locked(connection, self.epoch, 0 if missing_ok else end, shared=True)
            return acts.rounds_between(connection, self._system, self.consumer_id, start, end)

        found = self._run(act, atomic=True)
        if missing_ok:
            return found
        if [each.consumer_round for each in found] != list(range(start + 1, end + 1)):
            self._gone(f"its rounds {start + 1} to {end} are not all there.")
        return found

    def claim_round(self, connection: Connection, wanted: Round, epoch: int) -> int:
        """Claim one round, unless that was done before; what it stamped never changes by this.

        Args:
            connection: with a transaction of its own at READ COMMITTED, to be committed before
                the messages are handed on: ``Connections.run(…, atomic=True)`` gives one.
            wanted: the round.
            epoch: of the program on whose behalf this is.

        Returns:
            How many messages the round stamped.

        Raises:
            ConsumerFenced: another program has the consumer.
            RoundsGone: the round is acknowledged, or was given back.
        """
        number, system = wanted.consumer_round, self._system
        self._locked(connection, epoch, number, shared=True)
        if acts.win_seal(connection, system, self.consumer_id, number):
            count = self._claim(connection, wanted)
            acts.seal(connection, system, self.consumer_id, number, count)
            return count
        found = acts.rounds_between(connection, system, self.consumer_id, number - 1, number)
        if not found:
            self._gone(f"its round {number} is not there.")
        return found[0].claimed_count or 0

    def read_round(self, connection: Connection, consumer_round: int) -> list[MessageRow]:
        """Read what a round stamped and still holds, oldest first."""
        sql = self._context.sql
        rows = acts.read_round(connection, sql, self.consumer_id, consumer_round)
        return store.oldest_first(rows)

    def recover(self, start: int) -> int:
        """Go on from what is there, whatever a checkpoint says: what was refused is given up.

        Outstanding rounds that the checkpoint cannot know of are given back, uncounted.

        Args:
            start: the round at which the checkpoint stands.

        Returns:
            From which round to go on.

        Raises:
            ConsumerFenced, RoundsGone: as in ``advance``.
        """
        start = _round("start", start)

        def act(connection: Connection) -> int:
            found = self._locked(connection, self.epoch)
            if start <= found.claimed_round:
                return max(start, found.acked_round)
            self._unclaim(connection, found)
            self._change(connection, claimed_round=start, acked_round=start)
            return start

        return self._run(act, atomic=True)

    # -- giving back

    def nack(
        self,
        failures: Sequence[Failure],
        *,
        delay: Duration | None = None,
        epoch: int | None = None,
    ) -> set[int]:
        """Give failed messages of outstanding rounds back, or bury them, as ``Queue.nack`` does.

        Args:
            failures: id, round and reason of each.
            delay: until the next attempt, instead of what the queue's retry policy says.
            epoch: of the program on whose behalf this is; its own where it has taken over.

        Returns:
            The ids of those that their rounds still held; nothing of the others was changed.

        Raises:
            ConsumerFenced, RoundsGone: as in ``advance``.
        """
        wait = None if delay is None else to_microseconds(delay, "delay", zero=True)
        if epoch is None and self._taken is not None:
            epoch = self.epoch
        groups: dict[tuple[int, str | None], list[int]] = {}
        for message_id, consumer_round, error in sorted(failures, key=lambda each: each[:2]):
            groups.setdefault((consumer_round, reason_of(error)), []).append(message_id)

        def act(connection: Connection) -> set[int]:
            if epoch is not None:
                self._locked(connection, epoch, shared=True)
            settled: set[int] = set()
            for (consumer_round, reason), ids in groups.items():
                stamp = Claim(self.consumer_id, consumer_round)
                settled |= self._nack(
                    connection, Settlement(ids, stamp, Outcome.FAILED, reason), wait
                )
            return settled

        settled = self._run(act, atomic=True)
        if settled:
            self._came_back(None)
        return settled

    # -- inner

    def _is_idle(self, connection: Connection, start: int, want: Want) -> bool:
        found = self._checked(self._registered(connection), self.epoch, start)
        if not start == found.acked_round == found.claimed_round or self._renewal_is_due(found):
            return False
        return not self._count(connection, dataclasses.replace(want.whole, message_limit=1))

    def _advance(self, connection: Connection, start: int, want: Want, on_ack: str | None) -> int:
        found = self._locked(connection, self.epoch, start)
        if start < found.acked_round:
            raise CheckpointBehind(self.consumer_id, start, found.acked_round)
        self._ack(connection, found, start, on_ack)
        if self._renewal_is_due(found):
            self._change(connection, **self._life())
        if found.claimed_round > start:
            return found.claimed_round
        return self._open(connection, start, want)

    def _ack(
        self, connection: Connection, found: Registration, end: int, on_ack: str | None
    ) -> None:
        if end <= found.acked_round:
            return
        settings, name = self._context.settings, self.consumer_id
        keep = settings.archive == "all" if on_ack is None else on_ack == "archive"
        span, dedup_us = (name, found.acked_round, end), settings.dedup_us
        acts.finish_rounds(connection, self._context.sql, span, keep=keep, dedup_us=dedup_us)
        acts.forget_rounds(connection, self._system, name, end)
        self._change(connection, acked_round=end)

    def _open(self, connection: Connection, start: int, want: Want) -> int:
        count = self._count(connection, want.whole)
        opened: list[Round] = []
        for each in want.rounds(start, count) if count else ():
            claimed = None if want.executor else self._claim(connection, each)
            if claimed == 0:
                break
            opened.append(dataclasses.replace(each, claimed_count=claimed))
        acts.open_rounds(connection, self._system, self.consumer_id, opened)
        return opened[-1].consumer_round if opened else start

    def _claim(self, connection: Connection, wanted: Round) -> int:
        levels, sql = self._context.settings.priorities, self._context.sql
        return acts.claim_round(connection, sql, self.consumer_id, wanted, levels)

    def _count(self, connection: Connection, wanted: Round) -> int:
        levels, sql = self._context.settings.priorities, self._context.sql
        return acts.count_eligible(connection, sql, wanted, levels)

    def _nack(self, connection: Connection, failed: Settlement, delay: int | None) -> set[int]:
        sql, most = self._context.sql, self._context.settings.max_attempts
        held = acts.held_attempts(connection, sql, failed.claim, failed.ids, most)
        waits: dict[int | None, list[int]] = {}
        for message_id, (attempt, allowed) in held.items():
            wait = self._settler.delay_after(attempt, allowed, failed.error, delay)
            waits.setdefault(wait, []).append(message_id)
        for wait, ids in waits.items():
            settlement = dataclasses.replace(failed, ids=ids)
            if wait is None:
                self._settler.dead_letter(connection, settlement)
            else:
                store.retry(connection, sql, settlement, wait)
        return set(held)


def _round(name: str, value: int) -> int:
    return check_whole(name, value, 0, LAST_ROUND)


def _check_on_ack(on_ack: str | None) -> None:
    if on_ack is not None:
        check_choice("on_ack", on_ack, ON_ACK)


def durable_consumer(
    queue: Queue, consumer_id: str, *, owner: str, timeout: Duration | None = DEFAULT_TIMEOUT
) -> DurableConsumer:
    """A consumer of a queue that outlives its process, for streaming engines.

    Args:
        queue: that it reads.
        consumer_id: its name: 1 to 36 letters, digits, dots, dashes and underscores.
        owner: who this program is, for people: ``host:pid``.
        timeout: how long its claims are kept without a sign of life; None for ever.
    """
    core = core_of(queue)
    return DurableConsumer(
        core.context,
        core.settlements,
        core.came_back,
        consumer_id,
        owner=owner,
        timeout=timeout,
    )
