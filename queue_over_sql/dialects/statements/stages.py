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
    or_,
    select,
    union_all,
    update,
)

from queue_over_sql.dialects.statements.parameters import CLAIM_CLEARED, number
from queue_over_sql.dialects.statements.publish import insert_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from queue_over_sql.schema import QueueTables

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
    """That payloads are JSON is found out where they are staged, by many at a time."""
    return [check for check in live.constraints if isinstance(check, CheckConstraint)]


def count_staged(tables: StageTables) -> Select[Any]:
    """How many messages are staged."""
    return select(func.count()).select_from(tables.stage)


def last_id(tables: StageTables) -> Select[Any]:
    """The newest id of the queue."""
    return select(func.coalesce(func.max(tables.queue.live.c.id), 0))


def move(tables: StageTables, on_conflict: str, piece: bool) -> Insert:
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
    taken = select(live.c.id).where(live.c.message_key == stage.c.message_key).exists()
    return or_(stage.c.message_key.is_(None), and_(~taken, _counts(stage, on_conflict)))


def _counts(stage: Table, on_conflict: str) -> ColumnElement[bool]:
    """Of several messages with one key the first counts, or the last where they replace."""
    other = stage.alias("other")
    mine, others = stage.c[SEQUENCE], other.c[SEQUENCE]
    before = others > mine if on_conflict == "replace" else others < mine
    return (
        ~select(other.c.message_key)
        .where(other.c.message_key == stage.c.message_key, before)
        .exists()
    )


def replace(tables: StageTables) -> Update:
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


def remembered(tables: StageTables) -> Select[Any]:
    """A key that was published after the id ``p_id``, and that a finished message still has."""
    queue, memory = tables.queue, tables.queue.dedup_keys
    live = queue.live
    return (
        select(memory.c.message_key, memory.c.message_id)
        .join(live, live.c.message_key == memory.c.message_key)
        .where(_just_published(tables), memory.c.expires_at > queue.dialect.now())
        .limit(1)
    )


def take_back(tables: StageTables) -> Delete:
    """Remove what was published after the id ``p_id`` under keys that finished ones still have."""
    queue, memory = tables.queue, tables.queue.dedup_keys
    still = select(memory.c.message_key).where(memory.c.expires_at > queue.dialect.now())
    live = queue.live
    return delete(live).where(_just_published(tables), live.c.message_key.in_(still))


def _just_published(tables: StageTables) -> ColumnElement[bool]:
    """New, by this batch: nobody else can have a key of its messages now."""
    live = tables.queue.live
    staged = select(tables.stage.c.message_key).where(tables.stage.c.message_key.is_not(None))
    return and_(
        live.c.id > number("p_id"),
        live.c.published_at == number("p_now"),
        live.c.message_key.in_(staged),
    )


def taken(tables: StageTables) -> Select[Any]:
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
