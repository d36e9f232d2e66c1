"""Runs Django's own tests of tasks on our backend: ``python -m … FOLDER``.

FOLDER has the tests of Django's sources. They stay as they are: where they name one of Django's
backends, they get ours in its place. Standard output ends with a line of JSON: how many tests ran,
and what those say that failed.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pymysql
from django.db import connections
from django.tasks.backends import dummy, immediate

from queue_over_sql.contrib.django.backend import Backend
from queue_over_sql.contrib.django.runner import Runner
from queue_over_sql.contrib.django.running import make_worker
from queue_over_sql.testing import drain

# It needs no C compiler; Django asks for mysqlclient of at least this version.
pymysql.version_info = (2, 2, 7, "final", 0)
pymysql.install_as_MySQLdb()

DATABASES = {"default": json.loads(os.environ["DATABASE"])}
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
SECRET_KEY = "of a benchmark"  # noqa: S105 - nobody signs anything
USE_TZ = False
QUEUES = ["default", "queue_1", "unknown_queue"]
# For `migrate`, which creates the queues. Each class of tests has settings of its own.
TASKS = {"default": {"BACKEND": "django.tasks.backends.dummy.DummyBackend", "QUEUES": QUEUES}}
TEST_RUNNER = f"{__name__}.Telling"


class Later(Backend):
    """Ours in the place of the backend that runs nothing, with what the tests ask of that one."""

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        # An empty list means any queue there. Each of ours is a table, so it has these.
        super().__init__(alias, {**params, "QUEUES": params.get("QUEUES", ["default"]) or QUEUES})

    @property
    def results(self) -> list[Any]:
        """The results of the tasks that wait, also of those that this transaction enqueued."""
        connection = connections[self.database]
        own = connection if connection.in_atomic_block else None
        return [
            self.result_of(each)
            for name in sorted(self.queues)
            for each in self.queue(name).messages().list(100, connection=own)
        ]

    def clear(self) -> None:
        """Forget the tasks."""
        for name in self.queues:
            self.queue(name).purge()


class AtOnce(Later):
    """Ours in the place of the backend that runs a task where it is enqueued."""

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Enqueue a task, and let a worker run it; its result says how that went."""
        result = super().enqueue(task, args, kwargs)
        with contextlib.suppress(Exception, SystemExit):
            drain(make_worker(self.alias))
        return self.get_result(result.id)


class Telling(Runner):
    """The test runner that this library has for Django, which tells what failed."""

    def suite_result(self, suite: Any, result: Any, **options: Any) -> Any:
        """Print what happened."""
        failed = {
            # A part of a test has the name of the test.
            getattr(test, "test_case", test).id(): text.strip().splitlines()[-1]
            for test, text in (*result.failures, *result.errors)
        }
        print(json.dumps({"tests": result.testsRun, "failed": failed}))
        return super().suite_result(suite, result, **options)


if __name__ == "__main__":
    dummy.DummyBackend = Later
    immediate.ImmediateBackend = AtOnce
    sys.path.insert(0, sys.argv[1])
    os.environ["DJANGO_SETTINGS_MODULE"] = __spec__.name
    runtests = importlib.import_module("runtests")
    # It gives INSTALLED_APPS itself. Without the app nothing would create the queues.
    runtests.ALWAYS_INSTALLED_APPS.append("queue_over_sql.contrib.django")
    runtests.django_tests(
        verbosity=1,
        interactive=False,
        failfast=False,
        keepdb=False,
        reverse=False,
        test_labels=["tasks"],
        debug_sql=False,
        parallel=1,
        tags=None,
        exclude_tags=None,
        test_name_patterns=None,
        start_at=None,
        start_after=None,
        pdb=False,
        buffer=False,
        timing=False,
        shuffle=False,
    )
