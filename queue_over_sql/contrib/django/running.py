"""Runs tasks: the handlers of the worker."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from django.db import InterfaceError, OperationalError, close_old_connections, connections
from django.db.transaction import atomic

from queue_over_sql import DatabaseRefused, DatabaseUnavailable
from queue_over_sql.contrib.django.backend import Backend, backend_named
from queue_over_sql.contrib.django.names import (
    TaskContext,
    TaskResult,
    normalize_json,
    task_finished,
    task_started,
)
from queue_over_sql.contrib.django.services import service
from queue_over_sql.inside.workers import NotCalled

if TYPE_CHECKING:
    from queue_over_sql import Message, Worker

_log = logging.getLogger(__name__)
# How long a task rests that could not begin or end, because the database could not be reached.
_REST_SECONDS: Final = 1.0


def make_worker(alias: str = "default", *, max_tasks: int | None = None, **options: Any) -> Worker:
    """A worker for the queues of one task backend.

    Args:
        alias: the backend's name in ``TASKS``.
        max_tasks: end after this many tasks; None: go on until it is stopped.
        options: as for ``QueueService.worker``.

    Raises:
        ImproperlyConfigured: there is no such backend, or it is of another kind.
    """
    backend = backend_named(alias)
    limits = [] if max_tasks is None else [_Limit(max_tasks)]
    around: list[Callable[..., None]] = [*limits, with_fresh_connections]
    worker = service(backend.database).worker(middleware=around, **options)
    for limit in limits:
        limit.worker = worker
    for name in sorted(backend.queues):
        worker.handle(name)(_Runner(backend))
    return worker


class _Limit:
    """Runs a number of tasks, and gives back those that came at the same moment as the last."""

    worker: Worker

    def __init__(self, tasks: int) -> None:
        self._left = tasks
        self._lock = threading.Lock()

    def __call__(self, message: Message, call: Callable[[], None]) -> None:
        with self._lock:
            self._left -= 1
            left = self._left
        if left <= 0:
            self.worker.stop()
        if left < 0:
            message.release()
        else:
            call()


def with_fresh_connections(message: Message, call: Callable[[], None]) -> None:
    """Middleware for workers of your own: close Django's old connections, as around a request."""
    del message
    close_old_connections()
    try:
        call()
    finally:
        close_old_connections()


class _Runner:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def __call__(self, message: Message) -> None:
        backend = self._backend
        try:
            result = backend.result_of(message)
        except DatabaseUnavailable as error:
            raise NotCalled from error
        task_started.send(type(backend), task_result=result)
        try:
            with _transaction(backend) as connection:
                value = normalize_json(_called(result))
                if connection is None:
                    self._finish_at_last(message, value)
                else:
                    self._finish(message, value, connection)
        except NotCalled:
            raise
        except BaseException as error:
            # Signals interrupt the main thread only; in another one a task has raised it.
            interrupted = isinstance(error, KeyboardInterrupt) and _is_main()
            if message.settled or interrupted:
                raise
            message.nack(error=error)
            # Here, because Django logs the exception that is being handled.
            self._tell_end(message)
            # The worker logs and counts the failure, as that of each handler.
            raise
        else:
            self._tell_end(message)

    def _finish(self, message: Message, value: Any, connection: Any = None) -> None:
        # An operator may have changed what the archive keeps.
        kept = self._backend.queue(message.queue).settings.archive == "all"
        message.ack(result=value if kept else None, connection=connection)

    def _finish_at_last(self, message: Message, value: Any) -> None:
        """Finish a task that has succeeded, as soon as the database lets it.

        It must not run again, and has not failed.
        """
        while True:
            try:
                self._finish(message, value)
            except (DatabaseUnavailable, DatabaseRefused) as error:
                if message.cancelled:
                    raise
                _log.warning("A task that succeeded is not finished yet: %s", error)
                time.sleep(_REST_SECONDS)
            else:
                return

    def _tell_end(self, message: Message) -> None:
        queue = self._backend.queue(message.queue)
        found = self._backend.message(queue, message.id)
        if found is None:
            # Somebody removed it meanwhile.
            return
        result = self._backend.result_of(found)
        if result.is_finished:
            task_finished.send(type(self._backend), task_result=result)


@contextlib.contextmanager
def _transaction(backend: Backend) -> Iterator[Any]:
    """The transaction in which a task runs, if the backend is ``atomic``; else None.

    Raises:
        NotCalled: it could not begin, because the database is away or locked for too long.
    """
    if not backend.atomic:
        yield None
        return
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(atomic(backend.database))
        except (OperationalError, InterfaceError) as error:
            time.sleep(_REST_SECONDS)
            raise NotCalled from error
        yield connections[backend.database]


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def _called(result: TaskResult) -> Any:
    first = (TaskContext(task_result=result),) if result.task.takes_context else ()
    return result.task.call(*first, *result.args, **result.kwargs)
