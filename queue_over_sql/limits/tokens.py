"""Tokens: so fast may messages of a whole queue start, over all processes.

The rate is a token bucket, kept with its one number in slot 0 of the queue's limits. A claim locks
that row, claims at most as many messages as it has tokens, and spends what it used, in its own
transaction. Since it spends after its claim, and by the clock of then, no more than the burst and
the rate start in any time, by the instants at which the messages were claimed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy.exc import DBAPIError

from queue_over_sql.limits import statements
from queue_over_sql.sql.errors import ErrorKind
from queue_over_sql.sql.operation import operation
from queue_over_sql.values.rates import Bucket, Rate

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from queue_over_sql.sql.compiled import Builder, StatementCache


def read(connection: Connection, sql: StatementCache) -> Bucket | None:
    """What is left now, without a lock; None: the queue has no rate any more."""
    return _read(connection, sql, statements.bucket)


def look(connection: Connection, sql: StatementCache) -> Bucket | None:
    """As ``read``; if the clock was set back, it writes that the bucket is empty.

    Else it would stay empty until the clock shows that time again. Call it outside of transactions,
    or first in one, so that what it reads of the clock is no older than the bucket.
    """
    bucket = read(connection, sql)
    if bucket is not None and bucket.is_stale:
        values = {"p_before": bucket.tat, "p_tat": bucket.spent(0).tat}
        sql.get(statements.empty_bucket).run(connection, values)
    return bucket


def lock(connection: Connection, sql: StatementCache, *, briefly: bool = False) -> Bucket | None:
    """As ``read``, locked until the transaction ends.

    Others hold it for a claim, but a process that is stopped in one for longer. So ``briefly``
    limits this wait, and those of the later statements of the transaction.
    """
    lock_it = statements.lock_bucket_briefly if briefly else statements.lock_bucket
    bucket = _read(connection, sql, lock_it)
    if bucket is not None and not bucket.tokens:
        # It may have read the clock before it waited for the lock.
        bucket = _read(connection, sql, statements.lock_bucket)
    return bucket


def spend(connection: Connection, sql: StatementCache, count: int) -> None:
    """Take tokens of a bucket that this transaction has locked."""
    sql.get(statements.spend).run(connection, {"p_count": count})


def spend_some(connection: Connection, sql: StatementCache, count: int) -> tuple[int, int]:
    """Take up to so many tokens, in a transaction that may be a caller's.

    Returns:
        How many, and in how many microseconds each comes back.
    """
    bucket = lock(connection, sql)
    if bucket is None:
        return 0, 0
    count = min(count, bucket.tokens)
    if count:
        spend(connection, sql, count)
    return count, bucket.rate.interval


def give_back(connection: Connection, sql: StatementCache, count: int, interval: int) -> None:
    """Give back tokens that ``spend_some`` took and nobody used.

    If the rate has changed since, no more than was taken comes back.
    """
    sql.get(statements.give_back).run(connection, {"p_count": count, "p_interval": interval})


def set_rate(connection: Connection, sql: StatementCache, text: str | None) -> None:
    """Give a queue its rate; None: it has none. In a transaction."""
    if text is None:
        remove = sql.get(statements.remove_slots, 1)
        remove.run(connection, statements.slot_values([0], 1))
        return
    rate = Rate.of(text)
    values = {"p_interval": rate.interval, "p_burst": rate.burst}
    if _read(connection, sql, statements.lock_bucket) is None:
        sql.get(statements.add_bucket).run(connection, values)
    else:
        full = {"p_full": rate.interval * rate.burst}
        sql.get(statements.change_bucket).run(connection, values | full)


@operation(atomic=True)
def restore_rate(connection: Connection, sql: StatementCache, text: str | None) -> bool:
    """Create the row of a rate that somebody has deleted; returns whether it did."""
    if text is None or read(connection, sql) is not None:
        return False
    try:
        set_rate(connection, sql, text)
    except DBAPIError as error:
        if sql.subject.dialect.errors.classify(error) is not ErrorKind.DUPLICATE:
            raise
        # Another process is doing the same.
        return False
    return True


def _read(connection: Connection, sql: StatementCache, builder: Builder) -> Bucket | None:
    row = sql.get(builder).run(connection).first()
    if row is None:
        return None
    interval, burst, tat, now = row
    return Bucket(Rate(interval, burst), now, tat)
