"""Statements that read messages without claiming them, and edit those that no consumer holds."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any, Final, Self

from sqlalchemy import (
    Delete,
    Integer,
    Select,
    Update,
    and_,
    bindparam,
    case,
    func,
    literal_column,
    not_,
    or_,
    select,
    union_all,
    update,
)

from queue_over_sql.groups import blocking, exits
from queue_over_sql.groups.statements import by_group, rows_of_groups, stopped
from queue_over_sql.payloads.codec import UnreadableHeaders, decode_headers, encode_read_headers
from queue_over_sql.queues import registry
from queue_over_sql.queues.purge import delete_by_id, remove_ids
from queue_over_sql.sql.compiled import CompiledStatement
from queue_over_sql.sql.operation import operation
from queue_over_sql.statements.clock import server_now
from queue_over_sql.statements.operations import change_by_ids
from queue_over_sql.statements.parameters import batches, by_id, number
from queue_over_sql.statements.requests import (
    LONGEST_DEFERRAL_US,
    archive_columns,
    listed_columns,
    read_archive_rows,
    read_listed_rows,
)
from queue_over_sql.values.headers import UNFIT_SINCE
from queue_over_sql.values.states import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from sqlalchemy import ColumnElement, Connection, Table

    from queue_over_sql.message import MessageRow
    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.sql.compiled import StatementCache


def place_of(tables: QueueTables, archived: bool) -> Table:
    """The table of the messages: the queue's or its archive."""
    return tables.archive if archived else tables.live


def extent_of(tables: QueueTables, archived: bool) -> list[ColumnElement[bool]]:
    """The conditions for the rows that are such messages, if not all rows are."""
    return tables.finished_only() if archived else tables.live_only()


def has_status(tables: QueueTables, status: Status) -> ColumnElement[bool]:
    """The condition for live messages of a status."""
    unclaimed = tables.live.c.consumer_id.is_(None)
    return {
        Status.READY: and_(unclaimed, tables.is_due()),
        Status.DELAYED: and_(unclaimed, tables.is_delayed()),
        Status.HELD: and_(unclaimed, tables.is_held()),
        Status.CLAIMED: tables.expressions.is_claimed(tables.live),
    }[status]


def stays(tables: QueueTables, ordered: bool) -> ColumnElement[bool]:
    """The condition for due messages that no consumer gets, whatever happens to the others.

    They are in what is paused or blocked, or behind a message of their group, if it is ``ordered``,
    that is held or was never due.
    """
    live, queues = tables.live, tables.system.queues
    named = (queues.c.table_prefix == tables.prefix, queues.c.name == tables.queue)
    paused = select(queues.c.name).where(*named, queues.c.paused_at.is_not(None)).exists()
    reasons: list[ColumnElement[bool]] = [paused]
    if tables.grouped:
        rows = rows_of_groups(tables)
        closed = live.c.group_key.in_(select(rows.c.group_key).where(stopped(rows)))
        reasons.append(and_(live.c.group_key.is_not(None), closed))
    if tables.grouped and ordered:
        head = live.alias("head")
        held = and_(head.c.available_at.is_(None), head.c.parked_at.is_(None))
        later = and_(head.c.available_at > tables.expressions.now(), head.c.attempt_count == 0)
        first = (head.c.group_key == live.c.group_key, head.c.id < live.c.id)
        waits = (head.c.consumer_id.is_(None), or_(held, later))
        reasons.append(select(head.c.id).where(*first, *waits).exists())
    return or_(*reasons)


def probe_id(tables: QueueTables, archived: bool) -> Select[Any]:
    """The first id from ``p_from`` on, and the one ``p_skip`` messages after it."""
    table = place_of(tables, archived)
    there = (table.c.id >= number("p_from"), *extent_of(tables, archived))
    first = select(func.min(table.c.id)).where(*there).scalar_subquery()
    later = select(table.c.id).where(*there).order_by(table.c.id)
    return select(first, later.limit(1).offset(number("p_skip")).scalar_subquery())


