"""A consumer of groups: it handles what it claims one by one, and fails at random."""

from __future__ import annotations

import dataclasses
import random
import time

from queue_over_sql import Message, Queue, QueueService
from tests.chaos.journal import Journal
from tests.chaos.roles.protocol import Reins, emit, play


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What to consume, and how to treat it."""

    url: str
    journal: str
    queue: str = "jobs"
    batch: int = 5
    seconds: float = 0.002
    """How long a handler takes."""
    failing: float = 0.1
    """The part of the calls that fail."""
    ordered: bool = True
    """Leave out what is behind a failed message of its group, because it was given back."""
    seed: int = 0
    consumer_timeout: float = 4.0
    reaper_interval: float = 0.2


class Handler:
    """Handles the messages of one claim after another."""

    def __init__(self, arguments: Arguments, queue: Queue) -> None:
        """Consume from this queue with these habits."""
        self._arguments = arguments
        self._queue = queue
        self._journal = Journal(arguments.journal)
        self._random = random.Random(arguments.seed)  # noqa: S311 - chance, not a secret

    def run(self, reins: Reins) -> None:
        """Consume until told to stop."""
        while not reins.stop.is_set():
            messages = self._queue.consume(self._arguments.batch, wait=0.2)
            self._journal.delivered(messages)
            while messages:
                message, *messages = messages
                behind = [each for each in messages if self._is_behind(each, message)]
                if not self._handle(message, behind):
                    messages = [each for each in messages if each not in behind]

    def _is_behind(self, message: Message, failed: Message) -> bool:
        """Whether it comes back with the other one."""
        return self._arguments.ordered and message.group == failed.group

    def _handle(self, message: Message, behind: list[Message]) -> bool:
        self._journal.note("started", message)
        time.sleep(self._arguments.seconds)
        if self._random.random() >= self._arguments.failing:
            self._journal.note("finished", message)
            with self._journal.settling("ack", [message]):
                message.ack()
            return True
        self._journal.note("failed", message)
        verb = self._random.choice(["nack", "release"])
        with self._journal.settling(verb, [message, *behind]):
            getattr(message, verb)()
        return False


def main(arguments: Arguments) -> None:
    """Say `ready`, wait for `go`, consume until `stop`, say `done`."""
    service = QueueService(
        arguments.url,
        consumer_timeout=arguments.consumer_timeout,
        reaper_interval=arguments.reaper_interval,
    )
    reins = Reins()
    with service:
        handler = Handler(arguments, service.queue(arguments.queue))
        emit("ready")
        reins.go.wait()
        handler.run(reins)
    emit("done")


if __name__ == "__main__":
    play(main, Arguments)
