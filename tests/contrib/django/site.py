"""Django in the process of the tests: its settings once, its database for each test."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Mapping
from typing import Any

from sqlalchemy import make_url

BACKEND = "queue_over_sql.contrib.django.Backend"
TASKS: Mapping[str, Any] = {
    "default": {
        "BACKEND": BACKEND,
        "QUEUES": ["default", "mails", "high-priority", "reports/daily"],
    },
    "retried": {
        "BACKEND": BACKEND,
        "QUEUES": ["again"],
    },
    "atomic": {"BACKEND": BACKEND, "QUEUES": ["exact"], "OPTIONS": {"atomic": True}},
    "dummy": {"BACKEND": "django_tasks.backends.dummy.DummyBackend"},
}


def use_pymysql() -> None:
    """Let Django, which asks for mysqlclient, have the driver that needs no C compiler.

    Nobody else in this process is to take it for mysqlclient.
    """
    import pymysql

    pymysql.install_as_MySQLdb()
    importlib.import_module("django.db.backends.mysql.base")
    for name in [each for each in sys.modules if each.partition(".")[0] == "MySQLdb"]:
        del sys.modules[name]


def set_up() -> None:
    """Configure Django; the first call counts."""
    import django
    from django.conf import settings

    from queue_over_sql import FixedDelay

    if settings.configured:
        return
    retried = {**TASKS["retried"], "OPTIONS": {"retry": FixedDelay(0), "max_attempts": 2}}
    settings.configure(
        LOGGING_CONFIG=None,
        USE_TZ=True,
        TIME_ZONE="UTC",
        INSTALLED_APPS=[
            *(f"django.contrib.{each}" for each in ("admin", "auth", "contenttypes")),
            *(f"django.contrib.{each}" for each in ("sessions", "messages")),
            "django_tasks",
            "queue_over_sql.contrib.django",
        ],
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
            "django.contrib.messages.middleware.MessageMiddleware",
        ],
        TEMPLATES=[
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "APP_DIRS": True,
                "OPTIONS": {
                    "context_processors": [
                        "django.template.context_processors.request",
                        "django.contrib.auth.context_processors.auth",
                        "django.contrib.messages.context_processors.messages",
                    ]
                },
            }
        ],
        ROOT_URLCONF="tests.contrib.django.urls",
        SECRET_KEY="of the tests",
        ALLOWED_HOSTS=["testserver"],
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        TASKS={**TASKS, "retried": retried},
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ""}},
    )
    use_pymysql()
    django.setup()


def database_of(url: str) -> dict[str, Any]:
    """The entry of ``DATABASES`` for a database of the tests."""
    place = make_url(url)
    engine = place.get_backend_name().replace("sqlite", "sqlite3").replace("mariadb", "mysql")
    embedded = engine == "sqlite3"
    return {
        "ENGINE": f"django.db.backends.{engine}",
        "NAME": place.database,
        "USER": place.username or "",
        "PASSWORD": place.password or "",
        "HOST": place.host or "",
        "PORT": place.port or "",
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20} if embedded else {},
    }


def use_database(url: str) -> None:
    """Let ``default`` mean this database from now on, also in the thread that Django awaits in."""
    from asgiref.sync import sync_to_async

    asyncio.run(sync_to_async(_use_here)(url))
    _use_here(url)


def _use_here(url: str) -> None:
    from django import db

    handler: Any = db.connections
    if hasattr(handler._connections, "default"):
        handler["default"].close()
        del handler["default"]
    handler.settings["default"] = handler.configure_settings({"default": database_of(url)})[
        "default"
    ]
