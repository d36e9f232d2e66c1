"""Acts of durable consumers: their registration, their rounds, and what these hold."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, insert, select, update

from queue_over_sql.dialects.requests import RoundRequest, read_rows, rounds_values
from queue_over_sql.dialects.statements import rounds
from queue_over_sql.dialects.statements.parameters import batches, bucket_of, id_values
from queue_over_sql.durations import NEVER, optional_number, stored_number
from queue_over_sql.message import Claim, Outcome
from queue_over_sql.schema.existing import SUCCESS
from queue_over_sql.store.tables import insert_unless_there

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import ColumnElement, Connection, Select

    from queue_over_sql.dialects.base import QueueDialect
    from queue_over_sql.dialects.compiled import StatementCache
    from queue_over_sql.message import MessageRow
    from queue_over_sql.schema.system_tables import SystemTables


_CLAIMING = -1
_DONE = {"p_outcome": str(Outcome.DONE), "p_status": SUCCESS}


@dataclasses.dataclass(frozen=True, slots=True)
class Round:
    """A round of a durable consumer: what one claim may stamp, and the seal on what it did.

    Attributes:
        consumer_round: its number; with the consumer's id it is the stamp of its messages.
        message_limit: at most so many messages.
        up_to_id: none with a larger id; None for all.
        due_by: none that are due later, in microseconds; None for all that are due at the claim.
        claimed_count: how many it stamped; None until it is claimed, and fixed from then on.
    """

    consumer_round: int
    message_limit: int
    up_to_id: int | None = None
    due_by: int | None = None
    claimed_count: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Registration:
    """The row of a consumer.

    Attributes:
        durable: whether it outlives its process.
        table_prefix, queue: the one queue that it reads.
        epoch: grows with each query that takes it over.
        claimed_round: the last round that was opened.
        acked_round: the last round that is done.
        owner: the query that has it, as ``host:pid``.
        started_at: when it was registered; microseconds. Its rounds count from then on.
        heartbeat_at, expires_at: when it was heard of last and until when it is kept; likewise.
        now: the database's clock, likewise.
    """

    durable: bool
    table_prefix: str | None
    queue: str | None
    epoch: int
    claimed_round: int
    acked_round: int
    owner: str | None
    started_at: int
    heartbeat_at: int
    expires_at: int
    now: int

    @property
    def expired(self) -> bool:
        """Whether what it holds is being given back."""
        return self.expires_at <= self.now


def registration(
    connection: Connection, system: SystemTables, dialect: QueueDialect, consumer_id: str
) -> Registration | None:
    """Look at the row of a consumer; None where there is none."""
    return _registration(connection, _registration_of(system, dialect, consumer_id))


def lock(
    connection: Connection,
    system: SystemTables,
    dialect: QueueDialect,
    consumer_id: str,
    *,
    shared: bool = False,
) -> Registration | None:
    """Lock the row of a consumer until the transaction ends; None where there is none.

    Args:
        connection: where.
        system: the shared tables.
        dialect: of the engine.
        consumer_id: of the consumer.
        shared: let others lock it likewise, but not change it.
    """
    dialect.lock_database(connection, system.consumers)
    statement = _registration_of(system, dialect, consumer_id)
    return _registration(connection, statement.with_for_update(read=shared))


def _registration_of(
    system: SystemTables, dialect: QueueDialect, consumer_id: str
) -> Select[tuple[Any, ...]]:
    c = system.consumers.c
    wanted: Sequence[ColumnElement[Any]] = (
        *(c.durable, c.table_prefix, c.queue, c.epoch, c.claimed_round, c.acked_round, c.owner),
        *(c.started_at, c.heartbeat_at, c.expires_at, dialect.now().label("now")),
    )
    return select(*wanted).where(c.consumer_id == consumer_id)


def _registration(
    connection: Connection, statement: Select[tuple[Any, ...]]
) -> Registration | None:
    row = connection.execute(statement).first()
    if row is None:
        return None
    what = "a number of a durable consumer"
    epoch, claimed, acked = (stored_number(what, value or 0) for value in row[3:6])
    times = (stored_number(what, value) for value in row[7:])
    identity, owner = (bool(row[0]), row[1], row[2]), row[6]
    return Registration(*identity, epoch, claimed, acked, owner, *times)


def add(
    connection: Connection,
    system: SystemTables,
    dialect: QueueDialect,
    consumer: Mapping[str, Any],
) -> bool:
    """Write the row of a durable consumer; False where another has done so meanwhile.

    Its first epoch is the time, so that no life of a consumer has one of an earlier life.
    """
    now = dialect.now()
    state = {"durable": 1, "epoch": now, "claimed_round": 0, "acked_round": 0}
    values = {**consumer, **state, "started_at": now}
    return insert_unless_there(connection, dialect, system.consumers, values)


def change(
    connection: Connection, system: SystemTables, consumer_id: str, values: Mapping[str, Any]
) -> None:
    """Change columns of a consumer's row."""
    consumers = system.consumers
    connection.execute(
        update(consumers).where(consumers.c.consumer_id == consumer_id).values(dict(values))
    )


