"""Metrics for Prometheus, of the work of a process and of the queues of a database.

They need the extra ``prometheus``.

Sources of the rules: names and units follow https://prometheus.io/docs/practices/naming/. No label
has a key, an id or anything else that grows with the messages.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from queue_over_sql import MessageFacts, Observer, QueueService, inside
from queue_over_sql.errors import DatabaseUnavailable
from queue_over_sql.observability.counting import (
    EXACT_SECONDS,
    Counting,
    QueueCounts,
    SharedSnapshot,
)
from queue_over_sql.values.rates import Rate
from queue_over_sql.values.states import DEAD, Status

try:
    from prometheus_client import (
        REGISTRY,
        CollectorRegistry,
        Counter,
        Gauge,
        Histogram,
        generate_latest,
        multiprocess,
    )
    from prometheus_client.core import GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    msg = "Metrics require prometheus_client: pip install 'queue-over-sql[prometheus]'"
    raise ImportError(msg) from error

if TYPE_CHECKING:
    from queue_over_sql import ReaperReport

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""The media type of ``exposition``."""

_PREFIX: Final = "queue_over_sql"
# From an empty handler to the default lease.
_SECONDS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0)
_MULTIPROCESS: Final = "PROMETHEUS_MULTIPROC_DIR"

_UNCLAIMED: Final = ("ready", "delayed", "held")
_LOOK_SECONDS: Final = 5.0
_LONGEST_PAUSE: Final = 30.0


