"""SQL in which engines differ: types, expressions, statements, indexes and hints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy import (
    BigInteger,
    Computed,
    Index,
    LargeBinary,
    String,
    Text,
    and_,
    cast,
    delete,
    func,
    insert,
    literal_column,
)
from sqlalchemy.schema import CreateTable

from queue_over_sql.errors import UnsupportedByEngine
from queue_over_sql.values.limits import GROUP_LENGTH

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy import (
        ClauseElement,
        Column,
        ColumnElement,
        Delete,
        FromClause,
        Insert,
        Table,
        Update,
    )
    from sqlalchemy.types import TypeEngine

    from queue_over_sql.sql.conditions import JsonPath, JsonScalar
    from queue_over_sql.sql.features import Features


def microseconds(expression: str) -> ColumnElement[int]:
    """An engine's SQL for the current time, without parameters, so that calls are fast."""
    return literal_column(expression, BigInteger())


class Expressions:
    """The portable SQL, for code that only builds tables and statements.

    Args:
        features: of the server.
    """

    collation: ClassVar[str] = ""
    """The collation of an ``exact_string``, if the engine names one."""
    table_options: ClassVar[Mapping[str, Any]] = {}
    """Options of every table."""
    live_table_options: ClassVar[Mapping[str, Any]] = {}
    """Further options of the tables of live messages."""
    groups_table_options: ClassVar[Mapping[str, Any]] = {}
    """Further options of the tables of groups, of which claims change rows again and again."""
    stage_table_options: ClassVar[Mapping[str, Any]] = {}
    """Options of tables that may lose rows in a crash, because their readers count the rows."""

    def __init__(self, features: Features) -> None:
        self.features = features

    def create_table(self, table: Table, *, if_not_exists: bool = False) -> CreateTable:
        """The statement that creates a table, with the options that it was given above."""
        return CreateTable(table, if_not_exists=if_not_exists)

    # -- types

    @property
    def identity(self) -> TypeEngine[Any]:
        """The type of the identity column."""
        return BigInteger()

    def exact_string(self, length: int) -> TypeEngine[Any]:
        """A string type with exact comparison: case, accents and spaces count."""
        return String(length)

    def payload_type(self, payload: str) -> TypeEngine[Any]:
        """The column type of a payload type."""
        return LargeBinary() if payload == "bytes" else Text()

    def reason_type(self) -> TypeEngine[Any]:
        """The type of a failure's text as a parameter: it escapes what the database cannot hold."""
        return String()

    def json_check(self, column: str) -> str | None:
        """A check constraint that keeps other clients from storing invalid JSON."""
        del column
        return None

    def limit_of_waits(self, milliseconds: int) -> ColumnElement[bool] | None:
        """A condition that is true, and limits the waits for locks until the transaction ends.

        None: the engine limits them anyway.
        """
        del milliseconds
        return None

    def read_payload(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Select a payload so that the driver returns ``str`` or ``bytes`` unchanged."""
        return column

    def holds_number(self, value: float, *, exact: bool) -> bool:
        """Whether a column of floats, or with ``exact`` of decimals, can hold NaN or infinity.

        Every column holds finite numbers.
        """
        del value, exact
        return True

    def result_code(self, kind: TypeEngine[Any]) -> Any:
        """The driver's type code, if SQLAlchemy needs it to read values of the type."""
        return None

    def exact_converter(
        self, kind: TypeEngine[Any], convert: Callable[[Any], Any] | None
    ) -> Callable[[Any], Any] | None:
        """A converter that returns a driver's value as it is, where ``convert`` would change it."""
        return convert

    # -- expressions

    def now(self) -> ColumnElement[int]:
        """The database's clock as microseconds since the epoch, one value per statement."""
        return microseconds("CAST(EXTRACT(EPOCH FROM CURRENT_TIMESTAMP) * 1000000 AS BIGINT)")

    def heartbeat_now(self) -> ColumnElement[int]:
        """The clock of all heartbeats; as ``now``, but a ``testing.Clock`` does not move it."""
        return self.now()

    def differs(self, column: ColumnElement[Any], other: ColumnElement[Any]) -> ColumnElement[bool]:
        """Whether two columns of one type differ exactly; NULL equals NULL."""
        return column.is_distinct_from(other)

    def payload_equals(
        self, column: ColumnElement[Any], path: JsonPath, value: JsonScalar
    ) -> ColumnElement[bool]:
        """Whether a JSON payload has this field, equal by type and value; 1 equals 1.0.

        Raises:
            UnsupportedByEngine: this engine cannot search in JSON.
        """
        del column, path, value
        name = self.features.name
        msg = f"{name} cannot search by fields of the payload: use the queue's own columns."
        raise UnsupportedByEngine(msg)

    def is_claimed(self, table: Table) -> ColumnElement[bool]:
        """The condition for claimed rows, written so that an index serves it."""
        return table.c.consumer_id.is_not(None)

    def unclaimed_range(self, consumer_id: ColumnElement[Any]) -> ColumnElement[bool]:
        """The condition for unclaimed rows, so that a claim starts at its place in the index."""
        return consumer_id.is_(None)

    # -- statements

    def insert(self, table: Table) -> Insert:
        """The engine's own INSERT."""
        return insert(table)

    def ignore_conflict(self, statement: Insert, columns: Sequence[Column[Any]]) -> Insert:
        """Let an INSERT skip rows that a constraint on these columns refuses.

        It needs ``conflict_clause``.
        """
        del columns
        return statement

    def lock_conflict(
        self,
        statement: Insert,
        columns: Sequence[Column[Any]],
        values: Mapping[Column[Any], ColumnElement[Any]],
    ) -> Insert:
        """As ``ignore_conflict``, but lock each row that refuses one, where the engine can.

        So an INSERT takes all locks in the order of its rows, of which no two may have the same
        value. ``values``: what the login may write. It is not written.
        """
        del values
        return self.ignore_conflict(statement, columns)

    def as_code_points(self, text: ColumnElement[Any]) -> ColumnElement[Any]:
        """A text that ORDER BY sorts as Python does; only where the engine ``sorts_locks``."""
        return text

    # -- indexes

    def add_queue_indexes(self, table: Table, base: str, *, sparse: bool = False) -> None:
        """Define the claim index and, if needed, the index on the lease.

        Args:
            table: the table of the queue's messages.
            base: prefix of the names of the indexes.
            sparse: whether most rows of the table are not live messages.
        """
        del sparse
        c = table.c
        Index(f"{base}_claim_ix", c.consumer_id, c.priority, c.available_at, c.id)

    def add_group_indexes(self, table: Table, base: str) -> None:
        """Define the index that has the messages of each group, those in hand apart."""
        c = table.c
        Index(f"{base}_group_ix", c.group_key, c.consumer_id, c.id)

    def add_index_of_rates(self, groups: Table) -> None:
        """Define an index of rates of single groups, if claims need to know of any."""

    def add_index_of_errors(self, archive: Table) -> None:
        """Define the index that has the dead letters with the same error."""
        c = archive.c
        Index(f"{archive.name}_err_ix", c.outcome, c.error_fingerprint, c.finished_at)

    def as_group(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """The group that a column of a user's table names: its text, as far as a group may be long.

        A longer text must not make the user's own INSERT fail.
        """
        text: ColumnElement[Any] = func.substr(
            cast(column, String), literal_column("1"), literal_column(str(GROUP_LENGTH))
        )
        return text

    def computed(self, expression: ColumnElement[Any]) -> Computed:
        """What makes a column one that the database computes, and that an index may have."""
        return Computed(expression, persisted=False)

    def claim_index_hint(self, base: str) -> str | None:
        """A hint with which a locking select follows the claim index and needs no ORDER BY."""
        del base
        return None

    def claim_range_hint(self, base: str) -> str | None:
        """A hint with which a claim starts at its watermark in the index, not at its level."""
        del base
        return None

    def order_in_group(self, table: FromClause) -> Sequence[ColumnElement[Any]]:
        """The order by id of a group's unclaimed messages, so that its index gives it."""
        return [table.c.id]

    def in_group(
        self, group_key: ColumnElement[Any], name: ColumnElement[Any]
    ) -> ColumnElement[bool]:
        """The condition for messages of one group, in the order of ``order_in_group``."""
        return group_key == name

    def group_index_hint(self, base: str) -> str | None:
        """A hint with which a select reads no messages but those of the groups that it names."""
        del base
        return None

    def archive_index_hint(self, base: str) -> str | None:
        """A hint with which pruning reads only its outcome in the archive's index."""
        del base
        return None

    def errors_index_hint(self, base: str) -> str | None:
        """A hint with which dead letters without a fingerprint are found, and no others read."""
        del base
        return None

    def id_index_hint(self) -> str | None:
        """A hint with which what names rows by id reads no others, however few there seem to be."""
        return None

    def delete_by_ids(
        self,
        table: Table,
        ids: Sequence[ColumnElement[Any]],
        condition: ColumnElement[bool] | None = None,
    ) -> ClauseElement:
        """A DELETE of rows by id, of those that meet the condition."""
        named = table.c.id.in_(ids) if len(ids) > 1 else table.c.id == ids[0]
        return delete(table).where(named if condition is None else and_(named, condition))

    def by_range_of_ids(self, deletion: Delete | Update) -> ClauseElement:
        """A DELETE of rows by id that returns some, so that it reads no others."""
        return deletion

    def rounds_index_hint(self, base: str) -> str | None:
        """A hint for the index on rounds, if the engine would read the whole table."""
        del base
        return None
