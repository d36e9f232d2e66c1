"""Statements about stages: tables in which messages wait to be published together.

A stage has only the columns that its writer gives, and no key, so that filling it costs little.
Its own columns begin with an underscore, as none of a queue's does.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ColumnElement,
    Delete,
    Index,
    Insert,
    MetaData,
    Select,
    Table,
    Update,
    and_,
    delete,
    func,
    insert,
    or_,
    select,
    union_all,
    update,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateTable

from queue_over_sql.dialects.base import ErrorKind, engine_of
from queue_over_sql.dialects.compiled import CompiledStatement
from queue_over_sql.dialects.statements.parameters import CLAIM_CLEARED, number
from queue_over_sql.dialects.statements.publish import insert_columns
from queue_over_sql.durations import stored_number
from queue_over_sql.errors import QueueError, StageLost
from queue_over_sql.store.recovery import WHOLE, drop_stages
from queue_over_sql.store.tables import create_indexes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection, CursorResult
    from sqlalchemy.sql import ClauseElement

    from queue_over_sql.dialects.compiled import DriverResult
    from queue_over_sql.schema.queue_tables import QueueTables


DELAY: Final = "_delay"
"""How long a message waits after it is published, in microseconds."""
AT: Final = "_at"
"""When a message is due, in microseconds; instead of a delay."""
SEQUENCE: Final = "_seq"
"""The place of a message in its stage, counted from 0."""
_TIMES: Final = ("published_at", "scheduled_at", "available_at")


@dataclasses.dataclass(frozen=True, eq=False)
class StageTables:
    """A stage and the queue that it is for; see ``stage_tables``."""

    queue: QueueTables
    stage: Table

    @property
    def keyed(self) -> bool:
        """Whether its messages may have keys."""
        return "message_key" in self.stage.c

    @property
    def merged(self) -> bool:
        """Whether an index tells which of several messages with one key comes first."""
        return bool(self.stage.indexes)

    @functools.cached_property
    def given(self) -> list[str]:
        """The columns of a message that the stage has, besides its times."""
        return [name for name in content_columns(self.queue) if name in self.stage.c]


def content_columns(tables: QueueTables) -> list[str]:
    """What a publish fills besides the times."""
    return [name for name in insert_columns(tables) if name not in _TIMES]


def stage_tables(
    tables: QueueTables, name: str, columns: Sequence[str], *, merged: bool
) -> StageTables:
    """Define a stage.

    Args:
        tables: of the queue.
        name: of the stage's table.
        columns: what its writer gives, of ``content_columns``, ``DELAY`` and ``AT``.
        merged: whether messages whose keys are taken are skipped or replace others.
    """
    dialect, live = tables.dialect, tables.live
    metadata = MetaData(schema=tables.system.metadata.schema)
    own = [Column(n, live.c[n].type, nullable=live.c[n].nullable) for n in columns if n in live.c]
    times = [Column(n, BigInteger) for n in (DELAY, AT) if n in columns]
    pieces = dialect.stage_piece is not None
    place = [Column(SEQUENCE, BigInteger, primary_key=pieces, autoincrement=False)]
    table = Table(
        name,
        metadata,
        *(place if merged or pieces else []),
        *own,
        *times,
        *[CheckConstraint(str(check.sqltext)) for check in _checks(live)],
        **dialect.table_options,
        **dialect.stage_table_options,
    )
    if merged and "message_key" in columns:
        Index(f"{name}_ix", table.c.message_key, table.c[SEQUENCE])
    return StageTables(tables, table)


def _checks(live: Table) -> list[CheckConstraint]:
    return [check for check in live.constraints if isinstance(check, CheckConstraint)]


def count_staged(tables: StageTables) -> Select[Any]:
    """How many messages are staged."""
    return select(func.count()).select_from(tables.stage)


def last_live_id(tables: StageTables) -> Select[Any]:
    """The newest id of the queue."""
    return select(func.coalesce(func.max(tables.queue.live.c.id), 0))


def move_staged(tables: StageTables, on_conflict: str, piece: bool) -> Insert:
    """Publish what is staged, at the instant ``p_now``, but not what has a taken key.

    Args:
        tables: the stage and its queue.
        on_conflict: what to do about taken keys; ``"raise"`` lets the statement fail.
        piece: only those from the place ``p_start`` up to ``p_end``.
    """
    queue, stage = tables.queue, tables.stage
    dialect = queue.dialect
    due, now = _due(stage), number("p_now")
    names = [*tables.given, *_TIMES]
    source = select(*[stage.c[name] for name in tables.given], now, due, due)
    if piece:
        place = stage.c[SEQUENCE]
        source = source.where(place >= number("p_start"), place < number("p_end"))
    if tables.merged and on_conflict != "raise":
        source = source.where(_is_free(tables, on_conflict)).order_by(stage.c[SEQUENCE])
    statement = dialect.insert(queue.live).from_select(names, source, include_defaults=False)
    if tables.merged and on_conflict == "skip" and dialect.conflict_clause:
        # Others may take a key meanwhile.
        statement = dialect.ignore_conflict(statement, queue.live.c.message_key)
    return statement.inline()


def _due(stage: Table) -> ColumnElement[int]:
    due: ColumnElement[int] = number("p_now")
    if DELAY in stage.c:
        due = due + func.coalesce(stage.c[DELAY], 0)
    return func.coalesce(stage.c[AT], due) if AT in stage.c else due


def _is_free(tables: StageTables, on_conflict: str) -> ColumnElement[bool]:
    stage, live = tables.stage, tables.queue.live
    taken_keys = select(live.c.id).where(live.c.message_key == stage.c.message_key).exists()
    return or_(stage.c.message_key.is_(None), and_(~taken_keys, _counts(stage, on_conflict)))


def _counts(stage: Table, on_conflict: str) -> ColumnElement[bool]:
    other = stage.alias("other")
    mine, others = stage.c[SEQUENCE], other.c[SEQUENCE]
    before = others > mine if on_conflict == "replace" else others < mine
    return (
        ~select(other.c.message_key)
        .where(other.c.message_key == stage.c.message_key, before)
        .exists()
    )


def replace_live(tables: StageTables) -> Update:
    """Give live messages the content of staged ones with their keys, unless it is the same.

    A new life at the old id: whoever holds the message loses it.
    """
    queue, stage = tables.queue, tables.stage
    live = queue.live
    kept = ("message_key",)
    due = _due(stage)
    content = {name: stage.c[name] for name in tables.given if name not in kept}
    missing: dict[str, Any] = {
        name: 0 if name == "priority" else None
        for name in content_columns(queue)
        if name not in content and name not in kept
    }
    same_key = live.c.message_key == stage.c.message_key
    changes = or_(*_changes(tables, content | missing))
    wanted = and_(same_key, _counts(stage, "replace"), changes)
    fresh = {"attempt_count": 0, "last_attempt_at": None, "last_error": None, **CLAIM_CLEARED}
    times = {"scheduled_at": due, "available_at": due}
    if queue.dialect.updates_from:
        values = {**content, **missing, **times, **fresh}
        return update(live).where(wanted).values(values)
    looked_up = {
        name: select(value).where(wanted).correlate(live).scalar_subquery()
        for name, value in {**content, **times}.items()
    }
    among = select(stage.c.message_key).where(wanted).correlate(live).exists()
    return update(live).where(among).values({**looked_up, **missing, **fresh})


def _changes(tables: StageTables, content: dict[str, Any]) -> list[ColumnElement[bool]]:
    queue, stage, live = tables.queue, tables.stage, tables.queue.live
    found: list[ColumnElement[bool]] = []
    for name, value in content.items():
        column = live.c[name]
        if isinstance(value, Column):
            found.append(queue.dialect.differs(column, value))
        else:
            found.append(column.is_not(None) if value is None else column != value)
    # A delay always names another instant.
    if DELAY in stage.c:
        found.append(func.coalesce(stage.c[DELAY], 0) > 0)
    if AT in stage.c:
        found.append(and_(stage.c[AT].is_not(None), stage.c[AT] != live.c.scheduled_at))
    return found


def remembered_keys(tables: StageTables) -> Select[Any]:
    """A key that was published after the id ``p_id``, and that a finished message still has."""
    queue, memory = tables.queue, tables.queue.dedup_keys
    live = queue.live
    return (
        select(memory.c.message_key, memory.c.message_id)
        .join(live, live.c.message_key == memory.c.message_key)
        .where(_just_published(tables), memory.c.expires_at > queue.dialect.now())
        .limit(1)
    )


def remove_published(tables: StageTables) -> Delete:
    """Remove what was published after the id ``p_id`` under keys that finished ones still have."""
    queue, memory = tables.queue, tables.queue.dedup_keys
    still = select(memory.c.message_key).where(memory.c.expires_at > queue.dialect.now())
    live = queue.live
    return delete(live).where(_just_published(tables), live.c.message_key.in_(still))


def _just_published(tables: StageTables) -> ColumnElement[bool]:
    live = tables.queue.live
    staged = select(tables.stage.c.message_key).where(tables.stage.c.message_key.is_not(None))
    return and_(
        live.c.id > number("p_id"),
        live.c.published_at == number("p_now"),
        live.c.message_key.in_(staged),
    )


def taken_keys(tables: StageTables) -> Select[Any]:
    """A staged key that a live message has, and that message's id."""
    live, stage = tables.queue.live, tables.stage
    return (
        select(live.c.message_key, live.c.id)
        .join(stage, stage.c.message_key == live.c.message_key)
        .limit(1)
    )


