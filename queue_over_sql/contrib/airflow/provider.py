"""What Airflow's ``MessageQueueTrigger`` needs to find the trigger of these queues."""

from __future__ import annotations

from airflow.providers.common.messaging.providers.base_provider import BaseMessageQueueProvider

from queue_over_sql.contrib.airflow.trigger import QueueTrigger


class QueueProvider(BaseMessageQueueProvider):
    """The queues of ``MessageQueueTrigger(scheme="queue-over-sql", queue_name="orders")``.

    The other arguments are those of ``QueueTrigger``.
    """

    scheme = "queue-over-sql"

    def trigger_class(self) -> type[QueueTrigger]:
        """The trigger that waits for messages."""
        return QueueTrigger
