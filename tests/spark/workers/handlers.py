"""Handlers for tests of workers, and the plan of a single worker."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from sqlalchemy import Connection, text

from queue_over_sql import Message, QueueService
from queue_over_sql.spark.options import Location
from queue_over_sql.spark.workers.plan import WorkerReport, WorkersPlan
from queue_over_sql.spark.workers.task import work_as
from queue_over_sql.testing.plugin import MakeService

RESULTS = "CREATE TABLE results (message_id BIGINT NOT NULL, worker VARCHAR(20))"
INSERT = text("INSERT INTO results (message_id, worker) VALUES (:id, :worker)")


def create_results(service: QueueService) -> None:
    """A table for what transactional handlers write."""
    with service._parts.connections.transaction() as connection:
        connection.execute(text(RESULTS))


def result_ids(service: QueueService) -> list[int]:
    """What they wrote, sorted."""
    with service._parts.connections.transaction() as connection:
        return sorted(row[0] for row in connection.execute(text("SELECT message_id FROM results")))


def write_batch(batch: pa.RecordBatch, connection: Connection) -> None:
    """Note the ids of an Arrow batch."""
    rows = [{"id": number, "worker": "arrow"} for number in batch.column("id").to_pylist()]
    connection.execute(INSERT, rows)


def write_message(message: Message, connection: Connection) -> None:
    """Note the id of a message."""
    connection.execute(INSERT, {"id": message.id, "worker": "message"})


def nothing(*given: Any) -> None:
    """Handle whatever it is."""
    del given


def work(
    service: QueueService,
    make_service: MakeService,
    handler: Callable[..., Any],
    **changes: Any,
) -> WorkerReport:
    """Be one of the workers, in this process, until nothing is left."""
    leader = make_service(consumer_timeout=30.0)
    leader.start()
    url = service._parts.connections.engine.url.render_as_string(hide_password=False)
    plan = WorkersPlan(
        location=Location(url=url),
        queue="jobs",
        handler=handler,
        form="message",
        transactional=False,
        batch=10,
        concurrency=1,
        lease_keepalive=True,
        until_empty=True,
        ends_at=None,
        leader=str(leader.consumer_id),
        name="workers jobs test",
        consumer_timeout=10.0,
        poll_interval=(0.01, 0.2),
    )
    return work_as(0, dataclasses.replace(plan, **changes))
