"""A worker of coroutine functions: refusals, cancellation, and an event loop that never blocks."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import event

from queue_over_sql import FixedDelay, HandledQueue, Observer, QueueError
from queue_over_sql.aio import AsyncMessage, AsyncQueueService
from queue_over_sql.aio.proxies import run
from queue_over_sql.queue import core_of
from queue_over_sql.sql.driver_calls import pause_on_loop
from queue_over_sql.worker import time_limits

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
    from pathlib import Path

    from sqlalchemy.ext.asyncio import AsyncConnection

    from queue_over_sql import MessageFacts


def database(tmp_path: Path) -> str:
    """A file of this test alone."""
    return f"sqlite:///{tmp_path / 'q.db'}"


def test_a_plain_handler_is_refused(tmp_path: Path) -> None:
    """It would hold up the loop, and a generator would not run at all."""
    service = AsyncQueueService(database(tmp_path))

    def plain(message: Any) -> None:
        del message

    async def generator(message: Any) -> Any:
        yield message

    class Callable:
        async def __call__(self, message: Any) -> Any:
            yield message

    refused: list[Any] = [plain, generator, functools.partial(generator), Callable()]
    for function in refused:
        with pytest.raises(TypeError, match="async def"):
            service.worker().handle("jobs")(function)
        with pytest.raises(TypeError, match="async def"):
            service.worker(middleware=[function])

    async def coroutine(*_: object) -> None:
        """Nobody would await it."""

    with pytest.raises(TypeError, match="on_slow must be a plain function"):
        service.worker().handle("jobs", slow_after=1, on_slow=coroutine)


def test_a_handler_that_returns_unfinished_work_has_failed(tmp_path: Path) -> None:
    """Its message is retried, not finished, whatever the form of the handler."""

    async def work() -> None:
        await asyncio.Event().wait()

    async def step() -> AsyncIterator[None]:
        yield None

    makers: dict[str, Callable[[], object]] = {
        "coroutine": work,
        "Task": lambda: asyncio.create_task(work()),
        "Future": lambda: asyncio.get_running_loop().create_future(),
        "async_generator": step,
        "generator": lambda: (each for each in "a"),
    }
    forms: list[dict[str, Any]] = [{}, {"batch": 2}, {"transactional": True}]
    cases = [(kind, form) for kind in makers for form in (forms if kind == "Task" else forms[:1])]

    async def around(_: object, call: Callable[[], Awaitable[None]]) -> None:
        await call()

    async def forgets(_: object, call: Callable[[], Awaitable[None]]) -> Any:
        return call()

    async def main() -> None:
        async with AsyncQueueService(database(tmp_path)) as service:
            queue = await service.create_queue("jobs", retry=FixedDelay(0), max_attempts=1)
            for middleware in ([], [around], [forgets]):
                for kind, form in cases:
                    worker = service.worker(concurrency=1, middleware=middleware)

                    async def handle(*_: object, kind: str = kind) -> object:
                        return makers[kind]()

                    worker.handle("jobs", **form)(handle)
                    await queue.publish_many(["x", "y"])
                    await worker.run(until_empty=True)
                    failed = await queue.archive.messages().list()
                    case = f"{kind}, {form}, {middleware}"
                    assert 2 == len(failed), case
                    for message in failed:
                        name = "coroutine" if middleware == [forgets] else kind
                        assert f"returned an object of type {name}," in str(message.last_error), (
                            case
                        )
                    await queue.archive.messages().remove()

    asyncio.run(main())


def test_context_variables_of_one_message_are_not_seen_by_the_next(tmp_path: Path) -> None:
    """Each call has a fresh context of its own task; what the program set before is in it."""
    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant")
    seen: list[str] = []

    async def around(_: object, call: Callable[[], Awaitable[None]]) -> None:
        seen.append(tenant.get())
        tenant.set("middleware")
        await call()
        seen.append(tenant.get())

    async def main() -> None:
        tenant.set("program")
        async with AsyncQueueService(database(tmp_path)) as service:
            queue = await service.create_queue("jobs")
            for form in ({}, {"transactional": True, "commit_every": 4}):
                worker = service.worker(concurrency=1, middleware=[around])

                async def handle(*_: object) -> None:
                    seen.append(tenant.get())
                    # What it awaits sees its context, too, in this task and in its tasks.
                    await queue.stats()
                    await asyncio.create_task(asyncio.sleep(0))
                    tenant.set("handler")
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(0.001):
                            await asyncio.Event().wait()
                    assert "handler" == tenant.get()

                worker.handle("jobs", **form)(handle)  # type: ignore[call-overload] # any form
                await queue.publish_many(range(4))
                await worker.run(until_empty=True)
                assert ["program", "middleware", "handler"] * 4 == seen, form
                seen.clear()

    asyncio.run(main())


def test_a_handler_that_cannot_be_called_is_refused(tmp_path: Path) -> None:
    """When it is registered: each of its messages would fail otherwise."""
    worker = AsyncQueueService(database(tmp_path)).worker()

    async def without(message: Any) -> None:
        del message

    async def two(message: Any, connection: Any) -> None:
        del message, connection

    for function, transactional in ((without, True), (two, False)):
        with pytest.raises(TypeError, match=r"takes \(message.*the worker calls it with a message"):
            worker.handle("jobs", transactional=transactional)(function)
    worker.handle("jobs")(without)
    worker.handle("mails", transactional=True)(two)


def test_a_cancelled_run_gives_everything_back(tmp_path: Path) -> None:
    """Its handlers are cancelled, and their messages are free at once, not counted as failures."""

    async def main() -> None:
        async with AsyncQueueService(database(tmp_path)) as service:
            queue = await service.create_queue("jobs", retry=FixedDelay(900))
            await queue.publish_many(range(6))
            worker = service.worker(concurrency=2, prefetch=3)
            began, cancelled = asyncio.Event(), 0

            @worker.handle("jobs")
            async def handle(message: AsyncMessage) -> None:
                nonlocal cancelled
                assert message.payload in range(6)
                began.set()
                try:
                    await asyncio.sleep(600)
                except asyncio.CancelledError:
                    cancelled += 1
                    raise

            running = asyncio.create_task(worker.run())
            await began.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            async with asyncio.timeout(30):
                while (await queue.stats()).ready < 6:
                    await run(core_of(queue._sync).claimer.recall)
                    await asyncio.sleep(0.05)
            assert {1} == {message.attempt for message in await queue.consume(6)}
            assert 1 <= cancelled <= 2

    asyncio.run(main())


def test_a_worker_that_is_cancelled_after_its_handler_counts_no_failure(tmp_path: Path) -> None:
    """Its task is cancelled while it acks what a transactional handler has done."""

    async def main() -> None:
        async with AsyncQueueService(database(tmp_path)) as service:
            queue = await service.create_queue("jobs", retry=FixedDelay(900))
            await queue.publish("x")
            worker = service.worker(concurrency=1)

            @worker.handle("jobs", transactional=True)
            async def handle(message: AsyncMessage, connection: AsyncConnection) -> None:
                assert "x" == message.payload
                sync = connection.sync_connection
                task = asyncio.current_task()
                assert sync is not None
                assert task is not None
                event.listen(sync, "before_cursor_execute", lambda *_: task.cancel())
                worker.stop()

            async with asyncio.timeout(30):
                await worker.run()
            (again,) = await queue.consume()
            assert 1 == again.attempt
            assert again.last_error is None

    asyncio.run(main())


def test_a_handler_that_is_cancelled_by_its_own_work_has_failed(tmp_path: Path) -> None:
    """The worker goes on, and the message is retried."""

    async def main() -> None:
        async with AsyncQueueService(database(tmp_path)) as service:
            queue = await service.create_queue("jobs", retry=FixedDelay(0), archive="all")
            await queue.publish("x")
            worker = service.worker(concurrency=1)

            @worker.handle("jobs")
            async def handle(message: AsyncMessage) -> None:
                if message.attempt == 1:
                    inner = asyncio.create_task(asyncio.sleep(60))
                    inner.cancel()
                    await inner
                worker.stop()

            async with asyncio.timeout(30):
                await worker.run()
            (done,) = await queue.archive.messages(status="done").list()
            assert 2 == done.attempt

    asyncio.run(main())


@pytest.mark.parametrize("form", [{}, {"transactional": True}, {"timeout": 60}])
@pytest.mark.parametrize("how", ["raised", "caught", "pending"])
def test_a_handler_that_cancels_its_task_ends_nothing_else(
    tmp_path: Path, how: str, form: dict[str, Any]
) -> None:
    """The cancellation is a failure of the call that it leaves, and the next call knows nothing."""

    async def main() -> None:
        async with AsyncQueueService(database(tmp_path)) as service:
            queue = await service.create_queue("jobs", retry=FixedDelay(0), archive="all")
            await queue.publish_many(range(3))
            worker = service.worker(concurrency=1, prefetch=3)

            @worker.handle("jobs", **form)
            async def handle(message: AsyncMessage, *_: object) -> None:
                task = asyncio.current_task()
                assert task is not None
                assert 0 == task.cancelling()
                if message.payload == 0 and message.attempt == 1:
                    task.cancel()
                    if how != "pending":
                        with contextlib.suppress(
                            asyncio.CancelledError if how == "caught" else ValueError
                        ):
                            await asyncio.sleep(0)
                elif message.payload == 1 and message.attempt == 1:
                    async with asyncio.timeout(0.01):
                        await asyncio.Event().wait()

            async with asyncio.timeout(30):
                await worker.run(until_empty=True)
            done = {m.payload: m for m in await queue.archive.messages(status="done").list()}
            tries = {0: 2 if how == "raised" else 1, 1: 2, 2: 1}
            assert tries == {payload: done[payload].attempt for payload in sorted(done)}
            assert "TimeoutError" in str(done[1].last_error)

    asyncio.run(main())


def test_a_worker_whose_tasks_were_cancelled_by_others_says_so(tmp_path: Path) -> None:
    """It gives back what it has in hand, and does not look as if it had ended in order."""

    async def main() -> None:
        async with AsyncQueueService(database(tmp_path)) as service:
            queue = await service.create_queue("jobs")
            await queue.publish_many(range(4))
            worker = service.worker(concurrency=1, prefetch=4)

            @worker.handle("jobs")
            async def handle(_: AsyncMessage) -> None:
                task = asyncio.current_task()
                assert task is not None
                asyncio.get_running_loop().call_soon(task.cancel)

            async with asyncio.timeout(30):
                with pytest.raises(QueueError, match="cancelled all its tasks"):
                    await worker.run()
            assert 0 == (await queue.stats()).claimed

    asyncio.run(main())


def test_leases_are_kept_while_a_handler_awaits(tmp_path: Path) -> None:
    """A handler that goes on keeps its message: the end of its lease moves."""

    async def main() -> None:
        async with AsyncQueueService(database(tmp_path), reaper_interval=0.2) as service:
            queue = await service.create_queue("jobs", lease=12.0)
            await queue.publish("x")
            worker = service.worker(concurrency=2, poll_interval=(0.01, 0.05))
            attempts: list[int] = []

            async def lease_end() -> Any:
                (held,) = await queue.messages(status="claimed").list()
                return held.lease_expires_at

            @worker.handle("jobs")
            async def handle(message: AsyncMessage) -> None:
                attempts.append(message.attempt)
                (consumer,) = await service.consumers()
                assert (HandledQueue("jobs", 2),) == consumer.handles
                first = await lease_end()
                while await lease_end() == first:  # noqa: ASYNC110 - it is an event of the database
                    await asyncio.sleep(0.01)
                worker.stop()

            async with asyncio.timeout(60):
                await worker.run()
            assert [1] == attempts
            assert 0 == (await queue.stats()).claimed

    asyncio.run(main())


def test_a_service_that_the_worker_started_leaves_with_the_loop(tmp_path: Path) -> None:
    """Nobody has to stop it: its registration is gone when asyncio.run() has ended."""

    async def work() -> None:
        service = AsyncQueueService(database(tmp_path))
        queue = await service.create_queue("jobs")
        await queue.publish("x")
        worker = service.worker()

        @worker.handle("jobs")
        async def handle(message: AsyncMessage) -> None:
            assert "x" == message.payload
            worker.stop()

        await worker.run()

    async def registered() -> int:
        service = AsyncQueueService(database(tmp_path))
        try:
            return len(await service.consumers())
        finally:
            await service.stop()

    asyncio.run(work())
    assert 0 == asyncio.run(registered())


def test_middleware_and_observers_go_around_coroutines(tmp_path: Path) -> None:
    """Each task has context variables of its own, which last from one to the other."""
    current: contextvars.ContextVar[int] = contextvars.ContextVar("current")
    seen: list[tuple[str, int, int]] = []

    class Watching(Observer):
        @contextlib.contextmanager
        def handling(self, _: str, messages: Sequence[MessageFacts]) -> Iterator[None]:
            (message,) = messages
            token = current.set(message.id)
            try:
                yield
            finally:
                seen.append(("observer", message.id, current.get()))
                current.reset(token)

    async def around(message: AsyncMessage, call: Callable[[], Awaitable[None]]) -> None:
        await call()
        seen.append(("middleware", message.id, current.get()))

    async def main() -> None:
        async with AsyncQueueService(database(tmp_path), observer=Watching()) as service:
            queue = await service.create_queue("jobs")
            worker = service.worker(concurrency=2, middleware=[around])
            both = asyncio.Barrier(2)

            @worker.handle("jobs", transactional=True)
            async def handle(message: AsyncMessage, _: AsyncConnection) -> None:
                seen.append(("handler", message.id, current.get()))
                await both.wait()
                seen.append(("handler", message.id, current.get()))
                worker.stop()

            await queue.publish_many(range(2))
            async with asyncio.timeout(30):
                await worker.run()

    asyncio.run(main())
    assert all(message_id == found for _, message_id, found in seen)
    whose = [sorted(who for who, message_id, _ in seen if message_id == each) for each in (1, 2)]
    assert [["handler", "handler", "middleware", "observer"]] * 2 == whose


def test_plain_middleware_is_refused_on_a_loop(tmp_path: Path) -> None:
    """It would hold up the loop."""
    service = AsyncQueueService(database(tmp_path))
    with pytest.raises(TypeError, match="middleware of this worker must be coroutine functions"):
        service.worker(middleware=[lambda _, call: call()])


def test_a_handler_that_ignores_its_cancellation_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another task takes its place, its message is tried again, and the worker ends without it."""
    monkeypatch.setattr(time_limits, "GRACE_SECONDS", 0.05)

    async def main() -> None:
        async with AsyncQueueService(database(tmp_path)) as service:
            queue = await service.create_queue("jobs", retry=FixedDelay(0), archive="all")
            await queue.publish("x")
            worker = service.worker(concurrency=1, poll_interval=(0.01, 0.05))
            end, cancelled = asyncio.Event(), 0

            @worker.handle("jobs", timeout=0.05)
            async def handle(message: AsyncMessage) -> None:
                nonlocal cancelled
                while message.attempt == 1 and not end.is_set():
                    try:
                        await end.wait()
                    except asyncio.CancelledError:
                        cancelled += 1
                        assert message.cancelled
                        if cancelled > 1:
                            raise
                if message.attempt == 2:
                    worker.stop()

            async with asyncio.timeout(30):
                await worker.run()
            (done,) = await queue.archive.messages().list()
            assert 2 == done.attempt
            assert "timed out after 50 ms" == done.last_error
            async with asyncio.timeout(30):
                while cancelled < 2:  # noqa: ASYNC110 - the loop tells nobody
                    await asyncio.sleep(0.01)

    asyncio.run(main())


