"""A transactional handler that forks, and whose children come out of its call in several ways."""

from __future__ import annotations

import os
import sys
import threading

import sqlalchemy as sa

from queue_over_sql import Message, QueueService

HOW = {"returns": 0, "exits": 3, "fails": 1, "undoes a part": 1, "publishes": 1}


def main(url: str) -> int:
    """Handle a message for each way; 0 if each has its effect, and each child has ended."""
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE effects (id INT)")
    ended: dict[str, int | None] = {}
    with QueueService(url) as service:
        queue = service.create_queue("jobs", max_attempts=1, archive="all")
        queue.publish_many(list(HOW))
        worker = service.worker(concurrency=1)

        @worker.handle("jobs", transactional=True)
        def work(message: Message, connection: sa.Connection) -> None:
            connection.exec_driver_sql("INSERT INTO effects VALUES (1)")
            part = connection.begin_nested() if message.payload == "undoes a part" else None
            child = os.fork()
            if child == 0:
                sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115 - it ends with the child
                if part is not None:
                    part.rollback()
                if message.payload == "publishes":
                    queue.publish("from the child", connection=connection)
                if message.payload == "exits":
                    sys.exit(HOW["exits"])
                if message.payload == "fails":
                    raise ValueError
                return
            impatient = threading.Timer(10, os.kill, (child, 9))
            impatient.start()
            ended[message.payload] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            impatient.cancel()

        worker.run(until_empty=True)
        done = queue.stats().done
    with engine.connect() as connection:
        effects = connection.exec_driver_sql("SELECT count(*) FROM effects").scalar()
    if (ended, done, effects) == (HOW, len(HOW), len(HOW)):
        return 0
    sys.stderr.write(f"{ended}, {done} done, {effects} effects\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