def given_twice(stages: Sequence[StageTables]) -> Select[Any]:
    """A key that two messages of several stages have."""
    every = union_all(
        *[
            select(one.stage.c.message_key).where(one.stage.c.message_key.is_not(None))
            for one in stages
        ]
    ).subquery()
    return (
        select(every.c.message_key).group_by(every.c.message_key).having(func.count() > 1).limit(1)
    )


__all__ = [
    "AT",
    "DELAY",
    "SEQUENCE",
    "WHOLE",
    "BatchName",
    "KeysTaken",
    "Moved",
    "StageTables",
    "complete_commit",
    "complete_stage",
    "create_stage",
    "drop_stages",
    "finished_key",
    "is_committed",
    "move_stage",
    "newest_id",
    "note_commit",
    "stage_tables",
    "stages_of",
    "take_back",
    "taken_key",
]

# Only the last batch of a writer can come again; those right before it lose their place then.
_EARLIER_BATCHES: Final = 100


@dataclasses.dataclass(frozen=True, slots=True)
class BatchName:
    """Which batch of which writer, and which part of it.

    Attributes:
        writer_id: 1 to 100 characters.
        batch_id: the writer's number of it.
        part: from 0 on; ``WHOLE`` for the batch as a whole.
    """

    writer_id: str
    batch_id: int
    part: int = WHOLE


