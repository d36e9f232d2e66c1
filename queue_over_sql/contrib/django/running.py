"""Runs tasks: the handlers of the worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.db import close_old_connections

from queue_over_sql.contrib.django.backend import Backend
from queue_over_sql.contrib.django.names import (
    TaskContext,
    TaskResult,
    normalize_json,
    task_backends,
    task_finished,
    task_started,
)
from queue_over_sql.contrib.django.services import service

if TYPE_CHECKING:
    from queue_over_sql import Message, Worker


def make_worker(alias: str = "default", **options: Any) -> Worker:
    """A worker for the queues of one task backend.

    Args:
        alias: the backend's name in ``TASKS``.
        options: as for ``QueueService.worker``.

    Raises:
        ImproperlyConfigured: it is a backend of another kind.
    """
    backend = task_backends[alias]
    if not isinstance(backend, Backend):
        msg = f"TASKS[{alias!r}] is a {type(backend).__name__}; this worker runs {Backend.__name__}"
        raise ImproperlyConfigured(msg)
    worker = service(backend.database).worker(middleware=[_with_fresh_connections], **options)
    for name in sorted(backend.queues):
        worker.handle(name)(_Runner(backend))
    return worker


def _with_fresh_connections(message: Message, call: Callable[[], None]) -> None:
    # As Django does around each request.
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
        result = backend.result_of(message)
        task_started.send(type(backend), task_result=result)
        try:
            with backend.transaction() as connection:
                value = normalize_json(_called(result))
                # An operator may have changed what the archive keeps.
                kept = backend.queue(message.queue).settings.archive == "all"
                message.ack(result=value if kept else None, connection=connection)
        except (Exception, SystemExit) as error:
            if message.settled:
                raise
            message.nack(error=error)
        self._tell_end(message)

    def _tell_end(self, message: Message) -> None:
        queue = self._backend.queue(message.queue)
        found = self._backend.message(queue, message.id)
        if found is None:
            # Somebody removed it meanwhile.
            return
        result = self._backend.result_of(found)
        if result.is_finished:
            task_finished.send(type(self._backend), task_result=result)


def _called(result: TaskResult) -> Any:
    first = (TaskContext(task_result=result),) if result.task.takes_context else ()
    return result.task.call(*first, *result.args, **result.kwargs)
