"""Errors of dead letters: which there are, how many messages have each, and which messages.

An error is known by its fingerprint, which the archive has in an indexed column. The reaper writes
it soon after a message ends, also for rows of earlier releases and of the SQL API. Until then, and
in adopted tables, it is made of the error's text when it is read.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import (
    String,
    Update,
    and_,
    cast,
    func,
    literal_column,
    null,
    or_,
    select,
    update,
)

from queue_over_sql.errors import DatabaseRefused, NotPermitted, PayloadInvalid, visible
from queue_over_sql.sql.operation import operation
from queue_over_sql.statements.clock import server_now
from queue_over_sql.statements.operations import change_by_ids
from queue_over_sql.statements.parameters import among_ids, number, words
from queue_over_sql.values.fingerprints import FINGERPRINT_LENGTH, fingerprint
from queue_over_sql.values.states import DEAD

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import ColumnElement, Connection, Select

    from queue_over_sql.queues.context import QueueContext
    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.sql.compiled import StatementCache


_log = logging.getLogger(__name__)

HOURS: Final = 24
_BATCH: Final = 500
_READ_CHARACTERS: Final = 4_000
_SHOWN_CHARACTERS: Final = 300
UNMARKED: Final = 5_000
"""How many dead letters without a fingerprint are grouped each time they are read."""
_HOUR_US: Final = 3_600_000_000
# Planners need constants, and SQLite the very condition of the index, to see that it serves.
_IS_DEAD: Final = "outcome != 'done' AND outcome IN ({})".format(
    ", ".join(f"'{each}'" for each in DEAD)
)


@dataclasses.dataclass(frozen=True)
class ErrorGroup:
    """Dead letters of a queue with the same error.

    Attributes:
        fingerprint: sixteen characters that name the error; the same in all queues.
        error: how the error of one of them begins.
        kind: the kind of that one.
        count: how many there are.
        more: whether there are more, because only the newest dead letters were counted.
        first_at: when the first of the counted ones ended, in microseconds.
        last_at: when the last one ended, in microseconds.
        message_id: the id of the one with ``error``.
        hours: how many ended in each of the last 24 hours, the oldest hour first.
    """

    fingerprint: str
    error: str
    kind: str | None
    count: int
    more: bool
    first_at: int
    last_at: int
    message_id: int
    hours: Sequence[int]


@dataclasses.dataclass
class _Counted:
    count: int = 0
    first_at: int = 2**63 - 1
    last_at: int = 0
    message_id: int = 0
    more: bool = False
    hours: list[int] = dataclasses.field(default_factory=lambda: [0] * HOURS)

    def add(self, count: int, first_at: int, last_at: int, message_id: int) -> None:
        if last_at >= self.last_at:
            self.message_id = message_id
        self.count += count
        self.first_at, self.last_at = min(self.first_at, first_at), max(self.last_at, last_at)


def unmarked_errors(tables: QueueTables) -> Select[Any]:
    """Dead letters whose error has no fingerprint yet."""
    found = select(tables.archive.c.id, _beginning(tables, _READ_CHARACTERS))
    return _unmarked_only(tables, found).limit(number("p_count"))


def _unmarked_only(tables: QueueTables, found: Select[Any]) -> Select[Any]:
    hint = tables.expressions.errors_index_hint(tables.base_name)
    found = found if hint is None else found.with_hint(tables.archive, hint)
    return found.where(_is_dead(), tables.archive.c.error_fingerprint.is_(None))


def mark(tables: QueueTables, size: int) -> Update:
    """Write a fingerprint to dead letters, by id."""
    archive = tables.archive
    marked = update(archive).where(among_ids(archive, size))
    return marked.values(error_fingerprint=words("p_fingerprint", FINGERPRINT_LENGTH))


@operation(atomic=True)
def mark_errors(connection: Connection, sql: StatementCache, limit: int) -> int:
    """Write the fingerprints of some dead letters; returns of how many."""
    found: Sequence[Any] = sql.get(unmarked_errors).run(connection, {"p_count": limit}).all()
    alike: dict[str, list[int]] = {}
    for message_id, error in found:
        alike.setdefault(fingerprint(error), []).append(message_id)
    for each, ids in alike.items():
        change_by_ids(connection, sql, mark, sorted(ids), {"p_fingerprint": each})
    return len(found)


class Errors:
    """The errors of one queue's dead letters."""

    def __init__(self, context: QueueContext) -> None:
        self._context = context
        self._may_mark = True

    def marking(self) -> Iterator[int]:
        """Write the fingerprints that are missing, in portions; how many each time."""
        context, sql = self._context, self._context.sql
        while self._may_mark and context.tables.marks_errors:
            try:
                # Usually there is nothing, and finding that out needs no transaction.
                if not context.run(lambda c: sql.get(unmarked_errors).run(c, {"p_count": 1}).all()):
                    return
                marked = context.run(mark_errors.of(sql, _BATCH))
            except NotPermitted:
                # Roles of an earlier release lack this right, so each reader makes them.
                self._may_mark = False
                return
            except (DatabaseRefused, PayloadInvalid, UnicodeError) as error:
                # Such as a row that cannot be read: it would be met again each time.
                self._may_mark = False
                _log.warning(
                    "Queue %s: errors of dead letters get no fingerprints until this process is "
                    "started again. Check the database's files: %s",
                    context.name,
                    visible(str(error), keep=""),
                    extra={"queue": context.name},
                )
                return
            yield marked
            if marked < _BATCH:
                return

    def list(self, limit: int, newest: int) -> list[ErrorGroup]:
        """The errors, the one that came last first, of the newest dead letters of each outcome."""
        return self._context.run(lambda c: _listed(c, self._context, limit, newest))

    def last_at(self) -> int | None:
        """When the last dead letter ended, in microseconds; None if no index tells it."""
        tables = self._context.tables
        if not tables.marks_errors:
            return None
        latest = [_newest(tables, outcome, 1).scalar_subquery() for outcome in DEAD]
        times = self._context.run(lambda c: c.execute(select(*latest)).one())
        return max((at for at in times if at is not None), default=0)

    def leave_out(self) -> bool:
        """Whether there are more dead letters without a fingerprint than are grouped at once."""
        return self._context.run(lambda c: _leave_out(c, self._context.tables))

    def having(self, wanted: str, *, mark: int | None = 0) -> ColumnElement[bool]:
        """The condition for the dead letters with an error, by its fingerprint.

        It first writes up to ``mark`` of the fingerprints that are missing; None: all. Of the dead
        letters that have none then, only ``UNMARKED`` are looked at.
        """
        tables = self._context.tables
        c = tables.archive.c
        if mark is None or mark > 0:
            written = 0
            for count in self.marking():
                written += count
                if mark is not None and written >= mark:
                    break
        rows = self._context.run(lambda connection: _without_marks(connection, tables))
        ids = [row.id for row in rows if fingerprint(row.error) == wanted]
        unmarked: ColumnElement[bool] = c.id.in_(ids)
        if not tables.marks_errors:
            return unmarked
        marked: ColumnElement[bool] = and_(_is_dead(), c.error_fingerprint == wanted)
        return or_(marked, unmarked) if ids else marked


