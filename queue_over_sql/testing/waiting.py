"""Wait for a condition with a time limit, instead of sleeping."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from queue_over_sql import Message, Queue


def wait_until(predicate: Callable[[], object], timeout: float = 30.0, step: float = 0.02) -> None:
    """Return as soon as ``predicate`` holds; fail the test after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not predicate():
        if time.monotonic() > deadline:
            message = f"still not true after {timeout} s"
            raise AssertionError(message)
        time.sleep(step)


def consume_exactly(queue: Queue, count: int, timeout: float = 30.0) -> list[Message]:
    """Claim until ``count`` messages are in hand; fail the test after ``timeout`` seconds."""
    taken: list[Message] = []

    def enough() -> bool:
        taken.extend(queue.consume(count - len(taken), wait=0.2))
        return len(taken) == count

    wait_until(enough, timeout)
    return taken
