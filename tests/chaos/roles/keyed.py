"""Publishes sorted batches with few keys, or settles such messages in any order."""

from __future__ import annotations

import contextlib
import dataclasses
import random

from queue_over_sql import ClaimLost, Publication, Queue, QueueService
from tests.chaos.roles.protocol import Reins, emit, play

KEYS = 60
BATCH = 40


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What to do: `skip` and `replace` publish some batches, `settle` goes on until `stop`."""

    url: str
    mode: str
    seed: int
    queue: str = "jobs"
    batches: int = 20


def publish(queue: Queue, arguments: Arguments, luck: random.Random) -> int:
    """Publish batches; returns how many messages were new."""
    created = 0
    for number in range(arguments.batches):
        keys = sorted(f"key-{each}" for each in luck.sample(range(KEYS), BATCH))
        messages = [Publication([number, key], key=key) for key in keys]
        done = queue.publish_many(messages, on_conflict=arguments.mode)  # type: ignore[arg-type]
        created += sum(each.outcome == "created" for each in done)
    return created


def settle(queue: Queue, reins: Reins, luck: random.Random) -> None:
    """Ack half of what comes, and nack the other half."""
    while not reins.stop.is_set():
        messages = queue.consume(BATCH, wait=0.1)
        luck.shuffle(messages)
        half = len(messages) // 2
        # A replaced message is lost to its holder.
        with contextlib.suppress(ClaimLost):
            queue.ack(messages[:half])
        with contextlib.suppress(ClaimLost):
            queue.nack(messages[half:], delay=0)


def main(arguments: Arguments) -> None:
    """Work from `go` on."""
    luck = random.Random(arguments.seed)  # noqa: S311 - chance, not a secret
    created = 0
    with QueueService(arguments.url) as service:
        queue, reins = service.queue(arguments.queue), Reins()
        emit("ready")
        reins.go.wait()
        if arguments.mode == "settle":
            settle(queue, reins, luck)
        else:
            created = publish(queue, arguments, luck)
    emit("done", created=created)


if __name__ == "__main__":
    play(main, Arguments)
