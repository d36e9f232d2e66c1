"""The task backend: tasks of Django as messages."""

from __future__ import annotations

import contextlib
import math
import pkgutil
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from django.apps import apps
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured, SuspiciousOperation
from django.db import DEFAULT_DB_ALIAS, connections
from django.utils import timezone
from django.utils.module_loading import import_string

from queue_over_sql import NoRetry, QueueError, QueueNotFound, QueueSettings
from queue_over_sql.contrib.django.names import (
    BaseTaskBackend,
    Task,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
    task_backends,
    task_enqueued,
)
from queue_over_sql.contrib.django.services import service, temporary_service

if TYPE_CHECKING:
    from queue_over_sql import Attempt, Message, Queue

_APP: Final = "queue_over_sql.contrib.django"
_DEFAULTS: Final[Mapping[str, Any]] = {
    # Django has priorities from -100 to 100, a queue has at most 100 levels.
    "priorities": 100,
    # For killed workers. A task that raises has failed, unless the options say how to retry.
    "max_attempts": 5,
    "retry": NoRetry(),
    "archive": "all",
    "archive_ttl": {"done": 14 * 86_400},
}
_MIDDLE: Final = 50
_VENDORS: Final = {"sqlite", "postgresql", "mysql"}
# The line of a traceback that names the exception, behind the last line of a file.
_RAISED: Final = re.compile(r"^([\w.]+)(?::|$)", re.MULTILINE)
_ID: Final = re.compile(r"[0-9]{1,19}")
_LARGEST_ID: Final = 2**63 - 1


