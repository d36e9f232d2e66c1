"""The SQL pattern of the Java ancestor of queue_over_sql, on H2.

An UPDATE with a sub-select marks a message: it sorts the table and picks one that nobody holds, or
that was held for too long. The consumer reads the message by its mark and removes it by its id.
Each column has its own index. Unlike the ancestor this keeps its connection, so that it measures
the pattern alone; ``ancestor_as_written`` connects for each statement, as the ancestor does.
Consumers at the same moment mark the same messages.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

from sqlalchemy import create_engine

from scripts.benchmarks.contenders.serving import Contender, number_of, serve

_COLUMNS = ("consumer_id", "consumer_round", "consume_time", "publish_time", "ttl")
_CREATE = """
CREATE TABLE IF NOT EXISTS tasks (
  id BIGINT NOT NULL PRIMARY KEY, message VARCHAR(100000), consumer_id VARCHAR(128),
  consumer_round BIGINT, publish_time BIGINT, consume_time BIGINT, ttl BIGINT)
"""
_PUBLISH = "INSERT INTO tasks (id, message, publish_time) VALUES (?, ?, ?)"
_MARK = """
UPDATE tasks SET consumer_id = ?, consumer_round = ?, consume_time = ?
 WHERE id IN (
   SELECT id FROM (SELECT id, consume_time, ttl FROM tasks ORDER BY publish_time)
    WHERE consume_time IS NULL OR consume_time < ? OR ttl < ? LIMIT ?)
"""
_READ = "SELECT id, message FROM tasks WHERE consumer_id = ? AND consumer_round = ?"
_DELETE = "DELETE FROM tasks WHERE id = ?"
_COUNT = "SELECT COUNT(*) FROM tasks"
# The time in milliseconds after which a message can be claimed again.
_TIMEOUT = 300_000


class Ancestor(Contender):
    """One consumer with one connection, which commits each statement."""

    name = "ancestor"
    durability = "each commit is written; it survives the process, not a power cut"
    batches = False

    @property
    def version(self) -> str:
        """It was never released."""
        return "its pattern"

    def prepare(self) -> None:
        """Create the table and an index on each column."""
        self.open()
        self.run(_CREATE)
        for column in _COLUMNS:
            self.run(f"CREATE INDEX IF NOT EXISTS {column}_idx ON tasks ({column})")

    def open(self) -> None:
        """Connect."""
        engine = create_engine(self.url)
        self._connection = engine.raw_connection()
        raw: Any = self._connection.driver_connection
        engine.dialect.set_isolation_level(raw, "AUTOCOMMIT")
        self.raw = raw
        self._cursor = raw.cursor()
        self._consumer = str(uuid.uuid4())
        self._round = 0

    def run(self, statement: str, values: Sequence[Any] = ()) -> Sequence[Sequence[Any]]:
        """Execute and commit; returns its rows."""
        self._cursor.execute(statement, values)
        return self._cursor.fetchall() if self._cursor.description else ()

    def publish(self, payloads: list[Any], batch: int) -> None:
        """One INSERT each, under a random id."""
        del batch
        for payload in payloads:
            message_id = uuid.uuid4().int >> 65
            self.run(_PUBLISH, (message_id, payload, _milliseconds()))

    def consume(self, batch: int, count: int) -> list[int]:
        """Mark, read the marked messages, and remove them one by one."""
        numbers: list[int] = []
        while len(numbers) < count:
            self._round += 1
            mark = (self._consumer, self._round)
            wanted = min(batch, count - len(numbers))
            now = _milliseconds()
            late = now - _TIMEOUT
            self.run(_MARK, (*mark, now, late, late, wanted))
            rows = self.run(_READ, mark)
            if not rows:
                break
            for message_id, message in rows:
                self.run(_DELETE, (message_id,))
                numbers.append(number_of(message))
        return numbers

    def remaining(self) -> int:
        """By counting."""
        return int(self.run(_COUNT)[0][0])

    def close(self) -> None:
        """Disconnect."""
        self._connection.close()


def _milliseconds() -> int:
    return time.time_ns() // 1_000_000


if __name__ == "__main__":
    serve(Ancestor)
