"""Supply: claims messages for a handler before its threads need them, and acks finished ones.

Each handler has one, in its own thread beside the handler threads. The faster the handler, the more
messages it claims and acks at once. A slow handler gets them one by one.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from queue_over_sql.database.runtime import LoopProgress
from queue_over_sql.errors import ClaimLost, QueueError, QueueSchemaMismatch, ServiceClosed
from queue_over_sql.message import has_ended, is_given_back, row_of
from queue_over_sql.observer import log_lost
from queue_over_sql.queue import core_of
from queue_over_sql.recovery.suspects import may_run_together
from queue_over_sql.values.backoff import Backoff
from queue_over_sql.worker import claims_ahead as forecast
from queue_over_sql.worker.acks import Acks
from queue_over_sql.worker.claims_ahead import Forecast
from queue_over_sql.worker.in_hand import InHand
from queue_over_sql.worker.outcomes import release_each, release_quietly, settle_each
from queue_over_sql.worker.polls import Polls

if TYPE_CHECKING:
    from queue_over_sql.catalog.service_parts import ServiceParts
    from queue_over_sql.consumers.lease_renewal import LeaseKeeper
    from queue_over_sql.message import Message
    from queue_over_sql.queue import Queue
    from queue_over_sql.worker.handler import Handler


_log = logging.getLogger(__name__)

FIRST_RECONNECT, LAST_RECONNECT = 0.1, 5.0

# For each thread. More are no faster: eight workers of PostgreSQL were twice as slow with 150.
_MOST_AHEAD_OF_GROUPS: Final = 50


class SharedThreads(Protocol):
    """The threads of a worker, as the supplies that share them see them."""

    @property
    def concurrency(self) -> int:
        """How many there are."""

    @property
    def share(self) -> float:
        """How many of them each supply with messages can expect."""

    @property
    def draining(self) -> bool:
        """Whether they begin no more messages."""

    @property
    def ended_calls(self) -> int:
        """The number of ended calls, if the worker runs until its queues are empty."""

    @property
    def idle(self) -> bool:
        """Whether the worker runs until its queues are empty, and has no messages in hand."""

    def note_ended_call(self) -> None:
        """Let no earlier poll tell that a queue is empty."""

    def end_if_empty(self) -> None:
        """Drain if all queues are empty; let supplies poll queues that may not be."""

    @property
    def held_back(self) -> bool:
        """Whether no supply may claim, because suspects run alone."""

    def isolates(self, supply: Supply) -> bool:
        """Whether the suspects that run alone are those of this supply."""

    @property
    def only_suspects(self) -> bool:
        """Whether the suspects are all that this consumer has in hand."""

    def isolate(self, supply: Supply) -> bool:
        """Let nobody claim while this supply has suspects; False if another one has some."""

    def end_isolation(self, supply: Supply) -> None:
        """Let all claim again, if the suspects were those of this supply."""

    def insist(self, do: Callable[[], None]) -> None:
        """Repeat it as long as the database is unavailable."""

    def request_claim(self, supply: Supply) -> None:
        """Set how many messages a supply claims next, so that no two claim for one thread."""

    def go_on(self, supply: Supply, ready: int) -> None:
        """Note that as many groups of a supply may go on, one of them in the calling thread."""

    def filled(self, supply: Supply) -> None:
        """Note that a supply has claimed, so that others may claim for the remaining threads."""

    def drain(self) -> None:
        """Begin no more messages."""


class State(enum.Enum):
    """What the thread of a supply does."""

    BUSY = enum.auto()
    """It claims, acks or releases."""
    WAITING = enum.auto()
    """It waits for a thread that needs messages, or for the time of the next ack."""
    IDLE = enum.auto()
    """Its queue is empty, and it waits for an arrival."""
    RESTING = enum.auto()
    """It waits after an error."""
    OVER = enum.auto()
    """It has ended."""


@dataclasses.dataclass
class NextClaim:
    """The claim that a supply makes next or is making.

    Attributes:
        count: how many messages; 0 if none.
        needed: how many of these are for free threads.
        at: when the last one was requested.
    """

    count: int = 0
    needed: int = 0
    at: float = 0.0

    @property
    def coming(self) -> int:
        """How many messages free threads can still expect from it."""
        late = time.monotonic() > self.at + forecast.HORIZON_SECONDS
        return self.needed if self.count and not late else 0


class Supply:
    """The messages of one handler that its worker has in hand.

    Args:
        threads: the threads that handle the messages.
        handler: the handler of the messages.
        parts: of the service.
        keeper: renews the leases of messages in hand.
        prefetch: messages for each thread, including the one in work; None: by the handler's speed.
        each: ack each message before its thread begins another.
        bounds: shortest and longest pause in seconds between two polls of an empty queue.
    """

    def __init__(
        self,
        threads: SharedThreads,
        handler: Handler,
        parts: ServiceParts,
        keeper: LeaseKeeper,
        *,
        prefetch: int | None,
        each: bool,
        bounds: tuple[float, float],
    ) -> None:
        self.handler = handler
        self.progress = LoopProgress(f"supply of queue {handler.queue}")
        self.queue: Queue = parts.queue(handler.queue)
        """The queue of the messages in hand."""
        self.state = State.BUSY
        self.next_claim = NextClaim()
        self._size = handler.batch or 1
        self._threads = threads
        self._parts = parts
        self._each = each
        self._changed = parts.connections.runtime.condition()
        self._in_hand = InHand(self._size, together=handler.batch is not None)
        self._acks = Acks(self._changed, each=each)
        # Suspects, which wait until nothing else is in hand.
        self._suspects: list[Message] = []
        self._forecast = Forecast(
            size=self._size, concurrency=threads.concurrency, prefetch=prefetch
        )
        self._polls = Polls(parts.arrivals, bounds)
        self._backoff = Backoff(FIRST_RECONNECT, LAST_RECONNECT)
        # How many of its calls have ended. In a queue with groups others may go on then.
        self._ended_calls = 0
        # Whether the queue had groups at the last claim.
        self._is_grouped = False
        self._is_limited = self._is_bounded = False
        # The messages of abandoned calls that keep their groups from going on.
        self._hanging: dict[int, Sequence[Message]] = {}
        # Requests of other threads: to check again what to do, and to end.
        self._woken = self._ending = False
        # Without lease_keepalive, the lease of a message is for its handler, so it is renewed until
        # that begins.
        renewed = self._all_messages if handler.lease_keepalive else self._not_begun
        self._renew = keeper.holding(lambda: self.queue, renewed)

    # -- what it has in hand

    @property
    def ready(self) -> int:
        """How many messages are claimed, and may begin now."""
        return self._in_hand.ready

    @property
    def reserved(self) -> int:
        """How many threads have a message ready, or one that was requested a moment ago."""
        return math.ceil((self._in_hand.ready + self.next_claim.coming) / self._size)

    @property
    def is_ahead(self) -> bool:
        """Whether it has messages ready before a thread is free for them."""
        return bool(self._in_hand.ready) and self._ahead() > 0

    @property
    def has_any(self) -> bool:
        """Whether it has messages in hand, or is claiming some."""
        return bool(self._suspects) or self.has_others

    @property
    def has_others(self) -> bool:
        """As ``has_any``, without suspects that wait."""
        return self._in_hand.has_any or self._acks.has_any or bool(self.next_claim.count)

    def in_hand(self) -> str:
        """What makes it have others, in words."""
        called = sum(map(len, self._in_hand.calls().values()))
        counts = {
            "not begun": self._in_hand.unbegun,
            "in calls": called,
            "to ack": len(self._acks.messages()),
            "to come from a claim": self.next_claim.count,
        }
        text = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        return f"queue {self.handler.queue}: messages: {text or 'unknown'}"

    @property
    def found(self) -> bool:
        """Whether its last poll found messages."""
        return self._polls.found

    @property
    def found_nothing(self) -> bool:
        """Whether its last poll found nothing, and no call has ended since."""
        return self._polls.found_nothing(self._calls_until_now)

    @property
    def _calls_until_now(self) -> int:
        return self._threads.ended_calls + self._ended_calls

    @property
    def waits(self) -> bool:
        """Whether it sleeps until ``wake()`` or a certain time."""
        return self.state in {State.WAITING, State.IDLE}

    def _not_begun(self) -> Mapping[int, Sequence[Message]]:
        return {0: [*self._in_hand.ready_messages(), *self._suspects]}

    def _all_messages(self) -> Mapping[int, Sequence[Message]]:
        # A call with locked rows must not delay the others.
        ready = self._in_hand.ready_messages()
        others = {0: [*ready, *self._suspects, *self._acks.messages()]}
        return {**others, **self._in_hand.calls(), **self._hanging}

    # -- for the threads

    def series_of(self, message: Message) -> str | None:
        """The group of a message that has only one of them in work at once; None if it has none."""
        return self._in_hand.series_of(message)

    def take(self) -> list[Message]:
        """The messages for one call of the handler; empty if there are none."""
        size = self._size
        if self.handler.commit_every > 1:
            # Leave a share of the ready messages to the other threads.
            share = self._in_hand.unbegun // self._threads.concurrency
            size = max(1, min(self.handler.commit_every, share))
        taken = self._in_hand.take(size)
        if taken and self._polls.found and not self._woken and self._is_low():
            self.wake()
        return taken

    def ended(
        self, taken: list[Message], finished: Sequence[Message], unbegun: Sequence[Message] = ()
    ) -> None:
        """Note the result of a call.

        Args:
            taken: the messages of the call.
            finished: those that must be acked.
            unbegun: those that were not handled; they may not wait any longer.
        """
        if not self._in_hand.is_call(taken):
            return  # abandoned
        if unbegun:
            self._in_hand.put_back(unbegun)
        first = self._acks.add(finished)
        # A poll from before these acks may have missed what they let go on. So it is counted after
        # them, and before a worker that runs until its queues are empty might find nothing in hand.
        self._threads.note_ended_call()
        self._in_hand.end_call(taken)
        if not (self._each and finished):
            self.let_go_on(taken, finished, unbegun)
        if first or unbegun or (self._each and finished):
            self.wake()

    def let_go_on(
        self,
        taken: Sequence[Message],
        finished: Sequence[Message] = (),
        unbegun: Sequence[Message] = (),
    ) -> None:
        """Let the groups of an ended call go on, or give back what is behind those that failed."""
        # Of a queue whose groups were turned off meanwhile, a series still goes on.
        if not (self._is_grouped or self._in_hand.has_series):
            return
        over = set(map(id, [*finished, *unbegun]))
        self.give_back_behind(
            [each for each in taken if id(each) not in over and not has_ended(each)]
        )
        ready = self._in_hand.let_go_on(taken, unbegun)
        self._threads.go_on(self, ready)
        if ready < len({each.group for each in taken if each.group is not None}):
            # A group has nothing left in hand, so its next messages may be claimed.
            self._ended_calls += 1
            if not self._polls.found:
                self.wake()

    def give_back_behind(self, failed: Sequence[Message]) -> None:
        """Give back what was claimed with failed messages and comes after them in their groups."""
        behind = self._in_hand.remove_behind(failed)
        if not behind:
            return
        try:
            self._release(behind, release_quietly)
        except QueueError as error:
            # Whoever ended the call must go on: its group would wait for ever.
            _log.warning(
                "Queue %s: messages could not be released; they are redelivered when their "
                "leases expire: %s",
                self.handler.queue,
                error,
            )

    def abandon(self, taken: Sequence[Message], hanging: Sequence[Message] = ()) -> None:
        """Abandon a call: of its messages only the leases of ``hanging`` are still renewed."""
        if hanging:
            self._hanging[id(taken)] = hanging
        self._in_hand.end_call(taken)

    def end_hanging(self, taken: Sequence[Message]) -> None:
        """Let the groups of an abandoned call go on, after its messages were settled."""
        self._hanging.pop(id(taken), None)
        self.let_go_on(taken)

    def await_acks(self, finished: Sequence[Message], seconds: float = math.inf) -> None:
        """Wait until these are acked or lost, for at most ``seconds``."""
        self._acks.await_acked(finished, seconds)

    def note_time(self, taken: Sequence[Message], took: float) -> None:
        """Note a call's duration for these messages."""
        self._forecast.note_call(took / len(taken) if self.handler.commit_every > 1 else took)

    def wake(self) -> None:
        """Let its thread check what to do."""
        self._woken = True
        with self._changed:
            self._changed.notify_all()
        if self.state is State.IDLE:
            self._polls.wake()

    def end(self) -> None:
        """Ack finished messages, and end ``run()``."""
        self._ending = True
        self.wake()

    # -- for a worker that stops at once

    def release_ready(self) -> None:
        """Release messages that are not begun."""
        suspects, self._suspects = self._suspects, []
        self._release([*self._in_hand.remove_ready(), *suspects])

    def ack_finished(self) -> None:
        """Ack finished messages."""
        settle_each(self.queue, self.queue.ack, [*self._acks.take(), *self._acks.refused()])

    def release_calls(self) -> None:
        """Release the messages of running calls."""
        for call in self._in_hand.calls().values():
            settle_each(self.queue, self.queue.release, call)

    # -- its own thread

    def run(self) -> None:
        """Claim, ack and release until the end."""
        self.progress.begin()
        try:
            while (
                not self._ending or self._acks.finished or self._in_hand.unbegun or self._suspects
            ):
                self._step_safely()
            if self._acks.has_refused:
                # The last try; after it their leases will expire.
                self._acks.ack_refused_now()
                self._step_safely()
            self.progress.end()
        finally:
            self.state = State.OVER
            self._acks.end()

    def _step_safely(self) -> None:
        last = self._ending
        try:
            self._step()
        except ServiceClosed:
            self._threads.drain()
            last = self._ending = True
        except QueueSchemaMismatch as error:
            _log.warning(
                "Queue %s: its definition changed, so the worker opens it again: %s",
                self.handler.queue,
                error,
            )
            self._parts.catalog.forget(self.handler.queue)
            self._rest()
        except QueueError as error:
            _log.warning("Queue %s: %s", self.handler.queue, error)
            self._rest()
        except Exception:  # noqa: BLE001 - whatever it is
            # If this thread died, the worker would look healthy and do nothing.
            _log.exception(
                "Queue %s: an unexpected error; the worker continues.", self.handler.queue
            )
            self._rest()
        else:
            return
        if last:
            # Their leases will expire.
            self._in_hand.remove_ready()
            self._acks.forget()
            self._suspects = []

    def _step(self) -> None:
        self._woken = False
        draining, now = self._threads.draining, time.monotonic()
        self.progress.due_at = now
        if self._threads.isolates(self):
            self._go_on_alone(draining=draining)
        unbegun = self._in_hand.unbegun
        if (unbegun and now >= self._stale_at) or (draining and (unbegun or self._suspects)):
            self._give_back(draining=draining)
        idle = not self.may_find() and not self._suspects
        if self._acks.are_refused_due(now):
            self._ack_again()
        # Right before the exchange, which ends the request whatever happens.
        if not draining:
            self._threads.request_claim(self)
        ripe = draining or self._each or self._acks.are_ripe(now)
        if self.next_claim.count or (ripe and self._acks.finished):
            self._exchange()
            self._threads.end_if_empty()
        elif not self._ending:
            self._wait(now, idle=idle)

    # -- its claims

    def may_find(self) -> bool:
        """Whether the queue may have messages, as far as is known."""
        after_calls = self._threads.idle or self._is_grouped or self._is_limited
        return self._polls.is_due(self._calls_until_now, until_empty=after_calls)

    def wanted(self, free: int) -> int:
        """How many messages to claim.

        Args:
            free: threads that wait for a message and that no other supply serves.
        """
        if self._threads.held_back or not self.may_find():
            return 0
        needed = free * self._size - self.ready
        return needed + self._ahead() if needed > 0 or self._is_low() else 0

    def request_claim(self, free: int) -> None:
        """Set the next claim to what this many free threads need."""
        self.next_claim.needed = max(0, free * self._size - self.ready)
        self.next_claim.count = self.wanted(free)
        if self.next_claim.count:
            self.next_claim.at = time.monotonic()

    def _ahead(self) -> int:
        if self._is_bounded:
            # What it would keep for later, others could do now; and it has spent its token.
            return 0
        ahead = self._forecast.ahead(self._threads.share)
        if self._is_grouped and not self._forecast.is_fixed:
            # The more groups a claim locks, the longer others wait for it.
            return min(ahead, _MOST_AHEAD_OF_GROUPS * self._threads.concurrency)
        return ahead

    def _is_low(self) -> bool:
        return self._in_hand.unbegun * 2 < self._ahead()

    def _exchange(self) -> None:
        count, arrived = self.next_claim.count, self._polls.arrived
        ended_calls = self._calls_until_now
        spare: list[Message] = []
        try:
            if count:
                self._open()
            found = self._exchanged(count)
            tables = core_of(self.queue).context.tables
            self._is_grouped, self._is_limited = tables.grouped, tables.limited
            self._is_bounded = tables.bounded
            if count:
                self._backoff.reset()
                self._polls.note(
                    found=bool(found),
                    arrived=arrived,
                    ended_calls=ended_calls,
                    token_at=core_of(self.queue).claimer.token_at,
                )
            if found:
                self._forecast.note_found(found)
                found, spare = self._kept(found)
            self._place(found)
        finally:
            self.next_claim.count = 0
            if count:
                self._threads.filled(self)
        self._release(spare)

    def _kept(self, found: list[Message]) -> tuple[list[Message], list[Message]]:
        """Those of a claim that may be ready, and those to give back."""
        if may_run_together(found[0].last_error):
            return self._set_suspects_aside(found)
        if not self._forecast.is_fixed and any(_is_last_try(message) for message in found):
            # A message in its last attempt must not be claimed ahead, because a kill would end it.
            self._forecast.claim_none_ahead()
            needed = self.next_claim.needed
            first = _without_followers(found, self._series(found))[:needed]
            return first, [message for message in found if message not in first]
        return found, []

    def _open(self) -> None:
        try:
            self.queue = self._parts.queue(self.handler.queue)
        except QueueError:
            # Finished messages are still acked, unless they were dropped with the queue.
            self._exchanged(0)
            raise

    def _exchanged(self, count: int) -> list[Message]:
        queue, where = self.queue, self.handler.where
        # One thread at a time works on a group, so the others need messages of other groups.
        most = max(self._size, math.ceil(count / self._threads.concurrency))
        with self._acks.acking() as finished:
            if finished and count and core_of(queue).holds_all(finished):
                try:
                    return core_of(queue).exchange(finished, count, None, where, most)
                except ServiceClosed:
                    raise
                except ClaimLost as error:
                    log_lost(queue.name, error)
                    self.give_back_behind(error.messages)
                except QueueError as error:
                    _log.info("Queue %s: %s", queue.name, error)
            refused: list[Message] = []
            self._threads.insist(lambda: settle_each(queue, queue.ack, finished, refused))
            self._acks.set_aside(refused)
            self.give_back_behind(list(filter(is_given_back, finished)))
        found: list[Message] = []
        if count:
            claim = core_of(queue).claimer.consume
            self._threads.insist(lambda: found.extend(claim(count, None, 0.0, where, most=most)))
        return found

    def _ack_again(self) -> None:
        queue, again = self.queue, self._acks.refused()
        refused: list[Message] = []
        self._threads.insist(lambda: settle_each(queue, queue.ack, again, refused))
        self._threads.note_ended_call()
        self._acks.note_refused_again(refused)

    def _place(self, found: Sequence[Message]) -> None:
        if found:
            series = self._series(found) if self._is_grouped else ()
            self._in_hand.place(found, self.queue.holds, series)
            self._renew(found)

    def _series(self, found: Sequence[Message]) -> Sequence[str | None]:
        """The groups that run one after another, of messages that are not in hand yet."""
        claimer = core_of(self.queue).claimer
        try:
            return claimer.series(found)
        except BaseException:
            # Nobody would handle, renew or release them.
            claimer.abandon([row_of(message) for message in found])
            raise

    # -- suspects, which run with nothing else in hand

    def _set_suspects_aside(self, found: list[Message]) -> tuple[list[Message], list[Message]]:
        if not self._threads.isolate(self):
            return [], found
        self._suspects = found
        self._renew(found)
        return [], []

    def _go_on_alone(self, *, draining: bool) -> None:
        if self._suspects:
            if not draining and self._threads.only_suspects:
                suspects, self._suspects = self._suspects, []
                self._place(suspects)
                self._threads.filled(self)
        elif not self.has_any:
            self._threads.end_isolation(self)

    # -- what it gives back

    @property
    def _stale_at(self) -> float:
        if self._forecast.is_fixed:
            return math.inf
        return self._in_hand.oldest_at + forecast.HORIZON_SECONDS

    def _give_back(self, *, draining: bool) -> None:
        if not draining:
            self._forecast.note_stale()
        self.release_ready()

    def _release(
        self,
        messages: Sequence[Message],
        release: Callable[[Queue, Sequence[Message]], None] = release_each,
    ) -> None:
        queue = self.queue
        try:
            self._threads.insist(lambda: release(queue, messages))
        except BaseException as error:
            if not isinstance(error, Exception):
                # After a task was stopped, the stopper releases its messages.
                self._in_hand.place_stale(messages)
            raise

    # -- its waits

    def _wait(self, now: float, *, idle: bool) -> None:
        left = min(self._acks.due_at, self._stale_at) - now
        self.state = State.IDLE if idle else State.WAITING
        try:
            if idle:
                self._await_arrival(now, left)
            else:
                with self._changed:
                    if not self._woken:
                        # A reservation of another supply expires after this time.
                        left = min(forecast.HORIZON_SECONDS, max(0.0, left))
                        self._changed.wait(left)
        finally:
            self.state = State.BUSY

    def _await_arrival(self, now: float, seconds: float) -> None:
        self._parts.wakeups.listen()
        seconds = min(seconds, self._polls.next_at - now)
        self.progress.due_at = now + seconds
        self._polls.await_arrival(seconds, until=lambda: self._woken)

    def _rest(self) -> None:
        # Meanwhile other supplies may claim for the free threads.
        self.next_claim.at = time.monotonic()
        ends_at = self.progress.due_at = self.next_claim.at + self._backoff.pause()
        self.state = State.RESTING
        try:
            with self._changed:
                kept = self._acks.finished
                while (left := ends_at - time.monotonic()) > 0:
                    if self._ending or (self._each and self._acks.finished > kept):
                        return
                    self._changed.wait(left)
        finally:
            self.state = State.BUSY


def _is_last_try(message: Message) -> bool:
    return message.attempt >= message.max_attempts


def _without_followers(found: Sequence[Message], series: Sequence[str | None]) -> list[Message]:
    """Those of a claim that begin first: of each series one message."""
    seen = set[str]()
    first: list[Message] = []
    for message, name in itertools.zip_longest(found, series):
        if name is None or name not in seen:
            first.append(message)
        if name is not None:
            seen.add(name)
    return first
