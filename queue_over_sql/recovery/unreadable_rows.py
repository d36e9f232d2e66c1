"""Messages that the database cannot read, such as after damage to its files: they are held.

One such row would keep the others from being claimed and restored.
"""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy import Select, Update, exists, not_, or_, select

from queue_over_sql.consumers.registrations import lives
from queue_over_sql.errors import DatabaseRefused, PayloadInvalid, visible
from queue_over_sql.groups.exits import leaving
from queue_over_sql.observer import ReaperReport
from queue_over_sql.schema.queue_tables import UNREAD_COLUMNS
from queue_over_sql.selection.unreadable import can_be_unreadable
from queue_over_sql.settling.operations import LONGEST_ERROR
from queue_over_sql.settling.statements import held_as_refused
from queue_over_sql.sql.operation import operation
from queue_over_sql.statements.claims import eligible, oldest_first
from queue_over_sql.statements.operations import rows_by_ids
from queue_over_sql.statements.parameters import among_ids, by_id, id_values, number, update_by_id
from queue_over_sql.statements.requests import wanted
from queue_over_sql.values.reasons import UNREADABLE
from queue_over_sql.values.texts import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqlalchemy import ColumnElement, Connection

    from queue_over_sql.queues.context import QueueContext
    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.sql.compiled import StatementCache

T = TypeVar("T")

_log = logging.getLogger(__name__)

# Of how many rows the contents are read at once, and how many a claim looks at.
_READ: Final = 100
_FIRST: Final = 500
_TURN_SECONDS: Final = 0.25
_BEFORE_ALL: Final = -(2**63)
# The id of no message.
_NONE: Final = -1
# How long nobody looks again after nothing was found: the errors have another cause.
_REST_SECONDS: Final = 60.0
# What stands for a payload that is lost, where the row cannot be changed without it.
_LOST: Final = {"json": "null", "bytes": b""}


class UnreadableRows:
    """Finds messages of one queue that the database cannot read, and holds them."""

    def __init__(self, context: QueueContext) -> None:
        self._context = context
        # Up to which id the reaper has looked; None: there is no reason to look.
        self._after: int | None = None
        # Whether that has found any; and until when nobody looks.
        self._found = False
        self._rests_until = -math.inf

    def note(self, error: BaseException) -> None:
        """Let the reaper look, if an unreadable row can be behind this error."""
        if self._after is None and self._may_look(error):
            self._after, self._found = _BEFORE_ALL, False

    def hold_some(self, error: BaseException) -> int:
        """Hold what may be behind the error of a claim; returns how many messages.

        It looks at what the claim would get first. If nothing is found there, it looks at all rows
        for one turn, and the reaper goes on.
        """
        if not (self._may_look(error) and self._is_of_rows()):
            return 0
        held = 0
        for level in range(self._context.settings.priorities):
            held += self._hold_of(first_eligible, wanted(level, _FIRST))[0]
        if held:
            return held
        self.note(error)
        held = sum(report.repaired for report in self.hold_all())
        if not held:
            self._rest()
        return held

    def hold_all(self) -> Iterator[ReaperReport]:
        """Look through the rows, if there is a reason, some in each turn, and hold what is found.

        Where claims of the dead cannot be restored, it ends these claims.
        """
        began = time.monotonic()
        if self._after == _BEFORE_ALL and not self._is_of_rows():
            return
        while self._after is not None and time.monotonic() - began < _TURN_SECONDS:
            start = {"p_after": self._after, "p_count": _READ}
            held, ids = self._hold_of(next_rows, start)
            self._found |= held > 0
            self._after = ids[-1] if len(ids) == _READ else None
            if self._after is None and not self._found:
                self._rest()
            yield ReaperReport(repaired=held)

    def _may_look(self, error: BaseException) -> bool:
        return can_be_unreadable(error) and time.monotonic() >= self._rests_until

    def _is_of_rows(self) -> bool:
        """Whether no row can be read without an error, so that some row may be behind one."""
        if self._why_not_of([_NONE]) is None:
            return True
        # Somebody has renamed a column, for example.
        self._after = None
        self._rest()
        return False

    def _rest(self) -> None:
        self._rests_until = time.monotonic() + _REST_SECONDS

    def _hold_of(
        self, builder: Callable[..., Any], values: dict[str, Any]
    ) -> tuple[int, Sequence[int]]:
        """Hold the unreadable ones of some rows; returns how many, and the ids of the rows.

        What the database refuses even so must not keep the reaper from its other tasks.
        """
        ids: Sequence[int] = ()
        try:
            ids = self._ids(builder, values)
            return self._hold(ids), ids
        except (DatabaseRefused, PayloadInvalid, UnicodeError) as error:
            if not can_be_unreadable(error):
                raise
            _log.warning(
                "Queue %s: the database does not let all unreadable messages be found and held. "
                "Check the database's files: %s",
                self._context.name,
                visible(str(error), keep=""),
                extra={"queue": self._context.name},
            )
            return 0, ids

    def _ids(self, builder: Callable[..., Any], values: dict[str, Any]) -> list[int]:
        sql = self._context.sql
        found = self._context.run(lambda c: sql.get(builder).run(c, values).all())
        return [row[0] for row in found]

    def _hold(self, ids: Sequence[int]) -> int:
        return sum(self._hold_one(row_id, why) for row_id, why in self._unreadable(ids).items())

    def _unreadable(self, ids: Sequence[int]) -> dict[int, str]:
        """Which of the rows cannot be read, and why."""
        why = self._why_not_of(ids) if ids else None
        if why is None:
            return {}
        if len(ids) == 1:
            # It is no matter of the row, if its id cannot be read either.
            self._context.run(lambda c: rows_by_ids(c, self._context.sql, only_ids, ids))
            return {ids[0]: why}
        middle = len(ids) // 2
        return self._unreadable(ids[:middle]) | self._unreadable(ids[middle:])

    def _why_not_of(self, ids: Sequence[int]) -> str | None:
        sql = self._context.sql
        return self._why_not(lambda c: rows_by_ids(c, sql, contents, ids))

    def _why_not(self, read: Callable[[Connection], object]) -> str | None:
        try:
            self._context.run(read)
        except Exception as error:
            if not can_be_unreadable(error):
                raise
            cause = error.__cause__ or error
            return " ".join(str(getattr(cause, "orig", cause)).split())
        return None

    def _hold_one(self, row_id: int, why: str) -> bool:
        context, lost = self._context, list[str]()
        hold = hold_unreadable.of(context.sql, row_id, _reason(why, lost), {})
        try:
            held = context.run(hold)
        except DatabaseRefused:
            # Some engines copy the whole row when they change it.
            lost = self._lost_columns(row_id)
            if not lost:
                raise
            values: dict[str, Any] = dict.fromkeys(lost)
            if "payload" in lost:
                values["payload"] = _LOST.get(context.settings.payload, "")
            held = context.run(hold_unreadable.of(context.sql, row_id, _reason(why, lost), values))
        if held:
            _log.error(
                "Message %d of queue %s is held. %s. Check the database's files, and restore them "
                "from a backup. Then delete or unhold it.",
                row_id,
                context.name,
                visible(_reason(why, lost), keep=""),
                extra={"queue": context.name, "message_id": row_id},
            )
        return held

    def _lost_columns(self, row_id: int) -> list[str]:
        live = self._context.tables.live

        def read(column: ColumnElement[Any]) -> Callable[[Connection], object]:
            return lambda c: c.execute(select(column).where(live.c.id == row_id)).all()

        names = ("payload", "headers", "last_error", *UNREAD_COLUMNS)
        there = [name for name in names if name in live.c]
        return [name for name in there if self._why_not(read(live.c[name])) is not None]


