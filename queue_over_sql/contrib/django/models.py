"""A model without a table: it gives the pages of the admin their name and their permissions."""

from __future__ import annotations

from django.db import models


class _NoRows(models.Manager["Task"]):
    def get_queryset(self) -> models.QuerySet[Task]:
        return super().get_queryset().none()


class Task(models.Model):
    """The tasks in the queues; ``view_task`` lets people look, ``change_task`` requeue."""

    # For `manage.py dumpdata`, which would ask for a table.
    objects = _NoRows()

    class Meta:
        """No table: the queues have theirs."""

        managed = False
        base_manager_name = "objects"
        default_permissions = ("view", "change")

    def __str__(self) -> str:
        """Nothing is stored here."""
        return "task"
