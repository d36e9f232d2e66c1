"""The settings of the site, with each library's backend.

What all can be told is the same: a dead worker is found after 5 seconds, a task may be tried 50
times, and 4 tasks run at once.
"""

from __future__ import annotations

import json
import os
from typing import Any, Final

import pymysql

# It needs no C compiler; Django asks for mysqlclient of at least this version.
pymysql.version_info = (2, 2, 7, "final", 0)
pymysql.install_as_MySQLdb()

LIBRARY: Final = os.environ["LIBRARY"]
DATABASES = {"default": json.loads(os.environ["DATABASE"])}
SECRET_KEY = "of a benchmark"  # noqa: S105 - nobody signs anything
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
BACKENDS: Final[dict[str, dict[str, Any]]] = {
    "ours": {
        "BACKEND": "queue_over_sql.contrib.django.Backend",
        "OPTIONS": {"max_attempts": 50},
    },
    "django-ox": {
        "BACKEND": "django_ox.backend.OxBackend",
        "OPTIONS": {"MAX_ATTEMPTS": 50, "LOCK_TIMEOUT": 5},
    },
    "dj-queue": {
        "BACKEND": "dj_queue.backend.DjQueueBackend",
        "OPTIONS": {
            "workers": [{"queues": "*", "threads": 4}],
            "process_heartbeat_interval": 1,
            "process_alive_threshold": 5,
        },
    },
    "django-tasks-db": {"BACKEND": "django_tasks_db.DatabaseBackend"},
}
APPS: Final = {
    "ours": "queue_over_sql.contrib.django",
    "django-ox": "django_ox",
    "dj-queue": "dj_queue",
    "django-tasks-db": "django_tasks_db",
}
INSTALLED_APPS = [APPS[LIBRARY]]
TASKS = {"default": BACKENDS[LIBRARY]}
QUEUE_OVER_SQL = {"default": {"consumer_timeout": 5.0}}
