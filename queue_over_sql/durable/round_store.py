"""Operations of durable consumers: their registrations, their rounds, and the messages of these."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, insert, select, update

from queue_over_sql.consumers.registrations import lives
from queue_over_sql.durable import statements as rounds
from queue_over_sql.durable.requests import RoundRequest, rounds_values
from queue_over_sql.durable.rounds import Rounds
from queue_over_sql.groups import exits
from queue_over_sql.limits.bounds import Reserved, reserve, use
from queue_over_sql.message import Claim
from queue_over_sql.queues.tables import insert_unless_there
from queue_over_sql.schema.existing import SUCCESS
from queue_over_sql.settling.strategy import Archiving
from queue_over_sql.statements.parameters import batches, bucket_of, id_values
from queue_over_sql.statements.requests import read_rows
from queue_over_sql.values.durations import NEVER, optional_number, stored_number
from queue_over_sql.values.states import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy import Connection, Select

    from queue_over_sql.durable.group_rounds import GroupRounds
    from queue_over_sql.message import MessageRow
    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.sql.compiled import StatementCache
    from queue_over_sql.sql.dialect import QueueDialect
    from queue_over_sql.sql.expressions import Expressions


_CLAIMING = -1
_DONE = {"p_outcome": str(Outcome.DONE), "p_status": SUCCESS}


@dataclasses.dataclass(frozen=True, slots=True)
class Round:
    """A round: the limits of one claim, and its result.

    The consumer's id and the round's number are the stamp of its messages. None as a limit means:
    no limit, or due at the time of the claim. ``claimed_count`` is None until the round is claimed,
    and never changes after that. ``due_by`` is in microseconds.
    """

    consumer_round: int
    message_limit: int
    up_to_id: int | None = None
    due_by: int | None = None
    claimed_count: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Registration:
    """The row of a consumer; times are microseconds by the database's clock.

    A durable one reads one queue. Each takeover increases the epoch. The rounds between
    ``acked_round`` and ``claimed_round`` are outstanding; they count from ``started_at``.
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
    now: int
    lives: bool

    @property
    def expired(self) -> bool:
        """Whether it was declared dead, so that its messages are being given back."""
        return not self.lives


def registration(
    connection: Connection, tables: QueueTables, consumer_id: str
) -> Registration | None:
    """Read the row of a consumer; None if there is none."""
    return _registration(connection, _registration_of(tables, consumer_id))


def lock(
    connection: Connection, tables: QueueTables, consumer_id: str, *, shared: bool = False
) -> Registration | None:
    """Lock the row of a consumer until the transaction ends; None if there is none.

    With ``shared``, others may lock it in the same way, but not change it.
    """
    tables.dialect.sessions.lock_database(connection, tables.system.consumers)
    statement = _registration_of(tables, consumer_id)
    return _registration(connection, statement.with_for_update(read=shared))


def _registration_of(tables: QueueTables, consumer_id: str) -> Select[tuple[Any, ...]]:
    c = tables.system.consumers.c
    return select(
        *(c.durable, c.table_prefix, c.queue, c.epoch, c.claimed_round, c.acked_round, c.owner),
        *(c.started_at, c.heartbeat_at, tables.expressions.heartbeat_now().label("now")),
        lives(tables.system.consumers),
    ).where(c.consumer_id == consumer_id)


def _registration(
    connection: Connection, statement: Select[tuple[Any, ...]]
) -> Registration | None:
    row = connection.execute(statement).first()
    if row is None:
        return None
    what = "a number of a durable consumer"
    epoch, claimed, acked = (stored_number(what, value or 0) for value in row[3:6])
    started_at, heartbeat_at, now = (stored_number(what, value) for value in row[7:10])
    place, times = (bool(row[0]), row[1], row[2]), (started_at, heartbeat_at, now)
    return Registration(*place, epoch, claimed, acked, row[6], *times, bool(row[10]))


def add(connection: Connection, tables: QueueTables, consumer: Mapping[str, Any]) -> bool:
    """Write the row of a durable consumer; False if another process did so first.

    Its first epoch is the time, so a later registration never has an earlier epoch.
    """
    now = tables.expressions.now()
    state = {"durable": 1, "epoch": now, "claimed_round": 0, "acked_round": 0}
    place = {"table_prefix": tables.prefix, "queue": tables.queue}
    values = {**consumer, **place, **state, "started_at": now}
    return insert_unless_there(connection, tables.dialect, tables.system.consumers, values)


