"""The tasks of the tests; Django imports them by their paths."""

from __future__ import annotations

from typing import Any

from django.db import connections
from django_tasks import TaskContext, task

REFUSED = "no such customer: 17\nask the shop"


@task()
def add(one: int, other: int = 1) -> int:
    """Succeed."""
    return one + other


@task()
async def double(number: int) -> dict[str, int]:
    """Succeed on an event loop."""
    return {"doubled": 2 * number}


@task()
def refuse() -> None:
    """Fail, with two lines."""
    raise LookupError(REFUSED)


@task()
def unstorable() -> object:
    """Return what JSON cannot have."""
    return object()


@task()
def leave() -> None:
    """End as ``sys.exit`` does."""
    raise SystemExit(3)


@task()
def interrupt() -> None:
    """End as Ctrl-C does."""
    raise KeyboardInterrupt


@task()
def nested() -> None:
    """Fail with an exception that has one as its argument."""
    raise ValueError(ValueError("inner"))


@task(takes_context=True)
def which_attempt(context: TaskContext) -> list[Any]:
    """Tell what the context says."""
    return [context.attempt, context.task_result.id, context.task_result.status]


@task(queue_name="again", backend="retried", takes_context=True)
def second_time(context: TaskContext) -> str:
    """Succeed at the second attempt."""
    if context.attempt < 2:
        raise ConnectionError("not yet")
    return "at last"


@task(queue_name="exact", backend="atomic")
def count(fail: bool = False) -> None:
    """Write a row; what a failure wrote is undone."""
    with connections["default"].cursor() as cursor:
        cursor.execute("INSERT INTO effects_of_tasks VALUES (1)")
    if fail:
        raise ValueError("after the write")


@task()
def nothing() -> None:
    """Succeed with no value."""


@task()
def local() -> None:
    """Fail with a class that nobody can import."""

    class Inner(Exception):
        pass

    raise Inner("inside")


@task()
def several() -> None:
    """Fail with two errors."""
    raise ExceptionGroup("both", [ValueError("one"), TypeError("other")])


@task()
def missing() -> None:
    """Fail with a class that is inside of another one."""
    from django.contrib.auth.models import Group

    raise Group.DoesNotExist("nobody")


not_a_task = len
