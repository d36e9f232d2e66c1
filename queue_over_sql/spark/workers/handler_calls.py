"""Calls a handler in its form, and counts the results of its messages."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle

from queue_over_sql import Message
from queue_over_sql.inside.workers import delay_of, reason_of, refuse_unfinished

if TYPE_CHECKING:
    from queue_over_sql import Queue
    from queue_over_sql.spark.workers.plan import WorkersPlan


_Failure = tuple[Message, str | BaseException]


class Counters:
    """Counts of one worker, which its threads share."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.handled = 0
        self.failed = 0
        self.dead = 0
        self.calls = 0
        self.busy = 0

    @contextlib.contextmanager
    def calling(self) -> Iterator[None]:
        """Note a running call of the handler."""
        with self._lock:
            self.calls += 1
            self.busy += 1
        try:
            yield
        finally:
            with self._lock:
                self.busy -= 1

    def count(self, handled: int, failed: int, dead: int = 0) -> None:
        """Count ended deliveries; dead letters are also counted as failed."""
        with self._lock:
            self.handled += handled
            self.failed += failed
            self.dead += dead


def send_by_value(name: str) -> None:
    """Pickle functions of an imported module by value, so that executors need not import it.

    Executors have no session, so they cannot import a module that creates one.
    """
    cloudpickle.register_pickle_by_value(sys.modules[name])  # type: ignore[no-untyped-call]


def calling(plan: WorkersPlan, queue: Queue, counters: Counters) -> Callable[..., None]:
    """The function that a worker calls with claimed messages, and perhaps a connection."""

    def call(given: Any, connection: tuple[Any, ...]) -> list[_Failure]:
        if plan.form == "arrow":
            return _failed_of_arrow(plan.handler, queue, given, connection)
        refuse_unfinished(plan.handler(given, *connection))
        return []

    def handle(given: Message | Sequence[Message], *connection: Any) -> None:
        messages = [given] if isinstance(given, Message) else given
        with counters.calling():
            try:
                failed = call(given, connection)
            except BaseException as error:
                counters.count(0, len(messages), _dead(queue, [(m, error) for m in messages]))
                raise
        counters.count(len(messages) - len(failed), len(failed), _dead(queue, failed))

    return handle


def reasons_of(answer: Any, count: int) -> dict[int, str]:
    """The reasons that an Arrow handler returned, by their place in the batch.

    It must return None if all messages succeeded, or a list with None or a reason for each message.
    """
    if answer is None:
        return {}
    texts = answer.to_pylist() if hasattr(answer, "to_pylist") else answer
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        msg = (
            "a handler of Arrow batches must return None, or a list with None or a failure "
            f"reason for each message, not {type(answer).__name__}"
        )
        raise TypeError(msg)
    if len(texts) != count:
        msg = (
            f"the handler returned {len(texts)} reasons for {count} messages: it must return one, "
            "or None, for each"
        )
        raise ValueError(msg)
    return {place: str(text) for place, text in enumerate(texts) if text is not None}


def _dead(queue: Queue, failed: Sequence[_Failure]) -> int:
    return sum(_ends(queue, message, error) for message, error in failed)


def _ends(queue: Queue, message: Message, error: str | BaseException) -> bool:
    if message.attempt >= message.max_attempts:
        return True
    try:
        retry = queue.settings.retry
        exception = type(error) if isinstance(error, BaseException) else None
        return delay_of(retry, message.attempt, reason_of(error), exception) is None
    except Exception:  # noqa: BLE001 - of the user's policy; nack logs it, and retries
        return False


def _failed_of_arrow(
    handler: Callable[..., Any],
    queue: Queue,
    messages: Sequence[Message],
    connection: tuple[Any, ...],
) -> list[_Failure]:
    from queue_over_sql.inside.columns import batch

    columns = batch(queue, messages)
    reasons = reasons_of(handler(columns, *connection), len(messages))
    for place, reason in reasons.items():
        target = connection[0] if connection else None
        queue.nack(messages[place], error=reason, connection=target)
    return [(messages[place], reason) for place, reason in reasons.items()]
