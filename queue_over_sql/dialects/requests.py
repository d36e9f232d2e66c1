"""What the store asks of a dialect: new rows, claims, settlements; and the rows it reads."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import ColumnElement

from queue_over_sql.durations import ALWAYS, NEVER
from queue_over_sql.message import Claim, MessageRow, Outcome, Unreadable
from queue_over_sql.schema.conditions import rebased
from queue_over_sql.schema.existing import ERROR, SUCCESS
from queue_over_sql.schema.queue_tables import ARCHIVE_COLUMNS, MESSAGE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection, Table

    from queue_over_sql.dialects.compiled import StatementCache
    from queue_over_sql.schema.queue_tables import QueueTables

    Converters = Sequence[Callable[[Any], Any] | None]


_LARGEST: Final = 2**63 - 1

ANY_EDITS: Final = -1
"""The bind value of a claim that need not know of edits, because it looks at all messages."""


class Where:
    """A user's condition on the messages: equal to another only if it is the same object.

    The expressions themselves cannot be compared: ``==`` between them builds SQL.
    """

    __slots__ = ("condition",)

    def __init__(self, condition: ColumnElement[bool]) -> None:
        self.condition = condition

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Where) and other.condition is self.condition

    def __hash__(self) -> int:
        return id(self.condition)

    def on(self, table: Table) -> ColumnElement[bool]:
        """The condition, about this object of the table."""
        return rebased(self.condition, table)


@dataclasses.dataclass(frozen=True, slots=True)
class ClaimRequest:
    """What one claim asks of the database; durations and instants in microseconds.

    Attributes:
        count: at most so many messages.
        priority: of this level.
        low: that are due from here on; 0 for a full look.
        lease_us: instead of the message's and the queue's; None for those.
        edits: how many edits by hand the marks know of.
        guarded: claim nothing if there were others since.
    """

    consumer_id: str
    consumer_round: int
    count: int
    priority: int
    low: int
    lease_us: int | None
    queue_lease_us: int
    edits: int
    guarded: bool
    where: Where | None = None

    @property
    def claim(self) -> Claim:
        """The stamp alone."""
        return Claim(self.consumer_id, self.consumer_round)

    def of(self, count: int) -> ClaimRequest:
        """The same of at most so many messages."""
        return self if count == self.count else dataclasses.replace(self, count=count)

    def stamp(self) -> dict[str, Any]:
        """The bind parameters of the stamp."""
        return {
            "p_consumer": self.consumer_id,
            "p_round": self.consumer_round,
            "p_lease": self.lease_us,
            "p_queue_lease": self.queue_lease_us,
        }

    def wanted(self) -> dict[str, Any]:
        """The bind parameters of the eligibility predicate and the limit."""
        edits = self.edits if self.guarded else ANY_EDITS
        return wanted(self.priority, self.count, self.low, edits)


def wanted(priority: int, count: int, low: int = 0, edits: int = ANY_EDITS) -> dict[str, Any]:
    """The bind parameters of what may be claimed of one level, and of the limit.

    Args:
        priority: the level.
        count: at most so many messages.
        low: that are due from here on, in microseconds; 0 for a full look.
        edits: claim nothing if there were other edits by hand than so many.
    """
    return {"p_priority": priority, "p_low": low or ALWAYS, "p_edits": edits, "p_count": count}


@dataclasses.dataclass(frozen=True, slots=True)
class NewRows:
    """Rows to be inserted, by column: what is the same in all of them is sent once."""

    count: int
    same: Mapping[str, Any]
    differing: Mapping[str, Iterable[Any]]

    def values(self, parameters: Mapping[str, str]) -> dict[str, Any]:
        """The bind parameters of an INSERT of these rows; ``parameters`` are names by column."""
        values = {parameters[name]: value for name, value in self.same.items()}
        for name, column in self.differing.items():
            values.update(zip(_numbered(parameters[name], self.count), column, strict=True))
        return values

    def filled(self) -> tuple[str, ...]:
        """The columns that are not NULL in all rows."""
        given = {name for name, value in self.same.items() if value is not None}
        return (*self.differing, *sorted(given))

    def tuples(self, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """The rows one by one, of these columns."""
        return zip(*map(self.column, names), strict=True)

    def column(self, name: str) -> Iterable[Any]:
        """The values of one column, row by row."""
        if name in self.differing:
            return self.differing[name]
        return itertools.repeat(self.same[name], self.count)


@functools.lru_cache(maxsize=1024)
def _numbered(parameter: str, count: int) -> tuple[str, ...]:
    return tuple([f"{parameter}_{index}" for index in range(count)])


@dataclasses.dataclass(frozen=True, slots=True)
class Settlement:
    """Messages of one claim that end together; times in microseconds.

    Attributes:
        attempted_at: when they failed, or None where they did not.
        dedup_us: how long their keys stay taken; None where they are free at once.
    """

    ids: Sequence[int]
    claim: Claim
    outcome: str = "done"
    error: str | None = None
    attempted_at: int | None = None
    dedup_us: int | None = None

    def fence_values(self) -> dict[str, Any]:
        """The bind parameters of the fence."""
        return {"p_consumer": self.claim.consumer_id, "p_round": self.claim.consumer_round}

    def archive_values(self) -> dict[str, Any]:
        """The bind parameters of what the archive gets."""
        return {
            "p_outcome": self.outcome,
            "p_status": SUCCESS if self.outcome == Outcome.DONE else ERROR,
            "p_error": self.error,
            "p_attempted": self.attempted_at,
        }


@dataclasses.dataclass(frozen=True, slots=True)
class RoundRequest:
    """What the claim of one round asks of the database, of one level.

    Attributes:
        up_to_id: none with a larger id; None for all.
        due_by: none that are due later, in microseconds; None for all that are due now.
    """

    claim: Claim
    count: int
    priority: int
    up_to_id: int | None = None
    due_by: int | None = None

    def values(self) -> dict[str, Any]:
        """The bind parameters of the stamp, the eligibility predicate and the limit."""
        return wanted(self.priority, self.count) | {
            "p_consumer": self.claim.consumer_id,
            "p_round": self.claim.consumer_round,
            "p_expires": lease_of_round(self.claim.consumer_round),
            "p_up_to": _LARGEST if self.up_to_id is None else self.up_to_id,
            "p_due": NEVER if self.due_by is None else self.due_by,
        }


LAST_ROUND: Final = 10**12
"""Beyond it a round's lease would no longer lie in the far future."""


