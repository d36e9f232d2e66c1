"""The backend of `django.tasks`: as Django's own backends, in the tables of queues."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import make_url

from queue_over_sql import DatabaseRefused, DatabaseUnavailable, Message
from queue_over_sql.testing import drain
from tests.contrib.django import site

if TYPE_CHECKING:
    from pathlib import Path

    from queue_over_sql.testing.plugin import TestDatabase

pytestmark = pytest.mark.engines("sqlite", "postgresql", "mysql", "mariadb")


def test_a_task_runs_and_its_result_is_found(shop: Any, work: Callable[..., int]) -> None:
    """From ready to successful, with arguments, times, worker and return value; also ``await``."""
    result = shop.add.enqueue(20, other=22)
    assert ("READY", [20], {"other": 22}) == (result.status, result.args, result.kwargs)
    looked = shop.add.get_result(result.id)
    assert result == looked
    assert ("READY", 0, None) == (looked.status, looked.attempts, looked.started_at)
    awaited = asyncio.run(shop.double.aenqueue(4))

    assert 2 == work()

    result.refresh()
    assert ("SUCCESSFUL", 42, []) == (result.status, result.return_value, result.errors)
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert [result.last_attempted_at, 1] == [result.started_at, len(result.worker_ids)]
    assert {"doubled": 8} == asyncio.run(shop.double.aget_result(awaited.id)).return_value


def test_a_task_is_published_with_its_transaction(shop: Any, work: Callable[..., int]) -> None:
    """What is rolled back was never there; inside the block it is seen, and it is no savepoint."""
    from django.db import transaction
    from django_tasks.exceptions import TaskResultDoesNotExist

    from queue_over_sql.contrib.django import service

    with transaction.atomic():
        lost = shop.add.enqueue(1)
        assert lost == shop.add.get_result(lost.id)
        assert 0 == service().queue("default").stats().live
        transaction.set_rollback(True)
    with pytest.raises(TaskResultDoesNotExist):
        shop.add.get_result(lost.id)
    with transaction.atomic():
        kept = shop.add.enqueue(1)
    assert 1 == work()
    assert 2 == shop.add.get_result(kept.id).return_value


def test_a_task_that_raises_has_failed(
    shop: Any, work: Callable[..., int], caplog: pytest.LogCaptureFixture
) -> None:
    """With its exception's class and traceback; also for a result that JSON cannot have."""
    refused, unstorable = shop.refuse.enqueue(), shop.unstorable.enqueue()
    with caplog.at_level(logging.INFO, "django_tasks"):
        assert 2 == work()
    refused.refresh()
    [error] = refused.errors
    assert ("FAILED", LookupError, 1) == (refused.status, error.exception_class, refused.attempts)
    assert "raise LookupError(REFUSED)" in error.traceback
    assert error.traceback.endswith("ask the shop\n")
    with pytest.raises(ValueError, match="Task failed"):
        _ = refused.return_value
    unstorable.refresh()
    assert [TypeError] == [each.exception_class for each in unstorable.errors]
    ends = [each for each in caplog.records if "state=FAILED" in each.message]
    assert [LookupError, TypeError] == [each.exc_info and each.exc_info[0] for each in ends]


def test_a_retry_is_a_setting(shop: Any, work: Callable[..., int]) -> None:
    """Then a failure is an error of the result, which is ready again."""
    result = shop.second_time.enqueue()
    assert 2 == work("retried")
    result.refresh()
    assert ("SUCCESSFUL", "at last", 2) == (result.status, result.return_value, result.attempts)
    assert [ConnectionError] == [each.exception_class for each in result.errors]


@pytest.mark.engines("sqlite")
@pytest.mark.parametrize("backend", ["retried", "atomic"])
def test_a_failed_attempt_is_a_failure_of_the_worker(
    shop: Any, caplog: pytest.LogCaptureFixture, backend: str
) -> None:
    """``drain`` raises it, and it is logged with its traceback, whether it is tried again or not.

    It settles its message itself, which is no lost claim.
    """
    from queue_over_sql.contrib.django.running import make_worker

    retried = "retried" == backend
    result = shop.second_time.enqueue() if retried else shop.count.enqueue(fail=True)
    error = ConnectionError if retried else Exception
    with caplog.at_level(logging.DEBUG, "queue_over_sql"), pytest.raises(error) as raised:
        drain(make_worker(backend))
    result.refresh()
    assert ("READY" if retried else "FAILED", 1) == (result.status, result.attempts)
    failures = [each for each in caplog.records if "raised an exception" in each.message]
    assert [(logging.WARNING, raised.type)] == [
        (each.levelno, each.exc_info and each.exc_info[0]) for each in failures
    ]
    ours = [each for each in caplog.records if each.name.startswith("queue_over_sql.")]
    errors = [each.message for each in ours if each.levelno >= logging.ERROR]
    assert [] == [each for each in errors if "became a dead letter" not in each]
    assert (0 if retried else 1) == len(errors)
    assert not [each for each in caplog.records if "Handled" in each.message]


