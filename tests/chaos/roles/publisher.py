"""A publisher that logs each message before its publish and after its commit."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence

from sqlalchemy import create_engine

from queue_over_sql import Queue, QueueService
from tests.chaos.journal import Journal
from tests.chaos.roles.protocol import Reins, emit, play

MANY = 50
LOAD = 1_000
LOAD_BATCH = 250
OWN_TRANSACTION = 5
GROUPS = 4
KEYS = 4


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What to publish: `mode` is `one`, `many`, `load`, `transaction`, `groups` or `few_keys`."""

    url: str
    journal: str
    mode: str
    name: str
    queue: str = "jobs"
    pause: float = 0.0
    """Seconds between two publishes."""


Publish = Callable[[Sequence[str]], Sequence[str] | None]
"""Publishes messages with these tokens; returns those that came in, or None if all did."""


def payloads(tokens: Sequence[str]) -> list[dict[str, str]]:
    """Each token with ballast, so that a half-written message would be noticed."""
    return [{"token": token, "ballast": token * 20} for token in tokens]


def publish_one(queue: Queue) -> tuple[int, Publish]:
    """Publish singly."""

    def publish(tokens: Sequence[str]) -> None:
        for payload in payloads(tokens):
            queue.publish(payload)

    return 1, publish


def publish_many(queue: Queue) -> tuple[int, Publish]:
    """Publish a batch at once."""

    def publish(tokens: Sequence[str]) -> None:
        queue.publish_many(payloads(tokens))

    return MANY, publish


def publish_load(queue: Queue) -> tuple[int, Publish]:
    """Publish in bulk, several batches a call."""

    def publish(tokens: Sequence[str]) -> None:
        queue.load(payloads(tokens), batch_size=LOAD_BATCH)

    return LOAD, publish


def publish_in_transaction(queue: Queue, url: str) -> tuple[int, Publish]:
    """Publish some in one transaction of the caller's own."""
    engine = create_engine(url)

    def publish(tokens: Sequence[str]) -> None:
        with engine.begin() as connection:
            for payload in payloads(tokens):
                queue.publish(payload, connection=connection)

    return OWN_TRANSACTION, publish


def group_of(token: str) -> str:
    """The group of a message in the mode `groups`; no other publisher has it."""
    name, _, number = token.rpartition("-")
    return f"{name}-{int(number) % GROUPS}"


def publish_in_groups(queue: Queue, url: str) -> tuple[int, Publish]:
    """Publish some in one transaction of the caller's own, in turn to some groups."""
    engine = create_engine(url)

    def publish(tokens: Sequence[str]) -> None:
        with engine.begin() as connection:
            for token, payload in zip(tokens, payloads(tokens), strict=True):
                queue.publish(payload, group=group_of(token), connection=connection)

    return OWN_TRANSACTION, publish


def publish_with_few_keys(queue: Queue) -> tuple[int, Publish]:
    """Publish singly, unless another message of the key waits."""
    turns = itertools.count()

    def publish(tokens: Sequence[str]) -> Sequence[str]:
        (token,), (payload,) = tokens, payloads(tokens)
        key = f"key-{next(turns) % KEYS}"
        done = queue.publish(payload, key=key, on_conflict="skip")
        return [token] if done.outcome == "created" else []

    return 1, publish


def way_of_publishing(arguments: Arguments, queue: Queue) -> tuple[int, Publish]:
    """How many tokens this mode takes at a time, and what to do with them."""
    if arguments.mode == "transaction":
        return publish_in_transaction(queue, arguments.url)
    if arguments.mode == "groups":
        return publish_in_groups(queue, arguments.url)
    ways = {
        "one": publish_one,
        "many": publish_many,
        "load": publish_load,
        "few_keys": publish_with_few_keys,
    }
    return ways[arguments.mode](queue)


def tokens_by(name: str, count: int) -> Iterator[list[str]]:
    """Endless lists of `count` new tokens."""
    numbers = itertools.count()
    while True:
        yield [f"{name}-{number}" for number in itertools.islice(numbers, count)]


def main(arguments: Arguments) -> None:
    """Publish from `go` until `stop` or until killed."""
    service = QueueService(arguments.url)
    journal = Journal(arguments.journal, arguments.name)
    count, publish = way_of_publishing(arguments, service.queue(arguments.queue))
    reins = Reins()
    emit("ready")
    reins.go.wait()
    for tokens in tokens_by(arguments.name, count):
        if reins.stop.wait(arguments.pause):
            break
        journal.intends(tokens)
        done = publish(tokens)
        journal.published(tokens if done is None else done)
    service.stop()
    emit("done")


if __name__ == "__main__":
    play(main, Arguments)
