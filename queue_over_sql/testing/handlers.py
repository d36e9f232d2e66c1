"""Run handlers in the test's own thread, and list published messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from queue_over_sql import inside
from queue_over_sql.inside.workers import Handler, handler_run, handlers
from queue_over_sql.values.checks import check_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sqlalchemy import ColumnElement

    from queue_over_sql import Message, Queue, Worker
    from queue_over_sql.inside import CallersConnection

_PAGE = 500


def drain(worker: Worker, *, limit: int | None = None) -> int:
    """Run the handlers of a worker in this thread until no message is due, and raise their errors.

    Messages go through the database as in production: they are claimed, decoded, and acked, in the
    handler's transaction if it is transactional. Messages that handlers publish are handled, too.
    Messages that are due later stay in the queue.

    If a handler raises, its message is nacked, and ``drain`` raises the error. The following
    messages stay for the next call. The handler's ``timeout`` is not enforced.

    Args:
        worker: a worker with handlers; it need not run.
        limit: stop after this many messages. Use it if handlers publish or release without end.

    Returns:
        How many messages were handled.

    Raises:
        ValueError: the worker has no handler, or ``limit`` is not above zero.
        QueueNotFound: a handler's queue does not exist.
        BaseException: the exception of a handler.
    """
    most = None if limit is None else check_whole("limit", limit)
    found = handlers(worker)
    if not found:
        msg = "this worker has no handler: add one with @worker.handle('queue')"
        raise ValueError(msg)
    runs = [_KeepingFailures(*each) for each in found]
    handled = before = 0
    try:
        while most is None or handled < most:
            for run in runs:
                while most is None or handled < most:
                    messages = run.claim(most and most - handled)
                    if not messages:
                        break
                    handled += len(messages)
                    run.handle_all(messages)
            if handled == before:
                break
            before = handled
    finally:
        for run in runs:
            run.close()
    return handled


class _KeepingFailures:
    """A handler whose error is kept, to be raised after its message is settled."""

    def __init__(self, handler: Handler, queue: Queue) -> None:
        self._handler = handler
        self._queue = queue
        self._run = handler_run(
            handler, queue, insist=_once, draining=lambda: False, on_failure=self._keep
        )
        self._failure: BaseException | None = None

    def claim(self, most: int | None) -> list[Message]:
        """Claim the messages of the next call, at most ``most``."""
        size = self._handler.batch or 1
        count = size if most is None else min(size, most)
        return self._queue.consume(count, where=self._handler.where)

    def handle_all(self, messages: list[Message]) -> None:
        """Call the handler and settle; raises the handler's error."""
        self._failure = None
        finished = self._run.handle(messages)
        if finished:
            self._queue.ack(finished)
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Give back the connection of a transactional handler."""
        self._run.close()

    def _keep(self, error: BaseException) -> None:
        self._failure = error


def _once(do: Callable[[], None]) -> None:
    do()


def published(
    queue: Queue,
    *,
    where: ColumnElement[bool] | None = None,
    payload: Mapping[str, Any] | None = None,
    key: str | None = None,
    kind: str | None = None,
    connection: CallersConnection | None = None,
) -> list[Message]:
    """Return the unfinished messages of a queue, in publish order.

    It does not claim them. They include messages that are due later.

    Args:
        queue: the queue.
        where: only messages that match an SQLAlchemy condition on the queue's ``table``.
        payload: only messages with these payload fields; see ``Queue.messages``.
        key: only the message with this key.
        kind: only messages of this kind.
        connection: the caller's own transaction, which also sees what it has not yet committed.
            Django's ``TestCase`` never commits.

    Raises:
        ValueError: a path is not valid.
        UnsupportedByEngine: this database cannot search in JSON.
        WrongDatabase: ``connection`` belongs to another database.
    """
    selected = queue.messages(where=where, payload=payload, key=key, kind=kind)
    found = list(page := inside.page(selected, connection, _PAGE))
    while len(page) == _PAGE:
        page = inside.page(selected, connection, _PAGE, page[-1].id)
        found += page
    return found
