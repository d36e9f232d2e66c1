"""Existing tables: a queue's columns in a user's table, whose rows are the messages."""

from __future__ import annotations

import dataclasses
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Enum,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    Uuid,
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
    rows_of_groups_in,
)
from queue_over_sql.values.cached import cached_property
from queue_over_sql.values.limits import GROUP_LENGTH
from queue_over_sql.values.options import GROUP_KEY

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
COLUMNS_FOR_GROUPS: Final = ("parked_at", "blocks", GROUP_KEY)
"""Those that it adds besides if messages have a group. The database computes the last one."""


@dataclasses.dataclass(frozen=True, eq=False)
class ExistingTable(QueueTables):
    """A user's table, which holds both the live and the finished messages.

    Its columns have the keys of every queue's columns: ``id`` is the user's primary key, whatever
    its name. A row is a live message if it has a due time, or has a status but is not finished
    (then it is held). It is a finished message if it is not due any more and has ended. Any other
    row is not a message. The owner of a row may enqueue it by setting ``available_at`` alone.

    With groups the column ``group_key`` is computed from the one that the user named. It is NULL
    for a row that is not a live message, so that the indexes of groups have only these.

    Attributes:
        group_column: the key of the column that names a message's group.
    """

    group_column: str | None = None

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
        if self.grouped:
            due = MESSAGE_COLUMNS.index("available_at")
            core[due] = func.coalesce(columns.available_at, columns.parked_at).label("m_due")
        own = [self._own(table, key).label(f"row_{i}") for i, key in enumerate(self.own_columns)]
        return [*core, *own]

    def _own(self, table: Table, key: str) -> ColumnElement[Any]:
        if key == GROUP_KEY and self.group_column is not None:
            # The computed column has nothing for finished rows.
            return self.expressions.as_group(table.c[self.group_column])
        return table.c[key]

    def archived_group(self) -> ColumnElement[Any]:
        """As in ``QueueTables``, by the user's column."""
        return self._own(self.archive, GROUP_KEY)

    @cached_property
    def own_names(self) -> tuple[str, ...]:
        """As in ``QueueTables``; the group has the name that it has in every queue."""
        names = zip(self.own_columns, super().own_names, strict=True)
        return tuple(GROUP_KEY if self.is_group(key) else name for key, name in names)

    def is_group(self, key: str) -> bool:
        """Whether a column is the computed one with the group."""
        return self.grouped and key == GROUP_KEY

    @cached_property
    def added_columns(self) -> tuple[str, ...]:
        """The keys of the columns that the adoption added."""
        return added_keys(grouped=self.grouped)

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
        return [or_(*[time.is_not(None) for time in self._due_times()], self._begun())]

    def finished_only(self) -> list[ColumnElement[bool]]:
        """Rows that ended and are not due again."""
        columns = self.archive.c
        ended = columns.finished_at.is_not(None)
        return [and_(self.is_held(), ended, columns.consumer_id.is_(None))]

    def never_enqueued(self) -> ColumnElement[bool]:
        """The condition for rows that are not messages."""
        columns = self.live.c
        return and_(columns.status.is_(None), self.is_held(), columns.finished_at.is_(None))

    def of_any_outcome(self) -> list[ColumnElement[bool]]:
        """None, because there is no such index."""
        return []

    def removal(self, *, archived: bool = False) -> Update:
        """Empty the queue's columns."""
        columns = self.live.c
        ours = [key for key in self.added_columns if not self.is_group(key)]
        nothing = {key: None if columns[key].nullable else 0 for key in ours}
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
        group = {name: value for name, value in row.columns.items() if self.is_group(name)}
        users = {name: value for name, value in row.columns.items() if name not in group}
        own = MappingProxyType(users)
        return own, own, row._replace(columns=group)

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


def added_keys(*, grouped: bool) -> tuple[str, ...]:
    """The keys of the columns that an adoption adds."""
    return (*ADDED_COLUMNS, *(COLUMNS_FOR_GROUPS if grouped else ()))


