"""The types that users see: mypy checks this module, nothing runs it.

``type: ignore`` marks what mypy must refuse: strict mode complains about one that is not needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_type

from queue_over_sql import Message, Published, Queue, QueueService

if TYPE_CHECKING:
    import sqlite3

    import psycopg
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session

    from queue_over_sql import Topic


def words(service: QueueService, queue: Queue, topic: Topic) -> None:
    """A word that is none of those that an option knows is refused."""
    queue.publish({}, key="k", on_conflict="skip")
    queue.publish({}, key="k", on_conflict="skpi")  # type: ignore[arg-type]
    queue.publish_many([], on_conflict="replce")  # type: ignore[arg-type]
    topic.publish({}, routing_key="a.b", on_conflict="rise")  # type: ignore[arg-type]
    queue.messages(status="held")
    queue.messages(status="done")  # type: ignore[arg-type]
    queue.archive.messages(status="done")
    queue.archive.messages(status="held")  # type: ignore[arg-type]
    service.create_queue("jobs", payload="text", archive="all")
    service.create_queue("jobs", payload="jsn")  # type: ignore[arg-type]
    service.create_queue("jobs", archive="every")  # type: ignore[arg-type]
    service.schedules.add("nightly", "jobs", {}, cron="@daily", missed="skip")
    service.schedules.add("nightly", "jobs", {}, cron="@daily", missed="none")  # type: ignore[arg-type]
    service.worker(ack="each")
    service.worker(ack="all")  # type: ignore[arg-type]


def options(queue: Queue) -> None:
    """An option that there is not is no column: those have an argument."""
    queue.publish({}, delay=3, columns={"tenant": 7})
    queue.publish({}, dealy=3)  # type: ignore[arg-type]
    queue.request({}, timeout=3, columns={"tenant": 7})
    queue.request({}, timeout=3, lese=3)  # type: ignore[arg-type]


def connections(
    queue: Queue,
    message: Message,
    mine: Connection | Session | sqlite3.Connection | psycopg.Connection[Any],
) -> None:
    """A connection of SQLAlchemy or of a driver; anything else is refused."""
    assert_type(queue.publish({}, connection=mine), Published)
    message.ack(connection=mine)
    message.ack(connection="sqlite://")  # type: ignore[arg-type]
    queue.take(2, connection=queue)  # type: ignore[arg-type]
