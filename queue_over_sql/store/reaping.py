"""Acts of the reaper: find the claims of the dead, prune the archive."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from queue_over_sql.dialects.statements import archive, reaper
from queue_over_sql.dialects.statements.parameters import batches, bucket_of, id_values
from queue_over_sql.message import Claim
from queue_over_sql.store.administration import server_now

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Connection

    from queue_over_sql.dialects.compiled import StatementCache


@dataclasses.dataclass(frozen=True, slots=True)
class DeadClaim:
    """A claim to be taken back."""

    message_id: int
    claim: Claim
    attempts: int
    max_attempts: int
    available_at: int | None

    @property
    def out_of_attempts(self) -> bool:
        """Whether the message has been delivered as often as it may."""
        return self.attempts >= self.max_attempts


def expired_leases(
    connection: Connection, sql: StatementCache, max_attempts: int, limit: int
) -> list[DeadClaim]:
    """Claims whose lease has passed, locked where the engine can skip what others hold."""
    recheck = not sql.subject.dialect.skip_locked
    return _dead_claims(
        connection, sql, reaper.expired_leases, (max_attempts, limit), recheck=recheck
    )


def orphaned_claims(
    connection: Connection, sql: StatementCache, max_attempts: int, limit: int
) -> list[DeadClaim]:
    """Claims of consumers that are expired or gone, locked likewise.

    Looked at twice: a statement reads a row that it locks at its newest version but the consumers
    as they were when it began, so the first look may miss who registered and claimed meanwhile.
    """
    return _dead_claims(
        connection, sql, reaper.orphaned_claims, (max_attempts, limit), recheck=True
    )


def _dead_claims(
    connection: Connection,
    sql: StatementCache,
    builder: Callable[..., Any],
    bounds: tuple[int, int],
    *,
    recheck: bool,
) -> list[DeadClaim]:
    values = {"p_max_attempts": bounds[0], "p_count": bounds[1]}
    rows: Sequence[Any] = sql.get(builder, 0).run(connection, values).all()
    if rows and recheck:
        # Now these alone, under a lock: a lease may have been renewed meanwhile.
        locked: list[Any] = []
        for batch in batches([row[0] for row in rows]):
            again = sql.get(builder, bucket_of(len(batch)))
            locked += again.run(connection, values | id_values(batch)).all()
        rows = locked
    return [DeadClaim(row[0], Claim(row[1], row[2]), row[3], row[4], row[5]) for row in rows]


Place = tuple[int, int]
"""When an archived message finished, in microseconds, and its id: its place in the history."""


def last_to_prune(
    connection: Connection,
    sql: StatementCache,
    outcome: str,
    *,
    ttl: int | None,
    keep: int | None,
) -> Place | None:
    """The place up to which archived messages of an outcome are too old or too many.

    Args:
        connection: where.
        sql: the queue's statements.
        outcome: how they ended.
        ttl: how long they are kept, in microseconds; None for ever.
        keep: how many are kept; None for any number.
    """
    places: list[Place] = []
    if ttl is not None:
        places.append((server_now(connection, sql) - ttl, 0))
    if keep is not None:
        values = {"p_outcome": outcome, "p_keep": keep}
        rows: Sequence[Any] = sql.get(archive.newest_to_go).run(connection, values).all()
        places += [(int(row[0]), int(row[1])) for row in rows]
    return max(places, default=None)


def prune_archive(
    connection: Connection, sql: StatementCache, outcome: str, up_to: Place, limit: int
) -> int:
    """Remove the oldest archived messages of an outcome, up to a place; returns how many."""
    values = {"p_outcome": outcome, "p_at": up_to[0], "p_id_0": up_to[1], "p_count": limit}
    ids = [row[0] for row in sql.get(archive.old_in_archive).run(connection, values)]
    removed = 0
    for batch in batches(ids):
        remove_old = sql.get(archive.remove_from_archive, bucket_of(len(batch)))
        removed += remove_old.run(connection, id_values(batch)).rowcount
    return removed