def open_rounds(
    connection: Connection, system: SystemTables, consumer_id: str, opened: Sequence[Round]
) -> None:
    """Write the rows of rounds and move ``claimed_round`` to the last of them."""
    if not opened:
        return
    rows = [{"consumer_id": consumer_id, **dataclasses.asdict(each)} for each in opened]
    connection.execute(insert(system.rounds), rows)
    change(connection, system, consumer_id, {"claimed_round": opened[-1].consumer_round})


def rounds_between(
    connection: Connection, system: SystemTables, consumer_id: str, after: int, up_to: int
) -> list[Round]:
    """The rounds from the one after ``after`` to ``up_to``, in their order."""
    c = system.rounds.c
    rows = connection.execute(
        select(c.consumer_round, c.message_limit, c.up_to_id, c.due_by, c.claimed_count)
        .where(c.consumer_id == consumer_id, c.consumer_round > after, c.consumer_round <= up_to)
        .order_by(c.consumer_round)
    )
    return [
        Round(*(optional_number("a number of a round", value) for value in row))  # type: ignore[arg-type]
        for row in rows
    ]


def forget_rounds(
    connection: Connection, system: SystemTables, consumer_id: str, up_to: int | None = None
) -> None:
    """Remove the rows of rounds, up to one or all."""
    c = system.rounds.c
    bounded = [] if up_to is None else [c.consumer_round <= up_to]
    connection.execute(delete(system.rounds).where(c.consumer_id == consumer_id, *bounded))


def win_seal(
    connection: Connection, system: SystemTables, consumer_id: str, consumer_round: int
) -> bool:
    """Be the one who claims a round; another waits here until this transaction ends."""
    c = system.rounds.c
    statement = (
        update(system.rounds)
        .where(
            c.consumer_id == consumer_id,
            c.consumer_round == consumer_round,
            c.claimed_count.is_(None),
        )
        .values(claimed_count=_CLAIMING)
    )
    return connection.execute(statement).rowcount > 0


def seal(
    connection: Connection, system: SystemTables, consumer_id: str, consumer_round: int, count: int
) -> None:
    """Note how many messages a round has stamped; that is final."""
    c = system.rounds.c
    connection.execute(
        update(system.rounds)
        .where(c.consumer_id == consumer_id, c.consumer_round == consumer_round)
        .values(claimed_count=count)
    )


def claim_round(
    connection: Connection, sql: StatementCache, consumer_id: str, wanted: Round, levels: int
) -> int:
    """Stamp the messages of a round, the most urgent level first; returns how many."""
    dialect, stamp = sql.subject.dialect, Claim(consumer_id, wanted.consumer_round)
    claimed = 0
    for level in range(levels):
        left = wanted.message_limit - claimed
        if left <= 0:
            break
        request = RoundRequest(stamp, left, level, wanted.up_to_id, wanted.due_by)
        claimed += dialect.rounds.claim(connection, sql, request)
    return claimed


