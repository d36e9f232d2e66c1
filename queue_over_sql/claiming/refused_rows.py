"""Messages that the database refuses to hand out, as a constraint or a trigger of the user's may.

One such row would keep all others from being claimed.
"""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Select, Update, and_, func, select

from queue_over_sql.claiming.statements import mark_where_eligible
from queue_over_sql.errors import DatabaseRefused, PayloadInvalid, visible
from queue_over_sql.groups.exit_statements import came_back
from queue_over_sql.groups.statements import firsts, group_values
from queue_over_sql.recovery.unreadable_rows import first_eligible
from queue_over_sql.sql.operation import operation
from queue_over_sql.statements.claims import stamp_values
from queue_over_sql.statements.operations import (
    change_by_ids,
    rows_by_ids,
    savepoint,
    write_apart,
)
from queue_over_sql.statements.parameters import among_ids, bucket_of, by_id, update_by_id
from queue_over_sql.statements.requests import Where

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy import Connection

    from queue_over_sql.queues.context import QueueContext
    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.sql.compiled import StatementCache
    from queue_over_sql.statements.requests import ClaimRequest

_log = logging.getLogger(__name__)

# For how long claims pass such a message by, and how long nobody looks if all are refused.
_PASS_SECONDS: Final = 60.0
_REST_SECONDS: Final = 5.0
# How many messages one look tries, and how many refused ones it finds at most.
LOOKS_AT: Final = 500
_MOST_FOUND: Final = 50
# Of how many groups that it met it tries how many messages more.
_MOST_GROUPS, _OF_GROUP = 64, 20
_TRIAL, _PART = "queue_over_sql_trial", "queue_over_sql_part"


class RefusedRows:
    """Finds what makes the claims of one queue fail, and lets them pass it by for a while.

    It is not held, because the database refuses any change of it.
    """

    def __init__(self, context: QueueContext) -> None:
        self._context = context
        # Until when to pass messages by, by id.
        self._until: dict[int, float] = {}
        self._rests_until = -math.inf
        self._last: tuple[set[int], Where | None, Where] | None = None

    def without(self, where: Where | None) -> Where | None:
        """The condition for claims that pass by what was refused."""
        if not self._until:
            return where
        now = time.monotonic()
        self._until = {row_id: until for row_id, until in self._until.items() if until > now}
        ids = set(self._until)
        if not ids:
            return where
        if self._last is None or self._last[:2] != (ids, where):
            others = self._context.tables.live.c.id.not_in(sorted(ids))
            both = others if where is None else and_(where.condition, others)
            # The same object for the same condition, so that it is compiled once.
            self._last = ids, where, Where(both)
        return self._last[2]

    def find(self, error: BaseException, requests: Iterable[ClaimRequest]) -> bool:
        """Whether the error of a claim is a matter of rows that claims now pass by.

        Args:
            error: of the claim.
            requests: a claim of ``LOOKS_AT`` messages for each level.
        """
        context, now = self._context, time.monotonic()
        if not context.refuses_row(error) or now < self._rests_until:
            return False
        for request in requests:
            try:
                refused, accepted = context.run(try_claim.of(context.sql, request))
            except (DatabaseRefused, PayloadInvalid):
                continue
            if refused and accepted:
                self._pass_by(refused)
                return True
        self._rests_until = now + _REST_SECONDS
        return False

    def _pass_by(self, refused: dict[int, str]) -> None:
        until = time.monotonic() + _PASS_SECONDS
        self._until = {**self._until, **dict.fromkeys(refused, until)}
        for row_id, why in refused.items():
            _log.error(
                "Message %d of queue %s: the database refuses to let it be claimed: %s. Claims "
                "pass it by and try again in a minute. Mend its row, or remove it.",
                row_id,
                self._context.name,
                visible(why, keep=""),
                extra={"queue": self._context.name, "message_id": row_id},
            )


@operation(atomic=True)
def try_claim(
    connection: Connection, sql: StatementCache, request: ClaimRequest
) -> tuple[dict[int, str], int]:
    """Claim one message after another and undo all; the refused ones, and how many were not.

    It leaves out what others have locked.
    """
    sql.subject.dialect.sessions.lock_for_writing(connection, sql)
    values = request.stamp() | request.wanted()
    first = sql.get(first_eligible).run(connection, values).all()
    met = [row[0] for row in first]
    if sql.subject.grouped:
        met = sorted({*met, *_behind(connection, sql, met)})
    locked = rows_by_ids(connection, sql, lock_unclaimed, met)
    ids = sorted(row[0] for row in locked)
    refused: dict[int, str] = {}

    def claim(some: Sequence[int]) -> None:
        change_by_ids(connection, sql, mark_any, some, values)

    with savepoint(connection, _TRIAL) as undo:
        accepted = write_apart(
            connection, sql, _PART, ids, claim, refused=refused, most=_MOST_FOUND
        )
        undo()
    return refused, accepted


def _behind(connection: Connection, sql: StatementCache, ids: Sequence[int]) -> list[int]:
    """The first messages of the groups of these: claims get them with those that they met."""
    met = rows_by_ids(connection, sql, came_back, ids)
    names = list(dict.fromkeys(row[1] for row in met))[:_MOST_GROUPS]
    if not names:
        return []
    size = bucket_of(len(names))
    values = group_values(names, size) | {"p_first": _OF_GROUP}
    return [row[1] for row in sql.get(firsts, size).run(connection, values)]


def lock_unclaimed(tables: QueueTables, size: int) -> Select[Any]:
    """Lock the messages of these ids that nobody has claimed or locked; returns their ids."""
    live = tables.live
    found = select(live.c.id).where(among_ids(live, size), live.c.consumer_id.is_(None))
    return by_id(tables, found.with_for_update(skip_locked=tables.features.skip_locked), live)


def mark_any(tables: QueueTables, size: int) -> Update:
    """Stamp messages, without a condition of the user's; those that are parked, too."""
    if not tables.grouped:
        return mark_where_eligible(tables, size, None)
    live, stamp = tables.live, stamp_values(tables, tables.expressions.now())
    # In this order, because MySQL assigns from left to right.
    due = (
        (live.c.available_at, func.coalesce(live.c.parked_at, live.c.available_at)),
        (live.c.parked_at, None),
    )
    free = among_ids(live, size), live.c.consumer_id.is_(None)
    return update_by_id(tables).where(*free).ordered_values(*due, *stamp.items())
