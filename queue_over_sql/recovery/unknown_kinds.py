"""Messages whose kind no living consumer knows become dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, Select, exists, literal, or_, select

from queue_over_sql.consumers.registrations import lives
from queue_over_sql.queues.kinds import ANY_KIND
from queue_over_sql.queues.registry import may_claim
from queue_over_sql.settling.operations import end_each
from queue_over_sql.sql.operation import operation
from queue_over_sql.statements.parameters import number
from queue_over_sql.statements.requests import ANY_EDITS, Disposition, read_rows
from queue_over_sql.values.durations import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import ColumnElement, Connection

    from queue_over_sql.message import MessageRow
    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.sql.compiled import StatementCache


def unknown(tables: QueueTables) -> Select[Any]:
    """Lock the next long overdue messages of one level that no living consumer can read.

    It finds none while the queue is paused. As in ``claim.pick_rows``, an index may give the order.
    """
    live = tables.live
    statement = (
        select(*tables.message_columns(live))
        .where(
            live.c.consumer_id.is_(None),
            live.c.priority == number("p_priority"),
            live.c.available_at <= tables.expressions.now() - number("p_due_for"),
            live.c.kind.is_not(None),
            live.c.kind.not_in(tables.known_kinds),
            ~_readable_by_living(tables),
            may_claim(tables),
        )
        .limit(number("p_count"))
        .with_for_update(of=live, skip_locked=tables.features.skip_locked)
    )
    hint = tables.expressions.claim_index_hint(tables.base_name)
    if hint is None:
        return statement.order_by(live.c.available_at, live.c.id)
    return statement.with_hint(live, hint)


def _readable_by_living(tables: QueueTables) -> ColumnElement[bool]:
    kinds, consumers = tables.system.kinds, tables.system.consumers
    return exists().where(
        kinds.c.consumer_id == consumers.c.consumer_id,
        lives(consumers),
        # Nobody knows whether clients of the consumer of HTTP are still there.
        consumers.c.expires_at != literal(NEVER, BigInteger()),
        kinds.c.table_prefix == tables.prefix,
        kinds.c.queue == tables.queue,
        or_(kinds.c.kind == tables.live.c.kind, kinds.c.kind == ANY_KIND),
    )


@operation(atomic=True)
def dead_letter_unknown(
    connection: Connection,
    sql: StatementCache,
    *,
    level: int,
    due_for: int,
    limit: int,
    disposition: Callable[[MessageRow], Disposition],
) -> tuple[dict[int, Disposition], dict[int, str]]:
    """End messages of one level that were due for ``due_for`` and that no consumer can read.

    Returns what ``end_each`` does.
    """
    sql.subject.dialect.sessions.lock_for_writing(connection, sql)
    wanted = {"p_priority": level, "p_due_for": due_for, "p_count": limit, "p_edits": ANY_EDITS}
    found: Sequence[Any] = sql.get(unknown).run(connection, wanted).all()
    return end_each(connection, sql, read_rows(connection, sql, found), disposition)