class Backend(BaseTaskBackend):
    """Publishes tasks in queues of a database of Django, and finds their results there.

    Each name in ``QUEUES`` is a queue with a table of its own. ``OPTIONS`` may have:

    - ``database``: the alias of the database, ``"default"`` unless given.
    - ``atomic``: whether each task runs in a transaction that also finishes its message, so that
      what it writes counts exactly once. False unless given.
    - ``queues``: a mapping of names to settings of single queues, as ``create_queue`` takes them.
    - all settings of ``QueueService.create_queue``, for all queues. Those differ from its defaults:
      ``retry=NoRetry()``, so a task that raises has failed, as in Django's other backends;
      ``archive="all"``, ``archive_ttl={"done": 14 days}`` and ``priorities=100``.

    The id of a result is the queue's name, a colon and the message's id, as in ``default:17``.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        options = dict(self.options)
        self.database: str = options.pop("database", DEFAULT_DB_ALIAS)
        self.atomic: bool = options.pop("atomic", False)
        self._of_queues: Mapping[str, Mapping[str, Any]] = options.pop("queues", {})
        self._of_all = {**_DEFAULTS, **options}

    # -- what Django calls

    def enqueue(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
        """Publish a task; inside ``atomic()`` it is published when that commits.

        Raises:
            InvalidTask: the task does not fit this backend.
            QueueNotFound: ``manage.py migrate`` has not created the queue yet.
            PayloadInvalid, PayloadTooLarge: the arguments cannot be stored.
        """
        self.validate_task(task)
        arguments = {"args": normalize_json(args), "kwargs": normalize_json(kwargs)}
        # Two priorities share a level, so the message has the one that was asked for.
        named = {"task": task.module_path, "priority": task.priority}
        connection = connections[self.database]
        queue = self.queue(task.queue_name)
        published = queue.publish(
            {**named, **arguments},
            priority=level_of(task.priority),
            at=_aware(task.run_after),
            # Django's own errors inside atomic() name it; outside our own session repeats.
            connection=connection if connection.in_atomic_block else None,
        )
        result = TaskResult(
            task=task,
            id=f"{task.queue_name}:{published.id}",
            status=TaskResultStatus.READY,
            enqueued_at=_naive(published.published_at or self._published_at(queue, published.id)),
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            **arguments,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult:
        """The state of a task, from its queue or the queue's archive.

        Raises:
            TaskResultDoesNotExist: there is no such task, or the archive does not keep it any more.
        """
        name, _, number = str(result_id).rpartition(":")
        if name not in self.queues or _ID.fullmatch(number) is None or int(number) > _LARGEST_ID:
            raise TaskResultDoesNotExist(result_id)
        try:
            queue = self.queue(name)
        except QueueNotFound as error:
            raise TaskResultDoesNotExist(result_id) from error
        message = self.message(queue, int(number))
        if message is not None:
            return self.result_of(message)
        raise TaskResultDoesNotExist(result_id)

    def check(self, **_: Any) -> Iterable[checks.CheckMessage]:
        """Look at the settings, for ``manage.py check``."""
        return [
            kind(text, hint, obj=f"TASKS[{self.alias!r}]", id=f"queue_over_sql.{number}")
            for kind, number, text, hint in self._problems()
        ]

    # -- for the worker

    def queue(self, name: str) -> Queue:
        """The queue with this name."""
        try:
            return service(self.database).queue(name)
        except QueueNotFound as error:
            error.add_note("Run `manage.py migrate`: it creates the queues of TASKS.")
            raise

    def message(self, queue: Queue, number: int) -> Message | None:
        """A task's message, live or archived, also one that this transaction has published."""
        connection = connections[self.database]
        own = connection if connection.in_atomic_block else None
        for selection, table in (
            (queue.messages, queue.table),
            (queue.archive.messages, queue.archive.table),
            # It may have been requeued between the two looks.
            (queue.messages, queue.table),
        ):
            found = selection(where=table.c.id == number).first(connection=own)
            if found is not None:
                return found
        return None

    def _published_at(self, queue: Queue, number: int) -> datetime:
        # MySQL does not say it when it publishes. Its clock may differ from this machine's.
        try:
            message = self.message(queue, number)
        except QueueError:
            # The task is enqueued all the same: its caller is not to enqueue it again.
            message = None
        return datetime.now(UTC) if message is None else message.published_at

    def create_queues(self) -> None:
        """Create the queues, or bring their settings up to date."""
        wanted = {name: QueueSettings(**self._settings_of(name)) for name in sorted(self.queues)}
        # Django copies a test database of SQLite as a file, which must be complete.
        with temporary_service(self.database) as temporary:
            temporary.create_queues(wanted)

    def _settings_of(self, name: str) -> dict[str, Any]:
        return {**self._of_all, **self._of_queues.get(name, {})}

    def result_of(self, message: Message) -> TaskResult:
        """A message as Django's result.

        Raises:
            ImportError, SuspiciousOperation: there is no task at the path in its payload.
        """
        queue = self.queue(message.queue)
        attempts = queue.attempts(message.id)
        began = [each.began_at for each in attempts if each.began_at is not None]
        workers = [each.consumer_id for each in attempts]
        if message.consumer_id is not None and len(workers) < message.attempt:
            workers.append(message.consumer_id)
            began += [message.claimed_at] if message.claimed_at is not None else []
        payload: Any = message.payload
        result = TaskResult(
            task=self._task(payload, message, queue.title),
            id=f"{queue.title}:{message.id}",
            status=_status(message),
            enqueued_at=_naive(message.published_at),
            started_at=_naive(began[0]) if began else None,
            finished_at=_naive(message.finished_at),
            last_attempted_at=_naive(began[-1]) if began else None,
            args=payload.get("args", []),
            kwargs=payload.get("kwargs", {}),
            backend=self.alias,
            errors=_errors(message, attempts),
            worker_ids=workers,
        )
        if message.outcome == "done":
            object.__setattr__(result, "_return_value", queue.result(message.id))
        return result

    def _task(self, payload: Mapping[str, Any], message: Message, queue: str) -> Task:
        task = task_at(payload["task"])
        due = message.scheduled_at if message.scheduled_at > message.published_at else None
        return task.using(
            queue_name=queue,
            priority=_priority_of(message.priority, payload.get("priority", task.priority)),
            run_after=_naive(due),
            backend=self.alias,
        )

    def _problems(self) -> Iterator[tuple[type[checks.CheckMessage], str, str, str]]:
        if not apps.is_installed(_APP):
            text = "The app that creates the queues is not installed."
            yield checks.Error, "E001", text, f"Add {_APP!r} to INSTALLED_APPS."
        if not self.queues:
            text = "QUEUES is empty, so there is no queue."
            yield checks.Error, "E002", text, 'Name the queues, as in "QUEUES": ["default"].'
        try:
            connection = connections[self.database]
        except Exception:  # noqa: BLE001 - Django's error for an alias that is not there
            text = f"DATABASES has no {self.database!r}."
            yield checks.Error, "E003", text, "Correct OPTIONS['database']."
            return
        if connection.vendor not in _VENDORS:
            text = f"Queues cannot be in a database of {connection.vendor}."
            yield checks.Error, "E004", text, "Use SQLite, PostgreSQL, MySQL or MariaDB."
        elif hasattr(connection, "is_in_memory_db"):
            yield from self._problems_of_sqlite(connection)
        for name in self.queues | self._of_queues.keys():
            wanted = self._settings_of(name)
            if wanted["archive"] != "all":
                text = f"Queue {name!r} does not keep the tasks that succeeded."
                yield checks.Error, "E008", text, 'Leave "archive" out of OPTIONS.'
            try:
                QueueSettings(**wanted)
            except (TypeError, ValueError) as error:
                text = f"The settings of queue {name!r} are not valid: {error}"
                yield checks.Error, "E006", text, "Correct them in OPTIONS."
        for name in self._of_queues.keys() - self.queues:
            text = f"OPTIONS['queues'] has {name!r}, which is not in QUEUES."
            yield checks.Error, "E007", text, "Add it to QUEUES, or remove its settings."

    def _problems_of_sqlite(
        self, connection: Any
    ) -> Iterator[tuple[type[checks.CheckMessage], str, str, str]]:
        if connection.is_in_memory_db():
            text = "Queues cannot share a SQLite database in memory with Django."
            hint = 'Use a file. For tests: "TEST": {"NAME": "test.db"} in DATABASES.'
            yield checks.Error, "E005", text, hint
        options = connection.settings_dict["OPTIONS"]
        if options.get("transaction_mode") != "IMMEDIATE":
            text = "Transactions that read before they write may fail: database is locked."
            hint = 'Set "OPTIONS": {"transaction_mode": "IMMEDIATE"} in DATABASES.'
            yield checks.Warning, "W001", text, hint
        if self.atomic and "timeout" not in options:
            text = "Views fail if a task holds the write lock for more than 5 seconds."
            hint = 'Set "OPTIONS": {"timeout": 30} in DATABASES, or leave "atomic" off.'
            yield checks.Warning, "W003", text, hint