def count_eligible(connection: Connection, sql: StatementCache, wanted: Round, levels: int) -> int:
    """Count what a round may claim, up to its limit."""
    found, nobody = 0, Claim("", 0)
    for level in range(levels):
        left = wanted.message_limit - found
        if left <= 0:
            break
        request = RoundRequest(nobody, left, level, wanted.up_to_id, wanted.due_by)
        count = sql.get(rounds.count_eligible).run(connection, request.values()).scalar_one()
        found += int(count)
    return found


def last_id(connection: Connection, sql: StatementCache) -> int:
    """The largest id of a live message; 0 where there is none."""
    return int(sql.get(rounds.last_id).run(connection).scalar() or 0)


def read_round(
    connection: Connection, sql: StatementCache, consumer_id: str, consumer_round: int
) -> list[MessageRow]:
    """Read what a round has stamped and still holds, in no order."""
    values = rounds_values(consumer_id, consumer_round - 1, consumer_round)
    return read_rows(connection, sql, sql.get(rounds.read_round).run(connection, values).all())


def count_rounds(
    connection: Connection, sql: StatementCache, consumer_id: str, after: int, up_to: int
) -> int:
    """Count the messages that rounds hold."""
    values = rounds_values(consumer_id, after, up_to)
    return int(sql.get(rounds.count_rounds).run(connection, values).scalar_one())


def finish_rounds(
    connection: Connection,
    sql: StatementCache,
    span: tuple[str, int, int],
    *,
    keep: bool,
    dedup_us: int | None,
) -> int:
    """End the messages of rounds as done; returns how many.

    Args:
        connection: where.
        sql: the queue's statements.
        span: the consumer, the round before the first of them, and the last of them.
        keep: whether they go to the archive.
        dedup_us: how long their keys stay taken, in microseconds; None where they are free at once.
    """
    values = rounds_values(*span) | _DONE | {"p_error": None, "p_attempted": None}
    keep = keep and not sql.subject.ends_in_place
    archives_at_once = keep and sql.subject.dialect.archives_at_once
    if dedup_us is not None or (keep and not archives_at_once):
        # What is remembered and copied must be what is removed.
        sql.get(rounds.lock_rounds).run(connection, values).all()
    if dedup_us is not None:
        sql.get(rounds.forget_keys).run(connection, values)
        sql.get(rounds.remember_keys).run(connection, values | {"p_dedup": dedup_us})
    dialect: QueueDialect = sql.subject.dialect
    finish = dialect.rounds.archive if keep else dialect.rounds.remove
    return finish(connection, sql, values)


def unclaim_rounds(
    connection: Connection, sql: StatementCache, consumer_id: str, after: int, up_to: int
) -> int:
    """Give the messages of rounds back at their place, uncounted; returns how many."""
    dialect: QueueDialect = sql.subject.dialect
    return dialect.rounds.unclaim(connection, sql, rounds_values(consumer_id, after, up_to))


def held_attempts(
    connection: Connection,
    sql: StatementCache,
    stamp: Claim,
    ids: Sequence[int],
    max_attempts: int,
) -> dict[int, tuple[int, int]]:
    """Lock those messages that a round still holds; attempts made and allowed, by id."""
    fence = {
        "p_consumer": stamp.consumer_id,
        "p_round": stamp.consumer_round,
        "p_max_attempts": max_attempts,
    }
    held: dict[int, tuple[int, int]] = {}
    for batch in batches(ids):
        statement = sql.get(rounds.held_attempts, bucket_of(len(batch)))
        rows: Sequence[Any] = statement.run(connection, id_values(batch) | fence).all()
        held |= {row[0]: (int(row[1]), int(row[2])) for row in rows}
    return held


def expiry(dialect: QueueDialect, timeout_us: int | None) -> Any:
    """When a durable consumer expires that was heard of now; None for one that never does."""
    return NEVER if timeout_us is None else dialect.now() + timeout_us
