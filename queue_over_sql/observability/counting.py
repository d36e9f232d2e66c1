"""Counts of all queues, in few statements and at a rate that leaves time for other work."""

from __future__ import annotations

import dataclasses
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

from sqlalchemy import and_, case, func, literal, literal_column, select, true, union_all

from queue_over_sql import QueueService, QueueStats, inside
from queue_over_sql.errors import QueueError, QueueNotFound
from queue_over_sql.values.durations import stored_number
from queue_over_sql.values.states import DEAD, Outcome, Status

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection

    from queue_over_sql import ConsumerInfo
    from queue_over_sql.inside import Inspection, QueueRecord, QueueTables


_log = logging.getLogger(__name__)
T = TypeVar("T")

COUNTED: Final = (*(status.value for status in Status), *(each.value for each in Outcome))
"""The possible counts of a queue: live messages by status, archived ones by outcome."""
EXACT_SECONDS: Final = 60.0
"""The time limit of a statement for exact counts, in seconds."""

# Each priority is counted separately along the claim index, up to this many priorities. With more
# priorities a limited count only reads the first messages.
_MOST_LEVELS: Final = 8
# How many queues one statement counts.
_AT_ONCE: Final = 20
# A queue is neglected if its oldest message has waited for this long and nobody handles the queue.
_NEGLECTED_SECONDS: Final = 60.0


class AtLeast(int):
    """A count that may be higher, because counting stopped at a limit; so may a sum with it."""

    def __add__(self, other: int) -> AtLeast:
        return AtLeast(int(self) + int(other))

    __radd__ = __add__


@dataclasses.dataclass(frozen=True, slots=True)
class QueueCounts:
    """The counts of a queue.

    Attributes:
        name: of the queue.
        paused: whether the queue is paused.
        counts: by status and outcome; an ``AtLeast`` if counting stopped at the limit.
        oldest_ready: for how many seconds the oldest ready message has been due; None if there is
            none.
        problem: why it could not be read; then there are no counts.
        blocked_groups: how many groups of its messages a dead letter blocks.
        paused_groups: how many groups an operator paused.
        throttled_groups: how many groups have messages due, but have used up their rate.
        queue_limit: how many of its messages may be in hand at once; None: any number.
        queue_rate: how fast its messages may start; None: as fast as they can.
        handlers: how many living consumers handle the queue.
        warn_age, critical_age: the settings of the queue, in seconds; None: none.
    """

    name: str
    paused: bool = False
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    oldest_ready: float | None = None
    problem: str | None = None
    blocked_groups: int = 0
    paused_groups: int = 0
    throttled_groups: int = 0
    queue_limit: int | None = None
    queue_rate: str | None = None
    handlers: int = 0
    warn_age: float | None = None
    critical_age: float | None = None

    @property
    def late(self) -> Literal["", "warn", "critical"]:
        """Which age of the queue's settings its oldest ready message has passed."""
        age = -1.0 if self.oldest_ready is None or self.paused else self.oldest_ready
        if self.critical_age is not None and age > self.critical_age:
            return "critical"
        return "warn" if self.warn_age is not None and age > self.warn_age else ""

    @property
    def dead(self) -> int:
        """How many dead letters the archive has."""
        return sum(self.counts.get(name, 0) for name in DEAD)

    @property
    def live(self) -> int:
        """How many messages are not finished."""
        return sum(self.counts.get(status.value, 0) for status in Status)

    @property
    def neglected(self) -> bool:
        """Whether messages wait, and no consumer handles the queue or holds any of them."""
        waited = self.oldest_ready or 0.0
        served = self.paused or self.handlers or self.counts.get("claimed")
        return not served and waited > _NEGLECTED_SECONDS


