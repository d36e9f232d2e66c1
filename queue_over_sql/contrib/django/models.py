"""A model without a table: it gives the pages of the admin their name and their permissions."""

from __future__ import annotations

from django.db import models


class Task(models.Model):
    """The tasks in the queues; ``view_task`` lets people look, ``change_task`` requeue."""

    class Meta:
        """No table: the queues have theirs."""

        managed = False
        default_permissions = ("view", "change")

    def __str__(self) -> str:
        """Nothing is stored here."""
        return "task"
