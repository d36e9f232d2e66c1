"""Cancel a coroutine at one of its awaits, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Interrupted(Generic[T]):
    """Awaits a coroutine, whose task is cancelled at its ``at``-th await.

    Args:
        coroutine: what is to be interrupted.
        at: which await, from 1.
        late: cancel when the answer is there already but was not yet received.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, T], at: int, *, late: bool) -> None:
        self._coroutine = coroutine
        self._at = at
        self._late = late
        self.hit = False

    def __await__(self) -> Generator[Any, Any, T]:
        task = asyncio.current_task()
        assert task is not None
        running = self._coroutine.__await__()
        count = 0
        answer, failure = None, None
        while True:
            try:
                awaited = running.throw(failure) if failure else running.send(answer)
            except StopIteration as ended:
                result: T = ended.value
                return result
            count += 1
            if count == self._at:
                self.hit = True
                self._cancel(task, awaited)
            answer, failure = None, None
            try:
                answer = yield awaited
            except BaseException as error:  # noqa: BLE001 - it belongs to the coroutine
                failure = error

    def _cancel(self, task: asyncio.Task[Any], awaited: Any) -> None:
        if self._late and isinstance(awaited, asyncio.Future):
            awaited.add_done_callback(lambda _: task.cancel())
        else:
            task.cancel()


async def interrupt(coroutine: Coroutine[Any, Any, T], at: int, *, late: bool) -> tuple[bool, Any]:
    """Whether the coroutine was hit, and what it returned; None where it was cancelled."""
    interrupted = Interrupted(coroutine, at, late=late)

    async def run() -> T:
        return await interrupted

    task = asyncio.create_task(run())
    try:
        result = await task
    except asyncio.CancelledError:
        if not task.cancelled():
            raise
        return True, None
    assert not interrupted.hit, f"the cancellation at await {at} was swallowed"
    return False, result
