"""Django: tasks of `django.tasks` in queues of the site's own database.

::

    INSTALLED_APPS = [..., "queue_over_sql.contrib.django"]
    TASKS = {"default": {"BACKEND": "queue_over_sql.contrib.django.Backend"}}

A task that is enqueued inside ``transaction.atomic()`` is published with it, or not at all.
``manage.py queue_worker`` runs the tasks.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from queue_over_sql.contrib.django.backend import Backend
    from queue_over_sql.contrib.django.services import service, stop_services, url

_LATER: Final = {
    "Backend": "backend",
    "service": "services",
    "stop_services": "services",
    "url": "services",
}


def __getattr__(name: str) -> Any:
    # Django imports this package before its settings and models are ready.
    if name in _LATER:
        return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)


__all__ = ["Backend", "service", "stop_services", "url"]