def our_backends() -> list[Backend]:
    """The backends of ``TASKS`` that publish in queues."""
    return [each for each in task_backends.all() if isinstance(each, Backend)]


def backend_named(alias: str) -> Backend:
    """The backend with this name in ``TASKS``.

    Raises:
        ImproperlyConfigured: there is none, or it is of another kind.
    """
    aliases = list(task_backends)
    if alias not in aliases:
        msg = f"TASKS has no backend {alias!r}; it has: {', '.join(map(repr, aliases))}"
        raise ImproperlyConfigured(msg)
    backend = task_backends[alias]
    if isinstance(backend, Backend):
        return backend
    path = f"{_APP}.{Backend.__name__}"
    msg = f"TASKS[{alias!r}] is a {type(backend).__name__}: its BACKEND must be {path!r}"
    raise ImproperlyConfigured(msg)


def task_at(path: str) -> Task:
    """The task with this path.

    Raises:
        ImportError, SuspiciousOperation: there is none.
    """
    found = import_string(path)
    if isinstance(found, Task):
        return found
    msg = f"{path} is not a task: decorate the function with @task"
    raise SuspiciousOperation(msg)


def level_of(priority: int) -> int:
    """The queue's level for a priority of Django's: two priorities share one, but not with 0."""
    half = math.ceil(abs(priority) / 2)
    return max(0, _MIDDLE - half) if priority > 0 else min(99, _MIDDLE + half)


def _priority_of(level: int, wanted: int) -> int:
    # An operator may have changed the level since.
    return wanted if level_of(wanted) == level else 2 * (_MIDDLE - level)


def _status(message: Message) -> TaskResultStatus:
    if message.outcome is not None:
        done = message.outcome == "done"
        return TaskResultStatus.SUCCESSFUL if done else TaskResultStatus.FAILED
    claimed = message.consumer_id is not None
    return TaskResultStatus.RUNNING if claimed else TaskResultStatus.READY


class _Error(TaskError):
    @property
    def exception_class(self) -> type[BaseException]:
        """Also a class inside another one, such as a model's ``DoesNotExist``."""
        found = pkgutil.resolve_name(self.exception_class_path)
        if isinstance(found, type) and issubclass(found, BaseException):
            return found
        msg = f"{self.exception_class_path!r} does not reference a valid exception."
        raise ValueError(msg)


def _errors(message: Message, attempts: Sequence[Attempt]) -> list[TaskError]:
    return [
        _Error(
            exception_class_path=_class_path(each.traceback),
            traceback=each.traceback or each.error or message.last_error or "",
        )
        for each in attempts
    ]


def _class_path(traceback: str | None) -> str:
    """The path of the exception's class, by the first line behind the last one of a file."""
    if traceback is None:
        return "queue_over_sql.ClaimLost"
    for name in _RAISED.findall(traceback.rpartition("\n  File ")[2])[:1]:
        path = name if "." in name else f"builtins.{name}"
        with contextlib.suppress(ImportError, AttributeError):
            pkgutil.resolve_name(path)
            return str(path)
    # A class inside a function, or of the main program, cannot be imported.
    return "builtins.Exception"


def _aware(value: datetime | None) -> datetime | None:
    return timezone.make_aware(value) if value is not None and timezone.is_naive(value) else value


def _naive(value: datetime | None) -> datetime | None:
    """Our instants are in UTC; without USE_TZ Django's are local and naive."""
    return value if value is None or settings.USE_TZ else timezone.make_naive(value)