def test_an_aborted_worker_counts_no_failure_of_a_handler_with_a_limit(tmp_path: Path) -> None:
    """Its task is cancelled by the worker's end, and not for its time."""

    async def main() -> None:
        async with AsyncQueueService(database(tmp_path)) as service:
            queue = await service.create_queue("jobs", retry=FixedDelay(900))
            await queue.publish("x")
            worker = service.worker(concurrency=1)

            @worker.handle("jobs", timeout=60)
            async def handle(message: AsyncMessage) -> None:
                assert not message.cancelled
                worker.abort()
                await asyncio.Event().wait()

            async with asyncio.timeout(30):
                await worker.run()
            (again,) = await queue.consume(wait=10)
            assert 1 == again.attempt
            assert again.last_error is None

    asyncio.run(main())


@pytest.mark.parametrize("where", ["not_expired", "settlements.nack"])
@pytest.mark.parametrize("how", ["aborted", "cancelled"])
def test_a_worker_that_ends_beside_a_call_gives_its_message_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, where: str
) -> None:
    """While it looks whether the message has expired, or while it stores the failure."""

    async def main() -> None:
        async with AsyncQueueService(database(tmp_path)) as service:
            queue = await service.create_queue("jobs", retry=FixedDelay(900))
            await queue.publish("x", expires=60)
            worker, reached = service.worker(concurrency=1), asyncio.Event()

            def hang(*_: object, **__: object) -> None:
                reached.set()
                pause_on_loop(600)

            @worker.handle("jobs")
            async def handle(_: AsyncMessage) -> None:
                raise ValueError

            with monkeypatch.context() as patched:
                target: Any = core_of(queue._sync)
                *path, name = where.split(".")
                patched.setattr(functools.reduce(getattr, path, target), name, hang)
                running = asyncio.create_task(worker.run())
                await reached.wait()
                if how == "aborted":
                    worker.abort()
                    await running
                else:
                    running.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await running
            await run(core_of(queue._sync).claimer.recall)
            (again,) = await queue.consume(wait=5)
            assert 1 == again.attempt

    asyncio.run(main())


def test_a_handler_is_cancelled_with_its_message(tmp_path: Path) -> None:
    """Its batch goes on for as long as one message of it is wanted; the task handles more then."""

    async def main() -> None:
        async with AsyncQueueService(database(tmp_path)) as service:
            queue = await service.create_queue("jobs", lease=0.6, archive="all")
            first, second = await queue.publish_many(["a", "b"])
            worker = service.worker(concurrency=1, poll_interval=(0.01, 0.05))
            seen: list[list[bool]] = []

            @worker.handle("jobs", batch=2)
            async def handle(messages: list[AsyncMessage]) -> None:
                if messages[0].payload == "last":
                    worker.stop()
                    return
                await queue.cancel(first.id)
                while not messages[0].cancelled:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.01)
                seen.append([message.cancelled for message in messages])
                await queue.cancel(second.id)
                try:
                    await asyncio.Event().wait()
                finally:
                    seen.append([message.cancelled for message in messages])
                    await queue.publish("last")

            async with asyncio.timeout(30):
                await worker.run()
            assert [[True, False], [True, True]] == seen
            outcomes = [str(m.outcome) for m in await queue.archive.messages().list()]
            assert ["rejected", "rejected", "done"] == outcomes

    asyncio.run(main())