def test_context_priority_and_time(shop: Any, work: Callable[..., int]) -> None:
    """The urgent ones come first, whatever is due later waits, and the task sees its attempt."""
    from django.utils import timezone

    later = shop.add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1)
    results = [shop.which_attempt.using(priority=each).enqueue() for each in (-100, -1, 0, 1, 100)]
    assert 5 == work()
    for each in results:
        each.refresh()
        assert [1, each.id, "RUNNING"] == each.return_value
    started = sorted(results, key=lambda each: each.started_at)
    assert [100, 1, 0, -1, -100] == [each.task.priority for each in started]
    later.refresh()
    assert ("READY", 0) == (later.status, later.attempts)
    assert later.task.run_after == shop.add.get_result(later.id).task.run_after


@pytest.mark.parametrize("named", [True, False])
def test_what_is_no_task_fails(shop: Any, work: Callable[..., int], *, named: bool) -> None:
    """A path of an old release, or of something else, fails alone and says so."""
    from django.core.exceptions import SuspiciousOperation

    from queue_over_sql.contrib.django import service
    from queue_over_sql.contrib.django.running import make_worker

    path = f"{shop.__name__}.{'not_a_task' if named else 'gone'}"
    mails = service().queue("mails")
    published = mails.publish({"task": path, "args": [], "kwargs": {}}, priority=50)
    good = shop.add.using(queue_name="mails").enqueue(1)
    with pytest.raises((ImportError, SuspiciousOperation)):
        drain(make_worker())
    assert 1 == work()
    good.refresh()
    assert 2 == good.return_value
    [dead] = mails.archive.messages(status="failed").list()
    assert published.id == dead.id
    assert path.rpartition(".")[2] in (dead.last_error or "")


def test_what_an_atomic_task_writes_counts_once(
    shop: Any, work: Callable[..., int], database: TestDatabase
) -> None:
    """The option ``atomic``: its writes and the end of its message are one transaction."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE effects_of_tasks (n INTEGER)")
    good, bad = shop.count.enqueue(), shop.count.enqueue(fail=True)
    assert 2 == work("atomic")
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM effects_of_tasks")
        assert (1,) == tuple(cursor.fetchone())
        cursor.execute("DROP TABLE effects_of_tasks")
    good.refresh()
    bad.refresh()
    assert ("SUCCESSFUL", "FAILED") == (good.status, bad.status), database.engine


@pytest.mark.engines("sqlite")
def test_a_task_that_could_not_begin_has_not_failed(shop: Any, database: TestDatabase) -> None:
    """Its transaction waited too long for the lock of another one: it is given back, uncounted."""
    from django.db import connections
    from django_tasks import signals

    from queue_over_sql.contrib.django.running import make_worker

    connections.settings["default"]["OPTIONS"]["timeout"] = 0.1
    with connections["default"].cursor() as cursor:
        cursor.execute("CREATE TABLE effects_of_tasks (n INTEGER)")
    file = str(make_url(database.url).database)
    other = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    starts: list[str] = []

    def on_start(task_result: Any, **_: Any) -> None:
        starts.append(task_result.id)
        if len(starts) == 1:
            other.execute("BEGIN IMMEDIATE")
            threading.Timer(1.5, lambda: other.execute("ROLLBACK")).start()

    result = shop.count.enqueue()
    signals.task_started.connect(on_start)
    try:
        make_worker("atomic", concurrency=1).run(until_empty=True)
    finally:
        signals.task_started.disconnect(on_start)
        other.close()
    result.refresh()
    assert ("SUCCESSFUL", 1) == (result.status, result.attempts)
    assert [result.id] * 2 == starts


@pytest.mark.engines("sqlite")
def test_a_task_that_succeeded_is_finished_when_the_database_answers(
    shop: Any, work: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has not failed, and must not run again, whatever keeps its end from being stored."""
    ack, errors = Message.ack, [DatabaseUnavailable("away"), DatabaseRefused("full")]

    def ack_at_last(message: Message, *arguments: Any, **options: Any) -> None:
        if errors:
            raise errors.pop()
        ack(message, *arguments, **options)

    monkeypatch.setattr("queue_over_sql.contrib.django.running._REST_SECONDS", 0.01)
    monkeypatch.setattr(Message, "ack", ack_at_last)
    result = shop.add.enqueue(20, other=22)
    assert 1 == work()
    result.refresh()
    assert ("SUCCESSFUL", 42, 1) == (result.status, result.return_value, result.attempts)
    assert not errors