def change(
    connection: Connection, tables: QueueTables, consumer_id: str, values: Mapping[str, Any]
) -> None:
    """Change columns of a consumer's row."""
    consumers = tables.system.consumers
    connection.execute(
        update(consumers).where(consumers.c.consumer_id == consumer_id).values(dict(values))
    )


def open_rounds(
    connection: Connection, tables: QueueTables, consumer_id: str, opened: Sequence[Round]
) -> None:
    """Write the rows of rounds, and set ``claimed_round`` to the last of them."""
    if not opened:
        return
    rows = [{"consumer_id": consumer_id, **dataclasses.asdict(each)} for each in opened]
    connection.execute(insert(tables.system.rounds), rows)
    change(connection, tables, consumer_id, {"claimed_round": opened[-1].consumer_round})


def rounds_between(
    connection: Connection, tables: QueueTables, consumer_id: str, after: int, up_to: int
) -> list[Round]:
    """The rounds after ``after`` up to ``up_to``, in order."""
    c = tables.system.rounds.c
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
    connection: Connection, tables: QueueTables, consumer_id: str, up_to: int | None = None
) -> None:
    """Delete the rows of rounds, up to one, or all of them."""
    rounds_table = tables.system.rounds
    c = rounds_table.c
    bounded = [] if up_to is None else [c.consumer_round <= up_to]
    connection.execute(delete(rounds_table).where(c.consumer_id == consumer_id, *bounded))


def win_seal(
    connection: Connection, tables: QueueTables, consumer_id: str, consumer_round: int
) -> bool:
    """Become the claimer of a round; others wait here until this transaction ends."""
    c = tables.system.rounds.c
    statement = (
        update(tables.system.rounds)
        .where(
            c.consumer_id == consumer_id,
            c.consumer_round == consumer_round,
            c.claimed_count.is_(None),
        )
        .values(claimed_count=_CLAIMING)
    )
    return connection.execute(statement).rowcount > 0


def seal(
    connection: Connection, tables: QueueTables, consumer_id: str, consumer_round: int, count: int
) -> None:
    """Store how many messages a round has claimed; this is final."""
    c = tables.system.rounds.c
    connection.execute(
        update(tables.system.rounds)
        .where(c.consumer_id == consumer_id, c.consumer_round == consumer_round)
        .values(claimed_count=count)
    )


def claim_round(
    connection: Connection,
    sql: StatementCache,
    consumer_id: str,
    wanted: Round,
    priorities: int,
    *,
    groups: GroupRounds | None = None,
) -> int:
    """Claim the messages of a round, the most urgent first; returns how many.

    ``groups`` is for a queue with groups.
    """
    dialect, stamp = sql.subject.dialect, Claim(consumer_id, wanted.consumer_round)
    claim = dialect.strategy(Rounds).claim if groups is None else groups.claim
    reserved = Reserved(0)
    if sql.subject.bounded:
        reserved = reserve(connection, sql, wanted.message_limit)
        wanted = dataclasses.replace(wanted, message_limit=reserved.most)
    count = _by_priority(wanted, stamp, priorities, lambda request: claim(connection, sql, request))
    if reserved.most and count:
        rows = read_round(connection, sql, consumer_id, wanted.consumer_round)
        use(connection, sql, reserved, [row.id for row in rows], stamp)
    return count


def count_eligible(
    connection: Connection, sql: StatementCache, wanted: Round, priorities: int
) -> int:
    """Count the messages that a round may claim, up to its limit."""
    statement = sql.get(rounds.count_eligible)
    return _by_priority(
        wanted,
        Claim("", 0),
        priorities,
        lambda request: int(statement.run(connection, request.values()).scalar_one()),
    )


def _by_priority(
    wanted: Round, stamp: Claim, priorities: int, do: Callable[[RoundRequest], int]
) -> int:
    found = 0
    for priority in range(priorities):
        left = wanted.message_limit - found
        if left <= 0:
            break
        found += do(RoundRequest(stamp, left, priority, wanted.up_to_id, wanted.due_by))
    return found


