"""Operations of staged writes: tables in which messages wait to be published together.

The table of a staged write has only the columns that its writer gives, and no key, so that it is
fast to fill. Its own columns begin with an underscore, which no column of a queue does.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ColumnElement,
    Index,
    Insert,
    MetaData,
    Table,
    Update,
    and_,
    case,
    delete,
    func,
    insert,
    literal_column,
    or_,
    select,
    union_all,
    update,
)
from sqlalchemy.exc import DBAPIError

from queue_over_sql.errors import QueueError, StageLost
from queue_over_sql.groups import exits
from queue_over_sql.publishing.statements import EXPIRY, insert_columns
from queue_over_sql.publishing.strategy import Inserts
from queue_over_sql.queues.tables import create_indexes
from queue_over_sql.recovery.staged_writes import WHOLE, drop_stages
from queue_over_sql.schema.queue_tables import KEY_RELEASED
from queue_over_sql.sql.compiled import CompiledStatement
from queue_over_sql.sql.errors import ErrorKind
from queue_over_sql.statements.parameters import (
    CLAIM_CLEARED,
    NEW_LIFE,
    batches,
    number,
    update_by_id,
)
from queue_over_sql.values.cached import cached_property
from queue_over_sql.values.durations import stored_number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection, CursorResult
    from sqlalchemy.sql import ClauseElement

    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.sql.compiled import DriverResult


# Exported with the other operations of staged writes.
__all__ = ["WHOLE", "drop_stages"]

DELAY: Final = "_delay"
"""How long a message waits after it is published, in microseconds."""
AT: Final = "_at"
"""When a message is due, in microseconds; instead of a delay."""
EXPIRES: Final = "_expires"
"""How long after its publish a message expires, in microseconds."""
SEQUENCE: Final = "_seq"
"""The place of a message in its staged write, counted from 0."""
_TIMES: Final = ("published_at", "scheduled_at", "available_at")
# Only a writer's last batch can be repeated; earlier ones then lose their place.
_EARLIER_BATCHES: Final = 100
_EARLIER_KEPT_US: Final = 86_400_000_000


class KeysTaken(QueueError):
    """A key of a staged write is taken; another transaction must find out which one."""


@dataclasses.dataclass(frozen=True, slots=True)
class BatchName:
    """A batch of a writer (1 to 100 characters), and its part, from 0 on."""

    writer_id: str
    batch_id: int
    part: int = WHOLE


@dataclasses.dataclass(frozen=True, slots=True)
class PublishedBatch:
    """The results of a batch: counts of new and changed messages, and taken keys.

    With ``repeated`` nothing was done, because the batch was already published.
    """

    created: int = 0
    replaced: int = 0
    left_out: int = 0
    repeated: bool = False

    def __add__(self, other: PublishedBatch) -> PublishedBatch:
        return PublishedBatch(
            self.created + other.created,
            self.replaced + other.replaced,
            self.left_out + other.left_out,
        )


@dataclasses.dataclass(frozen=True, eq=False)
class StagedTable:
    """The table of a staged write, and its queue; see ``staged_table``."""

    queue: QueueTables
    table: Table

    @property
    def keyed(self) -> bool:
        """Whether its messages may have keys."""
        return "message_key" in self.table.c

    @property
    def merged(self) -> bool:
        """Whether an index tells which of several messages with one key comes first."""
        return bool(self.table.indexes)

    @cached_property
    def given(self) -> list[str]:
        """The columns of a message that it has, besides its times."""
        return [name for name in _content_columns(self.queue) if name in self.table.c]


def _content_columns(tables: QueueTables) -> list[str]:
    return [name for name in insert_columns(tables) if name not in _TIMES]


def staged_table(
    tables: QueueTables, name: str, columns: Sequence[str], *, merged: bool
) -> StagedTable:
    """Define the table of a staged write.

    ``columns`` are columns that a publish sets, ``DELAY``, ``AT`` and ``EXPIRES``. With ``merged``,
    messages whose keys are taken are skipped or replace others.
    """
    live = tables.live
    own = [Column(n, live.c[n].type, nullable=live.c[n].nullable) for n in columns if n in live.c]
    times = [Column(n, BigInteger) for n in (DELAY, AT, EXPIRES) if n in columns]
    pieces = tables.features.stage_piece is not None
    place = [Column(SEQUENCE, BigInteger, primary_key=pieces, autoincrement=False)]
    checks = [check for check in live.constraints if isinstance(check, CheckConstraint)]
    table = Table(
        name,
        MetaData(schema=tables.system.metadata.schema),
        *(place if merged or pieces else []),
        *own,
        *times,
        *[CheckConstraint(str(check.sqltext)) for check in checks],
        **tables.expressions.table_options,
        **tables.expressions.stage_table_options,
    )
    if merged and "message_key" in columns:
        Index(f"{name}_ix", table.c.message_key, table.c[SEQUENCE])
    return StagedTable(tables, table)


# -- commits


def is_committed(connection: Connection, tables: QueueTables, batch: BatchName) -> bool:
    """Whether a batch, or this part of it, was published."""
    commits = tables.system.commits
    found = select(commits.c.part).where(_is_part(tables, batch))
    return connection.execute(found).first() is not None


def note_commit(
    connection: Connection, tables: QueueTables, batch: BatchName, *, keep: int | None
) -> bool:
    """Record that a batch is published; False if it already was.

    It waits for others that do the same. After False the transaction may have failed. The record is
    kept for ``keep`` microseconds; None: until the writer publishes later batches.
    """
    commits, now = tables.system.commits, tables.expressions.now()
    values = {
        "table_prefix": tables.prefix,
        "queue": tables.queue,
        "writer_id": batch.writer_id,
        "batch_id": batch.batch_id,
        "part": batch.part,
        "message_count": 0,
        "committed_at": now,
        "expires_at": None if keep is None else now + keep,
    }
    try:
        connection.execute(insert(commits).values(values))
    except DBAPIError as error:
        if tables.dialect.errors.classify(error) is ErrorKind.DUPLICATE:
            return False
        raise
    return True


def complete_commit(
    connection: Connection, tables: QueueTables, batch: BatchName, count: int
) -> None:
    """Record how many messages a batch published; drop the earlier records in a day."""
    commits = tables.system.commits
    mine = update(commits).where(_is_part(tables, batch))
    connection.execute(mine.values(message_count=count))
    before = and_(
        commits.c.table_prefix == tables.prefix,
        commits.c.queue == tables.queue,
        commits.c.writer_id == batch.writer_id,
        commits.c.batch_id >= batch.batch_id - _EARLIER_BATCHES,
        commits.c.batch_id < batch.batch_id,
        commits.c.expires_at.is_(None),
    )
    expiry = tables.expressions.now() + _EARLIER_KEPT_US
    connection.execute(update(commits).where(before).values(expires_at=expiry))


def committed_count(connection: Connection, tables: QueueTables, batch: BatchName) -> int | None:
    """How many messages a batch published or replaced; None if it is not known."""
    count = tables.system.commits.c.message_count
    found = connection.execute(select(count).where(_is_part(tables, batch))).first()
    return None if found is None else stored_number("message_count of a commit", found[0])


def forget_commit(connection: Connection, tables: QueueTables, batch: BatchName) -> None:
    """Delete the record of a batch that can never be repeated."""
    connection.execute(delete(tables.system.commits).where(_is_part(tables, batch)))


def _is_batch(table: Table, tables: QueueTables, batch: BatchName) -> ColumnElement[bool]:
    return and_(
        table.c.table_prefix == tables.prefix,
        table.c.queue == tables.queue,
        table.c.writer_id == batch.writer_id,
        table.c.batch_id == batch.batch_id,
    )


def _is_part(tables: QueueTables, batch: BatchName) -> ColumnElement[bool]:
    commits = tables.system.commits
    return and_(_is_batch(commits, tables, batch), commits.c.part == batch.part)


# -- staged writes


def create_staged(
    connection: Connection, staged: StagedTable, batch: BatchName, *, lifetime: int
) -> None:
    """Register a staged write, then create its table, so that every table is registered.

    The reaper does not touch it for ``lifetime`` microseconds.
    """
    queue, dialect = staged.queue, staged.queue.dialect
    values = {
        "name": staged.table.name,
        "table_prefix": queue.prefix,
        "queue": queue.queue,
        "writer_id": batch.writer_id,
        "batch_id": batch.batch_id,
        "created_at": staged.queue.expressions.now(),
        "expires_at": staged.queue.expressions.now() + lifetime,
    }
    connection.execute(insert(queue.system.stages).values(values))
    connection.execute(dialect.expressions.create_table(staged.table))
    create_indexes(connection, staged.table, dialect)


def complete_staged(connection: Connection, staged: StagedTable, count: int) -> None:
    """Record how many messages a staged write has, when all are stored."""
    register = staged.queue.system.stages
    mine = register.c.name == staged.table.name
    connection.execute(update(register).where(mine).values(message_count=count))


def staged_of(connection: Connection, tables: QueueTables, batch: BatchName) -> list[str]:
    """The tables of all registered staged writes of a batch."""
    register = tables.system.stages
    found = connection.execute(select(register.c.name).where(_is_batch(register, tables, batch)))
    return [row[0] for row in found]


def publish_staged(
    connection: Connection,
    staged: StagedTable,
    *,
    rows: int,
    now: int,
    on_conflict: str,
    expires: int | None,
) -> PublishedBatch:
    """Publish the staged messages at the time ``now``, except those with taken keys.

    ``expires`` is the queue's, for messages without their own, in microseconds.

    Raises ``KeysTaken``, or ``StageLost`` if there are fewer than ``rows`` messages; then roll the
    transaction back.
    """
    merged = staged.merged and on_conflict != "raise"
    if staged.keyed and staged.queue.frees_claimed_keys:
        _settle_holders(connection, staged, replaces=on_conflict == "replace")
    if merged:
        count = select(func.count()).select_from(staged.table)
        _check_all_there(staged, int(_run(connection, count).scalar_one()), rows)
    replaced = 0
    if merged and on_conflict == "replace":
        live, key = staged.queue.live, staged.table.c.message_key
        with exits.leaving_some(connection, staged.queue, live.c.message_key.in_(select(key))):
            replaced = _run(connection, _replace_live(staged, expires), {"p_now": now}).rowcount
    created = _inserted(
        connection, staged, rows=rows, now=now, on_conflict=on_conflict, expires=expires
    )
    if not merged:
        _check_all_there(staged, created, rows)
    return PublishedBatch(created, replaced, rows - created - replaced)


def _check_all_there(staged: StagedTable, found: int, expected: int) -> None:
    if found != expected:
        raise StageLost(staged.queue.queue, str(staged.table.name), found, expected)


def _inserted(
    connection: Connection,
    staged: StagedTable,
    *,
    rows: int,
    now: int,
    on_conflict: str,
    expires: int | None,
) -> int:
    dialect = staged.queue.dialect
    size = staged.queue.features.stage_piece
    compiled = CompiledStatement(
        _insert_staged(staged, on_conflict, size is not None, expires), connection.dialect
    )
    try:
        # The table of the staged write has the same CHECKs.
        with dialect.strategy(Inserts).trusting_rows(connection, staged.queue.live):
            if size is None:
                return compiled.run(connection, {"p_now": now}).rowcount
            return sum(
                compiled.run(
                    connection, {"p_now": now, "p_start": start, "p_end": start + size}
                ).rowcount
                for start in range(0, rows, size)
            )
    except DBAPIError as error:
        if staged.keyed and dialect.errors.classify(error) is ErrorKind.DUPLICATE:
            raise KeysTaken from error
        raise


def _insert_staged(
    staged: StagedTable, on_conflict: str, piece: bool, expires: int | None
) -> Insert:
    """Publish staged messages at ``p_now``; in pieces: from the place ``p_start`` to ``p_end``.

    If a key is taken, the statement fails with ``"raise"``.
    """
    queue, table = staged.queue, staged.table
    due, now = _due(table), number("p_now")
    names = [*staged.given, *_TIMES]
    values = [*[table.c[name] for name in staged.given], now, due, due]
    expiry = _expiry(table, expires)
    if expiry is not None:
        names.append(EXPIRY)
        values.append(expiry)
    source = select(*values)
    if piece:
        place = table.c[SEQUENCE]
        source = source.where(place >= number("p_start"), place < number("p_end"))
    if staged.merged and on_conflict != "raise":
        source = source.where(_is_free(staged, on_conflict)).order_by(table.c[SEQUENCE])
    statement = queue.expressions.insert(queue.live).from_select(
        names, source, include_defaults=False
    )
    if staged.merged and on_conflict == "skip" and queue.features.conflict_clause:
        # Others may take a key meanwhile.
        statement = queue.expressions.ignore_conflict(statement, queue.unique_key)
    return statement.inline()


def _due(table: Table) -> ColumnElement[int]:
    due: ColumnElement[int] = number("p_now")
    if DELAY in table.c:
        due = due + func.coalesce(table.c[DELAY], 0)
    return func.coalesce(table.c[AT], due) if AT in table.c else due


def _expiry(table: Table, expires: int | None) -> ColumnElement[int] | None:
    usual = None if expires is None else literal_column(str(expires), BigInteger())
    begins: ColumnElement[int] = number("p_now")
    if AT in table.c:
        begins = case((table.c[AT] > begins, table.c[AT]), else_=begins)
    if EXPIRES not in table.c:
        return None if usual is None else begins + usual
    own = table.c[EXPIRES]
    return begins + (own if usual is None else func.coalesce(own, usual))


def _is_free(staged: StagedTable, on_conflict: str) -> ColumnElement[bool]:
    table, live = staged.table, staged.queue.live
    taken_keys = select(live.c.id).where(staged.queue.holds_key(table.c.message_key)).exists()
    return or_(table.c.message_key.is_(None), and_(~taken_keys, _counts(table, on_conflict)))


def _counts(table: Table, on_conflict: str) -> ColumnElement[bool]:
    other = table.alias("other")
    mine, others = table.c[SEQUENCE], other.c[SEQUENCE]
    before = others > mine if on_conflict == "replace" else others < mine
    return (
        ~select(other.c.message_key)
        .where(other.c.message_key == table.c.message_key, before)
        .exists()
    )


def _replace_live(staged: StagedTable, expires: int | None) -> Update:
    """Give live messages the content of staged ones with their keys, if it differs.

    The message keeps its id but starts again; its holder loses the claim.
    """
    queue, table = staged.queue, staged.table
    live = queue.live
    kept = ("message_key",)
    due = _due(table)
    content = {name: table.c[name] for name in staged.given if name not in kept}
    missing: dict[str, Any] = {
        name: 0 if name == "priority" else None
        for name in _content_columns(queue)
        if name not in content and name not in kept
    }
    same_key = queue.holds_key(table.c.message_key)
    if queue.frees_claimed_keys:
        same_key = and_(same_key, live.c.consumer_id.is_(None))
    changes = or_(*_changes(staged, content | missing))
    wanted = and_(same_key, _counts(table, "replace"), changes)
    fresh = {**NEW_LIFE, **CLAIM_CLEARED, **queue.unparked()}
    times: dict[str, Any] = {"scheduled_at": due, "available_at": due}
    expiry = _expiry(table, expires)
    if expiry is None:
        fresh[EXPIRY] = None
    else:
        times[EXPIRY] = expiry
        # An expiry always means another time.
        wanted = and_(same_key, _counts(table, "replace"))
    if queue.features.updates_from:
        values = {**content, **missing, **times, **fresh}
        return update(live).where(wanted).values(values)
    looked_up = {
        name: select(value).where(wanted).correlate(live).scalar_subquery()
        for name, value in {**content, **times}.items()
    }
    among = select(table.c.message_key).where(wanted).correlate(live).exists()
    return update(live).where(among).values({**looked_up, **missing, **fresh})


def _changes(staged: StagedTable, content: dict[str, Any]) -> list[ColumnElement[bool]]:
    queue, table, live = staged.queue, staged.table, staged.queue.live
    found: list[ColumnElement[bool]] = []
    for name, value in content.items():
        column = live.c[name]
        if isinstance(value, Column):
            found.append(queue.expressions.differs(column, value))
        else:
            found.append(column.is_not(None) if value is None else column != value)
    # A delay always means another time.
    if DELAY in table.c:
        found.append(func.coalesce(table.c[DELAY], 0) > 0)
    if AT in table.c:
        found.append(and_(table.c[AT].is_not(None), table.c[AT] != live.c.scheduled_at))
    return found


# -- keys


def _settle_holders(connection: Connection, staged: StagedTable, *, replaces: bool) -> None:
    """Let each staged key be held by a message that waits, or by none.

    Those that are replaced are locked, so that no consumer claims them meanwhile.
    """
    queue, live, keys = staged.queue, staged.queue.live, staged.table.c.message_key
    among = live.c.message_key.in_(select(keys).where(keys.is_not(None)))
    claimed = live.c.consumer_id.is_not(None)
    wanted = [among, live.c[KEY_RELEASED] == 0, *([] if replaces else [claimed])]
    released = case((claimed, live.c.id), else_=0)
    _run(connection, update(live).where(*wanted).values({KEY_RELEASED: released}))
    holder = queue.live.alias("holder")
    held = select(holder.c.id).where(
        holder.c.message_key == live.c.message_key, holder.c[KEY_RELEASED] == 0
    )
    came_back = [live.c[KEY_RELEASED] != 0, live.c.consumer_id.is_(None)]
    newest = select(func.max(live.c.id)).where(among, *came_back, ~held.exists())
    ids = [row[0] for row in _run(connection, newest.group_by(live.c.message_key))]
    for batch in batches(ids):
        named = (live.c.id.in_(batch), *came_back)
        again = update_by_id(queue).where(*named).values({KEY_RELEASED: 0})
        try:
            _run(connection, again)
        except DBAPIError as error:
            if queue.dialect.errors.classify(error) is ErrorKind.DUPLICATE:
                raise KeysTaken from error
            raise


def newest_id(connection: Connection, staged: StagedTable) -> int:
    """The newest id of the queue."""
    newest = select(func.coalesce(func.max(staged.queue.live.c.id), 0))
    return int(_run(connection, newest).scalar_one())


def finished_key(
    connection: Connection, staged: StagedTable, *, after: int, now: int
) -> tuple[str, int] | None:
    """A key just published that a finished message still has, with that message's id."""
    live, memory = staged.queue.live, staged.queue.dedup_keys
    found = (
        select(memory.c.message_key, memory.c.message_id)
        .join(live, live.c.message_key == memory.c.message_key)
        .where(_just_published(staged), memory.c.expires_at > staged.queue.expressions.now())
        .limit(1)
    )
    row: Any = _run(connection, found, {"p_id": after, "p_now": now}).first()
    return None if row is None else (row[0], stored_number("message_id of a key", row[1]))