@pytest.mark.engines("sqlite")
def test_ids_that_are_none(shop: Any) -> None:
    """Each says that there is no such task."""
    from django_tasks.exceptions import TaskResultDoesNotExist

    for wrong in ("", "x", "default", "default:", "default:x", "default:99", "other:1", ":1", "٣"):
        with pytest.raises(TaskResultDoesNotExist):
            shop.add.get_result(wrong)
    with pytest.raises(TaskResultDoesNotExist):
        asyncio.run(shop.add.aget_result("default:99"))
    for wrong in ("default:9223372036854775808", "default:" + "9" * 5000):
        with pytest.raises(TaskResultDoesNotExist):
            shop.add.get_result(wrong)


@pytest.mark.engines("sqlite")
def test_signals(shop: Any, work: Callable[..., int]) -> None:
    """Each task is announced when it is enqueued, starts and ends, with its state."""
    from django_tasks import signals

    told: list[tuple[str, str]] = []
    receivers = []
    for name in ("enqueued", "started", "finished"):
        signal = getattr(signals, f"task_{name}")

        def receiver(*, task_result: Any, name: str = name, **_: Any) -> None:
            told.append((name, task_result.status))

        signal.connect(receiver)
        receivers.append((signal, receiver))
    shop.add.enqueue(1)
    shop.refuse.enqueue()
    work()
    for signal, receiver in receivers:
        signal.disconnect(receiver)
    ends = [("started", "RUNNING"), ("finished", "SUCCESSFUL")]
    ends += [("started", "RUNNING"), ("finished", "FAILED")]
    assert [("enqueued", "READY")] * 2 + ends == told


@pytest.mark.engines("sqlite")
def test_a_task_that_exits_does_not_end_the_worker(shop: Any, work: Callable[..., int]) -> None:
    """It has failed; the next one runs."""
    exits, good = shop.leave.enqueue(), shop.add.enqueue(1)
    assert 2 == work()
    exits.refresh()
    good.refresh()
    assert ("FAILED", "SUCCESSFUL") == (exits.status, good.status)
    assert [SystemExit] == [each.exception_class for each in exits.errors]


@pytest.mark.engines("sqlite")
def test_a_schedule_enqueues_a_task(shop: Any, work: Callable[..., int]) -> None:
    """Its payload names the task, and its level 50 is the priority 0 of Django."""
    from queue_over_sql.contrib.django import service

    schedules = service().schedules
    for given in ({"args": [1, 2]}, {"kwargs": {"one": 1, "other": 2}}):
        payload = {"task": f"{shop.__name__}.add", **given}
        schedules.add("daily", "default", payload, cron="@daily", priority=50)
        number = schedules.run("daily").id
        assert 1 == work()
        result = shop.add.get_result(f"default:{number}")
        assert (3, 0) == (result.return_value, result.task.priority)


@pytest.mark.engines("sqlite")
def test_check_finds_a_schedule_without_a_task(shop: Any, tmp_path: Path) -> None:
    """In the database that it looks at, before it runs; looking makes no tables."""
    from queue_over_sql.contrib.django import service
    from queue_over_sql.contrib.django.apps import check_schedules

    def found(*databases: str) -> list[str]:
        return [each.msg for each in check_schedules(databases=databases)]

    schedules, module = service().schedules, shop.__name__
    good = {"task": f"{module}.add", "args": [1, 2]}
    for name, queue, payload in (
        ("good", "high-priority", good),
        ("misspelt", "high-priority", {"task": f"{module}.ad"}),
        ("no-task", "default", {"task": "subprocess.run"}),
        ("other", "default", [1]),
    ):
        schedules.add(name, queue, payload, cron="@daily")
    service().create_queue("not_of_django")
    schedules.add("elsewhere", "not_of_django", {"any": "thing"}, cron="@daily")
    start = "The schedule {!r} enqueues no task: {}".format
    missing = f'Module "{module}" does not define a "ad" attribute/class'
    assert [
        start("misspelt", missing),
        start("no-task", "subprocess.run is not a task: decorate the function with @task"),
        start("other", 'its payload has no "task"'),
    ] == found("default")
    assert [] == found() == list(check_schedules(databases=None))
    empty = tmp_path / "empty.db"
    site.use_database(f"sqlite:///{empty}")
    assert [] == found("default")
    with closing(sqlite3.connect(empty)) as connection:
        assert [] == connection.execute("SELECT name FROM sqlite_master").fetchall()