def last_id(connection: Connection, sql: StatementCache) -> int:
    """The largest id of a live message; 0 if there is none."""
    return int(sql.get(rounds.last_id).run(connection).scalar() or 0)


def read_round(
    connection: Connection, sql: StatementCache, consumer_id: str, consumer_round: int
) -> list[MessageRow]:
    """Read the messages that a round has claimed and still holds, in no order."""
    values = rounds_values(consumer_id, consumer_round - 1, consumer_round)
    return read_rows(connection, sql, sql.get(rounds.read_round).run(connection, values).all())


def expired_of_round(
    connection: Connection, sql: StatementCache, consumer_id: str, consumer_round: int
) -> dict[int, list[int]]:
    """The messages of a round that had expired when it was claimed, by how long they waited."""
    values = rounds_values(consumer_id, consumer_round - 1, consumer_round)
    found: dict[int, list[int]] = {}
    for message_id, waited in sql.get(rounds.expired_of_round).run(connection, values):
        found.setdefault(waited, []).append(message_id)
    return found


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

    ``span`` is the consumer, the round before the first one, and the last round. With ``keep`` they
    are archived. Keys stay taken for ``dedup_us`` microseconds; None: not at all.
    """
    values = rounds_values(*span) | _DONE | {"p_error": None, "p_attempted": None}
    dialect: QueueDialect = sql.subject.dialect
    keep, waiting = sql.subject.archives(keep=keep), list[str]()
    grouped = sql.subject.grouped
    if grouped or dedup_us is not None or (keep and not dialect.strategy(Archiving).at_once):
        # The remembered and copied messages must be exactly the removed ones.
        sql.get(rounds.lock_rounds).run(connection, values).all()
    if dedup_us is not None:
        sql.get(rounds.forget_keys).run(connection, values)
        sql.get(rounds.remember_keys).run(connection, values | {"p_dedup": dedup_us})
    ends = dialect.strategy(Rounds)
    finish = ends.archive if keep else ends.remove
    if grouped:
        waiting = [row[0] for row in sql.get(rounds.groups_behind_rounds).run(connection, values)]
    finished = finish(connection, sql, values)
    exits.wake(connection, sql, waiting)
    exits.note_capacity(sql)
    return finished


def held_in_rounds(
    connection: Connection, sql: StatementCache, span: tuple[str, int, int]
) -> dict[int, list[int]]:
    """Lock the messages of rounds, which are those of ``finish_rounds``; their ids by round."""
    rows: Sequence[Any] = sql.get(rounds.lock_rounds).run(connection, rounds_values(*span)).all()
    found: dict[int, list[int]] = {}
    for row in sorted(rows, key=lambda row: int(row[0])):
        found.setdefault(int(row[2]), []).append(int(row[0]))
    return found


def unclaim_rounds(
    connection: Connection, sql: StatementCache, consumer_id: str, after: int, up_to: int
) -> int:
    """Give the messages of rounds back at their places, uncounted; returns how many."""
    dialect: QueueDialect = sql.subject.dialect
    exits.note_capacity(sql)
    return dialect.strategy(Rounds).unclaim(
        connection, sql, rounds_values(consumer_id, after, up_to)
    )


def held_attempts(
    connection: Connection,
    sql: StatementCache,
    stamp: Claim,
    ids: Sequence[int],
    max_attempts: int,
) -> dict[int, tuple[int, int, int | None]]:
    """Lock the messages that a round still holds; by id: attempts made, allowed, claimed at."""
    fence = {
        "p_consumer": stamp.consumer_id,
        "p_round": stamp.consumer_round,
        "p_max_attempts": max_attempts,
    }
    held: dict[int, tuple[int, int, int | None]] = {}
    for batch in batches(ids):
        statement = sql.get(rounds.held_attempts, bucket_of(len(batch)))
        rows: Sequence[Any] = statement.run(connection, id_values(batch) | fence).all()
        held |= {row[0]: (int(row[1]), int(row[2]), row[3]) for row in rows}
    return held


def expiry(expressions: Expressions, timeout_us: int | None) -> Any:
    """When a durable consumer with a heartbeat now expires; never without a timeout."""
    return NEVER if timeout_us is None else expressions.heartbeat_now() + timeout_us