def _listed(
    connection: Connection, context: QueueContext, limit: int, most: int
) -> list[ErrorGroup]:
    tables = context.tables
    now = server_now(connection, context.sql)
    found: dict[str, _Counted] = {}
    # First, so that what is marked meanwhile is counted twice, and not left out.
    rest = _without_marks(connection, tables)
    capped = len(rest) >= UNMARKED
    if tables.marks_errors:
        for outcome in DEAD:
            rows = connection.execute(_grouped(tables, outcome, most)).all()
            capped |= sum(row[1] for row in rows) >= most
            for each, *amounts in rows:
                if each is not None:
                    found.setdefault(each, _Counted()).add(*amounts)
        _count_hours(connection, tables, found, now, most)
    for row in rest:
        counted = found.setdefault(fingerprint(row.error), _Counted())
        counted.add(1, row.finished_at, row.finished_at, row.id)
        hour = (now - row.finished_at) // _HOUR_US
        if 0 <= hour < HOURS:
            counted.hours[HOURS - 1 - hour] += 1
    newest = sorted(found.items(), key=lambda item: (-item[1].last_at, -item[1].message_id))[:limit]
    examples = _examples(connection, tables, [each.message_id for _, each in newest])
    return [
        ErrorGroup(
            each,
            *examples.get(counted.message_id, ("", None)),
            count=counted.count,
            more=capped,
            first_at=counted.first_at,
            last_at=counted.last_at,
            message_id=counted.message_id,
            hours=counted.hours,
        )
        for each, counted in newest
    ]


