"""A process that waits for a message until it is interrupted."""

from __future__ import annotations

import dataclasses
import signal
from typing import TYPE_CHECKING

from queue_over_sql import QueueService
from tests.chaos.roles.protocol import emit, play

if TYPE_CHECKING:
    from collections.abc import Callable

    from queue_over_sql import Queue


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Where and how to wait; the queue has the name of the verb."""

    url: str
    verb: str


def receive(queue: Queue) -> None:
    """Wait in a block, and stay in it."""
    with queue.receive(wait=600) as message:
        assert message is not None
        signal.pause()


VERBS: dict[str, Callable[[Queue], object]] = {
    "consume": lambda queue: queue.consume(wait=600),
    "stream": lambda queue: next(queue.stream(wait=600)),
    "receive": receive,
    "request": lambda queue: queue.request("question", timeout=600),
}


def main(arguments: Arguments) -> None:
    """Wait; whatever came, go on until the signal."""
    with QueueService(arguments.url) as service:
        queue = service.queue(arguments.verb)
        emit("waiting")
        VERBS[arguments.verb](queue)
        signal.pause()


if __name__ == "__main__":
    play(main, Arguments)
