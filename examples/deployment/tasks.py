"""The worker module of the deployment example; `queue-over-sql worker tasks:worker` runs it.

An order becomes an invoice in one transaction: the invoice is published and the order acknowledged,
or neither. Any number of servers may run this module on the same database.
"""

from __future__ import annotations

import logging
import os

from sqlalchemy import Connection

from queue_over_sql import Message, QueueService, QueueSettings
from queue_over_sql.observability.history import History
from queue_over_sql.observability.prometheus import PrometheusObserver

log = logging.getLogger("tasks")

service = QueueService(
    os.environ.get("QUEUE_OVER_SQL_URL", "sqlite:///deployment.db"),
    observer=[PrometheusObserver(), History()],
)
# Creating queues is safe to repeat and from several servers. It fails if the database is
# unreachable, so that the container restarts until it can be reached.
service.create_queues(
    {
        "orders": QueueSettings(lease=60.0, max_attempts=3),
        "invoices": QueueSettings(archive="all"),
    }
)

worker = service.worker(concurrency=4)


@worker.handle("orders", transactional=True)
def write_invoice(order: Message, connection: Connection) -> None:
    """Publish the invoice of an order; it exists exactly if the order is done."""
    total = sum(item["count"] * item["price"] for item in order.payload["items"])
    invoice = {"order": order.payload["number"], "total": total}
    service.queue("invoices").publish(invoice, connection=connection)


@worker.handle("invoices")
def send_invoice(invoice: Message) -> None:
    """Send an invoice: here it is only logged."""
    log.info("order %(order)s costs %(total)s", invoice.payload)
