"""The consumers that are registered in a database, whatever process they belong to."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from queue_over_sql.consumers import registrations
from queue_over_sql.errors import QueueError

if TYPE_CHECKING:
    from collections.abc import Callable

    from queue_over_sql.consumers.registrations import ConsumerInfo
    from queue_over_sql.database.connections import Connections
    from queue_over_sql.schema.system_tables import SystemTables

_log = logging.getLogger(__name__)


class RegisteredConsumers:
    """The registered consumers of a database."""

    def __init__(self, connections: Connections, system: Callable[[], SystemTables]) -> None:
        self._connections = connections
        self._system = system

    def list(self) -> list[ConsumerInfo]:
        """All of them, the oldest first; those that cannot be read are logged and left out."""
        system = self._system()
        rows = self._connections.run(lambda c: registrations.registered(c, system))
        for row in rows:
            if isinstance(row, QueueError):
                _log.warning("A consumer is left out of the list: %s", row)
        return [row for row in rows if not isinstance(row, QueueError)]

    def forget(self, consumer_id: str) -> None:
        """Delete the registration of a consumer."""
        system = self._system()
        self._connections.run(lambda c: registrations.remove(c, system, consumer_id))

    def forget_dead(self, consumer_id: str) -> None:
        """Delete the registration of a consumer, if it is still dead."""
        system = self._system()
        self._connections.run(registrations.remove_dead.of(system, consumer_id))
