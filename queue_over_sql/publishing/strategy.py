"""How an engine inserts many messages: in a statement of its own, or in bulk."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    from sqlalchemy import Connection, Table

    from queue_over_sql.sql.compiled import StatementCache
    from queue_over_sql.sql.dialect import QueueDialect
    from queue_over_sql.statements.requests import NewRows


class Inserts:
    """Has no statement of its own, so that the usual multi-row INSERT is used."""

    rows_at_once: ClassVar[int | None] = None
    """How many messages ``publish`` accepts at most; None if there is no such statement."""
    loads_as_it_comes: ClassVar[bool] = False
    """``load`` sends rows while it receives further ones, without a lock that others need."""

    def __init__(self, dialect: QueueDialect) -> None:
        self._features = dialect.features

    def publish(
        self, connection: Connection, sql: StatementCache, rows: NewRows
    ) -> Sequence[Sequence[Any]] | None:
        """Insert messages in one statement of the engine's own, skipping taken keys.

        Returns:
            Id and key of each inserted message; None if the usual statement must be used.
        """
        return None

    def load(self, connection: Connection, sql: StatementCache, rows: NewRows) -> bool:
        """Insert rows in the engine's own bulk way; False if it has none."""
        return False

    def check_sent(self, values: Iterable[Any]) -> None:
        """Refuse values that together may exceed the server's ``statement_bytes``.

        Raises:
            PayloadTooLarge: they do.
        """

    @contextlib.contextmanager
    def trusting_rows(self, connection: Connection, table: Table) -> Iterator[None]:
        """Skip this table's CHECKs during the block, for rows that passed them elsewhere.

        Only if the engine can do this, and the table has no other CHECKs than ours.
        """
        yield
