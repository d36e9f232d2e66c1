"""The tables of a queue: its live messages, its archive, and its deduplication keys.

Times are BIGINT microseconds since the Unix epoch, UTC, so that no time zone of a session or driver
can change them. The name of every index and constraint begins with its table's name.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    UniqueConstraint,
    and_,
    delete,
    func,
    or_,
)

from queue_over_sql.errors import QUEUE_NAME, TAKEN_ENDING, InvalidQueueName, near_queue_name, shown
from queue_over_sql.values.cached import cached_property
from queue_over_sql.values.fingerprints import FINGERPRINT_LENGTH
from queue_over_sql.values.limits import (
    CONSUMER_LENGTH,
    GROUP_LENGTH,
    KEY_LENGTH,
    KIND_LENGTH,
    NAME_LENGTH,
    TITLE_LENGTH,
)
from queue_over_sql.values.options import GROUP_KEY, PUBLISH_OPTIONS
from queue_over_sql.values.states import Outcome
from queue_over_sql.values.texts import is_storable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy import ColumnElement, Delete, Update

    from queue_over_sql.message import MessageRow
    from queue_over_sql.schema.system_tables import SystemTables
    from queue_over_sql.sql.dialect import QueueDialect
    from queue_over_sql.sql.expressions import Expressions
    from queue_over_sql.sql.features import Features


SCHEMA_VERSION: Final = 4
"""The schema version that this release creates, and the newest one that it supports."""
OLDEST_BESIDE: Final = 1
"""The oldest schema version whose releases can use the tables of this release."""
OLDEST_BESIDE_EXPIRY: Final = 3
"""As ``OLDEST_BESIDE``, for queues with messages that expire: earlier releases would start them."""
OLDEST_BESIDE_GROUPS: Final = 3
"""As ``OLDEST_BESIDE``, for queues with groups or limits, which earlier releases would not keep."""
OLDEST_BESIDE_WAITING: Final = 3
"""As ``OLDEST_BESIDE``, for queues with ``unique="waiting"``: earlier releases misread keys."""
PREFIX = re.compile(r"[a-z][a-z0-9_]{0,19}\Z")
# The longest suffix of a derived name; see queue_tables().
_LONGEST_SUFFIX = "_dedup_keys_pkey"

MOST_ATTEMPTS: Final = 2**31 - 1
"""The largest number that the column of attempts holds."""
MESSAGE_COLUMNS: Final = (
    "id",
    "message_key",
    "kind",
    "payload",
    "headers",
    "priority",
    "published_at",
    "scheduled_at",
    "available_at",
    "attempt_count",
    "max_attempts",
    "lease_us",
    "consumer_id",
    "consumer_round",
    "claimed_at",
    "lease_expires_at",
    "last_attempt_at",
    "last_error",
    "expires_at",
)
"""The columns of every queue's table, in the order in which statements read them."""

UNREAD_COLUMNS: Final = ("last_traceback",)
"""Further columns of messages, also in the archive; no claim reads them."""

COLUMNS_OF_GROUPS: Final = (GROUP_KEY, "parked_at", "blocks")
"""Further columns of a queue with groups; its archive has only the first."""
_READ_AS_TEXT: Final = frozenset({"payload", "headers"})
_OPTIONS_OF_PUBLISH = {*PUBLISH_OPTIONS, "on_conflict", "connection", "id_0"} - {"columns"}

ARCHIVE_COLUMNS: Final = ("finished_at", "outcome")
"""The columns of an archive besides ``MESSAGE_COLUMNS``."""

ERROR_FINGERPRINT: Final = "error_fingerprint"
"""A further column of archives: what dead letters with the same error share.

It is NULL until the reaper has written it. Adopted tables do not have it.
"""

KEY_RELEASED: Final = "key_released"
"""The column of live messages of queues with ``unique="waiting"``.

0: the message holds its key. A publish that takes the key of a claimed message writes the id of
that message here, so that the message keeps its key and yet does not hold it.
"""


