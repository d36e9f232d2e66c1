"""What the tests of other backends expect of a backend in a database, in tables.

Python decides it, so it runs on SQLite.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from queue_over_sql import QueueNotFound

pytestmark = pytest.mark.engines("sqlite")


def test_what_an_enqueued_task_tells(shop: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing has happened yet; the signal and a log line tell of it, and it is found as it is."""
    from django_tasks import default_task_backend, task_backends
    from django_tasks.signals import task_enqueued

    from queue_over_sql.contrib.django import Backend

    assert isinstance(task_backends["default"], Backend)
    assert default_task_backend == task_backends["default"]
    told: list[tuple[Any, Any]] = []

    def hear(*, sender: Any, task_result: Any, **_: Any) -> None:
        told.append((sender, task_result))

    async def enqueue_there(task: Any) -> Any:
        return await task.aenqueue(1, two=3)

    task_enqueued.connect(hear)
    results: list[Any] = []
    with caplog.at_level(logging.DEBUG, "django_tasks"):
        for task in (shop.add, shop.double):
            results += [task.enqueue(1, two=3), asyncio.run(enqueue_there(task))]
    task_enqueued.disconnect(hear)
    tasks = [shop.add, shop.add, shop.double, shop.double]
    assert tasks == [each.task for each in results]
    assert [(Backend, each) for each in results] == told
    for result in results:
        assert any(result.id in each.message for each in caplog.records), result.id
        assert ([1], {"two": 3}) == (result.args, result.kwargs)
        assert ("READY", False, 0, []) == (
            result.status,
            result.is_finished,
            result.attempts,
            result.errors,
        )
        times = (result.started_at, result.last_attempted_at, result.finished_at)
        assert (None, None, None) == times
        with pytest.raises(ValueError, match="not finished"):
            _ = result.return_value
        again = shop.add.get_backend().get_result(result.id)
        assert result == again, result.id
        assert result.id == asyncio.run(default_task_backend.aget_result(result.id)).id


def test_a_task_that_does_not_fit_is_refused(shop: Any) -> None:
    """An unknown queue, and priorities outside of Django's; also of a task made elsewhere."""
    from django_tasks.exceptions import InvalidTaskError

    for name, wrong in (("queue_name", "other"), ("priority", 101), ("priority", -101)):
        with pytest.raises(InvalidTaskError):
            shop.add.using(**{name: wrong})
        elsewhere = copy.copy(shop.add)
        object.__setattr__(elsewhere, name, wrong)
        with pytest.raises(InvalidTaskError):
            elsewhere.enqueue(1)
        with pytest.raises(InvalidTaskError):
            asyncio.run(elsewhere.aenqueue(1))
    for priority in (-100, -99, 0, 1, 100):
        result = shop.add.using(priority=priority).enqueue(1)
        assert priority == shop.add.get_result(result.id).task.priority


def test_a_queue_that_is_not_there_yet(shop: Any) -> None:
    """The error says what makes it."""
    from queue_over_sql.contrib.django import service

    service().drop_queue("mails")
    with pytest.raises(QueueNotFound) as refused:
        shop.add.using(queue_name="mails").enqueue(1)
    assert ["Run `manage.py migrate`: it creates the queues of TASKS."] == refused.value.__notes__


def test_a_path_to_no_task_is_not_shown(shop: Any) -> None:
    """Whoever asks for the result of what is no task gets an error, and calls nothing."""
    from django.core.exceptions import SuspiciousOperation

    from queue_over_sql.contrib.django import service

    for path, error in (
        ("subprocess.check_output", SuspiciousOperation),
        (f"{shop.__name__}.some_test", ImportError),
        ("missing.func", ImportError),
        ("unexpected", ImportError),
    ):
        message = {"task": path, "args": [["exit", "1"]], "kwargs": {}}
        published = service().queue("default").publish(message)
        with pytest.raises(error):
            shop.add.get_backend().get_result(f"default:{published.id}")


def test_the_order_of_tasks(shop: Any, work: Callable[..., int]) -> None:
    """By priority, then by the time from which a task may run, then by the time it was enqueued."""
    from django.utils import timezone

    now = timezone.now()

    def due(hours: int, priority: int = 0) -> Any:
        return shop.add.using(priority=priority, run_after=now + timedelta(hours=hours))

    tasks = {
        "old": due(-2, 20),
        "very old": due(-10, 20),
        "far": due(10),
        "far and high": due(10, 10),
        "near": due(2),
        "high": shop.add.using(priority=10),
        "low": shop.add.using(priority=2),
        "first": shop.add,
        "second": shop.add,
        "lower": shop.add.using(priority=-2),
    }
    results = {name: task.enqueue(1) for name, task in tasks.items()}
    assert 7 == work()
    for each in results.values():
        each.refresh()
    began = {name: each.started_at for name, each in results.items() if each.started_at}
    expected = ["very old", "old", "high", "low", "first", "second", "lower"]
    assert expected == sorted(began, key=began.__getitem__)


