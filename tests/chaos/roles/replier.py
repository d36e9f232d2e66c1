"""A server whose worker answers requests: effect, reply and ack in one transaction or apart."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
from pathlib import Path

from sqlalchemy import Connection, text

from queue_over_sql import Message, QueueService, ReplyQueueGone
from tests.chaos.roles.protocol import emit, play


@dataclasses.dataclass(frozen=True)
class Arguments:
    """How to answer."""

    url: str
    queue: str = "jobs"
    concurrency: int = 2
    transactional: bool = False
    """Write `effects (token, attempt)` in the transaction of reply and ack."""
    deadly_once: str = ""
    """A file: the first to make it dies between its reply and its ack."""
    consumer_timeout: float = 3.0
    reaper_interval: float = 0.2


def answer_of(message: Message) -> dict[str, object]:
    """The reply to a request."""
    return {"token": message.payload["token"], "attempt": message.attempt}


def main(arguments: Arguments) -> None:
    """Answer until the end."""
    service = QueueService(
        arguments.url,
        consumer_timeout=arguments.consumer_timeout,
        reaper_interval=arguments.reaper_interval,
    )
    worker = service.worker(concurrency=arguments.concurrency)

    def in_transaction(message: Message, connection: Connection) -> None:
        connection.execute(
            text("INSERT INTO effects (token, attempt) VALUES (:token, :attempt)"),
            answer_of(message),
        )
        message.reply(answer_of(message), connection=connection)

    def plainly(message: Message) -> None:
        # Who asked has a reply, and has stopped: the work is done.
        with contextlib.suppress(ReplyQueueGone):
            message.reply(answer_of(message))
        if arguments.deadly_once:
            try:
                Path(arguments.deadly_once).touch(exist_ok=False)
            except FileExistsError:
                return
            os.kill(os.getpid(), signal.SIGKILL)

    if arguments.transactional:
        worker.handle(arguments.queue, transactional=True)(in_transaction)
    else:
        worker.handle(arguments.queue)(plainly)
    emit("ready")
    worker.run(signals=True)


if __name__ == "__main__":
    play(main, Arguments)
