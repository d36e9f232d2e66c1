"""The Django app, which creates the queues after each `migrate`."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class QueuesConfig(AppConfig):
    """Creates the queues of the task backends after each ``migrate``."""

    name = "queue_over_sql.contrib.django"
    label = "queue_over_sql"
    verbose_name = "Queues"

    def ready(self) -> None:
        """Connect to ``post_migrate``, which Django also sends when it makes a test database."""
        post_migrate.connect(_create_queues, sender=self)


def _create_queues(*, using: str, **_: Any) -> None:
    from queue_over_sql.contrib.django.backend import our_backends

    for backend in our_backends():
        if backend.database == using:
            backend.create_queues()
