"""The limit's operations on one connection of a bare driver, by engine."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from queue_over_sql.claiming import statements as claim
from queue_over_sql.claiming.low_watermark import SLACK_US
from queue_over_sql.dialects import at_once
from queue_over_sql.dialects.postgresql import claim as postgresql
from queue_over_sql.publishing import statements as publish
from queue_over_sql.queues.purge import remove_ids
from queue_over_sql.schema.queue_tables import MESSAGE_COLUMNS
from queue_over_sql.settling import statements as settle
from queue_over_sql.sql.compiled import Builder, StatementCache
from queue_over_sql.statements.clock import select_clock
from queue_over_sql.statements.parameters import bucket_of
from queue_over_sql.statements.requests import ANY_EDITS
from scripts.benchmarks.contenders.serving import number_of

CONSUMER = "00000000-0000-4000-8000-000000000000"
_LEASE_US = 300_000_000
_ID, _PAYLOAD, _AVAILABLE = (MESSAGE_COLUMNS.index(c) for c in ("id", "payload", "available_at"))
_NAMED = re.compile(r"%\((\w+)\)s")


class Text:
    """A statement of queue_over_sql for the bare driver.

    Args:
        sql: the statements of the queue.
        builder: of the statement.
        variant: of the builder.
        changing: the parameters of each call, in order.
        fixed: the other parameters.
    """

    def __init__(
        self,
        sql: StatementCache,
        builder: Builder,
        variant: Sequence[Any],
        *,
        changing: Sequence[str] = (),
        fixed: Mapping[str, Any] | None = None,
    ) -> None:
        markers = {name: object() for name in changing}
        text, values = sql.get(builder, *variant).bound({**(fixed or {}), **markers})
        if isinstance(values, dict):
            values = [values[name] for name in _NAMED.findall(text)]
            text = _NAMED.sub("%s", text)
        self.text: str = text
        self._values = list(values)
        self._places = [
            (index, place)
            for index, name in enumerate(changing)
            for place, value in enumerate(values)
            if value is markers[name]
        ]

    def values(self, *given: Any) -> list[Any]:
        """The parameters of a call."""
        values = self._values.copy()
        for index, place in self._places:
            values[place] = given[index]
        return values


class Session:
    """One connection: publishes, claims and acknowledges; the base class for the engines.

    Args:
        sql: the statements of the queue, for this session alone.
        connection: of the driver, in autocommit mode.
        durable: whether commits must wait for the disk, if there is a choice.
    """

    mark: ClassVar[str] = "?"
    """What stands for a parameter."""
    begin: ClassVar[str] = "BEGIN"
    rows_per_insert: ClassVar[int] = 1_000

    def __init__(self, sql: StatementCache, connection: Any, *, durable: bool) -> None:
        del durable
        self.cursor = connection.cursor()
        self._sql = sql
        self._round = 0
        self._low = 0
        tables = sql.subject
        self._table = tables.live.name
        self._now = sql.get(select_clock).text.partition("SELECT ")[2].rpartition(" AS ")[0]
        self._publish = Text(
            sql,
            publish.publish,
            (False, ("payload", "priority"), True),
            changing=["p_payload"],
            fixed={"p_priority": 0},
        )
        self._removals: dict[int, Text] = {}
        wanted = {"p_priority": 0, "p_edits": ANY_EDITS}
        stamp = {"p_consumer": CONSUMER, "p_lease": None, "p_queue_lease": _LEASE_US}
        self._wanted, self._stamp = wanted, stamp
        self._pick = Text(
            sql, claim.pick_rows, (None,), changing=["p_low", "p_count"], fixed=wanted
        )
        self._marks: dict[int, Text] = {}
        self._ends: dict[int, Text] = {}

    # -- publish

    def publish(self, payload: str) -> None:
        """One message, one commit."""
        self.cursor.execute(self._publish.text, self._publish.values(payload))

    def publish_many(self, payloads: Sequence[str]) -> None:
        """One multi-row INSERT, and one commit."""
        self.cursor.execute(self._insert(len(payloads)), list(payloads))

    def load(self, payloads: Sequence[str]) -> None:
        """Multi-row INSERTs in one transaction."""
        self.run(self.begin)
        for start in range(0, len(payloads), self.rows_per_insert):
            self.publish_many(payloads[start : start + self.rows_per_insert])
        self.run("COMMIT")

    def _insert(self, rows: int) -> str:
        row = f"({self.mark}, 0, {self._now}, {self._now}, {self._now}, 0)"
        return f"INSERT INTO {self._target()} VALUES {', '.join([row] * rows)}"

    def _target(self) -> str:
        columns = "payload, priority, published_at, scheduled_at, available_at, attempt_count"
        return f"{self._table} ({columns})"

    # -- claim and ack

    def claim(self, count: int) -> list[tuple[int, int]]:
        """The ids and numbers of the next messages above the watermark, else of all.

        As on engines without UPDATE … RETURNING: lock, then stamp by primary key.
        """
        self.run(self.begin)
        found = self._claim(count)
        self.run("COMMIT")
        return found

    def ack(self, ids: Sequence[int]) -> None:
        """Remove the last claimed messages, under the fence."""
        removal = self._ids_text(self._removals, settle.remove, len(ids), ["p_round"])
        self.cursor.execute(removal.text, removal.values(*_padded(ids), self._round))
        if self._removed() != len(ids):
            msg = "a claim was lost"
            raise RuntimeError(msg)

    def exchange(self, ids: Sequence[int], count: int) -> list[tuple[int, int]]:
        """Acknowledge and claim in one transaction."""
        self.run(self.begin)
        self.ack(ids)
        found = self._claim(count)
        self.run("COMMIT")
        return found

    def take(self, count: int) -> list[int]:
        """Remove in one transaction; returns the numbers."""
        self.run(self.begin)
        rows = self._from_mark(self._pick, count)
        if rows:
            ids = [row[_ID] for row in rows]
            removal = self._ids_text(self._ends, remove_ids, len(ids), [])
            self.cursor.execute(removal.text, removal.values(*_padded(ids)))
        self.run("COMMIT")
        return [number_of(row[_PAYLOAD]) for row in rows]

    def run(self, statement: str) -> None:
        """A statement without parameters."""
        self.cursor.execute(statement)

    def _claim(self, count: int) -> list[tuple[int, int]]:
        rows = self._from_mark(self._pick, count)
        if not rows:
            return []
        self._round += 1
        ids = [row[_ID] for row in rows]
        stamp = self._ids_text(self._marks, claim.mark, len(ids), ["p_round", "p_now"])
        self.cursor.execute(stamp.text, stamp.values(*_padded(ids), self._round, rows[0][-1]))
        return _numbered(rows)

    def _from_mark(self, text: Text, count: int, *more: Any) -> Sequence[Sequence[Any]]:
        rows = self._rows(text, self._low, count, *more)
        if not rows and self._low:
            rows = self._rows(text, 0, count, *more)
        if rows:
            self._low = max(row[_AVAILABLE] for row in rows) - SLACK_US
        return rows

    def _rows(self, text: Text, *given: Any) -> Sequence[Sequence[Any]]:
        self.cursor.execute(text.text, text.values(*given))
        rows: Sequence[Sequence[Any]] = self.cursor.fetchall()
        return rows

    def _removed(self) -> int:
        removed: int = self.cursor.rowcount
        return removed

    def _ids_text(
        self, kept: dict[int, Text], builder: Builder, count: int, more: Sequence[str]
    ) -> Text:
        size = bucket_of(count)
        if size not in kept:
            names = [*(f"p_id_{index}" for index in range(size)), *more]
            kept[size] = Text(self._sql, builder, (size,), changing=names, fixed=self._stamp)
        return kept[size]


class ClaimsAtOnce(Session):
    """An engine whose claim is one statement, and therefore one commit."""

    def __init__(
        self, sql: StatementCache, connection: Any, claim_at_once: Builder, *, durable: bool
    ) -> None:
        super().__init__(sql, connection, durable=durable)
        self._at_once = Text(
            sql,
            claim_at_once,
            (None,),
            changing=["p_low", "p_count", "p_round"],
            fixed=self._wanted | self._stamp,
        )

    def claim(self, count: int) -> list[tuple[int, int]]:
        """One statement."""
        return self._claim(count)

    def _claim(self, count: int) -> list[tuple[int, int]]:
        self._round += 1
        return _numbered(self._from_mark(self._at_once, count, self._round))

    def _removed(self) -> int:
        return len(self.cursor.fetchall())


class PostgresqlSession(ClaimsAtOnce):
    """psycopg: exchange in one statement too, and COPY."""

    mark = "%s"

    def __init__(self, sql: StatementCache, connection: Any, *, durable: bool) -> None:
        super().__init__(sql, connection, at_once.claim_at_once, durable=durable)
        self._exchange = Text(
            sql,
            postgresql.exchange_at_once,
            (1, False, None),
            changing=["p_id_0", "p_held_round", "p_low", "p_count", "p_round"],
            fixed={**self._wanted, **self._stamp, "p_held_by": CONSUMER, "p_expected": 1},
        )

    def exchange(self, ids: Sequence[int], count: int) -> list[tuple[int, int]]:
        """One statement."""
        if len(ids) > 1:
            return super().exchange(ids, count)
        held = self._round
        self._round += 1
        rows = self._rows(self._exchange, ids[0], held, self._low, count, self._round)
        if rows[0][0] != 1:
            msg = "a claim was lost"
            raise RuntimeError(msg)
        found = [row[2:] for row in rows if row[2] is not None]
        if found:
            self._low = max(row[_AVAILABLE] for row in found) - SLACK_US
        return _numbered(found)

    def load(self, payloads: Sequence[str]) -> None:
        """COPY."""
        self.cursor.execute(f"SELECT {self._now}")
        (now,) = self.cursor.fetchone()
        with self.cursor.copy(f"COPY {self._target()} FROM STDIN") as copy:
            for payload in payloads:
                copy.write_row((payload, 0, now, now, now, 0))


class SqliteSession(ClaimsAtOnce):
    """sqlite3; claims and acks do not wait for the disk, as in queue_over_sql."""

    begin = "BEGIN IMMEDIATE"

    def __init__(self, sql: StatementCache, connection: Any, *, durable: bool) -> None:
        super().__init__(sql, connection, at_once.claim_at_once, durable=durable)
        self.run(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        self.run("PRAGMA busy_timeout = 10000")

    def publish(self, payload: str) -> None:
        """Read all its rows, because SQLite commits after the last one."""
        super().publish(payload)
        self.cursor.fetchall()


class MariadbSession(Session):
    """PyMySQL."""

    mark = "%s"
    begin = "START TRANSACTION"

    def __init__(self, sql: StatementCache, connection: Any, *, durable: bool) -> None:
        super().__init__(sql, connection, durable=durable)
        self.run("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")

    def _removed(self) -> int:
        # DELETE … RETURNING, if the server supports it.
        return len(self.cursor.fetchall()) or super()._removed()


class H2Session(Session):
    """H2 through JDBC, by the driver of queue_over_sql."""

    rows_per_insert = 250


def _padded(ids: Sequence[int]) -> Iterable[int]:
    return [*ids, *[ids[-1]] * (bucket_of(len(ids)) - len(ids))]


def _numbered(rows: Iterable[Sequence[Any]]) -> list[tuple[int, int]]:
    return [(row[_ID], number_of(row[_PAYLOAD])) for row in rows]


SESSIONS: Mapping[str, type[Session]] = {
    "postgresql": PostgresqlSession,
    "sqlite": SqliteSession,
    "mysql": MariadbSession,
    "mariadb": MariadbSession,
    "h2": H2Session,
}
