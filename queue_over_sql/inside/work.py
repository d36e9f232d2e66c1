"""Running handlers in another place than a worker of this library."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queue_over_sql.queue import core_of
from queue_over_sql.worker.handler_run import HandlerRun
from queue_over_sql.worker.worker import Worker, handlers_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from queue_over_sql.queue import Queue
    from queue_over_sql.worker.handler import Handler


def handlers(worker: Worker) -> list[tuple[Handler, Queue]]:
    """The handlers of a worker, each with its queue.

    Raises:
        QueueNotFound: the queue of one does not exist.
    """
    parts, found = handlers_of(worker)
    return [(handler, parts.queue(handler.queue)) for handler in found]


def handler_run(
    handler: Handler,
    queue: Queue,
    *,
    insist: Callable[[Callable[[], None]], None],
    draining: Callable[[], bool],
    on_failure: Callable[[BaseException], None] | None = None,
) -> HandlerRun:
    """What calls a handler with claimed messages and settles them, as a worker does.

    Close it at the end. Its ``handle(messages)`` returns those that must still be acked.

    Args:
        handler: the handler.
        queue: the queue of its messages.
        insist: repeats a function that the unavailable database prevents.
        draining: whether no more messages are to be begun.
        on_failure: called with each failure of the handler.
    """
    connections = core_of(queue).context.connections
    return HandlerRun(handler, queue, connections, insist, draining, on_failure=on_failure)
