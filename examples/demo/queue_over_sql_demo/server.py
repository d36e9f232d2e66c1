"""A server of the demo: ``python -m queue_over_sql_demo``, with its order on standard input.

It shows how a program uses the library: a service, a worker, and a handler whose writes commit
together with the acknowledgement.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from queue_over_sql import Message, QueueService, Worker
from queue_over_sql.cli.logs import start_logging
from queue_over_sql.observability.history import History
from queue_over_sql_demo.files import digest
from queue_over_sql_demo.plan import ServerOrder
from queue_over_sql_demo.results import results_table, write_result


def open_service(order: ServerOrder) -> QueueService:
    """A service for the demo, with a reaper that is frequent enough for its short timeout."""
    prefix = order.table_prefix
    given: dict[str, Any] = {} if prefix is None else {"table_prefix": prefix}
    return QueueService(
        order.url,
        schema=order.schema,
        consumer_name=order.name,
        consumer_timeout=order.consumer_timeout,
        reaper_interval=order.consumer_timeout / 6,
        observer=History() if order.history else None,
        **given,
    )


def build_worker(order: ServerOrder) -> Worker:
    """The worker that computes checksums by `order`."""
    service = open_service(order)
    worker = service.worker(concurrency=order.threads, prefetch=order.batch)
    results = results_table(order.results, order.schema)
    folder = Path(order.folder)

    @worker.handle(order.queue, transactional=True)
    def compute(message: Message, connection: Connection) -> None:
        found = digest(folder / message.payload["path"])
        write_result(results, connection, message, found, order.name)

    return worker


def _stop_with_parent(worker: Worker) -> None:
    # The parent keeps our standard input open as long as it lives.
    sys.stdin.read()
    worker.stop()


def main() -> None:
    """Run until SIGTERM, or until the demo that started this process has ended."""
    start_logging("info")
    worker = build_worker(ServerOrder.read(sys.stdin.readline()))
    threading.Thread(target=_stop_with_parent, args=(worker,), daemon=True).start()
    worker.run(signals=True)