class PrometheusObserver(Observer):
    """Counts the work of this process; pass one per process to ``QueueService(observer=…)``.

    Its metrics begin with ``queue_over_sql_``. They have the label ``queue``, except those of the
    reaper.

    ================================  =========================================================
    ``published_total``               messages that were added: published, requeued, or copied to
                                      a ``dead_letter_queue``
    ``claimed_total``                 messages that were claimed
    ``redelivered_total``             those of them that had been delivered before
    ``wait_seconds``                  histogram: from the instant at which a message was due to
                                      its first claim
    ``handler_duration_seconds``      histogram, by ``result``: ``ok`` or ``error``
    ``settled_total``                 by ``outcome``: ``done``, ``retried``, ``failed``,
                                      ``rejected``, ``expired``, ``released``
    ``dead_lettered_total``           by a verb or by the reaper of this process
    ``claims_lost_total``             messages that could not be settled any more
    ``scheduled_total``               messages that schedules published
    ``reaper_passes_total``           passes of the reaper of this process
    ``reaper_restored_total``         messages that it gave back
    ``reaper_duration_seconds``       histogram: how long a pass took
    ``reaper_last_pass_timestamp_seconds``  when the last pass ended, in seconds since the epoch
    ================================  =========================================================

    Args:
        registry: a registry of prometheus_client; default: its global one.

    Raises:
        ValueError: the registry already has these metrics: create one observer and share it.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = REGISTRY if registry is None else registry

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"{_PREFIX}_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, *labels: str) -> Histogram:
            named = f"{_PREFIX}_{name}"
            return Histogram(named, text, labels, registry=registry, buckets=_SECONDS)

        self._published = counter("published", "Messages published.", "queue")
        self._claimed = counter("claimed", "Messages claimed.", "queue")
        self._redelivered = counter(
            "redelivered", "Claimed messages that had been delivered before.", "queue"
        )
        self._waited = histogram(
            "wait_seconds", "Time from the due time to the first claim.", "queue"
        )
        self._handled = histogram(
            "handler_duration_seconds", "Duration of handler calls.", "queue", "result"
        )
        self._settled = counter("settled", "Messages settled.", "queue", "outcome")
        self._dead = counter("dead_lettered", "Messages that became dead letters.", "queue")
        self._lost = counter("claims_lost", "Messages whose claim was lost.", "queue")
        self._scheduled = counter("scheduled", "Messages that schedules published.", "queue")
        self._passes = counter("reaper_passes", "Passes of the reaper.")
        self._restored = counter(
            "reaper_restored", "Messages that the reaper returned to their queues."
        )
        self._pass_seconds = histogram("reaper_duration_seconds", "Duration of a pass.")
        self._last_pass = Gauge(
            f"{_PREFIX}_reaper_last_pass_timestamp_seconds",
            "When the reaper's last pass ended.",
            registry=registry,
            multiprocess_mode="mostrecent",
        )

    def published(self, queue: str, count: int, seconds: float, ids: Sequence[int]) -> None:
        """Count it."""
        del seconds, ids
        self._published.labels(queue).inc(count)

    def claimed(self, queue: str, messages: Sequence[MessageFacts], seconds: float) -> None:
        """Count it."""
        del seconds
        self._claimed.labels(queue).inc(len(messages))
        # Prometheus cannot see an increase from nothing to one, so these begin at zero.
        self._lost.labels(queue)
        self._dead.labels(queue)
        again = sum(message.attempt > 1 for message in messages)
        if again:
            self._redelivered.labels(queue).inc(again)
        waited = self._waited.labels(queue)
        for message in messages:
            if message.waited is not None:
                waited.observe(message.waited)

    def handled(
        self,
        queue: str,
        messages: Sequence[MessageFacts],
        seconds: float,
        error: BaseException | None,
    ) -> None:
        """Count it."""
        del messages
        self._handled.labels(queue, "ok" if error is None else "error").observe(seconds)

    def settled(self, queue: str, outcome: str, ids: Sequence[int]) -> None:
        """Count it."""
        self._settled.labels(queue, outcome).inc(len(ids))

    def claim_lost(self, queue: str, ids: Sequence[int]) -> None:
        """Count it."""
        self._lost.labels(queue).inc(len(ids))

    def dead_lettered(self, queue: str, ids: Sequence[int], reason: str | None) -> None:
        """Count it."""
        del reason
        self._dead.labels(queue).inc(len(ids))

    def reaped(self, report: ReaperReport, seconds: float) -> None:
        """Count it."""
        self._passes.inc()
        self._restored.inc(report.restored)
        self._pass_seconds.observe(seconds)
        self._last_pass.set_to_current_time()

    def schedule_fired(self, schedule: str, queue: str, count: int) -> None:
        """Count it."""
        del schedule
        self._scheduled.labels(queue).inc(count)


class DatabaseCollector(Collector):
    """Collects metrics of the queues of a database, in one process per database.

    ==============================================  =============================================
    ``queue_over_sql_up``                           1 if the database answered
    ``queue_over_sql_messages``                     by ``queue`` and ``status``: ``ready``,
                                                    ``delayed``, ``claimed``, ``held``
    ``queue_over_sql_dead_letters``                 by ``queue``: kept in the archive
    ``queue_over_sql_counts_age_seconds``           how long ago those were counted, but for
                                                    ``claimed``
    ``queue_over_sql_oldest_ready_age_seconds``     by ``queue``: how long the oldest ready
                                                    message has been due; 0 without one
    ``queue_over_sql_handlers``                     by ``queue``: living consumers that handle it
    ``queue_over_sql_paused``                       by ``queue``: 1 if it is paused
    ``queue_over_sql_blocked_groups``               by ``queue``: groups that a dead letter blocks
    ``queue_over_sql_paused_groups``                by ``queue``: groups that an operator paused
    ``queue_over_sql_throttled_groups``             by ``queue``: groups that have messages due, and
                                                    whose rate is used up
    ``queue_over_sql_queue_limit``                  by ``queue``: how many messages may be in hand;
                                                    only of queues with a ``queue_limit``
    ``queue_over_sql_critical_age_seconds``         by ``queue``: its ``critical_age``; only of
                                                    queues with one
    ``queue_over_sql_queue_rate``                   by ``queue``: how many messages may start in a
                                                    second; only of queues with a ``queue_rate``
    ``queue_over_sql_consumers``                    by ``state``: ``alive`` or ``expired``
    ``queue_over_sql_consumer_heartbeat_age_seconds``  of the living consumer that was heard of
                                                    longest ago; 0 without one
    ==============================================  =============================================

    Counts are exact. All queues are counted together, so seldom that counting takes 2 % of the
    time. What needs no count is at most 30 seconds old.

    Args:
        service: a service of the database; it need not be started.
        seconds: how long a result is cached at least, so that many scrapes cost one reading.
        timeout: how many seconds a scrape waits for a count. After that it gets the counts before,
            or none, and the next scrape has the new ones. None waits for as long as it takes.
    """

    def __init__(
        self, service: QueueService, *, seconds: float = 5.0, timeout: float | None = 5.0
    ) -> None:
        self._service = service
        self._timeout = timeout
        self._at_hand = Counting([Status.CLAIMED.value])
        self._counting = Counting([*_UNCLAIMED, *DEAD])
        self._state = SharedSnapshot(self._read, seconds, _LONGEST_PAUSE)
        self._counts = SharedSnapshot(self._count, seconds)

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of the database, possibly from the cache."""
        up = GaugeMetricFamily(f"{_PREFIX}_up", "Whether the database answered.")
        try:
            state = self._state.seen()
        except DatabaseUnavailable:
            up.add_metric([], 0)
            return [up]
        up.add_metric([], 1)
        with contextlib.suppress(DatabaseUnavailable):
            inside.within(self._service, self._timeout, self._counts.seen)
        return [up, *self._of_queues(state), *_of_consumers(state)]

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering it does not query the database."""
        return []

    def _read(self, before: object) -> _Snapshot:
        del before
        inside.system(self._service)
        inspection = inside.Inspection(self._service, _LOOK_SECONDS)
        alive, expired = inspection.consumers()
        queues = self._at_hand.count(inspection, inspection.records(), alive)
        now = inspection.now() / 1_000_000
        ages = [now - c.heartbeat_at.timestamp() for c in alive if not c.never_expires]
        return _Snapshot(queues, ages, len(expired))

    def _count(self, before: object) -> list[QueueCounts]:
        del before
        inspection = inside.Inspection(self._service, EXACT_SECONDS)
        return self._counting.count(inspection, inspection.records())

    def _of_queues(self, state: _Snapshot) -> list[Metric]:
        def gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"{_PREFIX}_{name}", text, labels=["queue", *labels])

        messages = gauge("messages", "Unfinished messages.", "status")
        dead = gauge("dead_letters", "Dead letters in the archive.")
        age = gauge("oldest_ready_age_seconds", "How long the oldest ready message has been due.")
        paused = gauge("paused", "Whether the queue is paused.")
        handlers = gauge("handlers", "Living consumers that handle the queue.")
        blocked = gauge("blocked_groups", "Groups of messages that a dead letter blocks.")
        stopped = gauge("paused_groups", "Groups of messages that an operator paused.")
        throttled = gauge("throttled_groups", "Groups with due messages and a used up rate.")
        limit = gauge("queue_limit", "How many messages of the queue may be in hand at once.")
        rate = gauge("queue_rate", "How many messages of the queue may start in a second.")
        critical = gauge("critical_age_seconds", "The critical age of an oldest ready message.")
        # Queues that were dropped meanwhile or cannot be read are left out.
        for each in (queue for queue in state.queues if queue.problem is None):
            messages.add_metric([each.name, Status.CLAIMED.value], each.counts["claimed"])
            age.add_metric([each.name], each.oldest_ready or 0.0)
            paused.add_metric([each.name], each.paused)
            handlers.add_metric([each.name], each.handlers)
            blocked.add_metric([each.name], each.blocked_groups)
            stopped.add_metric([each.name], each.paused_groups)
            throttled.add_metric([each.name], each.throttled_groups)
            if each.queue_limit is not None:
                limit.add_metric([each.name], each.queue_limit)
            if each.queue_rate is not None:
                rate.add_metric([each.name], Rate.of(each.queue_rate).per_second)
            if each.critical_age is not None:
                critical.add_metric([each.name], each.critical_age)
        there = {each.name for each in state.queues}
        counted = [each for each in self._counts.last or () if each.problem is None]
        for each in (queue for queue in counted if queue.name in there):
            for status in _UNCLAIMED:
                messages.add_metric([each.name, status], each.counts[status])
            dead.add_metric([each.name], sum(each.counts[name] for name in DEAD))
        found: list[Metric] = [messages, dead, age, paused, blocked, stopped, throttled]
        found += [handlers, limit, rate, critical]
        if self._counts.last is None:
            return found
        text = "How long ago messages and dead letters were counted; claimed ones are current."
        since = GaugeMetricFamily(f"{_PREFIX}_counts_age_seconds", text)
        since.add_metric([], self._counts.age)
        return [*found, since]


@dataclasses.dataclass(frozen=True)
class _Snapshot:
    """Values that need no long count; the ages are those of heartbeats."""

    queues: Sequence[QueueCounts]
    ages: Sequence[float]
    expired: int


def _of_consumers(state: _Snapshot) -> list[Metric]:
    count = GaugeMetricFamily(f"{_PREFIX}_consumers", "Registered consumers.", labels=["state"])
    count.add_metric(["alive"], len(state.ages))
    count.add_metric(["expired"], state.expired)
    heard = GaugeMetricFamily(
        f"{_PREFIX}_consumer_heartbeat_age_seconds",
        "Age of the oldest heartbeat of all consumers that are alive.",
    )
    heard.add_metric([], max([0.0, *state.ages]))
    return [count, heard]


def exposition(*collectors: Any, registry: CollectorRegistry | None = None) -> bytes:
    """Return all metrics in Prometheus text format.

    Args:
        collectors: collectors in addition to those of the registry.
        registry: default: the global one. If ``PROMETHEUS_MULTIPROC_DIR`` is set, the metrics of
            all processes that share that folder are added up instead.
    """
    gathered = CollectorRegistry()
    if os.environ.get(_MULTIPROCESS):
        multiprocess.MultiProcessCollector(gathered)  # type: ignore[no-untyped-call]
    else:
        gathered = REGISTRY if registry is None else registry
    text: bytes = generate_latest(gathered)
    if collectors:
        beside = CollectorRegistry()
        for collector in collectors:
            beside.register(collector)
        text += generate_latest(beside)
    return text
