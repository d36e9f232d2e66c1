"""A publisher to a topic, which may kill itself in the middle of a fan-out."""

from __future__ import annotations

import dataclasses
import itertools
import os
import signal
from typing import TYPE_CHECKING, Any

from sqlalchemy import create_engine, event

from queue_over_sql import QueueService
from tests.chaos.journal import Journal
from tests.chaos.roles.protocol import Reins, emit, play

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import Topic

OWN_TRANSACTION = 3


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What to publish to, and when to die."""

    url: str
    journal: str
    name: str
    topic: str = "events"
    within: bool = False
    """Publish several messages in one transaction of the caller's own."""
    fatal_copy: int = 0
    """Die right after so many copies of the last message were inserted; 0: never."""


class Doom:
    """Kills the process after some more INSERTs of an engine's connections."""

    def __init__(self, engine: Engine) -> None:
        """Watch this engine; nothing happens before ``after``."""
        self._left = 0
        event.listen(engine, "after_cursor_execute", self._executed)

    def after(self, copies: int) -> None:
        """Die when so many more messages were inserted."""
        self._left = copies

    def _executed(self, connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        del connection, cursor
        if self._left and "INSERT INTO" in statement.upper():
            self._left -= 1
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)


class Publisher:
    """Publishes in a transaction of the topic's, or in one of its own."""

    def __init__(self, arguments: Arguments, service: QueueService) -> None:
        """Publish in the way of the arguments."""
        self._engine = create_engine(arguments.url) if arguments.within else None
        # Before a connection is opened: one that nobody follows goes past SQLAlchemy's events.
        self.doom = Doom(self._engine or service._parts.connections.engine)
        self._topic: Topic = service.topic(arguments.topic)
        self._journal = Journal(arguments.journal, arguments.name)
        self._numbers = (f"{arguments.name}-{number}" for number in itertools.count())

    def publish(self) -> None:
        """Publish one message, or several in one transaction."""
        tokens = [*itertools.islice(self._numbers, OWN_TRANSACTION if self._engine else 1)]
        self._journal.intends(tokens)
        if self._engine is None:
            self._topic.publish({"token": tokens[0]}, routing_key="x")
        else:
            with self._engine.begin() as connection:
                for token in tokens:
                    self._topic.publish({"token": token}, routing_key="x", connection=connection)
        self._journal.published(tokens)


def main(arguments: Arguments) -> None:
    """Publish once and then die of it, or from `go` until killed."""
    publisher = Publisher(arguments, QueueService(arguments.url))
    publisher.publish()
    if arguments.fatal_copy:
        publisher.doom.after(arguments.fatal_copy)
        publisher.publish()
    reins = Reins()
    emit("ready")
    reins.go.wait()
    while not reins.stop.is_set():
        publisher.publish()


if __name__ == "__main__":
    play(main, Arguments)
