"""Existing tables: a queue's columns in a user's table, whose rows are the messages."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Integer,
    MetaData,
    String,
    Table,
    and_,
    case,
    func,
    literal_column,
    null,
    or_,
    update,
)

from queue_over_sql.errors import QueueSchemaMismatch, shown
from queue_over_sql.schema.queue_tables import (
    MESSAGE_COLUMNS,
    PREFIX,
    QueueTables,
    memory_of_keys,
    message_columns_of,
)
from queue_over_sql.values.cached import cached_property

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from sqlalchemy import ColumnElement, Delete, Update

    from queue_over_sql.message import MessageRow
    from queue_over_sql.schema.system_tables import SystemTables
    from queue_over_sql.settings import Adoption
    from queue_over_sql.sql.dialect import QueueDialect
    from queue_over_sql.sql.expressions import Expressions


NOT_ATTEMPTED: Final = "NOT_ATTEMPTED"
ERROR: Final = "ERROR"
SUCCESS: Final = "SUCCESS"

_ABSENT: Final = ("id", "message_key", "kind", "payload", "expires_at")
ADDED_COLUMNS: Final = (
    "status",
    *[name for name in MESSAGE_COLUMNS if name not in _ABSENT],
    "finished_at",
    "outcome",
)
"""The columns that an adoption adds, by key; their names begin with the column prefix."""


class ExistingTable(QueueTables):
    """A user's table, which holds both the live and the finished messages.

    Its columns have the keys of every queue's columns: ``id`` is the user's primary key, whatever
    its name. A row is a live message if it has a due time, or has a status but is not finished
    (then it is held). It is a finished message if it is not due any more and has ended. Any other
    row is not a message. The owner of a row may enqueue it by setting ``available_at`` alone.
    """

    has_payloads = False
    ends_in_place = True
    may_expire = False

    @cached_property
    def end_returning(self) -> bool:
        """Whether UPDATE can return ids, because rows are updated."""
        return self.features.update_returning

    def message_columns(self, table: Table) -> list[ColumnElement[Any]]:
        """As in ``QueueTables``, with labels, because names may be equal."""
        columns = table.c
        absent = dict.fromkeys(_ABSENT[1:], null())
        special = absent | {"headers": self.expressions.read_payload(columns.headers)}
        core = [
            (special[name] if name in special else self.time(table, name)).label(f"m_{name}")
            for name in MESSAGE_COLUMNS
        ]
        own = [columns[key].label(f"row_{index}") for index, key in enumerate(self.own_columns)]
        return [*core, *own]

    def time(self, table: Table, name: str) -> ColumnElement[Any]:
        """As in ``QueueTables``, with defaults for what the owner of the row left out."""
        columns = table.c
        if name not in {"published_at", "scheduled_at"}:
            return columns[name]
        never: ColumnElement[int] = literal_column("0", BigInteger())
        given: ColumnElement[Any] = func.coalesce(columns[name], columns.available_at, never)
        return given

    def due_first(self) -> ColumnElement[Any]:
        """As in ``QueueTables``; the present time if the owner of the row gave none."""
        due: ColumnElement[Any] = func.coalesce(self.live.c.scheduled_at, self.expressions.now())
        return due

    def live_only(self) -> list[ColumnElement[bool]]:
        """Rows that have a due time, or were begun."""
        return [or_(self.live.c.available_at.is_not(None), self._begun())]

    def finished_only(self) -> list[ColumnElement[bool]]:
        """Rows that ended and are not due again."""
        columns = self.archive.c
        ended = columns.finished_at.is_not(None)
        return [and_(columns.available_at.is_(None), ended, columns.consumer_id.is_(None))]

    def never_enqueued(self) -> ColumnElement[bool]:
        """The condition for rows that are not messages."""
        columns = self.live.c
        never_due = columns.available_at.is_(None)
        return and_(columns.status.is_(None), never_due, columns.finished_at.is_(None))

    def of_any_outcome(self) -> list[ColumnElement[bool]]:
        """None, because there is no such index."""
        return []

    def removal(self, *, archived: bool = False) -> Update:
        """Empty the queue's columns."""
        columns = self.live.c
        nothing = {key: None if columns[key].nullable else 0 for key in ADDED_COLUMNS}
        extent = self.finished_only() if archived else self.live_only()
        return update(self.live).where(*extent).values(nothing)

    def end(
        self, which: ColumnElement[bool], finished: Callable[[], Mapping[str, Any]]
    ) -> Delete | Update:
        """Keep the rows, and store how they ended."""
        return update(self.live).where(which).values(finished())

    def archives(self, *, keep: bool) -> bool:
        """Never: the row is the archive."""
        del keep
        return False

    def may_refuse_end(self, *, keep: bool) -> bool:
        """Always: the row is updated."""
        del keep
        return True

    def values_of_end(self, values: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Those of the row."""
        return values()

    def in_claim_index(self) -> list[ColumnElement[bool]]:
        """As in ``QueueTables``, without rows that are not messages, or finished."""
        return [*super().in_claim_index(), self.live.c.available_at.is_not(None)]

    def key(self) -> ColumnElement[Any]:
        """None."""
        return null()

    def content(
        self, row: MessageRow, decode: Callable[[Any], Any]
    ) -> tuple[Any, Mapping[str, Any] | None, MessageRow]:
        """The user's columns, which are the payload, too."""
        del decode
        own = MappingProxyType(row.columns)
        return own, own, row._replace(columns={})

    @cached_property
    def is_plain(self) -> bool:
        """No: they are rows."""
        return False

    def expect_payloads(self, otherwise: Exception) -> None:
        """Raise the error."""
        raise otherwise

    def still_live(self) -> Mapping[str, Any]:
        """Give a row a status if it has none."""
        status = case((self._begun(), self.live.c.status), else_=NOT_ATTEMPTED)
        return {"status": status, "finished_at": None, "outcome": None}

    def after_failure(self) -> Mapping[str, Any]:
        """The status of a failed attempt."""
        return {"status": ERROR}

    def _begun(self) -> ColumnElement[bool]:
        columns = self.live.c
        return and_(columns.status.is_not(None), columns.finished_at.is_(None))


def check_column_prefix(prefix: object) -> str:
    """Check a column prefix.

    Raises:
        ValueError: it is neither empty nor 1 to 20 lower-case letters, digits and underscores.
    """
    if not isinstance(prefix, str) or (prefix and not PREFIX.match(prefix)):
        msg = (
            "column_prefix must be empty or 1 to 20 lower-case letters, digits and underscores, "
            f"beginning with a letter, not {shown(prefix)}"
        )
        raise ValueError(msg)
    return str.__str__(prefix)


def added_names(prefix: str) -> dict[str, str]:
    """The names of the columns that an adoption adds, by key."""
    return {key: prefix + key for key in ADDED_COLUMNS}


def clashing(columns: Iterable[Column[Any]], prefix: str) -> list[str]:
    """The columns of a table whose names an adoption would need; case does not count."""
    taken = set(added_names(prefix).values())
    return sorted(column.name for column in columns if column.name.lower() in taken)


def primary_key_of(table: Table) -> Column[Any]:
    """The integer primary key that a table needs to be adopted.

    Raises:
        QueueSchemaMismatch: it has none, or one of several columns or of another type.
    """
    columns = list(table.primary_key.columns)
    if len(columns) == 1 and isinstance(columns[0].type, Integer):
        return columns[0]
    found = ", ".join(f"{column.name} {column.type}" for column in columns) or "none"
    msg = (
        f"The table {table.fullname!r} cannot be adopted: it needs an integer primary key of one "
        f"column, but its primary key is: {found}."
    )
    raise QueueSchemaMismatch(msg)


def adopted_tables(
    queue: str,
    prefix: str,
    adoption: Adoption,
    columns: Sequence[Column[Any]],
    *,
    others: Collection[str],
    given: Table | None,
    system: SystemTables,
    dialect: QueueDialect,
) -> ExistingTable:
    """Define the tables of a queue in a user's table.

    ``columns`` are all reflected columns of that table; ``others`` are the names of those that
    belong to other queues. ``given`` is the user's own definition, for its types and defaults.
    """
    ours = set(added_names(adoption.column_prefix).values())
    users = [c for c in columns if c.name.lower() not in ours | set(others)]
    keys = _keys(users, adoption.primary_key)
    better = {} if given is None else {column.name: column for column in given.c}
    own = [
        _users_column(key, column, better.get(column.name, column))
        for key, column in zip(keys, users, strict=True)
    ]
    base, metadata = prefix + queue, MetaData()
    table = Table(
        adoption.table,
        metadata,
        *own,
        *_added(adoption.column_prefix, dialect.expressions),
        schema=adoption.schema,
    )
    dialect.expressions.add_queue_indexes(table, base, sparse=True)
    memory = memory_of_keys(base, metadata, dialect.expressions)
    return ExistingTable(
        queue,
        prefix,
        live=table,
        archive=table,
        dedup_keys=memory,
        system=system,
        dialect=dialect,
        own_columns=tuple(keys),
    )


def _users_column(key: str, found: Column[Any], given: Column[Any]) -> Column[Any]:
    fills_itself = found.server_default is not None
    return Column(
        found.name,
        given.type,
        key=key,
        primary_key=key == "id",
        autoincrement=key == "id" and not fills_itself and given.default is None,
        nullable=found.nullable,
        default=given.default,
        server_default=found.server_default,
    )


def _keys(columns: Sequence[Column[Any]], primary_key: str) -> list[str]:
    taken = {"id", *ADDED_COLUMNS}
    names = {column.name for column in columns}
    keys = []
    for column in columns:
        key = "id" if column.name == primary_key else column.name
        while key in taken and column.name != primary_key:
            key = f"row_{key}"
            if key in names:
                taken.add(key)
        taken.add(key)
        keys.append(key)
    return keys


def _added(prefix: str, expressions: Expressions) -> list[Column[Any]]:
    known = {column.name: column for column in message_columns_of("text", expressions)}
    known |= {
        "status": Column("status", String(20)),
        "finished_at": Column("finished_at", BigInteger),
        "outcome": Column("outcome", String(20)),
    }
    return [
        Column(
            prefix + key,
            known[key].type,
            key=key,
            nullable=known[key].server_default is None,
            server_default=known[key].server_default,
        )
        for key in ADDED_COLUMNS
    ]
