"""The asynchronous proxies have the names, arguments and docstrings of the synchronous classes."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections import deque
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

import queue_over_sql
from queue_over_sql import aio
from tests.contract.queues.test_refused_rows import refuse

if TYPE_CHECKING:
    from collections.abc import Callable

    from queue_over_sql.testing.plugin import TestDatabase

SYNCHRONOUS = {
    "AsyncSelection": "Selection",
    **{name: name.removeprefix("Async") for name in aio.__all__ if name != "AsyncSelection"},
}


def pair(name: str) -> tuple[type[Any], type[Any]]:
    """The synchronous class and the asynchronous one."""
    module: Any = queue_over_sql
    return getattr(module, SYNCHRONOUS[name]), getattr(aio, name)


def public(owner: type[Any]) -> set[str]:
    """The names of the public members of a class."""
    return {name for name, _ in inspect.getmembers(owner) if not name.startswith("_")}


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    """Names, kinds and defaults of what a function takes."""
    found = inspect.signature(function).parameters.values()
    return [(p.name, p.kind, p.default) for p in found][1:]


def test_every_public_name_has_its_twin() -> None:
    """Nothing that a synchronous object offers is missing on the event loop."""
    missing = []
    for name in aio.__all__:
        sync, proxy = pair(name)
        lacking = public(sync) - public(proxy)
        missing += [f"{name}.{member}" for member in lacking]
    assert [] == missing


def test_twins_take_the_same_arguments() -> None:
    """By the same names, in the same order, with the same defaults."""
    for name in aio.__all__:
        sync, proxy = pair(name)
        for member in sorted(public(sync) & public(proxy)):
            theirs, ours = getattr(sync, member), getattr(proxy, member)
            if inspect.isfunction(theirs) and inspect.isfunction(ours):
                assert parameters(theirs) == parameters(ours), f"{name}.{member}"


def test_twins_are_documented() -> None:
    """With the text of the synchronous method, or one of their own."""
    undocumented = [
        f"{name}.{member}"
        for name in aio.__all__
        for member in public(pair(name)[1])
        if not re.search(r"\w", inspect.getdoc(inspect.getattr_static(pair(name)[1], member)) or "")
    ]
    assert [] == undocumented


def test_the_package_gives_them_on_demand() -> None:
    """They are in the flat public API, without costing those who do not use them anything."""
    assert aio.AsyncQueueService is queue_over_sql.AsyncQueueService
    with pytest.raises(AttributeError, match="AsyncNothing"):
        _ = queue_over_sql.AsyncNothing


def test_wrong_arguments_name_what_was_called(sqlite_url: str) -> None:
    """Python's errors have the asynchronous class, not the one behind it."""

    async def call() -> None:
        async with aio.AsyncQueueService(sqlite_url) as service:
            queue = await service.create_queue("jobs")
            wrong: dict[str, Any] = {"no_such": 1}
            nothing: list[Any] = []
            with pytest.raises(TypeError, match=r"^AsyncQueue\.publish\(\) missing"):
                await queue.publish(*nothing)
            with pytest.raises(TypeError, match=r"^AsyncQueue\.messages\(\) got an unexpected"):
                queue.messages(**wrong)
            with pytest.raises(TypeError, match=r"^AsyncQueueService\.worker\(\) got an unexp"):
                service.worker(**wrong)

    asyncio.run(call())


def test_messages_may_come_in_any_iterable(sqlite_url: str) -> None:
    """As the synchronous verbs take them."""
    forms: list[Callable[[list[aio.AsyncMessage]], Any]] = [
        tuple,
        deque,
        lambda messages: {each.id: each for each in messages}.values(),
        lambda messages: dict.fromkeys(messages).keys(),
        lambda messages: (each for each in messages),
    ]

    async def call() -> None:
        async with aio.AsyncQueueService(sqlite_url) as service:
            queue = await service.create_queue("jobs")
            for form in forms:
                await queue.publish_many(each for each in "ab")
                await queue.ack(form(await queue.consume(2)))
            assert 0 == (await queue.stats()).live
            raw = await service.create_queue("raw", payload="bytes")
            await raw.publish(memoryview(b"abcd").cast("B", (2, 2)))
            assert b"abcd" == (await raw.consume(1))[0].payload

    asyncio.run(call())


@pytest.mark.engines("sqlite")
def test_errors_have_asynchronous_messages(database: TestDatabase, url: str) -> None:
    """Also those of the messages that the database refused to finish."""

    async def call() -> None:
        engine = create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:"))
        async with aio.AsyncQueueService(url) as service:
            queue = await service.create_queue("jobs", archive="all")
            await queue.publish_many(["a", "b"])
            first, second = await queue.consume(2)
            refuse(database, first.id)
            async with engine.begin() as connection:
                with pytest.raises(queue_over_sql.NotFinished) as refused:
                    await queue.ack([first, second], connection=connection)
            assert [aio.AsyncMessage] == [type(each) for each in refused.value.messages]
            assert [first] == refused.value.messages
            with pytest.raises(queue_over_sql.ClaimLost) as lost:
                await queue.ack(second)
            assert [second] == lost.value.messages
        await engine.dispose()

    asyncio.run(call())