@dataclasses.dataclass(frozen=True, slots=True)
class Moved:
    """What became of the messages of a stage."""

    created: int = 0
    replaced: int = 0
    left_out: int = 0

    def __add__(self, other: Moved) -> Moved:
        return Moved(
            self.created + other.created,
            self.replaced + other.replaced,
            self.left_out + other.left_out,
        )


# -- commits


def is_committed(connection: Connection, tables: QueueTables, batch: BatchName) -> bool:
    """Whether a batch, or this part of it, was published."""
    commits = tables.system.commits
    found = select(commits.c.part).where(_is_batch(commits, tables, batch), _part(commits, batch))
    return connection.execute(found).first() is not None


def note_commit(
    connection: Connection, tables: QueueTables, batch: BatchName, *, keep: int | None
) -> bool:
    """Write down that a batch is published; False where that was done before.

    Waits for others who do the same. Where it is False the transaction may be spoilt.

    Args:
        connection: with a transaction, which publishes the batch as well.
        tables: of the queue.
        batch: which.
        keep: forget it after so many microseconds; None: when later batches of the writer came.
    """
    commits, now = tables.system.commits, tables.dialect.now()
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
        if engine_of(tables).classify(error) is ErrorKind.DUPLICATE:
            return False
        raise
    return True


def complete_commit(
    connection: Connection, tables: QueueTables, batch: BatchName, count: int, *, earlier: int
) -> None:
    """Write down how many messages a batch had; earlier ones are forgotten in a while.

    Args:
        connection: with the transaction of ``note_commit``.
        tables: of the queue.
        batch: which.
        count: how many messages were published or replaced.
        earlier: how long earlier batches of the writer are still known, in microseconds.
    """
    commits = tables.system.commits
    mine = and_(_is_batch(commits, tables, batch), _part(commits, batch))
    connection.execute(update(commits).where(mine).values(message_count=count))
    before = and_(
        commits.c.table_prefix == tables.prefix,
        commits.c.queue == tables.queue,
        commits.c.writer_id == batch.writer_id,
        commits.c.batch_id >= batch.batch_id - _EARLIER_BATCHES,
        commits.c.batch_id < batch.batch_id,
        commits.c.expires_at.is_(None),
    )
    expiry = tables.dialect.now() + earlier
    connection.execute(update(commits).where(before).values(expires_at=expiry))