class Counting:
    """Counts the messages of queues, many of them by one statement.

    Only one thread at a time may use it.

    Args:
        names: what to count, of ``COUNTED``.
        limit: the highest count. No more messages are read for each, so that it stays fast. None:
            exact counts.
        error_text: turns the error of a queue that cannot be read into text.
    """

    def __init__(
        self,
        names: Sequence[str] = COUNTED,
        *,
        limit: int | None = None,
        error_text: Callable[[QueueError], str] = str,
    ) -> None:
        self.names = names
        self._limit = limit
        self._error_text = error_text
        self._known: dict[str, _Known] = {}

    def count(
        self,
        inspection: Inspection,
        records: Sequence[QueueRecord],
        consumers: Sequence[ConsumerInfo] = (),
        *,
        seconds: float = math.inf,
    ) -> list[QueueCounts]:
        """Count now; a queue that cannot be read does not affect the others.

        Args:
            inspection: of the database.
            records: the queues.
            consumers: the living ones, of which ``handlers`` are counted.
            seconds: after this time no further statement begins, and the last ones of the queues
                are left out. The first statement, of up to 20 queues, is always sent.

        Raises:
            DatabaseUnavailable: the database cannot be reached.
        """
        ends = time.monotonic() + seconds
        found: dict[str, QueueCounts] = {}
        there = {record.name for record in records}
        self._known = {name: each for name, each in self._known.items() if name in there}
        for start in range(0, len(records), _AT_ONCE):
            if start and time.monotonic() > ends:
                break
            some = []
            for record in records[start : start + _AT_ONCE]:
                try:
                    some.append(self._know(inspection, record))
                except QueueError as error:
                    found[record.name] = self._unread(record, error)
            self._known |= {each.record.name: each for each in some}
            if some:
                found |= self._read_some(inspection, some, ends)
        return [
            dataclasses.replace(found[name], handlers=len(inspection.handlers_of(consumers, name)))
            for name in (record.name for record in records)
            if name in found
        ]

    def _read_some(
        self, inspection: Inspection, some: Sequence[_Known], ends: float
    ) -> dict[str, QueueCounts]:
        try:
            with inspection.connection() as connection:
                return {each.name: each for each in self._read(connection, some)}
        except QueueError:
            # One of them cannot be read.
            found: dict[str, QueueCounts] = {}
            for each in some:
                if found and time.monotonic() > ends:
                    break
                found[each.record.name] = self._alone(inspection, each)
            return found

    def _know(self, inspection: Inspection, record: QueueRecord) -> _Known:
        before = self._known.get(record.name)
        if before is not None and before.record.settings == record.settings:
            return dataclasses.replace(before, record=record)
        tables, levels = inspection.tables(record)
        columns = _columns(tables, levels, self.names, self._limit)
        groups = inside.group_counts(tables, inspection.group_rate(record))
        text = inspection.text_of(select(literal(record.name), *groups.c, *columns))
        return _Known(record, text, *inspection.bounds(record), *inspection.ages(record))

    def _alone(self, inspection: Inspection, known: _Known) -> QueueCounts:
        try:
            with inspection.connection() as connection:
                return self._read(connection, [known])[0]
        except QueueError as error:
            return self._unread(known.record, error)

    def _unread(self, record: QueueRecord, error: QueueError) -> QueueCounts:
        return QueueCounts(record.name, record.paused, problem=self._error_text(error))

    def _read(self, connection: Connection, known: Sequence[_Known]) -> list[QueueCounts]:
        # As text without parameters: PostgreSQL then keeps its plan, and compiling it anew for each
        # snapshot took longer than many counts.
        text = " UNION ALL ".join(each.counts for each in known)
        rows = inside.Inspection.rows_of_text(connection, text)
        by_name = {each.record.name: each for each in known}
        found = []
        for name, blocked, paused, throttled, age, first, newest, *numbers in rows:
            one = by_name[name]
            seen = dict.fromkeys(self.names, newest)
            seen |= {"ready": first, "delayed": first, "claimed": 0, "held": max(first, newest)}
            counts = {
                name: self._limited(int(number), seen[name])
                for name, number in zip(self.names, numbers, strict=True)
            }
            seconds = None if age is None else max(0.0, int(age) / 1_000_000)
            found.append(
                QueueCounts(
                    name,
                    one.record.paused,
                    counts,
                    seconds,
                    blocked_groups=int(blocked),
                    paused_groups=int(paused),
                    throttled_groups=int(throttled),
                    queue_limit=one.queue_limit,
                    queue_rate=one.queue_rate,
                    warn_age=one.warn_age,
                    critical_age=one.critical_age,
                )
            )
        return found

    def _limited(self, number: int, seen: int) -> int:
        if self._limit is None or max(number, seen) <= self._limit:
            return number
        return AtLeast(min(number, self._limit))


