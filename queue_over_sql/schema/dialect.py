"""What databases write differently in tables and statements: types, expressions, indexes, hints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy import BigInteger, Index, LargeBinary, String, Text, and_, insert, literal_column

from queue_over_sql.errors import UnsupportedByEngine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import ColumnElement, Insert, Table
    from sqlalchemy.types import TypeEngine

    from queue_over_sql.schema.conditions import JsonPath, JsonScalar


def microseconds(expression: str) -> ColumnElement[int]:
    """An engine's expression of an instant, without parameters, so that it costs none per call."""
    return literal_column(expression, BigInteger())


class SqlDialect:
    """The portable forms, and the base of those of known engines.

    The class attributes are capabilities.
    """

    name: ClassVar[str] = "generic"

    identifier_limit = 63
    skip_locked = False
    """SELECT … FOR UPDATE SKIP LOCKED works."""
    update_returning = False
    """UPDATE … RETURNING works and sees each row once."""
    delete_returning = False
    """DELETE … RETURNING works."""
    insert_returning = False
    """INSERT … VALUES (…), (…) RETURNING works."""
    conflict_clause = False
    """INSERT … ON CONFLICT DO NOTHING works."""
    collation: ClassVar[str] = ""
    """What an ``exact_string`` is compared by, where that has a name."""
    table_options: ClassVar[Mapping[str, Any]] = {}
    live_table_options: ClassVar[Mapping[str, Any]] = {}
    stage_table_options: ClassVar[Mapping[str, Any]] = {}
    """Of tables whose rows are counted when they are read, so that a crash may lose some."""
    updates_from = False
    """UPDATE takes its values from another table by a join."""
    stage_piece: int | None = None
    """How many messages of a stage one INSERT moves, which keeps others waiting; None for all."""
    checks_json = False
    """A queue's table refuses payloads that are no JSON."""
    counts_utf16 = False
    """The length of a text is its units of UTF-16, of which an emoji has two."""
    nul_in_text = True
    """Text columns hold NUL characters."""
    doubtful_json: str | None = None
    """A regular expression found in whatever the table takes for JSON though it is none."""

    # -- types

    @property
    def identity(self) -> TypeEngine[Any]:
        """The type of the identity column."""
        return BigInteger()

    def exact_string(self, length: int) -> TypeEngine[Any]:
        """A string that compares by its characters alone: case, accents and spaces count."""
        return String(length)

    def payload_type(self, payload: str) -> TypeEngine[Any]:
        """The column type of a payload type."""
        return LargeBinary() if payload == "bytes" else Text()

    def json_check(self, column: str) -> str | None:
        """A check constraint that keeps other clients from storing what is no JSON."""
        del column
        return None

    def read_payload(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """How a payload is selected so that the driver returns ``str`` or ``bytes`` unchanged."""
        return column

    def holds_number(self, value: float, *, exact: bool) -> bool:
        """Whether a column of floats, or one of exact decimal numbers, keeps NaN or an infinity.

        Finite numbers always are held.
        """
        del value, exact
        return True

    # -- expressions

    def now(self) -> ColumnElement[int]:
        """The database's clock as microseconds since the epoch, one value per statement."""
        return microseconds("CAST(EXTRACT(EPOCH FROM CURRENT_TIMESTAMP) * 1000000 AS BIGINT)")

    def differs(self, column: ColumnElement[Any], other: ColumnElement[Any]) -> ColumnElement[bool]:
        """Two columns of one type do not hold the same, exactly; NULL is the same as NULL."""
        return column.is_distinct_from(other)

    def payload_equals(
        self, column: ColumnElement[Any], path: JsonPath, value: JsonScalar
    ) -> ColumnElement[bool]:
        """A field of a JSON payload is there and equal, by type and value; 1 equals 1.0.

        Raises:
            UnsupportedByEngine: this engine cannot look into JSON.
        """
        del column, path, value
        msg = f"{self.name} cannot search by fields of the payload: use the queue's own columns."
        raise UnsupportedByEngine(msg)

    def is_claimed(self, table: Table) -> ColumnElement[bool]:
        """The row is claimed, in the words under which an index finds such rows."""
        return table.c.consumer_id.is_not(None)

    def unclaimed_range(self, consumer_id: ColumnElement[Any]) -> ColumnElement[bool]:
        """Nobody holds a message, said so that a pick enters the claim index at its mark."""
        return consumer_id.is_(None)

    # -- statements

    def insert(self, table: Table) -> Insert:
        """An INSERT of the engine's own kind."""
        return insert(table)

    def ignore_conflict(self, statement: Insert, column: ColumnElement[Any]) -> Insert:
        """Let an INSERT pass over rows whose ``column`` is taken; needs ``conflict_clause``."""
        del column
        return statement

    # -- indexes

    def add_queue_indexes(self, table: Table, base: str, *, sparse: bool = False) -> None:
        """Define the claim index and, where it is needed, the index on the lease.

        Args:
            table: the table of the queue's messages.
            base: what the names of its indexes begin with.
            sparse: most rows of the table are no live messages.
        """
        del sparse
        c = table.c
        Index(f"{base}_claim_ix", c.consumer_id, c.priority, c.available_at, c.id)

    def claim_index_hint(self, base: str) -> str | None:
        """A hint under which a locking pick needs no ORDER BY, because it follows the index."""
        del base
        return None

    def claim_range_hint(self, base: str) -> str | None:
        """A hint under which a pick enters the claim index at its mark and not at its level."""
        del base
        return None

    def archive_index_hint(self, base: str) -> str | None:
        """A hint under which pruning enters the archive's index at the outcome that it prunes."""
        del base
        return None

    def rounds_index_hint(self, base: str) -> str | None:
        """A hint that leads to what rounds hold, where the engine would read the whole table."""
        del base
        return None


def add_partial_indexes(
    dialect: SqlDialect, table: Table, base: str, *, option: str, sparse: bool
) -> None:
    """Define the claim index of unclaimed rows and the one on the lease of claimed ones.

    The fence must not imply the latter: with ``consumer_id IS NOT NULL`` as its predicate
    PostgreSQL's planner runs every ack through it, over all dead entries of past claims.
    ``option`` is what SQLAlchemy calls the condition of an index on that engine.
    """
    columns = table.c
    free: ColumnElement[bool] = columns.consumer_id.is_(None)
    if sparse:
        free = and_(free, columns.available_at.is_not(None))
    unclaimed: dict[str, Any] = {option: free}
    claimed: dict[str, Any] = {option: dialect.is_claimed(table)}
    Index(f"{base}_claim_ix", columns.priority, columns.available_at, columns.id, **unclaimed)
    Index(f"{base}_lease_ix", columns.lease_expires_at, **claimed)