@pytest.mark.engines("sqlite")
def test_a_queue_may_have_any_name(shop: Any, work: Callable[..., int]) -> None:
    """Also one that names no table: its tasks run, and their ids have this name."""
    result = shop.add.using(queue_name="high-priority").enqueue(1)
    assert "high-priority:1" == result.id
    assert 1 == work()
    result.refresh()
    assert (2, "high-priority") == (result.return_value, result.task.queue_name)
    assert shop.add.get_result(result.id).task.queue_name == "high-priority"


@pytest.mark.engines("sqlite")
@pytest.mark.parametrize("archive", ["failed", "none"])
def test_a_task_succeeds_whatever_the_archive_keeps(
    shop: Any, work: Callable[..., int], archive: Any
) -> None:
    """An operator may change that; then its result is not found, and nothing else happens."""
    from django_tasks.exceptions import TaskResultDoesNotExist

    from queue_over_sql.contrib.django import service

    service().create_queue("default", archive=archive)
    results = [shop.add.enqueue(1), shop.refuse.enqueue(), shop.nothing.enqueue()]
    assert 3 == work()
    for result, kept in zip(results, (False, "failed" == archive, False), strict=True):
        if kept:
            result.refresh()
            assert "FAILED" == result.status
        else:
            with pytest.raises(TaskResultDoesNotExist):
                result.refresh()
    assert 0 == service().queue("default").stats().live


@pytest.mark.engines("sqlite")
def test_the_class_of_an_error_can_be_imported(shop: Any, work: Callable[..., int]) -> None:
    """A class inside a function, and a group, are just exceptions; one inside a class is not."""
    results = [shop.local.enqueue(), shop.several.enqueue(), shop.missing.enqueue()]
    assert 3 == work()
    for result in results:
        result.refresh()
        assert issubclass(result.errors[0].exception_class, Exception)
    error = results[-1].errors[0]
    assert "django.contrib.auth.models.Group.DoesNotExist" == error.exception_class_path
    assert "DoesNotExist" == error.exception_class.__name__


@pytest.mark.engines("sqlite")
def test_priorities_keep_their_sign() -> None:
    """Two of Django's priorities share a level, but none that is not 0 shares the level of 0."""
    site.set_up()
    from queue_over_sql.contrib.django.backend import level_of

    levels = [level_of(each) for each in range(-100, 101)]
    assert sorted(levels, reverse=True) == levels
    assert (99, 0, 1) == (max(levels), min(levels), levels.count(level_of(0)))


@pytest.mark.engines("sqlite")
@pytest.mark.parametrize(
    ("params", "changed", "number"),
    [
        ({"QUEUES": []}, {}, "E002"),
        ({"OPTIONS": {"database": "none"}}, {}, "E003"),
        ({}, {"NAME": ":memory:"}, "E005"),
        ({"OPTIONS": {"max_attempts": 0}}, {}, "E006"),
        ({"OPTIONS": {"colour": "red"}}, {}, "E006"),
        ({"OPTIONS": {"queues": {"other": {}}}}, {}, "E007"),
        ({"OPTIONS": {"archive": "failed"}}, {}, "E008"),
        ({}, {"OPTIONS": {}}, "W001"),
        ({"OPTIONS": {"atomic": True}}, {"OPTIONS": {"transaction_mode": "IMMEDIATE"}}, "W003"),
        ({"OPTIONS": {"atomic": True}}, {}, None),
        ({}, {}, None),
    ],
)
def test_wrong_settings_are_found_by_check(
    shop: Any,
    database: TestDatabase,
    params: dict[str, Any],
    changed: dict[str, Any],
    number: str | None,
) -> None:
    """Each with a hint, before a task is lost by it."""
    from django import db

    from queue_over_sql.contrib.django import Backend

    assert shop is not None
    handler: Any = db.connections
    handler.settings["checked"] = handler.configure_settings(
        {"default": site.database_of(database.url) | changed}
    )["default"]
    options = {"database": "checked", **params.get("OPTIONS", {})}
    backend = Backend("default", {**params, "OPTIONS": options})
    found = [each.id for each in backend.check()]
    del handler.settings["checked"]
    if hasattr(handler._connections, "checked"):
        del handler["checked"]
    assert ([] if number is None else [f"queue_over_sql.{number}"]) == found
