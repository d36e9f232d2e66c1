"""Parts: what the features of one service share, instead of each knowing the whole service."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from queue_over_sql.errors import ServiceClosed

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from queue_over_sql.arrivals import Arrivals
    from queue_over_sql.catalog import Catalog
    from queue_over_sql.connections import Connections
    from queue_over_sql.consumers import Consumer
    from queue_over_sql.queue import Queue
    from queue_over_sql.settings import ServiceSettings
    from queue_over_sql.system import SystemTables
    from queue_over_sql.wakeups import WakeUps


@dataclasses.dataclass(eq=False)
class ServiceParts:
    """The inner parts of a service.

    Attributes:
        settings: of the service.
        connections: to its database.
        catalog: its queues.
        consumer: the consumer that it is.
        arrivals: told when a message arrives through this process, or is told of by another.
        wakeups: tell other processes of messages, and hear of theirs.
        closed: whether it was stopped.
    """

    settings: ServiceSettings
    connections: Connections
    catalog: Catalog
    consumer: Consumer
    arrivals: Arrivals
    wakeups: WakeUps
    closed: bool = False

    def check_open(self) -> None:
        """Refuse to go on after ``stop()``.

        Raises:
            ServiceClosed: the service was stopped.
        """
        if self.closed:
            raise ServiceClosed

    def system(self) -> SystemTables:
        """The shared tables; created at the first use where they are missing."""
        return self.catalog.system()

    def queue(self, name: str, connection: Connection | None = None) -> Queue:
        """Open a queue that exists.

        Args:
            name: of the queue.
            connection: the caller's, to look through in the middle of a transaction.

        Raises:
            QueueNotFound: it does not.
            ServiceClosed: the service was stopped.
        """
        self.check_open()
        return self.catalog.get(name, connection)

    def reopen_queue(self, name: str) -> None:
        """Forget a queue that was dropped and created anew elsewhere."""
        self.catalog.forget(name)

    def wake(self) -> None:
        """Wake all who wait for a message in this process."""
        self.arrivals.announce()