def _newest(tables: QueueTables, outcome: str, most: int, *more: Any) -> Select[Any]:
    c = tables.archive.c
    found = select(c.finished_at, *more).where(c.outcome == outcome)
    return found.order_by(c.finished_at.desc(), c.id.desc()).limit(most)


def _grouped(tables: QueueTables, outcome: str, most: int) -> Select[Any]:
    c = tables.archive.c
    newest = _newest(tables, outcome, most, c.id, c.error_fingerprint).subquery().c
    times = func.min(newest.finished_at), func.max(newest.finished_at), func.max(newest.id)
    counted: ColumnElement[Any] = func.count()
    return select(newest.error_fingerprint, counted, *times).group_by(newest.error_fingerprint)


def _count_hours(
    connection: Connection, tables: QueueTables, found: dict[str, _Counted], now: int, most: int
) -> None:
    c = tables.archive.c
    age: ColumnElement[Any] = literal_column(str(now)) - c.finished_at
    hour = (age - age % literal_column(str(_HOUR_US))).label("hour")
    recent = [each for each, counted in found.items() if counted.last_at > now - HOURS * _HOUR_US]
    for start in range(0, len(recent), _BATCH):
        some = (
            select(c.error_fingerprint, hour)
            .where(
                _is_dead(),
                c.error_fingerprint.in_(recent[start : start + _BATCH]),
                c.finished_at > now - HOURS * _HOUR_US,
            )
            .limit(len(DEAD) * most)
            .subquery()
            .c
        )
        counted: ColumnElement[Any] = func.count()
        wanted = select(some.error_fingerprint, some.hour, counted)
        rows = connection.execute(wanted.group_by(some.error_fingerprint, some.hour)).all()
        for each, ago, count in rows:
            place = int(ago) // _HOUR_US
            if 0 <= place < HOURS:
                found[each].hours[HOURS - 1 - place] += count


def _without_marks(connection: Connection, tables: QueueTables) -> Sequence[Any]:
    c = tables.archive.c
    wanted = select(c.id, c.finished_at.label("finished_at"), _beginning(tables, _READ_CHARACTERS))
    return connection.execute(_to_group(tables, wanted).limit(UNMARKED)).all()


def _leave_out(connection: Connection, tables: QueueTables) -> bool:
    one_more = _to_group(tables, select(tables.archive.c.id)).offset(UNMARKED).limit(1)
    return connection.execute(one_more).first() is not None


def _to_group(tables: QueueTables, wanted: Select[Any]) -> Select[Any]:
    if tables.marks_errors:
        return _unmarked_only(tables, wanted)
    c = tables.archive.c
    return wanted.where(c.outcome.in_(DEAD), *tables.finished_only()).order_by(c.id.desc())


def _examples(
    connection: Connection, tables: QueueTables, ids: Sequence[int]
) -> dict[int, tuple[str, str | None]]:
    c = tables.archive.c
    kind = c.kind if tables.has_payloads else null().label("kind")
    wanted = select(c.id, _beginning(tables, _SHOWN_CHARACTERS), kind)
    found: dict[int, tuple[str, str | None]] = {}
    for start in range(0, len(ids), _BATCH):
        rows = connection.execute(wanted.where(c.id.in_(ids[start : start + _BATCH]))).all()
        found |= {row[0]: (first_line(row[1]), row[2]) for row in rows}
    return found


def first_line(error: str | None) -> str:
    """The first line of an error, as it is listed."""
    return (error or "").strip().split("\n", 1)[0]


def _beginning(tables: QueueTables, characters: int) -> ColumnElement[Any]:
    error = cast(tables.archive.c.last_error, String)
    return func.substr(error, 1, literal_column(str(characters))).label("error")


def _is_dead() -> ColumnElement[bool]:
    return literal_column(_IS_DEAD)
