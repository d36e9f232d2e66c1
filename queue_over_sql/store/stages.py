"""Acts on stages, and on the commits that tell which batches were published."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Column, ColumnElement, MetaData, Table, and_, delete, insert, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateTable, DropTable

from queue_over_sql.dialects.base import ErrorKind
from queue_over_sql.dialects.compiled import CompiledStatement
from queue_over_sql.dialects.statements import stages as statements
from queue_over_sql.dialects.statements.stages import (
    AT,
    DELAY,
    SEQUENCE,
    StageTables,
    stage_tables,
)
from queue_over_sql.durations import stored_number
from queue_over_sql.errors import QueueError, StageLost
from queue_over_sql.store.tables import create_indexes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection, CursorResult
    from sqlalchemy.sql import ClauseElement

    from queue_over_sql.dialects.base import QueueDialect
    from queue_over_sql.dialects.direct import DriverResult
    from queue_over_sql.schema import QueueTables
    from queue_over_sql.system import SystemTables

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
    "orphaned_stages",
    "prune_commits",
    "stage_tables",
    "stages_of",
    "take_back",
    "taken_key",
]

WHOLE: Final = -1
_STAGE_NAME: Final = re.compile(r"queue_over_sql_stage_[0-9a-f]{16}\Z")
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
        if tables.dialect.classify(error) is ErrorKind.DUPLICATE:
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


def prune_commits(connection: Connection, system: SystemTables, dialect: QueueDialect) -> int:
    """Forget batches that cannot come again; returns how many."""
    commits = system.commits
    over = delete(commits).where(commits.c.expires_at <= dialect.now())
    return connection.execute(over).rowcount


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
    queue, dialect = tables.queue, tables.queue.dialect
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


def drop_stages(connection: Connection, system: SystemTables, names: Sequence[str]) -> None:
    """Drop stages, where they are, and forget them; outside of transactions that matter."""
    for name in names:
        if not _STAGE_NAME.match(str(name)):
            # What others wrote into the register must not let us drop their tables.
            continue
        table = Table(name, MetaData(schema=system.metadata.schema), Column("payload"))
        connection.execute(DropTable(table, if_exists=True))
        connection.execute(delete(system.stages).where(system.stages.c.name == name))


def orphaned_stages(
    connection: Connection, system: SystemTables, dialect: QueueDialect, *, patience: int
) -> list[str]:
    """Stages that nobody publishes any more: too old, or their batch is published.

    Args:
        connection: where.
        system: the shared tables.
        dialect: for the clock.
        patience: how long the publisher of a batch has to drop its stages, in microseconds.
    """
    stages, commits, now = system.stages, system.commits, dialect.now()
    published = (
        select(commits.c.part)
        .where(
            *[
                commits.c[name] == stages.c[name]
                for name in ("table_prefix", "queue", "writer_id", "batch_id")
            ],
            commits.c.part == WHOLE,
            commits.c.committed_at <= now - patience,
        )
        .exists()
    )
    found = connection.execute(select(stages.c.name).where(published))
    late = connection.execute(select(stages.c.name).where(stages.c.expires_at <= now))
    return sorted({row[0] for row in found} | {row[0] for row in late})


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
        replaced = _run(connection, statements.replace(tables), {"p_now": now}).rowcount
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
    dialect = tables.queue.dialect
    size = dialect.stage_piece
    compiled = CompiledStatement(
        statements.move(tables, on_conflict, size is not None), connection.dialect
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
    return int(_run(connection, statements.last_id(tables)).scalar_one())


def finished_key(
    connection: Connection, tables: StageTables, *, after: int, now: int
) -> tuple[str, int] | None:
    """A key just published that a finished message still has, with that message's id."""
    values = {"p_id": after, "p_now": now}
    row: Any = _run(connection, statements.remembered(tables), values).first()
    return None if row is None else (row[0], stored_number("message_id of a key", row[1]))


def take_back(connection: Connection, tables: StageTables, *, after: int, now: int) -> int:
    """Remove what was just published under keys that finished messages still have."""
    values = {"p_id": after, "p_now": now}
    return _run(connection, statements.take_back(tables), values).rowcount


def taken_key(
    connection: Connection, stages: Sequence[StageTables]
) -> tuple[str, int | None] | None:
    """A key of stages that a live message has, with its id, or that two of their messages have."""
    keyed = [tables for tables in stages if tables.keyed]
    for tables in keyed:
        row: Any = _run(connection, statements.taken(tables)).first()
        if row is not None:
            return row[0], int(row[1])
    row = _run(connection, statements.given_twice(keyed)).first() if keyed else None
    return None if row is None else (row[0], None)


def _count(connection: Connection, tables: StageTables) -> int:
    return int(_run(connection, statements.count_staged(tables)).scalar_one())


def _run(
    connection: Connection, clause: ClauseElement, values: Mapping[str, Any] | None = None
) -> DriverResult | CursorResult[Any]:
    return CompiledStatement(clause, connection.dialect).run(connection, values)
