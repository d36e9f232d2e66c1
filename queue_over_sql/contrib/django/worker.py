"""The worker of `manage.py queue_worker`; each of its processes imports this module."""

from __future__ import annotations

import os

import django

django.setup()

from queue_over_sql.contrib.django.running import make_worker  # noqa: E402 - needs the setup

_max_tasks = os.environ.get("QUEUE_OVER_SQL_DJANGO_MAX_TASKS")
worker = make_worker(
    os.environ.get("QUEUE_OVER_SQL_DJANGO_BACKEND", "default"),
    max_tasks=int(_max_tasks) if _max_tasks else None,
)
