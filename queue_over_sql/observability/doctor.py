"""Doctor: finds problems of a database and says how to fix them.

It reads catalogs, settings and a few rows by index, with a time limit for each statement, so it is
safe for a large database. It changes and creates nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import UniqueConstraint, func, select
from sqlalchemy.exc import NoSuchTableError
from sqlalchemy.schema import CreateIndex

from queue_over_sql import QueueService, inside
from queue_over_sql.errors import DatabaseRefused, DatabaseUnavailable, QueueError
from queue_over_sql.values.durations import Duration, duration_text, to_timedelta
from queue_over_sql.values.findings import Finding, Level
from queue_over_sql.values.humanize import counted
from queue_over_sql.values.limits import LEAST_CLOCK_STEP_US
from queue_over_sql.values.reasons import REFUSED, UNREADABLE

if TYPE_CHECKING:
    from sqlalchemy import Connection, Index, Table

    _CheckOfQueue = Callable[[str, inside.QueueTables], Iterator[Finding]]

_SKEW_SECONDS: Final = 2.0
_NEGLECTED_SECONDS: Final = 60.0
# How many queues may fail because the database is away, before a section ends.
_MOST_AWAY: Final = 3
_MOST_SHOWN: Final = 10
# Why messages are held: how ``last_error`` begins, what that means, and what to do first.
_HELD: Final = (
    (REFUSED, "the database refused to finish", "Mend what refuses them"),
    (UNREADABLE, "the database cannot read", "Restore the files from a backup"),
)
# The largest number of queues whose tables are checked.
_MOST_QUEUES: Final = 200


def diagnose(service: QueueService, *, timeout: Duration = 5.0) -> list[Finding]:
    """Check the database of a service for problems.

    Args:
        service: a service of the database; it need not be started.
        timeout: time limit for each statement.

    Returns:
        The findings, in the order of the checks.

    Raises:
        DatabaseUnavailable: the database cannot be reached.
        TypeError, ValueError: the timeout is not a duration above zero.
    """
    seconds = to_timedelta(timeout, "timeout").total_seconds()
    # What keeps a queue from being read is the same for several checks.
    return list(dict.fromkeys(_Doctor(service, seconds).findings()))


class _Doctor:
    def __init__(self, service: QueueService, seconds: float) -> None:
        self._inspection = inside.Inspection(service, seconds)
        self._queues: dict[str, inside.QueueTables] = {}
        self._records: dict[str, inside.QueueRecord] = {}
        self._missing: list[str] = []

    def findings(self) -> Iterator[Finding]:
        sections: dict[str, Callable[[], Iterator[Finding]]] = {
            "engine": self._engine,
            "clocks": self._clocks,
            "tables": self._tables,
            "indexes": self._indexes,
            "clocks of the tables": self._stamps,
            "consumers": self._consumers,
            "ids": self._ids,
            "queues": self._waiting,
            "queues held": partial(self._each, self._refused),
            "queues edited": partial(self._each, self._half_claimed),
            "queues blocked": partial(self._each, self._blocked),
            "queues with groups": partial(self._each, self._broken_groups),
            "queues with limits": partial(self._each, self._beside_limits),
            "queues with rates": partial(self._each, self._without_rates),
        }
        checkup = self._inspection.dialect.checkup
        for name, section in checkup.sections.items():
            sections[f"{name} of the engine"] = partial(self._asked, section)
        for name, check in sections.items():
            yield from _safely(name.partition(" ")[0], check)

    def _each(self, check: _CheckOfQueue) -> Iterator[Finding]:
        """Check each queue; one that cannot be read keeps no other from being checked."""
        away = 0
        for name, tables in self._queues.items():
            try:
                yield from check(name, tables)
            except (DatabaseRefused, DatabaseUnavailable) as error:
                away += isinstance(error, DatabaseUnavailable)
                if away == _MOST_AWAY:
                    # Each further one would wait as long.
                    raise
                yield _unchecked(f"queue {name}", error)

    def _asked(self, section: inside.Section) -> Iterator[Finding]:
        there = [t for tables in self._queues.values() for t in (tables.live, tables.archive)]
        system = [t for t in self._inspection.system.all if t.name not in self._missing]
        yield from self._inspection.findings(section, [*system, *dict.fromkeys(there)])

    def _engine(self) -> Iterator[Finding]:
        with self._inspection.connection() as connection:
            said = self._inspection.dialect.checkup.described(connection)
        yield Finding(Level.OK, "engine", said)

    def _clocks(self) -> Iterator[Finding]:
        # The first query may connect.
        self._inspection.now()
        before = time.time()
        there = self._inspection.now() / 1_000_000
        after = time.time()
        ahead = max(before - there, there - after, 0.0)
        if ahead <= _SKEW_SECONDS:
            yield Finding(Level.OK, "clocks", "the clocks of this host and of the database agree")
            return
        said = f"the clocks of this host and of the database differ by {ahead:.1f} s"
        advice = (
            "Synchronize both with NTP. Queues use the clock of the database, but times for at= "
            "and in logs are from this host."
        )
        yield Finding(Level.WARNING, "clocks", said, advice)

    def _stamps(self) -> Iterator[Finding]:
        now, latest = self._inspection.now(), (0, "")

        def look(name: str, tables: inside.QueueTables) -> Iterator[Finding]:
            nonlocal latest
            # Not of an adopted table, where it may lie behind millions of finished rows.
            if not tables.ends_in_place:
                with self._inspection.connection() as connection:
                    found = self._inspection.newest_stamp(connection, tables)
                latest = max(latest, (found or 0, f"the newest message of queue {name}"))
            yield from ()

        yield from self._each(look)
        ahead = latest[0] - now
        if ahead <= LEAST_CLOCK_STEP_US:
            return
        said = (
            "the clock of the database was set back: it stands "
            f"{duration_text(round(ahead / 1_000_000))} before the time of {latest[1]}"
        )
        advice = (
            "Synchronize it with NTP, and let a reaper run, which keeps due what was due. Delays, "
            "leases and schedules wait until the clock gets to their times. If that is too long "
            "for a schedule, remove it and add it again."
        )
        yield Finding(Level.WARNING, "clocks", said, advice)

    def _tables(self) -> Iterator[Finding]:
        self._missing = self._inspection.missing_tables()
        if len(self._missing) == len(self._inspection.system.all):
            advice = "Create a queue, or check the URL, --schema and the account."
            yield Finding(Level.ERROR, "tables", "there are no tables of queues", advice)
            return
        for name in self._missing:
            advice = "Start a service of this release: it creates missing tables."
            yield Finding(Level.WARNING, "tables", f"the table {name} is missing", advice)
        records = self._inspection.records()
        for record in records[:_MOST_QUEUES]:
            try:
                self._queues[record.name] = self._inspection.tables(record)[0]
                self._records[record.name] = record
            except QueueError as error:
                yield Finding(Level.ERROR, f"queue {record.name}", str(error))
        text = f"{len(records)} queue{'' if len(records) == 1 else 's'}" + (
            f", of which the first {_MOST_QUEUES} are checked"
            if len(records) > _MOST_QUEUES
            else ""
        )
        yield Finding(Level.OK, "tables", text)

    def _indexes(self) -> Iterator[Finding]:
        found, broken = False, set[str]()

        def compare(name: str, tables: inside.QueueTables) -> Iterator[Finding]:
            for table in dict.fromkeys((tables.live, tables.archive, *tables.only_with_rules)):
                with self._inspection.connection() as connection:
                    try:
                        yield from _compare(connection, tables, table)
                    except NoSuchTableError:
                        broken.add(name)
                        said = f"the table {table.name} of queue {name} is missing"
                        advice = "Restore it from a backup, or drop the queue."
                        yield Finding(Level.ERROR, "tables", said, advice)

        for finding in self._each(compare):
            found = True
            yield finding
        if self._queues and not found:
            yield Finding(Level.OK, "indexes", "all exist")
        # No other check could read them.
        self._queues = {n: tables for n, tables in self._queues.items() if n not in broken}

    def _consumers(self) -> Iterator[Finding]:
        if self._inspection.system.consumers.name in self._missing:
            return
        alive, dead = self._inspection.consumers()
        for consumer, overdue in dead[:_MOST_SHOWN]:
            holds = self._held_by(consumer.consumer_id)
            said = (
                f"{consumer.name} ({consumer.consumer_id}) on {consumer.host} has been dead for "
                f"{duration_text(round(overdue))} and holds {holds or 'nothing'}"
            )
            if overdue < _NEGLECTED_SECONDS:
                advice = "Wait: a reaper releases its messages."
                yield Finding(Level.NOTE, "consumers", said, advice)
            else:
                advice = "Start a reaper, which releases its messages: queue-over-sql reaper."
                yield Finding(Level.WARNING, "consumers", said, advice)
        if len(dead) > _MOST_SHOWN:
            yield Finding(Level.WARNING, "consumers", f"{len(dead)} consumers are dead in total")
        yield Finding(Level.OK, "consumers", f"{len(alive)} are alive")

    def _held_by(self, consumer_id: str) -> str:
        held: list[str] = []
        for name, tables in self._queues.items():
            live = tables.live
            of_it = (
                live.c.consumer_id == consumer_id,
                self._inspection.dialect.is_claimed(live),
            )
            some = select(live.c.id).where(*of_it).limit(1000).subquery()
            try:
                with self._inspection.connection() as connection:
                    count = connection.execute(select(func.count()).select_from(some)).scalar_one()
            except DatabaseUnavailable:
                held.append("an unknown number of other queues")
                break
            except DatabaseRefused:
                held.append(f"an unknown number of {name}")
                continue
            if count:
                held.append(f"{count}{'+' if count == 1000 else ''} of {name}")  # noqa: PLR2004
        return ", ".join(held)

    def _ids(self) -> Iterator[Finding]:
        checkup, well = self._inspection.dialect.checkup, True
        apart = [t.live for t in self._queues.values() if t.live is not t.archive]
        with self._inspection.connection() as connection:
            given = checkup.last_ids(connection, apart)

        def look(name: str, tables: inside.QueueTables) -> Iterator[Finding]:
            last = given.get(tables.live.name)
            if last is None or tables.live is tables.archive:
                return
            both = (tables.live, tables.archive)
            with self._inspection.connection() as connection:
                used = [connection.execute(select(func.max(t.c.id))).scalar() for t in both]
                greatest = max((int(number) for number in used if number is not None), default=0)
                if last >= greatest:
                    return
                said = (
                    f"queue {name} gives its next message the id {last + 1}, but has or had "
                    f"messages up to the id {greatest}: their archive refuses such messages"
                )
                advice = f"Run: {checkup.next_id(connection, tables.live, greatest + 1)}"
            yield Finding(Level.ERROR, "ids", said, advice)

        for finding in self._each(look):
            well = False
            yield finding
        if given and well:
            yield Finding(Level.OK, "ids", "new messages get ids that no message had")

    def _refused(self, name: str, tables: inside.QueueTables) -> Iterator[Finding]:
        columns = tables.live.c
        held = (columns.consumer_id.is_(None), tables.is_held())
        for begins, what, mend in _HELD:
            like = columns.last_error.startswith(begins)
            some = select(columns.id).where(*held, like).limit(1000).subquery()
            with self._inspection.connection() as connection:
                count = connection.execute(select(func.count()).select_from(some)).scalar_one()
            if count:
                said = (
                    f"{name} holds {count}{'+' if count == 1000 else ''} message"  # noqa: PLR2004
                    f"{'' if count == 1 else 's'} that {what}"
                )
                advice = (
                    f"See why: queue-over-sql search {name} --status held. {mend}, and then "
                    "delete or unhold them."
                )
                yield Finding(Level.WARNING, "queues", said, advice)

    def _blocked(self, name: str, tables: inside.QueueTables) -> Iterator[Finding]:
        if not tables.grouped:
            return
        record = self._records[name]
        with self._inspection.connection() as connection:
            groups = inside.group_counts(tables, self._inspection.group_rate(record))
            row = connection.execute(select(groups)).one()
            gone = self._inspection.blocked_by_nothing(connection, tables, record, most=1000)
        blocked, paused, throttled = (int(count) for count in row)
        if gone:
            said = (
                f"{name}: dead letters that block {counted(len(gone), 'group')} are no longer "
                f"there, such as that of the group {gone[0]!r}"
            )
            advice = "A reaper unblocks them in time. Do not change the archive by SQL."
            yield Finding(Level.WARNING, "queues", said, advice)
        if paused:
            yield Finding(Level.OK, "queues", f"{name} has {counted(paused, 'paused group')}")
        if throttled:
            waits = "waits for its rate" if throttled == 1 else "wait for their rate"
            said = f"{name} has {counted(throttled, 'group')} that {waits}"
            yield Finding(Level.OK, "queues", said)
        if count := blocked - len(gone):
            said = f"{name} has {counted(count, 'group')} that a dead letter blocks"
            advice = (
                f"See them: queue-over-sql groups {name}. Then unblock each group, or requeue "
                "its dead letter."
            )
            yield Finding(Level.WARNING, "queues", said, advice)

    def _half_claimed(self, name: str, tables: inside.QueueTables) -> Iterator[Finding]:
        with self._inspection.connection() as connection:
            count, mend = self._inspection.half_claimed(connection, tables, most=1000)
        if count:
            said = (
                f"{name} has {count}{'+' if count == 1000 else ''} message"  # noqa: PLR2004
                f"{'' if count == 1 else 's'} with a consumer_id, but without a lease or a "
                "round: no consumer holds them, and none gets them"
            )
            advice = f"A reaper gives them back in time. To do it at once, run: {mend}"
            yield Finding(Level.WARNING, "queues", said, advice)

    def _broken_groups(self, name: str, tables: inside.QueueTables) -> Iterator[Finding]:
        with self._inspection.connection() as connection:
            broken = self._inspection.broken_groups(connection, tables, most=100_000)
        if broken:
            groups = f"{len(broken)} group{'' if len(broken) == 1 else 's'}"
            said = (
                f"{name}: messages of {groups} wait for one that is no longer there, such as "
                f"those of the group {broken[0]!r}"
            )
            advice = "A reaper mends that in time. Do not change the queue's table by SQL."
            yield Finding(Level.WARNING, "queues", said, advice)

    def _beside_limits(self, name: str, tables: inside.QueueTables) -> Iterator[Finding]:
        with self._inspection.connection() as connection:
            count = self._inspection.beside_limit(connection, tables)
        if count:
            said = f"{name}: {counted(count, 'message')} in hand beside its queue_limit"
            advice = (
                "They count as soon as a reaper sees them. Do not claim by SQL, and stop "
                "services of earlier releases."
            )
            yield Finding(Level.WARNING, "queues", said, advice)

    def _without_rates(self, name: str, tables: inside.QueueTables) -> Iterator[Finding]:
        with self._inspection.connection() as connection:
            lacks = self._inspection.lacks_rate(connection, tables)
        if lacks:
            said = f"{name}: the row of its queue_rate is gone, so nobody claims from it"
            advice = "A reaper puts it back in time. Do not change the queue's tables by SQL."
            yield Finding(Level.WARNING, "queues", said, advice)

    def _waiting(self) -> Iterator[Finding]:
        if not self._queues:
            return
        neglected = False
        alive, _ = self._inspection.consumers()
        for queue in self._inspection.queues():
            age = queue.oldest_ready
            if queue.problem or queue.paused or queue.is_claimed or age is None:
                continue
            if age > _NEGLECTED_SECONDS and not self._inspection.handlers_of(alive, queue.name):
                neglected = True
                said = (
                    f"{queue.name} has had ready messages for {duration_text(round(age))}, "
                    "and no consumer handles it"
                )
                advice = "Start a worker that handles this queue."
                yield Finding(Level.WARNING, "queues", said, advice)
        if not neglected:
            yield Finding(Level.OK, "queues", "no queue waits for a consumer")


def _safely(name: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from check()
    except (DatabaseRefused, DatabaseUnavailable) as error:
        if isinstance(error, DatabaseUnavailable) and name == "engine":
            raise
        yield _unchecked(name, error)


def _unchecked(name: str, error: Exception) -> Finding:
    advice = "Grant the login the right to read it, or check it yourself."
    reason = " ".join(str(error).split())
    return Finding(Level.NOTE, name, f"it could not be checked: {reason}", advice)


def _compare(connection: Connection, tables: inside.QueueTables, table: Table) -> Iterator[Finding]:
    lost = inside.Inspection.lost_columns(connection, tables) if table is tables.live else set()
    indexes, unique = inside.Inspection.reflected(connection, table)
    there = {index["name"]: index for index in indexes}
    if lost:
        yield _of_lost(tables, lost)
    kept = [index for index in table.indexes if lost.isdisjoint(index.columns.keys())]
    for index in sorted(kept, key=lambda index: str(index.name)):
        yield from _compare_index(connection, index, there.get(str(index.name)))
    known = {each["name"] for each in unique} | set(there)
    columns = [each["column_names"] for each in unique]
    for constraint in _unique_constraints(table):
        wanted = [column.name for column in constraint.columns]
        if constraint.name not in known and wanted not in columns:
            said = f"table {table.name} has no unique constraint on {', '.join(wanted)}"
            advice = "Remove live messages with equal keys, and add the constraint again."
            yield Finding(Level.ERROR, "indexes", said, advice)


def _of_lost(tables: inside.QueueTables, lost: set[str]) -> Finding:
    table = tables.live
    if len(lost) < len(tables.added_columns):
        names = ", ".join(table.c[key].name for key in tables.added_columns if key in lost)
        said = f"table {table.name} has lost columns of queue {tables.queue}: {names}"
        return Finding(Level.ERROR, "tables", said, "Call adopt_queue, which adds them.")
    said = (
        f"table {table.name} has lost all columns of queue {tables.queue}: a migration has "
        "probably rebuilt it without them"
    )
    advice = (
        "Restore them from a backup. Or drop the queue, which leaves the table, call adopt_queue, "
        "and enqueue chosen rows with where=: which rows were finished is not known any more."
    )
    return Finding(Level.ERROR, "tables", said, advice)


def _unique_constraints(table: Table) -> Sequence[UniqueConstraint]:
    return [each for each in table.constraints if isinstance(each, UniqueConstraint)]


def _compare_index(connection: Connection, index: Index, there: Any) -> Iterator[Finding]:
    made = " ".join(str(CreateIndex(index).compile(dialect=connection.dialect)).split())
    columns = [column.name for column in index.columns]
    if there is None:
        said = f"index {index.name} is missing, so claims or pruning read the whole table"
        yield Finding(Level.WARNING, "indexes", said, f"Run: {made}")
    elif [str(name).lower() for name in there["column_names"]] != [c.lower() for c in columns]:
        has = ", ".join(map(str, there["column_names"]))
        said = f"index {index.name} is on {has}, not on {', '.join(columns)}"
        yield Finding(Level.WARNING, "indexes", said, f"Drop it and run: {made}")