@dataclasses.dataclass(frozen=True, eq=False)
class Criteria:
    """A choice of messages: those in the queue or its archive that match all conditions.

    ``status`` is the condition for a status or an outcome. It is apart, because lists must not let
    an index on the status decide their order. ``of_group`` says that one of the conditions names
    the group of live messages, so that the indexes of groups find them.
    """

    archived: bool
    conditions: Sequence[ColumnElement[bool]]
    status: ColumnElement[bool] | None = None
    of_group: bool = False

    @property
    def wanted(self) -> list[ColumnElement[bool]]:
        """All conditions on messages."""
        return [*self.conditions, *([] if self.status is None else [self.status])]

    def among(self, tables: QueueTables) -> list[ColumnElement[bool]]:
        """All conditions on the rows of the table."""
        return [*extent_of(tables, self.archived), *self.wanted]

    def along_key(self, tables: QueueTables) -> list[ColumnElement[bool]]:
        """As ``among``, but so that no index on the status serves them, only the primary key."""
        status = extent_of(tables, self.archived) + self.wanted[len(self.conditions) :]
        if not status:
            return list(self.conditions)
        # Planners expect most rows to differ from a value, so they stop where the page is full.
        yes, no = literal_column("1", Integer()), literal_column("0", Integer())
        return [*self.conditions, case((and_(*status), yes), else_=no) != no]

    def also(self, condition: ColumnElement[bool]) -> Criteria:
        """The choice with one more condition."""
        return dataclasses.replace(self, conditions=[*self.conditions, condition])


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """Which part of a choice is listed: so many by id, after the id ``after``."""

    limit: int
    after: int | None = None
    newest_first: bool = False

    def beyond(self, key: ColumnElement[Any]) -> list[ColumnElement[bool]]:
        """The condition for what comes after ``after``."""
        if self.after is None:
            return []
        return [key < self.after if self.newest_first else key > self.after]

    def of(self, found: Select[Any], key: ColumnElement[Any]) -> Select[Any]:
        """The first ``limit`` of the rows, in the order of the page."""
        return found.order_by(key.desc() if self.newest_first else key).limit(self.limit)


class EditResult(int):
    """How many messages an edit changed.

    Attributes:
        skipped: how many matching messages stayed unchanged, because a consumer holds them.
    """

    skipped: int

    def __new__(cls, changed: int, skipped: int = 0) -> Self:
        """Make a result of ``changed`` and ``skipped`` messages."""
        edited = super().__new__(cls, changed)
        edited.skipped = skipped
        return edited


def list_messages(
    connection: Connection, sql: StatementCache, chosen: Criteria, page: Page
) -> list[MessageRow]:
    """Read one page of messages along the primary key."""
    tables: QueueTables = sql.subject
    columns = archive_columns(tables) if chosen.archived else listed_columns(tables)

    def run(statement: Any) -> Sequence[Any]:
        return CompiledStatement(statement, connection.dialect).run(connection).all()

    rows = _rows(connection, sql, chosen, page, columns=columns, run=run)
    read = read_archive_rows if chosen.archived else read_listed_rows
    return read(connection, sql, rows)


def list_columns(
    connection: Connection,
    sql: StatementCache,
    chosen: Criteria,
    page: Page,
    columns: Sequence[ColumnElement[Any]],
) -> Sequence[Any]:
    """Read some columns of one page of messages."""

    def run(statement: Any) -> Sequence[Any]:
        return connection.execute(statement).all()

    return _rows(connection, sql, chosen, page, columns=columns, run=run)


# So many ids are looked through first. Where they do not fill the page, so many messages are few
# enough to be found in any order and sorted by their ids.
_WINDOW: Final = 2_000
_FEW: Final = 10_000
_LARGEST: Final = 2**63 - 1