def lease_of_round(consumer_round: int) -> int:
    """The lease of what a round stamped: it never ends, and is another for each round.

    So the index on the lease leads to the messages of one round, and not past the dead entries
    of the rounds before.
    """
    return NEVER - consumer_round


def rounds_values(consumer_id: str, after: int, up_to: int) -> dict[str, Any]:
    """The bind parameters of the rounds from the one after ``after`` to ``up_to``."""
    return {
        "p_consumer": consumer_id,
        "p_round": after + 1,
        "p_last_round": up_to,
        "p_expires": lease_of_round(after + 1),
        "p_last_expires": lease_of_round(up_to),
        "p_count": _LARGEST,
    }


_CORE = len(MESSAGE_COLUMNS)
_ATTEMPT = MESSAGE_COLUMNS.index("attempt_count")
_STAMP = slice(MESSAGE_COLUMNS.index("consumer_id"), MESSAGE_COLUMNS.index("last_attempt_at"))
_LEASE = MESSAGE_COLUMNS.index("lease_us")


def archive_columns(tables: QueueTables) -> list[ColumnElement[Any]]:
    """What a select of archived messages names: ends with when and how each ended."""
    archive = tables.archive
    return [*tables.message_columns(archive), *[archive.c[name] for name in ARCHIVE_COLUMNS]]


def read_rows(
    connection: Connection, sql: StatementCache, rows: Iterable[Sequence[Any]]
) -> list[MessageRow]:
    """Read rows selected on a connection as ``QueueTables.message_columns`` names them."""
    tables: QueueTables = sql.subject
    if not tables.own_columns:
        return [_message_row(row, _NO_COLUMNS) for row in rows]
    converters = sql.own_converters(connection.dialect)
    return [_message_row(row, _own_values(tables, row, converters)) for row in rows]


def read_taken_rows(
    connection: Connection, sql: StatementCache, rows: Iterable[Sequence[Any]]
) -> list[MessageRow]:
    """As ``read_rows``, of messages that are delivered without a claim."""
    tables: QueueTables = sql.subject
    if not tables.own_columns:
        rest = (_NO_COLUMNS, *_TAKEN)
        return [_as_row((*_delivered(row), *rest)) for row in rows]
    converters = sql.own_converters(connection.dialect)
    return [
        _as_row((*_delivered(row), _own_values(tables, row, converters), *_TAKEN)) for row in rows
    ]


def _delivered(row: Sequence[Any]) -> list[Any]:
    values = list(row[:_CORE])
    values[_ATTEMPT] += 1
    return values


def read_archive_rows(
    connection: Connection, sql: StatementCache, rows: Iterable[Sequence[Any]]
) -> list[MessageRow]:
    """Read rows selected on a connection as ``archive_columns`` names them."""
    converters = sql.own_converters(connection.dialect)
    return [
        _message_row(row, _own_values(sql.subject, row, converters))._replace(
            finished_at=row[-2], outcome=row[-1], listed=True
        )
        for row in rows
    ]


def stamped_row(
    connection: Connection,
    sql: StatementCache,
    row: Sequence[Any],
    request: ClaimRequest,
    now: int,
) -> MessageRow:
    """A row that was read before it was marked, as it is after."""
    values = list(row[:_CORE])
    values[_ATTEMPT] += 1
    lease = request.lease_us or values[_LEASE] or request.queue_lease_us
    values[_STAMP] = (request.consumer_id, request.consumer_round, now, now + lease)
    return _message_row(
        values, _own_values(sql.subject, row, sql.own_converters(connection.dialect))
    )


# A row without the look at its length that ``_make`` takes.
_as_row: Callable[[tuple[Any, ...]], MessageRow] = functools.partial(tuple.__new__, MessageRow)
_NO_COLUMNS: dict[str, Any] = {}
_NOT_ARCHIVED = (None, None, False)
_TAKEN = (None, None, True)


def _message_row(values: Sequence[Any], columns: dict[str, Any]) -> MessageRow:
    return _as_row((*values[:_CORE], columns, *_NOT_ARCHIVED))


def _own_values(tables: QueueTables, row: Sequence[Any], converters: Converters) -> dict[str, Any]:
    values = list(zip(tables.own_names, converters, row[_CORE:], strict=False))
    try:
        return {name: value if to is None else to(value) for name, to, value in values}
    except Exception:  # noqa: BLE001 - types raise what they like
        # The message is told of when it is its turn; it must not stop those beside it.
        return {name: value if to is None else _read(to, value) for name, to, value in values}


def _read(convert: Callable[[Any], Any], value: Any) -> Any:
    try:
        return convert(value)
    except Exception as error:  # noqa: BLE001 - likewise
        return Unreadable(error)
