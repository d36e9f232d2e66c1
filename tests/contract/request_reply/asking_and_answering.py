"""A replier beside a test."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from queue_over_sql import Published

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from queue_over_sql import Message, Queue, QueueService

LONGEST_WAIT = 30.0
"""Seconds for what comes at once: a bound, never a measure of speed."""


@contextmanager
def answering(queue: Queue, answer: Callable[[Message], Any]) -> Iterator[None]:
    """Reply to each request with what ``answer`` returns, unless it has replied by itself."""
    done = threading.Event()

    def run() -> None:
        while not done.is_set():
            for message in queue.consume(wait=0.05):
                result = answer(message)
                if result is not None and not isinstance(result, Published):
                    message.reply(result)
                message.ack()

    thread = threading.Thread(target=run, name="answering")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(LONGEST_WAIT)
    assert not thread.is_alive()


def ask(
    queue: Queue, payload: Any, *, timeout: float = LONGEST_WAIT, **options: Any
) -> Future[Message]:
    """Make a request in a thread of its own."""
    future: Future[Message] = Future()

    def run() -> None:
        try:
            future.set_result(queue.request(payload, timeout=timeout, **options))
        except BaseException as error:  # noqa: BLE001 - handed to the test
            future.set_exception(error)

    threading.Thread(target=run, name="asking", daemon=True).start()
    return future


def temporary(service: QueueService) -> list[str]:
    """The names of all temporary queues."""
    return [queue.name for queue in service.queues(temporary=True) if queue.temporary]