@dataclasses.dataclass(frozen=True)
class _Known:
    """A queue, the SELECT for its counts as text, and some of its settings."""

    record: QueueRecord
    counts: str
    queue_limit: int | None
    queue_rate: str | None
    warn_age: float | None
    critical_age: float | None


def _columns(
    tables: QueueTables, levels: int, names: Sequence[str], limit: int | None
) -> list[Any]:
    # If an index leads to the messages, they are counted up to the limit. Otherwise that many
    # messages are read and filtered, and the number of read ones is selected, too.
    due = select(func.min(_oldest(tables, levels, limit).c.due)).scalar_subquery()
    first: Any = literal_column("0")
    newest: Any = literal_column("0")
    if limit is not None and levels > _MOST_LEVELS:
        first = _among(_first(tables, true(), limit))
    if limit is not None and tables.ends_in_place:
        newest = _among(_newest(tables, true(), limit))
    found: list[Any] = [
        (tables.expressions.now() - due).label("age"),
        first.label("seen_first"),
        newest.label("seen_newest"),
    ]
    count = _exactly if limit is None else _up_to(limit)
    return [*found, *(count(tables, levels, name).label(name) for name in names)]


def _counted(tables: QueueTables, name: str) -> tuple[Any, tuple[ColumnElement[bool], ...]]:
    if name in set(Status):
        return tables.live, (inside.has_status(tables, Status(name)), *tables.live_only())
    return tables.archive, (tables.archive.c.outcome == name, *tables.finished_only())


def _levels(tables: QueueTables, levels: int, name: str) -> list[tuple[ColumnElement[bool], ...]]:
    if levels > _MOST_LEVELS or name not in set(Status) - {Status.CLAIMED}:
        return [()]
    return [(tables.live.c.priority == level,) for level in range(levels)]


def _exactly(tables: QueueTables, levels: int, name: str) -> Any:
    table, conditions = _counted(tables, name)
    numbers: list[Any] = [
        select(func.count()).select_from(table).where(*conditions, *level).scalar_subquery()
        for level in _levels(tables, levels, name)
    ]
    return sum(numbers[1:], start=numbers[0])


def _up_to(limit: int) -> Callable[[QueueTables, int, str], Any]:
    def count(tables: QueueTables, levels: int, name: str) -> Any:
        table, conditions = _counted(tables, name)
        if tables.ends_in_place and name in {Status.HELD, *Outcome}:
            return _among(_newest(tables, and_(*conditions), limit))
        if levels > _MOST_LEVELS and name in set(Status) - {Status.CLAIMED}:
            return _among(_first(tables, and_(*conditions), limit))
        parts: list[Any] = []
        for level in _levels(tables, levels, name):
            rows: Any = select(literal_column("1").label("one")).select_from(table)
            parts.append(rows.where(*conditions, *level).limit(limit + 1).subquery())
        limited: Any = parts[0]
        if len(parts) > 1:
            together = union_all(*(select(each.c.one) for each in parts)).subquery()
            limited = select(together.c.one).limit(limit + 1).subquery()
        counted: Any = select(func.count())
        return counted.select_from(limited).scalar_subquery()

    return count


def _among(rows: Any) -> Any:
    return select(func.count(rows.subquery().c.due)).scalar_subquery()


def _first(tables: QueueTables, condition: ColumnElement[bool], limit: int) -> Any:
    # Along the claim index: the most urgent unclaimed ones.
    c = tables.live.c
    due = case((condition, func.coalesce(tables.due_at(), 0))).label("due")
    rows = select(due).where(*tables.in_claim_index()).order_by(c.priority, c.available_at, c.id)
    return rows.limit(limit + 1)


def _newest(tables: QueueTables, condition: ColumnElement[bool], limit: int) -> Any:
    # Along the primary key of a user's table, which has no index on outcomes.
    due = case((condition, literal_column("1"))).label("due")
    rows = select(due).select_from(tables.live).order_by(tables.live.c.id.desc())
    return rows.limit(limit + 1)


def _oldest(tables: QueueTables, levels: int, limit: int | None) -> Any:
    since = tables.due_at()
    old = inside.subtractable({"available_at": since})
    ready = (inside.has_status(tables, Status.READY), *old, *tables.live_only())
    if limit is not None and levels > _MOST_LEVELS:
        return _first(tables, and_(*ready), limit).subquery()
    parts = [
        select(func.min(since).label("due")).where(*ready, *level)
        for level in _levels(tables, levels, Status.READY)
    ]
    return (parts[0] if len(parts) == 1 else union_all(*parts)).subquery()


