"""A publisher or a worker that rides out what happens to the database, and notes all it does."""

from __future__ import annotations

import dataclasses
import itertools
import os
import threading
import time
from typing import TYPE_CHECKING

from sqlalchemy import text

from queue_over_sql import QueueService
from queue_over_sql.errors import DatabaseRefused, DatabaseUnavailable
from queue_over_sql.testing.history import Recorder
from tests.chaos.journal import Journal
from tests.chaos.roles.protocol import Reins, emit, play

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from queue_over_sql import Message


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What it does, and how fast."""

    url: str
    journal: str
    publishes: bool = False
    seconds: float = 0.02
    """How long a handler takes, or the pause of a publisher."""
    consumer_timeout: float = 4.0
    reaper_interval: float = 0.5


def publish(arguments: Arguments, reins: Reins) -> None:
    """Publish each message once; if the database is away, whether it came in is unknown."""
    service = QueueService(arguments.url, consumer_timeout=arguments.consumer_timeout)
    journal = Journal(arguments.journal)
    queue = service.queue("jobs")
    emit("ready")
    reins.go.wait()
    for number in itertools.count():
        if reins.stop.wait(arguments.seconds):
            break
        token = f"{os.getpid()}-{number}"
        journal.intends([token])
        try:
            queue.publish({"token": token})
        except (DatabaseUnavailable, DatabaseRefused):
            continue
        journal.published([token])
    service.stop()


def work(arguments: Arguments, reins: Reins) -> None:
    """Write an effect in the transaction of each ack, until told to stop."""
    name = f"process-{os.getpid()}"
    service = QueueService(
        arguments.url,
        consumer_timeout=arguments.consumer_timeout,
        reaper_interval=arguments.reaper_interval,
        observer=Recorder(arguments.journal, name),
    )
    journal = Journal(arguments.journal, name)
    worker = service.worker(concurrency=2)

    @worker.handle("jobs", transactional=True)
    def handle(message: Message, connection: Connection) -> None:
        journal.note("named", message)
        effect = text("INSERT INTO effects (token, attempt) VALUES (:token, :attempt)")
        connection.execute(
            effect, {"token": message.payload["token"], "attempt": message.attempt}
        ).close()
        time.sleep(arguments.seconds)

    emit("ready")
    reins.go.wait()

    def end() -> None:
        reins.stop.wait()
        worker.stop()

    threading.Thread(target=end, daemon=True).start()
    worker.run()
    service.stop()


def main(arguments: Arguments) -> None:
    """Say `ready`, wait for `go`, act until `stop`, say `done`."""
    reins = Reins()
    (publish if arguments.publishes else work)(arguments, reins)
    emit("done")


if __name__ == "__main__":
    play(main, Arguments)