def _rows(
    connection: Connection,
    sql: StatementCache,
    chosen: Criteria,
    page: Page,
    *,
    columns: Sequence[ColumnElement[Any]],
    run: Callable[[Any], Sequence[Any]],
) -> Sequence[Any]:
    """One page, without relying on the planner's statistics.

    A planner that expects few messages of a status reads all of them and sorts. So the status is
    looked for along the primary key, in a window of it. Only if it is rare there, the planner finds
    all such messages.
    """
    tables: QueueTables = sql.subject
    key = place_of(tables, chosen.archived).c.id
    if chosen.of_group:
        parts = _parts_of_group(tables, chosen, page)
        found = union_all(*(select(page.of(each, key).subquery()) for each in parts))
        ids = {row[0] for row in run(found)}
        return _by_ids(ids, chosen.among(tables), page, key, columns=columns, run=run)
    along_key = chosen.along_key(tables)
    by_key = page.of(select(*columns).where(*along_key, *page.beyond(key)), key)
    if len(along_key) == len(chosen.conditions):
        # No status: an index of the user may serve the conditions.
        free = sql.subject.dialect.sessions.scanning(connection)
        with free if chosen.conditions else contextlib.nullcontext():
            return run(by_key)
    edge = func.max(key) if page.newest_first else func.min(key)
    start = run(select(edge).where(*page.beyond(key)))[0][0]
    if start is None:
        return []
    window = max(_WINDOW, 4 * page.limit)
    if page.newest_first:
        near = key > max(start - window, -_LARGEST)
    else:
        near = key <= min(start + window, _LARGEST)
    rows = run(by_key.where(near))
    if len(rows) >= page.limit:
        return rows
    there = select(key).where(*chosen.among(tables), *page.beyond(key)).limit(_FEW + 1)
    with sql.subject.dialect.sessions.scanning(connection):
        ids = {row[0] for row in run(there)}
    if len(ids) > _FEW:
        return run(by_key)
    return _by_ids(ids, chosen.among(tables), page, key, columns=columns, run=run)


def _by_ids(
    ids: Collection[int],
    conditions: Sequence[ColumnElement[bool]],
    page: Page,
    key: ColumnElement[Any],
    *,
    columns: Sequence[ColumnElement[Any]],
    run: Callable[[Any], Sequence[Any]],
) -> Sequence[Any]:
    rows: list[Any] = []
    first = sorted(ids, reverse=page.newest_first)[: page.limit]
    for batch in batches(first):
        rows += run(page.of(select(*columns).where(key.in_(batch), *conditions), key))
    return rows


def _parts_of_group(tables: QueueTables, chosen: Criteria, page: Page) -> list[Select[Any]]:
    """The ids of the messages of a group, and of those in hand, each by an index.

    What half a claim was left of by an edit by SQL is in none, as it has no status.
    """
    live = tables.live
    wanted = [*chosen.among(tables), *page.beyond(live.c.id)]
    parts = (live.c.consumer_id.is_(None), tables.expressions.is_claimed(live))
    found = [select(live.c.id).where(part, *wanted) for part in parts]
    return [by_group(tables, each, live) for each in found]


def count_selected(connection: Connection, sql: StatementCache, chosen: Criteria) -> int:
    """Count messages."""
    tables: QueueTables = sql.subject
    table = place_of(tables, chosen.archived)
    counted: Select[Any] = select(func.count())
    if chosen.of_group:
        parts = _parts_of_group(tables, chosen, Page(0))
        counted = counted.select_from(union_all(*parts).subquery())
    else:
        counted = counted.select_from(table).where(*chosen.among(tables))
    with sql.subject.dialect.sessions.scanning(connection):
        return int(connection.execute(counted).scalar_one())


@operation(durable=True, counts=True)
def delete_message(connection: Connection, sql: StatementCache, message_id: int) -> bool:
    """Remove one message, even if a consumer holds it; False if it does not exist."""
    with exits.leaving(connection, sql, [message_id]):
        statement = sql.get(delete_by_id)
        return statement.run(connection, {"p_id_0": message_id}).rowcount > 0


@operation(atomic=True, durable=True, wakes=True)
def edit_messages(
    connection: Connection, sql: StatementCache, chosen: Criteria, values: Mapping[str, Any]
) -> EditResult:
    """Change live messages that no consumer holds, and let every consumer notice."""
    tables: QueueTables = sql.subject
    live = tables.live
    values = {**tables.still_live(), **values}
    if "available_at" in values:
        values |= tables.unparked()
    wanted = (live.c.consumer_id.is_(None), *chosen.among(tables))
    changed = _change(connection, sql, update(live).values(values), wanted)
    if changed:
        registry.count_edit(connection, tables)
    return EditResult(changed, _held_back(connection, tables, chosen))