def count_queues(service: QueueService, counting: Counting | None = None) -> dict[str, QueueStats]:
    """Count the messages of all queues exactly, as ``Queue.stats`` does for one.

    A queue that cannot be read is left out, and the log says why.

    Args:
        service: a service of the database; it need not be started.
        counting: a ``Counting`` of all counts; passing the same one again saves some work.

    Raises:
        DatabaseUnavailable: the database cannot be reached.
    """
    inspection = _inspection(service)
    return _count(inspection, inspection.records(), counting or Counting())


def _inspection(service: QueueService) -> Inspection:
    # Creates what is missing.
    inside.system(service)
    return inside.Inspection(service, EXACT_SECONDS)


def _count(
    inspection: Inspection, queues: Sequence[QueueRecord], counting: Counting
) -> dict[str, QueueStats]:
    records = {record.name: record for record in queues}
    with inspection.connection() as connection:
        log = inspection.dialect.wal_bytes(connection)
    found = {}
    for each in counting.count(inspection, queues):
        if each.problem is not None:
            _log.warning("Queue %s cannot be counted: %s", each.name, each.problem)
            continue
        oldest = None if each.oldest_ready is None else timedelta(seconds=each.oldest_ready)
        found[each.name] = QueueStats(
            **each.counts,
            archived=sum(each.counts[outcome] for outcome in Outcome),
            discarded=stored_number("discarded_count", records[each.name].discarded),
            oldest_ready_age=oldest,
            paused=each.paused,
            wal_bytes=log,
            blocked_groups=each.blocked_groups,
            paused_groups=each.paused_groups,
            throttled_groups=each.throttled_groups,
            queue_limit=each.queue_limit,
            queue_rate=each.queue_rate,
        )
    return found


@dataclasses.dataclass(frozen=True)
class Activity:
    """What the queues hold at one moment, and what has happened since the snapshot before.

    Attributes:
        queues: what each queue holds, by its name.
        published, finished: messages a second since the snapshot before, by queue. ``finished``
            also counts what was removed. A queue of which this is not known is left out.
        died: dead letters since the first snapshot, by queue; those that the archive pruned are
            not counted.
        consumers: those that are registered, the oldest first.
        holds: how many messages each consumer holds, by its id.
    """

    queues: Mapping[str, QueueStats]
    published: Mapping[str, float]
    finished: Mapping[str, float]
    died: Mapping[str, int]
    consumers: Sequence[ConsumerInfo]
    holds: Mapping[str, int]


class ActivitySnapshots:
    """Takes snapshots of the queues and their consumers, and compares each with the last one.

    Args:
        service: of the database; it need not be started.
        queue: the only queue to look at; None for all.
    """

    def __init__(self, service: QueueService, queue: str | None = None) -> None:
        self._service = service
        self._queue = queue
        self._counting = Counting()
        # The last id and the unfinished messages of each queue.
        self._seen: Mapping[str, tuple[int, int]] = {}
        self._dead: dict[str, int] = {}
        self._at = 0.0

    def take(self, before: object = None) -> Activity:
        """Take one now.

        Raises:
            QueueNotFound: the only queue to look at does not exist.
            DatabaseUnavailable: the database cannot be reached.
        """
        del before
        inspection = _inspection(self._service)
        records = [each for each in inspection.records() if self._queue in {None, each.name}]
        if self._queue is not None and not records:
            raise QueueNotFound(self._queue)
        queues = _count(inspection, records, self._counting)
        tables = {
            record.name: inspection.tables(record)[0] for record in records if record.name in queues
        }
        published, finished = self._compare(queues, _last_ids(inspection, tables))
        dead = {name: sum(getattr(stats, each) for each in DEAD) for name, stats in queues.items()}
        self._dead = dead | self._dead
        died = {name: max(0, count - self._dead[name]) for name, count in dead.items()}
        consumers, holds = _consumers(inspection), _holds(inspection, list(tables.values()))
        return Activity(queues, published, finished, died, consumers, holds)

    def _compare(
        self, queues: Mapping[str, QueueStats], last_ids: Mapping[str, int]
    ) -> tuple[dict[str, float], dict[str, float]]:
        before, at = self._seen, time.monotonic()
        self._seen = {name: (last, queues[name].live) for name, last in last_ids.items()}
        seconds, self._at = at - self._at, at
        published, finished = {}, {}
        for name in self._seen.keys() & before.keys():
            (last, live), (last_before, live_before) = self._seen[name], before[name]
            new = max(0, last - last_before)
            published[name] = new / seconds
            finished[name] = max(0, new - live + live_before) / seconds
        return published, finished


