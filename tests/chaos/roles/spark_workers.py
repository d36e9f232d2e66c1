"""A driver of Spark that runs workers over the queue ``jobs`` until it is empty.

Run as ``python -m tests.chaos.roles.spark_workers JSON``. What they handle they write into the
table ``results``, in the transaction that ends the messages.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from sqlalchemy import text

if TYPE_CHECKING:
    from sqlalchemy import Connection

POISON = 13
"""The payload's number of the message that kills whoever handles it."""


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What one run does.

    Attributes:
        url: of the database.
        form: of the handler.
        deadly: whether the poison message kills its worker.
        pause: how long a call of the handler takes, in seconds.
    """

    url: str
    form: str
    deadly: bool
    pause: float


def handler_of(arguments: Arguments) -> Any:
    """Writes what it handles, and dies of the poison."""
    insert = text("INSERT INTO results (message_id) VALUES (:id)")

    def handle(given: Any, connection: Connection) -> None:
        if arguments.form == "arrow":
            ids, payloads = (given.column(name).to_pylist() for name in ("id", "payload"))
            numbers = [json.loads(payload)["n"] for payload in payloads]
        else:
            ids, numbers = [given.id], [given.payload["n"]]
        connection.execute(insert, [{"id": number} for number in ids])
        time.sleep(arguments.pause * random.uniform(0.5, 1.5))  # noqa: S311
        if arguments.deadly and POISON in numbers:
            os.kill(os.getpid(), signal.SIGKILL)

    return handle


def main(arguments: Arguments) -> None:
    """Run the workers."""
    from queue_over_sql.spark import run_workers, session

    # One failure of a task ends the job, so that it is up to the workers to begin again.
    spark = session(master="local[2]", settings={"spark.driver.memory": "1g"})
    print("ready", flush=True)  # noqa: T201 - the test waits for it
    report = run_workers(
        spark,
        "jobs",
        handler_of(arguments),
        url=arguments.url,
        form=arguments.form,  # type: ignore[arg-type]
        transactional=True,
        batch=20,
        consumer_timeout=3.0,
        restarts=6,
    )
    print(json.dumps({"restarts": report.restarts, "handled": report.handled}), flush=True)  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main(Arguments(**json.loads(sys.argv[1])))
