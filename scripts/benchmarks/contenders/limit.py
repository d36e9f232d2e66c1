"""The limit: the statements of queue_over_sql run by the bare driver, without anything else.

queue_over_sql creates the table, and claims and acks use exactly its compiled text, with fence,
rounds and low watermark. There are no checks, no objects, no retries and no heartbeat. Single
messages are claimed and acknowledged in two commits; its worker exchanges. Several messages are
published by the leanest statement that fills such rows: one multi-row INSERT, or COPY if available.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from importlib.metadata import version
from typing import Any

from sqlalchemy import PoolProxiedConnection

from queue_over_sql import QueueService
from queue_over_sql.queue import core_of
from queue_over_sql.service import parts_of
from scripts.benchmarks.contenders.limit_sessions import SESSIONS, Session
from scripts.benchmarks.contenders.ours import DURABILITY, QUEUE
from scripts.benchmarks.contenders.serving import PATIENCE, Contender, serve

_ROWS_PER_LOAD = 10_000
_PAUSE = 0.002


class Limit(Contender):
    """The bare driver."""

    name = "limit"
    durability = "each commit reaches the disk"
    fence = True
    transactional = True

    @property
    def version(self) -> str:
        """Of the driver."""
        driver = parts_of(self._service).connections.engine.dialect.driver
        if driver == "pysqlite":
            return f"sqlite3 {sqlite3.sqlite_version}"
        return f"{driver} {version(driver)}"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._service = QueueService(url)
        backend = parts_of(self._service).connections.engine.url.get_backend_name()
        self.durability = DURABILITY.get(backend, self.durability)
        self._kept: list[PoolProxiedConnection] = []

    def prepare(self) -> None:
        """Let queue_over_sql make the table."""
        self._service.create_queue(QUEUE)

    def open(self) -> None:
        """Connect."""
        self._publisher, self._consumer = self._session(durable=True), self._session()
        self._consumer.claim(1)

    def _session(self, *, durable: bool = False) -> Session:
        engine = parts_of(self._service).connections.engine
        connection = engine.raw_connection()
        self._kept.append(connection)
        raw: Any = connection.driver_connection
        engine.dialect.set_isolation_level(raw, "AUTOCOMMIT")
        sql = core_of(self._service.queue(QUEUE)).context.sql
        return SESSIONS[engine.dialect.name](sql, raw, durable=durable)

    def publish(self, payloads: list[Any], batch: int) -> None:
        """One INSERT, of one or many rows, per commit."""
        if batch == 1:
            for payload in payloads:
                self._publisher.publish(payload)
            return
        for start in range(0, len(payloads), batch):
            self._publisher.publish_many(payloads[start : start + batch])

    def load(self, payloads: list[Any]) -> None:
        """COPY or multi-row INSERTs, ten thousand rows per commit."""
        for start in range(0, len(payloads), _ROWS_PER_LOAD):
            self._publisher.load(payloads[start : start + _ROWS_PER_LOAD])

    def consume(self, batch: int, count: int) -> list[int]:
        """Claim and acknowledge, each with its own commit."""

        def consume(wanted: int) -> list[int]:
            claimed = self._consumer.claim(wanted)
            if claimed:
                self._consumer.ack([message_id for message_id, _ in claimed])
            return [number for _, number in claimed]

        return self.until_empty(consume, batch, count)

    def take(self, batch: int, count: int) -> list[int]:
        """Select for update and delete, with one durable commit, which is the caller's."""
        return self.until_empty(self._session(durable=True).take, batch, count)

    def work(self, threads: int, count: int, transactional: bool) -> tuple[float, list[int]]:
        """One by one on a connection per thread: exchange, or take if transactional."""
        seen: list[tuple[int, float]] = []
        sessions = [self._session(durable=transactional) for _ in range(threads)]
        running = [
            threading.Thread(target=_work, args=(session, seen, count, transactional))
            for session in sessions
        ]
        begun = time.monotonic()
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        last = max((moment for _, moment in seen), default=begun)
        return last - begun, [number for number, _ in seen]

    def remaining(self) -> int:
        """From the statistics."""
        stats = self._service.queue(QUEUE).stats()
        return stats.ready + stats.delayed + stats.claimed + stats.held

    def close(self) -> None:
        """Close the connections."""
        for connection in self._kept:
            connection.close()
        self._service.stop()


def _work(session: Session, seen: list[tuple[int, float]], count: int, transactional: bool) -> None:
    held: list[int] = []
    last = time.monotonic()
    while time.monotonic() - last < PATIENCE:
        if len(seen) >= count:
            break
        if transactional:
            numbers = session.take(1)
        else:
            claimed = session.exchange(held, 1) if held else session.claim(1)
            held = [message_id for message_id, _ in claimed]
            numbers = [number for _, number in claimed]
        if numbers:
            last = time.monotonic()
            seen += [(number, last) for number in numbers]
        else:
            time.sleep(_PAUSE)
    if held:
        session.ack(held)


if __name__ == "__main__":
    serve(Limit)
