"""The rounds of one database for the driver of a stream: open, read, acknowledge."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from queue_over_sql.errors import CheckpointBehind, DatabaseUnavailable, QueueError, RoundsGone
from queue_over_sql.inside.streams import AdvanceRequest
from queue_over_sql.spark.stream.parts import RoundPart, check_claim_mode, consumer_at, outlast

if TYPE_CHECKING:
    from queue_over_sql.inside.streams import DurableConsumer, Round
    from queue_over_sql.spark.options import Location, StreamOptions
    from queue_over_sql.spark.stream.offsets import Offset


_log = logging.getLogger(__name__)
T = TypeVar("T")


# The largest share of time for counting the backlog, and the shortest interval.
_SHARE: Final = 20
_LEAST_PAUSE: Final = 1.0


class RoundsOfDatabase:
    """One database of a stream, in the process that plans its micro-batches.

    The first call takes over the consumer. So of two queries with one ``consumerId``, the later one
    continues and the earlier one fails.
    """

    def __init__(self, label: str, location: Location, options: StreamOptions) -> None:
        self._label = label
        self._location = location
        self._options = options
        self._taken: DurableConsumer | None = None
        self._target: tuple[int | None, int | None] = (None, None)
        self._idle: tuple[int, float] | None = None
        self._acked = -1
        self._backlog = 0
        self._count_at = 0.0

    def initial(self) -> int:
        """The round at which a new checkpoint starts."""
        return self._run(lambda consumer: consumer.state().acked_round)

    def registered(self) -> int:
        """When the consumer of these rounds was registered, in microseconds."""
        return self._run(lambda consumer: consumer.registered_at)

    def start_of(self, finished: Offset) -> int:
        """The round from which to continue for a checkpoint."""
        if self._label in finished.rounds and self._is_of(finished):
            return finished.rounds[self._label]
        return self.initial()

    def aim(self) -> None:
        """Remember which messages exist now, as the end of a run with ``availableNow``."""
        self._target = self._run(lambda consumer: consumer.target())
        self._idle = None

    def advance(self, start: int, most: int | None) -> int:
        """Acknowledge up to round ``start``, and return the last round to read.

        It opens rounds for up to ``most`` messages; None: for all.
        """
        if self._is_idle(start):
            return start
        end = self._run(lambda consumer: self._advanced(consumer, start, most))
        self._idle = (start, time.monotonic()) if end == start else None
        if end == start and self._target == (None, None):
            self._backlog = 0
        self._acked = max(self._acked, start)
        return end

    def parts(self, last: Offset) -> list[RoundPart]:
        """The partitions of the micro-batch up to this round; the same at each replay."""
        start, end = last.after[self._label], last.rounds[self._label]
        if end <= start or not self._is_of(last):
            return []
        rounds = self._run(lambda consumer: self._rounds(consumer, start, end))
        epoch = self._run(lambda consumer: consumer.epoch)
        # A round that was sealed as empty stays empty.
        return [RoundPart(self._label, one, epoch) for one in rounds if one.claimed_count != 0]

    def acknowledge(self, last: Offset) -> None:
        """Acknowledge up to this round, unless that is already done."""
        end = last.rounds[self._label]
        if end > self._acked and self._is_of(last):
            self._run(lambda consumer: consumer.ack(end, on_ack=self._options.ending))
            self._acked = end

    def backlog(self) -> int:
        """How many messages wait to be claimed; counted only now and then."""
        now = time.monotonic()
        if now >= self._count_at:
            self._backlog = self._run(lambda consumer: consumer.backlog())
            cost = time.monotonic() - now
            self._count_at = now + max(_LEAST_PAUSE, _SHARE * cost)
        return self._backlog

    # -- inner

    def _is_idle(self, last: int) -> bool:
        if self._idle is None:
            return False
        looked_from, at = self._idle
        return looked_from == last and time.monotonic() - at < self._options.poll_interval

    def _advanced(self, consumer: DurableConsumer, start: int, most: int | None) -> int:
        options = self._options
        up_to_id, due_by = self._target
        mode = options.claim_mode
        check_claim_mode(consumer, options)
        executor = consumer.claims_apart if mode == "auto" else mode == "executor"
        request = AdvanceRequest(most, options.messages_per_partition, up_to_id, due_by, executor)
        try:
            return consumer.advance(start, request, on_ack=options.ending)
        except (CheckpointBehind, RoundsGone) as error:
            self._tolerate(error)
        consumer.take_over()
        return consumer.advance(consumer.recover(start), request, on_ack=options.ending)

    def _is_of(self, offset: Offset) -> bool:
        registered_at = offset.registered.get(self._label)
        if registered_at is None:
            return True
        try:
            self._run(lambda consumer: consumer.check_registration(registered_at))
        except RoundsGone as error:
            self._tolerate(error)
            return False
        return True

    def _rounds(self, consumer: DurableConsumer, start: int, end: int) -> list[Round]:
        try:
            return consumer.rounds(start, end)
        except (CheckpointBehind, RoundsGone) as error:
            self._tolerate(error)
        try:
            found = consumer.rounds(start, end, missing_ok=True)
        except RoundsGone:
            found = []
        lost = end - start - len(found)
        _log.warning(
            "%d of the rounds %d to %d no longer exist. The stream skips them.",
            lost,
            start + 1,
            end,
        )
        return found

    def _tolerate(self, error: QueueError) -> None:
        if self._options.fail_on_data_loss:
            raise error
        _log.warning("The stream continues, because failOnDataLoss=false: %s", error)

    def _run(self, do: Callable[[DurableConsumer], T]) -> T:
        return outlast(lambda: do(self._consumer()), self._options.reconnect_timeout)

    def _consumer(self) -> DurableConsumer:
        if self._taken is None:
            consumer = consumer_at(self._location, self._options)
            consumer.take_over()
            self._taken = consumer
            _keep_alive(consumer)
        return self._taken


def _keep_alive(consumer: DurableConsumer) -> None:
    """Send heartbeats while Spark processes a batch or waits for its next trigger."""
    known = weakref.ref(consumer)
    arguments = (known, consumer.renewal_seconds / 2)
    threading.Thread(target=_renewing, args=arguments, name="signs-of-life", daemon=True).start()


def _renewing(known: weakref.ref[DurableConsumer], seconds: float) -> None:
    while True:
        time.sleep(seconds)
        consumer = known()
        if consumer is None:
            return
        try:
            consumer.renew()
        except DatabaseUnavailable as error:
            _log.warning("The heartbeat of a query failed: %s", error)
        except QueueError:
            # The query's next call fails for the same reason, and reports it.
            return
        del consumer
