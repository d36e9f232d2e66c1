"""Handlers: what a worker does with the messages of a queue, and what becomes of each."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import inspect
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import event
from sqlalchemy.exc import InvalidRequestError

from queue_over_sql.errors import ClaimLost, DatabaseUnavailable, QueueError

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection

    from queue_over_sql.database.connections import Connections
    from queue_over_sql.message import Message
    from queue_over_sql.queue import Queue


_log = logging.getLogger(__name__)

HandlerFunction = Callable[..., Any]
SHARED_SECONDS = 0.05
"""After so long a transaction that messages share begins no other message."""


@dataclasses.dataclass(frozen=True)
class Handler:
    """One function for the messages of one queue; see ``Worker.handle``."""

    queue: str
    function: HandlerFunction
    transactional: bool
    lease_keepalive: bool
    batch: int | None
    where: ColumnElement[bool] | None = None
    commit_every: int = 1


class HandlerStopped(asyncio.CancelledError):
    """The handler was cancelled because its worker was told to stop: no failure of its own."""


class _NotCalled(Exception):
    """The database could not be reached before the handler was called: no failure of its own."""


class HandlerRun:
    """Runs one handler over claimed messages, so that each of them is settled or said lost.

    One thread runs it, and closes it when it has no more messages at hand.
    """

    def __init__(
        self,
        handler: Handler,
        queue: Queue,
        connections: Connections,
        insist: Callable[[Callable[[], None]], None],
        draining: Callable[[], bool],
    ) -> None:
        self._handler = handler
        self.queue = queue
        self._connections = connections
        self._insist = insist
        self._draining = draining
        self._connection = connections.keeping() if handler.transactional else None
        self.used_at = time.monotonic()
        """When it ended its last call."""

    def close(self) -> None:
        """Give back the connection of a transactional handler."""
        if self._connection is not None:
            self._connection.close()

    def handle(self, messages: Sequence[Message]) -> list[Message]:
        """Call the handler; returns the messages that still have to be acked."""
        held = [message for message in messages if self.queue.holds(message)]
        if len(held) < len(messages):
            _log.warning("Queue %s: expired; the rest is others' work.", self.queue.name)
        if not held:
            return []
        together = len(held) > 1 and not self._handler.batch
        finished = self._call_for_each(held) if together else self._call(held)
        self.used_at = time.monotonic()
        return finished

    def _call_for_each(self, messages: list[Message]) -> list[Message]:
        """Call it for each message, several in one transaction, until the worker drains."""
        while messages and not self._draining():
            messages = messages[self._call_together(messages) :]
        self._give_back(messages)
        return []

    def _call_together(self, messages: list[Message]) -> int:
        """Call it in one transaction, or in one for each message if that fails; for how many."""
        begun: list[Message] = []
        failed: dict[Message, BaseException] = {}
        committed = False

        def act(connection: Connection) -> list[Message]:
            with _refusing_to_commit(connection):
                ends_at = time.monotonic() + SHARED_SECONDS
                for message in messages:
                    begun.append(message)
                    self._call_in_savepoint(connection, message, failed)
                    if time.monotonic() >= ends_at or self._draining():
                        break
            return [message for message in begun if message not in failed]

        try:
            self._in_transaction(messages, act)
            committed = True
        except _NotCalled as error:
            _log.info("Queue %s: %s", self.queue.name, error.__cause__)
            self._give_back(messages)
            return len(messages)
        except asyncio.CancelledError:
            self._give_back(messages)
            raise
        except Exception as error:  # noqa: BLE001 - what it is shows when they are handled alone
            _log.info("Queue %s: messages are handled one by one: %s", self.queue.name, error)
        if committed:
            for message, reason in failed.items():
                self._failed([message], reason)
        else:
            self._call_one_by_one(begun)
        return len(begun)

    def _call_in_savepoint(
        self, connection: Connection, message: Message, failed: dict[Message, BaseException]
    ) -> None:
        savepoint = connection.begin_nested()
        try:
            _refuse_awaitable(self._handler.function(message, connection))
        except BaseException as error:
            # It raises where the whole transaction is gone, as after a deadlock on MySQL.
            savepoint.rollback()
            if isinstance(error, HandlerStopped):
                raise
            message.settled = False
            failed[message] = error
        else:
            savepoint.commit()

    def _call_one_by_one(self, messages: list[Message]) -> None:
        for index, message in enumerate(messages):
            if not self.queue.holds(message):
                _log.warning("Queue %s: expired; the rest is others' work.", self.queue.name)
                return
            try:
                self._call([message])
            except HandlerStopped:
                self._give_back(messages[index + 1 :])
                raise

    def _call(self, messages: list[Message]) -> list[Message]:
        argument: Any = messages if self._handler.batch else messages[0]

        def act(connection: Connection) -> list[Message]:
            _refuse_awaitable(self._handler.function(argument, connection))
            return messages

        try:
            if self._handler.transactional:
                self._in_transaction(messages, act)
                return []
            _refuse_awaitable(self._handler.function(argument))
        except _NotCalled as error:
            _log.info("Queue %s: %s", self.queue.name, error.__cause__)
            self._give_back(messages)
            return []
        except HandlerStopped:
            self._give_back(messages)
            raise
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its failure
            self._failed(messages, error)
            return []
        return [message for message in messages if not message.settled]

    def _in_transaction(
        self, messages: list[Message], act: Callable[[Connection], list[Message]]
    ) -> None:
        """Act, and ack in the same transaction what it returns."""
        called = returned = False
        try:
            with self._connections.transaction(self._connection) as connection:
                self._connections.reach(connection)
                called = True
                finished = act(connection)
                returned = True
                unsettled = [message for message in finished if not message.settled]
                if unsettled:
                    self.queue.ack(unsettled, connection=connection)
        except BaseException as error:
            # Rolled back: whatever was settled inside is not settled after all.
            for message in messages:
                message.settled = False
            if not called and isinstance(error, DatabaseUnavailable):
                raise _NotCalled from error
            if called == returned and isinstance(error, asyncio.CancelledError):
                raise HandlerStopped from error
            raise

    def _failed(self, messages: Sequence[Message], error: BaseException) -> None:
        if isinstance(error, ClaimLost):
            _log.warning("Queue %s: %s", self.queue.name, error)
            messages = [message for message in messages if message not in error.messages]
        else:
            _log.warning(
                "The handler of queue %s failed for %s.",
                self.queue.name,
                ", ".join(map(repr, messages)),
                exc_info=error,
            )
        if not messages:
            return

        def nack() -> None:
            # Also of those that the handler settled: that may have been rolled back, and where it
            # was not the fence refuses.
            try:
                self.queue.nack(list(messages), error=error)
            except ClaimLost as lost:
                _log.info("Queue %s: %s", self.queue.name, lost)

        self._settle_at_last(nack)

    def _give_back(self, messages: Sequence[Message]) -> None:
        if messages:
            self._settle_at_last(lambda: self.queue.release(list(messages)))

    def _settle_at_last(self, settle: Callable[[], None]) -> None:
        """Settle after an outage too; a message that cannot be settled spoils none beside it."""
        try:
            self._insist(settle)
        except ClaimLost as lost:
            _log.info("Queue %s: %s", self.queue.name, lost)
        except QueueError as error:
            _log.warning("Queue %s: left to the lease's end: %s", self.queue.name, error)


def is_asynchronous(function: HandlerFunction) -> bool:
    """Whether calling the function would only make something to be awaited or iterated."""
    called: Any = function
    while isinstance(called, functools.partial):
        called = called.func
    if not inspect.isroutine(called):
        called = type(called).__call__
    return inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called)


@contextlib.contextmanager
def _refusing_to_commit(connection: Connection) -> Iterator[None]:
    """Let no handler commit what others did before their messages are acked."""

    def refuse(_: Connection) -> None:
        msg = "a handler with commit_every must not commit: its transaction is others', too"
        raise InvalidRequestError(msg)

    event.listen(connection, "commit", refuse)
    try:
        yield
    finally:
        event.remove(connection, "commit", refuse)


def _refuse_awaitable(result: object) -> None:
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        msg = "the handler returned an awaitable, which nobody awaits: it must do its work itself"
        raise TypeError(msg)
