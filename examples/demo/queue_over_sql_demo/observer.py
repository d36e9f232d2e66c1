"""Reads the demo's queue and results from outside while the servers work."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import Connection, Table, func, select

from queue_over_sql import Queue, QueueService
from queue_over_sql.service import parts_of
from queue_over_sql_demo.account import Result
from queue_over_sql_demo.results import count_by_server, read_results


@dataclass(frozen=True)
class Snapshot:
    """The counts at one moment.

    Args:
        live: messages in the queue.
        claimed: messages held, by consumer id.
        done: committed results, and how many of them are of redelivered messages, by server.
    """

    live: int = 0
    claimed: Mapping[str, int] = field(default_factory=dict)
    done: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def results(self) -> int:
        """Number of committed results."""
        return sum(done for done, _ in self.done.values())

    @property
    def redelivered(self) -> int:
        """Number of results whose message was delivered more than once."""
        return sum(again for _, again in self.done.values())


class Observer:
    """Reads the tables of the queue and the results by plain SELECTs, each in its own transaction.

    They wait for no lock, so they also see what a frozen server holds.
    """

    def __init__(self, service: QueueService, queue: Queue, results: Table) -> None:
        self._service = service
        self._run = parts_of(service).connections.run
        self._queue = queue.table
        self._results = results

    def snapshot(self) -> Snapshot:
        """The present counts."""
        return self._run(self._snapshot)

    def _snapshot(self, connection: Connection) -> Snapshot:
        consumer = self._queue.c.consumer_id
        holders = select(consumer, func.count()).group_by(consumer)
        counts = {holder: int(count) for holder, count in connection.execute(holders)}
        live = sum(counts.values())
        counts.pop(None, None)
        return Snapshot(live, counts, count_by_server(self._results, connection))

    def held_by(self, consumer_id: str) -> frozenset[int]:
        """Ids of the messages that the consumer holds."""
        query = select(self._queue.c.id).where(self._queue.c.consumer_id == consumer_id)
        return self._run(lambda connection: frozenset(connection.execute(query).scalars()))

    def any_live(self, ids: frozenset[int]) -> bool:
        """Whether one of these messages is still in the queue."""
        query = select(func.count()).where(self._queue.c.id.in_(ids))
        return self._run(lambda connection: connection.execute(query).scalar_one() > 0)

    def results(self) -> list[Result]:
        """Every committed result."""
        return self._run(lambda connection: read_results(self._results, connection))

    def consumer_ids(self) -> dict[int, str]:
        """The consumer ids of registered processes of this machine, by process id."""
        host = socket.gethostname()
        return {c.pid: c.consumer_id for c in self._service.consumers() if c.host == host}