def _last_ids(inspection: Inspection, queues: Mapping[str, QueueTables]) -> dict[str, int]:
    # Rows of a user's own table become messages long after they got their ids.
    tables = {name: each.live for name, each in queues.items() if not each.ends_in_place}
    try:
        with inspection.connection() as connection:
            found = inspection.dialect.checkup.last_ids(connection, list(tables.values()))
    except QueueError as error:
        _log.debug("The ids that were given out cannot be read: %s", error)
        return {}
    return {name: found[each.name] for name, each in tables.items() if each.name in found}


def _consumers(inspection: Inspection) -> list[ConsumerInfo]:
    alive, expired = inspection.consumers()
    found = [*alive, *(each for each, _ in expired)]
    return sorted(found, key=lambda each: (each.started_at, each.consumer_id))


def _holds(inspection: Inspection, queues: Sequence[QueueTables]) -> Counter[str]:
    found: Counter[str] = Counter()
    for start in range(0, len(queues), _AT_ONCE):
        parts: list[Any] = []
        for each in queues[start : start + _AT_ONCE]:
            holder, claimed = each.live.c.consumer_id, each.expressions.is_claimed(each.live)
            held = select(holder.label("holder"), func.count().label("held"))
            parts.append(held.where(claimed).group_by(holder))
        together: Any = parts[0] if len(parts) == 1 else union_all(*parts)
        try:
            with inspection.connection() as connection:
                rows = connection.execute(together).all()
        except QueueError as error:
            # Such as a queue that was dropped since it was counted.
            _log.debug("It cannot be read who holds messages: %s", error)
            continue
        for holder_id, count in rows:
            found[holder_id] += int(count)
    return found


class SharedSnapshot(Generic[T]):
    """A reading that all callers share, repeated so rarely that it takes a small share of the time.

    While one caller reads, the others get the last result. Without callers nothing is read.

    Args:
        read: reads now. It gets the last result; None at first.
        interval: the shortest time between two readings in seconds.
        longest: after how many seconds a result is too old, however slow a reading is.
        share: the largest share of the time that readings take.

    Attributes:
        last: the last result; None before the first reading.
        pause: seconds from the last reading to the next one.
    """

    def __init__(
        self,
        read: Callable[[T | None], T],
        interval: float,
        longest: float = math.inf,
        *,
        share: float = 0.02,
    ) -> None:
        self._read = read
        self._share = share
        self._interval = self.pause = interval
        self._longest = longest
        self._lock = threading.Lock()
        self._began_at = self._ended_at = -math.inf
        # What was changed here last, and what was before the last reading began.
        self._change = self._change_seen = object()
        self.last: T | None = None

    @property
    def age(self) -> float:
        """The age of the last result in seconds."""
        return time.monotonic() - self._began_at

    def seen(self) -> T:
        """The last result, or a new one if it is too old.

        Raises:
            Exception: as ``read``; the next caller reads again.
        """
        last = self.last
        if last is not None and not self._is_due():
            return last
        if not self._lock.acquire(blocking=last is None) and last is not None:
            return last
        try:
            if self.last is None or self._is_due():
                self.last = self._look_now(self.last)
            return self.last
        finally:
            self._lock.release()

    def forget(self) -> None:
        """Read again at the next call, because something was changed here."""
        self._change = object()

    def _is_due(self) -> bool:
        return (
            self._change is not self._change_seen or time.monotonic() >= self._ended_at + self.pause
        )

    def _look_now(self, before: T | None) -> T:
        began_at, change = time.monotonic(), self._change
        seen = self._read(before)
        self._change_seen = change
        self._began_at, self._ended_at = began_at, time.monotonic()
        took = 0.0 if before is None else self._ended_at - began_at
        # The first reading is slower, because it also connects and compiles.
        self.pause = max(self._interval, min(took / self._share, self._longest))
        return seen
