"""A process with several threads that send one request after another."""

from __future__ import annotations

import dataclasses
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from queue_over_sql import Queue, QueueError, QueueService
from tests.chaos.roles.protocol import Reins, emit, play


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What to ask, and how often."""

    url: str
    name: str
    queue: str = "jobs"
    threads: int = 1
    requests: int = 1
    """Of each thread."""
    timeout: float = 80.0
    consumer_timeout: float = 30.0
    reaper_interval: float = 0.2


def ask(queue: Queue, name: str, arguments: Arguments) -> Counter[str]:
    """Ask with one token after another, and count what came of it."""
    outcomes: Counter[str] = Counter()
    for number in range(arguments.requests):
        token = f"{name}-{number}"
        try:
            reply = queue.request({"token": token}, timeout=arguments.timeout)
        except QueueError as error:
            outcomes[type(error).__name__] += 1
        else:
            outcomes["own" if reply.payload["token"] == token else "of others"] += 1
    return outcomes


def main(arguments: Arguments) -> None:
    """Ask as soon as the test says `go`, and tell what came of it."""
    reins = Reins()
    with QueueService(
        arguments.url,
        consumer_timeout=arguments.consumer_timeout,
        reaper_interval=arguments.reaper_interval,
    ) as service:
        queue = service.queue(arguments.queue)
        emit("ready", consumer_id=service.consumer_id)
        reins.go.wait()
        with ThreadPoolExecutor(arguments.threads) as pool:
            names = [f"{arguments.name}-{thread}" for thread in range(arguments.threads)]
            asked = [pool.submit(ask, queue, name, arguments) for name in names]
            outcomes = sum((one.result() for one in asked), Counter[str]())
    emit("done", outcomes=outcomes)


if __name__ == "__main__":
    play(main, Arguments)
