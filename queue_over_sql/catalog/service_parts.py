"""What the parts of a service share: connections, catalog, consumer, background work."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from queue_over_sql.catalog.catalog import Catalog
from queue_over_sql.errors import (
    ServiceClosed,
)
from queue_over_sql.schema.system_tables import SystemTables

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from queue_over_sql.consumers.consumer import Consumer
    from queue_over_sql.database.connections import Connections
    from queue_over_sql.database.notify import Arrivals, WakeUps
    from queue_over_sql.database.runtime import Background
    from queue_over_sql.observer import Observers
    from queue_over_sql.queue import Queue
    from queue_over_sql.settings import ServiceSettings


@dataclasses.dataclass(eq=False)
class ServiceParts:
    """The inner parts of a service.

    Attributes:
        arrivals: notified when a message arrives, from this process or another.
        wakeups: notify other processes of messages, and receive their notifications.
        background: the jobs that run beside the callers.
        observer: notified of what happens; None if the service has none.
    """

    settings: ServiceSettings
    connections: Connections
    catalog: Catalog
    consumer: Consumer
    arrivals: Arrivals
    wakeups: WakeUps
    background: Background
    observer: Observers | None = None
    closed: bool = False

    def check_open(self) -> None:
        """Raise ServiceClosed after ``stop()``."""
        if self.closed:
            raise ServiceClosed

    def system(self) -> SystemTables:
        """The shared tables; created at the first use if they are missing."""
        return self.catalog.system()

    def queue(self, name: str, connection: Connection | None = None) -> Queue:
        """Open a queue of a service that is not stopped, as ``Catalog.get`` does."""
        self.check_open()
        return self.catalog.get(name, connection)
