"""A program of taskiq: a broker at the URL in ``COUNTING_URL``, and a task that says it has run."""

from __future__ import annotations

import asyncio
import os

from queue_over_sql.contrib.taskiq import QueueBroker

broker = QueueBroker(
    os.environ["COUNTING_URL"],
    "counting",
    max_attempts=50,
    service={"consumer_timeout": 1.0, "reaper_interval": 0.2},
)


@broker.task
async def count(number: int) -> None:
    """Append a line to the file in ``COUNTING_FILE``, at once or not at all."""
    await asyncio.sleep(0.01)
    file = os.open(os.environ["COUNTING_FILE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{number}\n".encode())
    os.close(file)
