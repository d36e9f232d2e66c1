"""The Django app, which creates the queues after each `migrate`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.db import connections
from django.db.models.signals import post_migrate


class QueuesConfig(AppConfig):
    """Creates the queues of the task backends after each ``migrate``."""

    name = "queue_over_sql.contrib.django"
    label = "queue_over_sql"
    verbose_name = "Queues"

    def ready(self) -> None:
        """Connect to ``post_migrate``, which Django also sends when it makes a test database."""
        post_migrate.connect(_create_queues, sender=self)
        checks.register(check_schedules, checks.Tags.database)


def _create_queues(*, using: str, **_: Any) -> None:
    from queue_over_sql.contrib.django.backend import our_backends

    for backend in our_backends():
        if backend.database == using:
            backend.create_queues()


def check_schedules(
    *, databases: Sequence[str] | None = None, **_: Any
) -> Iterator[checks.CheckMessage]:
    """Look whether each schedule enqueues a task, for ``check --database`` and ``migrate``.

    Only a warning, because a deployment may correct its schedules after ``migrate``.
    """
    from queue_over_sql.contrib.django.backend import our_backends
    from queue_over_sql.contrib.django.services import temporary_service

    for backend in our_backends():
        if backend.database not in (databases or ()) or not _has_schedules(backend.database):
            continue
        with temporary_service(backend.database) as service:
            ours = {each.name for each in service.queues() if each.title in backend.queues}
            schedules = [each for each in service.schedules.list() if each.queue in ours]
        for each in schedules:
            if wrong := _wrong(each.payload):
                yield checks.Warning(
                    f"The schedule {each.name!r} enqueues no task: {wrong}",
                    "Add it again with the right path, or remove it: manage.py queues schedule.",
                    obj=f"TASKS[{backend.alias!r}]",
                    id="queue_over_sql.W002",
                )


def _has_schedules(database: str) -> bool:
    # The service would make the tables, which is not for a check to do.
    tables = connections[database].introspection.table_names()
    return any(name.endswith("over_sql_schedules") for name in tables)


def _wrong(payload: Any) -> str | None:
    from queue_over_sql.contrib.django.backend import task_at

    path = payload.get("task") if isinstance(payload, dict) else None
    if not isinstance(path, str):
        return 'its payload has no "task"'
    try:
        task_at(path)
    except Exception as error:  # noqa: BLE001 - a module of the site may raise anything
        return str(error)
    return None
