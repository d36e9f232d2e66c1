"""The threads of a worker: each runs handlers, and gets their messages from the supplies."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
import time
from collections import deque
from typing import TYPE_CHECKING

from queue_over_sql.errors import DatabaseUnavailable, QueueError, ServiceClosed
from queue_over_sql.values.backoff import Backoff, OutageLog
from queue_over_sql.worker.claims_ahead import HORIZON_SECONDS
from queue_over_sql.worker.handler_run import HandlerRun, Stuck
from queue_over_sql.worker.supply import FIRST_RECONNECT, LAST_RECONNECT, Supply
from queue_over_sql.worker.time_limits import CallAbandoned, TimeLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from queue_over_sql.catalog.service_parts import ServiceParts
    from queue_over_sql.database.runtime import Event, Running
    from queue_over_sql.message import Message


_log = logging.getLogger(__name__)

# How long a transactional handler's connection is kept while no message comes.
_KEPT_SECONDS = 0.1
# How many threads may hang at once; ``concurrency`` if that is more.
_MOST_STUCK = 10


@dataclasses.dataclass(eq=False)
class _Place:
    """One thread.

    It is ``left`` after its call was abandoned; ``back`` has the messages of the abandoned call
    after it has ended.
    """

    index: int
    running: Running | None = None
    left: bool = False
    replaced: bool = False
    back: Sequence[Message] | None = None


class HandlerThreads:
    """The shared state of one worker's threads.

    Args:
        parts: of the service.
        draining: set when no more messages are begun.
        concurrency: how many threads there are.
        each: whether a thread waits for the ack of its message before it begins another.
    """

    def __init__(
        self, parts: ServiceParts, draining: Event, concurrency: int, *, each: bool
    ) -> None:
        self.concurrency = concurrency
        self.supplies: list[Supply] = []
        self.free = 0
        """How many threads wait for a message."""
        self.called_at: dict[int, float] = {}
        """When each running call of a handler began, on the monotonic clock."""
        self._parts = parts
        self._draining = draining
        self._each = each
        self.limits = TimeLimits(parts.connections.runtime)
        self.until_empty = False
        """Whether the worker ends once its queues are empty."""
        self.emptied = False
        """Whether it ends for this reason."""
        self.ended_calls = 0
        """How many calls have ended, if the worker runs until its queues are empty."""
        self._isolation = parts.consumer.isolation
        self.failure: QueueError | None = None
        """The reason why the worker ends, if it has no thread left."""
        self._places: list[_Place] = []
        self._settling: list[Running] = []
        # Abandoned calls that keep messages of groups until they end.
        self._hanging: dict[int, tuple[Supply, Stuck]] = {}
        self._filled = parts.connections.runtime.condition()
        self._outage = OutageLog("The worker")

    def start(self) -> None:
        """Start all of them."""
        self._isolation.join(self)
        for index in range(self.concurrency):
            self._start(index)

    def _start(self, index: int) -> None:
        place = _Place(index)
        with self._filled:
            self._places.append(place)
        name = f"queue-over-sql-worker-{index}"
        place.running = self._parts.connections.runtime.start(name, self._handle, place)

    def at_work(self) -> list[Running]:
        """The threads whose call was not abandoned."""
        with self._filled:
            return [each.running for each in self._places if each.running and not each.left]

    def stuck(self) -> list[Running]:
        """The threads that are still in an abandoned call."""
        with self._filled:
            return [each.running for each in self._places if each.running and each.left]

    def settling(self) -> list[Running]:
        """The work that settles messages of abandoned calls."""
        with self._filled:
            return list(self._settling)

    def _handle(self, place: _Place) -> None:
        runs: dict[Supply, HandlerRun] = {}
        order = deque(self.supplies)
        order.rotate(-place.index)
        try:
            while not self.draining:
                for supply in order:
                    if taken := supply.take():
                        break
                else:
                    self._await_message(order, runs)
                    continue
                try:
                    self._handle_safely(supply, taken, runs, place)
                except CallAbandoned:
                    runs.pop(supply).close()
                    if not self._comes_back(place, supply, taken):
                        return
                self._parts.connections.runtime.let_others_run()
                # Its next message comes after those of the others.
                while order[-1] is not supply:
                    order.rotate(-1)
        finally:
            _close(runs)
            with self._filled:
                if place in self._places:
                    self._places.remove(place)

    def _leave(self, place: _Place, supply: Supply, stuck: Stuck) -> None:
        """Continue without a thread whose call was abandoned; called from another thread."""
        start, taken = self._parts.connections.runtime.start, stuck.taken

        def settle_and_note() -> None:
            try:
                stuck.settle()
            finally:
                supply.give_back_behind(taken)
                if not stuck.kept:
                    supply.let_go_on(taken)
                self.note_ended_call()

        self.called_at.pop(id(taken), None)
        with self._filled:
            self._settling = [each for each in self._settling if each.is_alive()]
            self._settling.append(start("queue-over-sql-timed-out", settle_and_note))
            supply.abandon(taken, stuck.kept)
            if stuck.kept:
                self._hanging[id(taken)] = (supply, stuck)
            if place.back is taken:
                self._end_hanging(taken)
                return
            left = 1 + sum(each.left for each in self._places)
            few = left <= max(_MOST_STUCK, self.concurrency)
            place.replaced = few and not self.draining
        if place.replaced:
            # Start it first, because the worker ends when no thread is at work.
            self._start(place.index)
        with self._filled:
            place.left = place.back is not taken
        if not few and not self.draining:
            self._note_too_many(left)

    def _note_too_many(self, left: int) -> None:
        if self.at_work():
            _log.error(
                "%d handler calls hang. The worker replaces no more threads and continues with "
                "fewer.",
                left,
            )
            return
        msg = (
            f"{left} handlers hang past their time limit, and the worker has no thread left. "
            "Restart the process, and find out what the handlers wait for."
        )
        self._fail(msg)

    def fail_if_all_ended(self) -> None:
        """End the worker with an error if its threads have ended, although nobody stopped it."""
        if self.draining:
            return
        if left := len(self.stuck()):
            self._note_too_many(left)
            return
        self._fail(
            "Something else than the worker cancelled all its tasks or ended its threads. The "
            "messages in hand are given back. Run the worker again, and find out what cancels "
            "tasks that are not its own."
        )

    def _fail(self, reason: str) -> None:
        if self.failure is not None:
            return
        self.failure = QueueError(reason)
        _log.error("The worker stops: %s", reason)
        self.drain()

    def _comes_back(self, place: _Place, supply: Supply, taken: Sequence[Message]) -> bool:
        _log.info("Queue %s: a handler that had timed out has ended.", supply.handler.queue)
        with self._filled:
            needed = not place.replaced
            place.back, place.left = taken, False
            self._end_hanging(taken)
        return needed

    def _end_hanging(self, taken: Sequence[Message]) -> None:
        """Settle what an abandoned call kept, because it has ended or the worker ends."""
        if (hung := self._hanging.pop(id(taken), None)) is None:
            return
        supply, stuck = hung

        def settle_and_go_on() -> None:
            try:
                stuck.settle_kept()
            finally:
                supply.end_hanging(taken)
                self.note_ended_call()

        start = self._parts.connections.runtime.start
        self._settling.append(start("queue-over-sql-timed-out", settle_and_go_on))

    def settle_hanging(self) -> None:
        """As ``end_all_hanging``, in this thread, for a worker that stops at once."""
        with self._filled:
            hanging, self._hanging = list(self._hanging.values()), {}
        for _, stuck in hanging:
            stuck.settle_kept()

    def end_all_hanging(self) -> None:
        """Settle what abandoned calls kept, because the worker ends."""
        with self._filled:
            for _, stuck in list(self._hanging.values()):
                self._end_hanging(stuck.taken)

    def _handle_safely(
        self,
        supply: Supply,
        taken: list[Message],
        runs: dict[Supply, HandlerRun],
        place: _Place,
    ) -> None:
        finished: list[Message] = []
        left: list[Message] = []
        run: HandlerRun | None = None
        began = self.called_at[id(taken)] = time.monotonic()
        try:
            run = self._run_of(supply, runs, place)
            finished = run.handle(taken)
        except CallAbandoned:
            raise
        except asyncio.CancelledError:
            # Outside of the call nobody has given them back.
            left = [message for message in taken if not message.settled]
            raise
        except ServiceClosed:
            self.drain()
        except QueueError as error:
            _log.warning("Queue %s: %s", supply.handler.queue, error)
        except Exception:  # noqa: BLE001 - whatever it is
            # If a thread died unseen, the worker would look healthy and do nothing.
            _log.exception("Queue %s: the worker continues after an error.", supply.handler.queue)
        finally:
            self.called_at.pop(id(taken), None)
            supply.ended(taken, finished, left or (run.unbegun if run is not None else ()))
        if self._each and finished:
            with self._being_free():
                supply.await_acks(finished, HORIZON_SECONDS)
            supply.await_acks(finished)
            supply.let_go_on(taken)
        supply.note_time(taken, time.monotonic() - began)

    def _run_of(self, supply: Supply, runs: dict[Supply, HandlerRun], place: _Place) -> HandlerRun:
        if len(runs) > 1:
            _close_unused(runs, supply)
        queue, run = supply.queue, runs.get(supply)
        if run is not None and run.queue is queue:
            return run
        if run is not None:
            run.close()
        connections, draining = self._parts.connections, self._draining.is_set
        stuck = functools.partial(self._leave, place, supply)
        run = HandlerRun(
            supply.handler,
            queue,
            connections,
            self.insist,
            draining,
            limits=self.limits if self.limits.concern(supply.handler) else None,
            stuck=stuck,
            series=supply.series_of,
        )
        runs[supply] = run
        return run

    def _await_message(self, order: Iterable[Supply], runs: dict[Supply, HandlerRun]) -> None:
        with self._being_free():
            if not self._comes_ready(order, _KEPT_SECONDS if runs else None):
                _close(runs)
                self._comes_ready(order, None)

    def _comes_ready(self, order: Iterable[Supply], seconds: float | None) -> bool:
        with self._filled:
            while not (self.draining or any(supply.ready for supply in order)):
                # Check each time, since another thread may have taken the message.
                for supply in order:
                    supply.wake()
                if not self._filled.wait(seconds):
                    return False
        return True

    @contextlib.contextmanager
    def _being_free(self) -> Iterator[None]:
        with self._filled:
            self.free += 1
        try:
            yield
        finally:
            with self._filled:
                self.free -= 1

    def note_ended_call(self) -> None:
        """Let no earlier poll tell that a queue is empty."""
        if self.until_empty:
            with self._filled:
                self.ended_calls += 1

    @property
    def idle(self) -> bool:
        """Whether the worker runs until its queues are empty, and has no messages in hand."""
        return (
            self.until_empty
            and not any(supply.has_any for supply in self.supplies)
            and not any(each.is_alive() for each in self._settling)
        )

    def end_if_empty(self) -> None:
        """Drain if all queues are empty; let supplies poll queues that may not be."""
        if self.draining or not self.idle:
            return
        unknown = [supply for supply in self.supplies if not supply.found_nothing]
        for supply in unknown:
            supply.wake()
        if not unknown:
            self.emptied = True
            self.drain()

    @property
    def full(self) -> bool:
        """Whether they have messages in hand, without suspects that wait."""
        return any(supply.has_others for supply in self.supplies)

    @property
    def calling(self) -> bool:
        """Whether they run handlers now."""
        return bool(self.called_at)

    def in_hand(self) -> list[str]:
        """What makes them ``full``, in words."""
        return [supply.in_hand() for supply in self.supplies if supply.has_others]

    @property
    def held_back(self) -> bool:
        """Whether no supply may claim, because suspects run alone."""
        return self._isolation.stops_workers()

    def isolates(self, supply: Supply) -> bool:
        """Whether the suspects that run alone are those of this supply."""
        return self._isolation.holder is supply

    def isolate(self, supply: Supply) -> bool:
        """Let nobody claim while this supply has suspects; False if another one has some."""
        return self._isolation.begin(supply)

    @property
    def only_suspects(self) -> bool:
        """Whether the suspects are all that this consumer has in hand."""
        return self._isolation.is_alone()

    def end_isolation(self, supply: Supply) -> None:
        """Let all claim again, if the suspects were those of this supply."""
        self._isolation.end(supply)

    def end(self) -> None:
        """They run no more: nothing of theirs keeps others from claiming."""
        self._isolation.leave(self)
        for supply in self.supplies:
            self._isolation.end(supply)

    @property
    def share(self) -> float:
        """How many of them each supply with messages can expect."""
        return self.concurrency / max(1, sum(each.found for each in self.supplies))

    @property
    def in_outage(self) -> bool:
        """Whether they wait because the database is unavailable."""
        return self._outage.lasts

    @property
    def draining(self) -> bool:
        """Whether no more messages are begun."""
        return self._draining.is_set()

    def drain(self) -> None:
        """Begin no more messages."""
        self._draining.set()
        self.wake()

    def wake(self) -> None:
        """Let all of them, and their supplies, check whether the worker drains."""
        with self._filled:
            self._filled.notify_all()
        for supply in self.supplies:
            supply.wake()

    def request_claim(self, supply: Supply) -> None:
        """Set how many messages a supply claims next, so that no two claim for one thread.

        If two supplies would, the one that last claimed earlier goes first.
        """
        with self._filled, self._isolation.lock:
            others = [each for each in self.supplies if each is not supply]
            free = max(0, self.free - sum(each.reserved for each in others))
            earlier = [each for each in others if each.next_claim.at < supply.next_claim.at]
            before = [each for each in earlier if each.waits and each.wanted(free)]
            if before:
                free = 0
            elif not (free or supply.ready) and any(each.is_ahead for each in others):
                # Fast handlers of other queues may never leave a thread free.
                free = 1
            supply.request_claim(free)
        for each in before:
            each.wake()

    def filled(self, supply: Supply) -> None:
        """Note that a supply has claimed, so that others may claim for the remaining threads."""
        with self._filled:
            self._filled.notify(supply.reserved)
            left = self.free > supply.reserved
        for each in self.supplies:
            if each is not supply and (left or each.may_find()):
                each.wake()

    def go_on(self, supply: Supply, ready: int) -> None:
        """Note that as many groups of a supply may go on, one of them in the calling thread."""
        # That thread may first turn to another supply.
        if ready > 1 or (ready and len(self.supplies) > 1):
            self.filled(supply)

    def insist(self, do: Callable[[], None]) -> None:
        """Repeat it as long as the database is unavailable, or until the worker stops."""
        backoff = Backoff(FIRST_RECONNECT, LAST_RECONNECT)
        while True:
            try:
                do()
            except DatabaseUnavailable as error:
                self._outage.began(error)
                if self._draining.wait(backoff.pause()):
                    raise
            else:
                self._outage.ended()
                return


def _close_unused(runs: dict[Supply, HandlerRun], used: Supply) -> None:
    long_ago = time.monotonic() - _KEPT_SECONDS
    for supply, run in list(runs.items()):
        if supply is not used and run.used_at < long_ago:
            runs.pop(supply).close()


def _close(runs: dict[Supply, HandlerRun]) -> None:
    for run in runs.values():
        run.close()
    runs.clear()
