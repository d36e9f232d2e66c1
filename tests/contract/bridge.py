"""The asynchronous proxy under the synchronous names, so that one contract suite tests both.

An event loop runs in a thread of its own. What a test calls goes to it and is waited for, from
whatever thread the test calls. A test may also use an asynchronous engine as if it were a
synchronous one: its SQL is awaited on the same loop, because ``bridged`` runs the test in a
greenlet whose awaitables go there.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from greenlet import getcurrent, greenlet
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from queue_over_sql import ClaimLost
from queue_over_sql.aio import AsyncQueueService, AsyncWorker
from queue_over_sql.aio.proxies import Proxy


class Bridge:
    """One event loop in a thread, for as long as the tests run."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._executor = ThreadPoolExecutor(64, "handler")
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def service(self, url: str, **settings: Any) -> Any:
        """A service that looks like a ``QueueService``."""
        return Outer(self, AsyncQueueService(url, **settings))

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function on the loop, await what it returns, and return that."""

        async def on_loop() -> Any:
            result = function(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result

        return asyncio.run_coroutine_threadsafe(on_loop(), self.loop).result()

    def bridged(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function in this thread; what it awaits is awaited on the loop."""
        if getattr(getcurrent(), "__sqlalchemy_greenlet_provider__", False):
            return function(*args, **kwargs)
        context = _Bridged(function)
        result = context.switch(*args, **kwargs)
        while not context.dead:
            try:
                value = self.call(lambda awaitable: awaitable, result)
            except BaseException:  # noqa: BLE001 - it belongs to the function
                result = context.throw(*sys.exc_info())
            else:
                result = context.switch(value)
        return result

    async def in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a blocking function of a test beside the loop."""
        run = functools.partial(self.bridged, function, *args)
        return await self.loop.run_in_executor(self._executor, run)

    def close(self) -> None:
        """End the loop."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
        self._executor.shutdown()


class _Bridged(greenlet):  # type: ignore[misc] # it has no types here
    __sqlalchemy_greenlet_provider__ = True


class Outer:
    """A proxy that looks like the synchronous object behind it."""

    def __init__(self, bridge: Bridge, proxy: Proxy[Any]) -> None:
        object.__setattr__(self, "bridge", bridge)
        object.__setattr__(self, "proxy", proxy)

    @property  # type: ignore[misc] # so that isinstance() sees the synchronous class
    def __class__(self) -> type:
        return type(self.proxy._sync)

    @property
    def settings(self) -> Any:
        """Read now: on the asynchronous side that has to be awaited before."""
        self.bridge.call(self.proxy.refresh)
        return self.proxy.settings

    def __getitem__(self, key: Any) -> Any:
        return self._outer(self.proxy[key])

    def __getattr__(self, name: str) -> Any:
        source = self.proxy if hasattr(self.proxy, name) and name[0] != "_" else self.proxy._sync
        found = getattr(source, name)
        if not callable(found) or (source is not self.proxy and name[0] == "_"):
            return self._outer(found)

        @functools.wraps(found)
        def call(*args: Any, **kwargs: Any) -> Any:
            if isinstance(self.proxy, AsyncWorker) and name == "handle":
                return self._handle(*args, **kwargs)
            given = [self._inner(value) for value in args]
            named = {key: self._inner(value) for key, value in kwargs.items()}
            try:
                return self._outer(self.bridge.call(found, *given, **named))
            except ClaimLost as error:
                error.messages = self._outer(list(error.messages))
                raise

        return call

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.proxy._sync, name, value)

    def __enter__(self) -> Any:
        return self._outer(self.bridge.call(self.proxy.__aenter__))

    def __exit__(self, *failure: object) -> Any:
        return self.bridge.call(self.proxy.__aexit__, *failure)

    def __eq__(self, other: object) -> bool:
        theirs = object.__getattribute__(other, "proxy") if type(other) is Outer else other
        return bool(self.proxy == theirs)

    def __hash__(self) -> int:
        return hash(self.proxy)

    def __repr__(self) -> str:
        return repr(self.proxy._sync)

    def _outer(self, value: Any) -> Any:
        """What a test sees of what the proxy gave."""
        if isinstance(value, Proxy):
            return Outer(self.bridge, value)
        if type(value) is list:
            return [self._outer(each) for each in value]
        if type(value) is dict:
            return {name: self._outer(each) for name, each in value.items()}
        if inspect.isasyncgen(value):
            return self._stream(value)
        if hasattr(value, "__aenter__"):
            return _Block(self, value)
        return value

    def _inner(self, value: Any) -> Any:
        """What the proxy gets of what a test gave."""
        if type(value) is Outer:
            return object.__getattribute__(value, "proxy")
        if type(value) in {list, tuple} and any(type(each) is Outer for each in value):
            return [self._inner(each) for each in value]
        if isinstance(value, Connection) and value.dialect.is_async:
            return AsyncConnection(AsyncEngine(value.engine), value)
        if isinstance(value, Session):
            session = AsyncSession()
            session.sync_session = value
            return session
        return value

    def _stream(self, messages: Any) -> Iterator[Any]:
        try:
            while True:
                try:
                    message = self.bridge.call(messages.__anext__)
                except StopAsyncIteration:
                    return
                yield self._outer(message)
        finally:
            self.bridge.call(messages.aclose)

    def _handle(self, queue: Any, **options: Any) -> Callable[[Any], Any]:
        register = self.proxy.handle(self._inner(queue), **options)

        def decorate(function: Any) -> Any:
            async def handler(messages: Any, *connection: AsyncConnection) -> Any:
                lent = [each.sync_connection for each in connection]
                result = await self.bridge.in_thread(function, self._outer(messages), *lent)
                return result if options.get("keep_result") else None

            register(handler)
            return function

        return decorate


class _Block:
    """An asynchronous context manager in a plain ``with``."""

    def __init__(self, outer: Outer, block: Any) -> None:
        self._outer = outer
        self._block = block

    def __enter__(self) -> Any:
        return self._outer._outer(self._outer.bridge.call(self._block.__aenter__))

    def __exit__(self, *failure: object) -> Any:
        return self._outer.bridge.call(self._block.__aexit__, *failure)
