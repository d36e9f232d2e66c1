"""Operations on the records of schedules, and on their messages that are not due yet."""

from __future__ import annotations

import dataclasses
import json
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from sqlalchemy import and_, case, delete, literal, or_, select, update

from queue_over_sql.errors import UNREADABLE, QueueError
from queue_over_sql.groups import exits
from queue_over_sql.queues.tables import insert_unless_there
from queue_over_sql.statements.parameters import batches, by_id
from queue_over_sql.values.durations import (
    instant,
    instant_to_microseconds,
    optional_number,
    stored_number,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import ColumnElement, Connection, Executable, Select

    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.schema.system_tables import SystemTables
    from queue_over_sql.sql.dialect import QueueDialect


RUNS_SHOWN: Final = 10
"""How many of its last messages a schedule names."""


@dataclasses.dataclass(frozen=True, slots=True)
class SchedulesOfPrefix:
    """The schedules of the queues under one table prefix."""

    system: SystemTables
    dialect: QueueDialect
    prefix: str

    def named(self, name: str) -> ColumnElement[bool]:
        """The condition for the row of a schedule."""
        columns = self.system.schedules.c
        return and_(columns.table_prefix == self.prefix, columns.name == name)


class Run(NamedTuple):
    """A message of a schedule: its time in microseconds, and its id."""

    at: int
    message_id: int


class Version(NamedTuple):
    """The version of a schedule when it was read; ``revision`` starts at 0 when it is added."""

    created_at: int
    revision: int


@dataclasses.dataclass(frozen=True, slots=True)
class ScheduleRecord:
    """The stored row of a schedule; times are microseconds.

    Attributes:
        definition: JSON.
        next_at: the first time that has no message yet; None if there is none.
        revision: increases with each change and each publication.
        now: the database's clock when it was read.
        last_runs: the times and the ids of the messages that it published last, and of all that it
            published ahead; the newest last.
    """

    name: str
    queue: str
    definition: str
    next_at: int | None
    revision: int
    paused: bool
    created_at: int
    now: int
    last_runs: Sequence[Run] = ()

    @property
    def version(self) -> Version:
        """Differs between any two states of the schedule."""
        return Version(self.created_at, self.revision)


class PendingSchedule(NamedTuple):
    """A schedule that is not paused, without its definition; fields as in ``ScheduleRecord``."""

    name: str
    version: Version
    now: int


def message_key(schedule: str, at: datetime) -> str:
    """The key of the message for a time, which is in UTC."""
    return f"{_key_start(schedule)}{at.isoformat()}"


def clock(connection: Connection, scope: SchedulesOfPrefix) -> int:
    """The database's clock in microseconds since the epoch."""
    return scope.dialect.read_clock(connection)


def schedule_record(
    connection: Connection, scope: SchedulesOfPrefix, name: str
) -> ScheduleRecord | None:
    """The record of one schedule; None if there is none."""
    row = connection.execute(_selected(scope).where(scope.named(name))).first()
    return None if row is None else _record(row)


def locked_schedule(
    connection: Connection, scope: SchedulesOfPrefix, name: str, *, wait: bool = True
) -> ScheduleRecord | None:
    """The record of one schedule, locked; None if there is none.

    Without ``wait``, None also if another transaction has locked it, if the engine can tell.
    """
    skip = not wait and scope.dialect.features.skip_locked
    statement = _selected(scope).where(scope.named(name)).with_for_update(skip_locked=skip)
    row = connection.execute(statement).first()
    return None if row is None else _record(row)


def schedule_records(
    connection: Connection, scope: SchedulesOfPrefix
) -> list[ScheduleRecord | QueueError]:
    """The records of all schedules by name, and the errors of those that cannot be read."""
    columns = scope.system.schedules.c
    of_prefix = columns.table_prefix == scope.prefix
    statement = _selected(scope).where(of_prefix).order_by(columns.name)
    found: list[ScheduleRecord | QueueError] = []
    for row in connection.execute(statement):
        try:
            found.append(_record(row))
        except QueueError as error:
            found.append(error)
    return found


def pending_schedules(connection: Connection, scope: SchedulesOfPrefix) -> list[PendingSchedule]:
    """The schedules that may have something to publish, by name."""
    columns = scope.system.schedules.c
    rows = connection.execute(
        select(
            columns.name,
            columns.created_at,
            columns.revision,
            scope.dialect.expressions.now().label("now"),
        )
        .where(
            columns.table_prefix == scope.prefix,
            columns.paused_at.is_(None),
            columns.next_at.is_not(None),
        )
        .order_by(columns.name)
    )
    # Only compared here; an invalid value raises when the record is read.
    return [PendingSchedule(row[0], Version(row[1], row[2]), int(row[3])) for row in rows]


def add_schedule(
    connection: Connection, scope: SchedulesOfPrefix, name: str, values: dict[str, Any]
) -> bool:
    """Insert the record of a new schedule; False if another process did so first.

    After False the transaction may have failed, and must be started again.
    """
    identity = {"table_prefix": scope.prefix, "name": name}
    row = {**identity, **values}
    return insert_unless_there(connection, scope.dialect, scope.system.schedules, row)


def change_schedule(
    connection: Connection, scope: SchedulesOfPrefix, record: ScheduleRecord, **values: Any
) -> bool:
    """Change a record unless it changed since it was read; returns whether it did change it."""
    schedules = scope.system.schedules
    statement = (
        update(schedules)
        .where(scope.named(record.name), schedules.c.revision == record.revision)
        .values(revision=record.revision + 1, **values)
    )
    return connection.execute(statement).rowcount > 0


def note_runs(
    connection: Connection, scope: SchedulesOfPrefix, record: ScheduleRecord, runs: Sequence[Run]
) -> None:
    """Note runs of a schedule whose row is locked, and leave its revision as it is."""
    noted = update(scope.system.schedules).where(scope.named(record.name))
    kept = runs_text([*record.last_runs, *runs], record.now)
    connection.execute(noted.values(last_runs=kept))


def runs_text(runs: Sequence[Run], now: int) -> str:
    """The last of these runs, and all that are still to come, as they are stored.

    Of one time only what was published last.
    """
    kept = sorted(dict(runs).items())
    passed = sum(at <= now for at, _ in kept)
    return json.dumps(kept[max(0, passed - RUNS_SHOWN) :], separators=(",", ":"))


def _read_runs(text: str | None) -> list[Run]:
    # Only for people, so that no schedule stops if it cannot be read.
    try:
        return [Run(int(at), int(message_id)) for at, message_id in json.loads(text or "[]")]
    except UNREADABLE:
        return []


def remove_schedule(connection: Connection, scope: SchedulesOfPrefix, name: str) -> bool:
    """Remove the record of a schedule; False if there is none."""
    statement = delete(scope.system.schedules).where(scope.named(name))
    return connection.execute(statement).rowcount > 0


def is_there(connection: Connection, tables: QueueTables, key: str) -> bool:
    """Whether a live message has a key."""
    found = select(tables.live.c.id).where(tables.live.c.message_key == key)
    return connection.execute(found).first() is not None


def remove_ahead(
    connection: Connection,
    tables: QueueTables,
    schedule: str,
    now: int,
    *,
    passed: bool = False,
    keeps: Callable[[int], bool] | None = None,
) -> list[int]:
    """Remove the messages of a schedule for times to come, unless a consumer holds them.

    ``passed`` also removes those of passed times that wait because of a delay. ``keeps`` says for
    which times a message stays that an operator holds; None: for none.

    It reads them before it locks any, because some engines lock what they read, and would wait for
    all transactions on other messages of the queue.

    Returns:
        The times of the removed messages, as in their keys.
    """
    live = tables.live
    ahead = and_(
        live.c.consumer_id.is_(None),
        live.c.scheduled_at > now,
        or_(tables.is_held(), live.c.available_at > now),
    )
    similar = live.c.message_key.startswith(_key_start(schedule), autoescape=True)
    held = case((tables.is_held(), 1), else_=0)

    def stays(at: int, is_held: int) -> bool:
        return bool(is_held) and keeps is not None and keeps(at)

    wanted = select(live.c.id, live.c.message_key, held).where(ahead, similar)
    found = {
        row[0]: at
        for row in connection.execute(wanted)
        if (at := _time_of(schedule, row[1])) is not None
        and (passed or at > now)
        and not stays(at, row[2])
    }
    removed: list[int] = []
    for batch in batches(sorted(found)):
        # One that became due meanwhile may be with a consumer, or done.
        locking = select(live.c.id, held).where(live.c.id.in_(batch), ahead).with_for_update()
        locking = by_id(tables, locking, live)
        rows = connection.execute(locking).all()
        locked: list[int] = [row[0] for row in rows if not stays(found[row[0]], row[1])]
        if not locked:
            continue
        named = [literal(message_id, live.c.id.type) for message_id in locked]
        with exits.leaving_some(connection, tables, live.c.id.in_(locked)):
            removal = tables.expressions.delete_by_ids(live, named)
            connection.execute(cast("Executable", removal))
        removed += [found[message_id] for message_id in locked]
    return sorted(removed)


def _time_of(schedule: str, key: str) -> int | None:
    """The time in a key of this schedule; None if it is another one's, or a user's own."""
    try:
        at = datetime.fromisoformat(key.removeprefix(_key_start(schedule)))
        found = instant_to_microseconds(at, "at")
    except ValueError:
        return None
    return found if key == message_key(schedule, instant(found)) else None


def _key_start(schedule: str) -> str:
    return f"schedule:{schedule}:"


def _selected(scope: SchedulesOfPrefix) -> Select[Any]:
    columns = scope.system.schedules.c
    return select(
        columns.name,
        columns.queue,
        scope.dialect.expressions.read_payload(columns.definition),
        columns.next_at,
        columns.revision,
        columns.paused_at,
        columns.created_at,
        scope.dialect.expressions.now().label("now"),
        columns.last_runs,
    )


def _record(row: Any) -> ScheduleRecord:
    of_schedule = f"of schedule {row[0]!r}"
    return ScheduleRecord(
        name=row[0],
        queue=row[1],
        definition=row[2],
        next_at=optional_number(f"next_at {of_schedule}", row[3]),
        revision=stored_number(f"revision {of_schedule}", row[4]),
        paused=row[5] is not None,
        created_at=stored_number(f"created_at {of_schedule}", row[6]),
        now=int(row[7]),
        last_runs=_read_runs(row[8]),
    )
