"""Supply: claims messages for a handler before its threads need them, and acks finished ones.

Each handler has one, in its own thread beside the handler threads. The faster the handler, the more
messages it claims and acks at once. A slow handler gets them one by one.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol, TypeVar

from queue_over_sql.database.runtime import LoopProgress
from queue_over_sql.errors import (
    ClaimLost,
    DatabaseUnavailable,
    QueueError,
    QueueNotFound,
    QueueSchemaMismatch,
    ServiceClosed,
)
from queue_over_sql.message import payload_size
from queue_over_sql.observer import log_lost
from queue_over_sql.recovery.suspects import may_run_together
from queue_over_sql.values.backoff import Backoff, look_pauses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from queue_over_sql.catalog import ServiceParts
    from queue_over_sql.message import Message
    from queue_over_sql.queue import Queue
    from queue_over_sql.worker.handler import Handler
    from queue_over_sql.worker.lease_renewal import LeaseKeeper


T = TypeVar("T")
_log = logging.getLogger(__name__)

HORIZON_SECONDS = 0.05
"""A claimed message is given back if no thread begins it within this time."""
# How much work to claim ahead, by the recent speed of handlers; the rest of the horizon is a
# reserve.
_AHEAD_SECONDS = HORIZON_SECONDS / 2
MOST_AHEAD = 1000
"""The largest number of messages to claim ahead, with at most 8 MiB of payload."""
_MOST_BYTES = 8 * 2**20
ACK_SECONDS = 0.005
"""How long a finished message may wait for others to be acked with it."""
# The weight of the last call in the mean time of a call.
_WEIGHT = 0.1
_SHORTEST = 1e-6
FIRST_RECONNECT, LAST_RECONNECT = 0.1, 5.0
# Pauses between two tries to ack a message whose ack the database refuses.
_FIRST_AGAIN, _LAST_AGAIN = 1.0, 60.0


class Threads(Protocol):
    """The threads of a worker, as its supplies use them."""

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

    def end_if_empty(self) -> None:
        """Drain if all queues are empty; let supplies poll queues that may not be."""

    @property
    def alone(self) -> Supply | None:
        """The supply whose suspects run alone; meanwhile no supply claims."""

    @property
    def only_suspects(self) -> bool:
        """Whether the suspects are all that the worker has in hand."""

    def isolate(self, supply: Supply) -> bool:
        """Let no supply claim while this one has suspects; False if another one has some."""

    def end_isolation(self) -> None:
        """Let all supplies claim again."""

    def insist(self, act: Callable[[], None]) -> None:
        """Repeat it as long as the database is unavailable."""

    def ask(self, supply: Supply) -> None:
        """Set how many messages a supply shall claim, so that no two claim for one thread."""

    def filled(self, supply: Supply) -> None:
        """Note that a supply has claimed, so that others may claim for the remaining threads."""

    def drain(self) -> None:
        """Begin no more messages."""


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
        threads: Threads,
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
        self.asked_at = 0.0
        """When it last claimed."""
        self.waiting = False
        """Whether it sleeps until ``stir()`` or a certain time."""
        self.asked = 0
        """How many messages it is claiming now."""
        # How many of these are for free threads.
        self._needed = 0
        self._size = handler.batch or 1
        self._threads = threads
        self._parts = parts
        # Without lease_keepalive, the lease of a message is for its handler, so it is renewed until
        # that begins.
        renewed = self._in_hand if handler.lease_keepalive else self._not_begun
        self._claimed = keeper.holding(lambda: self.queue, renewed)
        self._prefetch = prefetch
        self._each = each
        # Messages that are claimed and not begun, with the time of the claim; messages of running
        # calls.
        self._ready: deque[tuple[Message, float]] = deque()
        self._calls: dict[int, list[Message]] = {}
        # Suspects, which wait until nothing else is in hand.
        self._suspects: list[Message] = []
        # Finished messages: those to ack, and those that it is acking now.
        self._finished: list[Message] = []
        self._acking: list[Message] = []
        self._finished_at = math.inf
        # Finished messages whose ack the database refused, and when they are acked again.
        self._refused: list[Message] = []
        self._refused_at, self._again = math.inf, Backoff(_FIRST_AGAIN, _LAST_AGAIN)
        # The mean duration of a call, in seconds.
        self._mean = math.inf
        self._most_ahead = 0
        # The count of arrivals before a poll that found nothing, and the time of the next poll.
        self._seen: int | None = None
        # How many calls had ended before that poll.
        self._seen_after = 0
        self._pauses, self._look_at = look_pauses(*bounds), 0.0
        self._idle = self._stirred = self._ended = self._over = False
        self._backoff = Backoff(FIRST_RECONNECT, LAST_RECONNECT)
        self._changed = parts.connections.runtime.condition()

    @property
    def ready(self) -> int:
        """How many messages are claimed and not begun."""
        return len(self._ready)

    @property
    def reserved(self) -> int:
        """How many threads have a message ready, or one that was requested a moment ago."""
        late = time.monotonic() > self.asked_at + HORIZON_SECONDS
        coming = self._needed if self.asked and not late else 0
        return math.ceil((len(self._ready) + coming) / self._size)

    @property
    def is_ahead(self) -> bool:
        """Whether it has messages ready before a thread is free for them."""
        return bool(self._ready) and self._ahead() > 0

    @property
    def has_any(self) -> bool:
        """Whether it has messages in hand, or is claiming some."""
        return bool(self._suspects) or self.has_others

    @property
    def has_others(self) -> bool:
        """As ``has_any``, without suspects that wait."""
        return bool(self._ready or self._calls or self._finished or self._acking or self.asked)

    @property
    def found_nothing(self) -> bool:
        """Whether its last poll found nothing, and no call has ended since."""
        return self._seen is not None and not self._is_outdated

    @property
    def _is_outdated(self) -> bool:
        return self._seen_after != self._threads.ended_calls

    @property
    def found(self) -> bool:
        """Whether its last poll found messages."""
        return self._seen is None

    # -- for the threads

    def take(self) -> list[Message]:
        """The messages for one call of the handler; empty if there are none."""
        size = self._size
        if self.handler.commit_every > 1:
            # Leave a share of the ready messages to the other threads.
            share = len(self._ready) // self._threads.concurrency
            size = max(1, min(self.handler.commit_every, share))
        taken: list[Message] = []
        if not self._ready:
            return taken
        # First, or between the two lists the worker would look as if it had nothing in hand.
        self._calls[id(taken)] = taken
        taken += [message for message, _ in _drained(self._ready, size)]
        if not taken:
            del self._calls[id(taken)]
        elif self._seen is None and not self._stirred and self._is_low():
            self.stir()
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
        if id(taken) not in self._calls:
            return  # abandoned
        if unbegun:
            self._ready.extendleft((message, 0.0) for message in reversed(unbegun))
        with self._changed:
            first = bool(finished) and not self._finished
            self._finished += finished
            if first:
                self._finished_at = time.monotonic()
        # An abandoned call is no longer there.
        self._calls.pop(id(taken), None)
        if first or unbegun or (self._each and finished):
            self.stir()

    def abandon(self, taken: Sequence[Message]) -> None:
        """Abandon a call: the leases of its messages are no longer renewed."""
        self._calls.pop(id(taken), None)

    def await_acks(self, finished: Sequence[Message], seconds: float = math.inf) -> None:
        """Wait until these are acked or lost, for at most ``seconds``."""
        ends_at = time.monotonic() + seconds
        with self._changed:
            while not self._over and self._acks_any(finished):
                left = ends_at - time.monotonic()
                if left <= 0:
                    return
                self._changed.wait(None if left == math.inf else left)

    def _acks_any(self, messages: Sequence[Message]) -> bool:
        unacked = set(map(id, [*self._finished, *self._acking]))
        return not unacked.isdisjoint(map(id, messages))

    def note_time(self, taken: Sequence[Message], took: float) -> None:
        """Add a call's duration for these messages to the mean."""
        if self.handler.commit_every > 1:
            took /= len(taken)
        self._mean = took if self._mean == math.inf else self._mean + (took - self._mean) * _WEIGHT

    def stir(self) -> None:
        """Wake it up."""
        self._stirred = True
        with self._changed:
            self._changed.notify_all()
        if self._idle:
            self._parts.arrivals.stir()

    def end(self) -> None:
        """Ack finished messages, and end ``run()``."""
        self._ended = True
        self.stir()

    def release_ready(self) -> None:
        """Release messages that are not begun."""
        suspects, self._suspects = self._suspects, []
        self._release([*(message for message, _ in _drained(self._ready)), *suspects])

    def ack_finished(self) -> None:
        """Ack finished messages."""
        _settle(self.queue, self.queue.ack, [*self._take_finished(), *self._refused])

    def release_calls(self) -> None:
        """Release the messages of running calls."""
        for call in list(self._calls.values()):
            _settle(self.queue, self.queue.release, call)

    def _not_begun(self) -> Mapping[int, Sequence[Message]]:
        return {0: [*(message for message, _ in list(self._ready)), *self._suspects]}

    def _in_hand(self) -> Mapping[int, Sequence[Message]]:
        # A call with locked rows must not delay the others.
        ready = [message for message, _ in list(self._ready)]
        waiting = [*ready, *self._suspects, *self._finished, *self._acking, *self._refused]
        return {0: waiting, **self._calls}

    # -- its own thread

    def run(self) -> None:
        """Claim, ack and release until the end."""
        self.progress.begin()
        try:
            while not self._ended or self._finished or self._ready or self._suspects:
                self._step_safely()
            if self._refused:
                # The last try; after it their leases will expire.
                self._refused_at = 0.0
                self._step_safely()
            self.progress.end()
        finally:
            with self._changed:
                self._over = True
                self._changed.notify_all()

    def _step_safely(self) -> None:
        last = self._ended
        try:
            self._step()
        except ServiceClosed:
            self._threads.drain()
            last = self._ended = True
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
            _drained(self._ready)
            self._take_finished()
            self._refused = self._suspects = []

    def _step(self) -> None:
        self._stirred = False
        draining, now = self._threads.draining, time.monotonic()
        self.progress.due_at = now
        if self._threads.alone is self:
            self._go_on_alone(draining=draining)
        if (self._ready and now >= self._stale_at()) or (
            draining and (self._ready or self._suspects)
        ):
            self._give_back(draining=draining)
        idle = not self.looks() and not self._suspects
        if not draining:
            self._threads.ask(self)
        if now >= self._refused_at:
            self._ack_again()
        ripe = draining or self._each or now >= self._finished_at + ACK_SECONDS
        if self.asked or (ripe and self._finished):
            self._exchange()
            self._threads.end_if_empty()
        elif not self._ended:
            self.waiting = True
            try:
                self._wait(now, idle=idle)
            finally:
                self.waiting = False

    def wanted(self, free: int) -> int:
        """How many messages to claim.

        Args:
            free: threads that wait for a message and that no other supply serves.
        """
        if self._threads.alone is not None or not self.looks():
            return 0
        needed = free * self._size - len(self._ready)
        return needed + self._ahead() if needed > 0 or self._is_low() else 0

    def ask_for(self, free: int) -> None:
        """Set the next claim to what this many free threads need."""
        self._needed = max(0, free * self._size - len(self._ready))
        self.asked = self.wanted(free)
        if self.asked:
            self.asked_at = time.monotonic()

    def looks(self) -> bool:
        """Whether the queue may have messages, as far as is known."""
        if self._seen is None or (self._threads.idle and self._is_outdated):
            return True
        return self._seen != self._parts.arrivals.count or time.monotonic() >= self._look_at

    def _ahead(self) -> int:
        if self._prefetch is not None:
            return max(0, self._prefetch - self._size) * self._threads.concurrency
        if self._mean >= HORIZON_SECONDS:
            return 0
        calls = int(_AHEAD_SECONDS * self._threads.share / max(self._mean, _SHORTEST))
        return min(calls * self._size, self._most_ahead)

    def _is_low(self) -> bool:
        return len(self._ready) * 2 < self._ahead()

    def _stale_at(self) -> float:
        if self._prefetch is not None:
            return math.inf
        return min((at for _, at in list(self._ready)), default=math.inf) + HORIZON_SECONDS

    def _exchange(self) -> None:
        asked, seen = self.asked, self._parts.arrivals.count
        ended_calls = self._threads.ended_calls
        spare: list[Message] = []
        try:
            if asked:
                self._open()
            found = self._exchanged(asked)
            if asked:
                self._backoff.reset()
                self._note_look(found, seen)
                self._seen_after = ended_calls
            if found and may_run_together(found[0].last_error):
                found, spare = self._set_suspects_aside(found)
            elif self._prefetch is None and any(_is_last_try(message) for message in found):
                # A message in its last attempt must not be claimed ahead, because a kill would end
                # it.
                self._most_ahead = 0
                found, spare = found[: self._needed], found[self._needed :]
            self._place(found)
        finally:
            self.asked = 0
            if asked:
                self._threads.filled(self)
        self._release(spare)

    def _set_suspects_aside(self, found: list[Message]) -> tuple[list[Message], list[Message]]:
        if not self._threads.isolate(self):
            return [], found
        self._suspects = found
        self._claimed(found)
        return [], []

    def _go_on_alone(self, *, draining: bool) -> None:
        if self._suspects:
            if not draining and self._threads.only_suspects:
                suspects, self._suspects = self._suspects, []
                self._place(suspects)
                self._threads.filled(self)
        elif not self.has_any:
            self._threads.end_isolation()

    def _open(self) -> None:
        try:
            self.queue = self._parts.queue(self.handler.queue)
        except QueueError:
            # Finished messages are still acked, unless they were dropped with the queue.
            self._exchanged(0)
            raise

    def _exchanged(self, count: int) -> list[Message]:
        queue, where = self.queue, self.handler.where
        with self._acking_finished() as finished:
            if finished and count and all(map(queue.holds, finished)):
                try:
                    return queue.exchange(finished, count, where=where)
                except ServiceClosed:
                    raise
                except ClaimLost as error:
                    log_lost(queue.name, error)
                except QueueError as error:
                    _log.info("Queue %s: %s", queue.name, error)
            refused: list[Message] = []
            self._threads.insist(lambda: _settle(queue, queue.ack, finished, refused))
            self._set_aside(refused)
        found: list[Message] = []
        if count:
            self._threads.insist(lambda: found.extend(queue.consume(count, where=where)))
        return found

    def _set_aside(self, refused: Sequence[Message]) -> None:
        # Apart from the others, which a refused one would hold up.
        if refused:
            self._refused = list({id(each): each for each in [*self._refused, *refused]}.values())
            self._refused_at = time.monotonic() + self._again.pause()

    def _ack_again(self) -> None:
        queue, again = self.queue, self._refused
        refused: list[Message] = []
        self._threads.insist(lambda: _settle(queue, queue.ack, again, refused))
        self._refused, self._refused_at = [], math.inf
        self._set_aside(refused)
        if not self._refused:
            self._again.reset()

    @contextlib.contextmanager
    def _acking_finished(self) -> Iterator[list[Message]]:
        acking = self._take_finished()
        later: list[Message] = []
        try:
            yield acking
        except BaseException:
            # Whatever it is. What their handlers did must not be done again.
            later = [message for message in acking if not message.settled]
            raise
        finally:
            with self._changed:
                self._acking = []
                if later:
                    self._finished = later + self._finished
                    self._finished_at = time.monotonic()
                if self._each:
                    self._changed.notify_all()

    def _note_look(self, found: Sequence[Message], seen: int) -> None:
        if not found:
            self._look_at = time.monotonic() + self._pauses.pause()
            self._seen = seen
            return
        self._seen = None
        self._pauses.reset()
        most = max(2 * self._most_ahead, self._threads.concurrency * self._size)
        size = max(1, sum(map(payload_size, found)))
        self._most_ahead = min(most, MOST_AHEAD, _MOST_BYTES * len(found) // size)

    def _place(self, found: Sequence[Message]) -> None:
        if not found:
            return
        now = time.monotonic()
        claimed = [(message, now) for message in found]
        first, last = self._ends()
        if first is not None and not self.queue.holds(first):
            # These belong to an expired identity of this consumer.
            _drained(self._ready)
        elif last is not None and found[0].priority < last.priority:
            # More urgent messages go before those that were claimed earlier.
            claimed = sorted(_drained(self._ready) + claimed, key=lambda each: each[0].priority)
        self._ready.extend(claimed)
        self._claimed(found)

    def _ends(self) -> tuple[Message | None, Message | None]:
        try:
            return self._ready[0][0], self._ready[-1][0]
        except IndexError:
            return None, None

    def _give_back(self, *, draining: bool) -> None:
        if not draining:
            self._mean, self._most_ahead = max(self._mean, HORIZON_SECONDS), 0
        self.release_ready()

    def _release(self, messages: Sequence[Message]) -> None:
        queue = self.queue
        try:
            self._threads.insist(lambda: _settle(queue, queue.release, messages))
        except BaseException as error:
            if not isinstance(error, Exception):
                # After a task was stopped, the stopper releases its messages.
                self._ready.extend((message, 0.0) for message in messages)
            raise

    def _take_finished(self) -> list[Message]:
        with self._changed:
            finished, self._finished, self._finished_at = self._finished, [], math.inf
            self._acking = finished
        return finished

    def _wait(self, now: float, *, idle: bool) -> None:
        left = min(self._finished_at + ACK_SECONDS, self._stale_at(), self._refused_at) - now
        if not idle:
            with self._changed:
                if not self._stirred:
                    # A reservation of another supply expires after this time.
                    self._changed.wait(min(HORIZON_SECONDS, max(0.0, left)))
            return
        self._idle = True
        try:
            self._parts.wakeups.listen()
            arrivals, seen = self._parts.arrivals, self._seen or 0
            left = min(left, self._look_at - now)
            self.progress.due_at = now + left
            if arrivals.wait(seen, left, until=lambda: self._stirred):
                self._pauses.reset()
        finally:
            self._idle = False

    def _rest(self) -> None:
        # Meanwhile other supplies may claim for the free threads.
        self.asked_at = time.monotonic()
        ends_at = self.progress.due_at = self.asked_at + self._backoff.pause()
        with self._changed:
            kept = len(self._finished)
            while (left := ends_at - time.monotonic()) > 0:
                if self._ended or (self._each and len(self._finished) > kept):
                    return
                self._changed.wait(left)


def _is_last_try(message: Message) -> bool:
    return message.attempt >= message.max_attempts


def _drained(items: deque[T], most: float = math.inf) -> list[T]:
    # One by one, since other threads may take some at the same time.
    taken: list[T] = []
    try:
        while len(taken) < most:
            taken.append(items.popleft())
    except IndexError:
        return taken
    return taken


def _settle(
    queue: Queue,
    act: Callable[[Sequence[Message]], object],
    messages: Sequence[Message],
    refused: list[Message] | None = None,
) -> None:
    """Ack or release; one failing message must not prevent the others.

    Those that the database refused are added to ``refused``.

    Raises:
        DatabaseUnavailable, QueueSchemaMismatch, ServiceClosed: as the verbs.
    """
    unsettled = [message for message in messages if not message.settled]
    held = [message for message in unsettled if queue.holds(message)]
    if len(held) < len(unsettled):
        lost = len(unsettled) - len(held)
        _log.warning("Queue %s: this consumer expired while it held %d messages.", queue.name, lost)
    try:
        if held:
            act(held)
    except ClaimLost as error:
        log_lost(queue.name, error)
    except (DatabaseUnavailable, QueueSchemaMismatch, ServiceClosed):
        raise
    except QueueError as error:
        if len(held) > 1 and not isinstance(error, QueueNotFound):
            for message in held:
                _settle(queue, act, [message], refused)
            return
        if refused is not None and not isinstance(error, QueueNotFound):
            refused += held
            _log.warning(
                "Queue %s: message %r is handled, but the database refuses its ack. The worker "
                "keeps it and tries again: %s",
                queue.name,
                held[0],
                error,
            )
            return
        _log.warning(
            "Queue %s: messages could not be settled; they are redelivered when "
            "their leases expire: %s",
            queue.name,
            error,
        )
