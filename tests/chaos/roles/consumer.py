"""A consumer under load: claims batches, settles them at random, and logs everything."""

from __future__ import annotations

import dataclasses
import random

from queue_over_sql import ClaimLost, Message, Queue, QueueService
from tests.chaos.journal import Journal
from tests.chaos.roles.protocol import Reins, emit, play


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What to consume, and how to treat it."""

    url: str
    journal: str
    queue: str = "jobs"
    batch: int = 10
    fickle: bool = False
    """Settle one by one with a random verb, instead of acknowledging whole batches."""
    seed: int = 0
    consumer_timeout: float = 30.0
    reaper_interval: float = 0.2


class Consumer:
    """The loop of one consumer."""

    def __init__(self, arguments: Arguments, queue: Queue) -> None:
        """Consume from this queue with these habits."""
        self._arguments = arguments
        self._queue = queue
        self._journal = Journal(arguments.journal)
        self._random = random.Random(arguments.seed)  # noqa: S311 - chance, not a secret

    def run(self, reins: Reins) -> int:
        """Consume until told to stop; how many messages came."""
        count = 0
        while not reins.stop.is_set():
            messages = self._queue.consume(self._arguments.batch, wait=0.2)
            if messages:
                count += len(messages)
                self._journal.delivered(messages)
                self._settle(messages)
        return count

    def _settle(self, messages: list[Message]) -> None:
        if self._arguments.fickle:
            for message in messages:
                self._settle_by_chance(message)
        else:
            with self._journal.settling("ack", messages):
                self._queue.ack(messages)

    def _settle_by_chance(self, message: Message) -> None:
        verb = self._random.choice(["ack"] * 7 + ["nack", "release", "extend"])
        if verb == "extend":
            self._extend(message)
            verb = "ack"
        with self._journal.settling(verb, [message]):
            getattr(message, verb)()

    def _extend(self, message: Message) -> None:
        try:
            message.extend(60.0)
        except ClaimLost:
            self._journal.note("refused", message)
        else:
            self._journal.note("extended", message)


def main(arguments: Arguments) -> None:
    """Say `ready`, wait for `go`, consume until `stop`, say `done`."""
    service = QueueService(
        arguments.url,
        consumer_timeout=arguments.consumer_timeout,
        reaper_interval=arguments.reaper_interval,
    )
    reins = Reins()
    with service:
        consumer = Consumer(arguments, service.queue(arguments.queue))
        emit("ready")
        reins.go.wait()
        count = consumer.run(reins)
    emit("done", count=count)


if __name__ == "__main__":
    play(main, Arguments)