def _reason(why: str, lost: Sequence[str]) -> str:
    left = f" (lost: {', '.join(lost)})" if lost else ""
    text = f"{UNREADABLE}{left}: {why}"[:LONGEST_ERROR]
    return printable(text) or text


def first_eligible(tables: QueueTables) -> Select[Any]:
    """The ids that a claim of one level would get first."""
    first = select(tables.live.c.id).where(eligible(tables, None))
    return first.order_by(*oldest_first(tables)).limit(number("p_count"))


def next_rows(tables: QueueTables) -> Select[Any]:
    """The next ids of messages that are not held."""
    live = tables.live
    there = (live.c.id > number("p_after"), *tables.live_only(), not_(tables.is_held()))
    return select(live.c.id).where(*there).order_by(live.c.id).limit(number("p_count"))


def contents(tables: QueueTables, size: int) -> Select[Any]:
    """All that is stored of messages."""
    live = tables.live
    further = [live.c[name] for name in UNREAD_COLUMNS if name in live.c]
    read = select(*tables.message_columns(live), *further).where(among_ids(live, size))
    return by_id(tables, read, live)


def only_ids(tables: QueueTables, size: int) -> Select[Any]:
    """The ids alone."""
    return by_id(tables, select(tables.live.c.id).where(among_ids(tables.live, size)), tables.live)


@operation(atomic=True)
def hold_unreadable(
    connection: Connection, sql: StatementCache, row_id: int, why: str, values: dict[str, Any]
) -> bool:
    """Hold a message that nobody, or a dead consumer, has claimed; ``values`` replace lost ones."""
    sql.subject.dialect.sessions.lock_for_writing(connection, sql)
    tables, bound = sql.subject, id_values([row_id]) | {"p_error": why}
    # Who has claimed it registered before that, so the next statement sees both.
    connection.execute(only_ids(tables, 1).with_for_update(), id_values([row_id]))
    with leaving(connection, sql, [row_id]):
        return connection.execute(hold_unclaimed(tables).values(values), bound).rowcount > 0


def hold_unclaimed(tables: QueueTables) -> Update:
    """Hold a message, unless a consumer that lives has a lease on it."""
    live, consumers = tables.live, tables.system.consumers
    alive = exists().where(consumers.c.consumer_id == live.c.consumer_id, lives(consumers))
    free = or_(
        live.c.consumer_id.is_(None),
        live.c.lease_expires_at <= tables.expressions.now(),
        not_(alive),
    )
    return update_by_id(tables).where(among_ids(live, 1), free).values(held_as_refused(tables))