def added_names(adoption: Adoption) -> dict[str, str]:
    """The names of the columns that an adoption adds, by key."""
    keys = added_keys(grouped=adoption.group is not None)
    return {key: adoption.column_prefix + key for key in keys}


def clashing(columns: Iterable[Column[Any]], adoption: Adoption) -> list[str]:
    """The columns of a table whose names an adoption would need; case does not count."""
    taken = set(added_names(adoption).values())
    return sorted(column.name for column in columns if column.name.lower() in taken)


def check_group_column(found: Table, name: object) -> None:
    """Check the column that names the groups of a user's rows.

    Raises:
        TypeError: the name is no text.
        QueueSchemaMismatch: there is no such column, or it has another type.
    """
    if not isinstance(name, str):
        msg = f"group must be the name of a column of the table, not {shown(name)}"
        raise TypeError(msg)
    column = found.c.get(name)
    if column is None:
        msg = (
            f"The table {found.fullname!r} has no column {name!r}, which group= names. Its "
            f"columns are: {', '.join(found.c.keys())}."
        )
        raise QueueSchemaMismatch(msg)
    kind = column.type
    if isinstance(kind, Enum) or not isinstance(kind, (String, Integer, Uuid)):
        msg = (
            f"The column {name!r} of the table {found.fullname!r} cannot name groups, because its "
            f"type is {kind}. Use a column with text, whole numbers or UUIDs."
        )
        raise QueueSchemaMismatch(msg)


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
        f"column, but its primary key is: {found}. Make an integer column the primary key, and "
        "keep what identifies a row now as a unique column. Or leave the table as it is, and "
        "publish what identifies a row to another queue."
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
    ours, grouped = set(added_names(adoption).values()), adoption.group is not None
    users = [c for c in columns if c.name.lower() not in ours | set(others)]
    keys = _keys(users, adoption.primary_key, grouped=grouped)
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
    known = {column.name: key for column, key in zip(users, keys, strict=True)}
    group_column = None if adoption.group is None else known.get(adoption.group)
    groups = None
    if adoption.group is not None:
        if group_column is None:
            raise QueueSchemaMismatch(_lost_group(adoption, queue))
        _add_group_columns(table, adoption.column_prefix, group_column, dialect.expressions)
        dialect.expressions.add_group_indexes(table, base)
        shared = MetaData(schema=system.metadata.schema)
        groups = rows_of_groups_in(base, shared, dialect.expressions)
    return ExistingTable(
        queue,
        prefix,
        live=table,
        archive=table,
        dedup_keys=memory,
        system=system,
        dialect=dialect,
        own_columns=(*keys, *([GROUP_KEY] if grouped else ())),
        groups=groups,
        group_column=group_column,
    )


def _lost_group(adoption: Adoption, queue: str) -> str:
    return (
        f"The table {adoption.where!r} has lost its column {adoption.group!r}, which names the "
        f"groups of queue {queue!r}. Restore the column, or drop the queue."
    )


def _add_group_columns(
    table: Table, prefix: str, group_column: str, expressions: Expressions
) -> None:
    table.append_column(Column(f"{prefix}parked_at", BigInteger, key="parked_at"))
    table.append_column(Column(f"{prefix}blocks", SmallInteger, key="blocks"))
    c = table.c
    live = or_(
        *[c[key].is_not(None) for key in ("consumer_id", "available_at", "parked_at")],
        and_(c.status.is_not(None), c.finished_at.is_(None)),
    )
    computed = expressions.computed(case((live, expressions.as_group(c[group_column]))))
    kind = expressions.exact_string(GROUP_LENGTH)
    table.append_column(Column(f"{prefix}{GROUP_KEY}", kind, computed, key=GROUP_KEY))


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


def _keys(columns: Sequence[Column[Any]], primary_key: str, *, grouped: bool) -> list[str]:
    taken = {"id", *added_keys(grouped=grouped)}
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
