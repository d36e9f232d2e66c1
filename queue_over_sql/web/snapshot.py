"""What the overview shows: one look at all queues, which all viewers share."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import func, literal_column, select, union_all

from queue_over_sql.errors import QueueError
from queue_over_sql.message import Outcome, Status
from queue_over_sql.observability.history import Minute, read_history
from queue_over_sql.observability.inspection import Inspection
from queue_over_sql.service import QueueService, parts_of
from queue_over_sql.store import has_status
from queue_over_sql.web.problems import problem_of

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection

    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.store.registry import QueueRecord

COUNT_LIMIT: Final = 10_000
"""Counts go up to here; one more means "more than"."""

# Each level of priority is counted by itself, along the index of claims, up to so many levels.
_MOST_LEVELS: Final = 8
_HISTORY_SECONDS: Final = 15.0
# So many queues are counted by one statement.
_AT_ONCE: Final = 20
_NAMES: Final = [*(status.value for status in Status), *(each.value for each in Outcome)]
# Looking takes at most this part of the time.
_SHARE: Final = 0.02
_LONGEST_PAUSE: Final = 30.0
# A queue whose oldest message has waited for so long, and of which nobody holds any, is neglected.
_NEGLECTED_SECONDS: Final = 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class QueueCounts:
    """What a queue holds.

    Attributes:
        name: of the queue.
        paused: whether nobody gets messages.
        counts: by status and outcome, at most ``COUNT_LIMIT`` + 1 each.
        oldest_ready: for how many seconds the oldest ready message has been due; None without one.
        problem: why it could not be looked at; then there are no counts.
    """

    name: str
    paused: bool = False
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    oldest_ready: float | None = None
    problem: str | None = None

    @property
    def dead(self) -> int:
        """How many dead letters the archive has."""
        return self.counts.get("failed", 0) + self.counts.get("rejected", 0)

    @property
    def live(self) -> int:
        """How many messages are not finished."""
        return sum(self.counts.get(status.value, 0) for status in Status)

    @property
    def neglected(self) -> bool:
        """Whether messages wait and nobody takes any."""
        waited = self.oldest_ready or 0.0
        return not (self.paused or self.counts.get("claimed")) and waited > _NEGLECTED_SECONDS


@dataclasses.dataclass(frozen=True)
class Overview:
    """All queues at one moment.

    Attributes:
        at: when it was looked at, in UTC.
        queues: by name.
        consumers: how many are alive.
        dead_consumers: how many have expired, and wait for the reaper.
        history: what happened in the last hour, by queue and minute; see ``read_history``.
        problem: why the last look failed; then all else is from the look before.
    """

    at: datetime
    queues: Sequence[QueueCounts] = ()
    consumers: int = 0
    dead_consumers: int = 0
    history: Mapping[str, Sequence[Minute]] = dataclasses.field(default_factory=dict)
    problem: str | None = None

    def queue(self, name: str) -> QueueCounts | None:
        """One queue; None where it was not seen."""
        return next((each for each in self.queues if each.name == name), None)


class Snapshots:
    """Looks at the queues when somebody asks, at most every ``interval`` seconds.

    Where a look takes long the pause grows, up to 30 seconds, so that looking takes 2 % of the
    time.

    While one caller looks the others get what was seen before. Where nobody asks, nothing is read.

    Args:
        service: of the database.
        interval: seconds between two looks.
        timeout: seconds that one statement may take.
    """

    def __init__(self, service: QueueService, interval: float = 2.0, timeout: float = 5.0) -> None:
        self._service = service
        self._interval = self._pause = interval
        self._timeout = timeout
        self._lock = threading.Lock()
        self._seen: Overview | None = None
        self._seen_at = float("-inf")
        self._tables: dict[str, _Known] = {}
        self._history: dict[str, list[Minute]] = {}
        self._history_at = float("-inf")

    def overview(self) -> Overview:
        """What was seen last, or what is seen now where that is too old."""
        seen = self._seen
        if seen is not None and time.monotonic() < self._seen_at + self._pause:
            return seen
        if not self._lock.acquire(blocking=seen is None) and seen is not None:
            return seen
        try:
            if self._seen is None or time.monotonic() >= self._seen_at + self._pause:
                began = time.monotonic()
                self._seen = self._look()
                self._seen_at = time.monotonic()
                took = self._seen_at - began
                self._pause = max(self._interval, min(took / _SHARE, _LONGEST_PAUSE))
            return self._seen
        finally:
            self._lock.release()

    def forget(self) -> None:
        """Look again at the next question: something was changed here."""
        self._seen_at = float("-inf")

    def _look(self) -> Overview:
        inspection = Inspection(parts_of(self._service), self._timeout)
        now = datetime.now(UTC)
        try:
            records = inspection.records()
            queues = self._counts(inspection, records)
            alive, dead = inspection.consumers()
            with parts_of(self._service).connections.limited(self._timeout):
                self._read_history()
        except QueueError as error:
            before = self._seen or Overview(now)
            return dataclasses.replace(before, problem=problem_of(error).text)
        return Overview(now, queues, len(alive), len(dead), self._history)

    def _counts(
        self, inspection: Inspection, records: Sequence[QueueRecord]
    ) -> Sequence[QueueCounts]:
        found: dict[str, QueueCounts] = {}
        known = []
        for record in records:
            try:
                known.append(self._known(inspection, record))
            except QueueError as error:
                found[record.name] = QueueCounts(
                    record.name, record.paused, problem=problem_of(error).text
                )
        self._tables = {each.record.name: each for each in known}
        for start in range(0, len(known), _AT_ONCE):
            some = known[start : start + _AT_ONCE]
            try:
                with inspection.connection() as connection:
                    found |= {each.name: each for each in _read(connection, some)}
            except QueueError:
                # One of them cannot be read.
                for each in some:
                    found[each.record.name] = _alone(inspection, each)
        return [found[record.name] for record in records]

    def _known(self, inspection: Inspection, record: QueueRecord) -> _Known:
        before = self._tables.get(record.name)
        if before is not None and before.record.settings == record.settings:
            return dataclasses.replace(before, record=record)
        return _Known(record, _columns(*inspection.tables(record)))

    def _read_history(self) -> None:
        if time.monotonic() < self._history_at + _HISTORY_SECONDS:
            return
        found: dict[str, list[Minute]] = {}
        for minute in read_history(self._service, 3600):
            found.setdefault(minute.queue, []).append(minute)
        self._history, self._history_at = found, time.monotonic()


@dataclasses.dataclass(frozen=True)
class _Known:
    """A queue, and what is selected of it."""

    record: QueueRecord
    columns: Sequence[Any]


def _alone(inspection: Inspection, known: _Known) -> QueueCounts:
    record = known.record
    try:
        with inspection.connection() as connection:
            return _read(connection, [known])[0]
    except QueueError as error:
        return QueueCounts(record.name, record.paused, problem=problem_of(error).text)


def _read(connection: Connection, known: Sequence[_Known]) -> list[QueueCounts]:
    parts: list[Any] = [
        select(literal_column(str(place)).label("place"), *each.columns)
        for place, each in enumerate(known)
    ]
    together: Any = parts[0] if len(parts) == 1 else union_all(*parts)
    rows = connection.execute(together).all()
    found = []
    for place, *numbers, age in sorted(rows):
        each = known[place]
        counts = {name: int(number) for name, number in zip(_NAMES, numbers, strict=True)}
        seconds = None if age is None or not counts["ready"] else max(0.0, int(age) / 1_000_000)
        found.append(QueueCounts(each.record.name, each.record.paused, counts, seconds))
    return found


def _columns(tables: QueueTables, levels: int) -> list[Any]:
    found: list[Any] = []
    for status in Status:
        conditions = (has_status(tables, status), *tables.live_only())
        by_level = [()] if status is Status.CLAIMED else _levels(tables, levels)
        parts = [_some(tables.live, *conditions, *level) for level in by_level]
        found.append(_number(parts).label(status.value))
    for outcome in Outcome:
        ended = tables.archive.c.outcome == outcome.value
        number = _number([_some(tables.archive, ended, *tables.finished_only())])
        found.append(number.label(outcome.value))
    due = select(func.min(_oldest(tables, levels).c.due)).scalar_subquery()
    return [*found, (tables.dialect.now() - due).label("age")]


def _levels(tables: QueueTables, levels: int) -> list[tuple[ColumnElement[bool], ...]]:
    if levels > _MOST_LEVELS:
        return [()]
    return [(tables.live.c.priority == level,) for level in range(levels)]


def _some(table: Any, *conditions: ColumnElement[bool]) -> Any:
    rows: Any = select(literal_column("1").label("one")).select_from(table).where(*conditions)
    return select(rows.limit(COUNT_LIMIT + 1).subquery().c.one)


def _number(parts: Sequence[Any]) -> Any:
    together: Any = parts[0] if len(parts) == 1 else union_all(*parts)
    rows: Any = together.subquery()
    limited: Any = select(rows.c.one).limit(COUNT_LIMIT + 1).subquery()
    counted: Any = select(func.count())
    return counted.select_from(limited).scalar_subquery()


def _oldest(tables: QueueTables, levels: int) -> Any:
    c = tables.live.c
    ready = (has_status(tables, Status.READY), *tables.live_only())
    parts = [
        select(func.min(c.available_at).label("due")).where(*ready, *level)
        for level in _levels(tables, levels)
    ]
    return (parts[0] if len(parts) == 1 else union_all(*parts)).subquery()
