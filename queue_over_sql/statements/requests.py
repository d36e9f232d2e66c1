"""What statements are asked for: new rows, claims, settlements; and the rows that are read."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from sqlalchemy import ColumnElement

from queue_over_sql.message import Claim, MessageRow, Unreadable
from queue_over_sql.schema.existing import ERROR, SUCCESS
from queue_over_sql.schema.queue_tables import ARCHIVE_COLUMNS, MESSAGE_COLUMNS, MOST_ATTEMPTS
from queue_over_sql.sql.conditions import rebased
from queue_over_sql.values.durations import ALWAYS, LONGEST_US
from queue_over_sql.values.states import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection, Table

    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.sql.compiled import StatementCache

    Converters = Sequence[Callable[[Any], Any] | None]


ANY_EDITS: Final = -1
"""The edit count of a claim that searches all messages, so that edits do not matter."""


class Where:
    """A user's condition on the messages; it equals another only if it is the same object.

    The expressions cannot be compared, because ``==`` between them builds SQL.
    """

    __slots__ = ("condition",)

    def __init__(self, condition: ColumnElement[bool]) -> None:
        self.condition = condition

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Where) and other.condition is self.condition

    def __hash__(self) -> int:
        return id(self.condition)

    def on(self, table: Table) -> ColumnElement[bool]:
        """The condition, for this object of the table."""
        return rebased(self.condition, table)


# Not frozen, because that would double the time that it takes to make one.
@dataclasses.dataclass(slots=True)
class ClaimRequest:
    """One claim as the database needs it; durations and times in microseconds.

    Attributes:
        count: the largest number of messages.
        priority: the level.
        low: the earliest due time; 0 for a full look.
        lease_us: the lease instead of the message's and the queue's; None for those.
        edits: the queue's edit count that the watermark is based on.
        guarded: whether to claim nothing if there were further edits.
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
        """The stamp."""
        return Claim(self.consumer_id, self.consumer_round)

    def of(self, count: int) -> ClaimRequest:
        """The same request for at most this many messages."""
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
        """The bind parameters for the messages that may be claimed, and of the limit."""
        edits = self.edits if self.guarded else ANY_EDITS
        return wanted(self.priority, self.count, self.low, edits)


def wanted(priority: int, count: int, low: int = 0, edits: int = ANY_EDITS) -> dict[str, Any]:
    """The bind parameters for the messages of one level that may be claimed, and of the limit.

    Args:
        priority: the level.
        count: the largest number of messages.
        low: the earliest due time in microseconds; 0 for a full look.
        edits: claim nothing if the queue has another edit count.
    """
    return {
        "p_priority": priority,
        "p_low": low or ALWAYS,
        "p_edits": edits,
        "p_count": count,
        "p_look": look_for(count),
    }


def look_for(count: int, *, far: bool = False) -> int:
    """Among how many messages to look for some, where others may have locked the first ones."""
    return 4 * count + (10_000 if far else 20)


