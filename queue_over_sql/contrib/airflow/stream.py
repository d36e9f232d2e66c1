"""The messages of a queue as a stream, and what becomes of each after Airflow had its event."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from airflow.sdk.bases.hook import BaseHook
from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer
from sqlalchemy import URL

from queue_over_sql import (
    AsyncMessage,
    AsyncQueue,
    AsyncQueueService,
    ClaimLost,
    DatabaseRefused,
    DatabaseUnavailable,
    QueueNotFound,
)

_log = logging.getLogger(__name__)
# How long to wait for a message in one call.
_WAIT = 60.0
# Between tries while the database is away, or the queue is not there.
_PAUSE = 2.0
_BATCH = 20
# Airflow keeps so many and more in memory; it fails a trigger that has more than 1,024.
_MOST = 200
# What Airflow calls otherwise than SQLAlchemy.
_DRIVERS = {"postgres": "postgresql"}


@dataclass
class Received:
    """A message that the stream claimed."""

    message: AsyncMessage[Any]
    fired: bool = False
    """Whether the triggerer took its event. Airflow calls an event accepted, too, if it ended the
    trigger just before."""


class QueueStream(SharedStreamProducer):
    """Claims messages, and acks those whose events Airflow has stored.

    Args:
        queue_name: the name of the queue.
        conn_id: the connection of Airflow to the database.
        consumer_timeout: as for ``QueueService``.
    """

    def __init__(self, queue_name: str, conn_id: str, consumer_timeout: float) -> None:
        self._name = queue_name
        self._connection = conn_id
        self._consumer_timeout = consumer_timeout
        self._service: AsyncQueueService | None = None
        self._queue: AsyncQueue | None = None
        self._unsettled = 0
        self._has_room = asyncio.Event()
        self._ends = False

    async def open_stream(self) -> AsyncGenerator[tuple[Received, Received], None]:
        """Yield messages as they come, the oldest first, until the triggerer ends it."""
        try:
            while True:
                try:
                    messages = await self._claim()
                except (DatabaseUnavailable, DatabaseRefused, QueueNotFound) as error:
                    _log.warning("No messages for now: %s", error)
                    await asyncio.sleep(_PAUSE)
                    continue
                self._unsettled += len(messages)
                for message in messages:
                    received = Received(message)
                    yield received, received
        finally:
            self._ends = True

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Ack the messages whose events are stored, and give back the others."""
        stored: list[AsyncMessage[Any]] = []
        failed: list[AsyncMessage[Any]] = []
        unfired: list[AsyncMessage[Any]] = []
        for received, outcome in batch:
            if not received.fired:
                unfired.append(received.message)
            elif outcome.is_clean:
                stored.append(received.message)
            else:
                failed.append(received.message)
        # The stream may be closed meanwhile.
        queue = self._queue
        try:
            if queue is not None:
                await self._settle(queue.ack, stored)
                failure = "Airflow did not store the event in time"
                await self._settle(partial(queue.nack, error=failure), failed)
                await self._settle(queue.release, unfired)
        finally:
            self._unsettled -= len(batch)
            self._has_room.set()

    async def aclose(self) -> None:
        """Close the connections, and give back all messages that are not settled."""
        service, self._service, self._queue = self._service, None, None
        if service is not None:
            await service.stop()

    async def _claim(self) -> list[AsyncMessage[Any]]:
        if self._service is None:
            connection = await BaseHook.aget_connection(self._connection)
            service = AsyncQueueService(url_of(connection), consumer_timeout=self._consumer_timeout)
            try:
                await service.start()
            except BaseException:
                await service.stop()
                raise
            self._service = service
        if self._queue is None:
            self._queue = await self._service.queue(self._name)
        while self._unsettled >= _MOST:
            self._has_room.clear()
            await self._has_room.wait()
        count = min(_BATCH, _MOST - self._unsettled)
        return await self._queue.consume(count, keep=True, wait=_WAIT)

    async def _settle(
        self,
        settle: Callable[[Sequence[AsyncMessage[Any]]], Awaitable[None]],
        messages: list[AsyncMessage[Any]],
    ) -> None:
        """Settle messages, or try until the database answers: their claims are kept so long."""
        while messages:
            try:
                await settle(messages)
            except ClaimLost as lost:
                _log.warning("Messages will be fired again: %s", lost)
            except (DatabaseUnavailable, DatabaseRefused) as error:
                _log.warning("Fired messages are not settled yet: %s", error)
                if not self._ends:
                    await asyncio.sleep(_PAUSE)
                    continue
            return


def url_of(connection: Any) -> URL:
    """The URL of a connection's database; its driver is that of the service.

    The extra fields of the connection become options of the driver.

    Args:
        connection: a ``Connection`` of Airflow. Its schema is the database. One without a schema
            whose host is a path is a file of SQLite.
    """
    host, database = connection.host, connection.schema
    if not database and host and host.startswith("/"):
        host, database = None, host
    return URL.create(
        _DRIVERS.get(connection.conn_type, connection.conn_type),
        username=connection.login or None,
        password=connection.password or None,
        host=host or None,
        port=connection.port,
        database=database or None,
        query={name: str(value) for name, value in connection.extra_dejson.items()},
    )