def committed_count(connection: Connection, tables: QueueTables, batch: BatchName) -> int | None:
    """How many messages a batch published or replaced; None where it is not known."""
    commits = tables.system.commits
    mine = and_(_is_batch(commits, tables, batch), _part(commits, batch))
    found = connection.execute(select(commits.c.message_count).where(mine)).first()
    return None if found is None else stored_number("message_count of a commit", found[0])


def forget_commit(connection: Connection, tables: QueueTables, batch: BatchName) -> None:
    """Forget a batch that can never come again."""
    commits = tables.system.commits
    mine = and_(_is_batch(commits, tables, batch), _part(commits, batch))
    connection.execute(delete(commits).where(mine))


def _is_batch(table: Table, tables: QueueTables, batch: BatchName) -> ColumnElement[bool]:
    return and_(
        table.c.table_prefix == tables.prefix,
        table.c.queue == tables.queue,
        table.c.writer_id == batch.writer_id,
        table.c.batch_id == batch.batch_id,
    )


def _part(commits: Table, batch: BatchName) -> ColumnElement[bool]:
    return commits.c.part == batch.part


# -- stages


def create_stage(
    connection: Connection, tables: StageTables, batch: BatchName, *, lifetime: int
) -> None:
    """Register a stage, then create its table, so that no table is unknown.

    Args:
        connection: with a transaction, where the engine has one around DDL.
        tables: of the stage.
        batch: what it is for.
        lifetime: how long it is left alone, in microseconds.
    """
    queue, dialect = tables.queue, engine_of(tables.queue)
    values = {
        "name": tables.stage.name,
        "table_prefix": queue.prefix,
        "queue": queue.queue,
        "writer_id": batch.writer_id,
        "batch_id": batch.batch_id,
        "created_at": dialect.now(),
        "expires_at": dialect.now() + lifetime,
    }
    connection.execute(insert(queue.system.stages).values(values))
    connection.execute(CreateTable(tables.stage))
    create_indexes(connection, tables.stage, dialect)


def complete_stage(connection: Connection, tables: StageTables, count: int) -> None:
    """Write down how many messages a stage has, now that all are there."""
    stages = tables.queue.system.stages
    mine = stages.c.name == tables.stage.name
    connection.execute(update(stages).where(mine).values(message_count=count))