@pytest.mark.parametrize("use_tz", [True, False])
def test_times_follow_use_tz(shop: Any, work: Callable[..., int], *, use_tz: bool) -> None:
    """Aware with it, local and naive without; a task that may run at once has no ``run_after``."""
    from django.test import override_settings
    from django.utils import timezone

    with override_settings(USE_TZ=use_tz):
        result, later = (
            shop.add.enqueue(1),
            shop.add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1),
        )
        assert shop.add.get_result(result.id).task.run_after is None
        assert later.task.run_after == shop.add.get_result(later.id).task.run_after
        before = timezone.now()
        assert 1 == work()
        result.refresh()
        assert before <= result.started_at <= result.finished_at <= timezone.now()
        assert use_tz == timezone.is_aware(result.enqueued_at)


def test_a_worker_leaves_other_backends_alone(shop: Any, work: Callable[..., int]) -> None:
    """And other queues, if it is given some; nothing to do is no error."""
    from queue_over_sql.contrib.django import service
    from queue_over_sql.contrib.django.running import make_worker
    from queue_over_sql.inside.workers import narrow
    from queue_over_sql.testing import drain

    assert 0 == work()
    results = [shop.add.enqueue(1), shop.refuse.enqueue(), shop.add.enqueue(2)]
    mail = shop.add.using(queue_name="high-priority").enqueue(3)
    assert 0 == work("retried")
    only = make_worker()
    narrow(only, ["high-priority"])
    assert 1 == drain(only)
    assert 3 == service().queue("default").stats().ready
    assert 3 == work()
    for each in (*results, mail):
        each.refresh()
    states = ["SUCCESSFUL", "FAILED", "SUCCESSFUL", "SUCCESSFUL"]
    assert states == [each.status for each in (*results, mail)]


def test_exceptions_that_are_no_errors_fail_only_their_task(shop: Any) -> None:
    """As Ctrl-C raises it, and an exception that has one; the next task runs."""
    from queue_over_sql.contrib.django.running import make_worker

    interrupted, nested, good = (
        each.enqueue() for each in (shop.interrupt, shop.nested, shop.nothing)
    )
    make_worker(concurrency=1).run(until_empty=True)
    for each in (interrupted, nested, good):
        each.refresh()
    assert ["FAILED", "FAILED", "SUCCESSFUL"] == [
        each.status for each in (interrupted, nested, good)
    ]
    assert [KeyboardInterrupt] == [each.exception_class for each in interrupted.errors]
    (error,) = nested.errors
    assert ValueError is error.exception_class
    object.__setattr__(error, "exception_class_path", "subprocess.run")
    with pytest.raises(ValueError, match=r"'subprocess\.run' does not reference a valid exception"):
        _ = error.exception_class
    assert 'ValueError(ValueError("inner"))' in nested.errors[0].traceback


def test_a_worker_ends_after_its_tasks(shop: Any) -> None:
    """What came at the same moment is given back without an attempt, for the next worker."""
    from queue_over_sql.contrib.django.running import make_worker

    results = [shop.add.enqueue(number) for number in range(9)]
    for most, done in ((2, 2), (1, 3), (99, 9)):
        make_worker(max_tasks=most, concurrency=4).run(until_empty=most > 9)
        for each in results:
            each.refresh()
        states = [each.status for each in results]
        assert (done, 9 - done) == (states.count("SUCCESSFUL"), states.count("READY")), most
        assert done == sum(each.attempts for each in results)


def test_results_are_kept_for_some_days(shop: Any, work: Callable[..., int]) -> None:
    """Of each queue for its own time; failures, and tasks that are not finished, stay."""
    from django_tasks.exceptions import TaskResultDoesNotExist

    from queue_over_sql.contrib.django import service
    from queue_over_sql.testing import Clock

    day = timedelta(days=1)
    service().create_queue("mails", archive_ttl={"done": 30 * day, "failed": 20 * day})
    mails = [each.using(queue_name="mails").enqueue() for each in (shop.nothing, shop.refuse)]
    done, failed = shop.nothing.enqueue(), shop.refuse.enqueue()
    work()
    ready = shop.add.enqueue(1)
    clock = Clock(service())
    left = [done, failed, *mails, ready]
    for advance, gone in ((13 * day, []), (2 * day, [done]), (6 * day, [mails[1]]), (8 * day, [])):
        clock.advance(advance)
        for each in gone:
            left.remove(each)
            with pytest.raises(TaskResultDoesNotExist):
                each.refresh()
        for each in left:
            each.refresh()
    clock.advance(2 * day)
    with pytest.raises(TaskResultDoesNotExist):
        mails[0].refresh()


def test_wrong_options_of_the_command(shop: Any) -> None:
    """They end it before a worker starts, and say what is wrong."""
    from django.core.management import CommandError, call_command

    assert shop is not None
    for options, said in (
        ({"backend": "unknown"}, "TASKS has no backend 'unknown'; it has: 'default'"),
        ({"backend": "dummy"}, r"TASKS\['dummy'\] is a DummyBackend"),
        ({"max_tasks": -1}, "--max-tasks must be 1 or more, not -1"),
        ({"max_tasks": 0}, "--max-tasks must be 1 or more, not 0"),
    ):
        with pytest.raises(CommandError, match=said):
            call_command("queue_worker", **options)


def test_the_app_must_be_installed(shop: Any) -> None:
    """Else there are no commands, and nobody creates the queues."""
    from django.test import override_settings

    with override_settings(INSTALLED_APPS=["django_tasks"]):
        found = [each.id for each in shop.add.get_backend().check()]
    assert ["queue_over_sql.E001"] == found
