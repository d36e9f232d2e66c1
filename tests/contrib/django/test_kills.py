"""Workers of Django's tasks that are killed: each task ends, and counts once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.contrib.django import site
from tests.contrib.programs import Programs
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from queue_over_sql.testing.plugin import MakeService, TestDatabase

pytestmark = [pytest.mark.chaos, pytest.mark.engines("sqlite", "postgresql", "mysql", "mariadb")]
SETTINGS = """
from tests.contrib.django.site import use_pymysql
use_pymysql()
DATABASES = {{"default": {database!r}}}
INSTALLED_APPS = ["django_tasks", "queue_over_sql.contrib.django"]
USE_TZ = True
TASKS = {{"default": {{
    "BACKEND": "queue_over_sql.contrib.django.Backend",
    "OPTIONS": {{"atomic": True, "max_attempts": 50}},
}}}}
QUEUE_OVER_SQL = {{"default": {{"consumer_timeout": 1.0, "reaper_interval": 0.2}}}}
"""
TASKS = """
import time
from django.db import connection
from django_tasks import task

@task()
def count(number):
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO effects_of_tasks VALUES (%s)", [number])
    time.sleep(0.01)
    return number
"""
ENQUEUE = """
import django
django.setup()
from django.db import connection
from counting import count
with connection.cursor() as cursor:
    cursor.execute("CREATE TABLE effects_of_tasks (n INTEGER)")
for number in range({tasks}):
    count.enqueue(number)
"""
LOOK = """
import django
django.setup()
from django.db import connection
from counting import count
results = [count.get_result(f"default:{{id}}") for id in range(1, {tasks} + 1)]
wrong = [each.id for each in results if each.status != "SUCCESSFUL"]
with connection.cursor() as cursor:
    cursor.execute("SELECT n FROM effects_of_tasks ORDER BY n")
    effects = [n for n, in cursor.fetchall()]
    cursor.execute("DROP TABLE effects_of_tasks")
assert not wrong, wrong
assert [each.return_value for each in results] == list(range({tasks})) == effects
"""


@pytest.mark.default_on("sqlite", "postgresql")
def test_each_task_counts_once_though_workers_are_killed(
    database: TestDatabase, make_service: MakeService, tmp_path: Path
) -> None:
    """``queue_worker`` is killed three times amid 100 tasks, and another one takes over."""
    (tmp_path / "site_settings.py").write_text(
        SETTINGS.format(database=site.database_of(database.url))
    )
    (tmp_path / "counting.py").write_text(TASKS)
    programs = Programs(tmp_path, DJANGO_SETTINGS_MODULE="site_settings")
    options = ("--log-level", "warning", "--log-format", "json", "--hung-after", "30m")
    work = ("-m", "django", "queue_worker", *options)
    programs.run("-m", "django", "migrate", "--verbosity", "0")
    programs.run("-c", ENQUEUE.format(tasks=100))
    queue = make_service().queue("default")
    for alive in (75, 50, 25):
        with programs.started(*work):
            wait_until(lambda alive=alive: queue.stats().live < alive, timeout=60)  # type: ignore[misc]
    with programs.started(*work) as last:
        wait_until(lambda: 0 == queue.stats().live, timeout=60)
        last.terminate()
        assert 0 == last.wait(30)
    programs.run("-c", LOOK.format(tasks=100))