def stages_of(connection: Connection, tables: QueueTables, batch: BatchName) -> list[str]:
    """The names of all stages of a batch that are registered."""
    stages = tables.system.stages
    found = connection.execute(select(stages.c.name).where(_is_batch(stages, tables, batch)))
    return [row[0] for row in found]


# -- publishing what is staged


class KeysTaken(QueueError):
    """A key of a stage is taken; which is to be found out in another transaction."""


def move_stage(
    connection: Connection, tables: StageTables, *, rows: int, now: int, on_conflict: str
) -> Moved:
    """Publish what is staged.

    Raises:
        KeysTaken: the transaction is to be rolled back.
        StageLost: the stage does not have ``rows`` messages any more; likewise.
    """
    merged = tables.merged and on_conflict != "raise"
    if merged:
        _check_all_there(tables, _count(connection, tables), rows)
    replaced = 0
    if merged and on_conflict == "replace":
        replaced = _run(connection, replace_live(tables), {"p_now": now}).rowcount
    created = _inserted(connection, tables, rows=rows, now=now, on_conflict=on_conflict)
    if not merged:
        _check_all_there(tables, created, rows)
    return Moved(created, replaced, rows - created - replaced)


def _check_all_there(tables: StageTables, found: int, expected: int) -> None:
    if found != expected:
        raise StageLost(tables.queue.queue, str(tables.stage.name), found, expected)


def _inserted(
    connection: Connection, tables: StageTables, *, rows: int, now: int, on_conflict: str
) -> int:
    dialect = engine_of(tables.queue)
    size = dialect.stage_piece
    compiled = CompiledStatement(
        move_staged(tables, on_conflict, size is not None), connection.dialect
    )
    try:
        # A stage has the same CHECKs.
        with dialect.trusting_rows(connection, tables.queue.live):
            if size is None:
                return compiled.run(connection, {"p_now": now}).rowcount
            return sum(
                compiled.run(
                    connection, {"p_now": now, "p_start": start, "p_end": start + size}
                ).rowcount
                for start in range(0, rows, size)
            )
    except DBAPIError as error:
        if tables.keyed and dialect.classify(error) is ErrorKind.DUPLICATE:
            raise KeysTaken from error
        raise


def newest_id(connection: Connection, tables: StageTables) -> int:
    """The newest id of the queue."""
    return int(_run(connection, last_live_id(tables)).scalar_one())


def finished_key(
    connection: Connection, tables: StageTables, *, after: int, now: int
) -> tuple[str, int] | None:
    """A key just published that a finished message still has, with that message's id."""
    values = {"p_id": after, "p_now": now}
    row: Any = _run(connection, remembered_keys(tables), values).first()
    return None if row is None else (row[0], stored_number("message_id of a key", row[1]))


def take_back(connection: Connection, tables: StageTables, *, after: int, now: int) -> int:
    """Remove what was just published under keys that finished messages still have."""
    values = {"p_id": after, "p_now": now}
    return _run(connection, remove_published(tables), values).rowcount


def taken_key(
    connection: Connection, stages: Sequence[StageTables]
) -> tuple[str, int | None] | None:
    """A key of stages that a live message has, with its id, or that two of their messages have."""
    keyed = [tables for tables in stages if tables.keyed]
    for tables in keyed:
        row: Any = _run(connection, taken_keys(tables)).first()
        if row is not None:
            return row[0], int(row[1])
    row = _run(connection, given_twice(keyed)).first() if keyed else None
    return None if row is None else (row[0], None)


def _count(connection: Connection, tables: StageTables) -> int:
    return int(_run(connection, count_staged(tables)).scalar_one())


def _run(
    connection: Connection, clause: ClauseElement, values: Mapping[str, Any] | None = None
) -> DriverResult | CursorResult[Any]:
    return CompiledStatement(clause, connection.dialect).run(connection, values)