@dataclasses.dataclass(frozen=True, eq=False)
class QueueTables:
    """The tables of one queue, and how their rows are its messages.

    This class serves ordinary queues; the subclass ``ExistingTable`` serves adopted tables. Only
    the code that defines the tables chooses between them. All other code asks them for what it
    needs, such as ``end``.

    Attributes:
        queue: name of the queue.
        prefix: the table prefix that it was created under.
        live: the table of the messages that are not finished.
        archive: the table of the finished messages.
        dedup_keys: keys of finished messages; it exists once the queue has a ``dedup_window``.
        system: the shared tables.
        dialect: the engine, for what runs on a connection.
        own_columns: keys of the queue's own columns; of an adopted table, the user's columns.
        known_kinds: the kinds that this server claims; empty: all messages.
        temporary: whether it belongs to a consumer and is dropped with it.
        title: what it was called when it was created, if its name was made of that.
        groups: the groups of messages; None if the queue has no groups. Only with groups ``live``
            has the columns ``group_key``, ``parked_at`` and ``blocks``, and ``own_columns`` ends
            with ``group_key``.
        limits: the slots and the tokens of a queue that is ``bounded``; else None.
        limited: whether only so many messages of the whole queue may be in hand.
        rated: whether messages of the whole queue may start only so fast.
        frees_claimed_keys: whether a publish takes the key of a claimed message
            (``unique="waiting"``).
    """

    has_payloads: ClassVar[bool] = True
    """Whether messages have a key, a kind and a payload; otherwise they are the user's rows."""
    ends_in_place: ClassVar[bool] = False
    """Whether a finished message stays in its row, with its outcome."""

    may_expire: ClassVar[bool] = True
    """Whether messages can have an expiry."""

    queue: str
    prefix: str
    live: Table
    archive: Table
    dedup_keys: Table
    system: SystemTables
    dialect: QueueDialect
    own_columns: tuple[str, ...]
    known_kinds: tuple[str, ...] = ()
    temporary: bool = False
    title: str | None = None
    groups: Table | None = None
    limits: Table | None = None
    limited: bool = False
    rated: bool = False
    frees_claimed_keys: bool = False

    @cached_property
    def grouped(self) -> bool:
        """Whether messages of the queue may have a group."""
        return self.groups is not None

    @cached_property
    def bounded(self) -> bool:
        """Whether the whole queue has a limit or a rate."""
        return self.limited or self.rated

    @cached_property
    def has_rules(self) -> bool:
        """Whether claims keep rules that earlier releases do not know: of groups, or limits."""
        return self.groups is not None or self.limits is not None

    @cached_property
    def exits_make_ready(self) -> bool:
        """Whether the end of one message may let another one be claimed."""
        return self.groups is not None or self.limited

    @property
    def only_with_rules(self) -> Sequence[Table]:
        """The tables that only a queue with groups or limits has."""
        return [table for table in (self.groups, self.limits) if table is not None]

    @cached_property
    def marks_errors(self) -> bool:
        """Whether the archive has the fingerprints of errors."""
        return not self.temporary and ERROR_FINGERPRINT in self.archive.c

    @property
    def base_name(self) -> str:
        """The prefix of the names of the queue's indexes."""
        return self.prefix + self.queue

    def bounded_by(self, *, limited: bool, rated: bool) -> Self:
        """These tables, for a queue with or without a limit and a rate."""
        limits = None
        if limited or rated:
            metadata = MetaData(schema=self.system.metadata.schema)
            limits = limits_of(self.base_name, metadata, self.expressions)
        return dataclasses.replace(self, limits=limits, limited=limited, rated=rated)

    @cached_property
    def unique_key(self) -> Sequence[Column[Any]]:
        """The columns of the constraint that keeps keys unique."""
        live = self.live
        return [live.c.message_key, *([live.c[KEY_RELEASED]] if self.frees_claimed_keys else ())]

    def holds_key(self, key: ColumnElement[Any]) -> ColumnElement[bool]:
        """The condition for the one live message that holds a key."""
        held = self.live.c.message_key == key
        return and_(held, self.live.c[KEY_RELEASED] == 0) if self.frees_claimed_keys else held

    @cached_property
    def features(self) -> Features:
        """The facts in which engines differ."""
        return self.dialect.features

    @cached_property
    def expressions(self) -> Expressions:
        """The engine's SQL."""
        return self.dialect.expressions

    @cached_property
    def parameters(self) -> dict[str, str]:
        """The names of the bind parameters, by the column's key.

        Own columns have numbered parameters, because drivers change some names, and a user's name
        could equal one of ours.
        """
        ours = {name: f"p_{name}" for name in MESSAGE_COLUMNS}
        return ours | {key: f"p_c{place}" for place, key in enumerate(self.own_columns)}

    @cached_property
    def own_names(self) -> tuple[str, ...]:
        """The names of ``own_columns`` in the database."""
        return tuple(self.live.c[key].name for key in self.own_columns)

    @cached_property
    def users_columns(self) -> tuple[str, ...]:
        """Those of ``own_columns`` that the user declared."""
        return tuple(name for name in self.own_columns if not (self.grouped and name == GROUP_KEY))

    @cached_property
    def added_columns(self) -> tuple[str, ...]:
        """The keys of the columns that an adoption added to a user's table."""
        return ()

    def shown_as(self, key: str) -> str:
        """The name of one of ``own_columns`` where messages are rows of columns, as in Spark."""
        return "group" if self.grouped and key == GROUP_KEY else self.live.c[key].name

    @cached_property
    def end_returning(self) -> bool:
        """Whether the statement that ends messages can return their ids."""
        return self.features.delete_returning

    def message_columns(self, table: Table) -> list[ColumnElement[Any]]:
        """The columns of a select of messages, in the order in which rows are read."""
        special = {
            name: self.expressions.read_payload(table.c[name]).label(name) for name in _READ_AS_TEXT
        }
        if "parked_at" in table.c:
            due = func.coalesce(table.c.parked_at, table.c.available_at)
            special["available_at"] = due.label("available_at")
        core = [special.get(name, table.c[name]) for name in MESSAGE_COLUMNS]
        return [*core, *[table.c[name] for name in self.own_columns]]

    def archived_group(self) -> ColumnElement[Any]:
        """The group of a finished message."""
        return self.archive.c.group_key

    def time(self, table: Table, name: str) -> ColumnElement[Any]:
        """When a message was published or is due; NULL only for the due time of a held one."""
        return table.c[name]

    def due_at(self) -> ColumnElement[Any]:
        """When a live message is due; NULL if it is held.

        Messages that wait for others of their groups have that time in a column of its own.
        """
        due, *parked = self._due_times()
        return func.coalesce(*parked, due) if parked else due

    def is_held(self) -> ColumnElement[bool]:
        """The condition for messages that wait for an operator."""
        return and_(*[time.is_(None) for time in self._due_times()])

    def is_due(self) -> ColumnElement[bool]:
        """The condition for messages whose time has come; parked ones were due before."""
        now, (due, *parked) = self.expressions.now(), self._due_times()
        return or_(due <= now, *[time.is_not(None) for time in parked])

    def is_delayed(self) -> ColumnElement[bool]:
        """The condition for messages whose time has not come."""
        now, (due, *parked) = self.expressions.now(), self._due_times()
        return and_(due > now, *[time.is_(None) for time in parked])

    def _due_times(self) -> list[ColumnElement[Any]]:
        live = self.live.c
        return [live.available_at, *([live.parked_at] if self.grouped else [])]

    def unparked(self) -> Mapping[str, Any]:
        """Values that an edit of the due time must also set."""
        return {"parked_at": None} if self.grouped else {}

    def due_first(self) -> ColumnElement[Any]:
        """When a message was first due."""
        return self.live.c.scheduled_at

    def live_only(self) -> list[ColumnElement[bool]]:
        """The conditions for live messages among the rows of ``live``, if needed."""
        return []

    def finished_only(self) -> list[ColumnElement[bool]]:
        """The conditions for finished messages among the rows of ``archive``, if needed."""
        return []

    def of_any_outcome(self) -> list[ColumnElement[bool]]:
        """A condition with all outcomes, if the index on the archive begins with the outcome."""
        return [self.archive.c.outcome.in_([str(outcome) for outcome in Outcome])]

    def removal(self, *, archived: bool = False) -> Delete | Update:
        """Permanently remove messages; a row of an adopted table only leaves the queue."""
        return delete(self.archive if archived else self.live)

    def end(
        self, which: ColumnElement[bool], finished: Callable[[], Mapping[str, Any]]
    ) -> Delete | Update:
        """End messages: remove them, or store how they ended in a user's rows.

        Args:
            which: the condition for the messages.
            finished: makes the values of a row that ended in place.
        """
        del finished
        return delete(self.live).where(which)

    def archives(self, *, keep: bool) -> bool:
        """Whether messages that end move to the archive, if the queue keeps such ones."""
        return keep

    def may_refuse_end(self, *, keep: bool) -> bool:
        """Whether an end writes values, which a constraint or a trigger may refuse."""
        return keep

    def values_of_end(self, values: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The parameters of a statement that ends messages without the archive."""
        del values
        return {}

    def in_claim_index(self) -> list[ColumnElement[bool]]:
        """The conditions for the unclaimed rows that the claim index has."""
        return [self.live.c.consumer_id.is_(None)]

    def key(self) -> ColumnElement[Any]:
        """The key of a live message; NULL where messages have none."""
        return self.live.c.message_key

    def content(
        self, row: MessageRow, decode: Callable[[Any], Any]
    ) -> tuple[Any, Mapping[str, Any] | None, MessageRow]:
        """What a row carries: the decoded payload, the user's row, and the rest of it."""
        return decode(row.payload), None, row

    @cached_property
    def is_plain(self) -> bool:
        """Whether messages have a payload, and nothing else of their own but a group."""
        return not self.users_columns

    def expect_payloads(self, otherwise: Exception) -> None:
        """Raise an error if messages are a user's rows, without key, kind and payload."""

    def still_live(self) -> Mapping[str, Any]:
        """Values that an edit must also set, so that a held message stays a live one."""
        return {}

    def after_failure(self) -> Mapping[str, Any]:
        """Values that a failed attempt must also set."""
        return {}


_HASH_LENGTH: Final = 8


def longest_name(prefix: str, identifier_limit: int) -> int:
    """The length of the longest name of a queue, with which all derived names fit."""
    return min(NAME_LENGTH, identifier_limit - len(prefix + _LONGEST_SUFFIX))


def inner_name(title: str, length: int) -> str:
    """The name of a queue that is called so: the same, or a readable one that tables can have.

    That has at most ``length`` characters and ends with a hash, so that titles which differ in
    other characters have other names.
    """
    if near_queue_name(title) == title:
        return title
    readable = near_queue_name(title)[: length - _HASH_LENGTH - 1].rstrip("_")
    digest = hashlib.sha256(title.encode()).hexdigest()
    return f"{readable}_{digest[:_HASH_LENGTH]}"


def check_title(title: object) -> str:
    """Check what a queue is called and return it as a plain ``str``.

    Raises:
        InvalidQueueName: it is no text that a database can store, or is too long.
    """
    if not isinstance(title, str) or not title or not is_storable(title):
        msg = (
            f"{shown(title, 60)} is not a valid queue name: use 1 to {TITLE_LENGTH} characters of "
            f"text without NUL, such as {near_queue_name(title)!r}."
        )
        raise InvalidQueueName(msg)
    if len(title) > TITLE_LENGTH:
        msg = (
            f"The queue name {shown(title, 60)} has {len(title):,} characters: use at most "
            f"{TITLE_LENGTH}."
        )
        raise InvalidQueueName(msg)
    return str.__str__(title)


def names_of(title: object, length: int) -> list[str]:
    """The names that the queue of this title may have, the most likely one first."""
    if not isinstance(title, str) or not is_storable(title) or len(title) > TITLE_LENGTH:
        return []
    found = [str.__str__(title)] if may_be_name(title) else []
    return list(dict.fromkeys([*found, inner_name(title, length)])) if title else []


def may_be_name(name: object) -> bool:
    """Whether a queue or topic of any release can have this name."""
    return isinstance(name, str) and name.isascii() and name.isidentifier()


def check_queue_name(name: object, prefix: str, identifier_limit: int) -> str:
    """Check a queue name and return it as a plain ``str``.

    Raises:
        InvalidQueueName: it does not match ``[a-z][a-z0-9_]{0,39}``, begins with ``over_sql_``,
            ends like a table or index of another queue (``_archive``, ``_claim_ix`` …), or a name
            derived from it is too long for the engine.
    """
    if not isinstance(name, str) or not QUEUE_NAME.match(name):
        msg = (
            f"{shown(name, 60)} is not a valid queue name: use 1 to 40 lower-case letters, digits "
            f"and underscores, beginning with a letter, such as {near_queue_name(name)!r}."
        )
        raise InvalidQueueName(msg)
    if (
        name.startswith("over_sql_")
        or (prefix + name).startswith("queue_over_sql_")
        or TAKEN_ENDING.search(name)
    ):
        msg = (
            f"The queue name {name!r} is reserved: names that begin with 'over_sql_' or end with "
            "'_archive', '_claim_ix', '_pkey' or similar would collide with tables and indexes of "
            "queue_over_sql."
        )
        raise InvalidQueueName(msg)
    excess = len(name) - longest_name(prefix, identifier_limit)
    if excess > 0:
        msg = (
            f"The queue name {name!r} is too long for this engine with the table prefix "
            f"{prefix!r}: shorten one of them by {excess} characters."
        )
        raise InvalidQueueName(msg)
    return str.__str__(name)


def check_table_prefix(prefix: object) -> str:
    """Check a table prefix.

    Raises:
        ValueError: it does not match ``[a-z][a-z0-9_]{0,19}``, or it would let a queue's table
            collide with those of the service.
    """
    if not isinstance(prefix, str) or not PREFIX.match(prefix) or prefix == "queue_over_sql_":
        msg = (
            f"table_prefix must be 1 to 20 lower-case letters, digits and underscores, beginning "
            f"with a letter, and must not be 'queue_over_sql_'; it is {shown(prefix)}"
        )
        raise ValueError(msg)
    return str.__str__(prefix)


def queue_tables(
    queue: str,
    prefix: str,
    payload: str,
    columns: Sequence[Column[Any]],
    *,
    system: SystemTables,
    dialect: QueueDialect,
    grouped: bool = False,
    limited: bool = False,
    rated: bool = False,
    unique: str = "live",
) -> QueueTables:
    """Define the tables of one queue, which may have groups; the name must have been checked."""
    # Each has its own metadata, because a queue may be dropped and defined again.
    metadata = MetaData(schema=system.metadata.schema)
    table = prefix + queue
    own, expressions = _own_columns(columns, grouped=grouped), dialect.expressions
    released = _key_released(columns) if unique == "waiting" else []
    live = Table(
        table,
        metadata,
        Column("id", expressions.identity, primary_key=True, autoincrement=True),
        *message_columns_of(payload, expressions),
        *added_columns_of(expressions),
        *released,
        *[_copy(column, nullable=column.nullable) for column in own],
        *(_columns_of_groups(expressions) if grouped else ()),
        *_payload_check(table, payload, expressions),
        UniqueConstraint("message_key", *[c.name for c in released], name=f"{table}_key_uq"),
        **expressions.table_options,
        **expressions.live_table_options,
    )
    expressions.add_queue_indexes(live, table)
    if grouped:
        expressions.add_group_indexes(live, table)
    for number, column in enumerate(own):
        if column.index:
            Index(f"{table}_c{number}_ix", live.c[column.name])
    archive = Table(
        f"{table}_archive",
        metadata,
        Column("id", expressions.identity, primary_key=True, autoincrement=False),
        *message_columns_of(payload, expressions),
        *added_columns_of(expressions),
        Column("finished_at", BigInteger, nullable=False),
        Column("outcome", String(20), nullable=False),
        *[_copy(column, nullable=True) for column in own],
        *([_group_key(expressions)] if grouped else ()),
        error_fingerprint_of(expressions),
        Index(f"{table}_archive_ix", "outcome", "finished_at", "id"),
        **expressions.table_options,
    )
    expressions.add_index_of_errors(archive)
    dedup_keys = memory_of_keys(table, metadata, expressions)
    names = (*(column.name for column in own), *([GROUP_KEY] if grouped else ()))
    return QueueTables(
        queue,
        prefix,
        live,
        archive,
        dedup_keys,
        system,
        dialect,
        names,
        groups=rows_of_groups_in(table, metadata, expressions) if grouped else None,
        limits=limits_of(table, metadata, expressions) if limited or rated else None,
        limited=limited,
        rated=rated,
        frees_claimed_keys=bool(released),
    )


def memory_of_keys(base: str, metadata: MetaData, expressions: Expressions) -> Table:
    """Define the table of the keys of finished messages."""
    return Table(
        f"{base}_dedup_keys",
        metadata,
        Column("message_key", expressions.exact_string(KEY_LENGTH), primary_key=True),
        Column("message_id", BigInteger, nullable=False),
        Column("expires_at", BigInteger, nullable=False),
        Index(f"{base}_dedup_keys_ix", "expires_at"),
        **expressions.table_options,
    )


def rows_of_groups_in(base: str, metadata: MetaData, expressions: Expressions) -> Table:
    """Define the table of groups. Claims and settings write its rows, but no publish does."""
    groups = Table(
        f"{base}_groups",
        metadata,
        Column(GROUP_KEY, expressions.exact_string(GROUP_LENGTH), primary_key=True),
        # Grows with each claim of the group, where a claim must notice those beside it.
        Column("seq", BigInteger, nullable=False, server_default="0"),
        # An operator's limit of this group alone; NULL: the queue's.
        Column("own_limit", Integer),
        Column("paused_at", BigInteger),
        # The dead letter that blocks the group.
        Column("blocked_by", BigInteger),
        Column("created_at", BigInteger),
        # When the tokens that were taken will have come back; NULL: none was ever taken.
        Column("tat_us", BigInteger),
        # An operator's rate of this group alone: the time between two messages, and how many may
        # be taken at once. NULL: the queue's; an interval of 0: none.
        Column("own_rate_us", BigInteger),
        Column("own_burst", Integer),
        # An operator's share of this group; NULL: 1.
        Column("weight", Integer),
        **expressions.table_options,
        **expressions.groups_table_options,
    )
    expressions.add_index_of_rates(groups)
    return groups


def limits_of(base: str, metadata: MetaData, expressions: Expressions) -> Table:
    """Define the table of the limits of a whole queue. Claims write its rows, no publish does.

    Slots count from 1, one for each message that may be in hand. A slot is taken as long as its
    stamp is that of a claimed message. Below 0 are slots that a lowered limit took away, and those
    of messages that were claimed before there was a limit. Slot 0 is that of the rate.
    """
    return Table(
        f"{base}_limits",
        metadata,
        Column("slot", BigInteger, primary_key=True, autoincrement=False),
        Column("message_id", BigInteger),
        Column("consumer_id", expressions.exact_string(CONSUMER_LENGTH)),
        Column("consumer_round", BigInteger),
        # Only of slot 0: the time between two messages, how many may start at once after a rest,
        # and when the tokens that were taken will have come back; NULL: none was ever taken.
        Column("interval_us", BigInteger),
        Column("burst", Integer),
        Column("tat_us", BigInteger),
        **expressions.table_options,
    )


def _group_key(expressions: Expressions) -> Column[Any]:
    return Column(GROUP_KEY, expressions.exact_string(GROUP_LENGTH))


def _columns_of_groups(expressions: Expressions) -> list[Column[Any]]:
    return [
        _group_key(expressions),
        # When a message was due that waits, out of the claim index, for others of its group.
        Column("parked_at", BigInteger),
        # 1: others of its group may be parked until this message ends.
        Column("blocks", SmallInteger),
    ]


def message_columns_of(payload: str, expressions: Expressions) -> list[Column[Any]]:
    """The columns of a message besides its id; new objects at each call."""
    return [
        Column("message_key", expressions.exact_string(KEY_LENGTH)),
        Column("kind", expressions.exact_string(KIND_LENGTH)),
        Column("payload", expressions.payload_type(payload), nullable=False),
        Column("headers", expressions.payload_type("json")),
        Column("priority", SmallInteger, nullable=False, server_default="0"),
        Column("published_at", BigInteger, nullable=False),
        Column("scheduled_at", BigInteger, nullable=False),
        Column("available_at", BigInteger),
        Column("attempt_count", Integer, nullable=False, server_default="0"),
        Column("max_attempts", Integer),
        Column("lease_us", BigInteger),
        Column("consumer_id", expressions.exact_string(CONSUMER_LENGTH)),
        Column("consumer_round", BigInteger),
        Column("claimed_at", BigInteger),
        Column("lease_expires_at", BigInteger),
        Column("last_attempt_at", BigInteger),
        Column("last_error", expressions.payload_type("text")),
    ]


def added_columns_of(expressions: Expressions) -> list[Column[Any]]:
    """The columns of a message that later schema versions added; new objects at each call.

    An upgrade adds them to tables of an earlier release as the last columns. Adopted tables do not
    have them.
    """
    return [
        Column("last_traceback", expressions.payload_type("text")),
        Column("expires_at", BigInteger),
    ]


def error_fingerprint_of(expressions: Expressions) -> Column[Any]:
    """The column of an archive that tells errors apart; a new object at each call."""
    return Column(ERROR_FINGERPRINT, expressions.exact_string(FINGERPRINT_LENGTH))


def _key_released(columns: Sequence[Column[Any]]) -> list[Column[Any]]:
    if KEY_RELEASED in [column.name for column in columns]:
        msg = f"columns: {KEY_RELEASED!r} is a column of every queue with unique='waiting'"
        raise ValueError(msg)
    return [Column(KEY_RELEASED, BigInteger, nullable=False, server_default="0")]


def _payload_check(table: str, payload: str, expressions: Expressions) -> list[CheckConstraint]:
    condition = expressions.json_check("payload") if payload == "json" else None
    return [] if condition is None else [CheckConstraint(condition, name=f"{table}_json_ck")]


def _own_columns(columns: Sequence[Column[Any]], *, grouped: bool) -> list[Column[Any]]:
    taken = {*MESSAGE_COLUMNS, *UNREAD_COLUMNS, *ARCHIVE_COLUMNS, *_OPTIONS_OF_PUBLISH}
    taken.add(ERROR_FINGERPRINT)
    if grouped:
        taken.update(COLUMNS_OF_GROUPS)
    for column in columns:
        if not isinstance(column.name, str) or not QUEUE_NAME.match(column.name):
            msg = (
                f"columns: {shown(column.name)} must be 1 to 40 lower-case letters, digits and '_'"
            )
            raise ValueError(msg)
        if column.name in taken:
            msg = f"columns: {column.name!r} occurs twice, or is a column of every queue"
            raise ValueError(msg)
        if column.default is not None or column.server_default is not None:
            msg = (
                f"columns: {column.name!r} has a default, which is not supported; pass its "
                "value when you publish"
            )
            raise ValueError(msg)
        if column.unique or column.primary_key or column.foreign_keys:
            msg = (
                f"columns: {column.name!r} is a primary key, foreign key or unique, which is not "
                "supported: use key= for unique messages, or add your own constraint to the "
                "queue's table"
            )
            raise ValueError(msg)
        taken.add(column.name)
    return list(columns)


def _copy(column: Column[Any], *, nullable: bool | None) -> Column[Any]:
    return Column(column.name, column.type, nullable=bool(nullable))
