"""What an earlier release left in a database: the program that wrote it, and what it wrote.

``scripts/migrations/dumps.py`` runs it with that release's code, and dumps the database.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
from typing import Any, Final

from sqlalchemy import Column, Engine, Integer, String, create_engine, event, text

from queue_over_sql import NoRetry, QueueService

COMMIT: Final = "8492ca26724f49c5a8bd1ab050003e9e13c85280"
"""The last commit whose tables have schema version 1."""

READY: Final[list[dict[str, Any]]] = [
    {"n": 1, "text": 'Ünïcode 🐘, "quotes", it\'s; back\\slash'},
    {"n": 2, "nested": {"list": [1, 2.5, None, True]}},
]
TEXTS: Final = ["plain", "two\nlines", "", "percent % and colon :name"]
BYTES: Final = [b"", b"\x00\xff\x01", b"';--"]
LEVELS: Final = [("later", 2), ("urgent", 0), ("usual", 1)]
DONE, REJECTED, FAILED = {"done": 1}, {"rejected": 1}, {"failed": 1}
RETRIED, DELAYED, HELD = {"retried": 1}, {"delayed": 1}, {"held": 1}
HEADERS: Final = {"trace": "abc", "n": 1}
FAR: Final = dt.datetime(2099, 1, 1, tzinfo=dt.UTC)
CRON: Final = "30 6 1 1 *"
INVOICES: Final = {1: "Ada", 2: "Grace", 3: "Edsger"}


def fill(service: QueueService, engine: Engine) -> None:
    """Queues of each kind of payload, with messages in each state that a message can have."""
    jobs = service.create_queue("jobs", archive="all", retry=NoRetry(), dedup_window=10**9)
    for payload, end in ((DONE, "ack"), (REJECTED, "reject"), (FAILED, "nack")):
        jobs.publish(payload, key=end)
        message = jobs.consume()[0]
        getattr(message, end)(*() if end == "ack" else (f"the reason of {end}",))
    for payload in READY:
        jobs.publish(payload, kind="Job", headers=HEADERS)
    jobs.publish(DELAYED, at=FAR, key="delayed", max_attempts=7, lease=77)

    retried = service.create_queue("retried", max_attempts=9)
    retried.publish(RETRIED)
    retried.consume()[0].nack("the first failure", delay=0)

    texts = service.create_queue("texts", payload="text")
    for line in TEXTS:
        texts.publish(line)
    blobs = service.create_queue("blobs", payload="bytes")
    for content in BYTES:
        blobs.publish(content)
    levels = service.create_queue("levels", priorities=3)
    for name, level in LEVELS:
        levels.publish(name, priority=level)
    columns: list[Column[Any]] = [
        Column("colour", String(20), nullable=False, index=True),
        Column("size", Integer),
    ]
    paints = service.create_queue("paints", columns=columns, archive="all")
    # That release has no columns=.
    blue: dict[str, Any] = {"colour": "blue", "size": 3}
    red: dict[str, Any] = {"colour": "red", "size": None}
    paints.publish({}, **blue)
    paints.publish({}, **red)
    paints.consume(1)[0].ack()

    with engine.begin() as connection:
        connection.execute(
            text("CREATE TABLE invoices (number INTEGER NOT NULL PRIMARY KEY, name VARCHAR(50))")
        )
        for number, name in INVOICES.items():
            insert = text("INSERT INTO invoices (number, name) VALUES (:number, :name)")
            connection.execute(insert, {"number": number, "name": name})
    billing = service.adopt_queue("billing", "invoices", retry=NoRetry())
    billing.enqueue()
    billing.consume(1)[0].nack("no such customer")

    topic = service.create_topic("orders")
    topic.subscribe("jobs", "order.*")
    topic.publish({"order": 1}, routing_key="order.created")
    # Alone in its queue: its messages fall due one day.
    service.create_queue("planned")
    service.schedules.add("yearly", "planned", {"scheduled": 1}, cron=CRON)

    held = service.create_queue("held", lease=3600)
    held.publish(HELD)
    held.consume()


def main() -> None:
    """Fill the database of the URL that is given, writing down each table and index, and die."""
    url = sys.argv[1]
    service = QueueService(url, consumer_name="dumped", notify=False)
    engine, created = create_engine(url), []

    @event.listens_for(Engine, "before_cursor_execute")
    def note(*arguments: Any) -> None:
        statement = arguments[2].strip()
        if statement.startswith(("CREATE ", "ALTER ")) and statement not in created:
            created.append(statement)

    fill(service, engine)
    with engine.begin() as connection:
        # A dump names no machine.
        connection.execute(text("UPDATE queue_over_sql_consumers SET host = 'host', pid = 1"))
    sys.stdout.write(json.dumps(created))
    sys.stdout.flush()
    # As a process that is killed: what it holds stays claimed.
    os._exit(0)


if __name__ == "__main__":
    main()