@operation(atomic=True, durable=True, wakes=True)
def edit_content(
    connection: Connection,
    sql: StatementCache,
    message_id: int,
    encode: Callable[[str | None], str | bytes] | None,
    columns: Mapping[str, Any],
) -> EditResult:
    """Change the payload and own columns of a message that no consumer holds.

    ``encode`` gives the payload for the kind of the message; None: it stays. A message that is
    deferred because it did not fit its kind is due now with another payload.
    """
    tables: QueueTables = sql.subject
    live, values = tables.live, dict(columns)
    tables.dialect.sessions.lock_for_writing(connection, sql)
    chosen = Criteria(archived=False, conditions=[live.c.id == message_id])
    if encode is not None:
        # Another payload may replace it meanwhile, of another kind and with other headers.
        unclaimed = (live.c.consumer_id.is_(None), *chosen.among(tables))
        stored = tables.expressions.read_payload(live.c.headers)
        locked = select(live.c.kind, stored).where(*unclaimed).with_for_update()
        found = CompiledStatement(locked, connection.dialect).run(connection).all()
        if not found:
            return EditResult(0, _held_back(connection, tables, chosen))
        [(kind, headers)] = found
        values["payload"] = bindparam(None, encode(kind), type_=live.c.payload.type)
        values |= _fitting(tables, headers)
    return edit_messages(connection, sql, chosen, values)


def _fitting(tables: QueueTables, stored: str | None) -> dict[str, Any]:
    try:
        headers = decode_headers(stored)
        if headers.pop(UNFIT_SINCE, None) is None:
            return {}
        encoded = encode_read_headers(headers)
    except UnreadableHeaders:
        return {}
    columns, now = tables.live.c, tables.expressions.now()
    # A later time is an operator's, and a held message stays held.
    last = columns.last_attempt_at + LONGEST_DEFERRAL_US
    deferred = and_(columns.available_at > now, columns.available_at <= last)
    return {
        "headers": bindparam(None, encoded, type_=columns.headers.type),
        "available_at": case((deferred, now), else_=columns.available_at),
    }


@operation(atomic=True, durable=True, repeatable=False, wakes=True)
def move_to_front(connection: Connection, sql: StatementCache, chosen: Criteria) -> EditResult:
    """Make messages the next of their levels, in the order of their ids; held ones stay held."""
    tables: QueueTables = sql.subject
    chosen = chosen.also(not_(tables.is_held()))
    # Lock the queue's record first, so that the later of two such edits comes to the front.
    registry.count_edit(connection, tables)
    now, columns = server_now(connection, sql), tables.live.c
    # Consider claimed messages, too, because they may come back to their places.
    due_first = select(columns.priority, func.min(columns.available_at))
    there = due_first.where(columns.available_at.is_not(None)).group_by(columns.priority)
    found = connection.execute(there).all()
    fronts = {int(level): min(int(due), now) - 1 for level, due in found}
    front = case((columns.priority >= 0, now))
    if fronts:
        front = case(fronts, value=columns.priority, else_=now)
    return edit_messages(connection, sql, chosen, {"available_at": front})


@operation(atomic=True, durable=True, repeatable=False)
def remove_messages(connection: Connection, sql: StatementCache, chosen: Criteria) -> EditResult:
    """Remove messages; live ones only if no consumer holds them.

    What a removed dead letter blocks goes on.
    """
    tables: QueueTables = sql.subject
    removal = tables.removal(archived=chosen.archived)
    if chosen.archived:
        return EditResult(_remove_archived(connection, sql, removal, chosen))
    wanted = (tables.live.c.consumer_id.is_(None), *chosen.wanted)
    removed = _change(connection, sql, removal, wanted)
    return EditResult(removed, _held_back(connection, tables, chosen))


def _remove_archived(
    connection: Connection, sql: StatementCache, removal: Delete | Update, chosen: Criteria
) -> int:
    tables: QueueTables = sql.subject
    if not tables.grouped:
        return connection.execute(removal.where(*chosen.wanted)).rowcount
    tables.dialect.sessions.lock_for_writing(connection, sql)
    with tables.dialect.sessions.scanning(connection):
        blocks = blocking.blocking(tables, *chosen.among(tables))
        dead = [(row[0], row[1]) for row in connection.execute(blocks)]
    removed = connection.execute(removal.where(*chosen.wanted)).rowcount
    blocking.unblock(connection, sql, blocking.by_group(dead))
    return removed