def take_back(connection: Connection, staged: StagedTable, *, after: int, now: int) -> int:
    """Remove messages just published whose keys finished messages still have."""
    live, memory = staged.queue.live, staged.queue.dedup_keys
    still = select(memory.c.message_key).where(memory.c.expires_at > staged.queue.expressions.now())
    removal = delete(live).where(_just_published(staged), live.c.message_key.in_(still))
    return _run(connection, removal, {"p_id": after, "p_now": now}).rowcount


def _just_published(staged: StagedTable) -> ColumnElement[bool]:
    live, keys = staged.queue.live, staged.table.c.message_key
    return and_(
        live.c.id > number("p_id"),
        live.c.published_at == number("p_now"),
        live.c.message_key.in_(select(keys).where(keys.is_not(None))),
    )


def taken_key(
    connection: Connection, writes: Sequence[StagedTable]
) -> tuple[str, int | None] | None:
    """A taken key of staged messages with its live message's id, or a key that occurs twice."""
    keyed = [staged for staged in writes if staged.keyed]
    for staged in keyed:
        live, keys = staged.queue.live, staged.table.c.message_key
        taken = select(live.c.message_key, live.c.id).join(staged.table, keys == live.c.message_key)
        if staged.queue.frees_claimed_keys:
            taken = taken.where(live.c.consumer_id.is_(None))
        row: Any = _run(connection, taken.limit(1)).first()
        if row is not None:
            return row[0], int(row[1])
    if not keyed:
        return None
    columns = [staged.table.c.message_key for staged in keyed]
    key = union_all(*[select(keys).where(keys.is_not(None)) for keys in columns]).subquery().c[0]
    twice = select(key).group_by(key).having(func.count() > 1).limit(1)
    row = _run(connection, twice).first()
    return None if row is None else (row[0], None)


def _run(
    connection: Connection, clause: ClauseElement, values: Mapping[str, Any] | None = None
) -> DriverResult | CursorResult[Any]:
    return CompiledStatement(clause, connection.dialect).run(connection, values)