@dataclasses.dataclass(frozen=True, slots=True)
class NewRows:
    """Rows to insert, by column; values that all rows share are sent once.

    ``locking``: whether messages that have their keys are to be locked; no two rows have the same.
    """

    count: int
    same: Mapping[str, Any]
    differing: Mapping[str, Iterable[Any]]
    locking: bool = False

    def values(self, parameters: Mapping[str, str]) -> dict[str, Any]:
        """The bind parameters of an INSERT of these rows; ``parameters`` are names by column."""
        values = {parameters[name]: value for name, value in self.same.items()}
        for name, column in self.differing.items():
            values.update(zip(_numbered(parameters[name], self.count), column, strict=True))
        return values

    def filled(self) -> tuple[str, ...]:
        """The columns that are not NULL in every row."""
        given = {name for name, value in self.same.items() if value is not None}
        return (*self.differing, *sorted(given))

    def tuples(self, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """The rows one by one, with these columns."""
        return zip(*map(self.column, names), strict=True)

    def column(self, name: str) -> Iterable[Any]:
        """The values of one column, row by row."""
        if name in self.differing:
            return self.differing[name]
        return itertools.repeat(self.same[name], self.count)


@functools.lru_cache(maxsize=1024)
def _numbered(parameter: str, count: int) -> tuple[str, ...]:
    return tuple([f"{parameter}_{index}" for index in range(count)])


# Not frozen either; see ``ClaimRequest``.
@dataclasses.dataclass(slots=True)
class Settlement:
    """Messages of one claim that end in the same way; times in microseconds.

    Attributes:
        attempted_at: when they failed; None if they did not.
        dedup_us: how long their keys stay taken; None: not at all.
        in_order: whether a message that is given back takes along what the claim holds behind it
            in its group, if only one of that may be in hand.
        group_limit: of a queue with groups.
        unblocking: whether to leave out those for which others of their group may be parked.
        locked: whether this transaction has locked them, under the fence.
        in_key_order: the messages with keys of this settlement and of those beside it, ordered by
            key. They are locked first, in the order of a sorted batch of a publisher.
    """

    ids: Sequence[int]
    claim: Claim
    outcome: str = "done"
    error: str | None = None
    attempted_at: int | None = None
    dedup_us: int | None = None
    in_order: bool = False
    group_limit: int = 1
    unblocking: bool = False
    locked: bool = False
    in_key_order: Sequence[int] = ()

    def fence_values(self) -> dict[str, Any]:
        """The bind parameters of the fence."""
        return {"p_consumer": self.claim.consumer_id, "p_round": self.claim.consumer_round}

    def archive_values(self) -> dict[str, Any]:
        """The bind parameters of the archive's columns."""
        return {
            "p_outcome": self.outcome,
            "p_status": SUCCESS if self.outcome == Outcome.DONE else ERROR,
            "p_error": self.error,
            "p_attempted": self.attempted_at,
        }


_CORE = len(MESSAGE_COLUMNS)
_ATTEMPT = MESSAGE_COLUMNS.index("attempt_count")
_AFTER_ATTEMPT = slice(_ATTEMPT + 1, _CORE)
_STAMP = slice(MESSAGE_COLUMNS.index("consumer_id"), MESSAGE_COLUMNS.index("last_attempt_at"))
_LEASE = MESSAGE_COLUMNS.index("lease_us")


def count_ids(settlements: Sequence[Settlement]) -> int:
    """Of how many messages they are."""
    if len(settlements) == 1:
        return len(settlements[0].ids)
    return sum(len(settlement.ids) for settlement in settlements)


def archive_columns(tables: QueueTables) -> list[ColumnElement[Any]]:
    """The columns of a select of archived messages; the last ones say when and how it ended."""
    archive = tables.archive
    return [*tables.message_columns(archive), *[archive.c[name] for name in ARCHIVE_COLUMNS]]


def listed_columns(tables: QueueTables) -> list[ColumnElement[Any]]:
    """The columns of a select of live messages; the last one is the time."""
    return [*tables.message_columns(tables.live), tables.expressions.now().label("now")]


def read_listed_rows(
    connection: Connection, sql: StatementCache, rows: Sequence[Sequence[Any]]
) -> list[MessageRow]:
    """Read rows that were selected with ``listed_columns``."""
    read = read_rows(connection, sql, rows)
    return [
        message._replace(listed=True, listed_at=row[-1])
        for message, row in zip(read, rows, strict=True)
    ]


def read_rows(
    connection: Connection, sql: StatementCache, rows: Iterable[Sequence[Any]]
) -> list[MessageRow]:
    """Read rows that were selected with ``QueueTables.message_columns``."""
    tables: QueueTables = sql.subject
    if not tables.own_columns:
        rest = (_NO_COLUMNS, *_NOT_ARCHIVED)
        return [_as_row((*row[:_CORE], *rest)) for row in rows]
    converters = sql.own_converters(connection.dialect)
    return [_message_row(row, _own_values(tables, row, converters)) for row in rows]


def read_taken_rows(
    connection: Connection, sql: StatementCache, rows: Iterable[Sequence[Any]]
) -> list[MessageRow]:
    """As ``read_rows``, for messages that are delivered without a claim."""
    tables: QueueTables = sql.subject
    if not tables.own_columns:
        rest = (_NO_COLUMNS, *_TAKEN)
        return [
            _as_row((*row[:_ATTEMPT], row[_ATTEMPT] + 1, *row[_AFTER_ATTEMPT], *rest))
            for row in rows
        ]
    converters = sql.own_converters(connection.dialect)
    return [
        _as_row(
            (
                *row[:_ATTEMPT],
                row[_ATTEMPT] + 1,
                *row[_AFTER_ATTEMPT],
                _own_values(tables, row, converters),
                *_TAKEN,
            )
        )
        for row in rows
    ]


def read_archive_rows(
    connection: Connection, sql: StatementCache, rows: Iterable[Sequence[Any]]
) -> list[MessageRow]:
    """Read rows that were selected with ``archive_columns``."""
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
    """The row after the stamp, made from the row that was read before."""
    values = list(row[:_CORE])
    values[_ATTEMPT] = min(values[_ATTEMPT] + 1, MOST_ATTEMPTS)
    lease = request.lease_us or values[_LEASE] or request.queue_lease_us
    lease = min(lease, LONGEST_US)
    values[_STAMP] = (request.consumer_id, request.consumer_round, now, now + lease)
    return _message_row(
        values, _own_values(sql.subject, row, sql.own_converters(connection.dialect))
    )


# A row without the length check of ``_make``.
_as_row: Callable[[tuple[Any, ...]], MessageRow] = functools.partial(tuple.__new__, MessageRow)
_NO_COLUMNS: dict[str, Any] = {}
_NOT_ARCHIVED = (None, None, False, False, None)
_TAKEN = (None, None, True, False, None)


def _message_row(values: Sequence[Any], columns: dict[str, Any]) -> MessageRow:
    return _as_row((*values[:_CORE], columns, *_NOT_ARCHIVED))


def _own_values(tables: QueueTables, row: Sequence[Any], converters: Converters) -> dict[str, Any]:
    if not any(converters):
        return dict(zip(tables.own_names, row[_CORE:], strict=False))
    values = list(zip(tables.own_names, converters, row[_CORE:], strict=False))
    try:
        return {name: value if to is None else to(value) for name, to, value in values}
    except Exception:  # noqa: BLE001 - types raise what they like
        # Its error is raised when the message is decoded; it must not stop the others.
        return {name: value if to is None else _read(to, value) for name, to, value in values}


def _read(convert: Callable[[Any], Any], value: Any) -> Any:
    try:
        return convert(value)
    except Exception as error:  # noqa: BLE001 - likewise
        return Unreadable(error)


LONGEST_DEFERRAL_US: Final = 300_000_000
"""How long a message that does not fit its kind is deferred at most, in microseconds."""


@dataclasses.dataclass(frozen=True, slots=True)
class Aside:
    """How a message that does not fit its kind here is deferred: how long, and its headers."""

    delay: int
    headers: str | None
    error: str

    def values(self) -> dict[str, Any]:
        """The bind parameters."""
        return {"p_delay": self.delay, "p_headers": self.headers, "p_error": self.error}


Feed: TypeAlias = "Callable[[Connection, Iterable[int]], None]"
"""Publishes archived dead letters, by their ids, to another queue."""


@dataclasses.dataclass(frozen=True, slots=True)
class Disposition:
    """What to do with a message that was taken.

    Attributes:
        keep: whether it goes to the archive.
        dedup_us: as in ``Settlement``.
        error: why it becomes a dead letter; None if it is done.
        aside: if set, the message is deferred instead, because it does not fit its kind here.
        outcome: the outcome of a dead letter.
        blocks: whether the dead letter blocks its group.
        feed: publishes archived dead letters by their ids to another queue, if there is one.
    """

    keep: bool
    dedup_us: int | None = None
    error: str | None = None
    aside: Aside | None = None
    outcome: str = Outcome.FAILED
    blocks: bool = False
    feed: Feed | None = dataclasses.field(default=None, compare=False)