def _change(
    connection: Connection,
    sql: StatementCache,
    statement: Update | Delete,
    wanted: Sequence[ColumnElement[bool]],
) -> int:
    """Change or remove messages; returns how many. Wake who waits for them in their groups."""
    tables: QueueTables = sql.subject
    if tables.expressions.id_index_hint() is None:
        return _change_those(connection, sql, statement, wanted)
    # Such an engine locks every row that a change reads, so consumers would get no message until
    # this transaction ends. A plain SELECT locks nothing, and finds the ids first.
    found = select(tables.live.c.id).where(*wanted)
    with tables.dialect.sessions.scanning(connection):
        ids = sorted(connection.execute(found).scalars())
    return sum(_change_those(connection, sql, statement, wanted, batch) for batch in batches(ids))


def _change_those(
    connection: Connection,
    sql: StatementCache,
    statement: Update | Delete,
    wanted: Sequence[ColumnElement[bool]],
    ids: Sequence[int] = (),
) -> int:
    # The condition is checked again under each row's lock.
    tables: QueueTables = sql.subject
    live = tables.live
    if not tables.grouped:
        return _run(connection, sql, statement, wanted, ids)
    unblocking = [*wanted, live.c.blocks.is_(None)]
    changed = _run(connection, sql, statement, unblocking, ids)
    found = select(live.c.id).where(*wanted, live.c.blocks.is_not(None)).with_for_update()
    if ids:
        found = by_id(tables, found.where(live.c.id.in_(ids)), live)
    carriers = sorted(connection.execute(found).scalars())
    for batch in batches(carriers):
        with exits.leaving(connection, sql, batch):
            changed += _run(connection, sql, statement, wanted, batch)
    return changed


def _run(
    connection: Connection,
    sql: StatementCache,
    statement: Update | Delete,
    wanted: Sequence[ColumnElement[bool]],
    ids: Sequence[int],
) -> int:
    """Run the statement for those that are wanted, of these ids if there are any."""
    tables: QueueTables = sql.subject
    live, hint = tables.live, tables.expressions.id_index_hint()
    wanted = [live.c.id.in_(ids), *wanted] if ids else wanted
    if not ids or hint is None:
        return connection.execute(statement.where(*wanted)).rowcount
    if isinstance(statement, Update):
        return connection.execute(statement.with_hint(hint).where(*wanted)).rowcount
    locked = by_id(tables, select(live.c.id).where(*wanted).with_for_update(), live)
    gone = sorted(connection.execute(locked).scalars())
    change_by_ids(connection, sql, remove_ids, gone)
    return len(gone)


def list_ids(
    connection: Connection, sql: StatementCache, chosen: Criteria, page: Page
) -> list[int]:
    """The ids of one page of messages."""
    key = place_of(sql.subject, chosen.archived).c.id
    return [int(row[0]) for row in list_columns(connection, sql, chosen, page, [key])]


def last_id(connection: Connection, sql: StatementCache, chosen: Criteria) -> int | None:
    """The id of the newest message; None if there is none."""
    newest = list_ids(connection, sql, chosen, Page(1, newest_first=True))
    return newest[0] if newest else None


def probe_ids(
    connection: Connection, sql: StatementCache, *, archived: bool, start: int, skip: int
) -> tuple[int | None, int | None]:
    """The id of the first message from ``start`` on, and of the one ``skip`` messages later.

    None if there is none. It reads ``skip`` entries of the primary key.
    """
    values = {"p_from": start, "p_skip": skip}
    found: Sequence[Any] = sql.get(probe_id, archived).run(connection, values).one()
    return found[0], found[1]


def _held_back(connection: Connection, tables: QueueTables, chosen: Criteria) -> int:
    live = tables.live
    if chosen.of_group:
        counted = by_group(tables, select(func.count()).select_from(live), live)
        counted = counted.where(tables.expressions.is_claimed(live), *chosen.wanted)
    else:
        held = (live.c.consumer_id.is_not(None), *chosen.wanted)
        counted = select(func.count()).select_from(live).where(*held)
    return int(connection.execute(counted).scalar_one())
