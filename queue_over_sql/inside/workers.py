"""The door for who runs handlers or workers in a place of their own.

Stability: as ``queue_over_sql.inside``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from queue_over_sql.consumers.lease_renewal import LeaseKeeper
from queue_over_sql.queue import core_of
from queue_over_sql.retry import delay_of
from queue_over_sql.settling.failures import reason_of
from queue_over_sql.worker.handler import Handler, check_kind, refuse_unfinished
from queue_over_sql.worker.handler_run import HandlerRun
from queue_over_sql.worker.processes import Supervisor, obey_supervisor, unblock_signals
from queue_over_sql.worker.source_files import SourceFiles
from queue_over_sql.worker.transactions import NotCalled
from queue_over_sql.worker.worker import Worker, handlers_of, narrow, stop_at_once

if TYPE_CHECKING:
    from collections.abc import Callable

    from queue_over_sql.queue import Queue

__all__ = [
    "Handler",
    "HandlerRun",
    "LeaseKeeper",
    "NotCalled",
    "SourceFiles",
    "Supervisor",
    "check_kind",
    "delay_of",
    "handler_run",
    "handlers",
    "narrow",
    "obey_supervisor",
    "reason_of",
    "refuse_unfinished",
    "stop_at_once",
    "unblock_signals",
]


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
